// base.h - what every file of Lockstep may use: result codes, the one error type, sizes.
//
// Freestanding C11. Knows nothing of the rest of the program.
#ifndef LOCKSTEP_ARENA_BASE_H
#define LOCKSTEP_ARENA_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LK_VERSION "0.1.0"

// Results. The number is the exit code of the program (sysexits.h where it has one).
//        name             exit  what it means to the user
#define LK_STATUS_LIST(X)                                                         \
    X(LK_OK,                 0, "done")                                           \
    X(LK_DIFFERS,            1, "two things that were compared differ")           \
    X(LK_BAD_USAGE,         64, "the command line is wrong")                      \
    X(LK_BAD_DATA,          65, "a data file or checkpoint is damaged or foreign") \
    X(LK_NO_INPUT,          66, "an input file is missing or unreadable")         \
    X(LK_UNAVAILABLE,       69, "a peer, device, CPU feature or memory is not there") \
    X(LK_INTERNAL,          70, "a bug in Lockstep, or an allocation after the seal") \
    X(LK_IO_ERROR,          74, "reading or writing failed")                      \
    X(LK_RETRY,             75, "stopped by somebody else; go on with --resume")  \
    X(LK_RANKS_DISAGREE,    76, "workers do not run the same thing")              \
    X(LK_BAD_CONFIG,        78, "the configuration is wrong")                     \
    X(LK_NOT_FINITE,        80, "a number became infinite or NaN: the run diverged") \
    X(LK_HANGUP,           129, "stopped by SIGHUP after saving")                 \
    X(LK_INTERRUPTED,      130, "stopped by Ctrl-C after saving")                 \
    X(LK_TERMINATED,       143, "stopped by SIGTERM after saving")

typedef enum lk_status {
#define LK_STATUS_ENUM(name, code, text) name = code,
    LK_STATUS_LIST(LK_STATUS_ENUM)
#undef LK_STATUS_ENUM
} lk_status;

const char *lk_status_text(lk_status status);

enum { LK_ERROR_TEXT_BYTES = 640 };

// One error: what, where (file, byte or key), found and wanted, what to do next; one line, no
// newline.
typedef struct lk_error {
    lk_status status;                 // LK_OK until the first failure
    char text[LK_ERROR_TEXT_BYTES];
} lk_error;

// Records the first failure (it names the cause; later ones are dropped) and returns its status.
// `format` is lk_format's, `error` not NULL. The text is one line whatever is quoted (control
// characters become '?') and keeps its end: long strings lose their middle where not all fits.
lk_status lk_fail(lk_error *error, lk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Returns at once with the status of an expression that is not LK_OK.
#define LK_CHECK(expression)                       \
    do {                                           \
        lk_status lk_check_ = (expression);        \
        if (lk_check_ != LK_OK) return lk_check_;  \
    } while (0)

// A subset of snprintf for the core: %s %.*s %c %d %i %u %x %X %ld %lu %lx %lld %llu %llx %zu %zx
// %%, with a width and a leading 0 (%08x). No floats. Always terminates; returns the full length.
size_t lk_format(char *out, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
size_t lk_vformat(char *out, size_t bytes, const char *format, __builtin_va_list args);

// A broken promise inside Lockstep: one line, exit 70. The host sets the handler; the core's
// default traps.
typedef void (*lk_panic_handler)(const char *file, int line, const char *what);
void lk_set_panic_handler(lk_panic_handler handler);
__attribute__((noreturn)) void lk_panic(const char *file, int line, const char *what);
#define lk_assert(condition) ((condition) ? (void)0 : lk_panic(__FILE__, __LINE__, #condition))

#define LK_MIN(a, b) ((a) < (b) ? (a) : (b))
#define LK_MAX(a, b) ((a) > (b) ? (a) : (b))
#define LK_COUNT(array) (sizeof(array) / sizeof((array)[0]))

// A pointer that a planned structure holds, and the member after the last one: eight bytes each on
// every target, so that a plan made on one machine is, to the byte, that of any other.
#ifdef __cplusplus
#define LK_WIDE alignas(8)
#else
#define LK_WIDE _Alignas(8)
#endif

// A function of a descriptor that only those ask who compile, measure or describe programs. Boards
// get their program compiled (apps/baremetal/embedded.h): there it is NULL and not linked.
#ifdef LK_SHORT_FORM_ALONE
#define LK_RULE(function) (1 ? NULL : (function))
#else
#define LK_RULE(function) (function)
#endif

// What is compiled, 1 or 0. A host has all of it; an image for a board has what its run asks for
// (CMakeLists.txt): code is what a board has least of.
//
//   LK_HAS_MIXED     mixed precision, and a loss scale with its verdict
//   LK_HAS_LABELS    examples whose labels are sequences
//   LK_HAS_NORMS     updates that want norms of the whole gradient, or products with it
//   LK_HAS_SPECTRAL  kernels of spectral_normalization
#ifndef LK_SHORT_FORM_ALONE
#define LK_HAS_MIXED 1
#define LK_HAS_LABELS 1
#define LK_HAS_NORMS 1
#define LK_HAS_SPECTRAL 1
#endif

// A function of a descriptor that mixed precision asks for, whoever compiles.
#define LK_MIXED_RULE(function) (LK_HAS_MIXED ? (function) : NULL)

// Overflow-checked sizes: false where the product or sum does not fit.
static inline bool lk_mul_ok(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool lk_add_ok(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline uint64_t lk_round_up(uint64_t value, uint64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

#ifdef __cplusplus
}
#endif
#endif
