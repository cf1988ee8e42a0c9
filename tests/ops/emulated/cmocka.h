// cmocka.h - the few words of cmocka that the kernels' tests are written in, for processors that
// are emulated: Debian's cmocka is of the host's architecture only. A test that fails ends the
// program, with 1.
#ifndef LOCKSTEP_TESTS_OPS_EMULATED_CMOCKA_H
#define LOCKSTEP_TESTS_OPS_EMULATED_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(function) \
    { #function, function }
#define cmocka_run_group_tests(tests, set_up, tear_down) \
    run_group(tests, sizeof(tests) / sizeof((tests)[0]))

static inline int run_group(const struct CMUnitTest *tests, size_t count) {
    void *state = NULL;
    for (size_t i = 0; i < count; i++) {
        printf("%s\n", tests[i].name);
        fflush(stdout);
        tests[i].run(&state);
    }
    printf("%zu passed, 0 failed\n", count);
    return 0;
}

#define print_error(...) fprintf(stderr, __VA_ARGS__)
#define fail_msg(...)                                   \
    do {                                                \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                   \
        fprintf(stderr, "\n");                          \
        exit(1);                                        \
    } while (0)
#define fail() fail_msg("failed")
#define assert_true(condition)                      \
    do {                                            \
        if (!(condition)) fail_msg("%s", #condition); \
    } while (0)
#define assert_int_equal(a, b)    assert_true((a) == (b))
#define assert_ptr_equal(a, b)    assert_true((a) == (b))
#define assert_null(p)            assert_true((p) == NULL)
#define assert_non_null(p)        assert_true((p) != NULL)

#endif
