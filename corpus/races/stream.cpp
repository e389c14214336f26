/* What threads print to a stream of the library's is ordered by it; what they count is not. */
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

static std::mutex lock;
static volatile int lines;

static void print(const char *name)
{
    for (int i = 0; i < 10; i++) {
        std::ostringstream line;
        line << name << ' ' << i;
        std::cout << line.str() << std::endl;
        std::unique_lock<std::mutex> held(lock, std::defer_lock);
#if FIXED
        held.lock();
#endif
        lines = lines + 1; /* races on lines */
    }
}

int main()
{
    std::thread one(print, "one"), other(print, "other");
    one.join();
    other.join();
}
