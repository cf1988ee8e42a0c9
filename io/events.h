// events.h - TensorBoard's event files: scalars, pictures and histograms of a run, each record in
// its file when it is added.
//
//   <run>/events.out.tfevents.<seconds>.lockstep.<n>
//
// A file is TFRecords of Event messages (io/README.md, "TensorBoard"). Every process that works on
// a run begins a file of its own. After a resume no step is there twice: what the former ones have
// beyond the step that is gone on from is cut off, and the new one begins with a START, by which a
// TensorBoard that has read it already forgets it.
//
// Host only. Knows nothing of where the numbers come from. Never allocates: the caller gives room.
//
// Intended use:
//
//     lk_events_cut(&dir, step, &cuts, &error);                 // a resumed run
//     lk_events_open(&events, &dir, step + 1, wall, memory, image_bytes, &error);
//     lk_events_begin(&events, wall, step);                     // one record ..
//     lk_events_scalar(&events, "train/loss", loss);            // .. of one value or more
//     lk_events_end(&events, &error);
//     lk_events_close(&events, &error);
#ifndef LOCKSTEP_IO_EVENTS_H
#define LOCKSTEP_IO_EVENTS_H

#include "io/run_dir.h"

#ifdef __cplusplus
extern "C" {
#endif

// Files whose name begins like that are event files.
#define LK_EVENTS_PREFIX "events.out.tfevents."

enum {
    LK_EVENTS_TAG_BYTES = 128,     // of a tag, with its NUL; a longer one is cut
    LK_EVENTS_SCALARS_MAX = 16,    // of one record
    LK_EVENTS_BUCKETS = 64,        // of a histogram
    LK_EVENTS_HELD_BYTES = 32768,  // records that a full disk does not take
};

typedef struct lk_events {
    lk_line_log log;  // file -1: closed, and all calls but open do nothing
    uint8_t *record;  // the message at hand, behind room for its head
    size_t capacity, used;
    double wall;
    uint64_t step;
} lk_events;

// Bytes of memory that lk_events_open wants. image_bytes: of the largest picture; 0: there is none.
size_t lk_events_bytes(size_t image_bytes);

// Begins a new file; `first` is the first step that is still to come. The file is as patient as
// lk_line_log's are where `patient` is.
lk_status lk_events_open(lk_events *events, const lk_run_dir *run, uint64_t first, double wall,
                         void *memory, size_t image_bytes, lk_error *error);

// One record: its values come between begin and end, scalars or one of the others.
void lk_events_begin(lk_events *events, double wall, uint64_t step);
void lk_events_scalar(lk_events *events, const char *tag, float value);
// A picture: a PNG file of `bytes` bytes. channels: 1 of a grey one, 3 of one in colour.
void lk_events_image(lk_events *events, const char *tag, uint32_t height, uint32_t width,
                     uint32_t channels, const uint8_t *png, size_t bytes);
// The values in LK_EVENTS_BUCKETS buckets of one width between the least and the greatest. None of
// them may be NaN or infinite.
void lk_events_histogram(lk_events *events, const char *tag, const float *values, uint64_t count);
lk_status lk_events_end(lk_events *events, lk_error *error);

lk_status lk_events_sync(lk_events *events, lk_error *error);
lk_status lk_events_close(lk_events *events, lk_error *error);

// Is it the name of a file that a run has written? TensorFlow's own files may lie beside them.
bool lk_events_is_ours(const char *name);

// What a cut removed. A record is damaged where its checksum is wrong, not where the file ends
// within it, as a kill leaves it. No reader goes on behind one.
typedef struct lk_events_cuts {
    uint64_t removed_bytes;
    uint32_t damaged;          // files with such a record
    char path[LK_PATH_BYTES];  // the first of them
    uint64_t at, bytes;        // .. where that record begins, what was removed from there on
} lk_events_cuts;

// Resume: cuts every event file of the run after its last record of a step up to `step`, and where
// a record is damaged or torn. One that says nothing then is removed.
lk_status lk_events_cut(const lk_run_dir *run, uint64_t step, lk_events_cuts *cuts,
                        lk_error *error);
// The same of one file, whose cuts are added.
lk_status lk_events_cut_file(const lk_file_ops *ops, const char *path, uint64_t step,
                             lk_events_cuts *cuts, lk_error *error);

#ifdef __cplusplus
}
#endif
#endif
