/* Neighbouring bits of one byte, and neighbouring bytes. */
#include "race.h"

#if FIXED
static struct { volatile unsigned char first, second; } flags;
#else
static struct { volatile unsigned char first : 1, second : 1; } flags;
#endif

static void *one(void *none) { flags.first = 1; /* races on flags */ return none; }
static void *other(void *none) { flags.second = 1; /* races on flags */ return none; }

int main(void)
{
    run(one, other, NULL);
    return 0;
}
