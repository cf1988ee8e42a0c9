// seal.c - the seccomp filter of seal.h, and the handler that names the refused call.
#define _GNU_SOURCE
#include "arena/seal.h"

#ifdef LK_HAVE_SECCOMP
#include <errno.h>
#include <seccomp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const struct {
    int number;
    const char *name;
} refused[] = {
    {SCMP_SYS(mmap), "mmap"},     {SCMP_SYS(mremap), "mremap"}, {SCMP_SYS(clone), "clone"},
    {SCMP_SYS(clone3), "clone3"}, {SCMP_SYS(fork), "fork"},     {SCMP_SYS(vfork), "vfork"},
    {SCMP_SYS(execve), "execve"},
};

static void on_refused(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number;
    (void)context;
    const char *name = "a system call";
    for (size_t i = 0; i < LK_COUNT(refused); i++) {
        if (refused[i].number == info->si_syscall) name = refused[i].name;
    }
    char line[160];
    size_t length =
        lk_format(line, sizeof line,
                  "lockstep: sealed: %s (system call %d) after start-up; this is a bug in "
                  "Lockstep, please report it\n",
                  name, info->si_syscall);
    ssize_t written = write(STDERR_FILENO, line, length);
    (void)written;
    _exit(LK_INTERNAL);
}

static int add_rules(scmp_filter_ctx filter) {
    int failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);  // every thread
    for (size_t i = 0; !failed && i < LK_COUNT(refused); i++) {
        if (refused[i].number < 0) continue;  // not a system call of this architecture
        failed = seccomp_rule_add(filter, SCMP_ACT_TRAP, refused[i].number, 0);
    }
    return failed ? failed : seccomp_rule_add(filter, SCMP_ACT_ERRNO(0), SCMP_SYS(brk), 0);
}

lk_status lk_seal_enforce(lk_error *error) {
    struct sigaction action = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGSYS, &action, NULL);
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    int failed = filter ? add_rules(filter) : -ENOMEM;
    if (!failed) failed = seccomp_load(filter);
    // Not given back: the C library might then want to shrink the heap, which is refused by now.
    if (!failed) return LK_OK;
    if (filter) seccomp_release(filter);
    return lk_fail(error, LK_UNAVAILABLE,
                   "--seal: the kernel refuses the filter: %s; run without it", strerror(-failed));
}
#else
lk_status lk_seal_enforce(lk_error *error) {
    return lk_fail(
        error, LK_UNAVAILABLE,
        "--seal: this build has no libseccomp; install libseccomp-dev and build again, or run "
        "without it");
}
#endif
