// cuda_memory.cu - the CUDA runtime behind cuda_memory.h. No kernels here.
#include "arena/cuda_memory.h"

#include <cuda_runtime.h>
#include <string.h>

#include "arena/arena.h"

static bool is_missing(cudaError_t code) {
    return code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
           code == cudaErrorMemoryAllocation || code == cudaErrorInitializationError;
}

lk_status lk_cuda_check(int code, const char *what, lk_error *error) {
    const cudaError_t cuda = (cudaError_t)code;
    if (cuda == cudaSuccess) return LK_OK;
    const bool missing = is_missing(cuda);
    return lk_fail(error, missing ? LK_UNAVAILABLE : LK_INTERNAL, "GPU: %s: %s (%s)%s", what,
                   cudaGetErrorString(cuda), cudaGetErrorName(cuda),
                   missing ? "; kernels \"auto\" give the same bits without it" : "");
}

static lk_status no_device(cudaError_t code, lk_error *error) {
    return lk_fail(error, LK_UNAVAILABLE,
                   "kernels \"cuda\": no GPU can be used here: %s (%s); use \"auto\", all variants "
                   "give the same bits",
                   cudaGetErrorString(code), cudaGetErrorName(code));
}

uint32_t lk_cuda_count(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? (uint32_t)count : 0;
}

void lk_cuda_use(uint32_t number) { (void)cudaSetDevice((int)number); }

lk_status lk_cuda_open(lk_cuda_device *device, uint32_t number, lk_error *error) {
    int count = 0, driver = 0, runtime = 0;
    memset(device, 0, sizeof *device);
    device->number = number;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count == 0) code = cudaErrorNoDevice;
    if (code == cudaSuccess && number >= (uint32_t)count) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "GPU %u is wanted, and this process sees %d; use fewer, or look at "
                       "CUDA_VISIBLE_DEVICES",
                       number, count);
    }
    if (code == cudaSuccess) code = cudaSetDevice((int)number);
    if (code == cudaSuccess) code = cudaFree(NULL);  // the context is made now, not at first use
    cudaDeviceProp properties;
    if (code == cudaSuccess) code = cudaGetDeviceProperties(&properties, (int)number);
    if (code != cudaSuccess) return no_device(code, error);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    lk_format(device->name, sizeof device->name, "%s", properties.name);
    device->major = (uint32_t)properties.major;
    device->minor = (uint32_t)properties.minor;
    device->processors = (uint32_t)properties.multiProcessorCount;
    device->driver = (uint32_t)driver;
    device->runtime = (uint32_t)runtime;
    device->total_bytes = properties.totalGlobalMem;
    memcpy(device->id, &properties.uuid, sizeof device->id);
    if (device->major >= LK_CUDA_MAJOR_MIN) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "kernels \"cuda\": %s has compute capability %u.%u, wanted %d.0 or newer; use "
                   "\"auto\", all variants give the same bits",
                   device->name, device->major, device->minor, LK_CUDA_MAJOR_MIN);
}

lk_status lk_cuda_memory_query(lk_cuda_memory *memory, lk_error *error) {
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t code = cudaMemGetInfo(&free_bytes, &total_bytes);
    memory->free_bytes = free_bytes;
    memory->total_bytes = total_bytes;
    return lk_cuda_check(code, "asking for its free memory", error);
}

lk_status lk_cuda_block_take(uint64_t bytes, uint8_t **block, lk_error *error) {
    lk_cuda_memory memory;
    void *base = NULL;
    *block = NULL;
    LK_CHECK(lk_cuda_memory_query(&memory, error));
    cudaError_t code = cudaMalloc(&base, bytes);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();  // said here, in full; nobody else shall find it again
        return lk_fail(
            error, LK_UNAVAILABLE,
            "not enough GPU memory: the plan needs %llu bytes in one piece, %llu of %llu "
            "are free; use fewer replicas, a smaller microbatch_examples or a smaller model "
            "(lockstep plan shows where the bytes go)",
            (unsigned long long)bytes, (unsigned long long)memory.free_bytes,
            (unsigned long long)memory.total_bytes);
    }
    LK_CHECK(lk_cuda_check(code, "taking its memory", error));
    *block = (uint8_t *)base;
    return LK_OK;
}

void lk_cuda_block_give(uint8_t *block) {
    if (block) (void)cudaFree(block);
}

lk_status lk_cuda_pin(void *host, uint64_t bytes, uint8_t **device, lk_error *error) {
    void *there = NULL;
    lk_assert((uintptr_t)host % LK_PAGE_BYTES == 0);
    cudaError_t code =
        cudaHostRegister(host, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    LK_CHECK(lk_cuda_check(code, "pinning host memory", error));
    code = cudaHostGetDevicePointer(&there, host, 0);
    *device = (uint8_t *)there;
    return lk_cuda_check(code, "mapping pinned host memory", error);
}

void lk_cuda_unpin(void *host) {
    if (host) (void)cudaHostUnregister(host);
}
