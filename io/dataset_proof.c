// dataset_proof.c - pieces of a data set and their hashes: at start some, while it is used all of
// them, little by little; and files that somebody changes meanwhile. Host only; no heap.
#define _GNU_SOURCE
#include "io/dataset_proof.h"

#include <sodium.h>
#include <string.h>
#include <sys/stat.h>

#include "io/idx.h"

typedef unsigned long long ull;

enum { CHUNK_BYTES = 64 << 10, SAMPLE_BYTES = 16 << 20 };

// --- chunks --------------------------------------------------------------------------------------

typedef struct span {
    const lk_dataset_file *file;
    const uint8_t *data;  // NULL: of a shard that is not open
    uint64_t bytes;
} span;

static span nth_span(const lk_dataset *set, uint32_t number) {
    const bool images = number < set->part_count;
    const lk_dataset_part *part = &set->parts[images ? number : number - set->part_count];
    const lk_dataset_file *file = images ? &part->images : &part->labels;
    const uint64_t bytes = images ? set->image_bytes : set->label_bytes;
    return (span){file, file->data, file->data ? part->count * bytes : 0};
}

static uint64_t chunks_of(uint64_t bytes) { return (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES; }

// The next chunk joins the cursor's hash. False where there is none left.
static bool take_chunk(const lk_dataset *set, lk_dataset_cursor *at) {
    for (; at->span < 2 * set->part_count; at->span++, at->offset = 0) {
        const span s = nth_span(set, at->span);
        if (at->offset >= s.bytes) continue;
        const uint64_t bytes = LK_MIN(s.bytes - at->offset, (uint64_t)CHUNK_BYTES);
        at->hash = lk_data_fast_hash(at->hash, s.data + at->offset, bytes);
        at->offset += bytes;
        at->chunk++;
        return true;
    }
    return false;
}

static lk_dataset_cursor begin_of(const lk_dataset *set, uint32_t piece) {
    lk_dataset_cursor at = {0};
    uint64_t left = piece * set->proof->chunks_a_piece;
    for (at.chunk = left; at.span < 2 * set->part_count; at.span++) {
        const uint64_t here = chunks_of(nth_span(set, at.span).bytes);
        if (left < here) break;
        left -= here;
    }
    at.offset = left * CHUNK_BYTES;
    return at;
}

void lk_dataset_cut(lk_dataset *set) {
    lk_dataset_proof *proof = set->proof;
    *proof = (lk_dataset_proof){0};
    for (uint32_t i = 0; i < 2 * set->part_count; i++) {
        proof->chunks += chunks_of(nth_span(set, i).bytes);
    }
    proof->chunks_a_piece =
        LK_MAX((proof->chunks + LK_DATA_PIECES - 1) / LK_DATA_PIECES, (uint64_t)1);
    proof->pieces = (uint32_t)((proof->chunks + proof->chunks_a_piece - 1) / proof->chunks_a_piece);
}

// --- pieces --------------------------------------------------------------------------------------

static uint64_t hash_piece(const lk_dataset *set, uint32_t piece) {
    lk_dataset_cursor at = begin_of(set, piece);
    for (uint64_t i = 0; i < set->proof->chunks_a_piece && take_chunk(set, &at); i++) continue;
    return at.hash;
}

void lk_dataset_hash_pieces(const lk_dataset *set, uint64_t piece[LK_DATA_PIECES]) {
    memset(piece, 0, LK_DATA_PIECES * sizeof *piece);
    for (uint32_t i = 0; i < set->proof->pieces; i++) piece[i] = hash_piece(set, i);
}

// Names the file in which the piece begins, and where in it; a piece may reach into the next ones.
static lk_status differs(const lk_dataset *set, uint32_t piece, const char *why, lk_error *error) {
    const lk_dataset_cursor first = begin_of(set, piece);
    const span s = nth_span(set, first.span);
    const uint64_t header = s.file->map ? (uint64_t)(s.data - s.file->map) : 0;
    const uint64_t wanted = LK_MIN(set->proof->chunks_a_piece, set->proof->chunks - first.chunk);
    const uint64_t end = LK_MIN(first.offset + wanted * CHUNK_BYTES, s.bytes);
    return lk_fail(error, LK_BAD_DATA, "%s: bytes %llu to %llu%s: %s", s.file->name,
                   (ull)(header + first.offset), (ull)(header + end - 1),
                   wanted > chunks_of(s.bytes - first.offset) ? ", or the file after it" : "", why);
}

static lk_status prove(const lk_dataset *set, uint32_t piece, const char *why, lk_error *error) {
    if (hash_piece(set, piece) == set->proof->piece[piece]) return LK_OK;
    return differs(set, piece, why, error);
}

lk_status lk_dataset_prove_some(const lk_dataset *set, const char *why, lk_error *error) {
    const lk_dataset_proof *proof = set->proof;
    if (proof->pieces == 0) return LK_OK;
    const uint64_t piece_bytes = proof->chunks_a_piece * CHUNK_BYTES;
    const uint64_t wanted = LK_MIN(SAMPLE_BYTES / piece_bytes + 1, (uint64_t)proof->pieces);
    const uint32_t from = randombytes_uniform(proof->pieces);
    for (uint32_t i = 0; i < wanted; i++) {
        LK_CHECK(prove(set, (from + i) % proof->pieces, why, error));
    }
    return prove(set, proof->pieces - 1, why, error);
}

lk_status lk_dataset_prove_all(const lk_dataset *set, const char *why, lk_error *error) {
    for (uint32_t i = 0; i < set->proof->pieces; i++) LK_CHECK(prove(set, i, why, error));
    return LK_OK;
}

lk_status lk_dataset_compare(const lk_dataset *set, const uint64_t piece[LK_DATA_PIECES],
                             const char *why, lk_error *error) {
    for (uint32_t i = 0; i < set->proof->pieces; i++) {
        if (piece[i] != set->proof->piece[i]) return differs(set, i, why, error);
    }
    return LK_OK;
}

// --- while the set is used -----------------------------------------------------------------------

static const char changed_text[] =
    "they are no longer what this run began with: somebody changed the file in place, or the disk "
    "or the memory is failing; restore it; a run goes on with --resume from its last checkpoint";

lk_status lk_dataset_scrub(lk_dataset *set, lk_error *error) {
    lk_dataset_proof *proof = set->proof;
    lk_dataset_cursor *at = &proof->scrub;
    if (!proof || proof->pieces == 0) return LK_OK;
    const bool took = take_chunk(set, at);
    lk_assert(took);
    const bool last = at->chunk == proof->chunks;
    if (!last && at->chunk % proof->chunks_a_piece != 0) return LK_OK;
    const uint32_t piece = (uint32_t)((at->chunk - 1) / proof->chunks_a_piece);
    const uint64_t found = at->hash;
    at->hash = 0;
    if (last) *at = (lk_dataset_cursor){0};
    if (found == proof->piece[piece]) return LK_OK;
    return differs(set, piece, changed_text, error);
}

// What the file system says of one file. `suspect`: only its bytes can tell.
static lk_status look_at(lk_dataset_file *file, bool *suspect, lk_error *error) {
    const lk_data_state *was = &file->state;
    struct stat info;
    // Without a name, moved or removed: what is mapped stays, and nobody else finds it.
    if (!file->path || stat(file->path, &info) != 0) return LK_OK;
    const lk_data_state now = lk_data_state_of(&info);
    if (now.device != was->device || now.inode != was->inode) return LK_OK;
    if (now.bytes != was->bytes) {
        return lk_fail(error, LK_BAD_DATA,
                       "%s: it was changed in place while it was used (found %lld bytes, wanted "
                       "%lld); restore it, or start another run; a run goes on with --resume from "
                       "its last checkpoint",
                       file->name, (long long)now.bytes, (long long)was->bytes);
    }
    // Touched, written, another mode or name, or times that were set back. And of a young file the
    // times say nothing.
    *suspect = *suspect || was->young || now.modified != was->modified ||
               now.changed != was->changed;
    file->state = now;
    return LK_OK;
}

lk_status lk_dataset_unchanged(lk_dataset *set, lk_error *error) {
    bool suspect = false;
    for (uint32_t i = 0; i < set->part_count; i++) {
        if (!set->parts[i].images.map) continue;
        LK_CHECK(look_at(&set->parts[i].images, &suspect, error));
        LK_CHECK(look_at(&set->parts[i].labels, &suspect, error));
    }
    return suspect ? lk_dataset_prove_all(set, changed_text, error) : LK_OK;
}

lk_status lk_dataset_check_labels(const lk_dataset *set, uint32_t classes, lk_error *error) {
    for (uint32_t i = 0; i < set->part_count; i++) {
        const lk_dataset_part *part = &set->parts[i];
        const lk_dataset_file *file = &part->labels;
        if (!file->data) continue;
        const uint64_t header_bytes = file->map ? (uint64_t)(file->data - file->map) : 0;
        if (set->sequences)
            LK_CHECK(lk_idx_check_sequences(file->data, part->count, set->label_bytes,
                                            set->label_type, set->height, classes, header_bytes,
                                            file->name, error));
        else
            LK_CHECK(lk_idx_check_labels(file->data, part->count, set->label_type, classes,
                                         header_bytes, file->name, error));
    }
    return LK_OK;
}
