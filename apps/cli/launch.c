// launch.c - lockstep launch: starts the workers of one machine, shows what they say, stops all
// when one fails and says which was the first; starts them again where they may go on, all of them
// or with --elastic those that are left, and takes the others in again after a while.
//
// The workers get torchrun's variables, a key that only they have (a memory file, so it is on no
// disk), and rank 0 the socket that it listens on: the port is bound before anybody starts, so
// nobody else can have it. They are asked to end (SIGTERM) when this process does, however it does.
//
// One thread. Signals are let in only while it waits, so nothing below happens in a handler.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/run/cluster.h"
#include "apps/cli/command.h"
#include "apps/run/train.h"
#include "apps/cli/tools.h"
#include "comm/cluster/hello.h"
#include "comm/mpi/leftover.h"

enum {
    OUT,
    ERR,
    PROGRESS,  // rank 0's, where somebody looks at a terminal: watch.h
    STREAMS,
    SAID_BYTES = 4000,  // the longest line that is shown as one
    LAST_LINES = 8,     // of a worker, kept for the last word on it
    LAST_BYTES = 320,   // of each of them
    ARGUMENTS_MAX = 256,
};

// After the first failure the others end by themselves, having said what they know; then they are
// asked to; then they are killed.
static const double ask_after = 1.0, kill_after = 4.0;

typedef struct said {
    int fd;  // -1: closed
    size_t used;
    char text[SAID_BYTES];
} said;

typedef struct child {
    pid_t process;
    bool running, stopped;  // stopped: this process asked it to end
    bool silent;            // it did not go on, and that is why the others ended
    int status;             // as waitpid says it
    uint32_t place;         // how many ended before
    said streams[STREAMS];
    uint32_t lines;
    char last[LAST_LINES][LAST_BYTES];  // line n at n % LAST_LINES
} child;

// A worker's place on this machine. One that is lost is away for a while, each time for longer.
typedef struct slot {
    bool away;
    double back_at;
    uint32_t losses;
} slot;

enum { REJOIN_SECONDS = 30, REJOIN_TIMES_MAX = 64 };

static struct {
    uint32_t workers;  // that are started now, of all
    uint32_t slots, replicas, restarts;
    uint32_t elastic;  // the fewest to go on with; 0: all
    uint32_t rejoin_seconds;
    bool rejoining;  // those that run were asked to save and end, so that others come in
    char program[LK_PATH_BYTES];
    char **train;  // its command line, as given
    uint32_t train_count;
    char *arguments[ARGUMENTS_MAX];
    bool fresh, resume;
    bool json, quiet;
    char identity[LK_PATH_BYTES];  // file of the run directory
    struct stat before;            // that file, before anything was started; or zeros
    int key, listener, port;
    uint32_t running, ended;
    bool failed;
    double failed_at;
    bool deaf;         // SIGHUP was ignored at the start, and stays so
    int asked;         // the signal that this process was asked to end by
    bool killed;       // ... twice
    uint32_t stopped;  // how far the others have been: 0, SIGTERM, SIGKILL
    bool unread;       // nobody reads standard output any more: the workers were asked to end
    lk_text_out out[STREAMS];  // that of PROGRESS is OUT's
} here = {.key = -1, .listener = -1};

static child *children;    // (workers)
static slot *slots;        // (slots)
static uint32_t *slot_of;  // (workers)
static struct pollfd pipes_polled[LK_MPI_WORLD_MAX * STREAMS + 1];

// --- signals -----------------------------------------------------------------------------------

static volatile sig_atomic_t caught, caught_count, asked_how_far;
static sigset_t while_waiting;

static void on_signal(int signal_number) {
    if (signal_number == SIGCHLD) return;  // it only ends the waiting
    if (signal_number == SIGUSR1) {
        asked_how_far = 1;
        return;
    }
    // A terminal that goes says so more than once.
    if (signal_number == SIGHUP && caught_count + here.asked) return;
    caught = signal_number;
    caught_count = caught_count + 1;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t ours;
    sigemptyset(&action.sa_mask);
    sigemptyset(&ours);
    const int signals[] = {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGHUP};
    struct sigaction hangup;
    here.deaf = sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN;  // nohup
    for (uint32_t i = 0; i < LK_COUNT(signals) - here.deaf; i++) {
        sigaction(signals[i], &action, NULL);
        sigaddset(&ours, signals[i]);
    }
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &ours, &while_waiting);
    for (uint32_t i = 0; i < LK_COUNT(signals); i++) sigdelset(&while_waiting, signals[i]);
}

