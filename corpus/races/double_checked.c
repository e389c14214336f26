/* Double-checked locking with a plain pointer. */
#include "race.h"

static int object;
#if FIXED
static _Atomic(int *) instance;
#else
static int *volatile instance;
#endif
static int *volatile got[2];

static APART int *get(void)
{
    if (instance == NULL) { /* races on instance */
        pthread_mutex_lock(&lock);
        if (instance == NULL)
            instance = &object; /* races on instance */
        pthread_mutex_unlock(&lock);
    }
    return &object;
}

static void *one(void *none) { got[0] = get(); return none; }
static void *other(void *none) { got[1] = get(); return none; }

int main(void)
{
    run(one, other, NULL);
    return got[0] != got[1];
}
