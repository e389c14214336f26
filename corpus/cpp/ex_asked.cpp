/* ex_asked: a thread asks its workers by a virtual method whether they can be
 * commanded. The method asks another method first, looks at a flag that the
 * worker changes without a lock when it begins and ends, and then asks the
 * worker's engine. How often the answer is yes never reaches the output, but
 * each yes is a command, and at the end the thread asks until it is no. */
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#define NOINLINE __attribute__((noinline))

namespace {

class Engine {
  public:
    NOINLINE int status() const { return __atomic_load_n(&state, __ATOMIC_RELAXED); }
    NOINLINE void command(int next) {
        std::lock_guard<std::mutex> guard(mutex);
        __atomic_store_n(&state, next, __ATOMIC_RELAXED);
        changed.notify_all();
    }
    NOINLINE int other_than(int known) {
        std::unique_lock<std::mutex> guard(mutex);
        changed.wait(guard, [&] { return state != known; });
        return state;
    }

  private:
    std::mutex mutex;
    std::condition_variable changed;
    int state = 0;
};

constexpr int PAUSED = 4, END = 9;

struct Task {
    virtual ~Task() = default;
    virtual bool is_ready() const = 0;
};

class Worker : public Task {
  public:
    explicit Worker(Engine *with) : engine(with) {}
    NOINLINE bool has_engine() const { return engine != nullptr; }
    NOINLINE bool is_ready() const override {
        if (!has_engine() || __atomic_load_n(&running, __ATOMIC_RELAXED) < 0)
            return false;
        return engine->status() != PAUSED;
    }
    void run() {
        __atomic_store_n(&running, 1, __ATOMIC_RELAXED);
        for (int state = 0; state != END;)
            state = engine->other_than(state);
        __atomic_store_n(&running, -1, __ATOMIC_RELAXED);
    }

  private:
    Engine *engine;
    int running = -1;
};

} // namespace

int main(int argc, char **argv) {
    const unsigned long rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 200;
    for (unsigned long round = 0; round < rounds; round++) {
        Engine engine;
        Worker worker(&engine);
        const Task *task = &worker;
        std::thread thread([&] { worker.run(); });
        for (int next = 1; next < END; next++)
            if (task->is_ready())
                engine.command(next % 2 + 1);
        engine.command(END);
        while (task->is_ready())
            std::this_thread::yield();
        thread.join();
    }
    std::printf("ex_asked rounds %lu\n", rounds);
}
