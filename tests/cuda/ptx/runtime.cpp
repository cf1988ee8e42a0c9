// runtime.cpp - the toolkit's side of a launch, for objects that nvcc made: their fat binaries give
// the PTX, their tables the name of each kernel, their calls the arguments. A launch is enqueued
// like any other of the host layer; when it runs, the executor takes it.
//
// What is called here is what the code that nvcc generates calls (crt/host_runtime.h of the
// toolkit), and cudaLaunchKernelExC. Everything else of the runtime is host.cpp's.
#include <string.h>

#include "ptx.h"

namespace {

struct fat_wrapper {
    uint32_t magic, version;
    const uint8_t *data;
    void *unused;
};
struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;  // of what follows
};
struct fat_entry {
    uint16_t kind, version;  // kind 1: PTX
    uint32_t header_bytes;
    uint64_t bytes;
};
enum { PTX = 1 };
const uint32_t WRAPPER_MAGIC = 0x466243b1, HEADER_MAGIC = 0xba55ed50;

struct named {
    lk_ptx_module *module;
    std::string name;
    lk_ptx_kernel *kernel;  // NULL: not launched yet
};

// By the address of the function that launches them.
std::unordered_map<const void *, named> *kernels(void) {
    static auto *all = new std::unordered_map<const void *, named>();
    return all;
}

struct call {
    lk_ptx_kernel *kernel;
    uint8_t parameters[LK_HOST_CALL_BYTES - sizeof(lk_ptx_kernel *)];
};

// Stands in a launch for what the host layer would call.
void of_ptx(const void *) { lk_host_die("a launch of PTX came to the host layer's threads"); }

void run(const cudaLaunchConfig_t *config, bool together, void (*what)(const void *memory),
         const void *memory, uint64_t seed) {
    if (together) lk_host_die("a cooperative launch, which the executor does not play");
    if (what != of_ptx) lk_host_die("a kernel that nvcc did not compile is launched");
    const call *c = static_cast<const call *>(memory);
    lk_ptx_grid_run(c->kernel, config, c->parameters, seed);
}

lk_ptx_kernel *kernel_of(const void *function) {
    const auto found = kernels()->find(function);
    if (found == kernels()->end()) lk_host_die("a launch of what is no kernel");
    named *n = &found->second;
    if (n->kernel) return n->kernel;
    n->kernel = lk_ptx_find(n->module, n->name);
    if (!n->kernel) lk_host_die("%s is not in its module", n->name.c_str());
    lk_ptx_count_kernel(n->kernel);
    return n->kernel;
}

// The first text of PTX of a fat binary.
void take_ptx(const uint8_t *data, lk_ptx_module *m) {
    const fat_header *h = reinterpret_cast<const fat_header *>(data);
    if (h->magic != HEADER_MAGIC) lk_host_die("a fat binary of an unknown form");
    for (uint64_t at = 0; at < h->bytes;) {
        const uint8_t *entry = data + h->header_bytes + at;
        const fat_entry *e = reinterpret_cast<const fat_entry *>(entry);
        const char *text = reinterpret_cast<const char *>(entry + e->header_bytes);
        if (e->kind == PTX) {
            m->text = text;
            m->bytes = strnlen(text, e->bytes);
            if (!memmem(text, m->bytes, ".address_size", 13)) {
                lk_host_die("a fat binary without plain PTX: compile with --no-compress");
            }
            return;
        }
        at += e->header_bytes + e->bytes;
    }
    lk_host_die("a fat binary without PTX");
}

}  // namespace

// --- what objects of nvcc call -------------------------------------------------------------------

extern "C" {

void **__cudaRegisterFatBinary(void *wrapper) {
    const fat_wrapper *w = static_cast<const fat_wrapper *>(wrapper);
    if (w->magic != WRAPPER_MAGIC) lk_host_die("a fat binary of an unknown form");
    lk_ptx_module *m = new lk_ptx_module();
    take_ptx(w->data, m);
    lk_host_run_grid = run;
    return reinterpret_cast<void **>(m);
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }

void __cudaRegisterFunction(void **module, const char *function, char *, const char *name, int,
                            uint3 *, uint3 *, dim3 *, dim3 *, int *) {
    (*kernels())[function] = {reinterpret_cast<lk_ptx_module *>(module), name, NULL};
}

// Of the persistent kernel, which is linked, but not played: it calls bodies by their addresses,
// and its blocks wait for each other.
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *, const void *, int, size_t,
                                                                   unsigned) {
    lk_host_die("the persistent kernel, which the executor does not play");
}

// Of launches as kernel<<<...>>>, which Lockstep does not make.
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void *) {
    lk_host_die("a launch by <<<...>>>");
}
cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *) {
    lk_host_die("a launch by <<<...>>>");
}
cudaError_t __cudaGetKernel(void **, const void *) { lk_host_die("a launch by <<<...>>>"); }
cudaError_t __cudaLaunchKernel(void *, dim3, dim3, void **, size_t, cudaStream_t) {
    lk_host_die("a launch by <<<...>>>");
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                void **arguments) {
    call c = {kernel_of(function), {0}};
    if (c.kernel->parameter_bytes > sizeof c.parameters) {
        lk_host_die("%s: %u bytes of arguments", c.kernel->name.c_str(), c.kernel->parameter_bytes);
    }
    for (size_t n = 0; n < c.kernel->parameters.size(); n++) {
        const lk_ptx_parameter &p = c.kernel->parameters[n];
        memcpy(c.parameters + p.offset, arguments[n], p.bytes);
    }
    return lk_host_launch(config, c.kernel, of_ptx, &c, sizeof c);
}

}  // extern "C"
