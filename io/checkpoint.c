// checkpoint.c - the save protocol, the walk from newest to oldest, and the strict load.
//
// Why a crash is harmless, operation by operation:
//   before the rename        the new bytes live under ".tmp", which no reader looks at
//   between rename and sync  the name is old or new, the file behind either is whole and synced
//   after the sync           the new one is durable; only now may an old one go
// The hash is taken over memory first and over the read-back after; a tensor that changed in
// between, a torn write and a disk that lies all show as the same mismatch.
#include "io/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "arena/sha256.h"

enum {
    OWN_PAIRS = 3,
    CHUNK_BYTES = 64 * 1024,       // of read-back while saving
    VERIFY_CHUNK_BYTES = 16 * 1024,  // on the stack, at start-up
    HEX_DIGITS = LK_SHA256_HEX_BYTES - 1,
};

// What stands in front of the hash's digits, right after the length. It pins their offset.
static const char HEAD[] = "{\"__metadata__\":{\"" LK_CHECKPOINT_KEY_SHA256 "\":\"";
enum { HEX_AT = 8 + sizeof HEAD - 1 };
static const char ZERO_HEX[] = "0000000000000000000000000000000000000000000000000000000000000000";
_Static_assert(sizeof ZERO_HEX == LK_SHA256_HEX_BYTES, "one digit for each of the hash");

static const char SUFFIX[] = ".safetensors";
static const char TEMPORARY[] = ".tmp";

// --- names ---------------------------------------------------------------------------------------

static void format_name(char out[64], uint64_t step) {
    lk_format(out, 64, "step-%010llu%s", (unsigned long long)step, SUFFIX);
}

bool lk_checkpoint_step_of(const char *name, uint64_t *step) {
    if (strncmp(name, "step-", 5) != 0) return false;
    uint64_t value = 0;
    for (const char *c = name + 5; *c >= '0' && *c <= '9'; c++) {
        if (!lk_mul_ok(value, 10, &value) || !lk_add_ok(value, (uint64_t)(*c - '0'), &value)) {
            return false;
        }
    }
    // One spelling for each step: what does not print back the same is not ours.
    char canonical[64];
    format_name(canonical, value);
    if (strcmp(canonical, name) != 0) return false;
    *step = value;
    return true;
}

static lk_status step_path(char out[LK_PATH_BYTES], const char *directory, uint64_t step,
                           lk_error *error) {
    char name[64];
    format_name(name, step);
    return lk_path_join(out, directory, "/", name, error);
}

// --- hash ----------------------------------------------------------------------------------------

// SHA-256 of a whole file with the digits of its own hash taken as '0'.
static lk_status hash_file(const lk_file_ops *ops, int file, const char *path, uint64_t file_bytes,
                           char *chunk, size_t chunk_bytes, char hex[LK_SHA256_HEX_BYTES],
                           lk_error *error) {
    lk_sha256 hash;
    lk_sha256_start(&hash);
    for (uint64_t at = 0; at < file_bytes;) {
        size_t piece = (size_t)LK_MIN(file_bytes - at, (uint64_t)chunk_bytes);
        LK_CHECK(lk_file_read_all(ops, file, path, chunk, piece, at, error));
        uint64_t mask_end = LK_MIN(at + piece, (uint64_t)HEX_AT + HEX_DIGITS);
        for (uint64_t i = LK_MAX(at, (uint64_t)HEX_AT); i < mask_end; i++) chunk[i - at] = '0';
        lk_sha256_add(&hash, chunk, piece);
        at += piece;
    }
    uint8_t digest[LK_SHA256_BYTES];
    lk_sha256_finish(&hash, digest);
    lk_hex(digest, sizeof digest, hex);
    return LK_OK;
}

static void hash_memory(const lk_safetensors_content *content, const void *header,
                        size_t header_bytes, char hex[LK_SHA256_HEX_BYTES]) {
    lk_sha256 hash;
    lk_sha256_start(&hash);
    lk_sha256_add(&hash, header, header_bytes);
    for (size_t i = 0; i < content->tensor_count; i++) {
        const lk_safetensors_tensor *tensor = &content->tensors[i];
        uint64_t bytes = 0;
        bool fits = lk_safetensors_bytes(tensor->dtype, tensor->dim_count, tensor->dims, &bytes);
        lk_assert(fits);  // the header was built from the same shapes
        lk_sha256_add(&hash, tensor->data, (size_t)bytes);
    }
    uint8_t digest[LK_SHA256_BYTES];
    lk_sha256_finish(&hash, digest);
    lk_hex(digest, sizeof digest, hex);
}

