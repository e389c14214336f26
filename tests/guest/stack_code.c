// Functions within functions have code on the stack, which is another one in each call.
#include <stdio.h>

static int apply(int (*function)(int), int value) {
    return function(value);
}

static int add(int more, int value) {
    int within(int value) {
        return value + more;
    }
    return apply(within, value);
}

int main(void) {
    for (int i = 0; i < 5; i++) printf("%d\n", add(i, 10));
    return 0;
}