static void signal_all(int signal_number) {
    for (uint32_t w = 0; w < here.workers; w++) {
        child *c = &children[w];
        if (!c->running) continue;
        c->stopped = true;
        (void)kill(c->process, signal_number);
        (void)kill(c->process, SIGCONT);  // a stopped one hears nothing else
    }
}

// The first is passed on: the workers save and end. The second ends them.
static void pass_signals(void) {
    if (asked_how_far && children && children[0].running) kill(children[0].process, SIGUSR1);
    asked_how_far = 0;
    if (!caught_count) return;
    here.killed = here.asked != 0;
    signal_all(here.killed ? SIGKILL : caught);
    here.asked = caught;
    caught_count = 0;
}

static void wait_for(struct pollfd *polled, nfds_t count, double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)(1e9 * (seconds - (double)time.tv_sec));
    if (ppoll(polled, count, seconds < 0 ? NULL : &time, &while_waiting) < 0) {
        for (nfds_t i = 0; i < count; i++) polled[i].revents = 0;
    }
    pass_signals();
}

// --- what workers say --------------------------------------------------------------------------

static int digits_of(uint32_t number) { return number < 10 ? 1 : 1 + digits_of(number / 10); }

static void show_line(uint32_t rank, uint32_t stream, const char *text, size_t length) {
    child *c = &children[rank];
    struct pollfd ready = {.fd = here.out[stream].fd, .events = POLLOUT};
    if (stream == PROGRESS) {
        (void)lk_text_progress(&here.out[OUT], "%.*s", (int)length, text);
        return;
    }
    lk_format(c->last[c->lines++ % LAST_LINES], LAST_BYTES, "%.*s", (int)length, text);
    // Whoever reads this may be slow; signals are heard meanwhile.
    while (!ready.revents && !here.killed) wait_for(&ready, 1, -1);
    if (!ready.revents) return;
    if (stream == ERR) (void)lk_text_clear(&here.out[OUT]);
    if (here.json && stream == OUT && rank == 0) {  // each line is one of JSON, as from train alone
        (void)lk_text_line(&here.out[OUT], "%.*s", (int)length, text);
        return;
    }
    (void)lk_text_line(&here.out[stream], "[%*u] %.*s", digits_of(here.workers - 1), rank,
                       (int)length, text);
}

// Shows the whole lines that have come; `all`: the rest too.
static void show_lines(uint32_t rank, uint32_t stream, bool all) {
    said *s = &children[rank].streams[stream];
    size_t begin = 0;
    for (char *end; (end = memchr(s->text + begin, '\n', s->used - begin));) {
        size_t length = (size_t)(end - (s->text + begin));
        show_line(rank, stream, s->text + begin, length);
        begin += length + 1;
    }
    s->used -= begin;
    memmove(s->text, s->text + begin, s->used);
    if (s->used == 0 || !(all || s->used == sizeof s->text)) return;
    show_line(rank, stream, s->text, s->used);
    s->used = 0;
}

// All that is there now.
static void read_stream(uint32_t rank, uint32_t stream) {
    said *s = &children[rank].streams[stream];
    while (s->fd >= 0) {
        ssize_t count = read(s->fd, s->text + s->used, sizeof s->text - s->used);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) return;
        if (count > 0) {
            s->used += (size_t)count;
            show_lines(rank, stream, false);
            continue;
        }
        close(s->fd);
        s->fd = -1;
        show_lines(rank, stream, true);
    }
}

static void read_all(uint32_t rank) {
    for (uint32_t s = 0; s < STREAMS; s++) read_stream(rank, s);
}

// --- starting ----------------------------------------------------------------------------------

// On loopback, at a port that the kernel chooses.
static lk_status open_listener(lk_error *error) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *any = (struct sockaddr *)(void *)&address;
    socklen_t bytes = sizeof address;
    here.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (here.listener < 0 || bind(here.listener, any, bytes) != 0 ||
        listen(here.listener, SOMAXCONN) != 0 || getsockname(here.listener, any, &bytes) != 0) {
        return lk_fail(error, LK_UNAVAILABLE, "launch: cannot listen at 127.0.0.1: %s",
                       strerror(errno));
    }
    here.port = ntohs(address.sin_port);
    return LK_OK;
}

