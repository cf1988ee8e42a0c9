// one_test.c - of a program of cmocka's tests only the one that $LOCKSTEP_TEST names; where that is
// empty, no test but their names, a line each. Linked with --wrap=_cmocka_run_group_tests.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

int __real__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);

int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown) {
    const char *name = getenv("LOCKSTEP_TEST");
    if (name && *name == '\0') {
        for (size_t i = 0; i < count; i++) puts(tests[i].name);
        return 0;
    }
    if (name) cmocka_set_test_filter(name);
    return __real__cmocka_run_group_tests(group, tests, count, setup, teardown);
}
