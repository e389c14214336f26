/* ex_rwlock: shared, exclusive, tried and timed read-write locks. */
#include "common.h"

#include <errno.h>
#include <time.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static uint64_t left ALIGNED, right ALIGNED;

static struct timespec in_milliseconds(long milliseconds) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += milliseconds / 1000;
    t.tv_nsec += milliseconds % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

static void take(int exclusive, unsigned manner) {
    struct timespec deadline = in_milliseconds(60000);
    int result;
    switch (manner % 3) {
    case 0:
        result = exclusive ? pthread_rwlock_wrlock(&lock)
                           : pthread_rwlock_rdlock(&lock);
        break;
    case 1:
        result = exclusive ? pthread_rwlock_timedwrlock(&lock, &deadline)
                           : pthread_rwlock_timedrdlock(&lock, &deadline);
        break;
    default:
        while ((result = exclusive ? pthread_rwlock_trywrlock(&lock)
                                   : pthread_rwlock_tryrdlock(&lock)) == EBUSY)
            work(manner, 20);
    }
    CHECK(result == 0);
}

/* Every fourth access writes; readers always see both halves equal. */
static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t writes = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        int exclusive = (i + self) % 4 == 0;
        take(exclusive, (unsigned)(mix(i) % 3));
        if (exclusive) {
            left++;
            right++;
            writes++;
        } else {
            CHECK(left == right);
        }
        CHECK(pthread_rwlock_unlock(&lock) == 0);
    }
    return writes;
}

static void *refused(void *exclusive) {
    struct timespec deadline = in_milliseconds(5);
    CHECK(pthread_rwlock_trywrlock(&lock) == EBUSY);
    CHECK(pthread_rwlock_timedwrlock(&lock, &deadline) == ETIMEDOUT);
    if (exclusive) {
        CHECK(pthread_rwlock_tryrdlock(&lock) == EBUSY);
        CHECK(pthread_rwlock_timedrdlock(&lock, &deadline) == ETIMEDOUT);
    } else {
        CHECK(pthread_rwlock_tryrdlock(&lock) == 0);
        CHECK(pthread_rwlock_unlock(&lock) == 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 50000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 3);
    uint64_t writes = run_crew(threads, rounds, role);
    CHECK(left == writes && right == writes);
    for (uintptr_t exclusive = 0; exclusive < 2; exclusive++) {
        pthread_t other;
        take((int)exclusive, 0);
        CHECK(pthread_create(&other, NULL, refused, (void *)exclusive) == 0);
        CHECK(pthread_join(other, NULL) == 0);
        CHECK(pthread_rwlock_unlock(&lock) == 0);
    }
    printf("ex_rwlock writes %" PRIu64 "\n", writes);
    return 0;
}
