/* One thread writes into a pipe, the other reads from another one. */
#include "race.h"

static int first[2], second[2], value, sum;

static void *make(void *none)
{
    value = 3; /* races on value */
    return write(first[1], "x", 1) == 1 ? none : NULL;
}

static void *take(void *none)
{
    char byte;
    if (read(FIXED ? first[0] : second[0], &byte, 1) == 1)
        sum = value; /* races on value */
    return none;
}

int main(void)
{
    if (pipe(first) != 0 || pipe(second) != 0 || write(second[1], "x", 1) != 1)
        return 1;
    run(make, take, NULL);
    return sum < 0;
}
