/* Two threads update a variable through a pointer. Without optimisation, this is a load and a store of a
 * word that a pointer in memory leads to, as it is in a lock of the program's own. */
#include "race.h"

static int count;

static void *add(void *pointer)
{
    int *to = pointer;
    enter();
    *to += 44; /* races on count */
    *to *= 2; /* races on count */
    leave();
    sleep(0);
    return NULL;
}

int main(void)
{
    run(add, add, &count);
    return 0;
}
