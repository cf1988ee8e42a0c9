// mpi.c - MPI behind mpi.h: start-up in blocking calls under an alarm, turns in plain memory
// between the workers of a host and in persistent requests between hosts.
//
// A worker's part of the window:  | control: turn word, two notes | what it shares or gives |
// The turn word counts all that its worker has given, and beside it stands how much of which turn;
// the others wait for that, first spinning, then asleep in the kernel. Dead workers are noticed by
// their process descriptors.
#define _GNU_SOURCE
#include "comm/mpi.h"

#include "arena/arena.h"
#include "comm/team.h"

enum { CONTROL_BYTES = 4096 };

// A page more than is used: where a worker is alone on its host, MPI's memory begins anywhere.
uint64_t lk_mpi_window_bytes(uint64_t bytes) {
    return CONTROL_BYTES + lk_round_up(bytes, LK_PAGE_BYTES) + LK_PAGE_BYTES;
}

#ifdef LK_HAVE_MPI
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <mpi.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arena/host_memory.h"
#include "comm/clock.h"
#include "comm/rendezvous.h"

enum { SLEEP_MS = 10, LOOK_MS = 50, LAST_WORD_MS = 500, END_SECONDS = 10, SOCKET_BYTES = 2 << 20 };

// What the requests between two workers carry. Notes have two places, so two of each; boxes and
// sums are of a part.
enum { NOTE_EVEN, NOTE_ODD, BOX, SUM = BOX + LK_PARTS_MAX, KINDS = SUM + LK_PARTS_MAX };

enum { TURNS = LK_TURN_LAST + 1 };

typedef struct control {
    _Alignas(64) uint32_t given[TURNS];  // parts, since the start
    double given_at[TURNS];              // when the last was, by the clock of this host
    _Alignas(64) uint32_t turn;
    _Alignas(64) uint32_t sleepers;
    _Alignas(64) lk_note notes[2];
} control;

_Static_assert(sizeof(control) <= CONTROL_BYTES, "the control part is one page");

typedef struct peer {
    uint32_t host;  // the lowest rank on its host
    int64_t process;
    uint64_t process_namespace;
    char name[LK_MPI_HOST_BYTES];
} peer;

typedef struct verdict {
    uint32_t item;  // the first that differs from the leader's, or LK_NONE
    char value[LK_MPI_ITEM_BYTES];
} verdict;

static struct {
    bool started, sealed;
    bool connected;
    lk_status final;
    bool broken;  // MPI has said that a connection is
    bool over;    // they have settled on an end
    uint32_t world, rank, host_workers, host_before;
    uint32_t cores;  // that this process may use, before its threads are pinned to some of them
    lk_mpi_options options;
    uint64_t foreign;
    const char *waiting_for;  // during start-up
    MPI_Comm all, host;
    peer peers[LK_MPI_WORLD_MAX];
    verdict verdicts[LK_MPI_WORLD_MAX];
    uint32_t statuses[LK_MPI_WORLD_MAX];
    control *controls[LK_MPI_WORLD_MAX];  // NULL where messages are used
    uint32_t turn, notes_turn, spins;
    uint32_t given[TURNS];                 // as in the control part, and how many there were when
    uint32_t wanted[TURNS][LK_PARTS_MAX];  // a part was given: so many the others must have given
    bool leader_saves;                     // as the last notes said
    uint64_t step;                         // of the last turn
    struct pollfd watched[LK_MPI_WORLD_MAX];
    uint32_t watched_rank[LK_MPI_WORLD_MAX], watched_count;
    bool some_dead, dead[LK_MPI_WORLD_MAX];
    // Requests with the workers that messages are used with.
    uint32_t far_count, far[LK_MPI_WORLD_MAX];
    lk_note *far_notes[2];
    MPI_Status ignored[LK_MPI_WORLD_MAX];
    MPI_Request receives[KINDS][LK_MPI_WORLD_MAX], sends[KINDS][LK_MPI_WORLD_MAX];
} mpi;

// MPI is loaded where a launcher is, not linked: a process alone is not touched by it (UCX, below
// MPICH, puts itself between a program and its calls for memory as soon as it is loaded).
#define MPI_CALLS(X)           \
    X(MPI_Allgather)           \
    X(MPI_Allreduce)           \
    X(MPI_Bcast)               \
    X(MPI_Comm_dup)            \
    X(MPI_Comm_rank)           \
    X(MPI_Comm_set_errhandler) \
    X(MPI_Comm_size)           \
    X(MPI_Comm_split_type)     \
    X(MPI_Finalize)            \
    X(MPI_Get_library_version) \
    X(MPI_Info_create)         \
    X(MPI_Info_free)           \
    X(MPI_Info_set)            \
    X(MPI_Init_thread)         \
    X(MPI_Recv_init)           \
    X(MPI_Request_get_status)  \
    X(MPI_Send_init)           \
    X(MPI_Startall)            \
    X(MPI_Testall)             \
    X(MPI_Win_allocate_shared) \
    X(MPI_Win_shared_query)

static struct {
#define CALL_FIELD(name) __typeof__(&name) name;
    MPI_CALLS(CALL_FIELD)
#undef CALL_FIELD
} calls;

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
    if (!is_allowed("/proc/sys/net/core/wmem_max", SOCKET_BYTES) ||
        !is_allowed("/proc/sys/net/core/rmem_max", SOCKET_BYTES)) {
        return;
    }
    char text[24];
    lk_format(text, sizeof text, "%d", SOCKET_BYTES);
    setenv("UCX_TCP_SNDBUF", text, 0);
    setenv("UCX_TCP_RCVBUF", text, 0);
}

