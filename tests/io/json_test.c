// Tests of io/json.h: every sort of bad document, every checked read, --set, the dump.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/json.h"

static lk_error error;

// The document of most tests; closed and loaded anew by each.
static const char sample[] =
    "{\"steps\": 100, \"seed\": 7, \"rate\": 0.1, \"shuffle\": true, \"name\": \"first\",\n"
    " \"model\": {\"layers\": [{\"kind\": \"dense\", \"units\": 10},\n"
    "                       {\"kind\": \"relu\"},\n"
    "                       {\"kind\": \"conv2d\", \"filters\": 32, \"kernel\": [3, 3]}]},\n"
    " \"nothing\": null, \"a.b\": {\"x\": 1}, \"big\": 9223372036854775807}";

static void assert_has(const char *what) {
    if (strstr(error.text, what)) return;
    fail_msg("\"%s\" is not in: %s", what, error.text);
}

static void assert_one_line(void) {
    for (const char *c = error.text; *c; c++) {
        if ((unsigned char)*c < 0x20) fail_msg("control character in: %s", error.text);
    }
}

static lk_json load(const char *text) {
    lk_json document;
    error = (lk_error){0};
    lk_status status = lk_json_load_text(&document, "test.json", text, strlen(text), &error);
    if (status != LK_OK) fail_msg("%s", error.text);
    return document;
}

static void refuse_bytes(const char *text, size_t bytes, const char *what) {
    lk_json document;
    error = (lk_error){0};
    assert_int_equal(lk_json_load_text(&document, "test.json", text, bytes, &error), LK_BAD_CONFIG);
    assert_null(document.root);
    assert_has("test.json");
    assert_has(what);
    assert_one_line();
    lk_json_close(&document);
}

static void refuse(const char *text, const char *what) { refuse_bytes(text, strlen(text), what); }

static void test_syntax(void **state) {
    (void)state;
    static const char *const wrong[] = {
        " ", "1", "\"x\"", "true", "[1 2]", "[1,,2]", "{\"a\":1,}", "{\"a\"}", "[nul]", "[1.e]",
        "[01]", "[+1]", "[.5]", "[0x10]", "[NaN]", "[Infinity]", "[-]", "{\"a\":1} x", "{} {}",
        "{", "[", "[\"", "// c\n{}", "{'a':1}", "{a:1}", "[\"\\u0000\"]", "[\"\n\"]", "[\"\\x\"]",
        "[1e400]",
        "[9223372036854775808]", "[-9223372036854775809]", "[18446744073709551616]",
        "[\"\xff\"]", "[\"\xc0\xaf\"]", "[\"\xed\xa0\x80\"]", "\xef\xbb\xbf{}",
        "{\"a\":1,\"a\":2}", "{\"m\":{\"a\":1,\"\\u0061\":2}}",
    };
    for (size_t i = 0; i < LK_COUNT(wrong); i++) refuse(wrong[i], "strict JSON");
    refuse_bytes("[1]\0", 4, "strict JSON");
    refuse_bytes("", 0, "empty");
    refuse_bytes(NULL, 0, "empty");
    refuse("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}", "test.json:3:4 (byte 22): duplicate object key");
    refuse("{\n  \"a\": tru\n}", "test.json:2:");
    refuse("[9223372036854775808]", "too big integer");
    refuse("[1e400]", "overflow");
}

static void test_deep_nesting(void **state) {
    (void)state;
    static char deep[200001];
    memset(deep, '[', 100000);
    memset(deep + 100000, ']', 100000);
    refuse(deep, "depth");
    deep[100] = '0';
    memset(deep + 101, ']', 100);
    deep[201] = '\0';
    lk_json document = load(deep);
    lk_json_cursor at = lk_json_root(&document);
    while (lk_json_type_of(&at) == LK_JSON_ARRAY) {
        lk_json_cursor below;
        assert_int_equal(lk_json_element(&at, 0, &below, &error), LK_OK);
        at = below;
    }
    // The path lost its beginning, not its end, and fits.
    assert_memory_equal(at.path, "...[0]", 6);
    assert_int_equal(strlen(at.path), LK_JSON_PATH_BYTES - 1);
    lk_json_close(&document);
}

