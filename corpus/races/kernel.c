/* The kernel fills a buffer for one thread while another looks at it. */
#include "race.h"

static int zero;
static char buffer[64];
static volatile char seen;

static void *fill(void *none)
{
    enter();
    if (read(zero, buffer, sizeof buffer) < 0) /* races on buffer */
        none = NULL;
    leave();
    return none;
}

static void *look(void *none)
{
    enter();
    seen = buffer[9]; /* races on buffer */
    leave();
    return none;
}

int main(void)
{
    zero = open("/dev/zero", O_RDONLY);
    run(fill, look, NULL);
    return 0;
}