static lk_status load_mpi(lk_error *error) {
    void *library = dlopen(LK_MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    const char *missing = library ? NULL : dlerror();
    void *found = NULL;
#define CALL_FIND(name)                                                \
    if (!missing && !(found = dlsym(library, #name))) missing = #name; \
    memcpy(&calls.name, &found, sizeof found);
    MPI_CALLS(CALL_FIND)
#undef CALL_FIND
    if (!missing) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "this is one of several workers, but MPI cannot be loaded "
                   "from %s: %s; install MPICH",
                   LK_MPI_LIBRARY, missing);
}

// --- start-up ----------------------------------------------------------------------------------

// Is worker w's process number one that this process understands?
static bool is_watchable(uint32_t w) {
    const peer *p = &mpi.peers[w], *mine = &mpi.peers[mpi.rank];
    return mpi.host_workers > 0 && p->host == mine->host &&
           p->process_namespace == mine->process_namespace;
}

static const char is_stopped[] = "is stopped", has_died[] = "has died";

// What the kernel says of worker w, where it can be asked; NULL: nothing bad.
static const char *trouble_of(uint32_t w) {
    const peer *p = &mpi.peers[w];
    char path[40], text[256];
    if (w == mpi.rank || !is_watchable(w)) return NULL;
    lk_format(path, sizeof path, "/proc/%lld/stat", (long long)p->process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return has_died;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[LK_MAX(got, 0)] = '\0';
    const char *state = strrchr(text, ')');
    if (!state || strlen(state) < 3) return NULL;
    return strchr("Tt", state[2]) ? is_stopped : strchr("ZX", state[2]) ? has_died : NULL;
}

static uint32_t first_who(const char *trouble) {
    uint32_t w = 0;
    while (w < mpi.world && trouble_of(w) != trouble) w++;
    return w < mpi.world ? w : LK_NONE;
}

// The end of start-up, in one line; safe in a signal handler. Others may have died of waiting for
// one that is stopped.
_Noreturn static void give_up(const char *why) {
    char line[400], who[160] = "";
    lk_rendezvous_last_word();
    uint32_t stopped = first_who(is_stopped);
    uint32_t w = stopped != LK_NONE ? stopped : first_who(has_died);
    if (w != LK_NONE) {
        lk_format(who, sizeof who, "; rank %u on %s (process %lld) %s", w, mpi.peers[w].name,
                  (long long)mpi.peers[w].process, w == stopped ? is_stopped : has_died);
    }
    size_t n = lk_format(line, sizeof line,
                         "lockstep: rank %u: %s, waiting for %s%s; is every one of the %u workers "
                         "running? see --start-timeout\n",
                         mpi.rank, why, mpi.waiting_for, who, mpi.world);
    ssize_t written = write(STDERR_FILENO, line, LK_MIN(n, sizeof line - 1));
    (void)written;
    _exit(LK_RETRY);
}

static void on_alarm(int signal_number) {
    char why[64];
    (void)signal_number;
    lk_format(why, sizeof why, "start-up did not end within %u s",
              mpi.options.start_timeout_seconds);
    give_up(why);
}

// Whoever is lost may have given up since another is stopped.
static void look_for_stopped(uint32_t lost) {
    uint32_t stopped = first_who(is_stopped);
    if (stopped != LK_NONE && stopped != lost) give_up("start-up does not end");
}

// Where the workers have found each other by themselves, the sign of life tells more, and a moment
// later.
static void let_rendezvous_speak(void) {
    const struct timespec t = {.tv_nsec = LAST_WORD_MS * 1000000};
    (void)nanosleep(&t, NULL);
}

// A blocking call of start-up: the others are all there, or nothing goes on.
static void need(int result) {
    if (result == MPI_SUCCESS) return;
    alarm(0);  // its word would wait for this one's
    let_rendezvous_speak();
    give_up("a connection of MPI broke during start-up");
}

static void gather_peers(void) {
    peer mine = {.process = getpid(), .host = mpi.rank};
    struct stat space;
    if (stat("/proc/self/ns/pid", &space) == 0) mine.process_namespace = space.st_ino;
    if (gethostname(mine.name, sizeof mine.name - 1) != 0) mine.name[0] = '\0';
    uint32_t lowest = mpi.rank;
    need(calls.MPI_Allreduce(&mpi.rank, &lowest, 1, MPI_UINT32_T, MPI_MIN, mpi.host));
    mine.host = lowest;
    need(calls.MPI_Allgather(&mine, sizeof mine, MPI_BYTE, mpi.peers, sizeof mine, MPI_BYTE,
                             mpi.all));
    for (uint32_t w = 0; w < mpi.world; w++) {
        if (mpi.peers[w].host != lowest) continue;
        mpi.host_workers++;
        mpi.host_before += w < mpi.rank;
    }
}

static uint32_t processors(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed) : 1;
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
    mpi.world = world;
    mpi.rank = rank;
    mpi.options = *options;
    mpi.cores = processors();
    mpi.waiting_for = "MPI to start";
    struct sigaction action = {.sa_handler = on_alarm};
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    uint32_t spent = LK_MIN(lk_rendezvous_seconds(), options->start_timeout_seconds - 1);
    alarm(options->start_timeout_seconds - spent);
    int provided, size, place;
    uint64_t before = lk_memory_anonymous();
    widen_sockets();
    LK_CHECK(load_mpi(error));
    if (calls.MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return lk_fail(error, LK_UNAVAILABLE, "rank %u: MPI does not start", rank);
    }
    mpi.started = true;
    // With this signal MPICH's launcher says that a process has died. It is noticed here anyhow,
    // and the signal would only end this one before it can say so.
    signal(SIGUSR1, SIG_IGN);
    calls.MPI_Comm_size(MPI_COMM_WORLD, &size);
    calls.MPI_Comm_rank(MPI_COMM_WORLD, &place);
    if ((uint32_t)size != world || (uint32_t)place != rank) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "the launcher says rank %u of %u, MPI says rank %d of %d: this build is for "
                       "another MPI than the launcher's; start it with that one's mpiexec",
                       rank, world, place, size);
    }
    // What fails for a request is asked of the first of all communicators.
    calls.MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    need(calls.MPI_Comm_dup(MPI_COMM_WORLD, &mpi.all));
    calls.MPI_Comm_set_errhandler(mpi.all, MPI_ERRORS_RETURN);
    need(calls.MPI_Comm_split_type(mpi.all, MPI_COMM_TYPE_SHARED, place, MPI_INFO_NULL, &mpi.host));
    uint64_t after = lk_memory_anonymous();
    mpi.foreign = after > before ? after - before : 0;
    gather_peers();
    lk_rendezvous_ask(look_for_stopped);
    return LK_OK;
}

void lk_mpi_host(uint32_t *workers, uint32_t *before) {
    *workers = LK_MAX(mpi.host_workers, 1);
    *before = mpi.host_before;
}

bool lk_mpi_is_here(uint32_t rank) { return mpi.peers[rank].host == mpi.peers[mpi.rank].host; }

bool lk_mpi_shares(void) { return !mpi.options.messages && mpi.host_workers == mpi.world; }

const char *lk_mpi_transport(void) {
    if (mpi.options.messages) return "messages";
    return mpi.host_workers == mpi.world ? "shared-memory window"
                                         : "shared-memory window on a host, messages between hosts";
}

const char *lk_mpi_version(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    if (text[0] || calls.MPI_Get_library_version(text, &length) != MPI_SUCCESS) return text;
    for (char *at = text; *at; at++) {
        if (*at == '\t' || *at == '\n') *at = *at == '\t' ? ' ' : '\0';
        if (!*at) break;
    }
    return text;
}

uint64_t lk_mpi_foreign_bytes(void) { return mpi.foreign; }

// `mpi.statuses` says how everybody fares.
static lk_status settled(lk_status mine, lk_error *error) {
    uint32_t first = 0;
    while (first < mpi.world && mpi.statuses[first] == LK_OK) first++;
    if (first == mpi.world) return LK_OK;
    lk_status theirs = (lk_status)mpi.statuses[first];
    mpi.over = true;
    // Of several with the same trouble one line is enough.
    if (mine == LK_OK || (mine == theirs && first != mpi.rank)) {
        error->status = LK_OK;
        return theirs;
    }
    return mine;
}

lk_status lk_mpi_settle(lk_status mine, lk_error *error) {
    if (mpi.over) return mine;
    mpi.waiting_for = "the other workers to be ready";
    uint32_t status = mine;
    need(calls.MPI_Allgather(&status, 1, MPI_UINT32_T, mpi.statuses, 1, MPI_UINT32_T, mpi.all));
    return settled(mine, error);
}

lk_status lk_mpi_meet(lk_status mine, const lk_worker *worker, lk_worker *workers,
                      lk_error *error) {
    LK_CHECK(lk_mpi_settle(mine, error));
    need(calls.MPI_Allgather(worker, sizeof *worker, MPI_BYTE, workers, sizeof *worker, MPI_BYTE,
                             mpi.all));
    for (uint32_t w = 0, before = 0; w < mpi.world; before += workers[w++].replicas) {
        workers[w].before = before;
    }
    return LK_OK;
}

lk_status lk_mpi_agree(const lk_mpi_item *items, uint32_t count, lk_error *error) {
    enum { ITEMS_MAX = 16 };
    static char leaders[ITEMS_MAX][LK_MPI_ITEM_BYTES];
    lk_assert(count <= ITEMS_MAX);
    mpi.waiting_for = "the other workers to agree";
    for (uint32_t i = 0; i < count; i++) memcpy(leaders[i], items[i].value, sizeof leaders[i]);
    need(calls.MPI_Bcast(leaders, sizeof leaders, MPI_BYTE, 0, mpi.all));
    verdict mine = {.item = LK_NONE};
    for (uint32_t i = count; i-- > 0;) {
        if (memcmp(leaders[i], items[i].value, sizeof leaders[i]) == 0) continue;
        mine.item = i;
        memcpy(mine.value, items[i].value, sizeof mine.value);
    }
    need(calls.MPI_Allgather(&mine, sizeof mine, MPI_BYTE, mpi.verdicts, sizeof mine, MPI_BYTE,
                             mpi.all));
    for (uint32_t w = 1; w < mpi.world; w++) {
        const verdict *v = &mpi.verdicts[w];
        if (v->item == LK_NONE) continue;
        if (mpi.rank != 0) return LK_RANKS_DISAGREE;  // the leader says it
        return lk_fail(error, LK_RANKS_DISAGREE,
                       "rank 0 on %s and rank %u on %s do not run the same: %s is %s on the one "
                       "and %s on the other; give all workers the same program, configuration and "
                       "data",
                       mpi.peers[0].name, w, mpi.peers[w].name, items[v->item].name,
                       items[v->item].value, v->value);
    }
    return LK_OK;
}

void lk_mpi_wait_for(const char *what) { mpi.waiting_for = what; }

void lk_mpi_broadcast(void *bytes, uint64_t count) {
    uint8_t *at = bytes;
    for (uint64_t left = count; left > 0;) {
        int now = (int)LK_MIN(left, (uint64_t)1 << 30);
        need(calls.MPI_Bcast(at, now, MPI_BYTE, 0, mpi.all));
        at += now;
        left -= (uint64_t)now;
    }
}

void lk_mpi_gather(const void *mine, uint64_t bytes, void *all) {
    need(calls.MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, mpi.all));
}

