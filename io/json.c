// json.c - documents over jansson: loading, --set, dumping, and the checked access of json.h.
//
// Every message is built from three pieces: where (source and path), found (describe) and wanted
// (a `want`, which says it in words and is compared by the same function). Host only.
#define _DEFAULT_SOURCE
#include "io/json.h"

#include "io/text.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SHOWN_BYTES = 96,    // of a key or a string in a message
    FOUND_BYTES = 128,
    WANTED_BYTES = 256,
    REAL_BYTES = 32,
};

// --- showing values ----------------------------------------------------------------------------

// The fewest digits, 1 to 17, that give the double back.
static int real_digits(double value) {
    char text[REAL_BYTES];
    int digits = 1;
    for (; digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return digits;
}

static void show_real(char out[REAL_BYTES], double value) {
    snprintf(out, REAL_BYTES, "%.*g", real_digits(value), value);
}

// One line, valid UTF-8, and short, whatever stands in `text`.
static const char *show(char out[SHOWN_BYTES], const char *text, size_t length) {
    bool cut = lk_text_escape(out, SHOWN_BYTES - 3, text, length) >= SHOWN_BYTES - 3;
    if (cut) memcpy(out + strlen(out), "...", 4);
    return out;
}

static const char *describe(char out[FOUND_BYTES], const json_t *value) {
    char text[SHOWN_BYTES];
    size_t count;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        count = json_object_size(value);
        lk_format(out, FOUND_BYTES, "an object of %zu key%s", count, count == 1 ? "" : "s");
        break;
    case JSON_ARRAY:
        count = json_array_size(value);
        lk_format(out, FOUND_BYTES, "an array of %zu element%s", count, count == 1 ? "" : "s");
        break;
    case JSON_STRING:
        show(text, json_string_value(value), json_string_length(value));
        lk_format(out, FOUND_BYTES, "string \"%s\"", text);
        break;
    case JSON_INTEGER:
        lk_format(out, FOUND_BYTES, "integer %lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        show_real(text, json_real_value(value));
        if (!strpbrk(text, ".e")) memcpy(text + strlen(text), ".0", 3);
        lk_format(out, FOUND_BYTES, "real %s", text);
        break;
    case JSON_TRUE: lk_format(out, FOUND_BYTES, "true"); break;
    case JSON_FALSE: lk_format(out, FOUND_BYTES, "false"); break;
    case JSON_NULL: lk_format(out, FOUND_BYTES, "null"); break;
    }
    return out;
}

// The path under the cursor, or what it is called where it has an alias.
static const char *place(char out[LK_JSON_PATH_BYTES], const lk_json_cursor *at) {
    for (uint32_t i = 0; i < at->document->alias_count; i++) {
        const lk_json_alias *alias = &at->document->aliases[i];
        const size_t length = strlen(alias->place);
        if (strncmp(at->path, alias->place, length) != 0) continue;
        if (at->path[length] && !strchr(".[", at->path[length])) continue;
        lk_format(out, LK_JSON_PATH_BYTES, "%s%s", alias->said, at->path + length);
        return out;
    }
    return at->path[0] ? at->path : "top level";
}

static const char *with_set(const lk_json *document) {
    return document->changed ? " with --set" : "";
}

// --- what is wanted ----------------------------------------------------------------------------

typedef struct want {
    enum { WANT_INTEGER, WANT_NUMBER, WANT_BOOL, WANT_STRING, WANT_CHOICE, WANT_ARRAY, WANT_OBJECT }
        kind;
    uint64_t min, max;         // of an integer; of a string's bytes; of an array's elements
    double low, high;          // of a number
    const char *const *names;  // of a choice
    uint32_t count;
} want;

static void say_choice(char out[WANTED_BYTES], const want *wanted) {
    size_t length = lk_format(out, WANTED_BYTES, "one of");
    for (uint32_t i = 0; i < wanted->count; i++) {
        const char *comma = i ? "," : "";
        if (length + strlen(wanted->names[i]) + 9 > WANTED_BYTES) {
            lk_format(out + length, WANTED_BYTES - length, ", ...");
            return;
        }
        length += lk_format(out + length, WANTED_BYTES - length, "%s \"%s\"", comma,
                            wanted->names[i]);
    }
}

static void say_number(char out[WANTED_BYTES], const want *wanted) {
    char low[REAL_BYTES], high[REAL_BYTES];
    show_real(low, wanted->low);
    show_real(high, wanted->high);
    bool floor = wanted->low > -(double)FLT_MAX, ceiling = wanted->high < (double)FLT_MAX;
    if (floor && ceiling) lk_format(out, WANTED_BYTES, "a number from %s to %s", low, high);
    else if (floor) lk_format(out, WANTED_BYTES, "a number of at least %s that fits fp32", low);
    else if (ceiling) lk_format(out, WANTED_BYTES, "a number of at most %s that fits fp32", high);
    else lk_format(out, WANTED_BYTES, "a number that fits fp32");
}

static void say_array(char out[WANTED_BYTES], const want *wanted) {
    unsigned long long min = wanted->min, max = wanted->max;
    const char *end = min == 1 ? "" : "s";
    if (min == max) lk_format(out, WANTED_BYTES, "an array of exactly %llu element%s", min, end);
    else if (max >= INT64_MAX)
        lk_format(out, WANTED_BYTES, "an array of at least %llu element%s", min, end);
    else lk_format(out, WANTED_BYTES, "an array of %llu to %llu elements", min, max);
}

static const char *say(char out[WANTED_BYTES], const want *wanted) {
    unsigned long long min = wanted->min, max = LK_MIN(wanted->max, (uint64_t)INT64_MAX);
    switch (wanted->kind) {
    case WANT_INTEGER:
        lk_format(out, WANTED_BYTES, "an integer from %llu to %llu", min, max);
        break;
    case WANT_NUMBER: say_number(out, wanted); break;
    case WANT_BOOL: lk_format(out, WANTED_BYTES, "true or false"); break;
    case WANT_STRING:
        if (max < INT64_MAX) lk_format(out, WANTED_BYTES, "a string of at most %llu bytes", max);
        else lk_format(out, WANTED_BYTES, "a string");
        break;
    case WANT_CHOICE: say_choice(out, wanted); break;
    case WANT_ARRAY: say_array(out, wanted); break;
    case WANT_OBJECT: lk_format(out, WANTED_BYTES, "an object, { }"); break;
    }
    return out;
}

static bool fits_fp32(double value) {
    float rounded = fabs(value) <= (double)FLT_MAX ? (float)value : 0.0f;
    return rounded != 0.0f || value == 0.0;
}

static bool matches(const json_t *value, const want *wanted) {
    switch (wanted->kind) {
    case WANT_INTEGER: {
        if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
        uint64_t integer = (uint64_t)json_integer_value(value);
        return integer >= wanted->min && integer <= wanted->max;
    }
    case WANT_NUMBER: {
        double number = json_number_value(value);
        return json_is_number(value) && number >= wanted->low && number <= wanted->high
            && fits_fp32(number);
    }
    case WANT_BOOL: return json_is_boolean(value);
    case WANT_STRING: return json_is_string(value) && json_string_length(value) <= wanted->max;
    case WANT_CHOICE:
        if (!json_is_string(value)) return false;
        for (uint32_t i = 0; i < wanted->count; i++) {
            if (strcmp(json_string_value(value), wanted->names[i]) == 0) return true;
        }
        return false;
    case WANT_ARRAY:
        return json_is_array(value) && json_array_size(value) >= wanted->min
            && json_array_size(value) <= wanted->max;
    case WANT_OBJECT: return json_is_object(value);
    }
    return false;
}

// Of a string: would it be of the kind that is wanted without its quotes?
static bool fits_unquoted(const char *text, const want *wanted) {
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    const bool fits = wanted->kind == WANT_BOOL ? json_is_boolean(value) : json_is_number(value);
    json_decref(value);
    return fits;
}

// What to do about `value`, which does not match.
static void advise(char out[SHOWN_BYTES], const json_t *value, const want *wanted) {
    const char *text = json_string_value(value), *near = NULL;
    bool number = wanted->kind == WANT_INTEGER || wanted->kind == WANT_NUMBER;
    if (wanted->kind == WANT_CHOICE && text)
        near = lk_text_nearest(text, wanted->names, wanted->count);
    if (near) lk_format(out, SHOWN_BYTES, "did you mean \"%s\"?", near);
    else if (json_is_null(value))
        lk_format(out, SHOWN_BYTES, "write a value, or leave the key out where it has a default");
    else if (text && (number || wanted->kind == WANT_BOOL))
        lk_format(out, SHOWN_BYTES, "write %s",
                  fits_unquoted(text, wanted) ? "it without quotes"
                  : number                    ? "a number"
                                              : "one of them");
    else if (wanted->kind == WANT_INTEGER && json_is_real(value))
        lk_format(out, SHOWN_BYTES, "write it without point and exponent");
    else if (number && json_is_number(value))
        lk_format(out, SHOWN_BYTES, "choose one in that range");
    else if (wanted->kind == WANT_ARRAY && json_is_array(value) && wanted->max == 0)
        lk_format(out, SHOWN_BYTES, "leave it empty, [], or leave the key out");
    else if (wanted->kind == WANT_ARRAY && json_is_array(value))
        lk_format(out, SHOWN_BYTES, "give as many elements");
    else if (wanted->kind == WANT_STRING && text) lk_format(out, SHOWN_BYTES, "shorten it");
    else lk_format(out, SHOWN_BYTES, "replace it");
}

static lk_status check(const lk_json_cursor *at, const want *wanted, lk_error *error) {
    if (matches(at->value, wanted)) return LK_OK;
    char found[FOUND_BYTES], words[WANTED_BYTES], advice[SHOWN_BYTES], path[LK_JSON_PATH_BYTES];
    advise(advice, at->value, wanted);
    return lk_fail(error, LK_BAD_CONFIG, "%s%s: %s: found %s, wanted %s; %s", at->document->source,
                   with_set(at->document), place(path, at), describe(found, at->value),
                   say(words, wanted), advice);
}

lk_status lk_json_refuse(const lk_json_cursor *at, lk_error *error, const char *format, ...) {
    char text[WANTED_BYTES], found[FOUND_BYTES], path[LK_JSON_PATH_BYTES];
    va_list args;
    va_start(args, format);
    lk_vformat(text, sizeof text, format, args);
    va_end(args);
    return lk_fail(error, LK_BAD_CONFIG, "%s%s: %s: found %s, %s", at->document->source,
                   with_set(at->document), place(path, at), describe(found, at->value), text);
}

// --- what jansson takes: numbers that are too small, too much depth ----------------------------

// jansson reads a number below 2.4703e-324, half the least double, as 0, and says nothing. So the
// text is looked through, byte by byte, for one that is not 0 and below 3e-324.
enum { LEAST_DIGIT = 3, LEAST_EXPONENT = -324, EXPONENT_MAX = 1 << 20 };

typedef enum number_part { NO_NUMBER, WHOLE, FRACTION, EXPONENT } number_part;

typedef struct text_search {
    bool in_string, escaped;
    number_part part;
    int significant;       // its first digit that is not 0, or 0
    bool negative;         // the exponent is
    long place, exponent;  // of the first such digit, without the exponent; the exponent
    long line, column;     // of the next byte, from 0
    bool found;            // one that is too small; where:
    long at_line, at_column;
    long start_line, start_column;  // of the number at hand
    uint32_t depth;  // of the next byte: objects and arrays around it
    bool deep;       // it was more than LK_JSON_DEPTH_MAX somewhere
} text_search;

static void end_number(text_search *s) {
    long first = s->place + (s->negative ? -s->exponent : s->exponent);
    bool small =
        first < LEAST_EXPONENT || (first == LEAST_EXPONENT && s->significant < LEAST_DIGIT);
    if (s->part != NO_NUMBER && s->significant && small && !s->found) {
        s->found = true;
        s->at_line = s->start_line;
        s->at_column = s->start_column;
    }
    s->part = NO_NUMBER;
}

static void begin_number(text_search *s) {
    s->part = WHOLE;
    s->significant = 0;
    s->negative = false;
    s->place = s->exponent = 0;
    s->start_line = s->line;
    s->start_column = s->column;
}

static void take_digit(text_search *s, int digit) {
    if (s->part == EXPONENT) {
        s->exponent = LK_MIN(10 * s->exponent + digit, (long)EXPONENT_MAX);
    } else if (s->significant) {
        s->place += s->part == WHOLE;
    } else {
        s->significant = digit;
        s->place -= s->part == FRACTION;
    }
}

static void count_depth(text_search *s, char c) {
    if (c == '{' || c == '[') s->deep = ++s->depth > LK_JSON_DEPTH_MAX || s->deep;
    if (c == '}' || c == ']') s->depth -= s->depth > 0;
}

static void search_byte(text_search *s, char c) {
    if (!s->in_string) count_depth(s, c);
    if (s->in_string) {
        s->in_string = s->escaped || c != '"';
        s->escaped = !s->escaped && c == '\\';
    } else if (c >= '0' && c <= '9') {
        if (s->part == NO_NUMBER) begin_number(s);
        take_digit(s, c - '0');
    } else if (s->part != NO_NUMBER && c == '.') {
        s->part = FRACTION;
    } else if (s->part != NO_NUMBER && (c == 'e' || c == 'E')) {
        s->part = EXPONENT;
    } else if (s->part == EXPONENT && (c == '-' || c == '+')) {
        s->negative = c == '-';
    } else {
        end_number(s);
        s->in_string = c == '"';
    }
    s->column++;
    if (c == '\n') {
        s->line++;
        s->column = 0;
    }
}

static void search_text(text_search *s, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) search_byte(s, text[i]);
}

