// rendezvous.c - addresses, the worker's side of the rendezvous, and the thread that listens for
// signs of life. The chief's side is comm/cluster/chief.h's.
#define _GNU_SOURCE
#include "comm/cluster/rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/cluster/chief.h"
#include "comm/threads/clock.h"
#include "comm/threads/team.h"

enum { ANSWER_SECONDS = 5, RETRY_MS_FIRST = 10, RETRY_MS_MOST = 500, LOOK_MS = 250 };
enum { NOBODY = LK_CLUSTER_WORLD_MAX, WHO_BYTES = LK_HELLO_NAME_BYTES + 80 };

enum { CHECKING, STARTING, RUNNING, LEAVING };  // stages of a process

static struct {
    bool met;
    uint32_t hosts;             // of how many all workers are
    lk_hello chief;             // as far as a worker knows it
    const lk_cluster *cluster;  // while meeting
    lk_rendezvous_options options;
    lk_key key;
    lk_hello self;
    double began, deadline, took;
    double paused;  // seconds since the process began in which it was stopped or suspended
    char chief_host[LK_ADDRESS_BYTES], chief_port[8];
    int pmi, life;  // this process's MPI's end; a worker's sign of life
    lk_line_in in;  // of life
    uint32_t stage, lost, spoken;
    void (*judge)(uint32_t rank);
    pthread_t thread;
} here = {.pmi = -1, .life = -1, .lost = NOBODY};

// Apart, and zeros: with initial values beside it these megabytes would lie in the program's file.
static lk_chief served;

// Not in the arena: the thread starts before there is one.
static _Alignas(4096) uint8_t stack[LK_TEAM_STACK_BYTES];

// The time of this file's deadlines: pauses of this process are left out (comm/threads/clock.h).
static double own_seconds(void) { return lk_seconds() - here.paused; }

// A wait of `ms` milliseconds began at `begin`: what the clock shows beyond them was a pause.
static void leave_out_pause(double begin, int ms) {
    double rest = lk_seconds() - begin - 1e-3 * ms;
    if (rest > LK_LOOK_SECONDS_MAX) here.paused += rest;
}

static int milliseconds_until(double time) {
    double left = 1000 * (time - own_seconds());
    return left <= 0 ? 0 : (int)LK_MIN(left + 1, 1e9);
}

static void pause_ms(int ms) {
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    double begin = lk_seconds();
    (void)nanosleep(&t, NULL);
    leave_out_pause(begin, ms);
}

// Until something can be done with the socket. False at the deadline.
static bool wait_on(int socket, short what, double deadline) {
    struct pollfd wait = {.fd = socket, .events = what};
    if (deadline == HUGE_VAL) {
        while (poll(&wait, 1, -1) < 0) continue;
        return true;
    }
    for (;;) {
        int left = milliseconds_until(deadline), ms = LK_MIN(left, LOOK_MS);
        double begin = lk_seconds();
        int ready = poll(&wait, 1, ms);
        if (ready > 0) return true;
        if (ready == 0) leave_out_pause(begin, ms);
        if (left == 0) return false;
    }
}

// --- addresses ---------------------------------------------------------------------------------

// The host without brackets, and the port.
static void split_address(const char *address) {
    const char *colon = strrchr(address, ':');
    bool brackets = address[0] == '[';
    int length = (int)(colon - address) - (brackets ? 2 : 0);
    lk_assert(colon && length > 0);
    lk_format(here.chief_host, sizeof here.chief_host, "%.*s", length, address + brackets);
    lk_format(here.chief_port, sizeof here.chief_port, "%s", colon + 1);
}

// By its text, so that no name server is asked: other names of the loopback address count as names
// of other machines, and so does a name that only begins like a number.
static bool names_loopback(const char *address) {
    char host[LK_ADDRESS_BYTES];
    struct in_addr number;
    lk_format(host, sizeof host, "%.*s", (int)strcspn(address, ":"), address);
    if (inet_pton(AF_INET, host, &number) == 1) return ntohl(number.s_addr) >> 24 == 127;
    return strncmp(address, "localhost:", 10) == 0 || strncmp(address, "[::1]:", 6) == 0;
}