// --- window and requests -----------------------------------------------------------------------

static bool is_near(uint32_t w) { return !mpi.options.messages && lk_mpi_is_here(w); }

uint64_t lk_mpi_inbox_bytes(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t rank) {
    const lk_parts parts = lk_exchange_parts(p);
    uint64_t floats = 0, notes = 0;
    for (uint32_t w = 0; mpi.started && w < world; w++) {
        if (w == rank || is_near(w)) continue;
        floats += lk_exchange_box_floats(p, workers, world, w, rank) +
                  lk_exchange_sum_floats(&parts, world, w, parts.count);
        notes += 2;
    }
    return lk_round_up(notes * sizeof(lk_note), 64) + floats * sizeof(float);
}

static control *control_at(void *base) {
    return (control *)(void *)(uintptr_t)lk_round_up((uintptr_t)base, LK_PAGE_BYTES);
}

// Each part on pages of its own is what "alloc_shared_noncontig" is for.
lk_status lk_mpi_window(uint64_t payload, uint8_t **mine, lk_error *error) {
    uint64_t bytes = lk_mpi_window_bytes(payload);
    MPI_Win window;
    MPI_Info info;
    void *base;
    mpi.waiting_for = "the window between the workers of a host";
    calls.MPI_Info_create(&info);
    calls.MPI_Info_set(info, "alloc_shared_noncontig", "true");
    int failed = calls.MPI_Win_allocate_shared((MPI_Aint)bytes, 1, info, mpi.host, &base, &window);
    calls.MPI_Info_free(&info);
    if (failed) {
        let_rendezvous_speak();
        return lk_fail(error, LK_UNAVAILABLE,
                       "MPI gives no window of %llu bytes between the workers of a host; is there "
                       "room in /dev/shm?",
                       (unsigned long long)bytes);
    }
    memset(base, 0, bytes);
    (void)mlock(base, bytes);  // a wish, as for the arena
    mpi.controls[mpi.rank] = control_at(base);
    *mine = lk_mpi_window_of(mpi.rank);
    for (uint32_t w = 0, member = 0; w < mpi.world; w++) {
        if (!lk_mpi_is_here(w)) continue;
        MPI_Aint size;
        int unit;
        calls.MPI_Win_shared_query(window, (int)member++, &size, &unit, &base);
        if (w == mpi.rank || !is_near(w)) continue;
        mpi.controls[w] = control_at(base);
        // Every page is in this process's tables before the first step.
        for (MPI_Aint at = 0; at < size; at += LK_PAGE_BYTES) (void)((volatile uint8_t *)base)[at];
    }
    return LK_OK;
}

