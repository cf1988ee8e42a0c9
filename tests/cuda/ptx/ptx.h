// ptx.h - an executor of PTX: what nvcc makes of the kernels, run by the processor a warp at a
// time.
//
//   module.cpp      text -> kernels: parameters, registers, instructions (of the rules' words only)
//   flow.cpp        where diverged lanes meet again; which registers may share a slot
//   arithmetic.cpp  rules: numbers, predicates, conversions, moves
//   control.cpp     rules: branches, barriers, shuffles, fences
//   memory.cpp      rules: loads, stores, atomics, asynchronous copies; bounds, sectors, banks
//   races.cpp       who touches memory with nothing between that orders the two
//   grid.cpp        blocks and warps in an order that a seed decides
//   counts.cpp      what was counted, as JSON
//   runtime.cpp     the toolkit's side of a launch: fat binaries, kernels, arguments
//
// A register is 32 lanes side by side: 4 bytes each, or 8, or a bit (predicates). All lanes of a
// warp go through an instruction together, those of its mask; where a branch parts them, one side
// goes first, up to the branch's immediate post-dominator. Whatever the rules do not know is
// refused when its kernel is first launched, with its line.
#ifndef LOCKSTEP_PTX_PTX_H
#define LOCKSTEP_PTX_PTX_H

#include <stdint.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "../host/block.h"

// --- programs ------------------------------------------------------------------------------------

// What a profiler would file an instruction under.
#define LK_PTX_KINDS(X)               \
    X(FMA, "fma")                     \
    X(FLOAT, "float")                 \
    X(INTEGER, "integer")             \
    X(COMPARE, "compare")             \
    X(MOVE, "move")                   \
    X(BRANCH, "branch")               \
    X(BARRIER, "barrier")             \
    X(SHUFFLE, "shuffle")             \
    X(ATOMIC, "atomic")               \
    X(FENCE, "fence")                 \
    X(COPY, "copy")                   \
    X(GROUP, "group")                 \
    X(LOAD_GLOBAL, "load_global")     \
    X(STORE_GLOBAL, "store_global")   \
    X(LOAD_SHARED, "load_shared")     \
    X(STORE_SHARED, "store_shared")   \
    X(LOAD_LOCAL, "load_local")       \
    X(STORE_LOCAL, "store_local")     \
    X(LOAD_GENERIC, "load_generic")   \
    X(STORE_GENERIC, "store_generic") \
    X(LOAD_PARAM, "load_param")
enum lk_ptx_kind {
#define LK_PTX_KIND(name, text) LK_PTX_##name,
    LK_PTX_KINDS(LK_PTX_KIND)
#undef LK_PTX_KIND
        LK_PTX_KIND_COUNT
};

struct lk_ptx_warp;
struct lk_ptx_instruction;
typedef void (*lk_ptx_handler)(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask);

enum { LK_PTX_OPERANDS = 6, LK_PTX_ADDRESS = 4, LK_PTX_CONSTANT = 1 };
#define LK_PTX_NONE UINT32_MAX

// An operand is where its lanes lie: bytes from the warp's registers, or, where the lowest bit
// (LK_PTX_CONSTANT) is set, from the kernel's constants.
struct lk_ptx_instruction {
    lk_ptx_handler run;
    uint32_t o[LK_PTX_OPERANDS];  // as the rule orders them; an address is number LK_PTX_ADDRESS
    uint32_t guard;               // a predicate's; LK_PTX_NONE: always
    bool guard_is_not;
    bool is_end;  // of the thread
    uint8_t kind;
    uint8_t vector;         // loads and stores: elements of 1, 2 or 4 registers
    uint8_t width;          // bytes of registers loaded, stored or converted to: 2, 4, 8; or 0
    uint32_t target, join;  // of a branch: where to, and where its lanes meet again
    uint32_t line;          // of the PTX
    int64_t displacement;   // of an address,
    bool is_wide;           // whose register has 64 bits
};

// Of an instruction, in all warps of all launches.
struct lk_ptx_count {
    uint64_t runs;             // by a warp
    uint64_t lanes;            // that took part
    uint64_t diverged;         // branches that parted their lanes
    uint64_t sectors, bytes;   // 32-byte sectors of global memory asked for; distinct bytes wanted
    uint64_t passes, optimum;  // over the banks of shared memory; without any conflict
};