static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

static bool needs_key(void) { return !here.key.given && !here.options.insecure; }

static lk_status want_key(const lk_cluster *c, lk_error *error) {
    for (uint32_t w = 0; w < c->world && needs_key(); w++) {
        if (!c->address[w][0] || names_loopback(c->address[w])) continue;
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: rank %u is at %s, so strangers could come in, and there is no key; set "
                       "LOCKSTEP_KEY_FILE to a file with the same key on every host, or say "
                       "--insecure where you trust everybody who can reach these hosts",
                       c->origin, w, c->address[w]);
    }
    return LK_OK;
}

// Every address that the chief's host has, or NULL with *why set.
static struct addrinfo *look_up(bool to_listen, const char **why) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0)};
    struct addrinfo *list = NULL;
    int failed = getaddrinfo(here.chief_host, here.chief_port, &hints, &list);
    if (failed) *why = gai_strerror(failed);
    return failed ? NULL : list;
}

// A host that vanishes without closing its connections is noticed by their silence: after three
// probes in vain, or after the step timeout where that is shorter, since probes are never less than
// a second apart.
static void keep_alive(int socket) {
    int one = 1, quarter = (int)LK_MAX(here.options.step_timeout_seconds / 4, 1u), probes = 3;
    unsigned limit_ms = 1000 * here.options.step_timeout_seconds;
    (void)setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
    (void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &quarter, sizeof quarter);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &quarter, sizeof quarter);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

// --- the chief ---------------------------------------------------------------------------------

static int listen_at(const struct addrinfo *a, const char **why) {
    int one = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (needs_key() && !is_loopback(a->ai_addr)) {
        *why = "this name means another address than loopback, and there is no key";
    } else if (fd >= 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        keep_alive(fd);  // whoever is accepted inherits it
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
        *why = errno == EADDRNOTAVAIL ? "not an address of this machine" : strerror(errno);
    } else {
        *why = strerror(errno);
    }
    if (fd >= 0) close(fd);
    return -1;
}

static lk_status open_listener(int *listener, lk_error *error) {
    const char *why = "";
    *listener = here.options.listener;
    if (*listener >= 0) return LK_OK;
    struct addrinfo *list = look_up(true, &why);
    for (struct addrinfo *a = list; a && *listener < 0; a = a->ai_next) {
        *listener = listen_at(a, &why);
    }
    if (list) freeaddrinfo(list);
    if (*listener >= 0) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE,
                   "rank 0: cannot listen at %s, where %s says that rank 0 is: %s; start rank 0 on "
                   "that machine, or take another port",
                   here.cluster->address[0], here.cluster->origin, why);
}

// Start-up took too long: `count` workers have not come, `first` before the others.
static lk_status say_absent(uint32_t first, uint32_t count, lk_error *error) {
    char task[LK_TASK_BYTES], others[48] = "";
    const char *address = here.cluster->address[first];
    lk_cluster_task(here.cluster, first, task);
    if (count > 1) lk_format(others, sizeof others, ", nor have %u others", count - 1);
    return lk_fail(error, LK_RETRY,
                   "rank %u: start-up did not end within %u s: rank %u (%s%s%s) has not come%s; "
                   "start every worker with the same description; see --start-timeout",
                   here.self.rank, here.options.start_timeout_seconds, first, task,
                   address[0] ? " at " : "", address, others);
}

// Whom start-up waits for; `why` may be "".
static void say_waiting(uint32_t rank, const char *why) {
    char task[LK_TASK_BYTES], who[LK_TASK_BYTES + 320];
    const char *address = here.cluster->address[rank];
    if (!here.options.waiting) return;
    lk_cluster_task(here.cluster, rank, task);
    lk_format(who, sizeof who, "rank %u (%s%s%.*s)%s%s; see --start-timeout (%u s)", rank, task,
              address[0] ? " at " : "", 160, address, *why ? ": " : "", why,
              here.options.start_timeout_seconds);
    here.options.waiting(who, lk_seconds() - here.began);
}

