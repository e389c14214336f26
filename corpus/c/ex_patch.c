/* ex_patch: threads call a generated function, while the main thread changes the constant that it
 * returns. What the threads have seen is printed, and differs from run to run. */
#include "common.h"
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

/* Three times nop, mov eax, the constant at a multiple of four, ret. */
static const unsigned char code[] = {0x90, 0x90, 0x90, 0xb8, 0, 0, 0, 0, 0xc3};

static uint32_t (*function)(void);
static atomic_int working = 3;

static void *call_all(void *rounds) {
    uint64_t sum = 0;
    for (uintptr_t i = 0; i < (uintptr_t)rounds; i++)
        sum = sum * 31 + function();
    atomic_fetch_sub(&working, 1);
    return (void *)(uintptr_t)sum;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 100000);
    unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memcpy(memory, code, sizeof code);
    memcpy(&function, &memory, sizeof function);
    atomic_uint *constant = (atomic_uint *)(memory + 4);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, call_all, (void *)rounds) == 0);
    unsigned written = 0;
    while (atomic_load(&working) > 0)
        atomic_store(constant, ++written);
    for (int i = 0; i < 3; i++) {
        void *sum;
        CHECK(pthread_join(threads[i], &sum) == 0);
        printf("%p\n", sum);
    }
    CHECK(function() == written);
    return 0;
}