static lk_status refuse_small(const lk_json *document, const text_search *s, lk_error *error) {
    return lk_fail(
        error, LK_BAD_CONFIG,
        "%s:%ld:%ld: found a number below %de%d, which would be read as 0; wanted 0 or a "
        "larger one",
        document->source, s->at_line + 1, s->at_column + 1, LEAST_DIGIT, LEAST_EXPONENT);
}

bool lk_json_is_deep(const char *text, size_t bytes) {
    text_search search = {.found = false};
    search_text(&search, text, bytes);
    return search.deep;
}

static lk_status refuse_deep(const lk_json *document, lk_error *error) {
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s: its depth is more than %d objects and arrays in one another, which no "
                   "configuration has; correct it",
                   document->source, LK_JSON_DEPTH_MAX);
}

// --- loading -----------------------------------------------------------------------------------

static void start(lk_json *document, const char *source) {
    memset(document, 0, sizeof *document);
    lk_text_escape(document->source, sizeof document->source, source, strlen(source));
}

static lk_status bad_syntax(const lk_json *document, const json_error_t *at, lk_error *error) {
    if (json_error_code(at) == json_error_out_of_memory) {
        return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to read it; free some and start again",
                       document->source);
    }
    // jansson quotes the text near the mistake: control characters and broken UTF-8 go no further.
    char what[JSON_ERROR_TEXT_LENGTH + 1];
    size_t length = 0;
    for (; at->text[length] && length < JSON_ERROR_TEXT_LENGTH; length++) {
        char c = at->text[length];
        what[length] = c < 0x20 || c > 0x7e ? '?' : c;
    }
    what[length] = '\0';
    return lk_fail(error, LK_BAD_CONFIG,
                   "%s:%d:%d (byte %d): %s; wanted strict JSON (UTF-8, no comments, no trailing "
                   "commas, each key once): correct it there",
                   document->source, LK_MAX(at->line, 1), LK_MAX(at->column, 0),
                   LK_MAX(at->position, 0), what);
}

