/* ex_members: atomic variables in objects on the heap, whose member functions
 * are called, as in code that is not optimised: a mailbox that is polled with
 * and without a yield, a phase that is looked at in passing, a published
 * pointer, and a sum under a lock of the program's own. How often a poll fails
 * never reaches the output. */
#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

struct Parcel {
    std::uint64_t number;
    std::uint64_t content;
};

struct Mailbox {
    std::atomic<bool> full{false};
    std::atomic<Parcel *> parcel{nullptr};
};

class Lock {
  public:
    void lock() {
        while (taken.exchange(true, std::memory_order_acquire))
            while (taken.load(std::memory_order_relaxed))
                std::this_thread::yield();
    }
    void unlock() { taken.store(false, std::memory_order_release); }

  private:
    std::atomic<bool> taken{false};
};

struct Shared {
    std::vector<Mailbox> boxes;
    std::atomic<unsigned> phase{0};
    std::atomic<unsigned> working;
    Lock lock;
    std::uint64_t digest = 0;

    explicit Shared(unsigned pairs) : boxes(pairs), working(pairs) {}
};

std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15;
    return x ^ x >> 29;
}

/* Every eighth turn is waited for without a yield, but not for long. */
void rest(unsigned long turn) {
    thread_local unsigned patience = 0;
    if (turn % 8 || ++patience % 16 == 0)
        std::this_thread::yield();
}

void send(Shared &shared, Mailbox &box, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        while (box.full.load(std::memory_order_acquire))
            rest(i);
        box.parcel.store(new Parcel{i, mix(i)}, std::memory_order_relaxed);
        box.full.store(true, std::memory_order_release);
        shared.phase.store(static_cast<unsigned>(i), std::memory_order_relaxed);
    }
    shared.working--;
}

void receive(Shared &shared, Mailbox &box, unsigned long rounds) {
    std::uint64_t digest = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        while (!box.full.load(std::memory_order_acquire))
            rest(shared.phase);
        std::unique_ptr<Parcel> parcel(
            box.parcel.exchange(nullptr, std::memory_order_relaxed));
        box.full.store(false, std::memory_order_release);
        digest = mix(digest + parcel->content + parcel->number);
    }
    shared.lock.lock();
    shared.digest += digest;
    shared.lock.unlock();
}

} // namespace

int main(int argc, char **argv) {
    unsigned long rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 3000;
    auto shared = std::make_unique<Shared>(2);
    std::vector<std::thread> crew;
    for (Mailbox &box : shared->boxes) {
        crew.emplace_back(send, std::ref(*shared), std::ref(box), rounds);
        crew.emplace_back(receive, std::ref(*shared), std::ref(box), rounds);
    }
    while (shared->working.load() != 0)
        std::this_thread::yield();
    for (std::thread &member : crew)
        member.join();
    std::printf("ex_members digest %016" PRIx64 "\n", shared->digest);
    return 0;
}