uint8_t *lk_mpi_window_of(uint32_t rank) {
    return mpi.controls[rank] ? (uint8_t *)mpi.controls[rank] + CONTROL_BYTES : NULL;
}

// What holds nothing is not sent.
static void request(int kind, uint32_t at, const void *out, const void *in, uint64_t out_count,
                    uint64_t in_count, MPI_Datatype type) {
    int to = out_count ? (int)mpi.far[at] : MPI_PROC_NULL;
    int from = in_count ? (int)mpi.far[at] : MPI_PROC_NULL;
    calls.MPI_Send_init(out, (int)out_count, type, to, kind, mpi.all, &mpi.sends[kind][at]);
    calls.MPI_Recv_init((void *)in, (int)in_count, type, from, kind, mpi.all,
                        &mpi.receives[kind][at]);
}

// Boxes and sums of a part, with far worker `at`; they come to `in`. Returns where it ends.
static float *request_part(lk_exchange *x, uint32_t part, uint32_t at, float *in) {
    const uint32_t w = mpi.far[at], place = part * x->world + w;
    lk_slice own = lk_part_slice(&x->parts.part[part], x->world, x->rank);
    lk_slice theirs = lk_part_slice(&x->parts.part[part], x->world, w);
    uint64_t own_floats = own.end - own.begin, their_floats = theirs.end - theirs.begin;
    uint64_t box_in = lk_exchange_slots(x->program, &x->workers[w]) * own_floats;
    const float *sum = x->sum_out + lk_exchange_sum_floats(&x->parts, x->world, x->rank, part);
    x->box[place] = in;
    x->sum[place] = in + box_in;
    request(BOX + (int)part, at, x->boxes_out + x->slots * theirs.begin, in,
            x->slots * their_floats, box_in, MPI_FLOAT);
    request(SUM + (int)part, at, sum, in + box_in, own_floats, their_floats, MPI_FLOAT);
    return in + box_in + their_floats;
}