static lk_status is_empty(const lk_json *document, lk_error *error) {
    return lk_fail(error, LK_BAD_CONFIG, "%s: is empty (0 bytes), wanted a JSON document; write "
                   "one", document->source);
}

lk_status lk_json_load_text(lk_json *document, const char *source, const char *text, size_t bytes,
                            lk_error *error) {
    start(document, source);
    if (bytes == 0) return is_empty(document, error);
    json_error_t at;
    text_search search = {.found = false};
    search_text(&search, text, bytes);
    if (search.deep) return refuse_deep(document, error);
    document->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at);
    if (!document->root) return bad_syntax(document, &at, error);
    if (!search.found) return LK_OK;
    lk_json_close(document);
    return refuse_small(document, &search, error);
}

typedef struct file_reader {
    int fd, read_errno;
    size_t bytes;
    text_search search;
} file_reader;

static size_t read_some(void *buffer, size_t bytes, void *context) {
    file_reader *reader = context;
    if (reader->bytes > LK_JSON_FILE_BYTES_MAX || reader->search.deep) return (size_t)-1;
    ssize_t count;
    do count = read(reader->fd, buffer, bytes);
    while (count < 0 && errno == EINTR);
    if (count < 0) reader->read_errno = errno;
    else reader->bytes += (size_t)count;
    if (count > 0) search_text(&reader->search, buffer, (size_t)count);
    return reader->search.deep ? (size_t)-1 : (size_t)count;
}

