// counts.c - says what the program took from its GPU, as the host execution layer counted it:
// allocations of any kind after the seal, bytes of device memory, launches, and bytes that the
// driver took by itself after the seal, which end the program. Wrapped around the program's own
// calls (see CMakeLists.txt); one line on stderr at the end of a run. And gradients of several uses
// take few grains at once, so that small models have several runs of them.
#include <stdio.h>

#include "apps/run/run.h"
#include "comm/cuda/uses.h"
#include "tests/cuda/host/host.h"

static lk_host_counts sealed;
static bool is_sealed;

__attribute__((constructor)) static void take_few_grains(void) { lk_cuda_uses_bytes = 100000; }

// Of the PTX executor, where that is the GPU: it counts the steps of the run alone.
__attribute__((weak)) void lk_ptx_count_anew(void);

void __real_lk_arena_seal(lk_arena *arena);
void __wrap_lk_arena_seal(lk_arena *arena);
void __wrap_lk_arena_seal(lk_arena *arena) {
    sealed = lk_host_counted();
    is_sealed = true;
    if (lk_ptx_count_anew) lk_ptx_count_anew();
    __real_lk_arena_seal(arena);
}

void __real_lk_run_close(lk_run *run);
void __wrap_lk_run_close(lk_run *run);
void __wrap_lk_run_close(lk_run *run) {
    const lk_host_counts now = lk_host_counted();
    fprintf(stderr,
            "device: %llu allocations after the seal, %llu bytes, %llu launches, %llu graph "
            "launches, %llu synchronisations, from GPU %u on, %lld bytes by the driver\n",
            (unsigned long long)(now.allocations - sealed.allocations),
            (unsigned long long)now.live_bytes,
            (unsigned long long)(now.launches - sealed.launches),
            (unsigned long long)(now.graph_launches - sealed.graph_launches),
            (unsigned long long)(now.synchronisations - sealed.synchronisations),
            run->gpu_choice.first_gpu, (long long)(now.driver_bytes - sealed.driver_bytes));
    if (is_sealed) lk_host_took_no_more(sealed.driver_bytes);
    is_sealed = false;
    __real_lk_run_close(run);
    lk_host_ends_groups();
}