// Inbox: notes (2, far workers), then for each its boxes and its slices.
static lk_status make_requests(lk_exchange *x, void *inbox, lk_error *error) {
    const lk_program *p = x->program;
    control *own = mpi.controls[mpi.rank];
    for (uint32_t w = 0; w < x->world; w++) {
        if (w != x->rank && !is_near(w)) mpi.far[mpi.far_count++] = w;
    }
    mpi.far_notes[0] = inbox;
    mpi.far_notes[1] = mpi.far_notes[0] + mpi.far_count;
    float *at =
        (float *)(void *)((uint8_t *)inbox + lk_round_up(2 * mpi.far_count * sizeof(lk_note), 64));
    for (uint32_t i = 0; i < mpi.far_count; i++) {
        uint32_t w = mpi.far[i];
        uint64_t in = lk_exchange_box_floats(p, x->workers, x->world, w, x->rank);
        uint64_t out = lk_exchange_box_floats(p, x->workers, x->world, x->rank, w);
        if (LK_MAX(in, out) > INT_MAX) {
            return lk_fail(error, LK_BAD_CONFIG,
                           "a message of %llu floats between ranks %u and %u, wanted below 2^31; "
                           "use more workers",
                           (unsigned long long)LK_MAX(in, out), x->rank, w);
        }
        for (int n = 0; n < 2; n++) {
            request(NOTE_EVEN + n, i, &own->notes[n], &mpi.far_notes[n][i], sizeof(lk_note),
                    sizeof(lk_note), MPI_BYTE);
        }
        for (uint32_t k = 0; k < x->parts.count; k++) at = request_part(x, k, i, at);
    }
    return LK_OK;
}

