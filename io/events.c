// events.c - messages (protobuf.h), frames and CRC32C around them, and the way back as far
// as a cut needs it.
//
//   record  u64 length, u32 masked CRC32C of these 8 bytes, message, u32 masked CRC32C of it
//   Event   1 wall_time (double), 2 step, 3 file_version or 5 Summary or 7 SessionLog
#include "io/events.h"

#include <errno.h>
#include <string.h>
#ifdef LK_HAVE_ISAL
#include <isa-l/crc.h>
#endif

#include "io/protobuf.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie");

enum {
    FRAME_BYTES = 12,               // before the message
    HEAD_BYTES = FRAME_BYTES + 36,  // and what of the message is known last
    VALUE_BYTES = LK_EVENTS_TAG_BYTES + 64,
    HISTOGRAM_BYTES = VALUE_BYTES + 16 * LK_EVENTS_BUCKETS,
    TAIL_BYTES = 4,
};

// Of a message's fields, in the low bits of their tags.
enum { VARINT_KIND = 0, WIDE_KIND = 1, BYTES_KIND = 2, NARROW_KIND = 5 };

static const char version[] = "brain.Event:2";

// --- numbers -------------------------------------------------------------------------------------

// CRC32C, without its last complement.
static uint32_t add_crc(uint32_t crc, const void *bytes, size_t count) {
#ifdef LK_HAVE_ISAL
    return crc32_iscsi((unsigned char *)(uintptr_t)bytes, (int)count, crc);
#else
    for (const uint8_t *at = bytes, *end = at + count; at < end; at++) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    return crc;
#endif
}

