// collective.c - --collective: how bytes travel between replicas. It chooses speed, never the
// result, and a choice that this build or this run cannot have is refused, not replaced.
#include <stdio.h>
#include <string.h>

#include "apps/command.h"

// The words, in the order of lk_collective; those from LK_COLLECTIVE_MPI on need MPI.
static const char *const words[] = {"auto", "threads", "nccl", "mpi", "window", "messages", "ring"};

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
    if (world > 1 && asked == LK_COLLECTIVE_NCCL) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "--collective nccl: found %u workers, and in this version NCCL is between "
                       "the GPUs of one; use auto or mpi, by way of which GPUs of several work",
                       world);
    }
    if (world > 1) return LK_OK;
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

void lk_collective_print(lk_collective asked, uint32_t world, uint32_t gpus, lk_text_out *out) {
    static const char *const among_several[] = {
        [LK_COLLECTIVE_AUTO] = "auto: it is what carries bytes between processes",
        [LK_COLLECTIVE_MPI] = "as asked",
        [LK_COLLECTIVE_WINDOW] = "asked for its window",
        [LK_COLLECTIVE_MESSAGES] = "asked for its messages alone",
        [LK_COLLECTIVE_RING] = "asked for ring, which is the transport of the host",
    };
    if (gpus > 1 && world == 1) {
        lk_text_line(out, "collective: nccl (%s)",
                     asked == LK_COLLECTIVE_AUTO ? "auto: there are several GPUs" : "as asked");
    } else if (world > 1) {
        lk_text_line(out, "collective: mpi (%s)", among_several[asked]);
    } else if (asked == LK_COLLECTIVE_AUTO) {
        lk_text_line(out, "collective: threads (auto: one worker, its replicas share its memory)");
    } else if (asked == LK_COLLECTIVE_THREADS) {
        lk_text_line(out, "collective: threads (as asked)");
    } else {
        lk_text_line(out,
                     "collective: threads (asked for %s, which is between workers: here is one)",
                     words[asked]);
    }
}