// --- save ----------------------------------------------------------------------------------------

// The caller's content with our three keys in front. The texts live in the struct.
typedef struct draft {
    lk_safetensors_pair pairs[OWN_PAIRS + LK_CHECKPOINT_PAIRS_MAX];
    char version[24], step[24];
    lk_safetensors_content content;
} draft;

static lk_status make_draft(draft *d, const lk_checkpoint_job *job, lk_error *error) {
    if (job->metadata_count > LK_CHECKPOINT_PAIRS_MAX) {
        return lk_fail(error, LK_INTERNAL, "checkpoint: %zu metadata pairs, at most %d are allowed",
                       job->metadata_count, LK_CHECKPOINT_PAIRS_MAX);
    }
    lk_format(d->version, sizeof d->version, "%d", LK_CHECKPOINT_VERSION);
    lk_format(d->step, sizeof d->step, "%llu", (unsigned long long)job->step);
    d->pairs[0] = (lk_safetensors_pair){LK_CHECKPOINT_KEY_SHA256, ZERO_HEX};
    d->pairs[1] = (lk_safetensors_pair){LK_CHECKPOINT_KEY_VERSION, d->version};
    d->pairs[2] = (lk_safetensors_pair){LK_CHECKPOINT_KEY_STEP, d->step};
    for (size_t i = 0; i < job->metadata_count; i++) d->pairs[OWN_PAIRS + i] = job->metadata[i];
    d->content = (lk_safetensors_content){
        .metadata = d->pairs,
        .metadata_count = OWN_PAIRS + job->metadata_count,
        .tensors = job->tensors,
        .tensor_count = job->tensor_count,
    };
    return LK_OK;
}

lk_status lk_checkpoint_measure(const lk_checkpoint_job *job, size_t *buffer_bytes,
                                uint64_t *file_bytes, lk_error *error) {
    draft d;
    size_t header_bytes;
    uint64_t data_bytes;
    char path[LK_PATH_BYTES], temporary[LK_PATH_BYTES];
    LK_CHECK(step_path(path, job->directory, UINT64_MAX, error));
    LK_CHECK(lk_path_join(temporary, path, "", TEMPORARY, error));
    LK_CHECK(make_draft(&d, job, error));
    LK_CHECK(lk_safetensors_header(&d.content, NULL, 0, &header_bytes, &data_bytes, error));
    header_bytes += d.content.metadata_count * LK_CHECKPOINT_VALUE_SLACK_BYTES;
    header_bytes = lk_round_up(header_bytes, LK_SAFETENSORS_ALIGNMENT_BYTES);
    *buffer_bytes = header_bytes + CHUNK_BYTES;
    *file_bytes = header_bytes + data_bytes;
    return LK_OK;
}

static lk_status write_temporary(const lk_file_ops *ops, const char *path,
                                 const lk_safetensors_content *content, const void *header,
                                 size_t header_bytes, lk_error *error) {
    int file;
    LK_CHECK(lk_file_create(ops, path, &file, error));
    lk_status written =
        lk_safetensors_write(content, header, header_bytes, ops, file, path, error);
    lk_status synced = lk_file_sync_close(ops, file, path, error);
    return written != LK_OK ? written : synced;
}