static lk_status come_late(lk_chief *c, lk_error *error) {
    char line[64];
    uint32_t count = 0, first = lk_chief_absent(c);
    for (uint32_t w = 1; w < c->world; w++) {
        count += c->members[w].pmi < 0 || c->members[w].life < 0;
    }
    lk_format(line, sizeof line, "late %u %u\n", first, count);
    lk_chief_tell(c, line);
    return say_absent(first, count, error);
}

// Everybody hears who was lost; `who` names it.
static void tell_lost(lk_chief *c, char who[WHO_BYTES]) {
    char line[LK_HELLO_NAME_BYTES + 64];
    const lk_hello *h = &c->members[c->lost].hello;
    unsigned long long process = h->process;
    lk_format(line, sizeof line, "lost %u %llu %s\n", c->lost, process, h->name);
    lk_format(who, WHO_BYTES, "rank %u on %s (process %llu)", c->lost, h->name, process);
    lk_chief_tell(c, line);
}

// As lk_chief_serve, for a short while.
static lk_status serve(lk_chief *c, int most_ms, lk_error *error) {
    const int ms = LK_MIN(most_ms, LOOK_MS);
    double begin = lk_seconds();
    lk_status status = lk_chief_serve(c, ms, error);
    leave_out_pause(begin, ms);
    return status;
}

// Until all have come. Whoever has come already hears why, where it ends otherwise.
static lk_status gather(lk_chief *c, lk_error *error) {
    char who[WHO_BYTES];
    while (lk_chief_absent(c) < c->world) {
        int left = milliseconds_until(here.deadline);
        if (left == 0) return come_late(c, error);
        say_waiting(lk_chief_absent(c), "");
        lk_status status = serve(c, left, error);
        if (status == LK_RANKS_DISAGREE) lk_chief_tell(c, "refused others\n");
        if (status != LK_RETRY) LK_CHECK(status);
        if (status == LK_OK) continue;
        tell_lost(c, who);
        return lk_fail(error, LK_RETRY, "rank 0: %s has died during start-up", who);
    }
    lk_chief_go(c);
    here.hosts = c->hosts;
    return LK_OK;
}

static lk_status lead(lk_error *error) {
    int pair[2], listener;
    LK_CHECK(open_listener(&listener, error));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        return lk_fail(error, LK_UNAVAILABLE, "rank 0: no socket for MPI: %s", strerror(errno));
    }
    here.pmi = pair[0];
    lk_chief_open(&served, &here.key, &here.self, listener, pair[1]);
    return gather(&served, error);
}

// --- a worker ----------------------------------------------------------------------------------

// One line from the chief. NULL at the deadline, or where the connection is over.
static const char *read_line(int socket, lk_line_in *in, double deadline, bool *over) {
    const char *line = NULL;
    *over = false;
    while (!line && !*over) {
        char byte;  // one by one: what follows the line is not ours to take
        if (!wait_on(socket, POLLIN, deadline)) return NULL;
        ssize_t count = recv(socket, &byte, 1, 0);
        if (count < 0 && errno == EINTR) continue;
        if (count == 1) (void)lk_line_take(in, &byte, 1, &line, over);
        if (count < 1) *over = true;
    }
    return line;
}

static int connect_to(const struct addrinfo *a, double deadline, const char **why) {
    int failed = 0,
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    socklen_t bytes = sizeof failed;
    if (needs_key() && !is_loopback(a->ai_addr)) {
        *why = "this name means another address than loopback, and there is no key";
        failed = 1;
    } else if (fd < 0 || (connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS)) {
        *why = strerror(errno);
        failed = 1;
    } else if (!wait_on(fd, POLLOUT, deadline)) {
        *why = "no answer";
        failed = 1;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) != 0 || failed) {
        *why = strerror(failed);
    }
    if (!failed) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static lk_status refused(const char *line, lk_error *error) {
    const char *chief = here.cluster->address[0];
    if (strcmp(line, "refused cluster") == 0) {
        return lk_fail(error, LK_RANKS_DISAGREE,
                       "rank %u: the chief at %s has another description of the cluster than this "
                       "worker (%s); give all workers the same; see: lockstep cluster",
                       here.self.rank, chief, here.cluster->origin);
    }
    if (strcmp(line, "refused taken") == 0) {
        return lk_fail(error, LK_RANKS_DISAGREE,
                       "rank %u: the chief at %s has this rank already; give each worker its own",
                       here.self.rank, chief);
    }
    return lk_fail(error, LK_BAD_CONFIG,
                   "rank %u: the chief at %s has another key than this worker; give all workers "
                   "the same LOCKSTEP_KEY_FILE",
                   here.self.rank, chief);
}

