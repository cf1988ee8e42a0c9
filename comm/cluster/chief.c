// chief.c - one poll over all connections of chief.h. Sockets never block, and an answer that does
// not fit into a connection's buffer breaks it: nobody can make the chief wait.
#define _GNU_SOURCE
#include "comm/cluster/chief.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/threads/clock.h"

enum { LISTENER, STRANGER, PMI, LIFE, KIND_SHIFT = 16, COMPLAINTS_MAX = 8 };

size_t lk_line_take(lk_line_in *in, const char *bytes, size_t count, const char **line,
                    bool *broken) {
    const char *end = count ? memchr(bytes, '\n', count) : NULL;
    size_t length = end ? (size_t)(end - bytes) : count;
    *line = NULL;
    *broken = length >= sizeof in->text - in->used || (length && memchr(bytes, '\0', length));
    if (*broken) return count;
    memcpy(in->text + in->used, bytes, length);
    in->used += (uint32_t)length;
    if (!end) return count;
    in->text[in->used] = '\0';
    in->used = 0;
    *line = in->text;
    return length + 1;
}

static bool send_all(int socket, const char *text) {
    size_t length = strlen(text);
    return send(socket, text, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}

// The line has room for its end.
static bool send_line(int socket, char line[LK_HELLO_LINE_BYTES]) {
    size_t length = strlen(line);
    lk_assert(length + 2 <= LK_HELLO_LINE_BYTES);
    memcpy(line + length, "\n", 2);
    return send_all(socket, line);
}

static void shut(int *socket) {
    if (*socket >= 0) close(*socket);
    *socket = -1;
}

void lk_chief_open(lk_chief *c, const lk_key *key, const lk_hello *self, int listener, int own) {
    lk_assert(self->rank == 0 && self->world >= 1 && self->world <= LK_CLUSTER_WORLD_MAX);
    c->key = key;
    c->self = *self;
    c->world = self->world;
    c->listener = listener;
    c->absent = 2 * (c->world - 1);
    c->told = c->lost = LK_CLUSTER_WORLD_MAX;
    c->complaints = 0;
    for (uint32_t i = 0; i < LK_CHIEF_STRANGERS; i++) c->strangers[i].socket = -1;
    for (uint32_t w = 0; w < c->world; w++) {
        c->members[w].pmi = c->members[w].life = -1;
        c->members[w].in.used = 0;
    }
    c->members[0].hello = *self;
    c->members[0].pmi = own;
}

// --- strangers ---------------------------------------------------------------------------------

// Some of them are told of; whoever knocks a million times fills no log.
static void complain(lk_chief *c, int socket, const char *why) {
    struct sockaddr_storage from;
    socklen_t bytes = sizeof from;
    char host[NI_MAXHOST] = "somewhere", line[NI_MAXHOST + 160];
    if (c->complaints++ >= COMPLAINTS_MAX) return;
    if (getpeername(socket, (struct sockaddr *)&from, &bytes) == 0) {
        (void)getnameinfo((struct sockaddr *)&from, bytes, host, sizeof host, NULL, 0,
                          NI_NUMERICHOST);
    }
    size_t n = lk_format(line, sizeof line, "lockstep: rank 0: a connection from %s: %s%s\n", host,
                         why, c->complaints == COMPLAINTS_MAX ? " (others are not told of)" : "");
    ssize_t written = write(STDERR_FILENO, line, LK_MIN(n, sizeof line - 1));
    (void)written;
}

static void accept_stranger(lk_chief *c) {
    int socket = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    lk_stranger *place = &c->strangers[0];
    char line[LK_HELLO_LINE_BYTES];
    if (socket < 0) return;
    for (uint32_t i = 0; i < LK_CHIEF_STRANGERS && place->socket >= 0; i++) {
        lk_stranger *s = &c->strangers[i];
        if (s->socket < 0 || s->deadline < place->deadline) place = s;
    }
    shut(&place->socket);
    place->socket = socket;
    place->in.used = 0;
    place->deadline = lk_seconds() + LK_CHIEF_STRANGER_SECONDS;
    lk_random(place->question);
    lk_hello_ask(place->question, line);
    int one = 1;
    (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!send_line(socket, line)) shut(&place->socket);
}

static void dismiss(lk_chief *c, lk_stranger *s, const char *why, const char *answer) {
    if (why) complain(c, s->socket, why);
    if (answer) (void)send_all(s->socket, answer);
    shut(&s->socket);
}

void lk_chief_tell(lk_chief *c, const char *line) {
    for (uint32_t w = 1; w < c->world; w++) {
        if (c->members[w].life >= 0) (void)send_all(c->members[w].life, line);
    }
}

// `s` has proved to be `h`: it gets a member's place, or everything ends.
static lk_status admit(lk_chief *c, lk_stranger *s, const lk_hello *h, lk_error *error) {
    bool same = h->world == c->world && memcmp(h->cluster, c->self.cluster, LK_SHA256_BYTES) == 0;
    if (!same || h->rank == 0 || h->rank >= c->world) {
        dismiss(c, s, NULL, h->rank ? "refused cluster\n" : "refused taken\n");
        return lk_fail(error, LK_RANKS_DISAGREE,
                       "%s (process %llu) comes as rank %u of %u, and %s; give all workers the "
                       "same description of the cluster, and each its own rank",
                       h->name, (unsigned long long)h->process, h->rank, h->world,
                       same ? "that rank is here" : "its description of the cluster is another");
    }
    lk_member *m = &c->members[h->rank];
    int *place = h->kind == LK_HELLO_PMI ? &m->pmi : &m->life;
    bool other = m->pmi >= 0 || m->life >= 0;
    other = other && (m->hello.process != h->process || strcmp(m->hello.name, h->name) != 0);
    if (*place >= 0 || other) {
        dismiss(c, s, NULL, "refused taken\n");
        return lk_fail(error, LK_RANKS_DISAGREE,
                       "both %s (process %llu) and %s (process %llu) come as rank %u; give each "
                       "worker its own rank",
                       m->hello.name, (unsigned long long)m->hello.process, h->name,
                       (unsigned long long)h->process, h->rank);
    }
    char line[LK_HELLO_LINE_BYTES];
    lk_hello_welcome(h, c->key, line);
    if (!send_line(s->socket, line)) {
        dismiss(c, s, NULL, NULL);
        return LK_OK;
    }
    *place = s->socket;
    m->hello = *h;
    s->socket = -1;
    c->absent--;
    c->told = LK_CLUSTER_WORLD_MAX;
    return LK_OK;
}

// Never leaves a whole line in the socket: a worker sends one, and waits for the answer.
static lk_status hear_stranger(lk_chief *c, lk_stranger *s, lk_error *error) {
    char bytes[LK_HELLO_LINE_BYTES];
    const char *line;
    bool broken;
    lk_hello hello;
    ssize_t count = recv(s->socket, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return LK_OK;
    if (count <= 0) {
        dismiss(c, s, NULL, NULL);
        return LK_OK;
    }
    size_t taken = lk_line_take(&s->in, bytes, (size_t)count, &line, &broken);
    if (broken || s->in.used >= LK_HELLO_LINE_BYTES || (line && taken < (size_t)count)) {
        dismiss(c, s, "what it says is no worker's hello: turned away", NULL);
    } else if (line && !lk_hello_read(&hello, c->key, s->question, line)) {
        dismiss(c, s, "it has not this run's key, or is no worker: turned away", "refused key\n");
    } else if (line) {
        return admit(c, s, &hello, error);
    }
    return LK_OK;
}

// --- members -----------------------------------------------------------------------------------

// An orderly end is not a loss.
static lk_status part(lk_chief *c, uint32_t rank) {
    if (c->listener < 0 && c->pmi.has_ended[rank]) {
        shut(&c->members[rank].pmi);
        shut(&c->members[rank].life);
        return LK_OK;
    }
    c->lost = rank;
    return LK_RETRY;
}

// The chief itself hears it last: it may be gone at once.
static void release(lk_chief *c, const char *answer) {
    for (uint32_t w = c->world; w-- > 0;) {
        if (c->members[w].pmi >= 0) (void)send_all(c->members[w].pmi, answer);
    }
}

static lk_status hear_pmi(lk_chief *c, uint32_t rank) {
    lk_member *m = &c->members[rank];
    char bytes[LK_PMI_LINE_BYTES], answer[LK_PMI_LINE_BYTES];
    const char *line;
    bool broken = false;
    ssize_t count = recv(m->pmi, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return LK_OK;
    if (count <= 0) return part(c, rank);
    for (size_t at = 0; at < (size_t)count;) {
        at += lk_line_take(&m->in, bytes + at, (size_t)count - at, &line, &broken);
        // Before all are in, MPI has nothing to say.
        if (broken || (line && c->listener >= 0)) return part(c, rank);
        if (!line) continue;
        lk_pmi_act act = lk_pmi_line(&c->pmi, rank, line, answer);
        if (act == LK_PMI_WRONG) return part(c, rank);
        if (act == LK_PMI_RELEASE) release(c, answer);
        if (act == LK_PMI_ANSWER && !send_all(m->pmi, answer)) return part(c, rank);
    }
    return LK_OK;
}

// Whatever comes, the connection is over. A worker that gives up because it misses another says
// whom ("lost RANK"): it may be heard before that one's end is.
static lk_status hear_life(lk_chief *c, uint32_t rank) {
    char word[16] = "";
    unsigned other = c->world;
    ssize_t count = recv(c->members[rank].life, word, sizeof word - 1, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return LK_OK;
    if (count > 5 && memcmp(word, "lost ", 5) == 0) other = (unsigned)strtoul(word + 5, NULL, 10);
    if (other == 0 || other >= c->world || other == rank) return part(c, rank);
    c->lost = other;
    return LK_RETRY;
}

// --- the poll ----------------------------------------------------------------------------------

static void watch(lk_chief *c, uint32_t *count, int socket, uint32_t kind, uint32_t place) {
    if (socket < 0) return;
    c->who[*count] = kind << KIND_SHIFT | place;
    c->polled[(*count)++] = (struct pollfd){.fd = socket, .events = POLLIN};
}

static uint32_t watch_all(lk_chief *c) {
    uint32_t count = 0;
    watch(c, &count, c->listener, LISTENER, 0);
    for (uint32_t i = 0; i < LK_CHIEF_STRANGERS; i++) {
        watch(c, &count, c->strangers[i].socket, STRANGER, i);
    }
    for (uint32_t w = 0; w < c->world; w++) {
        watch(c, &count, c->members[w].pmi, PMI, w);
        watch(c, &count, c->members[w].life, LIFE, w);
    }
    return count;
}

static lk_status hear(lk_chief *c, uint32_t who, lk_error *error) {
    uint32_t place = who & ((1u << KIND_SHIFT) - 1);
    switch (who >> KIND_SHIFT) {
    case LISTENER: accept_stranger(c); return LK_OK;
    case STRANGER: return hear_stranger(c, &c->strangers[place], error);
    case PMI: return c->members[place].pmi >= 0 ? hear_pmi(c, place) : LK_OK;
    default: return c->members[place].life >= 0 ? hear_life(c, place) : LK_OK;
    }
}

uint32_t lk_chief_absent(const lk_chief *c) {
    uint32_t rank = 1;
    while (rank < c->world && c->members[rank].pmi >= 0 && c->members[rank].life >= 0) rank++;
    return rank;
}

// Whoever has come is told for whom it waits, so that it can say so if that takes too long.
static void tell_absent(lk_chief *c) {
    char line[64];
    uint32_t absent = lk_chief_absent(c);
    if (c->listener < 0 || c->told == absent) return;
    c->told = absent;
    lk_format(line, sizeof line, "waiting %u\n", absent);
    if (absent < c->world) lk_chief_tell(c, line);
}

lk_status lk_chief_serve(lk_chief *c, int milliseconds, lk_error *error) {
    uint32_t count = watch_all(c);
    if (poll(c->polled, count, milliseconds) > 0) {
        // The listener last: a stranger's place is given away after what it said was heard.
        for (uint32_t i = count; i-- > 0;) {
            if (c->polled[i].revents) LK_CHECK(hear(c, c->who[i], error));
        }
    }
    double time = c->listener >= 0 ? lk_seconds() : 0;
    for (uint32_t i = 0; i < LK_CHIEF_STRANGERS; i++) {
        lk_stranger *s = &c->strangers[i];
        if (s->socket >= 0 && time > s->deadline) {
            dismiss(c, s, "it says nothing, or too slowly: turned away", NULL);
        }
    }
    tell_absent(c);
    return LK_OK;
}

void lk_chief_go(lk_chief *c) {
    char line[LK_HELLO_NAME_BYTES + 48];
    uint32_t hosts = 0;
    for (uint32_t w = 0; w < c->world; w++) {
        const uint8_t *id = c->members[w].hello.host_id;
        uint32_t same = 0;
        while (memcmp(c->members[same].hello.host_id, id, LK_HELLO_HOST_ID_BYTES) != 0) same++;
        c->host[w] = same < w ? c->host[same] : hosts++;
    }
    c->hosts = hosts;
    lk_pmi_open(&c->pmi, c->world, c->host);
    shut(&c->listener);
    for (uint32_t i = 0; i < LK_CHIEF_STRANGERS; i++) shut(&c->strangers[i].socket);
    lk_format(line, sizeof line, "go %u %llu %s\n", hosts, (unsigned long long)c->self.process,
              c->self.name);
    lk_chief_tell(c, line);
}

uint32_t lk_chief_behind(const lk_chief *c) {
    uint32_t rank = 0;
    if (c->pmi.arrived == 0) return c->world;
    while (rank < c->world && c->pmi.in_barrier[rank]) rank++;
    return rank;
}
