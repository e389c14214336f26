// A string is extended while another thread reads it.
#include <mutex>
#include <string>
#include <thread>

static std::string *line;
static std::mutex lock;
static volatile char seen, length;

static void extend()
{
#if FIXED
    std::lock_guard<std::mutex> hold(lock);
#endif
    line->append("and so on"); /* races on heap */
    seen = 1;
}

static void look()
{
#if FIXED
    std::lock_guard<std::mutex> hold(lock);
#endif
    length = char(line->size()); /* races on heap */
}

int main()
{
    line = new std::string("once upon a time there was");
    line->reserve(200);
    std::thread one(extend), other(look);
    one.join();
    other.join();
    delete line;
}
