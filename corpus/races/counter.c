/* Two threads count without a lock. */
#include "race.h"

static int counter;

static void *count(void *none)
{
    for (int i = 0; i < 100; i++) {
        enter();
        counter++; /* races on counter */
        leave();
    }
    return none;
}

int main(void)
{
    run(count, count, NULL);
    return counter == 0;
}
