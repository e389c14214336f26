// shared_ptr counts its owners, and does not protect the object.
#include <memory>
#include <mutex>
#include <thread>

struct Job { int done = 0; };
static std::mutex lock;

static void work(std::shared_ptr<Job> job)
{
#if FIXED
    std::lock_guard<std::mutex> hold(lock);
#endif
    job->done += 1; /* races on heap */
}

int main()
{
    auto job = std::make_shared<Job>();
    std::thread one(work, job), other(work, job);
    one.join();
    other.join();
    return job->done == 0;
}
