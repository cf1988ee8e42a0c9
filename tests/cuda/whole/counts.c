// counts.c - says what the program took from its GPU, as the host execution layer counted it:
// allocations of any kind after the seal, bytes of device memory, launches; and of cuBLAS, whose
// operands must each be a tensor of the plan, or a part of one. Wrapped around the program's own
// calls (see CMakeLists.txt); a line or two on stderr at the end of a run.
#include <stdio.h>

#include "apps/run.h"
#include "tests/cuda/host/blas.h"
#include "tests/cuda/host/host.h"

static lk_host_counts sealed;

void __real_lk_arena_seal(lk_arena *arena);
void __wrap_lk_arena_seal(lk_arena *arena);
void __wrap_lk_arena_seal(lk_arena *arena) {
    sealed = lk_host_counted();
    __real_lk_arena_seal(arena);
}

static bool within(lk_host_range range, const uint8_t *at, uint64_t bytes) {
    return range.at >= at && range.at + range.bytes <= at + bytes;
}

// In one tensor of the plan; a result not in a parameter, a node or an input.
static bool planned(const lk_run *run, lk_host_range range, bool result) {
    const lk_program *p = &run->program;
    for (uint32_t r = 0; r < p->layout.replicas; r++) {
        for (uint32_t i = 0; i < p->tensor_count; i++) {
            const lk_tensor *t = &p->tensors[i];
            const bool device = t->region == LK_REGION_DEVICE;
            const uint8_t *region =
                device ? run->gpu.at.device : run->gpu.at.replicas + r * run->gpu.at.replica_bytes;
            if (!within(range, region + t->offset, t->bytes)) continue;
            if (!result || t->class_ == LK_CLASS_ACTIVATION || t->class_ == LK_CLASS_GRADIENT ||
                t->class_ == LK_CLASS_SCRATCH) {
                return true;
            }
        }
    }
    return false;
}

static void say_products(const lk_run *run) {
    const lk_host_blas blas = lk_host_blas_counted();
    uint64_t captured = 0, astray = 0;
    const lk_host_product *p;
    for (uint64_t i = 0; (p = lk_host_product_at(i)); i++) {
        captured += p->captured;
        astray += !planned(run, p->a, false) || !planned(run, p->b, false) ||
                  !planned(run, p->d, true) || p->workspace.at != run->gpu.at.workspace ||
                  p->workspace.bytes != LK_BLAS_WORKSPACE_BYTES ||
                  p->stream != run->gpu.compute.stream;
    }
    if (blas.products == 0) return;
    fprintf(stderr,
            "cuBLAS: %llu products, %llu of them captured, by %llu algorithms; %llu astray\n",
            (unsigned long long)blas.products, (unsigned long long)captured,
            (unsigned long long)blas.heuristics, (unsigned long long)astray);
}

void __real_lk_run_close(lk_run *run);
void __wrap_lk_run_close(lk_run *run);
void __wrap_lk_run_close(lk_run *run) {
    const lk_host_counts now = lk_host_counted();
    fprintf(stderr,
            "device: %llu allocations after the seal, %llu bytes, %llu launches, %llu graph "
            "launches, %llu synchronisations\n",
            (unsigned long long)(now.allocations - sealed.allocations),
            (unsigned long long)now.live_bytes,
            (unsigned long long)(now.launches - sealed.launches),
            (unsigned long long)(now.graph_launches - sealed.graph_launches),
            (unsigned long long)(now.synchronisations - sealed.synchronisations));
    say_products(run);
    __real_lk_run_close(run);
}