// Of a checksum that lies among the bytes that another one covers.
static uint32_t mask(uint32_t crc) {
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static uint32_t masked_crc(const void *bytes, size_t count) {
    return mask(add_crc(UINT32_MAX, bytes, count));
}

// --- a message -----------------------------------------------------------------------------------

static lk_protobuf rest_of(lk_events *e) {
    const size_t begun = HEAD_BYTES + e->used;
    return (lk_protobuf){e->record + begun, e->capacity - TAIL_BYTES - begun, 0};
}

// The record has room for what is put into it: lk_events_bytes.
static void took(lk_events *e, const lk_protobuf *w) {
    lk_assert(lk_protobuf_fits(w));
    e->used += w->used;
}

// A value of the Summary, and its tag.
static size_t begin_value(lk_protobuf *w, const char *tag) {
    const size_t value = lk_protobuf_begin(w, 1);
    lk_protobuf_bytes(w, 1, tag, LK_MIN(strlen(tag), (size_t)LK_EVENTS_TAG_BYTES - 1));
    return value;
}

void lk_events_begin(lk_events *e, double wall, uint64_t step) {
    e->wall = wall;
    e->step = step;
    e->used = 0;
}

void lk_events_scalar(lk_events *e, const char *tag, float value) {
    if (e->log.file < 0) return;
    lk_protobuf w = rest_of(e);
    const size_t begun = begin_value(&w, tag);
    lk_protobuf_float(&w, 2, value);
    lk_protobuf_end(&w, begun);
    took(e, &w);
}

void lk_events_image(lk_events *e, const char *tag, uint32_t height, uint32_t width,
                     uint32_t channels, const uint8_t *png, size_t bytes) {
    if (e->log.file < 0) return;
    lk_protobuf w = rest_of(e);
    const size_t begun = begin_value(&w, tag), image = lk_protobuf_begin(&w, 4);
    lk_protobuf_uint(&w, 1, height);
    lk_protobuf_uint(&w, 2, width);
    lk_protobuf_uint(&w, 3, channels);
    lk_protobuf_bytes(&w, 4, png, bytes);
    lk_protobuf_end(&w, image);
    lk_protobuf_end(&w, begun);
    took(e, &w);
}

// HistogramProto: 1 min, 2 max, 3 num, 4 sum, 5 sum of squares, 6 upper limits, 7 counts.
typedef struct histogram {
    double numbers[5];
    double limit[LK_EVENTS_BUCKETS], bucket[LK_EVENTS_BUCKETS];
} histogram;

// To tell of a model must be cheap beside a step of it: loops that compilers make vectors of
// without fast-math (hence several ends and sums beside each other), and of a large tensor its ends
// alone are of all values, the rest of an even sample.
enum { WAYS = 8, ENDS = 64, BLOCK = 256, SAMPLE = 1 << 14 };

static void find_ends(const float *values, uint64_t count, float *least, float *most) {
    const uint64_t whole = count / ENDS * ENDS;
    float low[ENDS], high[ENDS];
    for (uint32_t k = 0; k < ENDS; k++) low[k] = high[k] = count ? values[0] : 0;
    for (uint64_t i = 0; i < whole; i += ENDS) {
        for (uint32_t k = 0; k < ENDS; k++) {
            low[k] = values[i + k] < low[k] ? values[i + k] : low[k];
            high[k] = values[i + k] > high[k] ? values[i + k] : high[k];
        }
    }
    for (uint64_t i = whole; i < count; i++) {
        low[0] = LK_MIN(low[0], values[i]);
        high[0] = LK_MAX(high[0], values[i]);
    }
    *least = low[0];
    *most = high[0];
    for (uint32_t k = 1; k < ENDS; k++) {
        *least = LK_MIN(*least, low[k]);
        *most = LK_MAX(*most, high[k]);
    }
}

// A block's sums in fp32: more than a curve on a screen can show.
static void add_sums(const float v[BLOCK], uint32_t n, double *all, double *all_squares) {
    const uint32_t whole = n / WAYS * WAYS;
    float sum[WAYS] = {0}, squares[WAYS] = {0};
    for (uint32_t i = 0; i < whole; i += WAYS) {
        for (uint32_t k = 0; k < WAYS; k++) {
            sum[k] += v[i + k];
            squares[k] += v[i + k] * v[i + k];
        }
    }
    for (uint32_t i = whole; i < n; i++) {
        sum[0] += v[i];
        squares[0] += v[i] * v[i];
    }
    for (uint32_t k = 0; k < WAYS; k++) {
        *all += (double)sum[k];
        *all_squares += (double)squares[k];
    }
}

// Each value's bucket, of those that are `1 / per_unit` wide from `least` on. By halves, of which
// no difference is too large for a float; what is no number falls into the last.
static void add_buckets(const float v[BLOCK], uint32_t n, float least, float per_unit,
                        uint32_t found[WAYS][LK_EVENTS_BUCKETS]) {
    const float from_half = 0.5f * least, per_half = 2 * per_unit;
    uint32_t at[BLOCK];
    for (uint32_t i = 0; i < n; i++) {
        at[i] = (uint32_t)(int32_t)((0.5f * v[i] - from_half) * per_half);
        at[i] = LK_MIN(at[i], (uint32_t)LK_EVENTS_BUCKETS - 1);
    }
    for (uint32_t i = 0; i < n; i++) found[i % WAYS][at[i]]++;
}

static void count_values(histogram *h, const float *values, uint64_t count) {
    // Odd, so that it has no divisor in common with rows of 64 or 512 values and meets each column.
    const uint64_t stride = LK_MAX(count / SAMPLE, (uint64_t)1) | 1;
    const uint64_t taken = (count + stride - 1) / stride;
    uint32_t found[WAYS][LK_EVENTS_BUCKETS] = {{0}};
    float low, high, block[BLOCK];
    find_ends(values, count, &low, &high);
    const double least = (double)low, most = (double)high;
    const double width = (most - least) / LK_EVENTS_BUCKETS;
    *h = (histogram){.numbers = {least, most, (double)taken}};
    for (uint32_t i = 0; i < LK_EVENTS_BUCKETS; i++) h->limit[i] = least + width * (i + 1);
    // Those of one value alone have the first bucket, the others limits that still ascend.
    for (uint32_t i = 0; i < LK_EVENTS_BUCKETS && width == 0; i++) h->limit[i] = least + i;
    h->limit[LK_EVENTS_BUCKETS - 1] = width == 0 ? h->limit[LK_EVENTS_BUCKETS - 1] : most;
    // So do those whose buckets are too narrow for a float to say how many fit into 1.
    float per_unit = (float)(width > 0 ? 1 / width : 0);
    if (!(2 * per_unit - 2 * per_unit == 0)) per_unit = 0;
    for (uint64_t from = 0; from < taken; from += BLOCK) {
        const uint32_t n = (uint32_t)LK_MIN(taken - from, (uint64_t)BLOCK);
        for (uint32_t i = 0; i < n; i++) block[i] = values[(from + i) * stride];
        add_sums(block, n, &h->numbers[3], &h->numbers[4]);
        add_buckets(block, n, low, per_unit, found);
    }
    for (uint32_t i = 0; i < LK_EVENTS_BUCKETS; i++) {
        for (uint32_t k = 0; k < WAYS; k++) h->bucket[i] += (double)found[k][i];
    }
}

void lk_events_histogram(lk_events *e, const char *tag, const float *values, uint64_t count) {
    if (e->log.file < 0) return;
    histogram h;
    count_values(&h, values, count);
    lk_protobuf w = rest_of(e);
    const size_t begun = begin_value(&w, tag), proto = lk_protobuf_begin(&w, 5);
    for (uint32_t i = 0; i < LK_COUNT(h.numbers); i++) lk_protobuf_double(&w, i + 1, h.numbers[i]);
    lk_protobuf_doubles(&w, 6, h.limit, LK_EVENTS_BUCKETS);
    lk_protobuf_doubles(&w, 7, h.bucket, LK_EVENTS_BUCKETS);
    lk_protobuf_end(&w, proto);
    lk_protobuf_end(&w, begun);
    took(e, &w);
}

// --- a record ------------------------------------------------------------------------------------

// Puts wall time, step and the field that holds what was put so far before it, and the frame
// around.
static lk_status end_record(lk_events *e, uint32_t field, lk_error *error) {
    uint8_t head[HEAD_BYTES - FRAME_BYTES];
    lk_protobuf w = {head, sizeof head, 0};
    lk_protobuf_double(&w, 1, e->wall);
    lk_protobuf_uint(&w, 2, e->step);
    lk_protobuf_varint(&w, field << 3 | BYTES_KIND);
    lk_protobuf_varint(&w, e->used);
    lk_assert(lk_protobuf_fits(&w));
    uint8_t *message = e->record + HEAD_BYTES - w.used, *begin = message - FRAME_BYTES;
    const uint64_t length = w.used + e->used;
    memcpy(message, head, w.used);
    memcpy(begin, &length, sizeof length);
    const uint32_t head_crc = masked_crc(begin, sizeof length), crc = masked_crc(message, length);
    memcpy(begin + sizeof length, &head_crc, sizeof head_crc);
    memcpy(message + length, &crc, sizeof crc);
    e->used = 0;
    return lk_line_log_add_bytes(&e->log, begin, FRAME_BYTES + (size_t)length + TAIL_BYTES, error);
}

lk_status lk_events_end(lk_events *e, lk_error *error) {
    return e->log.file < 0 || e->used == 0 ? LK_OK : end_record(e, 5, error);
}

// --- a file --------------------------------------------------------------------------------------

static size_t record_bytes(size_t image_bytes) {
    const size_t largest = LK_MAX((size_t)HISTOGRAM_BYTES, image_bytes + VALUE_BYTES);
    return HEAD_BYTES + TAIL_BYTES + LK_MAX(largest, (size_t)LK_EVENTS_SCALARS_MAX * VALUE_BYTES);
}

size_t lk_events_bytes(size_t image_bytes) {
    return 2 * record_bytes(image_bytes) + LK_EVENTS_HELD_BYTES;
}

// A name that no file has: of two processes in one second, too.
static lk_status choose_name(const lk_run_dir *run, double wall, char name[LK_PATH_BYTES],
                             lk_error *error) {
    enum { TRIES = 1000 };
    char path[LK_PATH_BYTES];
    for (uint32_t n = 0; n < TRIES; n++) {
        lk_format(name, LK_PATH_BYTES, LK_EVENTS_PREFIX "%llu.lockstep.%u",
                  (unsigned long long)wall, n);
        LK_CHECK(lk_path_join(path, run->path, "/", name, error));
        const int file = run->ops->open(run->ops->context, path, LK_OPEN_READ);
        if (file == -ENOENT) return LK_OK;
        if (file >= 0) run->ops->close(run->ops->context, file);
    }
    return lk_fail(error, LK_IO_ERROR, "%s: %d event files were begun in one second; wait a second",
                   run->path, TRIES);
}

lk_status lk_events_open(lk_events *e, const lk_run_dir *run, uint64_t first, double wall,
                         void *memory, size_t image_bytes, lk_error *error) {
    char name[LK_PATH_BYTES];
    const size_t capacity = record_bytes(image_bytes);
    *e = (lk_events){.log = {.file = -1}, .record = memory, .capacity = capacity};
    LK_CHECK(choose_name(run, wall, name, error));
    LK_CHECK(lk_line_log_open(&e->log, run, name, (char *)memory + capacity,
                              lk_events_bytes(image_bytes) - capacity, error));
    lk_events_begin(e, wall, 0);
    memcpy(e->record + HEAD_BYTES, version, sizeof version - 1);
    e->used = sizeof version - 1;
    LK_CHECK(end_record(e, 3, error));
    lk_events_begin(e, wall, first);
    lk_protobuf w = rest_of(e);
    lk_protobuf_uint(&w, 1, 1);  // SessionLog: START
    took(e, &w);
    return end_record(e, 7, error);
}

lk_status lk_events_sync(lk_events *e, lk_error *error) {
    return e->log.file < 0 ? LK_OK : lk_line_log_sync(&e->log, error);
}

lk_status lk_events_close(lk_events *e, lk_error *error) {
    return lk_line_log_close(&e->log, error);
}

// --- cutting -------------------------------------------------------------------------------------

static bool read_varint(const uint8_t *bytes, size_t count, size_t *at, uint64_t *out) {
    *out = 0;
    for (unsigned shift = 0; shift < 64 && *at < count; shift += 7) {
        const uint8_t byte = bytes[(*at)++];
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

// The step of a message by its first bytes: it comes before what is long. Without one it is 0.
static uint64_t step_of(const uint8_t *bytes, size_t count) {
    uint64_t tag, value = 0;
    for (size_t at = 0; read_varint(bytes, count, &at, &tag);) {
        const bool step = tag >> 3 == 2;
        switch (tag & 7) {
        case VARINT_KIND:
            if (!read_varint(bytes, count, &at, &value)) return 0;
            if (step) return value;
            break;
        case WIDE_KIND: at += 8; break;
        case NARROW_KIND: at += 4; break;
        default: return 0;
        }
        if (at > count) return 0;
    }
    return 0;
}

typedef struct reading {
    const lk_file_ops *ops;
    int file;
    const char *path;
    uint64_t bytes;
} reading;

typedef enum record_state { WHOLE, TORN, DAMAGED } record_state;

// The record at `at`: whether it is whole, its step and where it ends.
static lk_status read_record(const reading *r, uint64_t at, record_state *state, uint64_t *step,
                             uint64_t *end, lk_error *error) {
    uint8_t piece[4096];
    uint64_t length;
    uint32_t found, crc = UINT32_MAX;
    *state = TORN;
    if (r->bytes - at < FRAME_BYTES) return LK_OK;
    LK_CHECK(lk_file_read_all(r->ops, r->file, r->path, piece, FRAME_BYTES, at, error));
    memcpy(&length, piece, sizeof length);
    memcpy(&found, piece + sizeof length, sizeof found);
    if (masked_crc(piece, sizeof length) != found) {
        *state = DAMAGED;
        return LK_OK;
    }
    at += FRAME_BYTES;
    if (r->bytes - at < TAIL_BYTES || length > r->bytes - at - TAIL_BYTES) return LK_OK;
    *end = at + length + TAIL_BYTES;
    for (uint64_t done = 0; done < length; done += sizeof piece) {
        const size_t count = (size_t)LK_MIN(length - done, (uint64_t)sizeof piece);
        LK_CHECK(lk_file_read_all(r->ops, r->file, r->path, piece, count, at + done, error));
        crc = add_crc(crc, piece, count);
        if (done == 0) *step = step_of(piece, count);
    }
    if (length == 0) *step = 0;
    LK_CHECK(lk_file_read_all(r->ops, r->file, r->path, &found, sizeof found, at + length, error));
    *state = mask(crc) == found ? WHOLE : DAMAGED;
    return LK_OK;
}

// `last`: what ends the part that is kept, or WHOLE.
static lk_status scan(const reading *r, uint64_t step, uint64_t *keep, uint64_t *records,
                      record_state *last, lk_error *error) {
    uint64_t version_end = 0;
    bool ahead = false;
    *keep = *records = 0;
    *last = WHOLE;
    while (*keep < r->bytes) {
        uint64_t found = 0, end = 0;
        LK_CHECK(read_record(r, *keep, last, &found, &end, error));
        // The second record, START, is of the step behind the one that its process went on from: an
        // evaluation of that one may follow.
        const bool is_start = *records == 1;
        if (*last != WHOLE || found > step + is_start) break;
        if (is_start) version_end = *keep;
        ahead = is_start && found > step;
        *keep = end;
        ++*records;
    }
    if (!ahead) return LK_OK;
    *keep = version_end;  // nothing follows it
    *records = 1;
    return LK_OK;
}

static void count_cut(lk_events_cuts *cuts, const reading *r, uint64_t keep, record_state last) {
    cuts->removed_bytes += r->bytes - keep;
    if (last != DAMAGED || cuts->damaged++) return;
    lk_format(cuts->path, sizeof cuts->path, "%s", r->path);
    cuts->at = keep;
    cuts->bytes = r->bytes - keep;
}

lk_status lk_events_cut_file(const lk_file_ops *ops, const char *path, uint64_t step,
                             lk_events_cuts *cuts, lk_error *error) {
    reading r = {.ops = ops, .path = path};
    record_state last;
    uint64_t keep = 0, records = 0;
    r.file = ops->open(ops->context, path, LK_OPEN_UPDATE);
    if (r.file < 0) return lk_file_fail(error, LK_IO_ERROR, path, "open", r.file);
    const int64_t bytes = ops->size(ops->context, r.file);
    r.bytes = (uint64_t)bytes;
    if (bytes < 0) {
        lk_file_fail(error, LK_IO_ERROR, path, "take the size", bytes);
    } else if (scan(&r, step, &keep, &records, &last, error) == LK_OK && keep < r.bytes) {
        const int cut = ops->truncate(ops->context, r.file, keep);
        if (cut < 0)
            lk_file_fail(error, LK_IO_ERROR, path, "cut", cut);
        else
            count_cut(cuts, &r, keep, last);
    }
    lk_file_sync_close(ops, r.file, path, error);
    if (error->status != LK_OK || records > 1) return error->status;
    const int removed = ops->remove(ops->context, path);  // its version at most is left
    return removed < 0 ? lk_file_fail(error, LK_IO_ERROR, path, "remove", removed) : LK_OK;
}

// Other writers' files begin alike: only <digits>.lockstep.<digits> behind it is of a run.
bool lk_events_is_ours(const char *name) {
    static const char between[] = ".lockstep.";
    const char *digits = "0123456789";
    if (strncmp(name, LK_EVENTS_PREFIX, sizeof LK_EVENTS_PREFIX - 1) != 0) return false;
    name += sizeof LK_EVENTS_PREFIX - 1;
    const size_t seconds = strspn(name, digits);
    if (seconds == 0 || strncmp(name + seconds, between, sizeof between - 1) != 0) return false;
    name += seconds + sizeof between - 1;
    const size_t number = strspn(name, digits);
    return number > 0 && name[number] == '\0';
}

typedef struct cutting {
    const lk_run_dir *run;
    uint64_t step;
    lk_events_cuts *cuts;
    lk_error *error;
} cutting;

static void cut_one(void *context, const char *name) {
    const cutting *c = context;
    char path[LK_PATH_BYTES];
    if (c->error->status != LK_OK) return;
    if (!lk_events_is_ours(name)) return;
    if (lk_path_join(path, c->run->path, "/", name, c->error) != LK_OK) return;
    (void)lk_events_cut_file(c->run->ops, path, c->step, c->cuts, c->error);
}

lk_status lk_events_cut(const lk_run_dir *run, uint64_t step, lk_events_cuts *cuts,
                        lk_error *error) {
    cutting c = {run, step, cuts, error};
    *cuts = (lk_events_cuts){.damaged = 0};
    const int listed = run->ops->list(run->ops->context, run->path, cut_one, &c);
    if (listed < 0 && error->status == LK_OK) {
        return lk_file_fail(error, LK_IO_ERROR, run->path, "list the directory", listed);
    }
    return error->status;
}