static lk_status read_back(const lk_file_ops *ops, const char *path, uint64_t expected_bytes,
                           const char *expected_hex, char *chunk, lk_error *error) {
    int file;
    uint64_t file_bytes;
    char hex[LK_SHA256_HEX_BYTES], stored[LK_SHA256_HEX_BYTES] = "";
    LK_CHECK(lk_file_open_read(ops, path, &file, &file_bytes, error));
    if (file_bytes != expected_bytes) {
        lk_fail(error, LK_BAD_DATA,
                "%s: reads back as %llu bytes, %llu were written; check the disk",
                path, (unsigned long long)file_bytes, (unsigned long long)expected_bytes);
    } else if (hash_file(ops, file, path, file_bytes, chunk, CHUNK_BYTES, hex, error) == LK_OK &&
               lk_file_read_all(ops, file, path, stored, HEX_DIGITS, HEX_AT, error) == LK_OK &&
               (strcmp(hex, expected_hex) != 0 || strcmp(stored, expected_hex) != 0)) {
        lk_fail(error, LK_BAD_DATA,
                "%s: reads back different from what was written (SHA-256 %.*s.., "
                "%.*s.. expected); check the disk, the older checkpoints stand", path, 12, hex, 12,
                expected_hex);
    }
    int closed = ops->close(ops->context, file);
    if (closed < 0) lk_file_fail(error, LK_IO_ERROR, path, "close", closed);
    return error->status;
}

// --- retention -----------------------------------------------------------------------------------

typedef struct retention {
    uint64_t newest;   // the step just saved, never removed
    uint64_t count;    // checkpoints seen
    uint64_t victim;   // the first to go
    bool has_victim;
    bool spares;       // that of step `spared` neither counts nor goes
    uint64_t spared;
} retention;

// The order of removal: steps beyond the one just saved, which the run passed over as damaged or
// abandoned when it resumed; then the oldest.
static bool goes_first(uint64_t a, uint64_t b, uint64_t newest) {
    if ((a > newest) != (b > newest)) return a > newest;
    return a < b;
}

static void visit_for_retention(void *context, const char *name) {
    retention *r = context;
    uint64_t step;
    if (!lk_checkpoint_step_of(name, &step)) return;
    if (r->spares && step == r->spared && step != r->newest) return;
    r->count++;
    if (step == r->newest) return;
    if (!r->has_victim || goes_first(step, r->victim, r->newest)) r->victim = step;
    r->has_victim = true;
}

static lk_status remove_oldest(const lk_file_ops *ops, const lk_checkpoint_job *job,
                               lk_error *error) {
    if (job->keep_max == 0) return LK_OK;
    for (;;) {
        retention r = {.newest = job->step, .spares = job->spares, .spared = job->spared};
        int listed = ops->list(ops->context, job->directory, visit_for_retention, &r);
        if (listed < 0) {
            return lk_file_fail(error, LK_IO_ERROR, job->directory, "list the directory", listed);
        }
        if (r.count <= job->keep_max || !r.has_victim) return LK_OK;
        char path[LK_PATH_BYTES];
        LK_CHECK(step_path(path, job->directory, r.victim, error));
        int removed = ops->remove(ops->context, path);
        if (removed < 0 && removed != -ENOENT) {
            return lk_file_fail(error, LK_IO_ERROR, path, "remove the old checkpoint", removed);
        }
    }
}

lk_status lk_checkpoint_save(const lk_file_ops *ops, lk_checkpoint_job *job, lk_error *error) {
    char path[LK_PATH_BYTES], temporary[LK_PATH_BYTES], hex[LK_SHA256_HEX_BYTES];
    draft d;
    size_t header_bytes;
    uint64_t data_bytes;
    job->durable = false;
    LK_CHECK(step_path(path, job->directory, job->step, error));
    LK_CHECK(lk_path_join(temporary, path, "", TEMPORARY, error));
    LK_CHECK(make_draft(&d, job, error));
    if (job->buffer_bytes < CHUNK_BYTES) {
        return lk_fail(error, LK_INTERNAL, "checkpoint: scratch of %zu bytes is below "
                       "lk_checkpoint_measure's", job->buffer_bytes);
    }
    char *chunk = job->buffer, *header = chunk + CHUNK_BYTES;
    LK_CHECK(lk_safetensors_header(&d.content, header, job->buffer_bytes - CHUNK_BYTES,
                                   &header_bytes, &data_bytes, error));
    lk_assert(memcmp(header + 8, HEAD, sizeof HEAD - 1) == 0);
    hash_memory(&d.content, header, header_bytes, hex);
    memcpy(header + HEX_AT, hex, HEX_DIGITS);

    if (write_temporary(ops, temporary, &d.content, header, header_bytes, error) != LK_OK ||
        read_back(ops, temporary, header_bytes + data_bytes, hex, chunk, error) != LK_OK ||
        lk_file_publish(ops, temporary, path, error) != LK_OK) {
        ops->remove(ops->context, temporary);  // frees the space; what failed is in `error`
        return error->status;
    }
    job->durable = true;
    job->file_bytes = header_bytes + data_bytes;
    return remove_oldest(ops, job, error);
}

