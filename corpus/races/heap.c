/* A field of a structure on the heap. */
#include "race.h"

struct account { long id, balance; };

static void *deposit(void *of)
{
    struct account *account = of;
    enter();
    account->balance += 10; /* races on heap */
    leave();
    return NULL;
}

static void *withdraw(void *of)
{
    struct account *account = of;
    enter();
    account->balance -= 5; /* races on heap */
    leave();
    return NULL;
}

int main(void)
{
    struct account *account = calloc(1, sizeof *account);
    run(deposit, withdraw, account);
    free(account);
    return 0;
}
