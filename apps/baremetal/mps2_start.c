// mps2_start.c - from reset to mps2_main on a Cortex-M7: vector table, float unit, memory; and what
// a fault does. Knows the linker script's symbols and the processor, nothing of training.
#include "apps/baremetal/mps2.h"

// Coprocessors 10 and 11 are the float unit: full access.
#define CPACR (*(volatile uint32_t *)0xe000ed88u)
enum { CPACR_FLOAT = 0xf << 20 };

void mps2_reset(void);
void mps2_fault(void);

typedef struct vectors {
    uint32_t *stack;
    void (*handler[15])(void);
} vectors;

// No interrupt is ever switched on: after reset there are only faults.
__attribute__((section(".mps2_vectors"), used)) static const vectors table = {
    .stack = mps2_stack_end,
    .handler = {mps2_reset, mps2_fault, mps2_fault, mps2_fault, mps2_fault, mps2_fault, mps2_fault,
                mps2_fault, mps2_fault, mps2_fault, mps2_fault, mps2_fault, mps2_fault, mps2_fault,
                mps2_fault}};

// The whole stack but what is used already, so that mps2_stack_used can tell. Without calls and
// float registers, since neither is ready.
static inline void paint_stack(void) {
    uint32_t *here = __builtin_frame_address(0);
    for (uint32_t *at = mps2_stack; at < here - 16; at++) *(volatile uint32_t *)at = MPS2_PAINT;
}

uint32_t mps2_stack_used(void) {
    const uint32_t *at = mps2_stack;
    while (at < mps2_stack_end && *at == MPS2_PAINT) at++;
    return (uint32_t)((mps2_stack_end - at) * (int)sizeof *at);
}

// FPSCR is 0 after reset: round to nearest, subnormals kept, NaNs as they are.
__attribute__((noreturn)) void mps2_reset(void) {
    CPACR |= CPACR_FLOAT;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    paint_stack();
    const uint32_t *from = mps2_data_image;
    for (uint32_t *to = mps2_data; to < mps2_data_end; to++) *to = *from++;
    for (uint32_t *to = mps2_bss; to < mps2_bss_end; to++) *to = 0;
    mps2_main();
}

// The stack may be what failed, so it starts anew.
__attribute__((naked)) void mps2_fault(void) {
    __asm__ volatile("ldr r0, =mps2_stack_end\n\t"
                     "mov sp, r0\n\t"
                     "b mps2_say_fault");
}