struct lk_ptx_parameter {
    std::string name;
    uint32_t offset, bytes;
};

struct lk_ptx_kernel {
    std::string name;  // as it is mangled
    std::vector<lk_ptx_parameter> parameters;
    uint32_t parameter_bytes;
    std::vector<lk_ptx_instruction> code;
    std::vector<lk_ptx_count> counts;  // of each instruction
    std::vector<std::string> texts;
    std::vector<void *> patterns;  // of memory.cpp: two of each
    uint8_t *constants;            // aligned
    uint32_t register_bytes;       // of a warp
    uint32_t local_bytes;          // of a thread
    uint32_t threads_max;          // of a block; 0: not said
    uint64_t launches, blocks, warps;
};

// A text of PTX, in which kernels are looked up by name. `text` must stay.
struct lk_ptx_module {
    const char *text;
    size_t bytes;
    std::unordered_map<std::string, lk_ptx_kernel *> kernels;
};

// The kernel, decoded when it is first asked for; NULL if there is none of this name. Whatever is
// not known in it ends the program.
lk_ptx_kernel *lk_ptx_find(lk_ptx_module *module, const std::string &name);
// All names, in the order of the text.
std::vector<std::string> lk_ptx_names(const lk_ptx_module *module);

// --- rules ---------------------------------------------------------------------------------------

// An instruction's word and its operands, a letter each; capitals are written. W w: 16 or 32 bits,
// L l: 64, P p: a predicate, H: of any width; V: one register of any width, or several in braces;
// u: likewise, the low bits count; x: of 64 bits; S: "%r|%p" of a shuffle; T: a label; A:
// [address]; G: [register], a second address.
struct lk_ptx_rule {
    const char *word, *operands;
    lk_ptx_handler run;
    lk_ptx_kind kind;
};
struct lk_ptx_rules {
    const lk_ptx_rule *rules;
    uint32_t count;
};
lk_ptx_rules lk_ptx_arithmetic_rules(void);
lk_ptx_rules lk_ptx_control_rules(void);
lk_ptx_rules lk_ptx_memory_rules(void);

// What a lane touches: a word of shared memory by its number, an element of global memory, of one
// byte or of four, by its address. `several` lanes of the instruction do the same. Ends the program
// where that is a race, or where nobody wrote what is read of shared memory.
void lk_ptx_note_shared(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane, uint32_t at,
                        bool writes, bool several);
void lk_ptx_note_global(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane, uint64_t at,
                        uint32_t element, bool writes, bool several);
// A copy to a word is under way, and nobody may touch it; or has come, as if its thread wrote now.
void lk_ptx_note_copy(lk_ptx_warp *w, uint32_t lane, uint32_t at, bool has_come);
void lk_ptx_begin_races(void);  // of a launch

// Of a dependent launch: have these lanes waited for the kernel ahead?
void lk_ptx_check_waited(lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t mask);

// Memory was taken or given back since the last grid, or it is another device's.
void lk_ptx_forget_memory(void);
// Leaves out a barrier, or a commit or wait of copies, where LOCKSTEP_PTX_LEAVE_OUT, as NAME:LINE,
// is of this kernel.
void lk_ptx_leave_out(lk_ptx_kernel *k);

// Registers of a kernel while it is decoded: numbers from 0.
struct lk_ptx_use {
    uint32_t instruction, operand, reg;  // operand LK_PTX_OPERANDS: the guard
    bool written;
};
// Gives registers of equal width that never live together one slot, and fills in the operands.
// `widths`: bytes of a lane; 0: a predicate.
void lk_ptx_allot(lk_ptx_kernel *k, const std::vector<uint8_t> &widths,
                  const std::vector<lk_ptx_use> &uses);
// Fills in where branches' lanes meet again.
void lk_ptx_find_joins(lk_ptx_kernel *k);

// --- warps ---------------------------------------------------------------------------------------

enum { LK_PTX_DEPTH = 80, LK_PTX_SHARED_WORDS = LK_HOST_SHARED_BYTES / 4 };

enum lk_ptx_state { LK_PTX_RUNS, LK_PTX_WAITS, LK_PTX_ENDED };

struct lk_ptx_path {
    uint32_t at, join, mask;
};

