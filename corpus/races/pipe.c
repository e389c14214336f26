/* Who reads from the pipe first may look at what was written before the bytes were sent. */
#include "race.h"

static int ends[2], value, sum;

static void *make(void *none)
{
    value = 3; /* races on value */
    return write(ends[1], "x", 1) == 1 ? none : NULL;
}

static void *take(void *none)
{
    char byte;
    if (!FIXED)
        sum = value; /* races on value */
    if (read(ends[0], &byte, 1) == 1 && FIXED)
        sum = value;
    return none;
}

int main(void)
{
    if (pipe(ends) != 0)
        return 1;
    run(make, take, NULL);
    return sum < 0;
}
