// leftover_test.c - of MPI's files in /dev/shm those go that nobody has: not one that is open or
// mapped, not a young one, not a link, and nobody's file of another name.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/mpi/leftover.h"

// So old that nothing else on this machine is: whatever a mistake removes, it is this test's.
enum { YEAR = 365 * 24 * 3600, OLD = 15 * YEAR };

static void path_of(char out[120], const char *begin, const char *what) {
    snprintf(out, 120, "/dev/shm/%s_lockstep_test_%ld_%s", begin, (long)getpid(), what);
}

// A file of some years; its descriptor.
static int make(const char *begin, const char *what, time_t years) {
    char path[120];
    path_of(path, begin, what);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const struct timespec then = {.tv_sec = time(NULL) - years * YEAR};
    const struct timespec times[2] = {then, then};
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, 4096), 0);
    assert_int_equal(futimens(file, times), 0);
    return file;
}

// Is it still there? It is not, afterwards.
static bool take(const char *begin, const char *what) {
    char path[120];
    path_of(path, begin, what);
    return unlink(path) == 0;
}

static const char shared[] = "mpich_shar_tmp", ucx[] = "ucx_shm_posix_";

static void test_what_goes(void **state) {
    (void)state;
    char link[120];
    close(make(shared, "old", 20));
    close(make(ucx, "old", 20));
    close(make(shared, "young", 10));
    close(make("lockstep", "strangers", 20));
    int open_one = make(shared, "open", 20), mapped = make(ucx, "mapped", 20);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    close(mapped);
    path_of(link, shared, "link");
    assert_int_equal(symlink("/dev/shm", link), 0);
    assert_true(page != MAP_FAILED);

    assert_true(lk_leftover_remove(OLD) >= 2);
    assert_false(take(shared, "old"));
    assert_false(take(ucx, "old"));
    bool stayed[] = {take(shared, "young"), take("lockstep", "strangers"), take(shared, "open"),
                     take(ucx, "mapped"), take(shared, "link")};
    for (size_t i = 0; i < LK_COUNT(stayed); i++) assert_true(stayed[i]);
    close(open_one);
    munmap(page, 4096);
}

static bool gives_leases(void) {
    int file = make("lockstep", "lease", 1);
    char path[120];
    path_of(path, "lockstep", "lease");
    bool given = fcntl(file, F_SETLEASE, F_WRLCK) == 0;
    close(file);
    unlink(path);
    return given;
}

int main(void) {
    if (access("/dev/shm", W_OK) != 0 || !gives_leases()) return 77;  // then nothing is removed
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_goes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
