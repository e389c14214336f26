// A destructor waits for the thread that uses the object: by then, the object is of its base class.
#include <initializer_list>
#include <thread>

struct Worker {
    std::thread thread;
    int total = 0;
    virtual int step() { return 1; }
    void work() { total += step(); } /* races on heap */
    void wait()
    {
        if (thread.joinable())
            thread.join();
    }
    virtual ~Worker() { wait(); } /* races on heap */
};

struct Fast : Worker {
    int step() override { return 2; }
#if FIXED
    ~Fast() override { wait(); }
#endif
};

int main()
{
    // Whichever function the thread comes to, a replay has its code.
    for (Worker *worker : {new Worker, static_cast<Worker *>(new Fast)}) {
        worker->work();
        delete worker;
    }
    Worker *worker = new Fast;
    worker->thread = std::thread(&Worker::work, worker);
    delete worker;
    return 0;
}
