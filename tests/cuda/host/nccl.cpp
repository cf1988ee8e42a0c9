// nccl.cpp - a recording stand-in for NCCL, for worlds whose ranks are in one process or in several
// of this machine: says what was called in which order, and moves the bytes.
//
// Stricter than NCCL where that finds bugs. A send is over only when it was received: nothing is
// buffered, so whatever needs buffers to go on stops here. Which of a group's messages travels
// first is drawn from the layer's seed. A message whose two ends differ in length, a buffer that is
// not memory of the communicator's device, a stream of another device, and a communicator that is
// given up before the graphs that hold its calls, end the program.
//
// From the environment, at the first call:
//   LOCKSTEP_HOST_NCCL_LOG   a file that gets a line for each call: rank, group (of its process),
//                            send or recv, peer, count, type, offset in the device's block, stream,
//                            graph or now. Several processes may write it.
//   LOCKSTEP_HOST_NCCL_FAIL  error:R:N  rank R reports an error after N groups were carried out
//                            dead:R:N   rank R does nothing more, and says nothing
//                            deaf       nobody notices that a process has ended
//
// Between processes (nccl_mail.h) a GPU goes on by itself, as a real one does, while its process
// waits for something else: others wait for what it sends. A message whose other end is in a
// process that has ended or given up makes its rank report an error.
#include "nccl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "block.h"
#include "host.h"
#include "inside.h"
#include "nccl_mail.h"

enum { COMMS = 64, GROUPS = 1024, MESSAGES = 65536 };
static const size_t comm_bytes = (size_t)40 << 20;  // of a device, as NCCL takes about as much

struct message {
    bool send, done;
    int peer;
    const void *at;
    size_t bytes;
    ncclDataType_t type;
    lk_mail_end end;  // with a rank of another process
};

// What one rank sends and receives at once: messages [first, first + count) of the pool.
struct group {
    ncclComm_t comm;
    cudaStream_t stream;
    uint32_t first, count;
};

struct ncclComm {
    bool used, aborted;
    int rank, ranks, device;
    uint64_t world;     // of the name
    bool joined;        // all others are there
    group *active;      // being carried out
    group *open;        // being called
    uint64_t finished;  // groups
    ncclResult_t error;
};

static ncclComm comms[COMMS];
static group groups[GROUPS];
static message messages[MESSAGES];
static uint32_t group_count, message_count;
static int depth, log_file = -1;
static ncclResult_t group_error;  // of the first call of the group that failed

void lk_host_ends_groups(void) {
    if (depth > 0) lk_host_die("NCCL: the run ends in the middle of a group");
}
static lk_mail mail;  // of the one world that this process may share with others
static struct {
    bool error, dead, deaf;
    int rank;
    uint64_t after;
} injected;

static void read_environment(void) {
    static bool read;
    const char *log = getenv("LOCKSTEP_HOST_NCCL_LOG"), *fail = getenv("LOCKSTEP_HOST_NCCL_FAIL");
    unsigned rank = 0, after = 0;
    if (read) return;
    read = true;
    if (log) log_file = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (!fail) return;
    injected.error = sscanf(fail, "error:%u:%u", &rank, &after) == 2;
    injected.dead = !injected.error && sscanf(fail, "dead:%u:%u", &rank, &after) == 2;
    injected.deaf = strcmp(fail, "deaf") == 0;
    injected.rank = (int)rank;
    injected.after = after;
}

struct call {
    explicit call(const char *function) : fails(lk_host_enter(function)) { read_environment(); }
    ~call() { lk_host_leave(); }
    bool fails;
};

// --- worlds --------------------------------------------------------------------------------------

ncclResult_t ncclGetVersion(int *version) {
    call entered(__func__);
    *version = 22809;
    return entered.fails ? ncclSystemError : ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    call entered(__func__);
    if (entered.fails) return ncclSystemError;
    const uint64_t name = lk_mail_make();
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &name, sizeof name);
    return name ? ncclSuccess : ncclSystemError;
}

