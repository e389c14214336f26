/* segv: a worker thread dies of a null dereference; the process with it. */
#include "common.h"

static uint64_t role(unsigned self, unsigned long rounds) {
    if (self == 0) {
        volatile uint64_t *volatile nowhere = NULL;
        *nowhere = rounds;
    }
    return self;
}

int main(void) {
    printf("segv: about to die\n");
    fflush(stdout);
    run_crew(2, 1, role);
    return 0;
}
