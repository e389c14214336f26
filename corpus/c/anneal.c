/* anneal: kernel: places of elements are swapped by atomic exchanges, where that shortens the way to
 * others, whose places are read by atomic loads: most accesses are reads of what others write. */
#include "common.h"
#include <stdatomic.h>

#define ELEMENTS 1024

struct place {
    uint32_t x, y;
};

static struct place places[ELEMENTS];
/* Nobody's while an exchange has taken it out. */
static _Atomic(struct place *) place_of[ELEMENTS];

static struct place *look(unsigned element) {
    struct place *place;
    while (!(place = atomic_load_explicit(&place_of[element], memory_order_acquire)))
        ;
    return place;
}

static struct place *take(unsigned element) {
    struct place *place;
    while (!(place = atomic_exchange(&place_of[element], NULL)))
        ;
    return place;
}

static uint64_t way(const struct place *from, unsigned element) {
    const struct place *to = look(element);
    uint32_t x = from->x > to->x ? from->x - to->x : to->x - from->x;
    uint32_t y = from->y > to->y ? from->y - to->y : to->y - from->y;
    return x + y;
}

/* The way from a place to the neighbours of an element. */
static uint64_t cost(const struct place *from, unsigned element) {
    uint64_t sum = 0;
    for (unsigned next = 1; next <= 5; next++)
        sum += way(from, (element + next) % ELEMENTS);
    return sum;
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t random = self + 1;
    for (unsigned long i = 0; i < rounds; i++) {
        random = mix(random);
        unsigned a = random % ELEMENTS, b = (random >> 32) % ELEMENTS;
        if (a == b)
            continue;
        uint64_t now = cost(look(a), a) + cost(look(b), b);
        uint64_t then = cost(look(b), a) + cost(look(a), b);
        if (then >= now)
            continue;
        /* In one order, so that nobody waits in a circle. */
        unsigned first = a < b ? a : b, second = a < b ? b : a;
        struct place *one = take(first), *other = take(second);
        atomic_store_explicit(&place_of[first], other, memory_order_release);
        atomic_store_explicit(&place_of[second], one, memory_order_release);
    }
    return self;
}

int main(int argc, char **argv) {
    unsigned long total = arg(argc, argv, 1, 4000000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        uint64_t at = mix(i);
        places[i] = (struct place){ (uint32_t)at % 1000, (uint32_t)(at >> 32) % 1000 };
        atomic_init(&place_of[i], &places[i]);
    }
    run_crew(threads, total / threads, role);
    /* Every place is still some element's. */
    uint64_t sum = 0;
    for (unsigned i = 0; i < ELEMENTS; i++)
        sum += mix((uint64_t)(atomic_load(&place_of[i]) - places));
    printf("anneal %" PRIu64 "\n", sum);
    return 0;
}