static void test_files(void **state) {
    (void)state;
    char path[] = "/tmp/lockstep_json_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    lk_json document;
    error = (lk_error){0};
    assert_int_equal(lk_json_load_file(&document, path, &error), LK_BAD_CONFIG);
    assert_has("empty");
    assert_has(path);
    error = (lk_error){0};
    assert_int_equal(write(fd, sample, sizeof sample - 1), (int)sizeof sample - 1);
    assert_int_equal(lk_json_load_file(&document, path, &error), LK_OK);
    lk_json_close(&document);
    lk_json_close(&document);
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(lk_json_load_file(&document, path, &error), LK_BAD_CONFIG);
    assert_has("end of file expected");
    lk_json_close(&document);
    static const char twice[] = "{\"a\": 1, \"a\": 2}";  // jansson would take the last of them
    error = (lk_error){0};
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, twice, sizeof twice - 1, 0), (int)sizeof twice - 1);
    assert_int_equal(lk_json_load_file(&document, path, &error), LK_BAD_CONFIG);
    assert_has("duplicate object key");
    lk_json_close(&document);
    close(fd);
    unlink(path);
    error = (lk_error){0};
    assert_int_equal(lk_json_load_file(&document, path, &error), LK_NO_INPUT);
    assert_has("No such file");
    lk_json_close(&document);
    error = (lk_error){0};
    assert_int_equal(lk_json_load_file(&document, "/tmp", &error), LK_NO_INPUT);
    assert_has("directory");
    lk_json_close(&document);
}

static void test_too_large_file(void **state) {
    (void)state;
    char path[] = "/tmp/lockstep_json_XXXXXX", spaces[4096];
    int fd = mkstemp(path);
    memset(spaces, ' ', sizeof spaces);
    for (size_t n = 0; n <= LK_JSON_FILE_BYTES_MAX; n += sizeof spaces) {
        assert_int_equal(write(fd, spaces, sizeof spaces), (int)sizeof spaces);
    }
    close(fd);
    lk_json document;
    error = (lk_error){0};
    assert_int_equal(lk_json_load_file(&document, path, &error), LK_BAD_CONFIG);
    assert_has("more than 16777216 bytes");
    unlink(path);
}

static void test_keys_only(void **state) {
    (void)state;
    static const char *const keys[] = {"kind", "units", "filters", "kernel"};
    static const char *const other[] = {"alpha", "omega"};
    lk_json document = load("{\"model\": {\"layers\": [{}, {\"kind\": \"x\", \"units\": 3},"
                            "{\"kind\": \"conv2d\", \"fitlers\": 3}]}, \"b\\nad\": 1}");
    lk_json_cursor root = lk_json_root(&document), model, layers, layer, at;
    assert_int_equal(lk_json_get_object(&root, "model", LK_JSON_REQUIRED, &model, &error), LK_OK);
    assert_int_equal(
        lk_json_get_array(&model, "layers", LK_JSON_REQUIRED, 1, 99, &layers, &error), LK_OK);
    assert_int_equal(lk_json_length(&layers), 3);
    assert_int_equal(lk_json_element(&layers, 1, &layer, &error), LK_OK);
    assert_int_equal(lk_json_keys_only(&layer, keys, LK_COUNT(keys), &error), LK_OK);
    assert_int_equal(lk_json_keys_only(&layer, NULL, 0, &error), LK_BAD_CONFIG);
    assert_has("no key is allowed");
    error = (lk_error){0};
    assert_int_equal(lk_json_element(&layers, 2, &layer, &error), LK_OK);
    assert_int_equal(lk_json_keys_only(&layer, keys, LK_COUNT(keys), &error), LK_BAD_CONFIG);
    assert_string_equal(error.text, "test.json: unknown key \"fitlers\" at model.layers[2]; did "
                                    "you mean \"filters\"?");
    error = (lk_error){0};
    assert_int_equal(lk_json_keys_only(&layer, other, LK_COUNT(other), &error), LK_BAD_CONFIG);
    assert_has("use one of \"alpha\", \"omega\"");
    error = (lk_error){0};
    assert_int_equal(lk_json_keys_only(&root, (const char *const[]){"model"}, 1, &error),
                     LK_BAD_CONFIG);
    assert_has("unknown key \"b\\nad\" at top level");
    assert_one_line();
    error = (lk_error){0};
    assert_int_equal(lk_json_keys_only(&layers, keys, 4, &error), LK_BAD_CONFIG);
    assert_has("model.layers: found an array of 3 elements, wanted an object");
    error = (lk_error){0};
    assert_int_equal(lk_json_element(&layers, 3, &layer, &error), LK_BAD_CONFIG);
    assert_has("wanted an array of at least 4 elements");
    error = (lk_error){0};
    assert_int_equal(lk_json_get_array(&model, "layers", LK_JSON_REQUIRED, 1, 2, &at, &error),
                     LK_BAD_CONFIG);
    assert_has("found an array of 3 elements, wanted an array of 1 to 2 elements; give as many");
    error = (lk_error){0};
    assert_int_equal(lk_json_get_array(&model, "layers", LK_JSON_REQUIRED, 4, 4, &at, &error),
                     LK_BAD_CONFIG);
    assert_has("wanted an array of exactly 4 elements");
    lk_json_close(&document);
}

