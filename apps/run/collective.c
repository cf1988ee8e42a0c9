// collective.c - --collective: how bytes travel between replicas. It chooses speed, never the
// result, and a choice that this build or this run cannot have is refused, not replaced.
#include "apps/run/collective.h"

#include <stdlib.h>
#include <string.h>

// The words, in the order of lk_collective; those from LK_COLLECTIVE_MPI on need MPI.
static const char *const words[] = {"auto", "threads", "nccl", "mpi", "window", "messages", "ring"};

const char *lk_collective_word(lk_collective asked) { return words[asked]; }

lk_status lk_collective_parse(const char *text, lk_collective *out, lk_error *error) {
    for (uint32_t i = 0; i < LK_COUNT(words); i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *out = (lk_collective)i;
        return LK_OK;
    }
    const char *near = lk_text_nearest(text, words, LK_COUNT(words));
    return lk_fail(error, LK_BAD_USAGE,
                   "--collective: found \"%s\", wanted auto, threads (replicas of one worker), mpi "
                   "or ring (workers: a window between those of a host, messages between hosts), "
                   "window or messages (the one of these), or nccl (GPUs)%s%s%s",
                   text, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

lk_status lk_collective_choose(lk_collective asked, uint32_t world, lk_mpi_options *mpi,
                               lk_error *error) {
    mpi->messages = asked == LK_COLLECTIVE_MESSAGES;
    if (asked == LK_COLLECTIVE_NCCL && !lk_cuda_linked()) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "--collective nccl: this build has no GPU code; use auto, which takes "
                       "threads for one worker and mpi for several");
    }
    if (asked == LK_COLLECTIVE_THREADS && world > 1) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--collective threads: found %u workers, and threads are of one; use auto "
                       "or mpi, or start one worker with --replicas",
                       world);
    }
    lk_error unheard = {.status = LK_OK};
    if (asked >= LK_COLLECTIVE_MPI && lk_mpi_built(&unheard) != LK_OK) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "--collective %s: this build has no MPI; install libmpich-dev and configure "
                       "with -DLOCKSTEP_MPI=ON, or use auto",
                       words[asked]);
    }
    return LK_OK;
}

lk_status lk_collective_check_gpus(lk_collective asked, uint32_t world, uint32_t gpus,
                                   lk_error *error) {
    if (world > 1 && gpus > 0) return LK_OK;  // lk_collective_choose_way
    if (asked == LK_COLLECTIVE_NCCL && gpus < 2) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "--collective nccl: found %u GPUs to train on, wanted 2 or more; use "
                       "--kernels cuda --gpus N, or auto",
                       gpus);
    }
    if (gpus < 2 || asked == LK_COLLECTIVE_AUTO || asked == LK_COLLECTIVE_NCCL) return LK_OK;
    return lk_fail(
        error, LK_BAD_USAGE,
        "--collective %s: found %u GPUs, between which bytes travel by nccl; use auto or "
        "nccl, or one GPU",
        words[asked], gpus);
}

// --- several workers -----------------------------------------------------------------------------

// What a worker says of its GPUs before all choose the way between them.
typedef struct offer {
    bool opened;                       // its GPUs; if not, its start will say why
    char nccl[16];                     // the version; "": it has none
    uint8_t id[LK_CUDA_GPUS_MAX][16];  // of each GPU
} offer;

static offer offer_of(const lk_run *run) {
    offer mine;
    memset(&mine, 0, sizeof mine);
    lk_error unheard = {.status = LK_OK};
    lk_cuda_device device;
    mine.opened = true;
    for (uint32_t i = 0; i < run->gpu_choice.gpus && mine.opened; i++) {
        mine.opened = run->cuda->open(&device, run->gpu_choice.first_gpu + i, &unheard) == LK_OK;
        memcpy(mine.id[i], device.id, sizeof mine.id[i]);
    }
    if (run->cuda->nccl(mine.nccl, &unheard) != LK_OK) mine.nccl[0] = '\0';
    return mine;
}

