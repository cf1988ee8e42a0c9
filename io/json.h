// json.h - configuration documents: strict JSON, and reading it so that every mistake is answered
// with file, key path, what was found, what was wanted and what to do.
//
// Host only, start-up only: the document lives in jansson's heap until lk_json_close. Knows nothing
// of what the keys mean; whoever turns the document into structs says names, types and ranges.
//
// Intended use:
//
//     static const char *const keys[] = {"steps", "seed", "optimizer"};
//     lk_json document;
//     LK_CHECK(lk_json_load_file(&document, "mnist.json", &error));
//     LK_CHECK(lk_json_set(&document, "steps=100", &error));              // each --set, in order
//     lk_json_cursor root = lk_json_root(&document);
//     LK_CHECK(lk_json_keys_only(&root, keys, LK_COUNT(keys), &error));
//     uint64_t steps = 1000;                                              // the default
//     LK_CHECK(lk_json_get_u64(&root, "steps", LK_JSON_OPTIONAL, 1, UINT32_MAX, &steps, &error));
//     ...
//     lk_json_close(&document);                                           // also after an error
//
// Errors: LK_NO_INPUT for a file that is missing or cannot be read, LK_BAD_USAGE for a --set that
// is not written as one, LK_BAD_CONFIG for everything wrong inside; LK_UNAVAILABLE without memory.
// Strict: one object or array, UTF-8, no comments, no trailing commas or text, no duplicate keys,
// no NaN, no \u0000. Integers are those of int64_t: up to 9223372036854775807.
#ifndef LOCKSTEP_IO_JSON_H
#define LOCKSTEP_IO_JSON_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LK_JSON_SOURCE_BYTES = 200,        // of the name of a document in errors
    LK_JSON_PATH_BYTES = 160,          // of a key path in errors; a longer one loses its beginning
    LK_JSON_FILE_BYTES_MAX = 16 << 20, // a file beyond this is no configuration
    LK_JSON_DEPTH_MAX = 128,           // values in one another: who walks them has a small stack
};

// A place of the document, and what errors call it: where its values stood in a shorter form that
// was written out.
typedef struct lk_json_alias {
    const char *place, *said;
} lk_json_alias;

typedef struct lk_json {
    struct json_t *root;                // NULL: nothing loaded
    bool changed;                       // by lk_json_set; errors then say "mnist.json with --set"
    const lk_json_alias *aliases;       // (alias_count) the caller's, of places and what is in them
    uint32_t alias_count;
    char source[LK_JSON_SOURCE_BYTES];  // "mnist.json", "TF_CONFIG"
} lk_json;

// A value of the document, and where it stands. Copied freely; valid until lk_json_set or close.
typedef struct lk_json_cursor {
    const lk_json *document;
    struct json_t *value;           // NULL only for an optional object or array that is missing
    char path[LK_JSON_PATH_BYTES];  // "model.layers[2].filters"; "" for the whole document
} lk_json_cursor;

typedef enum lk_json_type {
    LK_JSON_NULL, LK_JSON_BOOL, LK_JSON_INTEGER, LK_JSON_REAL, LK_JSON_STRING, LK_JSON_ARRAY,
    LK_JSON_OBJECT
} lk_json_type;

typedef enum lk_json_presence {
    LK_JSON_REQUIRED,  // a missing key is an error
    LK_JSON_OPTIONAL   // a missing key leaves the output as it was: put the default there before
} lk_json_presence;

// --- the document ------------------------------------------------------------------------------

// Reads and parses a file (a pipe will do). On failure the document is empty and may be closed.
lk_status lk_json_load_file(lk_json *document, const char *path, lk_error *error);

// Parses `bytes` bytes of text; `source` names it in errors ("TF_CONFIG").
lk_status lk_json_load_text(lk_json *document, const char *source, const char *text, size_t bytes,
                            lk_error *error);

// Are more than LK_JSON_DEPTH_MAX objects and arrays in one another in a text, if it is JSON? The
// loading functions refuse that.
bool lk_json_is_deep(const char *text, size_t bytes);

// Applies one `--set`: "train.steps=100", "model.layers[0].filters=16", "name=first try". The value
// is JSON, else a string; what begins like JSON's " { [ or like a number and is none is refused.
// Keys may be new in their object, and objects on the way are made, since what has a default need
// not be in a document (lk_json_keys_only answers for the names). Arrays never grow.
lk_status lk_json_set(lk_json *document, const char *assignment, lk_error *error);

// Writes the document as it now stands: keys sorted, 2 spaces, one final newline, NUL-terminated;
// reals in the fewest digits that give them all back. The same document gives the same bytes.
// *length (may be NULL) is the text's length. LK_INTERNAL where `bytes` are too few.
lk_status lk_json_dump(const lk_json *document, char *out, size_t bytes, size_t *length,
                       lk_error *error);