// An asynchronous copy of a lane, to an offset of shared memory: of `bytes`, of which `given` are
// read and the others zero. It is made by the wait that covers its group.
struct lk_ptx_copy {
    uint32_t lane, to, bytes, given, group;
    uint64_t from;
};

struct lk_ptx_block;

struct lk_ptx_warp {
    uint8_t *registers;
    const uint8_t *constants;
    uint32_t at, join, mask;  // the next instruction, of these lanes, up to there
    uint32_t born, ended;     // lanes
    uint32_t depth;
    lk_ptx_state state;
    lk_ptx_block *block;
    uint32_t waited;  // lanes that have, for the kernel ahead
    uint32_t first_thread;
    uint8_t *local;  // local_bytes of each lane
    lk_ptx_path paths[LK_PTX_DEPTH];
    std::vector<lk_ptx_copy> copies;  // under way
    uint32_t groups[32];              // that each lane has committed
};

enum { LK_PTX_WORD_BYTES = 24 };  // what is kept of who touched a word (races.cpp)
// The epoch of a copy that is under way: more than the barriers of any block.
#define LK_PTX_UNDER_WAY ((uint32_t)(1 << 21) - 1)

struct lk_ptx_block {
    lk_ptx_kernel *kernel;
    const cudaLaunchConfig_t *config;
    const uint8_t *parameters;
    uint3 index;
    uint32_t number;  // in the grid
    uint32_t threads, warp_count, waiting, ended;
    uint32_t epoch;  // barriers passed, and one
    uint32_t shared_bytes;
    uint8_t *shared;
    void *words;     // of shared memory: LK_PTX_WORD_BYTES each
    uint64_t *seed;  // of the launch: which side of a branch goes first
    lk_ptx_warp warps[LK_HOST_THREADS_MAX / 32];
};

static inline const void *lk_ptx_at(const lk_ptx_warp *w, uint32_t o) {
    return (o & LK_PTX_CONSTANT ? w->constants : w->registers) + (o & ~(uint32_t)LK_PTX_CONSTANT);
}
static inline void *lk_ptx_to(lk_ptx_warp *w, uint32_t o) { return w->registers + o; }

static inline uint32_t lk_ptx_predicate(const lk_ptx_warp *w, uint32_t o) {
    return *static_cast<const uint32_t *>(lk_ptx_at(w, o));
}
static inline void lk_ptx_set_predicate(lk_ptx_warp *w, uint32_t o, uint32_t mask, uint32_t value) {
    uint32_t *to = static_cast<uint32_t *>(lk_ptx_to(w, o));
    *to = (*to & ~mask) | (value & mask);
}

static inline lk_ptx_count *lk_ptx_counted(lk_ptx_warp *w, const lk_ptx_instruction *i) {
    lk_ptx_kernel *k = w->block->kernel;
    return &k->counts[static_cast<size_t>(i - k->code.data())];
}

// Lanes do not touch each other's values, so that a loop over them may become vectors.
#ifdef __clang__
#define LK_PTX_EACH(lane) \
    _Pragma("clang loop vectorize(assume_safety)") for (uint32_t lane = 0; lane < 32; lane++)
#else
#define LK_PTX_EACH(lane) _Pragma("GCC ivdep") for (uint32_t lane = 0; lane < 32; lane++)
#endif
#define LK_PTX_LANES(lane, mask)            \
    for (uint32_t left_ = (mask), lane = 0; \
         left_ && (lane = (uint32_t)__builtin_ctz(left_), true); left_ &= left_ - 1)

// What a kernel does wrong: kernel, line, instruction, block and thread, and what it is.
[[noreturn]] void lk_ptx_die(const lk_ptx_warp *w, const lk_ptx_instruction *i, uint32_t lane,
                             const char *format, ...) __attribute__((format(printf, 4, 5)));

// Runs a grid: blocks interleaved, warps of a block in turns, all as the seed says.
void lk_ptx_grid_run(lk_ptx_kernel *k, const cudaLaunchConfig_t *config, const uint8_t *parameters,
                     uint64_t seed);

// A kernel takes part in what is written to LOCKSTEP_PTX_COUNTS at the end of the program.
void lk_ptx_count_kernel(lk_ptx_kernel *k);

#endif
