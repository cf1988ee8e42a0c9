// lost.c - who is lost, and what is said of it in one line: while start-up waits, under one
// alarm, and while a round does. Workers of this host are watched by their process descriptors and
// looked at in /proc; elsewhere their sign of life (comm/cluster/rendezvous.h) tells, or MPI, whose
// connection broke; of all, the deadline. Calls no MPI, and knows not how bytes travel.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "comm/threads/clock.h"
#include "comm/mpi/private.h"
#include "comm/cluster/rendezvous.h"

static bool sealed;              // start-up is over;
static const char *waiting_for;  // what it waits for until then
static struct pollfd watched[LK_MPI_WORLD_MAX];
static uint32_t watched_rank[LK_MPI_WORLD_MAX], watched_count;
static double allowed;  // seconds more, for a share of an evaluation
static bool any_dead, is_dead[LK_MPI_WORLD_MAX];

// Is worker w's process number one that this process understands?
static bool is_watchable(uint32_t w) {
    const lk_mpi_peer *p = &lk_mpi.peers[w], *mine = &lk_mpi.peers[lk_mpi.rank];
    return lk_mpi.host_workers > 0 && p->host == mine->host &&
           p->process_namespace == mine->process_namespace;
}

enum { ALARM_RINGS = 8 };
static const double RING_SECONDS_WATCHING = 0.25;
static bool look_for_dead(void), is_at_fault(uint32_t w);

static const char is_stopped[] = "is stopped", has_died[] = "has died";

// What the kernel says of worker w, where it can be asked; NULL: nothing bad.
static const char *trouble_of(uint32_t w) {
    const lk_mpi_peer *p = &lk_mpi.peers[w];
    char path[40], text[256];
    if (w == lk_mpi.rank || !is_watchable(w)) return NULL;
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
    while (w < lk_mpi.world && trouble_of(w) != trouble) w++;
    return w < lk_mpi.world ? w : LK_NONE;
}

// --- start-up ----------------------------------------------------------------------------------