// What the connection is made for. LK_RETRY without an error: try again, for *why.
static lk_status introduce(int fd, lk_hello_kind kind, const char **why, lk_error *error) {
    static lk_line_in in;
    uint8_t question[LK_HELLO_BYTES];
    char hello[LK_HELLO_LINE_BYTES];
    double deadline = LK_MIN(here.deadline, own_seconds() + ANSWER_SECONDS);
    bool over;
    *why = "it takes connections, but says nothing";
    in.used = 0;
    const char *line = read_line(fd, &in, deadline, &over);
    if (!line && !in.used) return LK_RETRY;
    if (!line || !lk_hello_asked(line, question)) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "rank %u: at %s, where rank 0 should be, another program answers; is the "
                       "port right, and lockstep there of this version (%s)?",
                       here.self.rank, here.cluster->address[0], LK_VERSION);
    }
    here.self.kind = kind;
    lk_hello_write(&here.self, &here.key, question, hello);
    size_t length = strlen(hello);
    memcpy(hello + length, "\n", 2);
    if (send(fd, hello, length + 1, MSG_NOSIGNAL) != (ssize_t)length + 1) return LK_RETRY;
    in.used = 0;
    line = read_line(fd, &in, deadline, &over);
    if (!line) return LK_RETRY;
    if (strncmp(line, "refused ", 8) == 0) return refused(line, error);
    if (lk_hello_welcomed(&here.self, &here.key, line)) return LK_OK;
    return lk_fail(error, LK_BAD_CONFIG,
                   "rank %u: whoever answers at %s has not this run's key, so is not the chief; is "
                   "the description right, and LOCKSTEP_KEY_FILE everywhere the same?",
                   here.self.rank, here.cluster->address[0]);
}

// One attempt on all addresses of the chief. LK_RETRY without an error: try again, for *why.
static lk_status try_to_join(lk_hello_kind kind, int *out, const char **why, lk_error *error) {
    struct addrinfo *list = look_up(false, why);
    lk_status status = LK_RETRY;
    int fd = -1, one = 1;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = connect_to(a, LK_MIN(here.deadline, own_seconds() + ANSWER_SECONDS), why);
    }
    if (list) freeaddrinfo(list);
    if (fd < 0) return LK_RETRY;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    keep_alive(fd);
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    status = introduce(fd, kind, why, error);
    if (status == LK_OK) *out = fd;
    if (status != LK_OK) close(fd);
    return status;
}

// "lost RANK PROCESS HOST", or "stuck RANK PROCESS HOST HOW"; the end of the connection is the
// chief's own.
static uint32_t read_lost(const char *line, char who[WHO_BYTES]) {
    unsigned rank;
    unsigned long long process;
    char name[LK_HELLO_NAME_BYTES];
    if (line && sscanf(line, "%*[a-z] %u %llu %63s", &rank, &process, name) == 3 &&
        rank < here.self.world) {
        lk_format(who, WHO_BYTES, "rank %u on %s (process %llu)", rank, name, process);
        return rank;
    }
    lk_format(who, WHO_BYTES, "rank 0 at %s", here.chief_host);
    return 0;
}

