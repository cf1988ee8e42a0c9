// syscalls.c - the platform of the core trainer on a Linux kernel without a C library: RISC-V 64,
// two system calls. So a processor without a float unit, for which Debian has no libc, can be
// emulated.
#include "apps/baremetal/embedded.h"

#ifndef __riscv
#error "syscalls.c knows the system calls of RISC-V only"
#endif

enum { SYSCALL_WRITE = 64, SYSCALL_EXIT = 93, CONSOLE = 1 };

static long system_call(long number, long a, long b, long c) {
    register long a7 __asm__("a7") = number;
    register long a0 __asm__("a0") = a;
    register long a1 __asm__("a1") = b;
    register long a2 __asm__("a2") = c;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");
    return a0;
}

void lk_board_write(const char *text, size_t bytes) {
    while (bytes > 0) {
        long written = system_call(SYSCALL_WRITE, CONSOLE, (long)(uintptr_t)text, (long)bytes);
        if (written <= 0) lk_board_end(LK_IO_ERROR);
        text += written;
        bytes -= (size_t)written;
    }
}

_Noreturn void lk_board_end(int code) {
    for (;;) (void)system_call(SYSCALL_EXIT, code, 0, 0);
}

void lk_board_main(void);
void lk_board_main(void) {
    lk_board_end(lk_board_train(&lk_embedded_run, &lk_kernels_reference));
}

// The kernel enters here, with the stack and everything else of the image in place.
void _start(void);
__attribute__((naked)) void _start(void) {
    __asm__(".option push\n"
            ".option norelax\n"
            "la gp, __global_pointer$\n"
            ".option pop\n"
            "andi sp, sp, -16\n"
            "call lk_board_main\n");
}
