// cuda_runtime.h - stands in for the toolkit's header of this name, so that .cu files compile as
// C++ and run on the host: the words of CUDA C++ that Lockstep's kernels use.
//
// A block's threads are run one at a time by block.cpp, up to a barrier or a shuffle, in an order
// that a seed decides. Kernels have dynamic shared memory only; every kernel sees the one array of
// the layer, whose bytes beyond the launch's are out of bounds.
#ifndef LOCKSTEP_HOST_CUDA_RUNTIME_H
#define LOCKSTEP_HOST_CUDA_RUNTIME_H

#ifndef __cplusplus
#error "device code is C++: compile .cu files with -x c++"
#endif

#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __shared__  // extern declarations only
#define __forceinline__  inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct uint3 {
    unsigned int x, y, z;
};
struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
        : x(x_), y(y_), z(z_) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

// --- what a thread may do besides arithmetic -----------------------------------------------------

#define LK_HOST_SITE                                                  \
    const char *file = __builtin_FILE(), int line = __builtin_LINE(), \
               const char *function = __builtin_FUNCTION()

void lk_host_block_barrier(const char *file, int line, const char *function);
// Waits for the lanes of `mask`; every lane leaves `mine` and sees what all left.
const uint32_t *lk_host_warp_barrier(uint32_t mask, uint32_t mine, const char *file, int line,
                                     const char *function);
uint32_t lk_host_lane(void);
void lk_host_spin(const char *file, int line, const char *function);

static inline void __syncthreads(LK_HOST_SITE) { lk_host_block_barrier(file, line, function); }
static inline void __syncwarp(uint32_t mask = 0xffffffffu, LK_HOST_SITE) {
    lk_host_warp_barrier(mask, 0, file, line, function);
}

template <typename T>
static inline T lk_host_shuffle(uint32_t mask, T value, uint32_t from, const char *file, int line,
                                const char *function) {
    static_assert(sizeof(T) == 4, "shuffles here move four bytes");
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    const uint32_t *all = lk_host_warp_barrier(mask, bits, file, line, function);
    __builtin_memcpy(&value, &all[from], 4);
    return value;
}
template <typename T>
static inline T __shfl_sync(uint32_t mask, T value, int lane, int width = 32, LK_HOST_SITE) {
    uint32_t me = lk_host_lane(), base = me & ~(uint32_t)(width - 1);
    return lk_host_shuffle(mask, value, base + ((uint32_t)lane & (uint32_t)(width - 1)), file, line,
                           function);
}
template <typename T>
static inline T __shfl_down_sync(uint32_t mask, T value, unsigned int by, int width = 32,
                                 LK_HOST_SITE) {
    uint32_t me = lk_host_lane(), last = me | (uint32_t)(width - 1);
    return lk_host_shuffle(mask, value, me + by > last ? me : me + by, file, line, function);
}
template <typename T>
static inline T __shfl_xor_sync(uint32_t mask, T value, int with, int width = 32, LK_HOST_SITE) {
    uint32_t me = lk_host_lane(), from = me ^ (uint32_t)with, last = me | (uint32_t)(width - 1);
    return lk_host_shuffle(mask, value, from > last ? me : from, file, line, function);
}
static inline uint32_t __ballot_sync(uint32_t mask, int predicate, LK_HOST_SITE) {
    const uint32_t *all = lk_host_warp_barrier(mask, predicate != 0, file, line, function);
    uint32_t votes = 0;
    for (uint32_t lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) && all[lane]) votes |= 1u << lane;
    }
    return votes;
}
static inline int __any_sync(uint32_t mask, int predicate, LK_HOST_SITE) {
    return __ballot_sync(mask, predicate, file, line, function) != 0;
}

// Who sleeps waits for other blocks: they go on meanwhile.
static inline void __nanosleep(unsigned int, LK_HOST_SITE) { lk_host_spin(file, line, function); }

void lk_host_depend(void);
static inline void cudaGridDependencySynchronize(void) { lk_host_depend(); }
static inline void cudaTriggerProgrammaticLaunchCompletion(void) {}
static inline void __threadfence(void) {}

// Integers only: float atomics have no order, and no place in a strict kernel.
static inline uint32_t atomicAdd(uint32_t *at, uint32_t value) {
    uint32_t old = *at;
    *at = old + value;
    return old;
}
static inline uint32_t atomicMin(uint32_t *at, uint32_t value) {
    uint32_t old = *at;
    if (value < old) *at = value;
    return old;
}

// --- arithmetic ----------------------------------------------------------------------------------

static inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}
static inline float __uint_as_float(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
template <typename T>
static inline T __ldg(const T *at) {
    return *at;
}

// --- launches ------------------------------------------------------------------------------------

enum cudaLaunchAttributeID {
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
union cudaLaunchAttributeValue {
    int cooperative, programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned int numAttrs;
};

enum { LK_HOST_CALL_BYTES = 448 };

// Enqueues `call(copy of memory)` for every thread of the grid. `kernel` tells kernels apart.
cudaError_t lk_host_launch(const cudaLaunchConfig_t *config, const void *kernel,
                           void (*call)(const void *memory), const void *memory, size_t bytes);

// A kernel and the arguments of one launch, kept until it runs.
template <typename... Wanted>
struct lk_host_call;
template <>
struct lk_host_call<> {
    template <typename Kernel, typename... Before>
    void run(Kernel kernel, const Before &...before) const {
        kernel(before...);
    }
};
template <typename First, typename... Rest>
struct lk_host_call<First, Rest...> {
    First first;
    lk_host_call<Rest...> rest;
    template <typename Kernel, typename... Before>
    void run(Kernel kernel, const Before &...before) const {
        rest.run(kernel, before..., first);
    }
};
template <typename... Wanted>
struct lk_host_kernel_call {
    void (*kernel)(Wanted...);
    lk_host_call<Wanted...> arguments;
    static void call(const void *memory) {
        const lk_host_kernel_call *self = static_cast<const lk_host_kernel_call *>(memory);
        self->arguments.run(self->kernel);
    }
};

static inline lk_host_call<> lk_host_pack(const lk_host_call<> *) { return {}; }
template <typename First, typename... Rest, typename Given, typename... More>
static inline lk_host_call<First, Rest...> lk_host_pack(const lk_host_call<First, Rest...> *,
                                                        Given &&given, More &&...more) {
    return {static_cast<First>(std::forward<Given>(given)),
            lk_host_pack(static_cast<const lk_host_call<Rest...> *>(nullptr),
                         std::forward<More>(more)...)};
}

template <typename... Wanted, typename... Given>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                             void (*kernel)(Wanted...), Given &&...given) {
    typedef lk_host_kernel_call<Wanted...> call_type;
    static_assert(std::is_trivially_copyable<call_type>::value, "arguments are copied as bytes");
    static_assert(sizeof(call_type) <= LK_HOST_CALL_BYTES, "a launch with too many arguments");
    const lk_host_call<Wanted...> *wanted = nullptr;
    const call_type packed = {kernel, lk_host_pack(wanted, std::forward<Given>(given)...)};
    return lk_host_launch(config, reinterpret_cast<const void *>(kernel), call_type::call, &packed,
                          sizeof packed);
}

template <typename T>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, T *kernel) {
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void *>(kernel));
}
template <typename T>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, T *kernel,
                                                                        int threads,
                                                                        size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks, reinterpret_cast<const void *>(kernel), threads, shared_bytes);
}
template <typename T>
static inline cudaError_t cudaMalloc(T **pointer, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void **>(pointer), bytes);
}

#endif
