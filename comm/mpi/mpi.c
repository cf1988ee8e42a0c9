// mpi.c - MPI behind mpi.h: it is loaded, started and left here, and asked who the workers are.
// What they say and give to each other, and who of them is lost, is not this file's business:
// private.h says whose.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arena/host_memory.h"
#include "comm/mpi/leftover.h"
#include "comm/mpi/private.h"
#include "comm/threads/team.h"
#include "comm/cluster/rendezvous.h"

enum { END_SECONDS = 10, SOCKET_BYTES = 2 << 20, LEFTOVER_SECONDS = 10 };

struct lk_mpi_calls lk_mpi_calls;
struct lk_mpi_common lk_mpi;

static uint32_t host_before;  // workers of lower rank on this host
static uint64_t external;     // bytes that MPI took at its start
static bool broke_off;
static char listens[LK_REACH_TEXT_BYTES];
static lk_status final;  // what the process ends with where leaving takes too long

static bool is_allowed(const char *limit, uint64_t bytes) {
    char text[24] = "";
    int fd = open(limit, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    return got > 0 && strtoull(text, NULL, 10) >= bytes;
}

// UCX, which carries MPICH's messages, begins with the kernel's small socket buffers. A message
// that fits into them goes off at once, instead of piece by piece whenever MPI is called again.
// Where the kernel would give less than is asked for, its own growing buffers are better.
static void widen_sockets(void) {
    const char *transports = getenv("UCX_TLS");
    if (transports && !strstr(transports, "tcp")) return;  // UCX warns of what it does not read
    if (!is_allowed("/proc/sys/net/core/wmem_max", SOCKET_BYTES) ||
        !is_allowed("/proc/sys/net/core/rmem_max", SOCKET_BYTES)) {
        return;
    }
    char text[24];
    lk_format(text, sizeof text, "%d", SOCKET_BYTES);
    setenv("UCX_TCP_SNDBUF", text, 0);
    setenv("UCX_TCP_RCVBUF", text, 0);
}

// Are all workers on this machine? Those that have met know it; a launcher's variables say it.
static bool all_are_here(uint32_t world) {
    static const char *const names[] = {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"};
    if (lk_rendezvous_speaks()) return lk_rendezvous_is_local();
    for (uint32_t i = 0; i < LK_COUNT(names); i++) {
        const char *here = getenv(names[i]);
        if (here) return strtoul(here, NULL, 10) == world;
    }
    const char *hosts = getenv("SLURM_STEP_NUM_NODES");
    return hosts && strcmp(hosts, "1") == 0;
}

static lk_status load_mpi(lk_error *error) {
    void *library = dlopen(LK_MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    const char *missing = library ? NULL : dlerror();
    void *found = NULL;
#define CALL_FIND(name)                                                \
    if (!missing && !(found = dlsym(library, #name))) missing = #name; \
    memcpy(&lk_mpi_calls.name, &found, sizeof found);
    LK_MPI_CALLS(CALL_FIND)
#undef CALL_FIND
    if (!missing) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "this is one of several workers, but MPI cannot be loaded "
                   "from %s: %s; install MPICH",
                   LK_MPI_LIBRARY, missing);
}

// --- start-up ----------------------------------------------------------------------------------

static void gather_peers(void) {
    lk_mpi_peer mine = {.process = getpid(), .host = lk_mpi.rank};
    struct stat space;
    if (stat("/proc/self/ns/pid", &space) == 0) mine.process_namespace = space.st_ino;
    if (gethostname(mine.name, sizeof mine.name - 1) != 0) mine.name[0] = '\0';
    uint32_t lowest = lk_mpi.rank;
    lk_mpi_need(
        LK_MPI_CALL(MPI_Allreduce, &lk_mpi.rank, &lowest, 1, MPI_UINT32_T, MPI_MIN, lk_mpi.host));
    mine.host = lowest;
    lk_mpi_need(LK_MPI_CALL(MPI_Allgather, &mine, sizeof mine, MPI_BYTE, lk_mpi.peers, sizeof mine,
                            MPI_BYTE, lk_mpi.all));
    for (uint32_t w = 0; w < lk_mpi.world; w++) {
        if (lk_mpi.peers[w].host != lowest) continue;
        lk_mpi.host_workers++;
        host_before += w < lk_mpi.rank;
    }
}

lk_status lk_mpi_built(lk_error *error) {
    (void)error;
    return LK_OK;
}

lk_status lk_mpi_start(uint32_t world, uint32_t rank, const lk_mpi_options *options,
                       lk_error *error) {
    if (world > LK_MPI_WORLD_MAX) {
        return lk_fail(error, LK_BAD_CONFIG, "workers: found %u, wanted at most %d", world,
                       LK_MPI_WORLD_MAX);
    }
    lk_mpi.world = world;
    lk_mpi.rank = rank;
    lk_mpi.options = *options;
    lk_mpi.cores = lk_processors();
    lk_mpi.options.reach.local = all_are_here(world);
    LK_CHECK(lk_reach_pin(&lk_mpi.options.reach, rank, error));
    lk_rendezvous_checked();
    (void)lk_leftover_remove(LEFTOVER_SECONDS);
    lk_mpi_wait_for("MPI to start");
    lk_mpi_limit_start();
    (void)atexit(lk_mpi_on_exit);
    int provided, size, place;
    uint64_t before = lk_memory_anonymous();
    widen_sockets();
    LK_CHECK(load_mpi(error));
    if (LK_MPI_CALL(MPI_Init_thread, NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return lk_fail(error, LK_UNAVAILABLE, "rank %u: MPI does not start", rank);
    }
    lk_mpi.started = true;
    // With this signal MPICH's launcher says that a process has died. It is noticed here anyhow,
    // and the signal would only end this one before it can say so.
    signal(SIGUSR1, SIG_IGN);
    LK_MPI_CALL(MPI_Comm_size, MPI_COMM_WORLD, &size);
    LK_MPI_CALL(MPI_Comm_rank, MPI_COMM_WORLD, &place);
    if ((uint32_t)size != world || (uint32_t)place != rank) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "the launcher says rank %u of %u, MPI says rank %d of %d: this build is for "
                       "another MPI than the launcher's; start it with that one's mpiexec",
                       rank, world, place, size);
    }
    // What fails for a request is asked of the first of all communicators.
    LK_MPI_CALL(MPI_Comm_set_errhandler, MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    lk_mpi_need(LK_MPI_CALL(MPI_Comm_dup, MPI_COMM_WORLD, &lk_mpi.all));
    LK_MPI_CALL(MPI_Comm_set_errhandler, lk_mpi.all, MPI_ERRORS_RETURN);
    lk_mpi_need(LK_MPI_CALL(MPI_Comm_split_type, lk_mpi.all, MPI_COMM_TYPE_SHARED, place,
                            MPI_INFO_NULL, &lk_mpi.host));
    uint64_t after = lk_memory_anonymous();
    external = after > before ? after - before : 0;
    gather_peers();
    lk_rendezvous_ask(lk_mpi_look_for_stopped);
    return lk_mpi_settle(lk_reach_check(&lk_mpi.options.reach, rank, listens, error), error);
}

void lk_mpi_host(uint32_t *workers, uint32_t *before) {
    *workers = LK_MAX(lk_mpi.host_workers, 1);
    *before = host_before;
}

bool lk_mpi_is_here(uint32_t rank) {
    return lk_mpi.peers[rank].host == lk_mpi.peers[lk_mpi.rank].host;
}

bool lk_mpi_shares(void) { return !lk_mpi.options.messages && lk_mpi.host_workers == lk_mpi.world; }

const char *lk_mpi_transport(void) {
    if (lk_mpi.options.messages) return "messages";
    return lk_mpi.host_workers == lk_mpi.world
               ? "shared-memory window"
               : "shared-memory window on a host, messages between hosts";
}

const char *lk_mpi_version(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    if (text[0] || LK_MPI_CALL(MPI_Get_library_version, text, &length) != MPI_SUCCESS) return text;
    for (char *at = text; *at; at++) {
        if (*at == '\t' || *at == '\n') *at = *at == '\t' ? ' ' : '\0';
        if (!*at) break;
    }
    return text;
}

const char *lk_mpi_listens(void) { return listens; }

uint64_t lk_mpi_external_bytes(void) { return external; }

// --- the end -----------------------------------------------------------------------------------

static void on_late_end(int signal_number) {
    (void)signal_number;
    _exit(final);
}

// One line to the launcher, and its answer (PMI version 1, as MPICH's launcher speaks it).
static bool launcher_answers(int fd, const char *line) {
    char answer;
    size_t length = strlen(line);
    if (write(fd, line, length) != (ssize_t)length) return false;
    while (read(fd, &answer, 1) == 1) {
        if (answer == '\n') return true;
    }
    return false;
}

void lk_mpi_end_soon(lk_status status) {
    struct sigaction action = {.sa_handler = on_late_end};
    final = status;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    alarm(END_SECONDS);
}

void lk_mpi_break_off(lk_status status) {
    broke_off = true;
    lk_mpi_end_soon(status);
    lk_rendezvous_break_off();
}

// MPI_Finalize of MPICH 4.0 over TCP often never returns (each side waits in UCX for the other to
// close). All rounds are over and nothing is on its way: so the launcher is told, as MPI_Finalize
// would tell it, that all have come to the end, and the process may go.
static void take_leave(void) {
    const char *launcher = getenv("PMI_FD");
    lk_mpi_end_soon(final);
    if (!lk_rendezvous_leave()) {
        // Nobody is there to be told.
    } else if (launcher) {
        int fd = (int)strtol(launcher, NULL, 10);
        if (launcher_answers(fd, "cmd=barrier_in\n")) launcher_answers(fd, "cmd=finalize\n");
    } else {
        lk_mpi_calls.MPI_Finalize();  // not LK_MPI_CALL: who dies now is no loss
    }
    alarm(0);
}

lk_status lk_mpi_finish(lk_exchange *x, lk_status status, lk_error *error) {
    lk_error unheard = {.status = LK_OK};
    if (!lk_mpi.started || broke_off) return status;
    // Whoever has heard the last report of all has nothing more to give to anybody.
    if (lk_mpi.connected && lk_mpi_round(x, LK_ROUND_LAST, lk_mpi.step, &unheard) != LK_OK) {
        // One is gone. If the leader is not, what was to be done is done, and there is nobody with
        // whom an orderly end could be made.
        if (lk_mpi.rank == 0 || lk_mpi_leader_has_come(x)) return status;
        if (status == LK_OK) *error = unheard;
        return status == LK_OK ? unheard.status : status;
    }
    final = status;
    take_leave();
    return status;
}