// --- scrub ---------------------------------------------------------------------------------------

typedef struct turn {
    uint64_t newest, last;  // the step just saved; the one that was looked at last
    uint64_t next, first;   // the least step above `last`, the least of all, below `newest`
    bool has_next, has_first;
} turn;

static void visit_for_turn(void *context, const char *name) {
    turn *t = context;
    uint64_t step;
    if (!lk_checkpoint_step_of(name, &step) || step >= t->newest) return;
    if (!t->has_first || step < t->first) t->first = step;
    t->has_first = true;
    if (step <= t->last || (t->has_next && step >= t->next)) return;
    t->next = step;
    t->has_next = true;
}

static lk_status scrub_open(const lk_file_ops *ops, lk_checkpoint_job *job, int file,
                            const char *path, uint64_t file_bytes, lk_error *error) {
    const uint64_t bytes_max = job->file_bytes + LK_CHECKPOINT_PAIRS_MAX * 24;
    char head[HEX_AT + HEX_DIGITS + 1] = "", hex[LK_SHA256_HEX_BYTES];
    if (file_bytes < sizeof head || file_bytes > bytes_max) {
        return lk_fail(error, LK_BAD_DATA, "%s: damaged: found %llu bytes, wanted some %llu", path,
                       (unsigned long long)file_bytes, (unsigned long long)job->file_bytes);
    }
    // Synced long ago; this drops the cached pages, so that the disk is asked.
    (void)ops->sync(ops->context, file);
    LK_CHECK(lk_file_read_all(ops, file, path, head, sizeof head - 1, 0, error));
    LK_CHECK(hash_file(ops, file, path, file_bytes, job->buffer, CHUNK_BYTES, hex, error));
    if (strcmp(hex, head + HEX_AT) == 0 && memcmp(head + 8, HEAD, sizeof HEAD - 1) == 0) {
        return LK_OK;
    }
    return lk_fail(error, LK_BAD_DATA, "%s: damaged: its SHA-256 is %.*s.., %.*s.. was recorded",
                   path, 12, hex, 12, head + HEX_AT);
}

lk_status lk_checkpoint_scrub(const lk_file_ops *ops, lk_checkpoint_job *job, lk_error *error) {
    turn t = {.newest = job->step, .last = job->scrubbed};
    char path[LK_PATH_BYTES];
    uint64_t file_bytes;
    int file;
    int listed = ops->list(ops->context, job->directory, visit_for_turn, &t);
    if (listed < 0) {
        return lk_file_fail(error, LK_IO_ERROR, job->directory, "list the directory", listed);
    }
    if (!t.has_first) return LK_OK;
    // A round is over those that were there when it began: new ones must not keep it from ending.
    const bool over = !t.has_next || t.next >= job->scrub_end;
    if (over) job->scrub_end = job->step;
    job->scrubbed = over ? t.first : t.next;
    LK_CHECK(step_path(path, job->directory, job->scrubbed, error));
    LK_CHECK(lk_file_open_read(ops, path, &file, &file_bytes, error));
    lk_status status = scrub_open(ops, job, file, path, file_bytes, error);
    ops->close(ops->context, file);
    return status;
}

typedef struct leftover {
    char name[64];
} leftover;

static void visit_for_leftover(void *context, const char *name) {
    leftover *found = context;
    char final[64];
    uint64_t step;
    size_t bytes = strlen(name), tail = sizeof TEMPORARY - 1;
    if (bytes <= tail || bytes - tail >= sizeof final) return;
    if (strcmp(name + bytes - tail, TEMPORARY) != 0) return;
    memcpy(final, name, bytes - tail);
    final[bytes - tail] = '\0';
    if (lk_checkpoint_step_of(final, &step)) lk_format(found->name, sizeof found->name, "%s", name);
}

