// json_fuzz.c - any bytes as a configuration, and any text as a --set: never a crash, a leak, a
// message of two lines, or a success without a document; what was read is written and read again
// to the same bytes.
//
// Input: the document, then optionally a newline, "--set ", and one assignment.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char first[1 << 20], second[1 << 20];

static void require(int truth) {
    if (!truth) abort();
}

static lk_status check_error(lk_status status, lk_error *error) {
    require((status == LK_OK) == (error->status == LK_OK));
    for (const char *c = error->text; *c; c++) require((unsigned char)*c >= 0x20);
    *error = (lk_error){0};
    return status;
}

// Every way to read a value, whatever its type; containers are walked to a depth.
static void read_everything(const lk_json_cursor *at, int depth) {
    static const char *const names[] = {"kind", "dense", "conv2d", "units"};
    lk_error error = {0};
    uint64_t wide;
    uint32_t narrow;
    bool flag;
    float rounded;
    char text[16];
    const char *borrowed, *key = NULL;
    lk_json_cursor below;
    require(strlen(at->path) < LK_JSON_PATH_BYTES);
    if (check_error(lk_json_as_u64(at, 1, 100, &wide, &error), &error) == LK_OK)
        require(wide >= 1 && wide <= 100);
    check_error(lk_json_as_u32(at, 0, UINT32_MAX, &narrow, &error), &error);
    check_error(lk_json_as_bool(at, &flag, &error), &error);
    check_error(lk_json_as_float(at, -1e30, 1e300, NULL, &rounded, &error), &error);
    check_error(lk_json_as_string(at, &borrowed, &error), &error);
    if (check_error(lk_json_as_choice(at, names, 4, &narrow, &error), &error) == LK_OK)
        require(narrow < 4);
    check_error(lk_json_as_array(at, 1, 3, &error), &error);
    check_error(lk_json_keys_only(at, names, 4, &error), &error);
    check_error(lk_json_get_string(at, "kind", LK_JSON_REQUIRED, text, sizeof text, &error),
                &error);
    check_error(lk_json_get_u32(at, "units", LK_JSON_OPTIONAL, 1, 9, &narrow, &error), &error);
    if (depth == 0) return;
    for (size_t i = 0; i < lk_json_length(at) && lk_json_type_of(at) == LK_JSON_ARRAY; i++) {
        require(check_error(lk_json_element(at, i, &below, &error), &error) == LK_OK);
        read_everything(&below, depth - 1);
    }
    while (lk_json_next(at, &key, &below)) read_everything(&below, depth - 1);
}

static void write_and_read_again(const lk_json *document) {
    lk_error error = {0};
    lk_json again;
    size_t length;
    if (check_error(lk_json_dump(document, first, sizeof first, &length, &error), &error) != LK_OK)
        return;
    require(lk_json_load_text(&again, "again", first, length, &error) == LK_OK);
    require(lk_json_dump(&again, second, sizeof second, NULL, &error) == LK_OK);
    require(strcmp(first, second) == 0);
    lk_json_close(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char marker[] = "\n--set ";
    const char *text = (const char *)data, *set = NULL;
    lk_error error = {0};
    lk_json document;
    char assignment[256] = "";
    if (bytes) set = memmem(text, bytes, marker, sizeof marker - 1);
    size_t document_bytes = set ? (size_t)(set - text) : bytes;
    if (set) {
        size_t left = bytes - document_bytes - (sizeof marker - 1);
        memcpy(assignment, set + sizeof marker - 1, LK_MIN(left, sizeof assignment - 1));
    }
    lk_status status = lk_json_load_text(&document, "fuzz", text, document_bytes, &error);
    require((status == LK_OK) == (document.root != NULL));
    if (check_error(status, &error) == LK_OK) {
        write_and_read_again(&document);
        if (set) check_error(lk_json_set(&document, assignment, &error), &error);
        lk_json_cursor root = lk_json_root(&document);
        read_everything(&root, 6);
    }
    lk_json_close(&document);
    return 0;
}