// What the chief says while it waits for others. LK_OK at the deadline, and with *go set when all
// have come.
static lk_status hear_chief(double deadline, bool *go, lk_error *error) {
    char who[WHO_BYTES];
    static uint32_t absent;
    unsigned long long process = 0;
    uint32_t count = 0, world = here.self.world;
    for (;;) {
        bool over;
        const double look = lk_seconds() + 1e-3 * LOOK_MS;
        const char *line = read_line(here.life, &here.in, LK_MIN(deadline, look), &over);
        if (!line && !over) {
            if (lk_seconds() >= deadline) return LK_OK;
            say_waiting(absent, "");
            continue;
        }
        if (line && sscanf(line, "waiting %u", &absent) == 1 && absent < world) continue;
        if (line && strncmp(line, "go ", 3) == 0) {
            *go = true;
            if (sscanf(line, "go %u %llu %63s", &here.hosts, &process, here.chief.name) != 3) {
                here.hosts = LK_CLUSTER_WORLD_MAX;
            }
            here.chief.process = process;
            return LK_OK;
        }
        if (line && strncmp(line, "refused ", 8) == 0)
            return LK_RANKS_DISAGREE;  // the chief says it
        if (line && sscanf(line, "late %u %u", &absent, &count) == 2 && absent < world) {
            return say_absent(absent, count, error);
        }
        (void)read_lost(line, who);
        return lk_fail(error, LK_RETRY, "rank %u: %s has died during start-up", here.self.rank,
                       who);
    }
}

static lk_status join(lk_hello_kind kind, int *out, lk_error *error) {
    const char *why = "";
    bool go = false;
    for (int pause = RETRY_MS_FIRST;; pause = LK_MIN(2 * pause, RETRY_MS_MOST)) {
        lk_status status = try_to_join(kind, out, &why, error);
        if (status != LK_RETRY) return status;
        // The chief may have ended meanwhile, and said why.
        if (here.life >= 0) LK_CHECK(hear_chief(own_seconds(), &go, error));
        int left = milliseconds_until(here.deadline);
        if (left == 0) break;
        say_waiting(0, why);
        pause_ms(LK_MIN(pause, left));
    }
    return lk_fail(error, LK_RETRY,
                   "rank %u: start-up did not end within %u s: rank 0 does not let it in at %s: "
                   "%s; is it running there, and the port open? see --start-timeout",
                   here.self.rank, here.options.start_timeout_seconds, here.cluster->address[0],
                   why);
}

// Once both connections are there the chief says how long to wait. Only where it is silent itself
// this worker ends the waiting.
static lk_status follow(lk_error *error) {
    bool go = false;
    LK_CHECK(join(LK_HELLO_LIFE, &here.life, error));
    LK_CHECK(join(LK_HELLO_PMI, &here.pmi, error));
    const uint32_t patience = here.options.start_timeout_seconds + ANSWER_SECONDS;
    LK_CHECK(hear_chief(own_seconds() + patience, &go, error));
    return go ? LK_OK
              : lk_fail(error, LK_RETRY,
                        "rank %u: rank 0 at %s is silent; is its process "
                        "stopped, or the network down?",
                        here.self.rank, here.cluster->address[0]);
}

// --- signs of life -----------------------------------------------------------------------------

// The last line of this process, which ends in start-up.
_Noreturn static void end_start(const char *format, ...) {
    char line[WHO_BYTES + 240];
    va_list words;
    va_start(words, format);
    int n = vsnprintf(line, sizeof line, format, words);
    va_end(words);
    ssize_t written = write(STDERR_FILENO, line, LK_MIN((size_t)LK_MAX(n, 0), sizeof line - 1));
    (void)written;
    _exit(LK_RETRY);
}

static void note_lost(uint32_t rank, const char *who) {
    __atomic_store_n(&here.lost, rank, __ATOMIC_SEQ_CST);
    uint32_t stage;
    // What this process finds wrong with its own start comes before the loss of another, which has
    // often ended for the same reason.
    while ((stage = __atomic_load_n(&here.stage, __ATOMIC_SEQ_CST)) == CHECKING) pause_ms(1);
    // Whoever leaves may be waiting for an answer that will not come.
    if (stage == LEAVING) (void)shutdown(here.pmi, SHUT_RDWR);
    if (stage != STARTING) return;
    void (*judge)(uint32_t) = __atomic_load_n(&here.judge, __ATOMIC_SEQ_CST);
    if (judge) judge(rank);
    lk_rendezvous_last_word();
    end_start("lockstep: rank %u: %s has died during start-up\n", here.self.rank, who);
}

