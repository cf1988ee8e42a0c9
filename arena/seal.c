// seal.c - the seccomp filter of seal.h, and the handler that names the refused call.
//
// The list is what a sealed run does, traced (tests/whole/seal_test.py); what is not on it ends the
// process. So no call that makes memory can be forgotten here, nor one that the next kernel brings.
#define _GNU_SOURCE
#include "arena/seal.h"

#ifdef LK_HAVE_SECCOMP
#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

// --- what a sealed run does ----------------------------------------------------------------------

#define NAMED(call) \
    { SCMP_SYS(call), #call }
typedef struct seal_call {
    int number;  // negative: not a system call of this architecture, but some of these are older
    const char *name;
} seal_call;

static const seal_call allowed[] = {
    // Files: logs, checkpoints and their removal, evaluation. open and openat: see add_open.
    NAMED(read),
    NAMED(readv),
    NAMED(pread64),
    NAMED(preadv),
    NAMED(write),
    NAMED(writev),
    NAMED(pwrite64),
    NAMED(pwritev),
    NAMED(lseek),
    NAMED(close),
    NAMED(fsync),
    NAMED(fdatasync),
    NAMED(sync_file_range),
    NAMED(fadvise64),
    NAMED(ftruncate),
    NAMED(flock),
    NAMED(fcntl),
    NAMED(rename),
    NAMED(renameat),
    NAMED(renameat2),
    NAMED(unlink),
    NAMED(unlinkat),
    NAMED(rmdir),
    NAMED(mkdir),
    NAMED(mkdirat),
    NAMED(getdents64),
    NAMED(stat),
    NAMED(fstat),
    NAMED(lstat),
    NAMED(newfstatat),
    NAMED(statx),
    NAMED(statfs),
    NAMED(fstatfs),
    NAMED(access),
    NAMED(faccessat),
    NAMED(faccessat2),
    NAMED(readlink),
    NAMED(readlinkat),
    NAMED(getcwd),
    // Waiting, time, and whose turn it is.
    NAMED(futex),
    NAMED(sched_yield),
    NAMED(poll),
    NAMED(ppoll),
    NAMED(select),
    NAMED(pselect6),
    NAMED(epoll_wait),
    NAMED(epoll_pwait),
    NAMED(epoll_ctl),
    NAMED(nanosleep),
    NAMED(clock_nanosleep),
    NAMED(clock_gettime),
    NAMED(gettimeofday),
    NAMED(time),
    NAMED(alarm),
    NAMED(setitimer),
    NAMED(timer_settime),
    NAMED(getcpu),
    NAMED(sched_getaffinity),
    NAMED(getrusage),
    NAMED(getrandom),
    // Other workers: connections that are there, and those that come to the rendezvous.
    NAMED(accept),
    NAMED(accept4),
    NAMED(recvfrom),
    NAMED(recvmsg),
    NAMED(recvmmsg),
    NAMED(sendto),
    NAMED(sendmsg),
    NAMED(sendmmsg),
    NAMED(shutdown),
    NAMED(getsockopt),
    NAMED(setsockopt),
    NAMED(getsockname),
    NAMED(getpeername),
    NAMED(process_vm_readv),
    NAMED(process_vm_writev),
    NAMED(ioctl),
    // Signals, names and the end; a thread may still be at its own first calls. Memory may be given
    // back, and advised about.
    NAMED(set_robust_list),
    NAMED(rseq),
    NAMED(rt_sigaction),
    NAMED(rt_sigprocmask),
    NAMED(rt_sigreturn),
    NAMED(sigaltstack),
    NAMED(restart_syscall),
    NAMED(kill),
    NAMED(tgkill),
    NAMED(tkill),
    NAMED(getpid),
    NAMED(getppid),
    NAMED(gettid),
    NAMED(getuid),
    NAMED(geteuid),
    NAMED(getgid),
    NAMED(getegid),
    NAMED(uname),
    NAMED(munmap),
    NAMED(madvise),
    NAMED(exit),
    NAMED(exit_group),
};

// --- what is refused, and why --------------------------------------------------------------------

static const char memory[] = "it makes memory that is in no plan";
static const char process[] = "it makes a process or thread that is in no plan";
static const char around[] = "what it asks of the kernel passes the seal by";

// The reasons of those that have been seen or feared; all others are refused as unknown.
static const struct {
    seal_call call;
    const char *why;
} refused[] = {
    {NAMED(mmap), memory},
    {NAMED(mremap), memory},
    {NAMED(mprotect), memory},
    {NAMED(pkey_mprotect), memory},
    {NAMED(remap_file_pages), memory},
    {NAMED(shmat), memory},
    {NAMED(shmget), memory},
    {NAMED(memfd_create), memory},
    {NAMED(memfd_secret), memory},
    {NAMED(fallocate), memory},
    {NAMED(userfaultfd), memory},
    {NAMED(open), memory},
    {NAMED(openat), memory},
    {NAMED(openat2), memory},
    {NAMED(creat), memory},
    {NAMED(vmsplice), memory},
    {NAMED(splice), memory},
    {NAMED(tee), memory},
    {NAMED(pipe), memory},
    {NAMED(pipe2), memory},
    {NAMED(mknod), memory},
    {NAMED(mknodat), memory},
    {NAMED(clone), process},
    {NAMED(clone3), process},
    {NAMED(fork), process},
    {NAMED(vfork), process},
    {NAMED(execve), process},
    {NAMED(execveat), process},
    {NAMED(io_uring_setup), around},
    {NAMED(io_uring_enter), around},
    {NAMED(io_uring_register), around},
    {NAMED(io_setup), around},
    {NAMED(io_submit), around},
    {NAMED(process_madvise), around},
    {NAMED(ptrace), around},
    {NAMED(bpf), around},
    {NAMED(perf_event_open), around},
    {NAMED(prctl), around},
    {NAMED(seccomp), around},
    {NAMED(personality), around},
};

static void on_refused(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number;
    (void)context;
    const char *name = "a call", *why = "a sealed run has no use for it";
    for (size_t i = 0; i < LK_COUNT(refused); i++) {
        if (refused[i].call.number != info->si_syscall) continue;
        name = refused[i].call.name;
        why = refused[i].why;
    }
    char line[200];
    size_t length = lk_format(line, sizeof line,
                              "lockstep: sealed: %s (system call %d) after start-up: %s; this is a "
                              "bug in Lockstep, please report it\n",
                              name, info->si_syscall, why);
    ssize_t written = write(STDERR_FILENO, line, length);
    (void)written;
    _exit(LK_INTERNAL);
}

// --- the filter ----------------------------------------------------------------------------------

// A file may be opened, or a new one made and written, as checkpoints are. One that is made to be
// read too is memory by another name (shm_open, O_TMPFILE). Paths the filter cannot read.
static int add_open(scmp_filter_ctx filter, int number, unsigned flags) {
    const unsigned made = O_CREAT | (O_TMPFILE & ~O_DIRECTORY);
    if (number < 0) return 0;
    const struct scmp_arg_cmp none = SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, made, 0);
    const struct scmp_arg_cmp one =
        SCMP_CMP(flags, SCMP_CMP_MASKED_EQ, made | O_EXCL | O_ACCMODE, O_CREAT | O_EXCL | O_WRONLY);
    int failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 1, none);
    return failed ? failed : seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 1, one);
}

static int add_rules(scmp_filter_ctx filter) {
    int failed = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);  // every thread
    for (size_t i = 0; !failed && i < LK_COUNT(allowed); i++) {
        if (allowed[i].number < 0) continue;
        failed = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i].number, 0);
    }
    if (!failed) failed = add_open(filter, SCMP_SYS(open), 1);
    if (!failed) failed = add_open(filter, SCMP_SYS(openat), 2);
    return failed ? failed : seccomp_rule_add(filter, SCMP_ACT_ERRNO(0), SCMP_SYS(brk), 0);
}

lk_status lk_seal_enforce(lk_error *error) {
    struct sigaction action = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGSYS, &action, NULL);
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_TRAP);
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
