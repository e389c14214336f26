/* A plain flag says that data is there. */
#include "race.h"

static int data, seen;
#if FIXED
static atomic_int ready;
#else
static volatile int ready;
#endif

static void *make(void *none)
{
    data = 7;
    ready = 1; /* races on ready */
    return none;
}

static void *take(void *none)
{
    int is_ready = ready; /* races on ready */
    if (FIXED && is_ready)
        seen = data;
    return none;
}

int main(void)
{
    run(make, take, NULL);
    return seen > 7;
}
