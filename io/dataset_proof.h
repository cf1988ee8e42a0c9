// dataset_proof.h - whether the bytes of an open data set are those that were hashed. io/ only;
// what others call is in dataset.h.
//
// All image bytes of the open parts, then all their labels, are cut into chunks of 64 KiB at most,
// none over the end of a file; equal numbers of chunks make a piece, at most LK_DATA_PIECES of
// them. A piece's hash is the chain of its chunks' XXH3.
#ifndef LOCKSTEP_IO_DATASET_PROOF_H
#define LOCKSTEP_IO_DATASET_PROOF_H

#include "io/data_file.h"
#include "io/dataset.h"

// Where a walk over the chunks is.
typedef struct lk_dataset_cursor {
    uint32_t span;    // images of each part, then labels of each part
    uint64_t offset;  // in the span
    uint64_t chunk;   // of the whole set
    uint64_t hash;    // of the piece so far
} lk_dataset_cursor;

struct lk_dataset_proof {
    uint64_t chunks, chunks_a_piece;
    uint32_t pieces;
    uint64_t piece[LK_DATA_PIECES];
    lk_dataset_cursor scrub;
};

// Cuts an opened set into pieces.
void lk_dataset_cut(lk_dataset *set);

// The hashes of all pieces as they are now; the pieces that there are not: 0.
void lk_dataset_hash_pieces(const lk_dataset *set, uint64_t piece[LK_DATA_PIECES]);

// Are some pieces what the proof says, 16 MiB of them chosen by chance, and the last one? Or all?
// LK_BAD_DATA with `why` behind the file's name.
lk_status lk_dataset_prove_some(const lk_dataset *set, const char *why, lk_error *error);
lk_status lk_dataset_prove_all(const lk_dataset *set, const char *why, lk_error *error);

// The first piece that differs from `piece`; LK_OK where there is none.
lk_status lk_dataset_compare(const lk_dataset *set, const uint64_t piece[LK_DATA_PIECES],
                             const char *why, lk_error *error);

#endif
