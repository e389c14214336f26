/* One thread reads memory that another unmaps; in this run, the first one first. */
#include "race.h"

static char *pages;
static volatile char seen;

static void *look(void *none)
{
    seen = pages[5000]; /* races on unknown */
    return none;
}

int main(void)
{
    pthread_t thread;
    pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pages[5000] = 1;
    pthread_create(&thread, NULL, look, NULL);
    if (FIXED)
        pthread_join(thread, NULL);
    else
        usleep(50000);
    munmap(pages, 8192); /* races on unknown */
    if (!FIXED)
        pthread_join(thread, NULL);
    return 0;
}