lk_status lk_checkpoint_clean(const lk_file_ops *ops, const char *directory, lk_error *error) {
    for (;;) {
        leftover found = {""};
        int listed = ops->list(ops->context, directory, visit_for_leftover, &found);
        if (listed < 0) {
            return lk_file_fail(error, LK_IO_ERROR, directory, "list the directory", listed);
        }
        if (!found.name[0]) return LK_OK;
        char path[LK_PATH_BYTES];
        LK_CHECK(lk_path_join(path, directory, "/", found.name, error));
        int removed = ops->remove(ops->context, path);
        if (removed < 0 && removed != -ENOENT) {
            return lk_file_fail(error, LK_IO_ERROR, path, "remove the leftover", removed);
        }
    }
}

// --- verify and load -----------------------------------------------------------------------------

static lk_status check_step(const lk_safetensors *reader, uint64_t *step, lk_error *error) {
    const char *recorded = lk_safetensors_metadata(reader, LK_CHECKPOINT_KEY_STEP);
    const char *slash = strrchr(reader->path, '/');
    const char *name = slash ? slash + 1 : reader->path;
    char expected[64], digits[24];
    uint64_t value = 0;
    if (!recorded) return lk_fail(error, LK_BAD_DATA, "%s: has no \"step\"", reader->path);
    for (const char *c = recorded; *c >= '0' && *c <= '9'; c++) {
        value = value * 10 + (uint64_t)(*c - '0');  // an overflow does not print back the same
    }
    lk_format(digits, sizeof digits, "%llu", (unsigned long long)value);
    if (strcmp(digits, recorded) != 0) {
        return lk_fail(error, LK_BAD_DATA, "%s: \"step\" is \"%.*s\", a number was expected",
                       reader->path, 40, recorded);
    }
    format_name(expected, value);
    // A copy under a name of one's own is fine; a name that claims another step is not.
    uint64_t claimed;
    if (lk_checkpoint_step_of(name, &claimed) && claimed != value) {
        return lk_fail(error, LK_BAD_DATA, "%s: holds step %llu; its name should be %s",
                       reader->path, (unsigned long long)value, expected);
    }
    *step = value;
    return LK_OK;
}

// What is known of a file's bytes as they pass by: the hash of all of them, and training's two.
typedef struct passage {
    const lk_safetensors *reader;
    lk_sha256 content, digest, state;
    size_t states_at;   // the first tensor that is a state
    uint64_t step;      // as recorded, 0 where it is no number: state_hash has it before the states
    lk_error infinite;  // the first element that is not finite: said where all else is right
} passage;

static lk_status check_head(const lk_safetensors *reader, lk_error *error) {
    const char *recorded = lk_safetensors_metadata(reader, LK_CHECKPOINT_KEY_SHA256);
    if (!lk_safetensors_metadata(reader, LK_CHECKPOINT_KEY_VERSION)) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: is a safetensors file, but not a checkpoint of "
                       "Lockstep (no \"%s\")",
                       reader->path, LK_CHECKPOINT_KEY_VERSION);
    }
    if (!recorded || strlen(recorded) != HEX_DIGITS || reader->data_at < HEX_AT + HEX_DIGITS) {
        return lk_fail(error, LK_BAD_DATA, "%s: has no whole \"%s\"; not a checkpoint of Lockstep",
                       reader->path, LK_CHECKPOINT_KEY_SHA256);
    }
    if (memcmp(reader->header + 8, HEAD, sizeof HEAD - 1) != 0) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: \"%s\" is not the first key; the file was rewritten "
                       "by another program", reader->path, LK_CHECKPOINT_KEY_SHA256);
    }
    return LK_OK;
}

// A number that is not one, or more than there are tensors, is said by the state hash.
static void find_states(passage *p) {
    const char *count = lk_safetensors_metadata(p->reader, LK_CHECKPOINT_KEY_STATES);
    const char *step = lk_safetensors_metadata(p->reader, LK_CHECKPOINT_KEY_STEP);
    const uint64_t states = count ? strtoull(count, NULL, 10) : 0;
    p->states_at = p->reader->entry_count - (size_t)LK_MIN(states, p->reader->entry_count);
    p->step = step ? strtoull(step, NULL, 10) : 0;
}