void lk_json_close(lk_json *document);

// One step into a document: a key of an object or, where it is NULL, an element of an array.
typedef struct lk_json_step {
    const char *key;
    size_t index;
} lk_json_step;

// The byte, from 0, at which a value begins in the text that was loaded, or with `at_key` its key;
// SIZE_MAX where the text has no such value. For errors that say where; the text must have loaded.
size_t lk_json_offset(const char *text, size_t bytes, const lk_json_step *steps, uint32_t count,
                      bool at_key);

// --- moving about ------------------------------------------------------------------------------

lk_json_cursor lk_json_root(const lk_json *document);
lk_json_type lk_json_type_of(const lk_json_cursor *at);

// Elements of an array, keys of an object, else 0.
size_t lk_json_length(const lk_json_cursor *at);

// The value of a key: false where there is none, or `object` is no object.
bool lk_json_find(const lk_json_cursor *object, const char *key, lk_json_cursor *out);

// The element of an array, from 0; beyond the end, or of no array: an error.
lk_status lk_json_element(const lk_json_cursor *array, size_t index, lk_json_cursor *out,
                          lk_error *error);

// Walks an object's keys in the file's order: start with *key = NULL; false after the last.
bool lk_json_next(const lk_json_cursor *object, const char **key, lk_json_cursor *out);

// --- checking and reading ----------------------------------------------------------------------

// Refuses keys that are not among `keys`, with the nearest that is. Refuses what is no object.
lk_status lk_json_keys_only(const lk_json_cursor *object, const char *const *keys, size_t count,
                            lk_error *error);

// An error of the caller's own about a value: "FILE: PATH: found integer 3, " + format.
lk_status lk_json_refuse(const lk_json_cursor *at, lk_error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The value under the cursor, from min to max inclusive. Integers must be written as integers.
lk_status lk_json_as_u64(const lk_json_cursor *at, uint64_t min, uint64_t max, uint64_t *out,
                         lk_error *error);
lk_status lk_json_as_u32(const lk_json_cursor *at, uint32_t min, uint32_t max, uint32_t *out,
                         lk_error *error);
lk_status lk_json_as_bool(const lk_json_cursor *at, bool *out, lk_error *error);

// A number: *value as double, *rounded as the fp32 nearest to that double (each may be NULL).
// Refuses what fp32 cannot hold: beyond FLT_MAX, or not zero and yet rounded to zero.
lk_status lk_json_as_float(const lk_json_cursor *at, double min, double max, double *value,
                           float *rounded, lk_error *error);

// A string; *out stays the document's, until lk_json_set or close.
lk_status lk_json_as_string(const lk_json_cursor *at, const char **out, lk_error *error);

// A string that is one of `names`: *out is its index.
lk_status lk_json_as_choice(const lk_json_cursor *at, const char *const *names, uint32_t count,
                            uint32_t *out, lk_error *error);

// Checks the type, and the number of elements from min to max inclusive.
lk_status lk_json_as_object(const lk_json_cursor *at, lk_error *error);
lk_status lk_json_as_array(const lk_json_cursor *at, size_t min, size_t max, lk_error *error);

// The same for the value of a key. null is not "missing": it is refused like any wrong type.
lk_status lk_json_get_u64(const lk_json_cursor *object, const char *key, lk_json_presence presence,
                          uint64_t min, uint64_t max, uint64_t *out, lk_error *error);
lk_status lk_json_get_u32(const lk_json_cursor *object, const char *key, lk_json_presence presence,
                          uint32_t min, uint32_t max, uint32_t *out, lk_error *error);
lk_status lk_json_get_bool(const lk_json_cursor *object, const char *key, lk_json_presence presence,
                           bool *out, lk_error *error);
lk_status lk_json_get_float(const lk_json_cursor *object, const char *key,
                            lk_json_presence presence, double min, double max, double *value,
                            float *rounded, lk_error *error);

// Copies the string, NUL included, into `bytes` bytes; a longer one is refused.
lk_status lk_json_get_string(const lk_json_cursor *object, const char *key,
                             lk_json_presence presence, char *out, size_t bytes, lk_error *error);
lk_status lk_json_get_choice(const lk_json_cursor *object, const char *key,
                             lk_json_presence presence, const char *const *names, uint32_t count,
                             uint32_t *out, lk_error *error);

// The cursor of an object or array. Where an optional one is missing, out->value is NULL.
lk_status lk_json_get_object(const lk_json_cursor *object, const char *key,
                             lk_json_presence presence, lk_json_cursor *out, lk_error *error);
lk_status lk_json_get_array(const lk_json_cursor *object, const char *key,
                            lk_json_presence presence, size_t min, size_t max, lk_json_cursor *out,
                            lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