static lk_status make_key(lk_error *error) {
    uint8_t bytes[LK_HELLO_BYTES];
    char hex[2 * LK_HELLO_BYTES + 1];
    lk_random(bytes);
    lk_hex(bytes, sizeof bytes, hex);
    here.key = memfd_create("lockstep key", MFD_CLOEXEC);
    if (here.key >= 0 && fchmod(here.key, 0600) == 0 &&
        write(here.key, hex, sizeof hex - 1) == (ssize_t)sizeof hex - 1) {
        return LK_OK;
    }
    return lk_fail(error, LK_UNAVAILABLE, "launch: no memory file for the key: %s",
                   strerror(errno));
}

static void set_number(const char *name, int64_t number) {
    char text[24];
    lk_format(text, sizeof text, "%lld", (long long)number);
    setenv(name, text, 1);
}

// As torchrun sets them. Slurm's are then passed over; those of a launcher that started this
// process alone would contradict.
static void set_variables(uint32_t rank, int progress) {
    char key[40];
    static const char *const others[] = {"TF_CONFIG",
                                         "PMI_RANK",
                                         "PMI_SIZE",
                                         "PMI_FD",
                                         "PMI_PORT",
                                         "OMPI_COMM_WORLD_RANK",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "TORCHELASTIC_USE_AGENT_STORE",
                                         "LOCKSTEP_LISTEN_FD",
                                         "LOCKSTEP_PROGRESS_FD"};
    for (uint32_t i = 0; i < LK_COUNT(others); i++) unsetenv(others[i]);
    // One speaks to a service manager (NotifyAccess=all), and feeds the watchdog for all.
    unsetenv("WATCHDOG_PID");
    if (rank != 0) unsetenv("NOTIFY_SOCKET");
    set_number("RANK", rank);
    set_number("WORLD_SIZE", here.workers);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", here.workers);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", here.port);
    setenv("TORCHELASTIC_RUN_ID", "lockstep", 1);
    lk_format(key, sizeof key, "/proc/self/fd/%d", here.key);
    setenv("LOCKSTEP_KEY_FILE", key, 1);
    if (rank == 0) set_number("LOCKSTEP_LISTEN_FD", here.listener);
    if (progress >= 0) set_number("LOCKSTEP_PROGRESS_FD", progress);
}

// In the child. What it inherits beyond the standard streams is named in its variables.
_Noreturn static void become_worker(uint32_t rank, pid_t parent, const int ends[STREAMS]) {
    sigset_t none;
    sigemptyset(&none);
    (void)dup2(ends[OUT], STDOUT_FILENO);
    (void)dup2(ends[ERR], STDERR_FILENO);
    (void)fcntl(here.key, F_SETFD, 0);
    if (rank == 0) (void)fcntl(here.listener, F_SETFD, 0);
    if (ends[PROGRESS] >= 0) (void)fcntl(ends[PROGRESS], F_SETFD, 0);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGUSR1, SIG_IGN);  // until the worker can answer
    if (!here.deaf) signal(SIGHUP, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(LK_TERMINATED);  // it was gone before that
    execv(here.program, here.arguments);
    fprintf(stderr, "lockstep: %s: cannot be started: %s\n", here.program, strerror(errno));
    _exit(LK_UNAVAILABLE);
}

static lk_status start_worker(uint32_t rank, lk_error *error) {
    child *c = &children[rank];
    int pipes[STREAMS][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    const bool watched = rank == 0 && here.out[OUT].terminal && !here.json && !here.quiet;
    pid_t parent = getpid();
    memset(c, 0, sizeof *c);
    bool good = pipe2(pipes[OUT], O_CLOEXEC) == 0 && pipe2(pipes[ERR], O_CLOEXEC) == 0;
    if (good && watched) good = pipe2(pipes[PROGRESS], O_CLOEXEC | O_NONBLOCK) == 0;
    set_variables(rank, pipes[PROGRESS][1]);
    c->process = good ? fork() : -1;
    int number = errno;
    if (c->process == 0) {
        become_worker(rank, parent, (int[]){pipes[OUT][1], pipes[ERR][1], pipes[PROGRESS][1]});
    }
    c->running = c->process > 0;
    here.running += c->running;
    for (uint32_t s = 0; s < STREAMS; s++) {
        c->streams[s].fd = pipes[s][0];
        if (pipes[s][0] >= 0) (void)fcntl(pipes[s][0], F_SETFL, O_NONBLOCK);
        if (pipes[s][1] >= 0) close(pipes[s][1]);
    }
    if (c->running) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "launch: worker %u of %u cannot be started: %s", rank,
                   here.workers, strerror(number));
}

