// Three sites on three std::mutexes: a lookup that only reads (most of the time), a statistic of
// each thread's own, and a counter that needs its lock. The fix: no lock for the lookup.
#include "pair.h"

#include <mutex>

static uint64_t table[256], served[MOST_THREADS][LINE / 8], total;
static std::mutex lookup_mutex UNUSED_WHEN_FIXED, served_mutex, total_mutex;

static uint64_t lookup(unsigned long key)
{
#if !FIXED
    std::lock_guard<std::mutex> guard(lookup_mutex);
#endif
    return work(inside, table[key % 256]);
}

static void serve(unsigned long id, uint64_t found)
{
    std::lock_guard<std::mutex> guard(served_mutex);
    served[id][0] += work(inside / 8, found) & 15;
}

static void count(uint64_t found)
{
    std::lock_guard<std::mutex> guard(total_mutex);
    total += work(inside / 16, found) & 15;
}

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        uint64_t found = lookup(round);
        self->sum += work(outside / 2, found);
        serve(self->id, found);
        self->sum += work(outside - outside / 2, found);
        count(found);
    }
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < 256; entry++)
        table[entry] = entry * 2654435761u;
    uint64_t sum = run_all(argc, argv);
    for (unsigned long id = 0; id < threads; id++)
        sum += served[id][0];
    printf("%llu\n", (unsigned long long)(sum + total));
    return 0;
}
