// embedded.h - a run as constants of a program: what `lockstep embed` writes and train.c trains.
// Freestanding.
//
//   lockstep embed CONFIG --to run.c          program, optimizer and examples as one C source
//   cmake -DLOCKSTEP_EMBEDDED=run.c ...       the target lockstep_embedded: a program, or an image
//
// The program comes compiled: its tables are constants beside the code, what compiles a model is
// not linked, and of ops only those that it names.
//
// The arena is one static array, as large as `lockstep plan` says of this configuration ("core"):
// whether the run fits is decided when the program is linked.
#ifndef LOCKSTEP_APPS_BAREMETAL_EMBEDDED_H
#define LOCKSTEP_APPS_BAREMETAL_EMBEDDED_H

#include "arena/arena.h"
#include "io/idx.h"
#include "ops/op.h"
#include "ops/graph/program.h"

// Where a linker script finds the two large things, to lay them into the memory that is for them.
#define LK_EMBEDDED_ARENA __attribute__((section(".bss.lk_arena"), aligned(LK_PAGE_BYTES)))
#define LK_EMBEDDED_EXAMPLES __attribute__((section(".rodata.lk_examples")))

typedef struct lk_embedded {
    const char *name;              // of the configuration
    const char *run_identity;      // as the host computed it
    lk_run_spec spec;              // with the number of examples and their hash; without layers
    const lk_program *program;     // compiled from it
    uint64_t steps;                // of the whole run
    uint64_t log_every_steps;
    const uint8_t *images;         // (example_count, in_h, in_w, in_c)
    const uint8_t *labels;         // (example_count, label_bytes), as IDX files have them
    uint32_t label_bytes;          // of an example's label, or of its row
    lk_idx_type label_type;        // u16 where labels take two bytes; 0: u8
    uint8_t *arena;                // LK_EMBEDDED_ARENA
    uint64_t arena_bytes;
} lk_embedded;

// Defined by the embedded source.
extern const lk_embedded lk_embedded_run;

// Trains it from the first step to the last, without evaluation or checkpoints, and says on the
// console what `lockstep train` says: loss lines, run_identity, digest, state_hash. All memory is
// run->arena and a few static kilobytes. Errors are one line on the console too.
lk_status lk_board_train(const lk_embedded *run, const lk_kernels *kernels);

// --- the platform: what a target must bring ------------------------------------------------------

// Writes to the console, whatever that is; returns when the target has taken all of it.
void lk_board_write(const char *text, size_t bytes);

// Ends the program with an lk_status as its code.
__attribute__((noreturn)) void lk_board_end(int code);

#endif
