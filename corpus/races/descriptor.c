/* One thread closes the descriptor that another writes to. */
#include "race.h"

static int null;

static void *use(void *none)
{
    enter();
    if (null >= 0 && write(null, "x", 1) < 0) /* races on descriptor */
        none = NULL;
    leave();
    return none;
}

static void *end(void *none)
{
    enter();
    close(null); /* races on descriptor */
    if (FIXED)
        null = -1;
    leave();
    return none;
}

int main(void)
{
    null = open("/dev/null", O_WRONLY);
    run(use, end, NULL);
    return 0;
}