static bool is_option(const char *text, const char *option) {
    size_t length = strlen(text);
    return length > 2 && length <= strlen(option) && memcmp(text, option, length) == 0;
}

// Whether a run of this configuration has been begun since, or lay there to be resumed: then it is
// gone on with. The file of its identity is the first that a run leaves.
static bool is_begun(void) {
    struct stat now;
    if (stat(here.identity, &now) != 0) return false;
    if (!here.fresh) return true;
    return now.st_ino != here.before.st_ino || now.st_mtim.tv_sec != here.before.st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != here.before.st_mtim.tv_nsec;
}

// The workers' command line.
static void write_arguments(bool again) {
    static char replicas[32], resume[] = "--resume", name[] = "lockstep";
    bool go_on = again && is_begun();
    uint32_t n = 0;
    here.arguments[n++] = name;
    here.arguments[n++] = here.train[0];
    lk_format(replicas, sizeof replicas, "--replicas=%u", here.replicas);
    if (here.replicas) here.arguments[n++] = replicas;
    if (go_on && !here.resume) here.arguments[n++] = resume;
    for (uint32_t i = 1; i < here.train_count; i++) {
        if (!go_on || !is_option(here.train[i], "--fresh")) here.arguments[n++] = here.train[i];
    }
    here.arguments[n] = NULL;
}

// --- ending ------------------------------------------------------------------------------------

// What all workers find at the same step; they end at the same time then.
static bool is_common(int status) {
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : LK_RETRY;
    return code == LK_OK || code == LK_NOT_FINITE || code == LK_INTERRUPTED ||
           code == LK_TERMINATED || code == LK_HANGUP;
}