static lk_status unreadable(const lk_json *document, int number, lk_error *error) {
    return lk_fail(error, LK_NO_INPUT, "%s: cannot be read as a file: %s; %s", document->source,
                   strerror(number), number == ENOENT   ? "check the path"
                                     : number == EISDIR ? "name a file inside it"
                                     : number == EACCES ? "check its permissions"
                                                        : "check the path and the disk");
}

lk_status lk_json_load_file(lk_json *document, const char *path, lk_error *error) {
    start(document, path);
    file_reader reader = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (reader.fd < 0) return unreadable(document, errno, error);
    json_error_t at;
    json_t *root = json_load_callback(read_some, &reader, JSON_REJECT_DUPLICATES, &at);
    close(reader.fd);
    lk_status status = LK_OK;
    if (reader.read_errno) {
        status = unreadable(document, reader.read_errno, error);
    } else if (reader.bytes > LK_JSON_FILE_BYTES_MAX) {
        status = lk_fail(error, LK_BAD_CONFIG,
                         "%s: has more than %d bytes, too many for a configuration; check the path",
                         document->source, LK_JSON_FILE_BYTES_MAX);
    } else if (reader.search.deep) {
        status = refuse_deep(document, error);
    } else if (reader.bytes == 0) {
        status = is_empty(document, error);
    } else if (!root) {
        status = bad_syntax(document, &at, error);
    } else if (reader.search.found) {
        status = refuse_small(document, &reader.search, error);
    }
    if (status == LK_OK) document->root = root;
    else json_decref(root);
    return status;
}

void lk_json_close(lk_json *document) {
    json_decref(document->root);
    document->root = NULL;
}

// --- offsets -----------------------------------------------------------------------------------

static size_t skip_space(const char *text, size_t bytes, size_t at) {
    while (at < bytes && strchr(" \t\r\n", text[at]) && text[at]) at++;
    return at;
}

// Behind the value that begins at `at`, or `bytes` where there is none. With `key`, *same says
// whether the value is that string.
static size_t skip_value(const char *text, size_t bytes, size_t at, const char *key, bool *same) {
    json_error_t end;
    if (at >= bytes) return bytes;
    json_t *value = json_loadb(text + at, bytes - at,
                               JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &end);
    if (!value) return bytes;
    if (key) *same = json_is_string(value) && strcmp(json_string_value(value), key) == 0;
    json_decref(value);
    return at + (size_t)end.position;
}

