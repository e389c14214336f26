// A lambda captures a local variable by reference.
#include <atomic>
#include <thread>

int main()
{
#if FIXED
    std::atomic<int> sum = 0;
#else
    volatile int sum = 0;
#endif
    std::thread thread([&sum] { sum = sum + 1; /* races on local */ });
    sum = sum + 2; /* races on local */
    thread.join();
    return sum == 0;
}
