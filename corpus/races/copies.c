/* memset and memcpy of ranges that overlap. */
#include "race.h"

static char text[8192];
static size_t length = 1000;

static void *clear(void *none)
{
    memset(text, 1, length); /* races on text */
    return none;
}

static void *copy(void *none)
{
    memcpy(text + (FIXED ? 2000 : 500), text + 5000, length); /* races on text */
    return none;
}

int main(int argc, char **argv)
{
    (void)argv;
    length += (size_t)argc;
    run(clear, copy, NULL);
    return 0;
}