// MPI has not started in time, as `who` is stopped or behind the others.
_Noreturn static void end_stuck(const char *who, const char *how) {
    lk_rendezvous_last_word();
    end_start(
        "lockstep: rank %u: start-up did not end within %u s, waiting for MPI to start; %s %s; see "
        "--start-timeout\n",
        here.self.rank, here.options.start_timeout_seconds, who, how);
}

// Another member on this host whose process the kernel calls stopped, if it is this program's.
static bool is_stopped(const lk_hello *h) {
    char path[40], text[2][256] = {"", ""};
    if (strcmp(h->name, here.self.name) != 0) return false;
    for (int i = 0; i < 2; i++) {
        unsigned long long process = i ? h->process : here.self.process;
        lk_format(path, sizeof path, "/proc/%llu/stat", process);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? 0 : read(fd, text[i], sizeof text[i] - 1);
        if (fd >= 0) close(fd);
        text[i][LK_MAX(got, 0)] = '\0';
    }
    const char *mine = strchr(text[0], '('), *name = strchr(text[1], '(');
    const char *end = mine ? strrchr(mine, ')') : NULL;
    size_t length = end ? (size_t)(end - mine) + 1 : 0;
    if (!length || !name || strncmp(mine, name, length) != 0) return false;
    return name[length] == ' ' && strchr("Tt", name[length + 1]);
}

// Start-up is over in time, or everybody hears whom it waits for. Once MPI has started the workers
// know each other, and look for themselves.
static void judge_start(lk_chief *c) {
    char who[WHO_BYTES], line[WHO_BYTES + 40];
    uint32_t rank = 1;
    if (__atomic_load_n(&here.judge, __ATOMIC_SEQ_CST)) return;
    while (rank < c->world && !is_stopped(&c->members[rank].hello)) rank++;
    const char *how = rank < c->world ? "is stopped" : "has not come as far as the others";
    if (rank == c->world) rank = lk_chief_behind(c);
    if (rank == c->world) return;
    const lk_hello *h = &c->members[rank].hello;
    unsigned long long process = h->process;
    lk_format(line, sizeof line, "stuck %u %llu %s %s\n", rank, process, h->name, how);
    lk_format(who, sizeof who, "rank %u on %s (process %llu)", rank, h->name, process);
    lk_chief_tell(c, line);
    end_stuck(who, how);
}

static void *chief_main(void *argument) {
    char who[WHO_BYTES];
    lk_chief *c = argument;
    lk_error error = {.status = LK_OK};
    lk_status status = LK_OK;
    while (status == LK_OK && __atomic_load_n(&here.stage, __ATOMIC_SEQ_CST) <= STARTING) {
        status = serve(c, LOOK_MS, &error);
        if (status == LK_OK && milliseconds_until(here.deadline) == 0) judge_start(c);
    }
    while (status == LK_OK) status = lk_chief_serve(c, -1, &error);
    tell_lost(c, who);
    note_lost(c->lost, who);
    return NULL;
}

static void *worker_main(void *argument) {
    char who[WHO_BYTES];
    bool over;
    (void)argument;
    const char *line = read_line(here.life, &here.in, HUGE_VAL, &over);
    uint32_t rank = read_lost(line, who);
    const char *how = line && strncmp(line, "stuck ", 6) == 0 ? line : NULL;
    for (int words = 0; how && words < 4; words++) how = strchr(how + 1, ' ');
    if (how) end_stuck(who, how + 1);
    note_lost(rank, who);
    return NULL;
}

static lk_status start_thread(lk_error *error) {
    pthread_attr_t attributes;
    sigset_t all, old;
    sigfillset(&all);
    const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
    for (uint32_t i = 0; i < LK_COUNT(fatal); i++) sigdelset(&all, fatal[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attributes);
    int failed = pthread_attr_setstack(&attributes, stack, sizeof stack);
    void *(*body)(void *) = here.self.rank == 0 ? chief_main : worker_main;
    if (!failed) failed = pthread_create(&here.thread, &attributes, body, &served);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!failed) return LK_OK;
    return lk_fail(error, LK_UNAVAILABLE, "rank %u: no thread for the rendezvous: %s",
                   here.self.rank, strerror(failed));
}