// The header passes first, as it was parsed.
static void pass_header(passage *p, const lk_safetensors *reader) {
    const size_t behind = HEX_AT + HEX_DIGITS;
    p->reader = reader;
    p->infinite.status = LK_OK;
    find_states(p);
    lk_sha256_start(&p->content);
    lk_sha256_start(&p->digest);
    lk_sha256_start(&p->state);
    lk_sha256_add(&p->content, reader->header, HEX_AT);
    lk_sha256_add(&p->content, ZERO_HEX, HEX_DIGITS);
    lk_sha256_add(&p->content, reader->header + behind, (size_t)reader->data_at - behind);
}

static bool has_two_slashes(const lk_safetensors_entry *entry) {
    const char *slash = strchr(entry->name, '/');
    return slash && strchr(slash + 1, '/');
}

// `first` is the number of the first of these elements.
static void look_for_infinite(passage *p, const lk_safetensors_entry *entry, const char *bytes,
                              uint64_t first, size_t count) {
    const uint32_t exponent = 0x7f800000;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
        if ((bits & exponent) != exponent) continue;
        const char *what = bits & 0x7fffff ? "nan" : bits >> 31 ? "-inf" : "inf";
        (void)lk_fail(&p->infinite, LK_BAD_DATA,
                      "%s: tensor \"%.*s\", element %llu: found %s (0x%08x), wanted a finite "
                      "number; take an older checkpoint",
                      p->reader->path, 80, entry->name, (unsigned long long)(first + i), what,
                      bits);
        return;
    }
}

// One tensor, to `out`; where that is NULL, through a buffer.
static lk_status pass_entry(passage *p, size_t number, char *out, lk_error *error) {
    const lk_safetensors *reader = p->reader;
    const lk_safetensors_entry *entry = &reader->entries[number];
    if (number == p->states_at) lk_sha256_add_u64(&p->state, p->step);
    char chunk[VERIFY_CHUNK_BYTES];
    const uint64_t bytes = entry->end - entry->begin;
    for (uint64_t at = 0; at < bytes;) {
        size_t piece = (size_t)LK_MIN(bytes - at, (uint64_t)sizeof chunk);
        char *to = out ? out + at : chunk;
        LK_CHECK(lk_file_read_all(reader->ops, reader->file, reader->path, to, piece,
                                  reader->data_at + entry->begin + at, error));
        lk_sha256_add(&p->content, to, piece);
        lk_sha256_add(&p->state, to, piece);
        if (!has_two_slashes(entry)) lk_sha256_add(&p->digest, to, piece);
        if (entry->dtype == LK_SAFETENSORS_F32) {
            look_for_infinite(p, entry, to, at / 4, piece / 4);
        }
        at += piece;
    }
    return LK_OK;
}

// `wanted` is the recorded one; NULL: there is none.
static lk_status check_sum(passage *p, lk_sha256 *hash, const char *what, const char *wanted,
                           lk_error *error) {
    uint8_t bytes[LK_SHA256_BYTES];
    char hex[LK_SHA256_HEX_BYTES];
    if (!wanted) return LK_OK;
    lk_sha256_finish(hash, bytes);
    lk_hex(bytes, sizeof bytes, hex);
    if (strcmp(hex, wanted) == 0) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: damaged: %s is %.*s.., %.*s.. was recorded",
                   p->reader->path, what, 12, hex, 12, wanted);
}

// The version of the format. A newer one is no damage: no older checkpoint may take its place.
static lk_status check_version(const lk_safetensors *reader, lk_error *error) {
    const char *version = lk_safetensors_metadata(reader, LK_CHECKPOINT_KEY_VERSION);
    const char *program = lk_safetensors_metadata(reader, "lockstep_version");
    char *end;
    const unsigned long found = strtoul(version, &end, 10);
    const bool number = *version >= '1' && *version <= '9' && *end == '\0';
    if (number && found == LK_CHECKPOINT_VERSION) return LK_OK;
    if (number && found > LK_CHECKPOINT_VERSION) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "%s: checkpoint version %.*s, written by lockstep %.*s; this one, %s, reads "
                       "up to %d: go on with that one or a newer one, or move the file away",
                       reader->path, 40, version, 40, program ? program : "(unknown)", LK_VERSION,
                       LK_CHECKPOINT_VERSION);
    }
    return lk_fail(error, LK_BAD_DATA, "%s: checkpoint version %.*s, this program reads %d",
                   reader->path, 40, version, LK_CHECKPOINT_VERSION);
}

