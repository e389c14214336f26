/* abrt: a worker thread calls abort; the process dies of SIGABRT. */
#include "common.h"

static uint64_t role(unsigned self, unsigned long rounds) {
    if (self == 0)
        abort();
    return rounds;
}

int main(void) {
    printf("abrt: about to die\n");
    fflush(stdout);
    run_crew(2, 1, role);
    return 0;
}
