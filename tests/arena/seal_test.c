// seal_test.c - the kernel's filter: each class of call that makes memory, or passes the seal by,
// ends the process from any thread, also one that was there before; what a run needs goes on.
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arena/seal.h"

typedef struct attempt {
    const char *name;  // as the line says it
    void (*make)(void);
} attempt;

static char directory[] = "/tmp/lockstep_seal_XXXXXX";
static char segment[64];  // a name in /dev/shm
static void *page;        // two of them, mapped before the seal
static int shared_segment = -1;

// --- what is refused -----------------------------------------------------------------------------

static void try_mmap(void) {
    (void)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void try_mremap(void) { (void)mremap(page, 8192, 1 << 20, MREMAP_MAYMOVE); }
static void try_mprotect(void) { (void)mprotect(page, 4096, PROT_READ | PROT_WRITE); }
static void try_shmat(void) { (void)shmat(shared_segment, NULL, 0); }
static void try_shmget(void) { (void)shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600); }
static void try_memfd(void) { (void)syscall(SYS_memfd_create, "more", 0); }
static void try_shm_open(void) { (void)shm_open(segment, O_RDWR | O_CREAT | O_EXCL, 0600); }
static void try_shm_read_write(void) { (void)open(directory, O_RDWR | O_CREAT, 0600); }
static void try_temporary(void) { (void)open("/dev/shm", O_TMPFILE | O_WRONLY, 0600); }
static void try_openat2(void) { (void)syscall(437 /* openat2 */, AT_FDCWD, "/dev/shm/x", NULL, 0); }
static void try_fallocate(void) { (void)fallocate(1, 0, 0, 1 << 20); }
static void try_uring(void) { (void)syscall(425 /* io_uring_setup */, 8, NULL); }
static void try_uring_enter(void) { (void)syscall(426 /* io_uring_enter */, 0, 1, 1, 0, NULL, 0); }
static void try_userfaultfd(void) { (void)syscall(SYS_userfaultfd, O_CLOEXEC); }
static void *nothing(void *unused) { return unused; }
static void try_thread(void) {
    // Its stack first: that is an mmap.
    pthread_t thread;
    (void)pthread_create(&thread, NULL, nothing, NULL);
}
static void try_fork(void) { (void)fork(); }
static void try_exec(void) { (void)execl("/bin/true", "true", (char *)NULL); }
static void try_ptrace(void) { (void)syscall(SYS_ptrace, 0, 0, 0, 0); }
static void try_prctl(void) { (void)syscall(SYS_prctl, 4 /* PR_SET_DUMPABLE */, 1, 0, 0, 0); }
static void try_unheard_of(void) { (void)syscall(SYS_add_key, "user", "name", "x", 1, -2); }

static const attempt refused[] = {
    {"mmap", try_mmap},
    {"mremap", try_mremap},
    {"mprotect", try_mprotect},
    {"shmat", try_shmat},
    {"shmget", try_shmget},
    {"memfd_create", try_memfd},
    {"openat", try_shm_open},
    {"openat", try_shm_read_write},
    {"openat", try_temporary},
    {"openat2", try_openat2},
    {"fallocate", try_fallocate},
    {"io_uring_setup", try_uring},
    {"io_uring_enter", try_uring_enter},
    {"userfaultfd", try_userfaultfd},
    {"mmap", try_thread},
    {"clone", try_fork},
    {"execve", try_exec},
    {"ptrace", try_ptrace},
    {"prctl", try_prctl},
    {"a call", try_unheard_of},
};

// --- a sealed process ----------------------------------------------------------------------------

static atomic_int phase;  // 1: the process is sealed; 2: the thread has done its part

static void *in_thread(void *argument) {
    const attempt *a = argument;
    while (atomic_load(&phase) < 1) sched_yield();
    a->make();
    atomic_store(&phase, 2);
    return NULL;
}

// A process that starts a thread, seals itself and makes the attempt, in that thread or not; its
// exit code, or minus the signal that killed it. What it said to standard error is in `line`.
static int run(const attempt *a, bool thread, char line[512]) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        lk_error error;
        pthread_t other;
        dup2(ends[1], STDERR_FILENO);
        alarm(60);
        if (thread && pthread_create(&other, NULL, in_thread, (void *)(uintptr_t)a) != 0) _exit(98);
        if (lk_seal_enforce(&error) != LK_OK) _exit(77);
        atomic_store(&phase, 1);
        if (!thread) a->make();
        while (thread && atomic_load(&phase) < 2) sched_yield();
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t got; (got = read(ends[0], line + length, 511 - length)) > 0;) {
        length += (size_t)got;
    }
    line[length] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < LK_COUNT(refused) * 2; i++) {
        const attempt *a = &refused[i / 2];
        char line[512], wanted[64];
        int code = run(a, i % 2 != 0, line);
        snprintf(wanted, sizeof wanted, "sealed: %s (system call ", a->name);
        if (code == LK_INTERNAL && strstr(line, wanted) && strchr(line, '\n')[1] == '\0') continue;
        fail_msg("%s%s: exit code %d, wanted %d and one line with \"%s\"; found \"%s\"", a->name,
                 i % 2 ? " in another thread" : "", code, LK_INTERNAL, wanted, line);
    }
    struct stat info;
    char path[128];
    snprintf(path, sizeof path, "/dev/shm%s", segment);
    assert_int_equal(stat(path, &info), -1);
}