// Whether the kernel has it stopped, as after Ctrl-Z or in a debugger.
static bool is_halted(pid_t process) {
    char path[40], text[256];
    lk_format(path, sizeof path, "/proc/%ld/stat", (long)process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t bytes = read(file, text, sizeof text - 1);
    close(file);
    text[LK_MAX(bytes, 0)] = '\0';
    const char *state = strrchr(text, ')');
    return state && strlen(state) > 2 && strchr("Tt", state[2]);
}

// What a worker says of one that it waited for in vain: comm/mpi/lost.c.
static bool says_silent(const child *c, pid_t process) {
    char what[64];
    lk_format(what, sizeof what, "(process %ld) is silent", (long)process);
    for (uint32_t i = 0; i < LK_MIN(c->lines, (uint32_t)LAST_LINES); i++) {
        if (strstr(c->last[i], what)) return true;
    }
    return false;
}

// After the first failure, before anybody is asked to end, which would wake those that are stopped:
// marks who may have made it fail by doing nothing.
static void find_silent(const child *first) {
    bool halted = false;
    if (!WIFEXITED(first->status) || WEXITSTATUS(first->status) != LK_RETRY) return;
    for (uint32_t w = 0; w < here.workers; w++) {
        child *c = &children[w];
        c->silent = c->running && is_halted(c->process);
        halted = halted || c->silent;
    }
    for (uint32_t w = 0; w < here.workers && !halted; w++) {
        child *c = &children[w];
        c->silent = c->running && says_silent(first, c->process);
    }
}

static void reap(void) {
    int status;
    for (pid_t process; (process = waitpid(-1, &status, WNOHANG)) > 0;) {
        uint32_t w = 0;
        while (w < here.workers && children[w].process != process) w++;
        if (w == here.workers || !children[w].running) continue;
        child *c = &children[w];
        c->running = false;
        c->status = status;
        // Slow, and then it has said what is wrong with it.
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : LK_RETRY;
        c->silent = c->silent && (is_common(status) || code == LK_RETRY);
        c->place = here.ended++;
        here.running--;
        read_all(w);
        if (is_common(status) || here.failed) continue;
        here.failed = true;
        here.failed_at = lk_seconds();
        find_silent(c);
    }
}

// --- who takes part ----------------------------------------------------------------------------

// The first that is away and may come back: when, or -1.
static double next_return(void) {
    double first = -1;
    for (uint32_t s = 0; s < here.slots; s++) {
        if (!slots[s].away || (first >= 0 && slots[s].back_at >= first)) continue;
        first = slots[s].back_at;
    }
    return first < 0 ? -1 : LK_MAX(first - lk_seconds(), 0.0);
}

// Those that run save and end: they go on together with whoever has come back.
static void take_in(void) {
    if (here.failed || here.asked || here.rejoining || next_return() != 0) return;
    here.rejoining = true;
    signal_all(SIGTERM);
}

// Everybody who is not away is started, in the order of slots.
static void choose_workers(void) {
    here.workers = 0;
    for (uint32_t s = 0; s < here.slots; s++) {
        if (slots[s].away && lk_seconds() >= slots[s].back_at) slots[s].away = false;
        if (!slots[s].away) slot_of[here.workers++] = s;
    }
}

static void leave(slot *s) {
    const uint32_t times = LK_MIN(1u << LK_MIN(s->losses, 10u), (uint32_t)REJOIN_TIMES_MAX);
    s->away = true;
    s->back_at = lk_seconds() + (double)here.rejoin_seconds * times;
    s->losses++;
}

// How a worker was lost, the surest first: killed by a stranger or deaf to all but SIGKILL; silent;
// gone as if all were well.
typedef enum loss { LOST_KILLED, LOST_SILENT, LOST_GONE, LOSSES } loss;

static bool is_lost(const child *c, loss how) {
    const bool signaled = WIFSIGNALED(c->status);
    const bool ours = signaled && c->stopped && WTERMSIG(c->status) != SIGKILL;
    switch (how) {
    case LOST_KILLED: return signaled && !ours;
    case LOST_SILENT: return c->silent;
    default: return !signaled && WEXITSTATUS(c->status) == LK_OK;
    }
}

// Whose end was its own and not the others' doing is away for a while. Returns how many.
static uint32_t send_away(void) {
    uint32_t lost = 0;
    for (loss how = LOST_KILLED; how < LOSSES && lost == 0; how++) {
        for (uint32_t w = 0; w < here.workers; w++) {
            if (!is_lost(&children[w], how)) continue;
            leave(&slots[slot_of[w]]);
            lost++;
        }
    }
    return lost;
}

static double next_stop(void) {
    if (!here.failed || here.stopped == SIGKILL) return -1;
    double left = here.failed_at + (here.stopped ? kill_after : ask_after) - lk_seconds();
    return LK_MAX(left, 0.0);
}

static void stop_others(void) {
    if (next_stop() != 0) return;
    here.stopped = here.stopped ? SIGKILL : SIGTERM;
    signal_all((int)here.stopped);
}

// Whoever read standard output is gone: the workers save and end.
static void stop_unread(void) {
    here.unread = true;
    if (!here.out[OUT].write_errno) here.out[OUT].write_errno = EPIPE;
    signal_all(SIGTERM);
}

static void attend(void) {
    while (here.running) {
        nfds_t count = 0;
        for (uint32_t i = 0; i < here.workers * STREAMS; i++) {
            int fd = children[i / STREAMS].streams[i % STREAMS].fd;
            if (fd >= 0) pipes_polled[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
        double stop = next_stop(), back = here.rejoining || here.failed ? -1 : next_return();
        pipes_polled[count++] = (struct pollfd){.fd = here.unread ? -1 : here.out[OUT].fd};
        wait_for(pipes_polled, count, stop < 0 ? back : stop);
        if (pipes_polled[count - 1].revents & (POLLERR | POLLHUP)) stop_unread();
        for (uint32_t w = 0; w < here.workers; w++) read_all(w);
        reap();
        stop_others();
        take_in();
    }
    for (uint32_t i = 0; i < here.workers * STREAMS; i++) {
        int *fd = &children[i / STREAMS].streams[i % STREAMS].fd;
        if (*fd >= 0) close(*fd);
        *fd = -1;
    }
}

enum { SILENT = 3, FAULT };  // FAULT: suspicion of an end of its own, and from here on

// How likely the end of a worker is the cause and not the consequence of the others': a worker that
// sees another die or be silent ends with LK_RETRY, one that was asked to end is no cause, and of
// those that end for the same reason one says it.
static uint32_t suspicion(const child *c) {
    if (WIFSIGNALED(c->status) && !c->stopped) return FAULT + 2;
    if (c->silent) return SILENT;
    if (WIFSIGNALED(c->status)) return 0;
    switch (WEXITSTATUS(c->status)) {
    case LK_OK: return 0;
    case LK_INTERRUPTED:
    case LK_HANGUP:
    case LK_TERMINATED: return 1;
    case LK_RETRY: return 2;
    default: return c->lines ? FAULT + 1 : FAULT;
    }
}

// The worker that failed first, or the number of workers.
static uint32_t find_first(void) {
    uint32_t first = here.workers;
    for (uint32_t w = 0; w < here.workers; w++) {
        const child *c = &children[w], *best = &children[first % here.workers];
        uint32_t mine = suspicion(c), its = first < here.workers ? suspicion(best) : 0;
        if (mine > its || (mine && mine == its && c->place < best->place)) first = w;
    }
    return first;
}

static bool all_done(void) {
    for (uint32_t w = 0; w < here.workers; w++) {
        int status = children[w].status;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != LK_OK) return false;
    }
    return true;
}

static lk_status status_of(const child *c) {
    return WIFSIGNALED(c->status) || c->silent ? LK_RETRY : (lk_status)WEXITSTATUS(c->status);
}

static bool may_go_on(const child *c) { return status_of(c) == LK_RETRY; }

static void say_end(const child *c, char *out, size_t bytes) {
    if (c->silent && (c->stopped || !WIFSIGNALED(c->status))) {
        lk_format(out, bytes, "was stopped or silent, and the others gave it up");
        return;
    }
    if (WIFSIGNALED(c->status)) {
        int number = WTERMSIG(c->status);
        lk_format(out, bytes, "was killed by signal %d (%s)", number, strsignal(number));
        return;
    }
    lk_format(out, bytes, "ended with exit code %d (%s)", WEXITSTATUS(c->status),
              lk_status_text(status_of(c)));
}

static void show_last_lines(uint32_t rank) {
    const child *c = &children[rank];
    uint32_t count = LK_MIN(c->lines, (uint32_t)LAST_LINES);
    fprintf(stderr, "lockstep: the last lines of rank %u:%s\n", rank, count ? "" : " it had none");
    for (uint32_t i = c->lines - count; i < c->lines; i++) {
        fprintf(stderr, "  | %s\n", c->last[i % LAST_LINES]);
    }
}

// --- the command -------------------------------------------------------------------------------

// All workers from start to end. *again: they were stopped by something that may not happen twice.
static lk_status run_once(bool *again, lk_error *error) {
    char end[160];
    lk_status status = open_listener(error);
    here.failed = here.rejoining = false;
    here.ended = here.stopped = 0;
    *again = false;
    for (uint32_t w = 0; w < here.workers; w++) {
        for (uint32_t s = 0; s < STREAMS; s++) children[w].streams[s].fd = -1;
    }
    for (uint32_t w = 0; w < here.workers && status == LK_OK; w++) status = start_worker(w, error);
    if (status != LK_OK) signal_all(SIGKILL);
    if (here.listener >= 0) close(here.listener);
    attend();
    (void)lk_leftover_remove(0);
    uint32_t first = find_first();
    (void)lk_text_clear(&here.out[OUT]);
    if (status != LK_OK) return status;
    const child *c = &children[first % here.workers];
    // Whoever was asked to end has saved, unless one of them says why it could not.
    bool failed = first < here.workers && !here.killed && suspicion(c) >= FAULT;
    if (here.asked && !failed && !all_done()) return lk_stop_status((uint32_t)here.asked);
    // One that was to end before it could save has lost nothing.
    *again = here.rejoining && !here.asked && !here.failed && !all_done();
    if (*again) return LK_TERMINATED;
    if (first == here.workers) return LK_OK;
    // The leader has said why, and what can be done.
    if (!c->silent && is_common(c->status)) return status_of(c);
    *again = may_go_on(c) && !here.asked && !here.unread;
    say_end(c, end, sizeof end);
    show_last_lines(first);
    return lk_fail(error, status_of(c), "rank %u of %u (process %ld) failed first: it %s%s", first,
                   here.workers, (long)c->process, end,
                   *again ? "; go on with --resume, or let --restarts K do so" : "");
}

// After an end that may be gone on from: with whom? False: with nobody.
static bool go_on(uint32_t *restarts) {
    const uint32_t before = here.workers;
    const bool joined = here.rejoining && !here.failed;
    const uint32_t lost = here.elastic && !joined ? send_away() : 0;
    choose_workers();
    if (joined || (lost && here.workers >= here.elastic)) {
        fprintf(stderr, "lockstep: goes on with %u of %u workers%s\n", here.workers, here.slots,
                joined && here.workers > before ? ": one that was lost is taken in again" : "");
        return true;
    }
    if (*restarts == here.restarts) return false;
    for (uint32_t s = 0; s < here.slots; s++) slots[s].away = false;
    choose_workers();
    fprintf(stderr, "lockstep: restart %u of %u\n", ++*restarts, here.restarts);
    return true;
}

static lk_status run_with_restarts(lk_error *error) {
    uint32_t restarts = 0;
    bool again;
    choose_workers();
    write_arguments(false);
    lk_status status = run_once(&again, error);
    while (again) {
        if (status != LK_TERMINATED) lk_say_error(error);
        error->status = LK_OK;
        if (!go_on(&restarts)) break;
        write_arguments(true);
        status = run_once(&again, error);
    }
    return status;
}

static const char help[] =
    "usage: lockstep launch --workers N [--replicas M] [--restarts K] [--elastic MIN]\n"
    "                       [--rejoin S] train CONFIG ...\n"
    "\n"
    "Starts N workers on this machine, each with M replicas, and shows what each says after its\n"
    "rank. When one fails all are stopped, and the first that did is named, with its last lines.\n"
    "\n"
    "  --workers N    processes, 1 to 1024\n"
    "  --replicas M   threads of each; without it the processors are shared out\n"
    "  --restarts K   at most so often: where a worker was killed, lost or silent, start all\n"
    "                 again, with --resume\n"
    "  --elastic MIN  where a worker was killed, lost or silent, go on with the others, as long\n"
    "                 as they are MIN or more; it is taken in again later. These do not count as\n"
    "                 restarts\n"
    "  --rejoin S     .. after S seconds (30), and twice as long each time it is lost again\n"
    "\n"
    "The first Ctrl-C, SIGTERM or SIGHUP goes to the workers, which save and end; a second Ctrl-C "
    "or\n"
    "SIGTERM kills them. SIGUSR1 prints how far they are. With train --json the lines of rank 0 "
    "come\n"
    "as they are, without its rank.\n";

static const char *const names[] = {"workers", "replicas", "restarts", "elastic", "rejoin"};

// Its own options, and behind "train" those of train.
static lk_status list_options(int argc, char **argv, lk_error *error) {
    lk_common_options ignored;
    if (argc > 1) {
        return lk_parse_common(argc - 1, argv + 1, LK_OPT_OF_TRAIN, &ignored, error);
    }
    for (uint32_t i = 0; i < LK_COUNT(names); i++) lk_list_described(help, names[i], true);
    lk_list_to("train", NULL, "the run that they train");
    return lk_answer(error);
}

static lk_status read_option(int argc, char **argv, int *at, lk_error *error) {
    uint32_t *const values[] = {&here.slots, &here.replicas, &here.restarts, &here.elastic,
                                &here.rejoin_seconds};
    const uint32_t most[] = {LK_MPI_WORLD_MAX, 1 << 20, 1 << 20, LK_MPI_WORLD_MAX, 1 << 20};
    char name[64];
    const char *given = argv[*at] + strspn(argv[*at], "-"), *equals = strchr(given, '=');
    size_t length = equals ? (size_t)(equals - given) : strlen(given);
    snprintf(name, sizeof name, "%.*s", (int)LK_MIN(length, sizeof name - 1), given);
    for (uint32_t i = 0; i < LK_COUNT(names); i++) {
        if (strcmp(names[i], name) != 0) continue;
        const char *value = equals ? equals + 1 : *at + 1 < argc ? argv[++*at] : "";
        ++*at;
        return lk_parse_number(names[i], value, most[i], values[i], error);
    }
    const char *near = lk_text_nearest(name, names, LK_COUNT(names));
    return lk_fail(error, LK_BAD_USAGE,
                   "launch: unknown option \"%s\"%s%s%s; those of train come after \"train\"; see: "
                   "lockstep launch --help",
                   argv[*at], near ? ", did you mean \"--" : "", near ? near : "",
                   near ? "\"?" : "");
}

static lk_status read_command(int argc, char **argv, lk_error *error) {
    int at = 1;
    while (at < argc && argv[at][0] == '-') LK_CHECK(read_option(argc, argv, &at, error));
    if (here.slots == 0 || at == argc || strcmp(argv[at], "train") != 0) {
        return lk_fail(error, LK_BAD_USAGE,
                       "launch: wanted --workers N and then train CONFIG ...%s%s; "
                       "see: lockstep launch --help",
                       at < argc ? ", found " : "", at < argc ? argv[at] : "");
    }
    if (here.elastic > here.slots) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--elastic: found %u with --workers %u, wanted at most as many",
                       here.elastic, here.slots);
    }
    if (here.rejoin_seconds && !here.elastic) {
        return lk_fail(error, LK_BAD_USAGE,
                       "--rejoin: found without --elastic, which alone goes on without a lost "
                       "worker; add --elastic MIN, or leave --rejoin away");
    }
    here.train = argv + at;
    here.train_count = (uint32_t)(argc - at);
    if (here.train_count + 4 < ARGUMENTS_MAX) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "launch: more than %d arguments for train",
                   ARGUMENTS_MAX - 4);
}

