/* counts: kernel: threads that copy pointers to shared objects, which are counted. */
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

using Shared = std::shared_ptr<const unsigned long>;

static unsigned long walk(const std::vector<Shared> &all, unsigned long rounds, unsigned long from)
{
    std::vector<Shared> kept(8);
    unsigned long sum = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        kept[i % kept.size()] = all[(from + i * 7) % all.size()];
        sum += *kept[i % kept.size() / 2];
    }
    return sum;
}

int main(int argc, char **argv)
{
    unsigned long total = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 5000000;
    unsigned long threads = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 2;
    std::vector<Shared> all;
    for (unsigned long i = 0; i < 64; i++)
        all.push_back(std::make_shared<const unsigned long>(i));
    std::vector<unsigned long> sums(threads);
    std::vector<std::thread> crew;
    for (unsigned long self = 0; self < threads; self++)
        crew.emplace_back([&, self] { sums[self] = walk(all, total / threads, self); });
    unsigned long sum = 0;
    for (unsigned long self = 0; self < threads; self++) {
        crew[self].join();
        sum += sums[self];
    }
    std::printf("counts %lu %ld\n", sum, all[0].use_count());
    return 0;
}
