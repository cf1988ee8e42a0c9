// import_sequences.c - ragged sequences as IDX files: frames to the most of an example, zeros
// behind its own; labels in rows of as many bytes (io/idx.h). All offsets and labels are checked
// before anything is written.
#include "io/import_files.h"

#include <string.h>

#include "io/idx.h"
#include "io/ragged.h"

typedef unsigned long long ull;

static const lk_file_ops *const ops = &lk_file_ops_posix;

enum { PIECE_BYTES = 16 * 1024 };

// Items of an array one after another.
typedef struct reader {
    const lk_import_array *array;
    uint64_t at;          // the next one
    uint64_t begin, end;  // those in the piece
    uint8_t piece[PIECE_BYTES];
} reader;

typedef struct sequences {
    lk_import_array frames, frame_offsets, labels, label_offsets;
    uint32_t open;  // how many of the four are open: they are opened in this order
    uint64_t count, features, classes;
    lk_ragged frames_cut, labels_cut;  // as they begin
} sequences;

static lk_status next(reader *r, const uint8_t **item, lk_error *error) {
    const lk_npy *n = &r->array->npy;
    if (r->at == r->end) {
        const uint64_t count = LK_MIN(n->count - r->at, (uint64_t)PIECE_BYTES / n->item_bytes);
        r->begin = r->at;
        r->end = r->at + count;
        LK_CHECK(lk_file_read_all(ops, r->array->file, r->array->path, r->piece,
                                  (size_t)count * n->item_bytes,
                                  n->header_bytes + r->at * n->item_bytes, error));
    }
    *item = r->piece + (r->at++ - r->begin) * n->item_bytes;
    return LK_OK;
}

static lk_status next_cut(reader *r, lk_ragged *cut, uint64_t *length, lk_error *error) {
    const uint8_t *item;
    LK_CHECK(next(r, &item, error));
    return lk_ragged_next(cut, item, length, error);
}

static lk_status next_label(reader *r, uint64_t classes, uint32_t *label, lk_error *error) {
    const lk_npy *n = &r->array->npy;
    const uint64_t number = r->at;
    const uint8_t *item;
    uint64_t value;
    LK_CHECK(next(r, &item, error));
    const bool fits = lk_ragged_number(item, n->item_bytes, n->type == 'i', &value);
    *label = (uint32_t)value;
    if (fits && value >= 1 && value < classes) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: label %llu is %s, wanted 1 to %llu: 0 is the blank",
                   r->array->path, (ull)number,
                   !fits   ? "negative"
                   : value ? "too large"
                           : "0",
                   (ull)classes - 1);
}

// --- what is there -------------------------------------------------------------------------------

static lk_status check_integers(const lk_import_array *a, lk_error *error) {
    if (a->npy.ndim == 1 && (a->npy.type == 'u' || a->npy.type == 'i')) return LK_OK;
    return lk_fail(error, LK_BAD_DATA, "%s: %u dimensions of %c%u, wanted (n) integers", a->path,
                   a->npy.ndim, a->npy.type, a->npy.item_bytes);
}

static lk_status check_frames(sequences *s, lk_error *error) {
    const lk_npy *n = &s->frames.npy;
    const bool f32 = n->type == 'f' && n->item_bytes == 4,
               u8 = n->type == 'u' && n->item_bytes == 1;
    s->features = n->dims[n->ndim - 1];
    if ((f32 || u8) && n->ndim == 2 && s->features <= LK_IMPORT_FRAMES_MAX) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: %u dimensions of %c%u, wanted (frames of all examples, features), bytes or "
                   "f4, of at most %d features",
                   s->frames.path, n->ndim, n->type, n->item_bytes, LK_IMPORT_FRAMES_MAX);
}

static lk_ragged cut_of(const lk_import_array *offsets, uint64_t total, uint64_t least,
                        uint64_t most) {
    return (lk_ragged){.name = offsets->path,
                       .total = total,
                       .least = least,
                       .most = most,
                       .item_bytes = offsets->npy.item_bytes,
                       .is_signed = offsets->npy.type == 'i'};
}