// What each worker would refuse is refused once, before any is started.
static lk_status check_train(lk_error *error) {
    static lk_run run;
    lk_common_options o;
    char *arguments[ARGUMENTS_MAX], run_dir[LK_PATH_BYTES];
    memcpy(arguments, here.train, here.train_count * sizeof *arguments);
    arguments[here.train_count] = NULL;
    LK_CHECK(lk_parse_common((int)here.train_count, arguments, LK_OPT_OF_TRAIN, &o, error));
    if (o.cluster) {
        return lk_fail(error, LK_BAD_USAGE,
                       "launch describes the workers itself: leave --cluster "
                       "away, or start each worker on its own with: lockstep train");
    }
    here.fresh = o.fresh;
    here.resume = o.resume || o.resume_or_start;
    here.json = o.json;
    here.quiet = o.quiet;
    lk_status status = lk_run_configure(&run, &o.config, (lk_run_needs){0}, error);
    lk_format(here.identity, sizeof here.identity, "%s/identity",
              o.run_dir ? o.run_dir : lk_default_run_dir(&run, run_dir, sizeof run_dir));
    lk_run_close(&run);
    if (stat(here.identity, &here.before) != 0) memset(&here.before, 0, sizeof here.before);
    return status;
}

static lk_status check_place(lk_error *error) {
    static lk_cluster cluster;
    LK_CHECK(lk_cluster_read(&(lk_cluster_input){.file = NULL}, &cluster, NULL, error));
    if (cluster.world > 1 || cluster.evaluator) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "launch starts workers of its own, but %s describes some already: unset it, "
                       "or leave launch away and start: lockstep train",
                       cluster.origin);
    }
    if (here.slots > 1) LK_CHECK(lk_mpi_built(error));
    ssize_t bytes = readlink("/proc/self/exe", here.program, sizeof here.program - 1);
    if (bytes > 0) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "launch: /proc/self/exe: %s; is /proc mounted?",
                   strerror(errno));
}