// The third and fourth word of /proc/NAME/stat: state and parent. False where there is none.
static bool read_stat(const char *name, char *state, long *parent) {
    char path[64], text[512];
    lk_format(path, sizeof path, "/proc/%s/stat", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[LK_MAX(got, 0)] = '\0';
    const char *end = strrchr(text, ')');
    if (!end || strlen(end) < 5) return false;
    *state = end[2];
    *parent = strtol(end + 4, NULL, 10);
    return true;
}

// Before MPI has started nobody knows the others' processes, but a launcher of MPI is the parent of
// those on this host. Calls the kernel alone: what the alarm has interrupted may hold any lock.
static bool stopped_sibling(char *who, size_t bytes) {
    _Alignas(8) char entries[4096];
    char state = 0;
    long parent = 0, own = getppid();
    int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *found = NULL;
    for (long got; !found && (got = syscall(SYS_getdents64, proc, entries, sizeof entries)) > 0;) {
        for (long at = 0; at < got && !found;) {
            uint16_t length;
            memcpy(&length, entries + at + 16, sizeof length);  // ino, off, reclen, type, name
            const char *name = entries + at + 19;
            at += length;
            if (name[0] < '1' || name[0] > '9' || !read_stat(name, &state, &parent)) continue;
            if (parent == own && strchr("Tt", state)) found = name;
        }
    }
    if (proc >= 0) close(proc);
    if (found)
        lk_format(who, bytes, "; process %s, started by the same launcher, is stopped", found);
    return found;
}

// The end of start-up, in one line; safe in a signal handler. Others may have died of waiting for
// one that is stopped.
_Noreturn static void give_up(const char *why) {
    char line[400], who[160] = "";
    lk_rendezvous_last_word();
    uint32_t stopped = first_who(is_stopped);
    uint32_t w = stopped != LK_NONE ? stopped : first_who(has_died);
    if (lk_mpi.host_workers == 0) {
        if (lk_rendezvous_speaks()) lk_rendezvous_blame_chief(who, sizeof who);
        else (void)stopped_sibling(who, sizeof who);
    } else if (w != LK_NONE) {
        lk_format(who, sizeof who, "; rank %u on %s (process %lld) %s", w, lk_mpi.peers[w].name,
                  (long long)lk_mpi.peers[w].process, w == stopped ? is_stopped : has_died);
    }
    size_t n = lk_format(line, sizeof line,
                         "lockstep: rank %u: %s, waiting for %s%s; is every one of the %u workers "
                         "running? see --start-timeout\n",
                         lk_mpi.rank, why, waiting_for, who, lk_mpi.world);
    ssize_t written = write(STDERR_FILENO, line, LK_MIN(n, sizeof line - 1));
    (void)written;
    _exit(LK_RETRY);
}

// The alarm rings a few times before the time is over, so that a pause of this process is told
// from the time it had.
static double limit, slice, looked, spent;

static void ring_soon(void) {
    struct itimerval time = {.it_value.tv_sec = (time_t)slice};
    time.it_value.tv_usec = (suseconds_t)(1e6 * (slice - (double)time.it_value.tv_sec));
    (void)setitimer(ITIMER_REAL, &time, NULL);
}

// Safe in a signal handler.
_Noreturn static void end_start_without_dead(void) {
    char line[400];
    uint32_t w = 0;
    while (w < lk_mpi.world && !is_at_fault(w)) w++;
    if (w == lk_mpi.world) {  // each says that it ended for another: the first of them
        for (w = 0; !is_dead[w];) w++;
    }
    lk_mpi_say_lost(w);
    lk_rendezvous_last_word();
    size_t n = lk_format(line, sizeof line,
                         "lockstep: rank %u: rank %u on %s (process %lld) has died during "
                         "start-up; this one was waiting for %s\n",
                         lk_mpi.rank, w, lk_mpi.peers[w].name, (long long)lk_mpi.peers[w].process,
                         waiting_for);
    ssize_t written = write(STDERR_FILENO, line, LK_MIN(n, sizeof line - 1));
    (void)written;
    _exit(LK_RETRY);
}

static void on_alarm(int signal_number) {
    char why[64];
    (void)signal_number;
    double now = lk_seconds();
    spent += LK_MIN(now - looked, 1.5 * slice);
    looked = now;
    // Those who wait in a library hear of an end here.
    if (watched_count && look_for_dead()) end_start_without_dead();
    if (spent < limit) {
        ring_soon();
        return;
    }
    lk_format(why, sizeof why, "start-up did not end within %u s",
              lk_mpi.options.start_timeout_seconds);
    give_up(why);
}

void lk_mpi_limit_start(void) {
    const uint32_t seconds = lk_mpi.options.start_timeout_seconds;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    limit = seconds - LK_MIN(lk_rendezvous_seconds(), seconds - 1);
    if (lk_rendezvous_speaks()) limit += LK_RENDEZVOUS_WORD_SECONDS;
    slice = limit / ALARM_RINGS;
    looked = lk_seconds();
    ring_soon();
}

void lk_mpi_look_for_stopped(uint32_t lost) {
    uint32_t stopped = first_who(is_stopped);
    if (stopped != LK_NONE && stopped != lost) give_up("start-up does not end");
}

void lk_mpi_let_rendezvous_speak(void) {
    const struct timespec t = {.tv_nsec = LK_MPI_LAST_WORD_MS * 1000000};
    (void)nanosleep(&t, NULL);
}

void lk_mpi_need(int result) {
    if (result == MPI_SUCCESS) return;
    alarm(0);  // its word would wait for this one's
    lk_mpi_let_rendezvous_speak();
    give_up("a connection of MPI broke during start-up");
}

void lk_mpi_blame_dead(void) {
    lk_mpi_let_rendezvous_speak();
    if (look_for_dead()) end_start_without_dead();
}

void lk_mpi_wait_for(const char *what) { waiting_for = what; }

void lk_mpi_seal(void) {
    alarm(0);
    lk_rendezvous_run();
    sealed = true;
}

// --- rounds -------------------------------------------------------------------------------------

// Descriptors of the processes of this host: readable when they end. Where process numbers mean
// something else there, or the kernel is too old, the deadline alone remains.
void lk_mpi_watch(void) {
    for (uint32_t w = 0; w < lk_mpi.world; w++) {
        if (w == lk_mpi.rank || !is_watchable(w)) continue;
        int fd = (int)syscall(SYS_pidfd_open, (pid_t)lk_mpi.peers[w].process, 0);
        if (fd < 0) continue;
        watched_rank[watched_count] = w;
        watched[watched_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    slice = LK_MIN(slice, RING_SECONDS_WATCHING);
    if (!sealed) ring_soon();
}

static const char *phase_name(lk_round round) {
    static const char *const names[LK_MPI_ROUNDS] = {[LK_ROUND_BOXES] = "reduce",
                                                     [LK_ROUND_SUMS] = "apply",
                                                     [LK_ROUND_NORMS] = "apply",
                                                     [LK_ROUND_STEP] = "reduce",
                                                     [LK_ROUND_REPORTS] = "evaluation",
                                                     [LK_ROUND_LAST] = "end"};
    return names[round];
}

static lk_status lost(uint32_t w, const char *how, lk_round round, lk_error *error) {
    if (strcmp(how, has_died) == 0) lk_mpi_say_lost(w);
    if (!sealed) {
        alarm(0);
        lk_mpi_let_rendezvous_speak();
        lk_rendezvous_last_word();
        return lk_fail(error, LK_RETRY, "rank %u: rank %u on %s (process %lld) %s during start-up",
                       lk_mpi.rank, w, lk_mpi.peers[w].name, (long long)lk_mpi.peers[w].process,
                       how);
    }
    if (strcmp(how, has_died) == 0) lk_rendezvous_say_lost(w);
    return lk_fail(error, LK_RETRY,
                   "rank %u: rank %u on %s (process %lld) %s, noticed at step %llu in phase %s; "
                   "the last checkpoint stands, go on with --resume",
                   lk_mpi.rank, w, lk_mpi.peers[w].name, (long long)lk_mpi.peers[w].process, how,
                   (unsigned long long)lk_mpi.step, phase_name(round));
}

// The first that has not; LK_NONE where only a send does not end.
static uint32_t first_missing(const lk_mpi_gift *g) {
    uint32_t w = 0;
    while (w < lk_mpi.world && lk_mpi_has_given(w, g)) w++;
    return w < lk_mpi.world ? w : LK_NONE;
}

// Worker w has died, and so has the one for whose death it has ended.
static void mark_dead(uint32_t w) {
    for (; w != LK_NONE && w != lk_mpi.rank && !is_dead[w]; w = lk_mpi_said_lost(w)) {
        any_dead = is_dead[w] = true;
    }
}

// Marks those who have died. Is there one?
static bool look_for_dead(void) {
    uint32_t gone;
    if (lk_rendezvous_lost(&gone)) mark_dead(gone);
    if (watched_count == 0 || poll(watched, watched_count, 0) <= 0) return any_dead;
    for (uint32_t i = 0; i < watched_count; i++) {
        if (watched[i].revents & POLLIN) mark_dead(watched_rank[i]);
    }
    return any_dead;
}

// Has worker w died, and not for want of another that has?
static bool is_at_fault(uint32_t w) {
    const uint32_t other = lk_mpi_said_lost(w);
    return is_dead[w] && (other == LK_NONE || other == lk_mpi.rank);
}

// Who of the dead is to blame: the one that the chief missed before all others, or that those who
// gave up have named; otherwise a dead worker whose part of this round has not come. A dead worker
// whose part has come may itself have given up on a silent one, as this worker is about to. So it
// is not blamed after a long wait; after a short one it has died later in the step.
static uint32_t dead_to_blame(bool for_long, uint32_t missing, const lk_mpi_gift *g) {
    uint32_t first = LK_NONE;
    if (lk_rendezvous_lost(&first) && (!for_long || !lk_mpi_has_given(first, g))) return first;
    for (uint32_t w = 0; w < lk_mpi.world; w++) {
        if (!is_at_fault(w)) continue;
        if (first == LK_NONE) first = w;
        if (missing != LK_NONE && !lk_mpi_has_given(w, g)) return w;
    }
    return for_long && missing != LK_NONE ? LK_NONE : first;
}

// May worker w, the leader, still be busy with its disk, which may take longer than a step? Not if
// the kernel says that its process is stopped.
static bool may_be_saving(uint32_t w, double seconds, lk_round round) {
    return w == 0 && lk_mpi.leader_writes && round != LK_ROUND_SUMS && round != LK_ROUND_NORMS &&
           trouble_of(0) != is_stopped &&
           seconds < (double)LK_MPI_SAVE_TIMES * lk_mpi.options.step_timeout_seconds;
}

static void say_waiting(double seconds, const lk_mpi_gift *g) {
    char who[LK_MPI_HOST_BYTES + 96];
    const uint32_t w = first_missing(g);
    if (w == LK_NONE) return;
    const char *trouble = trouble_of(w);
    lk_format(who, sizeof who, "rank %u on %s (process %lld)%s%s", w, lk_mpi.peers[w].name,
              (long long)lk_mpi.peers[w].process, trouble ? ", which " : "",
              trouble                          ? trouble
              : w == 0 && lk_mpi.leader_writes ? ", which saves"
              : g->round == LK_ROUND_REPORTS       ? ", which evaluates"
                                               : "");
    lk_mpi.options.waiting(who, seconds);
}

void lk_mpi_allow(double seconds) { allowed = seconds; }

lk_status lk_mpi_judge_silence(double seconds, const lk_mpi_gift *g, lk_error *error) {
    double most = lk_mpi.options.step_timeout_seconds;
    if (g->round == LK_ROUND_REPORTS) most += allowed;
    if (sealed && lk_mpi.options.waiting && seconds >= 1) say_waiting(seconds, g);
    bool some_dead = look_for_dead(), late = sealed && seconds >= most;
    if (!some_dead && !lk_mpi.broken && !late) return LK_OK;
    uint32_t missing = first_missing(g);
    if (missing == LK_NONE && lk_mpi.remote_count == 0) return LK_OK;  // the last has just come
    uint32_t dead = dead_to_blame(2 * seconds >= most, missing, g);
    if (dead != LK_NONE) return lost(dead, "has died", g->round, error);
    if (missing == LK_NONE) missing = lk_mpi.remote[0];
    if (late && may_be_saving(missing, seconds, g->round)) return LK_OK;
    if (late) return lost(missing, "is silent for longer than --step-timeout", g->round, error);
    // Where some have died, the broken connection may be to one of them, and not to `missing`.
    if (some_dead || !lk_mpi.broken) return LK_OK;
    return lost(missing, "is cut off: MPI says its connection broke", g->round, error);
}

lk_status lk_mpi_look_for_dead(uint64_t step, lk_error *error) {
    lk_mpi.step = step;
    const lk_mpi_gift none = {.round = LK_ROUND_STEP, .wanted = lk_mpi_given(LK_ROUND_STEP)};
    if (!look_for_dead()) return LK_OK;
    return lost(dead_to_blame(false, LK_NONE, &none), "has died", LK_ROUND_STEP, error);
}

// --- the library's own end -----------------------------------------------------------------------

void lk_mpi_on_exit(void) {
    lk_error error = {.status = LK_OK};
    if (!lk_mpi.inside) return;
    alarm(0);
    if (!sealed) {
        lk_mpi_blame_dead();
        give_up("MPI has ended this process during start-up");
    }
    lk_mpi_let_rendezvous_speak();
    if (lk_mpi_look_for_dead(lk_mpi.step, &error) == LK_OK) {
        (void)lk_fail(&error, LK_RETRY,
                      "rank %u: MPI has ended this process at step %llu; the last checkpoint "
                      "stands, go on with --resume",
                      lk_mpi.rank, (unsigned long long)lk_mpi.step);
    }
    lk_rendezvous_last_word();
    fprintf(stderr, "lockstep: %s\n", error.text);
    _exit(LK_RETRY);
}