static bool share_a_gpu(const lk_worker *a, const offer *of_a, const lk_worker *b,
                        const offer *of_b) {
    for (uint32_t i = 0; i < a->gpus; i++) {
        for (uint32_t k = 0; k < b->gpus; k++) {
            if (memcmp(of_a->id[i], of_b->id[k], sizeof of_a->id[i]) == 0) return true;
        }
    }
    return false;
}

// Why GPUs of these workers cannot exchange by themselves; "" where they can.
static void find_obstacle(const lk_run_workers *w, const offer *offers, char *why, size_t bytes) {
    uint32_t gpus = 0;
    for (uint32_t a = 0; a < w->world && !*why; a++) {
        gpus += w->list[a].gpus;
        if (w->list[a].gpus == 0) {
            lk_format(why, bytes, "rank %u works on no GPU", a);
        } else if (!offers[a].opened || !offers[a].nccl[0]) {
            lk_format(why, bytes, "rank %u has no %s", a, offers[a].opened ? "NCCL" : "such GPU");
        } else if (strcmp(offers[a].nccl, offers[0].nccl) != 0) {
            lk_format(why, bytes, "NCCL is %s at rank 0 and %s at rank %u", offers[0].nccl,
                      offers[a].nccl, a);
        }
        for (uint32_t b = 0; b < a && !*why; b++) {
            if (!share_a_gpu(&w->list[a], &offers[a], &w->list[b], &offers[b])) continue;
            lk_format(why, bytes, "ranks %u and %u share a GPU", b, a);
        }
    }
    if (!*why && gpus > LK_CUDA_PEERS_MAX) {
        lk_format(why, bytes, "there are %u GPUs, wanted at most %d", gpus, LK_CUDA_PEERS_MAX);
    }
}

lk_status lk_collective_choose_way(lk_run *run, lk_collective asked, lk_error *error) {
    lk_run_workers *w = &run->workers;
    uint32_t gpus = 0;
    for (uint32_t i = 0; i < w->world; i++) gpus += w->list[i].gpus;
    if (gpus == 0) return LK_OK;
    lk_mpi_item item = {.name = "--collective"};
    const bool by_hosts = asked != LK_COLLECTIVE_AUTO && asked != LK_COLLECTIVE_NCCL;
    lk_format(item.value, sizeof item.value, "%s", by_hosts ? "mpi" : words[asked]);
    LK_CHECK(lk_mpi_agree(&item, 1, error));
    if (by_hosts) return LK_OK;
    offer mine = {.opened = false}, *offers = calloc(w->world, sizeof *offers);
    if (run->cuda) mine = offer_of(run);
    LK_CHECK(lk_mpi_settle(offers ? LK_OK : lk_fail(error, LK_UNAVAILABLE, "no memory at start-up"),
                           error));
    lk_mpi_gather(&mine, sizeof mine, offers);
    find_obstacle(w, offers, w->why_staged, sizeof w->why_staged);
    free(offers);
    if (asked == LK_COLLECTIVE_NCCL && *w->why_staged) {
        return lk_mpi_settle(lk_fail(error, LK_UNAVAILABLE,
                                     "--collective nccl: %s; use auto or mpi, the result is the "
                                     "same",
                                     w->why_staged),
                             error);
    }
    run->layout.direct = !*w->why_staged;
    run->gpu_choice.way = run->layout.direct ? LK_CUDA_DIRECT : LK_CUDA_STAGED;
    return LK_OK;
}

lk_status lk_collective_imagine(lk_run *run, lk_collective asked, lk_error *error) {
    const uint32_t world = run->workers.world, gpus = run->gpu_choice.gpus;
    if (world == 1 || asked != LK_COLLECTIVE_NCCL) return LK_OK;
    if (gpus == 0 || gpus * world > LK_CUDA_PEERS_MAX) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "--collective nccl: found %u GPUs in %u workers, wanted at least one each "
                       "and at most %d; see --kernels cuda and --gpus",
                       gpus * world, world, LK_CUDA_PEERS_MAX);
    }
    run->layout.direct = true;
    run->gpu_choice.way = LK_CUDA_DIRECT;
    return LK_OK;
}