// Two pipes for each worker, and what a worker itself needs.
static void raise_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    rlim_t wanted = STREAMS * (rlim_t)here.slots + 256;
    if (limit.rlim_cur >= wanted) return;
    limit.rlim_cur = LK_MIN(wanted, limit.rlim_max);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

lk_status lk_command_launch(int argc, char **argv, lk_error *error) {
    if (lk_list_to) return list_options(argc, argv, error);
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(help, stdout);
        return LK_OK;
    }
    LK_CHECK(read_command(argc, argv, error));
    LK_CHECK(check_train(error));
    LK_CHECK(check_place(error));
    LK_CHECK(make_key(error));
    raise_limit();
    children = calloc(here.slots, sizeof *children);
    slots = calloc(here.slots, sizeof *slots);
    slot_of = calloc(here.slots, sizeof *slot_of);
    if (!children || !slots || !slot_of)
        return lk_fail(error, LK_UNAVAILABLE, "launch: no memory for %u workers", here.slots);
    if (!here.rejoin_seconds) here.rejoin_seconds = REJOIN_SECONDS;
    lk_text_open(&here.out[OUT], STDOUT_FILENO);
    lk_text_open(&here.out[ERR], STDERR_FILENO);
    catch_signals();
    lk_status status = run_with_restarts(error);
    free(children);
    free(slots);
    free(slot_of);
    const bool ended = status == LK_OK || (here.unread && status == LK_TERMINATED);
    return ended ? lk_text_check(&here.out[OUT], "standard output", error) : status;
}