// After all has passed: is it what was saved? What is wrong with the bytes is said before what is
// wrong with the words.
static lk_status judge(passage *p, uint64_t *step, lk_error *error) {
    const lk_safetensors *reader = p->reader;
    LK_CHECK(check_sum(p, &p->content, "its SHA-256",
                       lk_safetensors_metadata(reader, LK_CHECKPOINT_KEY_SHA256), error));
    LK_CHECK(check_version(reader, error));
    LK_CHECK(check_step(reader, step, error));
    if (p->states_at == reader->entry_count) lk_sha256_add_u64(&p->state, *step);
    LK_CHECK(check_sum(p, &p->digest, "the digest of its parameters",
                       lk_safetensors_metadata(reader, LK_CHECKPOINT_KEY_DIGEST), error));
    LK_CHECK(check_sum(p, &p->state, "its state hash",
                       lk_safetensors_metadata(reader, LK_CHECKPOINT_KEY_STATE), error));
    if (p->infinite.status != LK_OK) *error = p->infinite;
    return error->status;
}

lk_status lk_checkpoint_read(const lk_safetensors *reader, void *values, uint64_t *step,
                             lk_error *error) {
    passage p;
    pass_header(&p, reader);
    for (size_t i = 0; i < reader->entry_count; i++) {
        const lk_safetensors_entry *entry = &reader->entries[i];
        LK_CHECK(pass_entry(&p, i, values ? (char *)values + entry->begin : NULL, error));
    }
    return judge(&p, step, error);
}

lk_status lk_checkpoint_peek(lk_safetensors *reader, const lk_file_ops *ops, const char *path,
                             lk_safetensors_entry *entries, size_t entry_capacity,
                             lk_error *error) {
    LK_CHECK(lk_safetensors_open(reader, ops, path, entries, entry_capacity, error));
    if (check_head(reader, error) == LK_OK) return LK_OK;
    lk_safetensors_close(reader);
    return error->status;
}

lk_status lk_checkpoint_open(lk_safetensors *reader, const lk_file_ops *ops, const char *path,
                             lk_safetensors_entry *entries, size_t entry_capacity, uint64_t *step,
                             lk_error *error) {
    LK_CHECK(lk_checkpoint_peek(reader, ops, path, entries, entry_capacity, error));
    if (lk_checkpoint_read(reader, NULL, step, error) == LK_OK) return LK_OK;
    lk_safetensors_close(reader);
    return error->status;
}

// "F32 [3, 4]" for error lines.
static void format_shape(char *out, size_t bytes, lk_safetensors_dtype dtype, unsigned dim_count,
                         const uint64_t *dims) {
    size_t used = lk_format(out, bytes, "%s [", lk_safetensors_dtype_name(dtype));
    for (unsigned d = 0; d < dim_count && used < bytes; d++) {
        used += lk_format(out + used, bytes - used, d ? ", %llu" : "%llu",
                          (unsigned long long)dims[d]);
    }
    if (used < bytes) lk_format(out + used, bytes - used, "]");
}

static lk_status check_match(const lk_safetensors *reader, const lk_safetensors_tensor *tensor,
                             lk_error *error) {
    const lk_safetensors_entry *entry = lk_safetensors_find(reader, tensor->name);
    if (!entry) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: has no tensor \"%s\", which this model needs; is it "
                       "a checkpoint of another model?", reader->path, tensor->name);
    }
    if (entry->dtype == tensor->dtype && entry->dim_count == tensor->dim_count &&
        memcmp(entry->dims, tensor->dims, tensor->dim_count * sizeof *tensor->dims) == 0) {
        return LK_OK;
    }
    char there[128], wanted[128];
    format_shape(there, sizeof there, entry->dtype, entry->dim_count, entry->dims);
    format_shape(wanted, sizeof wanted, tensor->dtype, tensor->dim_count, tensor->dims);
    return lk_fail(error, LK_BAD_DATA, "%s: tensor \"%s\" is %s, this model needs %s; is it a "
                   "checkpoint of another model?", reader->path, tensor->name, there, wanted);
}