static lk_status check_shapes(sequences *s, const lk_import_ragged *from, lk_error *error) {
    LK_CHECK(check_frames(s, error));
    LK_CHECK(check_integers(&s->frame_offsets, error));
    LK_CHECK(check_integers(&s->labels, error));
    LK_CHECK(check_integers(&s->label_offsets, error));
    const uint64_t offsets = s->frame_offsets.npy.count;
    s->count = offsets - 1;
    s->classes = from->classes_max ? from->classes_max : LK_CLASSES_MAX;
    s->frames_cut = cut_of(&s->frame_offsets, s->frames.npy.dims[0], 1,
                           from->frames_max ? from->frames_max : LK_IMPORT_FRAMES_MAX);
    s->labels_cut = cut_of(&s->label_offsets, s->labels.npy.count, 0,
                           from->labels_max ? from->labels_max : LK_IMPORT_LABELS_MAX);
    if (s->label_offsets.npy.count == offsets) return LK_OK;
    return lk_fail(error, LK_BAD_DATA,
                   "%s: found %llu offsets, but %s has %llu; wanted as many: one more than there "
                   "are examples",
                   s->label_offsets.path, (ull)s->label_offsets.npy.count, s->frame_offsets.path,
                   (ull)offsets);
}

// All offsets of an array; the longest sequence is *longest.
static lk_status check_cut(const lk_import_array *offsets, lk_ragged cut, uint64_t *longest,
                           lk_error *error) {
    reader r = {.array = offsets};
    for (uint64_t i = 0, length; i < offsets->npy.count; i++)
        LK_CHECK(next_cut(&r, &cut, &length, error));
    *longest = cut.longest;
    return lk_ragged_end(&cut, error);
}

static lk_status check_all(sequences *s, const lk_import_ragged *from, lk_imported *of,
                           lk_error *error) {
    uint64_t frames, labels;
    uint32_t label, greatest = 0;
    LK_CHECK(check_shapes(s, from, error));
    LK_CHECK(check_cut(&s->frame_offsets, s->frames_cut, &frames, error));
    LK_CHECK(check_cut(&s->label_offsets, s->labels_cut, &labels, error));
    reader r = {.array = &s->labels};
    for (uint64_t i = 0; i < s->labels.npy.count; i++) {
        LK_CHECK(next_label(&r, s->classes, &label, error));
        greatest = LK_MAX(greatest, label);
    }
    const lk_idx_type type = lk_idx_label_type(greatest + 1);
    if (from->labels_max) labels = from->labels_max;
    if (from->frames_max) frames = from->frames_max;
    *of = (lk_imported){.height = (uint32_t)frames,
                        .width = (uint32_t)s->features,
                        .channels = 1,
                        .is_f32 = s->frames.npy.item_bytes == 4,
                        .label_type = type,
                        .label_bytes = LK_IDX_FRAMES_BYTES +
                                       lk_idx_type_bytes(type) * (uint32_t)LK_MAX(labels, 1u)};
    return LK_OK;
}

// --- what is written -----------------------------------------------------------------------------

static lk_status copy_labels(const sequences *s, lk_import_files *f, const lk_imported *of,
                             lk_error *error) {
    reader lengths = {.array = &s->frame_offsets}, offsets = {.array = &s->label_offsets},
           labels = {.array = &s->labels};
    lk_ragged frames_cut = s->frames_cut, labels_cut = s->labels_cut;
    uint8_t row[LK_IDX_FRAMES_BYTES + 2 * LK_IMPORT_LABELS_MAX];
    const uint32_t item = lk_idx_type_bytes(of->label_type);
    const uint64_t fit = item == 1 ? LK_IDX_U8_CLASSES_MAX : LK_IDX_CLASSES_MAX;
    uint64_t frames, count;
    uint32_t label;
    LK_CHECK(next_cut(&lengths, &frames_cut, &frames, error));
    LK_CHECK(next_cut(&offsets, &labels_cut, &count, error));
    for (uint64_t i = 0; i < s->count; i++) {
        LK_CHECK(next_cut(&lengths, &frames_cut, &frames, error));
        LK_CHECK(next_cut(&offsets, &labels_cut, &count, error));
        if (LK_IDX_FRAMES_BYTES + count * item > of->label_bytes) {
            return lk_fail(error, LK_BAD_DATA, "%s: it changed while it was read",
                           s->label_offsets.path);
        }
        memset(row, 0, of->label_bytes);
        row[0] = (uint8_t)(frames >> 8);
        row[1] = (uint8_t)frames;
        for (uint64_t k = 0; k < count; k++) {
            LK_CHECK(next_label(&labels, LK_MIN(s->classes, fit), &label, error));
            lk_idx_put_label(&row[LK_IDX_FRAMES_BYTES + k * item], label, of->label_type);
        }
        LK_CHECK(lk_import_labels(f, lk_import_place(f, i), row, error));
    }
    return LK_OK;
}

