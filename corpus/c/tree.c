/* tree: kernel: threads build one search tree; a node's lock is taken to look for the child, and to
 * put it there. */
#include "common.h"

struct node {
    uint64_t key;
    struct node *children[2];
    pthread_mutex_t lock;
};

static struct node *nodes;
static unsigned long per_thread;

static void insert(struct node *node) {
    struct node *at = nodes;
    while (at) {
        unsigned side = node->key > at->key;
        pthread_mutex_lock(&at->lock);
        struct node *next = at->children[side];
        if (!next)
            at->children[side] = node;
        pthread_mutex_unlock(&at->lock);
        at = next;
    }
}

static uint64_t role(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++)
        insert(&nodes[1 + self * per_thread + i]);
    return self;
}

static uint64_t count(const struct node *node) {
    return node ? 1 + count(node->children[0]) + count(node->children[1]) : 0;
}

int main(int argc, char **argv) {
    unsigned long total = arg(argc, argv, 1, 60000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    per_thread = total / threads;
    nodes = calloc(1 + per_thread * threads, sizeof *nodes);
    CHECK(nodes);
    for (unsigned long i = 0; i <= per_thread * threads; i++) {
        nodes[i].key = mix(i);
        pthread_mutex_init(&nodes[i].lock, NULL);
    }
    run_crew(threads, per_thread, role);
    printf("tree %" PRIu64 "\n", count(nodes));
    return 0;
}
