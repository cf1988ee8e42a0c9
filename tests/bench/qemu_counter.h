// qemu_counter.h - what a guest and the plugin qemu_counter.c agree on.
#ifndef LOCKSTEP_TESTS_BENCH_QEMU_COUNTER_H
#define LOCKSTEP_TESTS_BENCH_QEMU_COUNTER_H

enum {
    COUNTER_CALL = 0x4c4b,   // a system call that answers ENOSYS everywhere else
    COUNTER_ACCOUNTS = 128,  // account 0 is charged until another is named
};

#endif
