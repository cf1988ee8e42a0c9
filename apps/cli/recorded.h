// recorded.h - a run as it was recorded, for whoever trains it again: its configuration, what it
// came to, its step hashes. From its run directory, or from the archive that lockstep pack made of
// one:
//
//   run/README          what this is, and what to type
//   run/manifest.json   identity, versions, data, machine; digest and state hash of every
//   checkpoint run/config.json     the configuration as understood run/hashes.jsonl    step hashes
//   run/metrics.jsonl   losses and evaluations, as far as they are there
//
// An archive is a stranger's: all of it is checked, nothing of it is unpacked. Host only; heap.
#ifndef LOCKSTEP_APPS_CLI_RECORDED_H
#define LOCKSTEP_APPS_CLI_RECORDED_H

#include <jansson.h>

#include "apps/cli/tools.h"

enum {
    LK_RECORDED_BYTES_MAX = 256 << 20,  // of an archive, and of a log, that is read
    LK_RECORDED_WORD_BYTES = 128,
};

// The hashes of a run when `step` steps were done.
typedef struct lk_recorded_result {
    uint64_t step;
    char digest[LK_SHA256_HEX_BYTES], state_hash[LK_SHA256_HEX_BYTES];
} lk_recorded_result;

typedef struct lk_recorded_set {
    uint64_t examples;  // 0: not recorded, or the run had none
    char sha256[LK_SHA256_HEX_BYTES];
} lk_recorded_set;

typedef struct lk_recorded {
    char source[LK_PATH_BYTES];
    char name[LK_RECORDED_WORD_BYTES], version[LK_RECORDED_WORD_BYTES];
    char compiler[LK_RECORDED_WORD_BYTES], machine[LK_RECORDED_WORD_BYTES];  // "": not recorded
    char identity[LK_SHA256_HEX_BYTES];
    uint32_t arithmetic_version;
    lk_recorded_set train, test;
    uint32_t result_count;
    lk_recorded_result *results;  // (result_count), ascending
    json_t *manifest;             // of a run directory
    char *config;                 // the document, with a NUL
    size_t config_bytes;
    char *hashes;  // hashes.jsonl; NULL: none was read
    size_t hashes_bytes;
} lk_recorded;

// A run directory: its configuration and manifest, and with `logs` its step hashes. A checkpoint
// that is damaged is passed over with a line. LK_NO_INPUT: no run, or no whole checkpoint. Close it
// also after an error.
lk_status lk_recorded_open_run(lk_recorded *r, const char *run_dir, bool logs, lk_error *error);
// The same, or an archive. LK_BAD_DATA: it is none, or damaged.
lk_status lk_recorded_open(lk_recorded *r, const char *place, lk_error *error);
void lk_recorded_close(lk_recorded *r);

#endif
