// qemu_counter.c - a plugin for qemu-user that counts the instructions a guest runs, by account.
//
//   qemu-aarch64 -plugin ./qemu_counter.so,out=FILE GUEST
//
// The guest names the account that its next instructions are charged to by a system call that no
// Linux has, COUNTER_CALL with the account's number. At its end the plugin writes one line to FILE
// for each account that was used: number, instructions. Exact: every translated block adds its own
// length when it is entered, and a system call ends a block.
//
// Debian ships qemu's plugins without their header. What is declared here is the part of version 1
// of that interface that is used.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/qemu_counter.h"

struct qemu_plugin_tb;
typedef uint64_t qemu_plugin_id_t;
typedef void (*block_callback)(qemu_plugin_id_t id, struct qemu_plugin_tb *block);
typedef void (*call_callback)(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1,
                              uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6,
                              uint64_t a7, uint64_t a8);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, block_callback callback);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int op, void *to,
                                              uint64_t value);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t id, call_callback callback);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id,
                                    void (*callback)(qemu_plugin_id_t id, void *data), void *data);
int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv);

extern int qemu_plugin_version;
int qemu_plugin_version = 1;

enum { ADD_U64 = 0 };

static uint64_t counted;                    // since the account was named; one guest thread
static uint64_t accounts[COUNTER_ACCOUNTS];
static uint64_t account;
static char path[4096];

static void settle(void) {
    accounts[account] += counted;
    counted = 0;
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &counted,
                                             qemu_plugin_tb_n_insns(block));
}

static void on_call(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2,
                    uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
    (void)id, (void)cpu, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    if (number != COUNTER_CALL || a1 >= COUNTER_ACCOUNTS) return;
    settle();
    account = a1;
}

static void on_exit(qemu_plugin_id_t id, void *data) {
    (void)id, (void)data;
    settle();
    FILE *out = fopen(path, "w");
    if (!out) return;
    for (unsigned i = 0; i < COUNTER_ACCOUNTS; i++) {
        if (accounts[i]) fprintf(out, "%u %llu\n", i, (unsigned long long)accounts[i]);
    }
    fclose(out);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    (void)info;
    if (argc != 1 || strncmp(argv[0], "out=", 4) != 0) {
        fprintf(stderr, "qemu_counter: wanted one argument, out=FILE\n");
        return 1;
    }
    snprintf(path, sizeof path, "%s", argv[0] + 4);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_vcpu_syscall_cb(id, on_call);
    qemu_plugin_register_atexit_cb(id, on_exit, NULL);
    return 0;
}
