/* nbody: kernel: scalar doubles with square roots and divisions. One thread.
 * Eight bodies on a ring attract each other; momentum stays what it was. */
#include "common.h"

#include <math.h>
#include <string.h>

#define BODIES 8

static struct body {
    double x[3], v[3], mass;
} bodies[BODIES];

static NOINLINE void advance(double dt) {
    for (unsigned i = 0; i < BODIES; i++)
        for (unsigned j = i + 1; j < BODIES; j++) {
            struct body *a = &bodies[i], *b = &bodies[j];
            double d[3], square = 0.01;
            for (unsigned c = 0; c < 3; c++) {
                d[c] = a->x[c] - b->x[c];
                square += d[c] * d[c];
            }
            double pull = dt / (square * sqrt(square));
            for (unsigned c = 0; c < 3; c++) {
                a->v[c] -= d[c] * b->mass * pull;
                b->v[c] += d[c] * a->mass * pull;
            }
        }
    for (unsigned i = 0; i < BODIES; i++)
        for (unsigned c = 0; c < 3; c++)
            bodies[i].x[c] += dt * bodies[i].v[c];
}

int main(int argc, char **argv) {
    unsigned long steps = arg(argc, argv, 1, 400000);
    for (unsigned i = 0; i < BODIES; i++) {
        bodies[i].mass = 1.0 + i * 0.25;
        bodies[i].x[0] = (double)(i % 4) - 1.5;
        bodies[i].x[1] = (double)(i / 4) - 0.5;
        bodies[i].x[2] = 0.125 * i;
    }
    for (unsigned long i = 0; i < steps; i++)
        advance(0.0005);
    double momentum = 0;
    uint64_t digest = 0;
    for (unsigned i = 0; i < BODIES; i++) {
        uint64_t bits[3];
        memcpy(bits, bodies[i].x, sizeof bits);
        for (unsigned c = 0; c < 3; c++) {
            momentum += bodies[i].mass * bodies[i].v[c];
            digest = digest * 31 + bits[c];
        }
    }
    CHECK(fabs(momentum) < 1e-6);
    printf("nbody %lu digest %016" PRIx64 "\n", steps, digest);
    return 0;
}