// Takes one step from the object or array at *at; *key_at is where its key stands.
static bool find_step(const char *text, size_t bytes, const lk_json_step *step, size_t *key_at,
                      size_t *at) {
    bool in_object = step->key != NULL;
    if (*at >= bytes || text[*at] != (in_object ? '{' : '[')) return false;
    for (size_t n = 0, p = skip_space(text, bytes, *at + 1); p < bytes; n++) {
        bool found = n == step->index;
        *key_at = p;
        if (in_object) {
            p = skip_space(text, bytes, skip_value(text, bytes, p, step->key, &found));
            p = skip_space(text, bytes, p + 1);  // the colon
        }
        *at = p;
        if (found) return p < bytes;
        p = skip_space(text, bytes, skip_value(text, bytes, p, NULL, NULL));
        if (p >= bytes || text[p] != ',') return false;
        p = skip_space(text, bytes, p + 1);
    }
    return false;
}

size_t lk_json_offset(const char *text, size_t bytes, const lk_json_step *steps, uint32_t count,
                      bool at_key) {
    size_t at = skip_space(text, bytes, 0), key_at = at;
    for (uint32_t i = 0; i < count; i++) {
        if (!find_step(text, bytes, &steps[i], &key_at, &at)) return SIZE_MAX;
    }
    return at_key ? key_at : at;
}

// --- dumping -----------------------------------------------------------------------------------

// The digits that the most demanding real of the value needs.
static int digits_needed(const json_t *value) {
    int digits = 1;
    if (json_is_real(value)) digits = real_digits(json_real_value(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        int own = digits_needed(json_array_get(value, i));
        digits = LK_MAX(digits, own);
    }
    json_t *object = (json_t *)value;  // jansson's iterators take no const
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        int own = digits_needed(json_object_iter_value(i));
        digits = LK_MAX(digits, own);
    }
    return digits;
}

lk_status lk_json_dump(const lk_json *document, char *out, size_t bytes, size_t *length,
                       lk_error *error) {
    lk_assert(document->root);
    size_t flags = JSON_SORT_KEYS | JSON_INDENT(2)
                 | JSON_REAL_PRECISION((size_t)digits_needed(document->root));
    size_t count = json_dumpb(document->root, out, bytes, flags);
    if (count == 0) {
        return lk_fail(error, LK_UNAVAILABLE, "%s: no memory to write it; free some and start "
                       "again", document->source);
    }
    if (count + 2 > bytes) {
        return lk_fail(error, LK_INTERNAL, "%s: needs %zu bytes as text, found room for %zu",
                       document->source, count + 2, bytes);
    }
    out[count] = '\n';
    out[count + 1] = '\0';
    if (length) *length = count + 1;
    return LK_OK;
}

// --- moving about ------------------------------------------------------------------------------

lk_json_cursor lk_json_root(const lk_json *document) {
    lk_assert(document->root);
    return (lk_json_cursor){.document = document, .value = document->root};
}

lk_json_type lk_json_type_of(const lk_json_cursor *at) {
    switch (json_typeof(at->value)) {
    case JSON_OBJECT: return LK_JSON_OBJECT;
    case JSON_ARRAY: return LK_JSON_ARRAY;
    case JSON_STRING: return LK_JSON_STRING;
    case JSON_INTEGER: return LK_JSON_INTEGER;
    case JSON_REAL: return LK_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE: return LK_JSON_BOOL;
    case JSON_NULL: break;
    }
    return LK_JSON_NULL;
}

size_t lk_json_length(const lk_json_cursor *at) {
    return json_is_array(at->value) ? json_array_size(at->value) : json_object_size(at->value);
}

// The parent's path and `step` behind it; where both are too long, the end is kept.
static lk_json_cursor child(const lk_json_cursor *parent, json_t *value, const char *step) {
    lk_json_cursor at = {.document = parent->document, .value = value};
    char path[LK_JSON_PATH_BYTES + SHOWN_BYTES + 8];
    const char *dot = parent->path[0] && step[0] != '[' ? "." : "";
    size_t length = lk_format(path, sizeof path, "%s%s%s", parent->path, dot, step);
    if (length < sizeof at.path) {
        memcpy(at.path, path, length + 1);
        return at;
    }
    const char *tail = path + length + 1 - (sizeof at.path - 3);
    while (((unsigned char)*tail & 0xc0) == 0x80) tail++;
    lk_format(at.path, sizeof at.path, "...%s", tail);
    return at;
}

// Plain names stand as they are; others, which --set cannot say, as ["a.b"].
static lk_json_cursor child_key(const lk_json_cursor *parent, json_t *value, const char *key) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    char shown[SHOWN_BYTES], step[SHOWN_BYTES + 8];
    size_t length = strlen(key);
    show(shown, key, length);
    bool is_plain = length > 0 && length < SHOWN_BYTES - 3 && strspn(key, plain) == length;
    lk_format(step, sizeof step, is_plain ? "%s" : "[\"%s\"]", shown);
    return child(parent, value, step);
}

bool lk_json_find(const lk_json_cursor *object, const char *key, lk_json_cursor *out) {
    json_t *value = json_object_get(object->value, key);
    if (!value) return false;
    *out = child_key(object, value, key);
    return true;
}

