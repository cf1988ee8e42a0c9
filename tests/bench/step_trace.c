// step_trace.c - how many instructions this processor runs in one training step of the MNIST CNN,
// counted one by one, where no counter of the processor may be read. For x86-64.
//
//   step_trace PROGRAM [ARGUMENTS ..]    PROGRAM: a native step_count, say with the table avx2
//
// step_count tells by a system call which account is charged from here on (qemu_counter.h). The
// program is run step by step between the first such call and its last. Prints for each account the
// instructions, and all of them. Some microseconds an instruction: a step takes a minute or two.
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/qemu_counter.h"

static uint64_t counts[COUNTER_ACCOUNTS];

static void fail(const char *what) {
    fprintf(stderr, "step_trace: %s: %s\n", what, strerror(errno));
    exit(70);
}

static long user_word(pid_t child, size_t offset) {
    errno = 0;
    const long word = ptrace(PTRACE_PEEKUSER, child, offset, 0);
    if (errno) fail("looking at a register");
    return word;
}

// Has the child just made the call that charges an account? A trap between two instructions is no
// system call, and has the number -1.
static int is_charge(pid_t child, long *account) {
    if (user_word(child, offsetof(struct user_regs_struct, orig_rax)) != COUNTER_CALL) return 0;
    *account = user_word(child, offsetof(struct user_regs_struct, rdi));
    if (*account < 0 || *account >= COUNTER_ACCOUNTS) {
        fprintf(stderr, "step_trace: account %ld\n", *account);
        exit(70);
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: step_trace PROGRAM [ARGUMENTS ..]\n");
        return 64;
    }
    const pid_t child = fork();
    if (child < 0) fail("starting");
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) < 0) fail("asking to be traced");
        execv(argv[1], argv + 1);
        fail(argv[1]);
    }
    // Until the first charge from system call to system call, then step by step: account 0 is what
    // nobody asked about, so that from its charge on nothing is counted.
    long account = 0;
    int status, counting = 0;
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) fail("waiting for the program");
    while (1) {
        if (ptrace(counting ? PTRACE_SINGLESTEP : PTRACE_SYSCALL, child, 0, 0) < 0) fail("a step");
        if (waitpid(child, &status, 0) < 0) fail("waiting for a step");
        if (!WIFSTOPPED(status)) break;
        if (counting) counts[account]++;
        if (is_charge(child, &account)) counting = account != 0;
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "step_trace: the program ended with status %d\n", status);
        return 70;
    }
    uint64_t all = 0;
    for (unsigned i = 1; i < COUNTER_ACCOUNTS; i++) {
        if (counts[i]) printf("counted %u %llu\n", i, (unsigned long long)counts[i]);
        all += counts[i];
    }
    printf("counted all %llu\n", (unsigned long long)all);
    return 0;
}
