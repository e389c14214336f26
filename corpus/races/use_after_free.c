/* One thread frees what another reads. */
#include "race.h"

static char *shared;
static volatile char seen;

static void *drop(void *none)
{
    enter();
#if FIXED
    free(shared);
    shared = NULL;
#else
    free(shared); /* races on heap */
#endif
    leave();
    return none;
}

static void *look(void *none)
{
    enter();
    if (shared != NULL)
        seen = shared[20]; /* races on heap */
    leave();
    return none;
}

int main(void)
{
    shared = calloc(1, 50);
    run(drop, look, NULL);
    return 0;
}
