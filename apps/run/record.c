// record.c - writes record.json: the data of a run by its hash, the program and the machine that
// computed it. Nothing of it decides a bit; a run that goes on elsewhere writes it anew.
#define _GNU_SOURCE
#include "apps/run/record.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

static json_t *say_set(const lk_dataset *set) {
    char hex[LK_SHA256_HEX_BYTES];
    if (set->count == 0) return json_null();
    lk_hex(set->sha256, LK_SHA256_BYTES, hex);
    return json_pack("{s:I, s:s}", "examples", (json_int_t)set->count, "sha256", hex);
}

static json_t *say_environment(const lk_run *run) {
    struct utsname system = {0};
    (void)uname(&system);
#ifdef __clang__
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "system", system.sysname, "release",
                     system.release, "machine", system.machine, "compiler", compiler, "kernels",
                     lk_run_kernels(run), "workers", (json_int_t)run->workers.world, "replicas",
                     (json_int_t)run->program.layout.replicas_all);
}

lk_status lk_record_write(const lk_run *run, const lk_run_dir *dir, lk_error *error) {
    json_t *record =
        json_pack("{s:i, s:s, s:i, s:s, s:{s:o, s:o}, s:o}", "format", LK_RECORD_FORMAT,
                  "lockstep_version", LK_VERSION, "arithmetic_version", LK_ARITHMETIC_VERSION,
                  "run_identity", run->identity_hex, "data", "train", say_set(&run->train), "test",
                  say_set(&run->test), "environment", say_environment(run));
    char *text = record ? json_dumps(record, JSON_INDENT(2)) : NULL;
    json_decref(record);
    if (!text) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    const size_t bytes = strlen(text);
    text[bytes] = '\n';  // in place of the NUL
    lk_status status = lk_run_dir_write(dir, LK_RECORD_NAME, text, bytes + 1, error);
    free(text);
    return status;
}