static void refuse_u64(const char *value, uint64_t min, uint64_t max, const char *what) {
    char text[128];
    snprintf(text, sizeof text, "{\"t\": {\"n\": %s}}", value);
    lk_json document = load(text);
    lk_json_cursor root = lk_json_root(&document), at;
    assert_true(lk_json_find(&root, "t", &at));
    uint64_t out = 1234;
    assert_int_equal(lk_json_get_u64(&at, "n", LK_JSON_OPTIONAL, min, max, &out, &error),
                     LK_BAD_CONFIG);
    assert_int_equal(out, 1234);
    assert_has("test.json: t.n: found ");
    assert_has(what);
    assert_one_line();
    lk_json_close(&document);
}

static void test_integers(void **state) {
    (void)state;
    refuse_u64("-1", 0, UINT64_MAX, "integer -1, wanted an integer from 0 to 9223372036854775807");
    refuse_u64("-9223372036854775808", 0, 10, "integer -9223372036854775808");
    refuse_u64("0", 1, 10, "found integer 0, wanted an integer from 1 to 10; choose one in that");
    refuse_u64("11", 1, 10, "found integer 11");
    refuse_u64("3.0", 1, 10, "real 3.0, wanted an integer from 1 to 10; write it without point");
    refuse_u64("1e1", 1, 10, "without point and exponent");
    refuse_u64("\"3\"", 1, 10, "found string \"3\", wanted an integer from 1 to 10; write it "
                               "without quotes");
    refuse_u64("\"5x\"", 1, 10,
               "found string \"5x\", wanted an integer from 1 to 10; write a number");
    refuse_u64("\"nan\"", 1, 10, "wanted an integer from 1 to 10; write a number");
    refuse_u64("null", 1, 10, "found null");
    refuse_u64("true", 1, 10, "found true");
    refuse_u64("[1]", 1, 10, "found an array of 1 element,");
    refuse_u64("{}", 1, 10, "found an object of 0 keys");
    lk_json document = load(sample);
    lk_json_cursor root = lk_json_root(&document);
    uint64_t wide = 5;
    uint32_t narrow = 5;
    assert_int_equal(lk_json_get_u64(&root, "steps", LK_JSON_REQUIRED, 100, 100, &wide, &error), 0);
    assert_int_equal(wide, 100);
    assert_int_equal(lk_json_get_u64(&root, "big", LK_JSON_REQUIRED, 0, UINT64_MAX, &wide, &error),
                     LK_OK);
    assert_true(wide == INT64_MAX);
    assert_int_equal(lk_json_get_u32(&root, "absent", LK_JSON_OPTIONAL, 1, 9, &narrow, &error), 0);
    assert_int_equal(narrow, 5);
    assert_int_equal(
        lk_json_get_u32(&root, "big", LK_JSON_OPTIONAL, 0, UINT32_MAX, &narrow, &error),
        LK_BAD_CONFIG);
    assert_has("wanted an integer from 0 to 4294967295");
    assert_int_equal(narrow, 5);
    error = (lk_error){0};
    assert_int_equal(lk_json_get_u32(&root, "absent", LK_JSON_REQUIRED, 1, 9, &narrow, &error),
                     LK_BAD_CONFIG);
    assert_string_equal(error.text, "test.json: top level: the required key \"absent\" is missing; "
                                    "add it: an integer from 1 to 9");
    lk_json_close(&document);
}

