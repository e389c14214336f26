/* Transfers between accounts, each with its lock, inside of one lock around all of them. The fix: no
 * lock around all; the lower account's lock first. */
#include "pair.h"

enum { ACCOUNTS = 64 };
static struct account {
    pthread_mutex_t lock;
    uint64_t balance;
    char pad[LINE];
} accounts[ACCOUNTS];
static pthread_mutex_t bank UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;

static void transfer(unsigned long from, unsigned long to, uint64_t amount)
{
    unsigned long low = from < to ? from : to, high = from < to ? to : from;
#if !FIXED
    pthread_mutex_lock(&bank);
#endif
    pthread_mutex_lock(&accounts[low].lock);
    pthread_mutex_lock(&accounts[high].lock);
    amount += work(inside, amount) & 7;
    accounts[from].balance -= amount;
    accounts[to].balance += amount;
    pthread_mutex_unlock(&accounts[high].lock);
    pthread_mutex_unlock(&accounts[low].lock);
#if !FIXED
    pthread_mutex_unlock(&bank);
#endif
}

static void run(struct worker *self)
{
    uint64_t random = self->id * 2 + 1;
    for (unsigned long round = 0; round < rounds; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned long from = (random >> 33) % ACCOUNTS, to = (random >> 50) % ACCOUNTS;
        if (from != to)
            transfer(from, to, random >> 60);
        self->sum += work(outside, random) & 255;
    }
}

int main(int argc, char **argv)
{
    for (unsigned at = 0; at < ACCOUNTS; at++)
        pthread_mutex_init(&accounts[at].lock, NULL);
    uint64_t sum = run_all(argc, argv);
    for (unsigned at = 0; at < ACCOUNTS; at++)
        sum += accounts[at].balance;
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
