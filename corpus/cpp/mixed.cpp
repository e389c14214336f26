// mixed.cpp: the C++ library's synchronization: std::mutex, std::scoped_lock,
// std::shared_mutex, std::condition_variable, std::thread, std::call_once,
// std::atomic, and std::shared_ptr reference counts passed among threads.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace {

struct Job {
    explicit Job(std::uint64_t n) : number(n) { ++alive; }
    ~Job() { --alive; }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    std::uint64_t number;
    static std::atomic<long> alive;
};
std::atomic<long> Job::alive{0};

class Queue {
  public:
    void push(std::shared_ptr<const Job> job) {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            jobs_.push_back(std::move(job));
        }
        ready_.notify_one();
    }
    void close() {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            closed_ = true;
        }
        ready_.notify_all();
    }
    // The next job, or null when the queue is closed and empty.
    std::shared_ptr<const Job> pop() {
        std::unique_lock<std::mutex> guard(mutex_);
        ready_.wait(guard, [this] { return closed_ || !jobs_.empty(); });
        if (jobs_.empty())
            return nullptr;
        auto job = std::move(jobs_.front());
        jobs_.pop_front();
        return job;
    }

  private:
    std::mutex mutex_;
    std::condition_variable ready_;
    std::deque<std::shared_ptr<const Job>> jobs_;
    bool closed_ = false;
};

std::once_flag table_once;
std::vector<std::uint64_t> table;
std::shared_mutex last_mutex;
std::shared_ptr<const Job> last;

std::uint64_t lookup(std::uint64_t n) {
    std::call_once(table_once, [] {
        for (std::uint64_t i = 0; i < 256; i++)
            table.push_back(i * i * 0x9e3779b97f4a7c15u);
    });
    return table[n % table.size()];
}

std::uint64_t serve(Queue &queue) {
    std::uint64_t sum = 0;
    while (auto job = queue.pop()) {
        sum += lookup(job->number) ^ job->number;
        if (job->number % 8 == 0) {
            std::unique_lock<std::shared_mutex> guard(last_mutex);
            last = job;
        } else {
            std::shared_lock<std::shared_mutex> guard(last_mutex);
            auto copy = last;
            if (copy && copy->number % 8 != 0)
                std::abort();
        }
    }
    return sum;
}

} // namespace

int main(int argc, char **argv) {
    const long jobs = argc > 1 ? std::atol(argv[1]) : 40000;
    const long workers = argc > 2 ? std::atol(argv[2]) : 3;
    Queue queue;
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(workers));
    std::vector<std::thread> threads;
    for (auto &sum : sums)
        threads.emplace_back([&queue, &sum] { sum = serve(queue); });
    for (long i = 1; i <= jobs; i++)
        queue.push(std::make_shared<const Job>(static_cast<std::uint64_t>(i)));
    queue.close();
    for (auto &thread : threads)
        thread.join();
    last.reset();
    std::uint64_t sum = 0;
    for (auto part : sums)
        sum += part;
    std::printf("mixed.cpp jobs %ld alive %ld sum %016llx\n", jobs,
                Job::alive.load(), static_cast<unsigned long long>(sum));
    return Job::alive.load() == 0 ? 0 : 1;
}