static void refuse_float(const char *value, double min, double max, const char *what) {
    char text[128];
    snprintf(text, sizeof text, "{\"x\": %s}", value);
    lk_json document = load(text);
    lk_json_cursor root = lk_json_root(&document);
    float rounded = 0.5f;
    assert_int_equal(
        lk_json_get_float(&root, "x", LK_JSON_REQUIRED, min, max, NULL, &rounded, &error),
        LK_BAD_CONFIG);
    assert_true(rounded == 0.5f);
    assert_has(what);
    lk_json_close(&document);
}

static void test_floats(void **state) {
    (void)state;
    refuse_float("1e39", 0, DBL_MAX, "real 1e+39, wanted a number of at least 0 that fits fp32");
    refuse_float("-1e39", -DBL_MAX, DBL_MAX, "wanted a number that fits fp32");
    refuse_float("1e-60", 0, 1, "real 1e-60, wanted a number from 0 to 1");
    refuse_float("1.5", 0, 1, "real 1.5, wanted a number from 0 to 1; choose one in that range");
    refuse_float("-0.25", 0, 1, "found real -0.25");
    refuse_float("2", 0, 1, "found integer 2");
    refuse_float("\"nan\"", 0, 1, "found string \"nan\"");
    refuse_float("false", 0, 1, "found false");
    lk_json document = load("{\"a\": 0.1, \"b\": 3, \"c\": -0.0, \"d\": 1e-45, "
                            "\"e\": 3.4028234e38}");
    lk_json_cursor root = lk_json_root(&document);
    double value;
    float rounded;
    assert_int_equal(
        lk_json_get_float(&root, "a", LK_JSON_REQUIRED, 0, 1, &value, &rounded, &error), LK_OK);
    assert_true(value == 0.1 && rounded == 0.1f);
    assert_int_equal(
        lk_json_get_float(&root, "b", LK_JSON_REQUIRED, 0, 3, &value, &rounded, &error), LK_OK);
    assert_true(value == 3.0 && rounded == 3.0f);
    assert_int_equal(
        lk_json_get_float(&root, "c", LK_JSON_REQUIRED, 0, 1, &value, &rounded, &error), LK_OK);
    assert_true(rounded == 0.0f);
    assert_int_equal(
        lk_json_get_float(&root, "d", LK_JSON_REQUIRED, 0, 1, NULL, &rounded, &error), LK_OK);
    assert_true(rounded == 0x1p-149f);
    assert_int_equal(
        lk_json_get_float(&root, "e", LK_JSON_REQUIRED, 0, DBL_MAX, NULL, &rounded, &error), LK_OK);
    assert_true(rounded > 3.4e38f);
    assert_int_equal(
        lk_json_get_float(&root, "zz", LK_JSON_OPTIONAL, 0, 1, NULL, &rounded, &error), LK_OK);
    assert_true(rounded > 3.4e38f);
    lk_json_close(&document);
}

// What would be read as 0, and is none, wherever it stands; and what only looks like it.
static void test_numbers_too_small(void **state) {
    (void)state;
    static const char *const small[] = {"1e-400",
                                        "-1e-400",
                                        "[1, 2.4e-324]",
                                        "0.0001e-321",
                                        "1E-99999999999999999999",
                                        "{\"a\": [\n 7e-325]}"};
    static const char *const good[] = {"0e-400",     "0.000",          "-0.0e-999",   "4.9e-324",
                                       "\"1e-400\"", "\"\\\"1e-400\"", "123000e-327", "1e-45"};
    lk_json document;
    for (size_t i = 0; i < LK_COUNT(small); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"x\": %s}", small[i]);
        error = (lk_error){0};
        assert_int_equal(lk_json_load_text(&document, "test.json", text, strlen(text), &error),
                         LK_BAD_CONFIG);
        assert_has("found a number below 3e-324, which would be read as 0");
    }
    assert_has("test.json:2:2: ");
    for (size_t i = 0; i < LK_COUNT(good); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"x\": %s}", good[i]);
        document = load(text);
        lk_json_close(&document);
    }
}

