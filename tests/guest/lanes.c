// Two threads load and store some lanes of a shared vector, and gather, under one lock.
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static float lanes[16];
static int numbers[32];

static void *work(void *unused)
{
    for (int round = 0; round < 200; round++) {
        __m256i mask = _mm256_set_epi32(-1, 0, -1, 0, -1, 0, -1, round & 1 ? -1 : 0);
        pthread_mutex_lock(&mutex);
        __m256 some = _mm256_maskload_ps(lanes, mask);
        _mm256_maskstore_ps(lanes + 8, mask, _mm256_add_ps(some, _mm256_set1_ps(1)));
        __m256i same = _mm256_i32gather_epi32(numbers, _mm256_set1_epi32(round & 31), 4);
        numbers[round & 31] = _mm256_extract_epi32(same, 0) + 1;
        pthread_mutex_unlock(&mutex);
    }
    return unused;
}

int main(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("%d %g\n", numbers[3], lanes[8]);
}