static const lk_safetensors_tensor *find_wanted(const lk_safetensors_tensor *tensors, size_t count,
                                                const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    }
    return NULL;
}

lk_status lk_checkpoint_fits(const lk_safetensors *reader, const lk_safetensors_tensor *tensors,
                             size_t tensor_count, lk_error *error) {
    for (size_t i = 0; i < tensor_count; i++) LK_CHECK(check_match(reader, &tensors[i], error));
    for (size_t i = 0; i < reader->entry_count; i++) {
        if (find_wanted(tensors, tensor_count, reader->entries[i].name)) continue;
        return lk_fail(error, LK_BAD_DATA,
                       "%s: has a tensor \"%.*s\" that this model does not know; is it a "
                       "checkpoint of another model?", reader->path, 80, reader->entries[i].name);
    }
    return LK_OK;
}

lk_status lk_checkpoint_load(const lk_safetensors *reader, const lk_safetensors_tensor *tensors,
                             size_t tensor_count, uint64_t *step, lk_error *error) {
    LK_CHECK(lk_checkpoint_fits(reader, tensors, tensor_count, error));
    passage p;
    pass_header(&p, reader);
    for (size_t i = 0; i < reader->entry_count; i++) {
        const lk_safetensors_entry *entry = &reader->entries[i];
        void *data = find_wanted(tensors, tensor_count, entry->name)->data;
        LK_CHECK(pass_entry(&p, i, data, error));
    }
    return judge(&p, step, error);
}

// --- newest --------------------------------------------------------------------------------------

typedef struct newest {
    bool has_limit, has_step;
    uint64_t limit;  // only steps below it
    uint64_t step;   // the largest of them
} newest;

static void visit_for_newest(void *context, const char *name) {
    newest *n = context;
    uint64_t step;
    if (!lk_checkpoint_step_of(name, &step)) return;
    if (n->has_limit && step >= n->limit) return;
    if (n->has_step && step <= n->step) return;
    n->has_step = true;
    n->step = step;
}

lk_status lk_checkpoint_find_newest(const lk_file_ops *ops, const char *directory,
                                    lk_safetensors_entry *entries, size_t entry_capacity,
                                    lk_checkpoint_reporter report, void *report_context,
                                    lk_checkpoint_found *found, lk_error *error) {
    unsigned damaged = 0;
    newest n = {0};
    for (;;) {
        n.has_step = false;
        int listed = ops->list(ops->context, directory, visit_for_newest, &n);
        if (listed == -ENOENT) break;
        if (listed < 0) {
            return lk_file_fail(error, LK_IO_ERROR, directory, "list the directory", listed);
        }
        if (!n.has_step) break;
        LK_CHECK(step_path(found->path, directory, n.step, error));
        lk_safetensors reader;
        lk_error why = {0};
        // One that may not be opened may be whole: an older one must not take its place.
        int file = ops->open(ops->context, found->path, LK_OPEN_READ);
        if (file < 0 && file != -ENOENT) {
            return lk_file_fail(error, LK_IO_ERROR, found->path, "open", file);
        }
        if (file >= 0) ops->close(ops->context, file);
        if (lk_checkpoint_open(&reader, ops, found->path, entries, entry_capacity, &found->step,
                               &why) == LK_OK) {
            lk_safetensors_close(&reader);
            return LK_OK;
        }
        if (why.status == LK_UNAVAILABLE) return lk_fail(error, why.status, "%s", why.text);
        if (report) report(report_context, found->path, &why);
        damaged++;
        n.has_limit = true;
        n.limit = n.step;
    }
    found->path[0] = '\0';
    if (damaged == 0) {
        return lk_fail(error, LK_NO_INPUT, "%s: holds no checkpoint; name a run that has saved one",
                       directory);
    }
    return lk_fail(error, LK_BAD_DATA, "%s: all %u checkpoints are damaged; restore one from a "
                   "backup, or start over in another directory", directory, damaged);
}
