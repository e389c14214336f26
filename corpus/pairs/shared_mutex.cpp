// A map behind a std::shared_mutex that every lookup takes as a writer would; one round in 64 does
// write. The fix: lookups take it as readers.
#include "pair.h"

#include <map>
#include <mutex>
#include <shared_mutex>

static std::map<uint64_t, uint64_t> entries;
static std::shared_mutex entries_mutex;
#if FIXED
using reading = std::shared_lock<std::shared_mutex>;
#else
using reading = std::unique_lock<std::shared_mutex>;
#endif

static uint64_t lookup(unsigned long key)
{
    reading guard(entries_mutex);
    return work(inside, entries.find(key % 128)->second);
}

static void change(unsigned long id, unsigned long round)
{
    std::unique_lock<std::shared_mutex> guard(entries_mutex);
    entries.find(128 + id)->second += work(inside, round) & 7;
}

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        uint64_t found = round;
        if (round % 64 == 63)
            change(self->id, round);
        else
            found = lookup(round);
        self->sum += work(outside, found);
    }
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < 128 + MOST_THREADS; entry++)
        entries[entry] = entry * 2654435761u;
    uint64_t sum = run_all(argc, argv);
    for (auto &entry : entries)
        sum += entry.second;
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