lk_status lk_json_element(const lk_json_cursor *array, size_t index, lk_json_cursor *out,
                          lk_error *error) {
    json_t *value = json_array_get(array->value, index);
    if (!value) {
        want wanted = {.kind = WANT_ARRAY, .min = (uint64_t)index + 1, .max = UINT64_MAX};
        return check(array, &wanted, error);
    }
    char step[REAL_BYTES];
    lk_format(step, sizeof step, "[%zu]", index);
    *out = child(array, value, step);
    return LK_OK;
}

bool lk_json_next(const lk_json_cursor *object, const char **key, lk_json_cursor *out) {
    void *at = *key ? json_object_iter_next(object->value, json_object_key_to_iter(*key))
                    : json_object_iter(object->value);
    if (!at) return false;
    *key = json_object_iter_key(at);
    *out = child_key(object, json_object_iter_value(at), *key);
    return true;
}

// --- reading -----------------------------------------------------------------------------------

lk_status lk_json_keys_only(const lk_json_cursor *object, const char *const *keys, size_t count,
                            lk_error *error) {
    LK_CHECK(lk_json_as_object(object, error));
    const char *key;
    json_t *value;
    json_object_foreach(object->value, key, value) {
        bool known = false;
        for (size_t i = 0; i < count && !known; i++) known = strcmp(key, keys[i]) == 0;
        if (known) continue;
        char shown[SHOWN_BYTES], words[WANTED_BYTES], path[LK_JSON_PATH_BYTES];
        const char *near = lk_text_nearest(key, keys, count);
        want wanted = {.kind = WANT_CHOICE, .names = keys, .count = (uint32_t)count};
        if (near) lk_format(words, sizeof words, "did you mean \"%s\"?", near);
        else if (count == 0) lk_format(words, sizeof words, "no key is allowed here; remove it");
        else say(words, &wanted);
        return lk_fail(error, LK_BAD_CONFIG, "%s%s: unknown key \"%s\" at %s; %s%s",
                       object->document->source, with_set(object->document),
                       show(shown, key, strlen(key)), place(path, object),
                       near || count == 0 ? "" : "remove it, or use ", words);
    }
    return LK_OK;
}

lk_status lk_json_as_u64(const lk_json_cursor *at, uint64_t min, uint64_t max, uint64_t *out,
                         lk_error *error) {
    want wanted = {.kind = WANT_INTEGER, .min = min, .max = max};
    LK_CHECK(check(at, &wanted, error));
    *out = (uint64_t)json_integer_value(at->value);
    return LK_OK;
}

lk_status lk_json_as_u32(const lk_json_cursor *at, uint32_t min, uint32_t max, uint32_t *out,
                         lk_error *error) {
    uint64_t wide;
    LK_CHECK(lk_json_as_u64(at, min, max, &wide, error));
    *out = (uint32_t)wide;
    return LK_OK;
}

lk_status lk_json_as_bool(const lk_json_cursor *at, bool *out, lk_error *error) {
    want wanted = {.kind = WANT_BOOL};
    LK_CHECK(check(at, &wanted, error));
    *out = json_is_true(at->value);
    return LK_OK;
}

lk_status lk_json_as_float(const lk_json_cursor *at, double min, double max, double *value,
                           float *rounded, lk_error *error) {
    want wanted = {.kind = WANT_NUMBER, .low = min, .high = max};
    LK_CHECK(check(at, &wanted, error));
    double number = json_number_value(at->value);
    if (value) *value = number;
    if (rounded) *rounded = (float)number;
    return LK_OK;
}

lk_status lk_json_as_string(const lk_json_cursor *at, const char **out, lk_error *error) {
    want wanted = {.kind = WANT_STRING, .max = UINT64_MAX};
    LK_CHECK(check(at, &wanted, error));
    *out = json_string_value(at->value);
    return LK_OK;
}

lk_status lk_json_as_choice(const lk_json_cursor *at, const char *const *names, uint32_t count,
                            uint32_t *out, lk_error *error) {
    want wanted = {.kind = WANT_CHOICE, .names = names, .count = count};
    LK_CHECK(check(at, &wanted, error));
    uint32_t i = 0;
    while (strcmp(json_string_value(at->value), names[i]) != 0) i++;
    *out = i;
    return LK_OK;
}

lk_status lk_json_as_object(const lk_json_cursor *at, lk_error *error) {
    want wanted = {.kind = WANT_OBJECT};
    return check(at, &wanted, error);
}

lk_status lk_json_as_array(const lk_json_cursor *at, size_t min, size_t max, lk_error *error) {
    want wanted = {.kind = WANT_ARRAY, .min = min, .max = max};
    return check(at, &wanted, error);
}

