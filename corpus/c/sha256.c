/* sha256: kernel: integer arithmetic (FIPS 180-4). One thread. Checks itself
 * on the standard's "abc" before it hashes `size` MiB of a generated stream. */
#include "common.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64
 * primes, and of the square roots of the first 8. */
static uint32_t k[64], h0[8];

struct sha256 {
    uint32_t h[8];
};

/* floor(n^(1/root) * 2^32) mod 2^32, by bisection in 128-bit integers. */
static uint32_t root_fraction(unsigned n, unsigned root) {
    uint64_t low = 0, high = UINT64_C(1) << 37;
    while (high - low > 1) {
        uint64_t mid = (low + high) / 2;
        /* mid^root <= n * 2^(32*root), with the cube split to fit. */
        unsigned __int128 square = (unsigned __int128)mid * mid;
        int below = root == 2
                        ? square <= (unsigned __int128)n << 64
                        : (square >> 32) * mid + ((square & UINT32_MAX) * mid >> 32)
                              < (unsigned __int128)n << 64;
        if (below)
            low = mid;
        else
            high = mid;
    }
    return (uint32_t)low;
}

static void derive_constants(void) {
    unsigned found = 0;
    for (unsigned n = 2; found < 64; n++) {
        unsigned divisor = 2;
        while (divisor * divisor <= n && n % divisor != 0)
            divisor++;
        if (divisor * divisor <= n)
            continue;
        if (found < 8)
            h0[found] = root_fraction(n, 2);
        k[found++] = root_fraction(n, 3);
    }
}

static uint32_t rotr(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }

static NOINLINE void compress(struct sha256 *s, const unsigned char *block) {
    uint32_t w[64], v[8];
    for (unsigned t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (unsigned t = 16; t < 64; t++) {
        uint32_t a = w[t - 15], b = w[t - 2];
        w[t] = w[t - 16] + w[t - 7] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) +
               (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
    }
    memcpy(v, s->h, sizeof v);
    for (unsigned t = 0; t < 64; t++) {
        uint32_t a = v[0], e = v[4];
        uint32_t t1 = v[7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + k[t] + w[t];
        uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (unsigned i = 0; i < 8; i++)
        s->h[i] += v[i];
}

/* Pads and hashes the last, partial block of a message of `total` bytes. */
static void finish(struct sha256 *s, const unsigned char *rest, size_t length,
                   uint64_t total) {
    unsigned char block[128] = {0};
    size_t padded = length < 56 ? 64 : 128;
    memcpy(block, rest, length);
    block[length] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        block[padded - 1 - i] = (unsigned char)(total * 8 >> 8 * i);
    for (size_t at = 0; at < padded; at += 64)
        compress(s, block + at);
}

static struct sha256 begin(void) {
    struct sha256 s;
    memcpy(s.h, h0, sizeof s.h);
    return s;
}

int main(int argc, char **argv) {
    unsigned long size = arg(argc, argv, 1, 12);
    derive_constants();
    struct sha256 s = begin();
    finish(&s, (const unsigned char *)"abc", 3, 3);
    CHECK(s.h[0] == 0xba7816bf && s.h[7] == 0xf20015ad);

    enum { CHUNK = 1 << 16 };
    unsigned char *chunk = malloc(CHUNK);
    CHECK(chunk);
    for (unsigned i = 0; i < CHUNK; i++)
        chunk[i] = (unsigned char)mix(i);
    uint64_t total = (uint64_t)size << 20;
    s = begin();
    for (uint64_t at = 0; at < total; at += CHUNK)
        for (unsigned i = 0; i < CHUNK; i += 64)
            compress(&s, chunk + i);
    finish(&s, chunk, 0, total);
    free(chunk);
    printf("sha256 ");
    for (unsigned i = 0; i < 8; i++)
        printf("%08" PRIx32, s.h[i]);
    printf("\n");
    return 0;
}
