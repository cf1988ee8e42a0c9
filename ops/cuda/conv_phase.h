// conv_phase.h - the gradient of the input of a strided convolution, and the transposed
// convolution, as a job of sums.h whose outputs fall into phases (Job::by_phase). What a block
// does; the launches are conv.cu's, and the persistent kernel's.
//
// Tap t of output o reads the input at o * stride + t - pad, in each direction. So of all taps a
// position y meets those that are (y + pad) mod stride, which is its phase: the other products are
// with nothing and are left out. A tile has positions of one phase, whose terms are its taps in
// their order, and the output channels behind each. Leaves are cut where the arithmetic cuts them,
// among the terms of all taps; a leaf of which a phase has nothing is 0.
#ifndef LOCKSTEP_OPS_CUDA_CONV_PHASE_H
#define LOCKSTEP_OPS_CUDA_CONV_PHASE_H

#include "ops/cuda/conv.h"

// How many of count positions (or taps), from `first` on, every `stride`.
static inline __device__ __host__ uint32_t strided_count(uint32_t count, uint32_t first,
                                                         const lk_cuda_divisor &stride) {
    return count > first ? lk_cuda_quotient(count - first - 1, stride) + 1 : 0;
}

// A phase in one direction.
typedef struct phase_axis {
    uint32_t tap, taps;         // the first one and how many
    uint32_t first, positions;  // of the input
    uint32_t reader;            // the output whose tap `tap` is the first position
} phase_axis;

static inline __device__ __host__ phase_axis phase_axis_of(uint32_t phase, uint32_t in,
                                                           uint32_t pad, uint32_t kernel,
                                                           const lk_cuda_divisor &stride) {
    const uint32_t over = pad - lk_cuda_quotient(pad, stride) * stride.by;  // pad mod stride
    phase_axis axis;
    axis.tap = phase;
    axis.taps = strided_count(kernel, phase, stride);
    axis.first = phase >= over ? phase - over : phase + stride.by - over;
    axis.positions = strided_count(in, axis.first, stride);
    axis.reader = lk_cuda_quotient(axis.first + pad, stride);
    return axis;
}

// A phase in both, and how its rows and its terms are taken apart.
typedef struct conv_phase {
    phase_axis y, x;
    uint32_t rows;  // of all examples
    lk_cuda_divisor h, w, taps_w;
} conv_phase;

// A row of a tile: the output that reads it with the first tap of its phase (its number and where
// it is), and the row's number among those of all phases.
struct alignas(16) phase_row {
    uint32_t number, y, x, stored;
};

// What a block of a tile shares, looked up once.
enum { PHASE_ROWS_MAX = 128, PHASE_LEAVES_MAX = 16 };
typedef struct phase_tile {
    conv_phase phase;
    uint32_t leaf_end[1 + PHASE_LEAVES_MAX];  // of the leaf before the first, and of all leaves
    phase_row row[PHASE_ROWS_MAX];            // or as many as the tile has
} phase_tile;

// What lengths a phase can have in one direction: one for each whole stride, and one more.
typedef struct phase_lengths {
    lk_cuda_divisor least, most;
} phase_lengths;

static inline phase_lengths phase_lengths_of(uint32_t count, uint32_t stride) {
    return {lk_cuda_divide_by(LK_MAX(count / stride, 1u)), lk_cuda_divide_by(count / stride + 1)};
}
static inline __device__ __host__ const lk_cuda_divisor &length_of(const phase_lengths &lengths,
                                                                   uint32_t count) {
    return count == lengths.most.by ? lengths.most : lengths.least;
}

struct conv_phase_view;

// Rows are numbered within a phase. Every phase of a launch has as many tiles as the largest one;
// of the smaller ones the last may have nothing to do.
struct conv_phase_job : conv_input_job<false> {
    static constexpr bool by_phase = true;
    static constexpr lk_cuda_body body = LK_CUDA_BODY_CONV_PHASE;
    typedef phase_tile shared;
    typedef conv_phase_view view;
    typedef conv_input_job<false> all;  // whose rows are stored, or joined
    phase_lengths lines, places, taps;  // positions in both directions, and taps of a line
    uint32_t examples;
    lk_cuda_divisor tiles;  // of a phase