// `values` of the frames, from number `first` on, and then zeros up to `room`.
static lk_status copy_example(const lk_import_array *a, lk_import_files *f, lk_import_part part,
                              uint64_t first, uint64_t values, uint64_t room, lk_error *error) {
    uint8_t piece[PIECE_BYTES];
    const uint64_t item = a->npy.item_bytes, bytes = values * item, all = room * item;
    for (uint64_t at = 0, now; at < all; at += now) {
        now = LK_MIN((at < bytes ? bytes : all) - at, sizeof piece);
        memset(piece, 0, (size_t)now);
        if (at < bytes) {
            LK_CHECK(lk_file_read_all(ops, a->file, a->path, piece, (size_t)now,
                                      a->npy.header_bytes + first * item + at, error));
            if (item == sizeof(float)) {
                LK_CHECK(
                    lk_import_turn_floats(piece, (size_t)now, first + at / item, a->path, error));
            }
        }
        LK_CHECK(lk_import_image(f, part, piece, (size_t)now, error));
    }
    return LK_OK;
}

static lk_status copy_frames(const sequences *s, lk_import_files *f, uint64_t frames_max,
                             lk_error *error) {
    reader offsets = {.array = &s->frame_offsets};
    lk_ragged cut = s->frames_cut;
    uint64_t frames;
    LK_CHECK(next_cut(&offsets, &cut, &frames, error));
    for (uint64_t i = 0; i < s->count; i++) {
        const uint64_t first = cut.last;
        LK_CHECK(next_cut(&offsets, &cut, &frames, error));
        if (frames > frames_max) {
            return lk_fail(error, LK_BAD_DATA, "%s: it changed while it was read",
                           s->frame_offsets.path);
        }
        LK_CHECK(copy_example(&s->frames, f, lk_import_place(f, i), first * s->features,
                              frames * s->features, frames_max * s->features, error));
    }
    return LK_OK;
}

static lk_status import_all(sequences *s, lk_import_files *f, const lk_import_ragged *from,
                            const lk_import_to *to, lk_imported out[2], lk_error *error) {
    lk_imported of;
    LK_CHECK(check_all(s, from, &of, error));
    LK_CHECK(lk_import_start(f, to, out, error));
    LK_CHECK(lk_import_begin(f, s->count, &of, error));
    LK_CHECK(copy_labels(s, f, &of, error));
    LK_CHECK(copy_frames(s, f, of.height, error));
    return lk_import_finish(f, error);
}

lk_status lk_import_sequences(const lk_import_ragged *from, const lk_import_to *to,
                              lk_imported out[2], lk_error *error) {
    sequences s = {.open = 0};
    lk_import_files f;
    lk_import_array *const arrays[] = {&s.frames, &s.frame_offsets, &s.labels, &s.label_offsets};
    const char *const paths[] = {from->frames, from->frame_offsets, from->labels,
                                 from->label_offsets};
    lk_status status = LK_OK;
    f.file_count = 0;
    while (s.open < LK_COUNT(arrays) && status == LK_OK) {
        status = lk_import_open_array(arrays[s.open], paths[s.open], error);
        if (status == LK_OK) s.open++;
    }
    if (status == LK_OK) status = import_all(&s, &f, from, to, out, error);
    while (s.open > 0) ops->close(ops->context, arrays[--s.open]->file);
    lk_import_abandon(&f);
    return status;
}