// --- what goes on --------------------------------------------------------------------------------

#define MUST(what)         \
    do {                   \
        if (!(what)) {     \
            perror(#what); \
            _exit(1);      \
        }                  \
    } while (0)

static void do_checkpoint(void) {
    char name[128], to[128], bytes[4] = "abc";
    snprintf(name, sizeof name, "%s/.tmp", directory);
    snprintf(to, sizeof to, "%s/step", directory);
    int file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    MUST(file >= 0 && write(file, bytes, 4) == 4 && fsync(file) == 0 && close(file) == 0);
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    MUST(folder >= 0 && rename(name, to) == 0 && fsync(folder) == 0);
    file = openat(folder, "step", O_RDONLY | O_CLOEXEC);
    MUST(file >= 0 && pread(file, bytes, 4, 0) == 4 && bytes[2] == 'c' && close(file) == 0);
    struct stat info;
    MUST(stat(to, &info) == 0 && info.st_size == 4);
    file = open(to, O_RDWR | O_CLOEXEC);
    MUST(file >= 0 && ftruncate(file, 2) == 0 && lseek(file, 0, SEEK_END) == 2 && close(file) == 0);
    MUST(unlinkat(folder, "step", 0) == 0 && close(folder) == 0);
}

static int sockets[2] = {-1, -1};
static void do_message(void) {
    char bytes[4] = "abc";
    struct pollfd ready = {.fd = sockets[1], .events = POLLIN};
    MUST(send(sockets[0], bytes, 4, 0) == 4 && poll(&ready, 1, 1000) == 1);
    MUST(recv(sockets[1], bytes, 4, 0) == 4);
    struct iovec part = {bytes, 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    MUST(sendmsg(sockets[1], &message, 0) == 4 && recvmsg(sockets[0], &message, 0) == 4);
    int kind;
    socklen_t bytes_of_kind = sizeof kind;
    MUST(getsockopt(sockets[0], SOL_SOCKET, SO_TYPE, &kind, &bytes_of_kind) == 0);
}

static volatile sig_atomic_t heard;
static void on_signal(int number) { heard = number; }
static void do_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t set;
    sigemptyset(&set);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0 && pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    MUST(raise(SIGUSR1) == 0 && heard == SIGUSR1);
}

static void do_time(void) {
    struct timespec now, moment = {0, 1000};
    MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && nanosleep(&moment, NULL) == 0);
    MUST(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now) == 0);  // where there is no vdso
    MUST(sched_yield() == 0);
    alarm(59);
    struct rusage usage;
    MUST(getrusage(RUSAGE_SELF, &usage) == 0);
}

static void do_return(void) {
    MUST(munmap(page, 8192) == 0);  // memory may be given back
    char *end = sbrk(0);
    errno = 0;
    MUST(syscall(SYS_brk, end + (1 << 20)) == 0);  // and is not given
    MUST(sbrk(0) == end);
}

static void test_goes_on(void **state) {
    (void)state;
    static const attempt parts[] = {{"checkpoint", do_checkpoint},
                                    {"message", do_message},
                                    {"signals", do_signals},
                                    {"time", do_time},
                                    {"memory back", do_return}};
    for (size_t i = 0; i < LK_COUNT(parts) * 2; i++) {
        char line[512];
        int code = run(&parts[i / 2], i % 2 != 0, line);
        if (code != 0) fail_msg("%s: exit code %d, wanted 0: %s", parts[i / 2].name, code, line);
    }
}

int main(void) {
    attempt none = {"", do_time};
    char line[512];
    if (!mkdtemp(directory)) return 1;
    snprintf(segment, sizeof segment, "/lockstep_seal_%d", (int)getpid());
    page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared_segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    if (page == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_goes_on),
    };
    int failed = run(&none, false, line) == 77 ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
    if (shared_segment >= 0) shmctl(shared_segment, IPC_RMID, NULL);
    rmdir(directory);
    return failed;
}
