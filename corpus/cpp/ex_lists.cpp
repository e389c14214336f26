/* ex_lists: threads put numbers into a sorted list without locks, and add up what others have put there so
 * far, by loads that nothing but their type tells from ordinary ones: no lock, fence or loop that waits is
 * near. What they see decides how often they yield, and never reaches the output. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

struct Node {
    long number;
    std::atomic<Node *> next{nullptr};
};

struct List {
    Node head{-1};

    // The last node before `number`.
    __attribute__((noinline)) Node *before(long number) {
        Node *at = &head;
        while (Node *next = at->next.load(std::memory_order_acquire)) {
            if (next->number >= number) break;
            at = next;
        }
        return at;
    }

    __attribute__((noinline)) long sum() {
        long found = 0;
        for (Node *at = head.next.load(std::memory_order_acquire); at;
             at = at->next.load(std::memory_order_acquire))
            found += at->number;
        return found;
    }

    void put(long number) {
        Node *node = new Node{number};
        for (;;) {
            Node *at = before(number);
            Node *next = at->next.load(std::memory_order_acquire);
            if (next && next->number < number) continue;
            node->next.store(next, std::memory_order_relaxed);
            if (at->next.compare_exchange_strong(next, node)) return;
        }
    }
};

int main(int argc, char **argv) {
    const int threads = 3, rounds = argc > 1 ? atoi(argv[1]) : 300;
    List list;
    std::vector<std::thread> running;
    for (int t = 0; t < threads; t++)
        running.emplace_back([&list, rounds, t] {
            for (long i = 0; i < rounds; i++) {
                list.put(i * threads + t);
                if (list.sum() % 2 != 0) std::this_thread::yield();
            }
        });
    for (auto &thread : running) thread.join();
    printf("%ld\n", list.sum());
}
