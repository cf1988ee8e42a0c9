// mps2.c - the platform of the core trainer on an MPS2+ board with the Cortex-M7 image AN500: the
// console is UART 0, the kernels are the reference's. Ends by semihosting, which an emulator and a
// debugger understand; where there is neither, the processor sleeps.
#include "apps/baremetal/mps2.h"

#include "apps/baremetal/embedded.h"

// CMSDK APB UART 0 (the board's first serial port), 115,200 baud from its clock of 25 MHz.
typedef struct uart {
    volatile uint32_t data, state, control, interrupts, divider;
} uart;

#define UART0 ((uart *)0x40004000u)
enum { UART_FULL = 1, UART_SEND = 1, UART_DIVIDER = 25000000 / 115200 };

void lk_board_write(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        while (UART0->state & UART_FULL) continue;
        UART0->data = (uint8_t)text[i];
    }
}

// Semihosting: operation and argument in r0 and r1, then the breakpoint that stands for the call.
_Noreturn void lk_board_end(int code) {
    enum { EXIT_EXTENDED = 0x20, APPLICATION_EXIT = 0x20026 };
    const uint32_t block[2] = {APPLICATION_EXIT, (uint32_t)code};
    register uint32_t operation __asm__("r0") = EXIT_EXTENDED;
    register const uint32_t *argument __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(operation) : "r"(argument) : "memory");
    for (;;) __asm__ volatile("wfi");
}

static void say(const char *line) {
    size_t length = 0;
    while (line[length]) length++;
    lk_board_write(line, length);
}

static uint32_t bytes_between(const uint32_t *begin, const uint32_t *end) {
    return (uint32_t)((uintptr_t)end - (uintptr_t)begin);
}

static void say_sizes(void) {
    char line[160];
    uint32_t data = bytes_between(mps2_data, mps2_data_end);
    lk_format(line, sizeof line,
              "image: code %lu bytes, data %lu, stack %lu of which %lu were used, arena %llu\n",
              (unsigned long)(bytes_between(mps2_code, mps2_code_end) + data),
              (unsigned long)(data + bytes_between(mps2_bss, mps2_bss_end)),
              (unsigned long)bytes_between(mps2_stack, mps2_stack_end),
              (unsigned long)mps2_stack_used(), (unsigned long long)lk_embedded_run.arena_bytes);
    say(line);
}

_Noreturn void mps2_main(void) {
    UART0->divider = UART_DIVIDER;
    UART0->control = UART_SEND;
    lk_status status = lk_board_train(&lk_embedded_run, &lk_kernels_reference);
    say_sizes();
    lk_board_end(status);
}

// The processor's own words on what went wrong: Arm v7-M Architecture Reference Manual, B3.2.
_Noreturn void mps2_say_fault(void) {
    const volatile uint32_t *const scb = (const volatile uint32_t *)0xe000ed28u;
    char line[160];
    lk_format(line, sizeof line,
              "lockstep: internal error: a fault: CFSR %08lx HFSR %08lx MMFAR %08lx BFAR %08lx; "
              "please report it\n",
              (unsigned long)scb[0], (unsigned long)scb[1], (unsigned long)scb[3],
              (unsigned long)scb[4]);
    say(line);
    lk_board_end(LK_INTERNAL);
}