    // Floats of shared memory for a tile of `rows` rows.
    static constexpr int shared_floats(int rows) {
        return (int)((sizeof(phase_tile) - (PHASE_ROWS_MAX - rows) * sizeof(phase_row)) /
                     sizeof(float));
    }
    __device__ __host__ uint32_t phases(void) const { return s.stride_h.by * s.stride_w.by; }
    __device__ __host__ conv_phase phase_of(uint32_t number) const {
        const uint32_t line = lk_cuda_quotient(number, s.stride_w);
        conv_phase p;
        p.y = phase_axis_of(line, s.c.in_h, s.c.pad_top, s.c.kernel_h, s.stride_h);
        p.x = phase_axis_of(number - line * s.stride_w.by, s.c.in_w, s.c.pad_left, s.c.kernel_w,
                            s.stride_w);
        p.rows = examples * p.y.positions * p.x.positions;
        p.h = length_of(lines, p.y.positions);
        p.w = length_of(places, p.x.positions);
        p.taps_w = length_of(taps, p.x.taps);
        return p;
    }
    // The terms of a phase among the first u of all taps.
    __device__ __host__ uint32_t terms_before(const conv_phase &p, uint32_t u) const {
        const uint32_t number = lk_cuda_quotient(u, s.out_c);
        const uint32_t y = lk_cuda_quotient(number, s.kernel_w), x = number - y * s.kernel_w.by;
        const uint32_t read = strided_count(y, p.y.tap, s.stride_h);
        uint32_t whole = LK_MIN(read, p.y.taps) * p.x.taps, channels = 0;
        if (read < p.y.taps && p.y.tap + read * s.stride_h.by == y) {
            const uint32_t before = strided_count(x, p.x.tap, s.stride_w);
            whole += before;
            if (p.x.tap + before * s.stride_w.by == x) channels = u - number * s.out_c.by;
        }
        return whole * s.out_c.by + channels;
    }
    // Terms of the part that has most of them.
    uint32_t longest_part(const conv_phase &p, const lk_cuda_terms &t) const {
        uint32_t longest = 0, before = 0;
        for (uint32_t leaf = t.part_leaves; before < terms_before(p, t.example_terms);
             leaf += t.part_leaves) {
            const uint32_t end = terms_before(p, LK_MIN(leaf * LK_SLICE_TERMS, t.example_terms));
            longest = LK_MAX(longest, end - before);
            before = end;
        }
        return longest;
    }
    // The most rows of a phase.
    uint32_t phase_rows(void) const {
        uint32_t most = 0;
        for (uint32_t p = 0; p < phases(); p++) most = LK_MAX(most, phase_of(p).rows);
        return most;
    }
};

// The job of a tile: of one phase.
struct conv_phase_view {
    static constexpr bool by_phase = true;
    static constexpr bool a_is_value = false, a_terms_first = true, b_terms_first = true;
    typedef phase_row row;
    const conv_phase_job &job;
    const phase_tile *tile;
    uint32_t rows, columns, first_row, first_leaf, first_tap;
    lk_cuda_divisor taps_w;

    // All threads of the block call it. Its tile has `tile_rows` rows, the first of them row i0.
    __device__ conv_phase_view(const conv_phase_job &all, const lk_cuda_terms &terms,
                               uint32_t number, uint32_t i0, uint32_t tile_rows,
                               lk_cuda_leaves leaves, phase_tile *own)
        : job(all), tile(own), columns(all.columns), first_row(i0), first_leaf(leaves.first) {
        if (threadIdx.x == 0) own->phase = job.phase_of(number);
        __syncthreads();
        const conv_phase &p = own->phase;
        rows = p.rows;
        first_tap = p.y.tap * job.s.c.kernel_w + p.x.tap;
        taps_w = p.taps_w;
        if (threadIdx.x < tile_rows && i0 + threadIdx.x < rows)
            own->row[threadIdx.x] = look_up(i0 + threadIdx.x);
        if (threadIdx.x <= leaves.end - leaves.first) {
            const uint32_t u = (leaves.first + threadIdx.x) * LK_SLICE_TERMS;
            own->leaf_end[threadIdx.x] = job.terms_before(p, LK_MIN(u, terms.example_terms));
        }
        __syncthreads();
    }
    __device__ phase_row look_up(uint32_t i) const {
        const conv_phase &p = tile->phase;
        const lk_conv2d &c = job.s.c;
        const conv_position at = position_of(i, p.h, p.w);
        const uint32_t reader_y = p.y.reader + at.y, reader_x = p.x.reader + at.x;
        const uint32_t y = p.y.first + at.y * job.s.stride_h.by;
        const uint32_t x = p.x.first + at.x * job.s.stride_w.by;
        return {(at.m * c.out_h + reader_y) * c.out_w + reader_x, reader_y, reader_x,
                (at.m * c.in_h + y) * c.in_w + x};
    }
    __device__ const phase_row &row_of(uint32_t i) const { return tile->row[i - first_row]; }
    __device__ uint32_t stored_row(uint32_t i) const { return row_of(i).stored; }
    __device__ uint32_t leaf_end(uint32_t leaf) const {
        return tile->leaf_end[leaf + 1 - first_leaf];
    }

    __device__ bool a(const row &p, uint32_t u, const float **from) const {
        const conv_tap t = tap_of(u, job.s.out_c, taps_w);
        const lk_conv2d &c = job.s.c;
        if (p.y - t.y >= c.out_h || p.x - t.x >= c.out_w) return false;
        const uint32_t number = p.number - (t.y * c.out_w + t.x);
        *from = job.dy + (uint64_t)number * c.out_c + t.channel;
        return true;
    }
    __device__ float a_instead(const row &) const { return 0.0f; }
    __device__ bool a_by_four() const { return false; }
    __device__ bool b_by_four() const { return false; }
    __device__ bool b(uint32_t u, uint32_t j, const float **from) const {
        const conv_tap t = tap_of(u, job.s.out_c, taps_w);
        const uint32_t line = t.y * job.s.stride_h.by * job.s.c.kernel_w;
        const uint32_t tap = first_tap + line + t.x * job.s.stride_w.by;
        *from = job.w + ((uint64_t)tap * columns + j) * job.s.c.out_c + t.channel;
        return true;
    }
    __device__ float start(uint32_t i, uint32_t j) const { return job.start(i, j); }
};

#endif
