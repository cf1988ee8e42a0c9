// made_up.h - made-up images that can be learnt: for tests, benchmarks, machines without data.
//
// Core: freestanding, integers only, so that every machine writes the same bytes. Each class has a
// pattern of 8 x 8 cells; an image is its class's pattern, moved a little, under three times as
// much noise. No pixel tells the class, all together do: a small network starts at chance and
// passes 90% after some tens of steps. Training and test sets have one seed and different ranges.
//
// Exactly (golden bytes are in tests/io/made_up_test.c). All random words are Philox4x32-10
// (arena/philox.h), purpose LK_PURPOSE_MADE_UP_DATA; below(word, n) = (word x n) >> 32 in 64 bits;
// byte(block, k) = (block.word[k / 4] >> 8 (k mod 4)) & 255, for k = 0 .. 15; divisions round down.
//
//   example e = first + index
//   head      block of counter (low 32 of e, high 32 of e, 0, 0)
//             label = below(word[0], classes)
//             dy = below(word[1], height / 8 + 1),  dx = below(word[2], width / 8 + 1)
//   pattern   of label, channel, cell: byte(block, cell mod 16), where block has the counter
//             (cell / 16, label, channel, 2)
//   noise     of value i of the image: byte(block, i mod 16), where block has the counter
//             (low 32 of e, high 32 of e, i / 16, 1)
//   image     [y][x][channel] = (pattern + 3 noise + 2) / 4, where
//             cell = 8 (((y + dy) mod height) 8 / height) + ((x + dx) mod width) 8 / width
#ifndef LOCKSTEP_IO_MADE_UP_H
#define LOCKSTEP_IO_MADE_UP_H

#include "arena/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_made_up {
    uint64_t seed;
    uint64_t first;     // example 0 of this set is made-up example `first`; 0 for training sets
    uint64_t count;     // examples; first + count at most 2^40
    uint32_t height;    // pixels, 1 to 65,535
    uint32_t width;     // pixels, 1 to 65,535
    uint32_t channels;  // 1 to 16
    uint32_t classes;   // 1 to 65,536
} lk_made_up;

// Are the numbers in their ranges, and the images at most 2^62 bytes? LK_BAD_CONFIG names the key.
lk_status lk_made_up_check(const lk_made_up *made_up, lk_error *error);

// height x width x channels
uint64_t lk_made_up_image_bytes(const lk_made_up *made_up);

// Writes one example; `made_up` passed lk_made_up_check.
//
// index   below count
// image   (height, width, channels), written entirely
// label   below classes
void lk_made_up_example(const lk_made_up *made_up, uint64_t index, uint8_t *image, uint32_t *label);

#ifdef __cplusplus
}
#endif
#endif