static void test_strings_bools_choices(void **state) {
    (void)state;
    static const char *const kinds[] = {"sgd", "momentum", "adam"};
    lk_json document = load("{\"s\": \"abcd\", \"b\": false, \"k\": \"Adma\", \"ok\": \"adam\"}");
    lk_json_cursor root = lk_json_root(&document), at;
    char text[5] = "none";
    bool flag = true;
    uint32_t choice = 9;
    assert_int_equal(
        lk_json_get_string(&root, "s", LK_JSON_REQUIRED, text, sizeof text, &error), LK_OK);
    assert_string_equal(text, "abcd");
    assert_int_equal(lk_json_get_bool(&root, "b", LK_JSON_REQUIRED, &flag, &error), LK_OK);
    assert_false(flag);
    assert_int_equal(
        lk_json_get_choice(&root, "ok", LK_JSON_REQUIRED, kinds, 3, &choice, &error), LK_OK);
    assert_int_equal(choice, 2);
    assert_int_equal(lk_json_get_string(&root, "s", LK_JSON_REQUIRED, text, 4, &error),
                     LK_BAD_CONFIG);
    assert_has("found string \"abcd\", wanted a string of at most 3 bytes; shorten it");
    error = (lk_error){0};
    assert_int_equal(lk_json_get_bool(&root, "s", LK_JSON_REQUIRED, &flag, &error), LK_BAD_CONFIG);
    assert_has("wanted true or false");
    error = (lk_error){0};
    assert_int_equal(lk_json_get_choice(&root, "k", LK_JSON_REQUIRED, kinds, 3, &choice, &error),
                     LK_BAD_CONFIG);
    assert_string_equal(error.text, "test.json: k: found string \"Adma\", wanted one of \"sgd\", "
                                    "\"momentum\", \"adam\"; did you mean \"adam\"?");
    assert_int_equal(choice, 2);
    error = (lk_error){0};
    assert_true(lk_json_find(&root, "s", &at));
    assert_int_equal(lk_json_refuse(&at, &error, "which %s; say another", "is taken"),
                     LK_BAD_CONFIG);
    assert_string_equal(error.text, "test.json: s: found string \"abcd\", which is taken; say "
                                    "another");
    lk_json_close(&document);
}

static void test_walk(void **state) {
    (void)state;
    lk_json document = load(sample);
    lk_json_cursor root = lk_json_root(&document), at;
    char names[128] = "";
    const char *key = NULL;
    while (lk_json_next(&root, &key, &at)) {
        size_t used = strlen(names);
        lk_format(names + used, sizeof names - used, "%s ", at.path);
    }
    assert_string_equal(names, "steps seed rate shuffle name model nothing [\"a.b\"] big ");
    assert_true(lk_json_find(&root, "a.b", &at));
    uint64_t out;
    assert_int_equal(lk_json_get_u64(&at, "x", LK_JSON_REQUIRED, 5, 6, &out, &error),
                     LK_BAD_CONFIG);
    assert_has("[\"a.b\"].x: found integer 1");
    error = (lk_error){0};
    assert_int_equal(lk_json_get_object(&root, "absent", LK_JSON_OPTIONAL, &at, &error), LK_OK);
    assert_null(at.value);
    lk_json_close(&document);
}

static void test_aliases(void **state) {
    static const lk_json_alias aliases[] = {{"model.layers[0]", "short.first"},
                                            {"model.layers[1]", "short.second"},
                                            {"model.layer", "no prefix"}};
    (void)state;
    lk_json document = load("{\"model\": {\"layers\": [{\"a\": [1]}, 2]}}");
    document.aliases = aliases;
    document.alias_count = LK_COUNT(aliases);
    lk_json_cursor root = lk_json_root(&document), model, layers, at, element;
    assert_true(lk_json_find(&root, "model", &model));
    assert_true(lk_json_find(&model, "layers", &layers));
    assert_int_equal(lk_json_element(&layers, 0, &at, &error), LK_OK);
    assert_int_equal(lk_json_keys_only(&at, NULL, 0, &error), LK_BAD_CONFIG);
    assert_has("unknown key \"a\" at short.first;");
    error = (lk_error){0};
    assert_true(lk_json_find(&at, "a", &at));
    assert_int_equal(lk_json_element(&at, 0, &element, &error), LK_OK);
    lk_json_refuse(&element, &error, "not this");
    assert_has(": short.first.a[0]: found");
    error = (lk_error){0};
    assert_int_equal(lk_json_element(&layers, 1, &at, &error), LK_OK);
    lk_json_refuse(&at, &error, "not this");
    assert_has(": short.second: found");
    error = (lk_error){0};
    lk_json_refuse(&layers, &error, "not this");
    assert_has(": model.layers: found");
    error = (lk_error){0};
    lk_json_close(&document);
}