// The value of a key, checked against `wanted`; NULL where an optional one is missing.
static lk_status fetch(const lk_json_cursor *object, const char *key, lk_json_presence presence,
                       const want *wanted, lk_json_cursor *out, lk_error *error) {
    LK_CHECK(lk_json_as_object(object, error));
    if (lk_json_find(object, key, out)) return check(out, wanted, error);
    out->document = object->document;
    out->value = NULL;
    if (presence == LK_JSON_OPTIONAL) return LK_OK;
    char words[WANTED_BYTES], path[LK_JSON_PATH_BYTES];
    return lk_fail(error, LK_BAD_CONFIG, "%s%s: %s: the required key \"%s\" is missing; add it: %s",
                   object->document->source, with_set(object->document), place(path, object), key,
                   say(words, wanted));
}

lk_status lk_json_get_u64(const lk_json_cursor *object, const char *key, lk_json_presence presence,
                          uint64_t min, uint64_t max, uint64_t *out, lk_error *error) {
    want wanted = {.kind = WANT_INTEGER, .min = min, .max = max};
    lk_json_cursor at;
    LK_CHECK(fetch(object, key, presence, &wanted, &at, error));
    return at.value ? lk_json_as_u64(&at, min, max, out, error) : LK_OK;
}

lk_status lk_json_get_u32(const lk_json_cursor *object, const char *key, lk_json_presence presence,
                          uint32_t min, uint32_t max, uint32_t *out, lk_error *error) {
    want wanted = {.kind = WANT_INTEGER, .min = min, .max = max};
    lk_json_cursor at;
    LK_CHECK(fetch(object, key, presence, &wanted, &at, error));
    return at.value ? lk_json_as_u32(&at, min, max, out, error) : LK_OK;
}

lk_status lk_json_get_bool(const lk_json_cursor *object, const char *key, lk_json_presence presence,
                           bool *out, lk_error *error) {
    want wanted = {.kind = WANT_BOOL};
    lk_json_cursor at;
    LK_CHECK(fetch(object, key, presence, &wanted, &at, error));
    return at.value ? lk_json_as_bool(&at, out, error) : LK_OK;
}

lk_status lk_json_get_float(const lk_json_cursor *object, const char *key,
                            lk_json_presence presence, double min, double max, double *value,
                            float *rounded, lk_error *error) {
    want wanted = {.kind = WANT_NUMBER, .low = min, .high = max};
    lk_json_cursor at;
    LK_CHECK(fetch(object, key, presence, &wanted, &at, error));
    return at.value ? lk_json_as_float(&at, min, max, value, rounded, error) : LK_OK;
}

lk_status lk_json_get_string(const lk_json_cursor *object, const char *key,
                             lk_json_presence presence, char *out, size_t bytes, lk_error *error) {
    lk_assert(bytes > 0);
    want wanted = {.kind = WANT_STRING, .max = bytes - 1};
    lk_json_cursor at;
    LK_CHECK(fetch(object, key, presence, &wanted, &at, error));
    if (at.value) memcpy(out, json_string_value(at.value), json_string_length(at.value) + 1);
    return LK_OK;
}

lk_status lk_json_get_choice(const lk_json_cursor *object, const char *key,
                             lk_json_presence presence, const char *const *names, uint32_t count,
                             uint32_t *out, lk_error *error) {
    want wanted = {.kind = WANT_CHOICE, .names = names, .count = count};
    lk_json_cursor at;
    LK_CHECK(fetch(object, key, presence, &wanted, &at, error));
    return at.value ? lk_json_as_choice(&at, names, count, out, error) : LK_OK;
}

lk_status lk_json_get_object(const lk_json_cursor *object, const char *key,
                             lk_json_presence presence, lk_json_cursor *out, lk_error *error) {
    want wanted = {.kind = WANT_OBJECT};
    return fetch(object, key, presence, &wanted, out, error);
}

lk_status lk_json_get_array(const lk_json_cursor *object, const char *key,
                            lk_json_presence presence, size_t min, size_t max, lk_json_cursor *out,
                            lk_error *error) {
    want wanted = {.kind = WANT_ARRAY, .min = min, .max = max};
    return fetch(object, key, presence, &wanted, out, error);
}

// --- --set -------------------------------------------------------------------------------------

// One step of a path: a key, or an index of an array.
typedef struct step {
    bool is_index;
    size_t index;
    char key[64];
} step;

static lk_status bad_set(const char *assignment, const char *what, lk_error *error) {
    char shown[SHOWN_BYTES];
    return lk_fail(error, LK_BAD_USAGE, "--set \"%s\": %s; write --set key.path=value, for example "
                   "--set model.layers[0].filters=16",
                   show(shown, assignment, strlen(assignment)), what);
}

// Takes the next step of the path that ends at `end`; *at moves behind it and the dot.
// Returns NULL, or what is wrong.
static const char *take_step(const char **at, const char *end, bool first, step *out) {
    const char *p = *at;
    *out = (step){.is_index = *p == '[' && !first};
    if (out->is_index) {
        size_t digits = strspn(p + 1, "0123456789");
        if (digits == 0 || digits > 9 || p[1 + digits] != ']') return "an index is [0], [1], ...";
        out->index = strtoul(p + 1, NULL, 10);
        p += digits + 2;
    } else {
        size_t length = strcspn(p, ".[]=");
        if (length == 0) return "a key of the path is empty";
        if (length >= sizeof out->key) return "a key of the path is too long";
        memcpy(out->key, p, length);
        p += length;
    }
    if (p < end && *p == '.') {
        p++;
        if (p == end || *p == '[') return "a key of the path is empty";
    } else if (p < end && *p != '[') {
        return "found a stray ] or letters behind an index";
    }
    *at = p;
    return NULL;
}

