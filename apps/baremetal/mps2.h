// mps2.h - what the two files of the MPS2 platform and its linker script tell each other.
#ifndef LOCKSTEP_APPS_BAREMETAL_MPS2_H
#define LOCKSTEP_APPS_BAREMETAL_MPS2_H

#include <stdint.h>

// Of mps2.ld: places, not values.
extern uint32_t mps2_code[], mps2_code_end[];
extern uint32_t mps2_data[], mps2_data_end[], mps2_data_image[];
extern uint32_t mps2_bss[], mps2_bss_end[];
extern uint32_t mps2_stack[], mps2_stack_end[];

#define MPS2_PAINT 0xa5a5a5a5u  // a word of the stack that nobody has used

// The most bytes of the stack that were in use at any time so far.
uint32_t mps2_stack_used(void);

__attribute__((noreturn)) void mps2_main(void);
__attribute__((noreturn)) void mps2_say_fault(void);

#endif