static void assert_set(const char *assignment, const char *dumped) {
    lk_json document = load(sample);
    char text[2048];
    assert_int_equal(lk_json_set(&document, assignment, &error), LK_OK);
    assert_int_equal(lk_json_dump(&document, text, sizeof text, NULL, &error), LK_OK);
    if (!strstr(text, dumped)) fail_msg("after %s no %s in %s", assignment, dumped, text);
    lk_json_close(&document);
}

static void refuse_set(const char *assignment, lk_status status, const char *what) {
    lk_json document = load(sample);
    char before[2048], after[2048];
    assert_int_equal(lk_json_dump(&document, before, sizeof before, NULL, &error), LK_OK);
    assert_int_equal(lk_json_set(&document, assignment, &error), status);
    assert_has("--set");
    assert_has(what);
    assert_one_line();
    error = (lk_error){0};
    assert_int_equal(lk_json_dump(&document, after, sizeof after, NULL, &error), LK_OK);
    assert_string_equal(before, after);
    lk_json_close(&document);
}

static void test_set(void **state) {
    (void)state;
    assert_set("steps=5", "\"steps\": 5");
    assert_set("model.layers[2].filters=16", "\"filters\": 16");
    assert_set("model.layers[2].kernel[1]=5", "3,\n          5");
    assert_set("model.layers[1]={\"kind\":\"tanh\"}", "\"kind\": \"tanh\"");
    assert_set("momentum=0.9", "\"momentum\": 0.9");
    assert_set("name=second try", "\"name\": \"second try\"");
    assert_set("name=", "\"name\": \"\"");
    assert_set("name=a=b", "\"name\": \"a=b\"");
    assert_set("name=10.0.0.1:99", "\"name\": \"10.0.0.1:99\"");
    assert_set("name=\"5\"", "\"name\": \"5\"");
    assert_set("shuffle=false", "\"shuffle\": false");
    refuse_set("steps", LK_BAD_USAGE, "there is no \"=\"");
    refuse_set("=5", LK_BAD_USAGE, "is empty");
    refuse_set("model..layers=5", LK_BAD_USAGE, "is empty");
    refuse_set("model.=5", LK_BAD_USAGE, "is empty");
    refuse_set(".model=5", LK_BAD_USAGE, "is empty");
    refuse_set("model.layers[=5", LK_BAD_USAGE, "index");
    refuse_set("model.layers[]=5", LK_BAD_USAGE, "index");
    refuse_set("model.layers[-1]=5", LK_BAD_USAGE, "index");
    refuse_set("model.layers[99999999999999999999]=5", LK_BAD_USAGE, "index");
    refuse_set("model.layers[0]x=5", LK_BAD_USAGE, "stray");
    refuse_set("model.layers]=5", LK_BAD_USAGE, "stray");
    refuse_set("model.layers.[0]=5", LK_BAD_USAGE, "is empty");
    refuse_set("[0]=5", LK_BAD_USAGE, "is empty");
    refuse_set("\xff=5", LK_BAD_USAGE, "UTF-8");
    refuse_set("name=\xff", LK_BAD_USAGE, "the value is not UTF-8;");
    refuse_set("name={\"a\":\"\xff\"}", LK_BAD_USAGE, "the value is not UTF-8;");
    refuse_set("name={\"a\":1", LK_BAD_USAGE, "begins like JSON");
    refuse_set("name={\"a\":1,\"a\":2}", LK_BAD_USAGE, "begins like JSON");
    refuse_set("steps=18446744073709551616", LK_BAD_USAGE, "beyond 9223372036854775807");
    refuse_set("rate=.5", LK_BAD_USAGE, "begins like JSON");
    refuse_set("rate=1e-400", LK_BAD_USAGE, "would be read as 0");
    refuse_set("model.layesr[0].units=5", LK_BAD_CONFIG, "did you mean \"layers\"?");
    refuse_set("model.layers[3]=5", LK_BAD_CONFIG, "of 3 elements, wanted one with element [3]");
    refuse_set("steps[0]=5", LK_BAD_CONFIG, "steps of test.json is integer 100");
    refuse_set("steps.x=5", LK_BAD_CONFIG, "steps of test.json is integer 100");
    refuse_set("model[0].x=5", LK_BAD_CONFIG, "model of test.json is an object");
    // An object that is not there is made on the way.
    lk_json made = load("{\"steps\": 5}");
    assert_int_equal(lk_json_set(&made, "schedule.warmup.steps=7", &error), LK_OK);
    lk_json_cursor top = lk_json_root(&made), schedule, warmup;
    uint64_t warmup_steps = 0;
    assert_true(lk_json_find(&top, "schedule", &schedule));
    assert_true(lk_json_find(&schedule, "warmup", &warmup));
    assert_int_equal(
        lk_json_get_u64(&warmup, "steps", LK_JSON_REQUIRED, 0, 9, &warmup_steps, &error), LK_OK);
    assert_int_equal(warmup_steps, 7);
    lk_json_close(&made);
    // A key that nobody knows is accepted here and refused, with its neighbour, when it is read.
    lk_json document = load("{\"steps\": 5}");
    assert_int_equal(lk_json_set(&document, "stesp=7", &error), LK_OK);
    lk_json_cursor root = lk_json_root(&document);
    assert_int_equal(lk_json_keys_only(&root, (const char *const[]){"steps"}, 1, &error),
                     LK_BAD_CONFIG);
    assert_string_equal(error.text, "test.json with --set: unknown key \"stesp\" at top level; did "
                                    "you mean \"steps\"?");
    lk_json_close(&document);
}