// The value as JSON, or as the string it is; NULL where it means to be JSON and is not.
static json_t *parse_value(const char *text) {
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    text_search search = {.found = false};
    search_text(&search, text, strlen(text));
    end_number(&search);
    if (value && search.found) {
        json_decref(value);
        return NULL;
    }
    if (value) return value;
    char *end;
    strtod(text, &end);
    bool number = end != text && *end == '\0' && strchr("+-.0123456789", *text);
    if (number || (*text && strchr("\"{[", *text))) return NULL;
    return json_string(text);
}

// Of digits alone, so an integer: where JSON takes it for none, it is one of too many.
static bool is_whole(const char *text) {
    const char *digits = text + (*text == '-');
    return *digits && digits[strspn(digits, "0123456789")] == '\0' &&
           (*digits != '0' || !digits[1]);
}

static const char *nearest_key(json_t *object, const char *key) {
    const char *near = NULL, *other;
    json_t *value;
    json_object_foreach(object, other, value) {
        const char *pair[2] = {other, near};
        const char *better = lk_text_nearest(key, pair, near ? 2 : 1);
        if (better) near = better;
    }
    return near;
}

// No such step below `at`.
static lk_status no_step(const char *assignment, const lk_json_cursor *at, const step *next,
                         lk_error *error) {
    char shown[SHOWN_BYTES], found[FOUND_BYTES], key[SHOWN_BYTES], path[LK_JSON_PATH_BYTES];
    show(shown, assignment, strcspn(assignment, "="));
    describe(found, at->value);
    if (next->is_index) {
        return lk_fail(error, LK_BAD_CONFIG, "--set %s: %s of %s is %s, wanted one with element "
                       "[%zu]; --set adds no elements",
                       shown, place(path, at), at->document->source, found, next->index);
    }
    show(key, next->key, strlen(next->key));
    const char *near = nearest_key(at->value, next->key);
    if (near) {
        char meant[SHOWN_BYTES];
        return lk_fail(error, LK_BAD_CONFIG, "--set %s: %s of %s has no key \"%s\"; did you mean "
                       "\"%s\"?",
                       shown, place(path, at), at->document->source, key,
                       show(meant, near, strlen(near)));
    }
    return lk_fail(error, LK_BAD_CONFIG, "--set %s: %s of %s is %s, wanted an object, for the key "
                   "\"%s\"",
                   shown, place(path, at), at->document->source, found, key);
}

// Walks to the last step and stores `value` there (its reference is taken only on success).
static lk_status set_value(lk_json *document, const char *assignment, const char *equals,
                           json_t *value, lk_error *error) {
    lk_json_cursor at = lk_json_root(document);
    const char *p = assignment;
    for (;;) {
        step next;
        const char *wrong = take_step(&p, equals, p == assignment, &next);
        if (wrong) return bad_set(assignment, wrong, error);
        bool last = p == equals, found;
        lk_json_cursor below;
        if (next.is_index) {
            lk_error ignored = {0};
            found = lk_json_element(&at, next.index, &below, &ignored) == LK_OK;
        } else {
            found = lk_json_find(&at, next.key, &below);
        }
        // An object that the file leaves out is made, unless it looks like one misspelt.
        bool may_make = !next.is_index && json_is_object(at.value);
        if (!found && !last && may_make && !nearest_key(at.value, next.key)) {
            bool made = json_object_set_new(at.value, next.key, json_object()) == 0;
            found = made && lk_json_find(&at, next.key, &below);
        }
        if (!found && !(last && may_make)) return no_step(assignment, &at, &next, error);
        if (last) {
            int failed = next.is_index ? json_array_set(at.value, next.index, value)
                                       : json_object_set(at.value, next.key, value);
            return failed ? bad_set(assignment, "the key is not UTF-8", error) : LK_OK;
        }
        at = below;
    }
}

lk_status lk_json_set(lk_json *document, const char *assignment, lk_error *error) {
    lk_assert(document->root);
    const char *equals = strchr(assignment, '=');
    if (!equals) return bad_set(assignment, "there is no \"=\"", error);
    json_t *value = parse_value(equals + 1);
    if (!value) {
        json_t *text = json_string(equals + 1);
        const bool utf8 = text != NULL, whole = is_whole(equals + 1);
        json_decref(text);
        return bad_set(assignment,
                       !utf8   ? "the value is not UTF-8"
                       : whole ? "the integer is beyond 9223372036854775807, the largest"
                               : "the value begins like JSON and is none, or would be read as 0",
                       error);
    }
    lk_status status = set_value(document, assignment, equals, value, error);
    json_decref(value);
    if (status == LK_OK) document->changed = true;
    return status;
}
