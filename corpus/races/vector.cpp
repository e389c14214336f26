// A vector grows while its size is asked for.
#include <mutex>
#include <thread>
#include <vector>

static std::vector<int> items;
static std::mutex lock;
static volatile std::size_t seen;

static void grow()
{
#if FIXED
    std::lock_guard<std::mutex> hold(lock);
#endif
    items.push_back(7); /* races on items */
}

static void look()
{
#if FIXED
    std::lock_guard<std::mutex> hold(lock);
#endif
    seen = items.size(); /* races on items */
}

int main()
{
    items.reserve(4);
    std::thread one(grow), other(look);
    one.join();
    other.join();
}