static void test_dump(void **state) {
    (void)state;
    lk_json a = load("{\"b\": [1, 2.50, 1e-3], \"a\": {\"y\": null, \"x\": \"\\u00e9\"}}");
    lk_json b = load("{\"a\":{\"x\":\"\xc3\xa9\",\"y\":null},\"b\":[1,2.5,0.001]}");
    char one[256], two[256];
    size_t length;
    assert_int_equal(lk_json_dump(&a, one, sizeof one, &length, &error), LK_OK);
    assert_int_equal(lk_json_dump(&b, two, sizeof two, NULL, &error), LK_OK);
    assert_string_equal(one, two);
    assert_int_equal(length, strlen(one));
    assert_string_equal(one, "{\n  \"a\": {\n    \"x\": \"\xc3\xa9\",\n    \"y\": null\n  },\n  "
                             "\"b\": [\n    1,\n    2.5,\n    0.001\n  ]\n}\n");
    assert_int_equal(lk_json_dump(&a, two, length + 1, NULL, &error), LK_OK);
    assert_int_equal(lk_json_dump(&a, two, length, NULL, &error), LK_INTERNAL);
    assert_has("bytes as text");
    lk_json_close(&a);
    lk_json_close(&b);
}

// A number that needs all 17 digits is read back as it was.
static void test_dump_keeps_all_digits(void **state) {
    (void)state;
    lk_json a = load("[0.1, 0.30000000000000004]");
    char text[256];
    assert_int_equal(lk_json_dump(&a, text, sizeof text, NULL, &error), LK_OK);
    assert_non_null(strstr(text, "0.30000000000000004"));
    lk_json_close(&a);
}