// Descriptors of the processes of this host: readable when they end. Where process numbers mean
// something else there, or the kernel is too old, the deadline alone remains.
static void watch_processes(void) {
    for (uint32_t w = 0; w < mpi.world; w++) {
        if (w == mpi.rank || !is_watchable(w)) continue;
        int fd = (int)syscall(SYS_pidfd_open, (pid_t)mpi.peers[w].process, 0);
        if (fd < 0) continue;
        mpi.watched_rank[mpi.watched_count] = w;
        mpi.watched[mpi.watched_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
}

// MPI may notice here, too, that a connection broke.
static void start_requests(MPI_Request *requests) {
    if (mpi.far_count == 0 || mpi.broken) return;
    mpi.broken = calls.MPI_Startall((int)mpi.far_count, requests) != MPI_SUCCESS;
}

static void start_receives(int kind) { start_requests(mpi.receives[kind]); }

lk_status lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error) {
    const lk_program *p = x->program;
    uint32_t lanes = 0;
    for (uint32_t w = 0; w < x->world; w++) {
        if (lk_mpi_is_here(w)) lanes += x->workers[w].gpus ? 1 : x->workers[w].replicas;
        if (!mpi.controls[w] || !lk_exchange_boxes(p)) continue;
        const float *boxes = (const float *)(void *)lk_mpi_window_of(w);
        uint64_t slots = lk_exchange_slots(p, &x->workers[w]);
        for (uint32_t k = 0; k < x->parts.count; k++) {
            uint32_t place = k * x->world + w;
            lk_slice own = lk_part_slice(&x->parts.part[k], x->world, x->rank);
            x->box[place] = boxes + slots * own.begin;
            x->sum[place] =
                boxes + slots * p->loss_offset + lk_exchange_sum_floats(&x->parts, x->world, w, k);
        }
    }
    mpi.spins = lanes <= mpi.cores ? LK_SPINS_ALONE : LK_SPINS_SHARED;
    x->boxes_out = (float *)(void *)lk_mpi_window_of(x->rank);
    x->sum_out = x->boxes_out + x->slots * p->loss_offset;
    x->note_out = &mpi.controls[x->rank]->notes[0];
    LK_CHECK(lk_mpi_settle(make_requests(x, inbox, error), error));
    watch_processes();
    start_receives(NOTE_EVEN);
    for (uint32_t k = 0; k < x->parts.count; k++) start_receives(BOX + (int)k);
    mpi.waiting_for = "the first exchange";
    static const lk_turn all[] = {LK_TURN_BOXES, LK_TURN_SUMS, LK_TURN_NOTES};
    for (uint32_t i = 0; i < 4 * LK_COUNT(all); i++) {
        LK_CHECK(lk_mpi_turn(x, all[i % LK_COUNT(all)], 0, error));
    }
    mpi.connected = true;
    return LK_OK;
}

void lk_mpi_seal(void) {
    alarm(0);
    lk_rendezvous_run();
    mpi.sealed = true;
}

// --- turns -------------------------------------------------------------------------------------

static const char *phase_name(lk_turn turn) {
    static const char *const names[] = {"reduce", "apply", "reduce", "evaluation", "end"};
    return names[turn];
}

// What is given and awaited at once: one part of a turn.
typedef struct gift {
    lk_turn turn;
    uint32_t wanted;  // so many parts of the turn a worker has given when it has given this one
    int kinds[2];
    uint32_t count;
    bool notes;
} gift;

// Notes go with the boxes of the last part.
static gift gift_of(const lk_exchange *x, lk_turn turn, uint32_t part) {
    gift g = {.turn = turn, .wanted = mpi.wanted[turn][part]};
    g.notes = turn == LK_TURN_BOXES ? part + 1 == x->parts.count : turn != LK_TURN_SUMS;
    if (g.notes) g.kinds[g.count++] = NOTE_EVEN + (int)(mpi.notes_turn & 1);
    if (turn == LK_TURN_BOXES) g.kinds[g.count++] = BOX + (int)part;
    if (turn == LK_TURN_SUMS) g.kinds[g.count++] = SUM + (int)part;
    return g;
}

static bool has_come(uint32_t w, const gift *g) {
    const control *c = mpi.controls[w];
    return !c || (int32_t)(__atomic_load_n(&c->given[g->turn], __ATOMIC_ACQUIRE) - g->wanted) >= 0;
}

static void arrive(lk_turn turn) {
    control *own = mpi.controls[mpi.rank];
    own->given_at[turn] = lk_seconds();
    __atomic_store_n(&own->given[turn], ++mpi.given[turn], __ATOMIC_SEQ_CST);
    __atomic_store_n(&own->turn, ++mpi.turn, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&own->sleepers, __ATOMIC_SEQ_CST) == 0) return;
    syscall(SYS_futex, &own->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

// Until worker w gives something, or a short while.
static void sleep_on(uint32_t w, const gift *g) {
    control *c = mpi.controls[w];
    const struct timespec while_ = {.tv_nsec = SLEEP_MS * 1000000};
    __atomic_add_fetch(&c->sleepers, 1, __ATOMIC_SEQ_CST);
    uint32_t turn = __atomic_load_n(&c->turn, __ATOMIC_SEQ_CST);
    if (!has_come(w, g)) syscall(SYS_futex, &c->turn, FUTEX_WAIT, turn, &while_, NULL, 0);
    __atomic_sub_fetch(&c->sleepers, 1, __ATOMIC_SEQ_CST);
}

static lk_status lost(uint32_t w, const char *how, lk_turn turn, lk_error *error) {
    if (!mpi.sealed) {
        alarm(0);
        let_rendezvous_speak();
        lk_rendezvous_last_word();
        return lk_fail(error, LK_RETRY, "rank %u: rank %u on %s (process %lld) %s during start-up",
                       mpi.rank, w, mpi.peers[w].name, (long long)mpi.peers[w].process, how);
    }
    return lk_fail(error, LK_RETRY,
                   "rank %u: rank %u on %s (process %lld) %s, noticed at step %llu in phase %s; "
                   "the last checkpoint stands, go on with --resume",
                   mpi.rank, w, mpi.peers[w].name, (long long)mpi.peers[w].process, how,
                   (unsigned long long)mpi.step, phase_name(turn));
}

// Has worker w given what is wanted?
static bool has_given(uint32_t w, const gift *g) {
    if (!has_come(w, g)) return false;
    for (uint32_t i = 0; i < mpi.far_count; i++) {
        for (uint32_t k = 0; mpi.far[i] == w && k < g->count; k++) {
            int there = 1;
            calls.MPI_Request_get_status(mpi.receives[g->kinds[k]][i], &there, MPI_STATUS_IGNORE);
            if (!there) return false;
        }
    }
    return true;
}

// The first that has not; LK_NONE where only a send does not end.
static uint32_t first_missing(const gift *g) {
    uint32_t w = 0;
    while (w < mpi.world && has_given(w, g)) w++;
    return w < mpi.world ? w : LK_NONE;
}

// Marks those who have died. Is there one?
static bool look_for_dead(void) {
    uint32_t gone;
    if (lk_rendezvous_lost(&gone)) mpi.some_dead = mpi.dead[gone] = true;
    if (mpi.watched_count == 0 || poll(mpi.watched, mpi.watched_count, 0) <= 0) {
        return mpi.some_dead;
    }
    for (uint32_t i = 0; i < mpi.watched_count; i++) {
        if (mpi.watched[i].revents & POLLIN) {
            mpi.some_dead = mpi.dead[mpi.watched_rank[i]] = true;
        }
    }
    return mpi.some_dead;
}

// Who of the dead is to blame: one that is missing, the first that the chief has missed before all
// others. One that has given all that the turn wants may have given up because it missed another,
// as this worker is about to: so not if the waiting was already long.
static uint32_t dead_to_blame(bool for_long, uint32_t missing, const gift *g) {
    uint32_t first = LK_NONE;
    if (lk_rendezvous_lost(&first) && !has_given(first, g)) return first;
    for (uint32_t w = 0; w < mpi.world; w++) {
        if (!mpi.dead[w]) continue;
        if (first == LK_NONE) first = w;
        if (missing != LK_NONE && !has_given(w, g)) return w;
    }
    return for_long && missing != LK_NONE ? LK_NONE : first;
}

// A disk may take longer than a step. Nothing is waited for from a leader that the kernel calls
// stopped.
static bool may_be_saving(uint32_t w, double seconds, lk_turn turn) {
    return w == 0 && mpi.leader_saves && turn != LK_TURN_SUMS && trouble_of(0) != is_stopped &&
           seconds < (double)LK_MPI_SAVE_TIMES * mpi.options.step_timeout_seconds;
}

// Is this the end of a waiting of so many seconds?
static lk_status judge_silence(double seconds, const gift *g, lk_error *error) {
    double limit = mpi.options.step_timeout_seconds;
    bool some_dead = look_for_dead(), late = mpi.sealed && seconds >= limit;
    if (!some_dead && !mpi.broken && !late) return LK_OK;
    uint32_t missing = first_missing(g);
    if (missing == LK_NONE && mpi.far_count == 0) return LK_OK;  // the last has just come
    uint32_t dead = dead_to_blame(2 * seconds >= limit, missing, g);
    if (dead != LK_NONE) return lost(dead, "has died", g->turn, error);
    if (missing == LK_NONE) missing = mpi.far[0];
    if (late && may_be_saving(missing, seconds, g->turn)) return LK_OK;
    if (late) return lost(missing, "is silent for longer than --step-timeout", g->turn, error);
    // A connection to one of the dead may have broken while another is waited for.
    if (some_dead || !mpi.broken) return LK_OK;
    return lost(missing, "is cut off: MPI says its connection broke", g->turn, error);
}

static bool messages_done(const gift *g) {
    int done = !mpi.broken, failed = 0, n = (int)mpi.far_count;
    for (uint32_t k = 0; k < g->count && done && !failed; k++) {
        failed = calls.MPI_Testall(n, mpi.receives[g->kinds[k]], &done, mpi.ignored);
        if (!done || failed) continue;
        failed = calls.MPI_Testall(n, mpi.sends[g->kinds[k]], &done, mpi.ignored);
    }
    mpi.broken = mpi.broken || failed;
    return done && !failed;
}

static lk_status wait_for_all(const gift *g, lk_error *error) {
    double begin = 0, looked = 0;
    uint32_t near = 0;
    bool far_done = mpi.far_count == 0;
    for (uint32_t spins = 0;; spins++) {
        while (near < mpi.world && has_come(near, g)) near++;
        far_done = far_done || messages_done(g);
        if (near == mpi.world && far_done) return LK_OK;
        if (spins < mpi.spins) {
            lk_relax();
            continue;
        }
        if (begin == 0) begin = looked = lk_seconds();
        if (far_done) {
            sleep_on(near, g);
        } else {
            sched_yield();
        }
        double time = lk_seconds();
        if (time - looked < 1e-3 * LOOK_MS) continue;
        looked = time;
        LK_CHECK(judge_silence(time - begin, g, error));
    }
}

void lk_mpi_give(lk_exchange *x, lk_turn turn, uint32_t part, uint64_t step) {
    mpi.step = step;
    // Receives for what comes after this, before anybody can be that far.
    if (turn == LK_TURN_SUMS) start_receives(BOX + (int)part);
    if (turn == LK_TURN_BOXES) start_receives(SUM + (int)part);
    arrive(turn);
    mpi.wanted[turn][part] = mpi.given[turn];
    const gift g = gift_of(x, turn, part);
    if (g.notes && turn != LK_TURN_LAST) start_receives(NOTE_EVEN + (int)(~mpi.notes_turn & 1));
    for (uint32_t k = 0; k < g.count; k++) start_requests(mpi.sends[g.kinds[k]]);
}

double lk_mpi_last_given(lk_turn turn) {
    double last = 0;
    for (uint32_t w = 0; w < mpi.world; w++) {
        if (mpi.controls[w]) last = LK_MAX(last, mpi.controls[w]->given_at[turn]);
    }
    return last;
}

bool lk_mpi_look(const lk_exchange *x, lk_turn turn, uint32_t part) {
    const gift g = gift_of(x, turn, part);
    uint32_t near = 0;
    while (near < mpi.world && has_come(near, &g)) near++;
    return (mpi.far_count == 0 || messages_done(&g)) && near == mpi.world;
}

lk_status lk_mpi_await(lk_exchange *x, lk_turn turn, uint32_t part, lk_error *error) {
    const gift g = gift_of(x, turn, part);
    uint32_t parity = mpi.notes_turn & 1;
    LK_CHECK(wait_for_all(&g, error));
    if (!g.notes) return LK_OK;
    for (uint32_t w = 0; w < x->world; w++) {
        if (mpi.controls[w]) x->note[w] = &mpi.controls[w]->notes[parity];
    }
    for (uint32_t i = 0; i < mpi.far_count; i++) x->note[mpi.far[i]] = &mpi.far_notes[parity][i];
    // Whoever was asked to stop, the leader saves then.
    mpi.leader_saves = x->note[0]->saves;
    for (uint32_t w = 0; w < x->world; w++) mpi.leader_saves |= x->note[w]->stop != 0;
    mpi.notes_turn++;
    x->note_given = &mpi.controls[x->rank]->notes[parity];
    x->note_out = &mpi.controls[x->rank]->notes[parity ^ 1];
    return LK_OK;
}

lk_status lk_mpi_look_for_dead(uint64_t step, lk_error *error) {
    mpi.step = step;
    const gift none = {.turn = LK_TURN_STEP, .wanted = mpi.given[LK_TURN_STEP]};
    if (!look_for_dead()) return LK_OK;
    return lost(dead_to_blame(false, LK_NONE, &none), "has died", LK_TURN_STEP, error);
}

lk_status lk_mpi_turn(lk_exchange *x, lk_turn turn, uint64_t step, lk_error *error) {
    uint32_t parts = turn == LK_TURN_BOXES || turn == LK_TURN_SUMS ? x->parts.count : 1;
    for (uint32_t k = 0; k < parts; k++) lk_mpi_give(x, turn, k, step);
    for (uint32_t k = 0; k < parts; k++) LK_CHECK(lk_mpi_await(x, turn, k, error));
    return LK_OK;
}

static void on_late_end(int signal_number) {
    (void)signal_number;
    _exit(mpi.final);
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

// The leader comes to the end when all is saved. That it has, is heard a little later than that it
// has gone.
static bool leader_has_come(const lk_exchange *x) {
    const gift g = gift_of(x, LK_TURN_LAST, 0);
    double begin = lk_seconds();
    bool come = has_given(0, &g);
    while (!come && lk_seconds() - begin < 1e-3 * LAST_WORD_MS) {
        sched_yield();
        come = has_given(0, &g);
    }
    return come;
}

void lk_mpi_end_soon(lk_status status) {
    struct sigaction action = {.sa_handler = on_late_end};
    mpi.final = status;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    alarm(END_SECONDS);
}

// MPI_Finalize of MPICH 4.0 over TCP often never returns (each side waits in UCX for the other to
// close). All turns are over and nothing is on its way: so the launcher is told, as MPI_Finalize
// would tell it, that all have come to the end, and the process may go.
static void take_leave(void) {
    const char *launcher = getenv("PMI_FD");
    lk_mpi_end_soon(mpi.final);
    if (!lk_rendezvous_leave()) {
        // Nobody is there to be told.
    } else if (launcher) {
        int fd = (int)strtol(launcher, NULL, 10);
        if (launcher_answers(fd, "cmd=barrier_in\n")) launcher_answers(fd, "cmd=finalize\n");
    } else {
        calls.MPI_Finalize();
    }
    alarm(0);
}

lk_status lk_mpi_finish(lk_exchange *x, lk_status status, lk_error *error) {
    lk_error unheard = {.status = LK_OK};
    if (!mpi.started) return status;
    // Whoever has heard the last note of all has nothing more to give to anybody.
    if (mpi.connected && lk_mpi_turn(x, LK_TURN_LAST, mpi.step, &unheard) != LK_OK) {
        // One is gone. If the leader is not, what was to be done is done, and there is nobody with
        // whom an orderly end could be made.
        if (mpi.rank == 0 || leader_has_come(x)) return status;
        if (status == LK_OK) *error = unheard;
        return status == LK_OK ? unheard.status : status;
    }
    mpi.final = status;
    take_leave();
    return status;
}

#else
static lk_status no_mpi(lk_error *error) {
    return lk_fail(error, LK_UNAVAILABLE,
                   "this is one of several workers, but this build has no MPI; install "
                   "libmpich-dev and configure with -DLOCKSTEP_MPI=ON, or run it alone");
}

lk_status lk_mpi_built(lk_error *error) { return no_mpi(error); }

lk_status lk_mpi_start(uint32_t world, uint32_t rank, const lk_mpi_options *options,
                       lk_error *error) {
    (void)world, (void)rank, (void)options;
    return no_mpi(error);
}

// Nobody comes here: lk_mpi_start has refused.
void lk_mpi_host(uint32_t *workers, uint32_t *before) { *workers = 1, *before = 0; }
bool lk_mpi_is_here(uint32_t rank) { return rank == 0; }
bool lk_mpi_shares(void) { return false; }
const char *lk_mpi_version(void) { return ""; }
const char *lk_mpi_transport(void) { return ""; }
uint64_t lk_mpi_foreign_bytes(void) { return 0; }

lk_status lk_mpi_settle(lk_status mine, lk_error *error) {
    return mine == LK_OK ? no_mpi(error) : mine;
}

lk_status lk_mpi_meet(lk_status mine, const lk_worker *worker, lk_worker *workers,
                      lk_error *error) {
    (void)worker, (void)workers;
    return lk_mpi_settle(mine, error);
}

lk_status lk_mpi_agree(const lk_mpi_item *items, uint32_t count, lk_error *error) {
    (void)items, (void)count;
    return no_mpi(error);
}

void lk_mpi_wait_for(const char *what) { (void)what; }
void lk_mpi_broadcast(void *bytes, uint64_t count) { (void)bytes, (void)count; }
void lk_mpi_gather(const void *mine, uint64_t bytes, void *all) {
    (void)mine, (void)bytes, (void)all;
}

uint64_t lk_mpi_inbox_bytes(const lk_program *p, const lk_worker *workers, uint32_t world,
                            uint32_t rank) {
    (void)p, (void)workers, (void)world, (void)rank;
    return 0;
}

lk_status lk_mpi_window(uint64_t bytes, uint8_t **mine, lk_error *error) {
    (void)bytes, (void)mine;
    return no_mpi(error);
}

uint8_t *lk_mpi_window_of(uint32_t rank) {
    (void)rank;
    return NULL;
}

lk_status lk_mpi_connect(lk_exchange *x, void *inbox, lk_error *error) {
    (void)x, (void)inbox;
    return no_mpi(error);
}

void lk_mpi_seal(void) {}

double lk_mpi_last_given(lk_turn turn) {
    (void)turn;
    return 0;
}

void lk_mpi_give(lk_exchange *x, lk_turn turn, uint32_t part, uint64_t step) {
    (void)x, (void)turn, (void)part, (void)step;
}

bool lk_mpi_look(const lk_exchange *x, lk_turn turn, uint32_t part) {
    (void)x, (void)turn, (void)part;
    return false;
}

lk_status lk_mpi_await(lk_exchange *x, lk_turn turn, uint32_t part, lk_error *error) {
    (void)x, (void)turn, (void)part;
    return no_mpi(error);
}

lk_status lk_mpi_turn(lk_exchange *x, lk_turn turn, uint64_t step, lk_error *error) {
    (void)x, (void)turn, (void)step;
    return no_mpi(error);
}

lk_status lk_mpi_look_for_dead(uint64_t step, lk_error *error) {
    (void)step, (void)error;
    return LK_OK;
}

void lk_mpi_end_soon(lk_status status) { (void)status; }

lk_status lk_mpi_finish(lk_exchange *x, lk_status status, lk_error *error) {
    (void)x, (void)error;
    return status;
}
#endif
