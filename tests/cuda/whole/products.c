// products.c - looks at every call of cuBLAS that the program made, as the stand-in recorded it: an
// operand must be a tensor of the plan or a part of one, a result nothing that others still need.
// Wrapped around the program's own call at the end of a run (see CMakeLists.txt); one line on
// stderr.
#include <stddef.h>
#include <stdio.h>

#include "comm/cuda/step.h"
#include "tests/cuda/host/blas.h"

static bool within(lk_host_range range, const uint8_t *at, uint64_t bytes) {
    return range.at >= at && range.at + range.bytes <= at + bytes;
}

// In one tensor of the plan; a result not in a parameter, a node or an input.
static bool planned(const lk_cuda_step *c, lk_host_range range, bool result) {
    const lk_program *p = c->program;
    for (uint32_t r = 0; r < p->layout.replicas; r++) {
        for (uint32_t i = 0; i < p->tensor_count; i++) {
            const lk_tensor *t = &p->tensors[i];
            const bool device = t->region == LK_REGION_DEVICE;
            const uint8_t *region =
                device ? c->at.device : c->at.replicas + r * c->at.replica_bytes;
            if (!within(range, region + t->offset, t->bytes)) continue;
            if (!result || t->class_ == LK_CLASS_ACTIVATION || t->class_ == LK_CLASS_GRADIENT ||
                t->class_ == LK_CLASS_SCRATCH) {
                return true;
            }
        }
    }
    return false;
}

// Two streams are under way at once: each has a workspace of its own.
static bool alone(const lk_cuda_step *c, const lk_host_product *p) {
    const bool beside = p->stream == c->beside.stream;
    const uint64_t bytes = LK_BLAS_WORKSPACE_BYTES;
    return (beside || p->stream == c->compute.stream) && p->workspace.bytes == bytes &&
           p->workspace.at == c->at.workspace + (beside ? bytes : 0);
}

static void say_products(const lk_cuda_step *c) {
    const lk_host_blas blas = lk_host_blas_counted();
    uint64_t captured = 0, astray = 0;
    const lk_host_product *p;
    for (uint64_t i = 0; (p = lk_host_product_at(i)); i++) {
        captured += p->captured;
        astray += !planned(c, p->a, false) || !planned(c, p->b, false) || !planned(c, p->d, true) ||
                  !alone(c, p);
    }
    if (blas.products == 0) return;
    fprintf(stderr,
            "cuBLAS: %llu products, %llu of them captured, by %llu algorithms; %llu astray\n",
            (unsigned long long)blas.products, (unsigned long long)captured,
            (unsigned long long)blas.heuristics, (unsigned long long)astray);
}

void __real_lk_blas_close(lk_blas *b);
void __wrap_lk_blas_close(lk_blas *b);
void __wrap_lk_blas_close(lk_blas *b) {
    const size_t offset = offsetof(lk_cuda_step, fast) + offsetof(lk_fast, blas);
    say_products((const lk_cuda_step *)(const void *)((const uint8_t *)b - offset));
    __real_lk_blas_close(b);
}