// As many descriptors as members may take.
static void raise_limit(uint32_t world) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    rlim_t wanted = 2 * (rlim_t)world + LK_CHIEF_STRANGERS + 256;
    if (limit.rlim_cur >= wanted) return;
    limit.rlim_cur = LK_MIN(wanted, limit.rlim_max);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void hand_to_mpi(void) {
    char text[3][16];
    lk_format(text[0], sizeof text[0], "%d", here.pmi);
    lk_format(text[1], sizeof text[1], "%u", here.self.rank);
    lk_format(text[2], sizeof text[2], "%u", here.self.world);
    setenv("PMI_FD", text[0], 1);
    setenv("PMI_RANK", text[1], 1);
    setenv("PMI_SIZE", text[2], 1);
}

lk_status lk_rendezvous_meet(const lk_cluster *c, const lk_rendezvous_options *options,
                             lk_error *error) {
    lk_assert(c->world > 1 && c->rank < c->world && c->address[0][0] && !here.met);
    here.cluster = c;
    here.options = *options;
    here.began = own_seconds();
    here.deadline = here.began + options->start_timeout_seconds;
    signal(SIGPIPE, SIG_IGN);
    LK_CHECK(lk_key_load(&here.key, options->key_file, error));
    LK_CHECK(want_key(c, error));
    lk_hello_self(&here.self, c);
    split_address(c->address[0]);
    if (c->rank == 0) raise_limit(c->world);
    LK_CHECK(c->rank == 0 ? lead(error) : follow(error));
    hand_to_mpi();
    here.took = own_seconds() - here.began;
    here.met = true;
    return start_thread(error);
}

uint64_t lk_rendezvous_bytes(uint32_t rank) { return sizeof stack + (rank ? 0 : sizeof served); }

uint32_t lk_rendezvous_seconds(void) { return (uint32_t)here.took; }

bool lk_rendezvous_is_local(void) { return here.met && here.hosts == 1; }

bool lk_rendezvous_speaks(void) { return here.met; }

void lk_rendezvous_blame_chief(char *out, size_t bytes) {
    if (!here.met || here.self.rank == 0) return;
    lk_format(out, bytes, "; rank 0 on %s (process %llu) is %s", here.chief.name,
              (unsigned long long)here.chief.process,
              is_stopped(&here.chief) ? "stopped" : "silent");
}

void lk_rendezvous_last_word(void) {
    while (__atomic_exchange_n(&here.spoken, 1, __ATOMIC_SEQ_CST)) pause();
}

void lk_rendezvous_ask(void (*judge)(uint32_t rank)) {
    __atomic_store_n(&here.judge, judge, __ATOMIC_SEQ_CST);
}

void lk_rendezvous_checked(void) { __atomic_store_n(&here.stage, STARTING, __ATOMIC_SEQ_CST); }

void lk_rendezvous_run(void) { __atomic_store_n(&here.stage, RUNNING, __ATOMIC_SEQ_CST); }

bool lk_rendezvous_lost(uint32_t *rank) {
    uint32_t lost = __atomic_load_n(&here.lost, __ATOMIC_RELAXED);
    if (lost == NOBODY) return false;
    *rank = lost;
    return true;
}

void lk_rendezvous_say_lost(uint32_t rank) {
    char word[24];
    if (!here.met || here.self.rank == 0) return;
    const int length = snprintf(word, sizeof word, "lost %u\n", rank);
    (void)!send(here.life, word, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void lk_rendezvous_break_off(void) {
    char who[WHO_BYTES];
    if (!here.met) return;
    __atomic_store_n(&here.stage, LEAVING, __ATOMIC_SEQ_CST);
    if (here.self.rank != 0) {
        (void)shutdown(here.life, SHUT_RDWR);
        return;
    }
    served.lost = 0;
    tell_lost(&served, who);
}

bool lk_rendezvous_leave(void) {
    __atomic_store_n(&here.stage, LEAVING, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&here.lost, __ATOMIC_SEQ_CST) == NOBODY;
}