// Long names and long values neither overflow a message nor break it in two.
static void test_long_messages(void **state) {
    (void)state;
    char text[4096], source[600];
    memset(source, 's', sizeof source - 1);
    source[sizeof source - 1] = '\0';
    size_t n = (size_t)snprintf(text, sizeof text, "{\"");
    for (int i = 0; i < 300; i++) n += (size_t)snprintf(text + n, sizeof text - n, "\xc3\xa9");
    n += (size_t)snprintf(text + n, sizeof text - n, "\": {\"v\": \"");
    for (int i = 0; i < 300; i++) n += (size_t)snprintf(text + n, sizeof text - n, "\xe2\x82\xac");
    n += (size_t)snprintf(text + n, sizeof text - n, "\"}}");
    lk_json document;
    error = (lk_error){0};
    assert_int_equal(lk_json_load_text(&document, source, text, n, &error), LK_OK);
    lk_json_cursor root = lk_json_root(&document), at;
    const char *key = NULL;
    assert_true(lk_json_next(&root, &key, &at));
    uint64_t out;
    assert_int_equal(lk_json_get_u64(&at, "v", LK_JSON_REQUIRED, 1, 2, &out, &error),
                     LK_BAD_CONFIG);
    assert_has("...\", wanted an integer from 1 to 2; write a number");
    lk_json again;
    char quoted[LK_ERROR_TEXT_BYTES + 16];
    lk_json_close(&document);
    // The message itself is valid UTF-8: as a string of another document it loads.
    n = 0;
    quoted[n++] = '[';
    quoted[n++] = '"';
    for (const char *c = error.text; *c; c++) quoted[n++] = *c == '"' || *c == '\\' ? '_' : *c;
    quoted[n++] = '"';
    quoted[n++] = ']';
    error = (lk_error){0};
    assert_int_equal(lk_json_load_text(&again, "message", quoted, n, &error), LK_OK);
    lk_json_close(&again);
}

// '@' marks the byte; with `at_key` the key's.
static void offsets_are_those_of_the_text(void **state) {
    (void)state;
    static const struct {
        const char *text;
        lk_json_step steps[3];
        uint32_t count;
        bool at_key;
    } cases[] = {
        {" @{\"a\": 1}", {{0}}, 0, false},
        {"{\"a\": @1, \"b\": 2}", {{"a", 0}}, 1, false},
        {"{\"a\": 1,\n \"b\" :\t@{} }", {{"b", 0}}, 1, false},
        {"{\"a\": 1,\n @\"b\" : {} }", {{"b", 0}}, 1, true},
        {"{\"a\": {\"b\": 3, \"c\": \"}\"}, \"c\": [1, [2, @-3e5], 4]}",
         {{"c", 0}, {NULL, 1}, {NULL, 1}}, 3, false},
        {"[[], {\"x\": \"\\\"]\", \"\\u0061\": @true}]", {{NULL, 1}, {"a", 0}}, 2, false},
        {"{\"\\u00e9\": @null}", {{"\xc3\xa9", 0}}, 1, false},
    };
    for (size_t i = 0; i < LK_COUNT(cases); i++) {
        char text[128];
        size_t mark = strcspn(cases[i].text, "@"), length = strlen(cases[i].text) - 1;
        memcpy(text, cases[i].text, mark);
        memcpy(text + mark, cases[i].text + mark + 1, length - mark + 1);
        assert_int_equal(lk_json_offset(text, length, cases[i].steps, cases[i].count,
                                        cases[i].at_key), mark);
        // No such value, whatever is cut away: never a byte beyond the text.
        for (size_t bytes = 0; bytes < length; bytes++) {
            size_t at = lk_json_offset(text, bytes, cases[i].steps, cases[i].count, false);
            assert_true(at == SIZE_MAX || at <= bytes);
        }
    }
    const lk_json_step beyond = {NULL, 2}, other = {"z", 0};
    assert_int_equal(lk_json_offset("[1, 2]", 6, &beyond, 1, false), SIZE_MAX);
    assert_int_equal(lk_json_offset("{\"a\": 1}", 8, &other, 1, false), SIZE_MAX);
    assert_int_equal(lk_json_offset("[1, 2]", 6, &other, 1, false), SIZE_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_syntax),
        cmocka_unit_test(test_deep_nesting),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_too_large_file),
        cmocka_unit_test(test_keys_only),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_numbers_too_small),
        cmocka_unit_test(test_strings_bools_choices),
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_aliases),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_dump),
        cmocka_unit_test(test_dump_keeps_all_digits),
        cmocka_unit_test(test_long_messages),
        cmocka_unit_test(offsets_are_those_of_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
