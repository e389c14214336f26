/* A copy of a descriptor takes the number of one that another thread reads. */
#include "race.h"

static int null, zero;

static void *use(void *none)
{
    char byte;
    enter();
    if (read(zero, &byte, 1) < 0) /* races on descriptor */
        none = NULL;
    leave();
    return none;
}

static void *replace(void *none)
{
    enter();
    dup2(null, zero); /* races on descriptor */
    leave();
    return none;
}

int main(void)
{
    null = open("/dev/null", O_RDONLY);
    zero = open("/dev/zero", O_RDONLY);
    run(use, replace, NULL);
    return 0;
}
