/* grid: kernel: a grid with a mutex per cell; each step of a thread adds to a cell of its own part of
 * the grid and to the neighbours, of which some are others'. */
#include "common.h"

#define SIDE 64

struct cell {
    pthread_mutex_t lock;
    uint64_t density;
};

static struct cell cells[SIDE * SIDE];
static unsigned crew;

static void add(unsigned at, uint64_t amount) {
    struct cell *cell = &cells[at % (SIDE * SIDE)];
    pthread_mutex_lock(&cell->lock);
    cell->density += amount;
    pthread_mutex_unlock(&cell->lock);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    unsigned part = SIDE * SIDE / crew;
    for (unsigned long i = 0; i < rounds; i++) {
        unsigned at = self * part + (unsigned)(i % part);
        uint64_t amount = mix(i) & 7;
        add(at, 2 * amount);
        add(at + 1, amount);
        add(at + SIDE, amount);
    }
    return self;
}

int main(int argc, char **argv) {
    unsigned long total = arg(argc, argv, 1, 2000000);
    crew = threads_arg(argc, argv, 2, 1, 2);
    for (unsigned i = 0; i < SIDE * SIDE; i++)
        pthread_mutex_init(&cells[i].lock, NULL);
    run_crew(crew, total / crew, role);
    uint64_t sum = 0;
    for (unsigned i = 0; i < SIDE * SIDE; i++)
        sum += cells[i].density;
    printf("grid %" PRIu64 "\n", sum);
    return 0;
}
