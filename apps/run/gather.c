// gather.c - how the workers of a run come together (train.h): by whom each of them was started,
// where they meet, what they were asked for.
#define _GNU_SOURCE
#include <limits.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "apps/run/cluster.h"
#include "apps/run/train.h"
#include "comm/cluster/rendezvous.h"

// A launcher of MPICH talks to its processes at this socket. One that is gone, as in a shell that a
// launcher started and outlived, would end in MPI's own words.
static lk_status check_launcher(lk_error *error) {
    const char *text = getenv("PMI_FD");
    struct stat about;
    char *end;
    if (!text) return LK_OK;
    unsigned long number = strtoul(text, &end, 10);
    bool good = *text >= '0' && *text <= '9' && *end == '\0' && number <= INT_MAX;
    if (good && fstat((int)number, &about) == 0 && S_ISSOCK(about.st_mode)) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "PMI_FD: found \"%s\", wanted the open socket of the launcher that started this "
                   "process; without one unset PMI_FD, PMI_RANK and PMI_SIZE",
                   text);
}

lk_status lk_gather_read(const lk_gather_options *o, lk_cluster *c, lk_gathering *how,
                         lk_error *error) {
    lk_cluster_report report;
    LK_CHECK(lk_cluster_read(&(lk_cluster_input){.file = o->cluster}, c, &report, error));
    LK_CHECK(lk_cluster_check_replicas(c, o->config.replicas, error));
    bool launched = report.told[LK_CLUSTER_MPICH] != LK_TOLD_NOTHING ||
                    report.told[LK_CLUSTER_OPEN_MPI] != LK_TOLD_NOTHING;
    *how = c->world <= 1 ? LK_ALONE : launched ? LK_LAUNCHED : LK_MEETING;
    if (*how == LK_LAUNCHED) LK_CHECK(check_launcher(error));
    if (*how != LK_MEETING || c->address[LK_CLUSTER_LEADER][0]) return LK_OK;
    // Processes that do not know of each other would each train alone, to the same files.
    return lk_fail(error, LK_UNAVAILABLE,
                   "%s describes %u workers, but neither where rank 0 is, nor did a launcher of "
                   "MPI start this one; start all with: mpiexec -n %u lockstep train CONFIG",
                   c->origin, c->world, c->world);
}

// The socket at which rank 0 listens, where who started this process has opened it; or -1.
static lk_status inherited_listener(int *out, lk_error *error) {
    const char *text = getenv("LOCKSTEP_LISTEN_FD");
    int listens = 0;
    socklen_t bytes = sizeof listens;
    char *end;
    *out = -1;
    if (!text) return LK_OK;
    unsigned long number = strtoul(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == '\0' && number <= INT_MAX) {
        *out = (int)number;
        (void)getsockopt(*out, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes);
    }
    if (listens) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE,
                   "LOCKSTEP_LISTEN_FD: found \"%s\", wanted the number of an inherited socket "
                   "that listens, as lockstep launch gives it; unset it, and rank 0 opens its own",
                   text);
}

static lk_status meet(const lk_gather_options *o, const lk_cluster *c, lk_error *error) {
    int listener = -1;
    if (c->rank == LK_CLUSTER_LEADER) LK_CHECK(inherited_listener(&listener, error));
    const lk_rendezvous_options options = {
        .start_timeout_seconds = o->mpi.start_timeout_seconds,
        .step_timeout_seconds = o->mpi.step_timeout_seconds,
        .key_file = getenv("LOCKSTEP_KEY_FILE"),
        .insecure = o->insecure,
        .listener = listener,
        .waiting = o->mpi.waiting,
    };
    LK_CHECK(lk_mpi_built(error));
    return lk_rendezvous_meet(c, &options, error);
}

lk_status lk_gather(lk_run *run, const lk_gather_options *o, const lk_cluster *cluster,
                    lk_gathering how, lk_error *error) {
    const lk_run_needs needs = {.checkpoints = true, .logs = true};
    lk_config_options config = o->config;
    uint32_t world = cluster->world, rank = cluster->rank;
    config.workers = how == LK_ALONE ? 1 : world;
    if (world > 0) {
        config.own_replicas = cluster->replicas[rank];
        config.worker_replicas = cluster->replicas;
    }
    lk_mpi_options mpi = o->mpi;
    lk_error refused = {.status = LK_OK};
    uint32_t several = how == LK_ALONE ? 1 : world;
    lk_status status = lk_collective_choose(o->collective, several, &mpi, &refused);
    if (how != LK_ALONE) LK_CHECK(lk_mpi_built(error));
    if (how == LK_MEETING) LK_CHECK(meet(o, cluster, error));
    if (how != LK_ALONE) LK_CHECK(lk_mpi_start(world, rank, &mpi, error));
    // What all of them were asked for, and cannot have, is said by one now that they can speak.
    if (status != LK_OK) *error = refused;
    if (status == LK_OK) status = lk_run_configure(run, &config, needs, error);
    run->evaluator = cluster->has_evaluator;
    run->rendezvous_bytes = how == LK_MEETING ? lk_rendezvous_bytes(rank) : 0;
    if (status == LK_OK) {
        status = lk_collective_check_gpus(o->collective, several, run->gpu_choice.gpus, error);
    }
    if (how == LK_ALONE) return status;
    LK_CHECK(lk_run_join(run, world, rank, status, error));
    return lk_collective_choose_way(run, o->collective, error);
}
