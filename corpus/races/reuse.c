/* Memory goes from thread to thread through the allocator: that is no race. A pointer that is kept
 * is one. */
#include "race.h"

static char *kept;
static volatile char seen;

static void *one(void *none)
{
    for (int i = 1; i < 60; i++) {
        char *mine = malloc(100);
        memset(mine, i, 100);
        free(mine);
    }
    enter();
    seen = kept[3]; /* races on heap */
    leave();
    return none;
}

static void *other(void *none)
{
    for (int i = 1; i < 60; i++) {
        char *mine = malloc(100);
        memset(mine, i, 100);
        free(mine);
    }
    enter();
    kept[3] = 1; /* races on heap */
    leave();
    return none;
}

int main(void)
{
    kept = calloc(1, 100);
    run(one, other, NULL);
    free(kept);
    return 0;
}