// The ranks of this process that have come since: waits for those of others. As NCCL, which does so
// at the end of a group.
static ncclResult_t join(void) {
    for (ncclComm &c : comms) {
        if (!c.used || c.joined) continue;
        int mine = 0;
        for (const ncclComm &other : comms) mine += other.used && other.world == c.world;
        if (mine < c.ranks && !mail.world && !lk_mail_open(&mail, c.world, c.ranks)) {
            return ncclSystemError;
        }
        bool good = true;
        for (ncclComm &other : comms) {
            if (!other.used || other.world != c.world) continue;
            if (mine < c.ranks) lk_mail_enter(&mail, other.rank, other.device);
            other.joined = true;
        }
        if (mine < c.ranks) good = lk_mail_wait(&mail, c.ranks);
        if (!good) return ncclInvalidUsage;
        if (mine < c.ranks && !lk_host_go_by_itself()) return ncclSystemError;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    call entered(__func__);
    const char *lazy = getenv("NCCL_RUNTIME_CONNECT"), *nvls = getenv("NCCL_NVLS_ENABLE");
    if (entered.fails) {
        if (depth > 0) group_error = ncclUnhandledCudaError;
        return ncclUnhandledCudaError;
    }
    if (!lazy || strcmp(lazy, "0") != 0 || !nvls || strcmp(nvls, "0") != 0) return ncclInvalidUsage;
    if (!config || ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    uint64_t name = 0;
    uint32_t i = 0;
    memcpy(&name, id.internal, sizeof name);
    for (; i < COMMS && comms[i].used; i++) {
        const bool same = comms[i].world == name;
        if (same && (comms[i].rank == rank || comms[i].device == lk_host_current_device())) {
            return ncclInvalidUsage;  // as NCCL: a GPU is one rank of a world
        }
    }
    if (i == COMMS) return ncclSystemError;
    comms[i] = {};
    comms[i].used = true;
    comms[i].rank = rank;
    comms[i].ranks = ranks;
    comms[i].device = lk_host_current_device();
    comms[i].world = name;
    lk_host_count_communicator();
    *comm = &comms[i];
    return depth > 0 ? ncclSuccess : join();
}

// NCCL waits here for graphs that hold calls of the communicator, for ever.
static ncclResult_t give_up(ncclComm_t comm) {
    if (!comm->used || comm->aborted) return ncclInvalidArgument;
    if (lk_host_has_graphs(comm->device)) {
        lk_host_die("NCCL rank %d is given up before the graphs of its device", comm->rank);
    }
    comm->aborted = true;
    if (mail.world && mail.here[comm->rank]) lk_mail_leave(&mail, comm->rank);
    return ncclSuccess;
}

// Waits for what is under way, for ever where that never ends.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    call entered(__func__);
    if (comm->used && comm->active) {
        lk_host_die("NCCL rank %d is destroyed, not aborted, with a group under way", comm->rank);
    }
    return give_up(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    call entered(__func__);
    return give_up(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    call entered(__func__);
    if (!comm->used || comm->aborted) return ncclInvalidArgument;
    *error = comm->error;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t error) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)error < sizeof texts / sizeof *texts ? texts[error] : "unknown result code";
}

size_t lk_host_nccl_bytes(int device) {
    size_t bytes = 0;
    for (const ncclComm &c : comms) bytes += c.used && c.device == device ? comm_bytes : 0;
    return bytes;
}

// --- calls ---------------------------------------------------------------------------------------

static ncclResult_t add(bool send, const void *at, size_t count, ncclDataType_t type, int peer,
                        ncclComm_t c, cudaStream_t stream) {
    const size_t bytes = count * (type == ncclFloat32 ? 4 : 1);
    if (!c->used || c->aborted || peer < 0 || peer >= c->ranks || depth == 0) {
        return ncclInvalidArgument;
    }
    if (lk_host_device_holding(at, bytes) != c->device) {
        lk_host_die("NCCL rank %d: %zu bytes are not memory of its device", c->rank, bytes);
    }
    if (lk_host_stream_device(stream) != c->device) {
        lk_host_die("NCCL rank %d: a stream of another device", c->rank);
    }
    if (!c->open) {
        if (group_count == GROUPS) return ncclSystemError;
        c->open = &groups[group_count++];
        *c->open = {c, stream, message_count, 0};
    }
    if (c->open->stream != stream || message_count == MESSAGES) return ncclInvalidUsage;
    // The messages of a group lie together: others are moved up.
    const uint32_t place = c->open->first + c->open->count;
    memmove(&messages[place + 1], &messages[place], (message_count - place) * sizeof *messages);
    for (ncclComm &other : comms) {
        if (other.open && other.open != c->open && other.open->first >= place) other.open->first++;
    }
    messages[place] = {send, false, peer, at, bytes, type, {}};
    c->open->count++;
    message_count++;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    call entered(__func__);
    return entered.fails ? ncclSystemError : add(true, from, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    call entered(__func__);
    return entered.fails ? ncclSystemError : add(false, to, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupStart(void) {
    call entered(__func__);
    if (entered.fails) return ncclSystemError;
    depth++;
    return ncclSuccess;
}

static void write_log(const group *g) {
    for (uint32_t i = g->first; log_file >= 0 && i < g->first + g->count; i++) {
        const message *m = &messages[i];
        dprintf(log_file, "%d %u %s %d %zu %s %llu %d %s\n", g->comm->rank, (unsigned)(g - groups),
                m->send ? "send" : "recv", m->peer, m->bytes / (m->type == ncclFloat32 ? 4 : 1),
                m->type == ncclFloat32 ? "f32" : "u8", (unsigned long long)lk_host_offset(m->at),
                lk_host_stream_number(g->stream), lk_host_is_captured(g->stream) ? "graph" : "now");
    }
}

ncclResult_t ncclGroupEnd(void) {
    call entered(__func__);
    if (entered.fails) {
        depth = 0;
        return ncclSystemError;
    }
    if (depth == 0) return ncclInvalidUsage;
    if (--depth > 0) return ncclSuccess;
    if (group_error != ncclSuccess) {  // as NCCL: nothing of the group is carried out
        for (ncclComm &c : comms) c.used = c.used && c.joined;
        const ncclResult_t error = group_error;
        group_error = ncclSuccess;
        return error;
    }
    const ncclResult_t joined = join();
    if (joined != ncclSuccess) return joined;
    for (ncclComm &c : comms) {
        if (!c.open) continue;
        write_log(c.open);
        if (lk_host_enqueue_group(c.open->stream, c.open) != cudaSuccess) {
            return ncclUnhandledCudaError;
        }
        c.open = NULL;
    }
    return ncclSuccess;
}

// --- bytes ---------------------------------------------------------------------------------------

static ncclComm *rank_of(const ncclComm *c, int rank) {
    for (ncclComm &other : comms) {
        if (other.used && other.world == c->world && other.rank == rank) return &other;
    }
    return NULL;
}

// The first message of a group to or from `peer` that is not over.
static message *first_of(const group *g, bool send, int peer) {
    for (uint32_t i = g->first; i < g->first + g->count; i++) {
        message *m = &messages[i];
        if (m->send == send && m->peer == peer && !m->done) return m;
    }
    return NULL;
}

// One message of the group, if its other end is there.
static bool deliver(group *g, message *m) {
    ncclComm *c = g->comm, *peer = rank_of(c, m->peer);
    if (m != first_of(g, m->send, m->peer)) return false;
    message *other = peer && peer->active ? first_of(peer->active, !m->send, c->rank) : NULL;
    if (!other) return false;
    if (other->bytes != m->bytes || other->type != m->type) {
        lk_host_die("NCCL ranks %d and %d: a message of %zu bytes meets one of %zu", c->rank,
                    m->peer, m->bytes, other->bytes);
    }
    const message *from = m->send ? m : other, *to = m->send ? other : m;
    lk_host_move(const_cast<void *>(to->at), from->at, m->bytes);
    m->done = other->done = true;
    return true;
}

// A piece of a message with a rank of another process.
static bool carry(ncclComm *c, message *m, bool *moved) {
    lk_mail_end *end = &m->end;
    if (!end->at) {
        *end = {};
        end->from = m->send ? c->rank : m->peer;
        end->to = m->send ? m->peer : c->rank;
        end->at = const_cast<void *>(m->at);
        end->bytes = m->bytes;
        end->type = m->type;
    }
    if (lk_host_random() % 4 == 3) return false;  // it has not arrived yet
    if (m->send ? lk_mail_send(&mail, end, lk_host_move)
                : lk_mail_receive(&mail, end, lk_host_move))
        *moved = true;
    else if (!injected.deaf && lk_mail_is_gone(&mail, m->peer))
        c->error = ncclRemoteError;
    return m->done = end->done;
}

static bool is_gone(ncclComm *c) {
    const bool reached = (injected.error || injected.dead) && c->ranks > 1 &&
                         c->rank == injected.rank && c->finished >= injected.after;
    if (reached && injected.error) c->error = ncclRemoteError;
    return reached;
}

bool lk_host_group_run(void *context, lk_host_hold *hold) {
    group *g = static_cast<group *>(context);
    ncclComm *c = g->comm;
    if (c->aborted) return c->active = NULL, true;
    hold->elsewhere = mail.world != NULL;
    if (is_gone(c) || (c->active && c->active != g)) return false;
    if (!c->active) {
        for (uint32_t i = g->first; i < g->first + g->count; i++) {
            messages[i].done = false;
            messages[i].end = {};
        }
        c->active = g;
        hold->moved = true;
    }
    uint32_t left = 0, first = g->count ? (uint32_t)(lk_host_random() % g->count) : 0;
    for (uint32_t k = 0; k < g->count; k++) {
        message *m = &messages[g->first + (first + k) % g->count];
        const bool far = mail.world && !mail.here[m->peer];
        if (far && !m->done && m == first_of(g, m->send, m->peer)) carry(c, m, &hold->moved);
        if (!far && !m->done && deliver(g, m)) hold->moved = true;
        if (m->done) continue;
        left++;
        const ncclComm *peer = far ? NULL : rank_of(c, m->peer);
        if (peer) hold->devices |= 1u << peer->device;
    }
    if (left > 0) return false;
    c->active = NULL;
    c->finished++;
    return true;
}
