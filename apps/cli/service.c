// service.c - the datagrams and the file of service.h. What runs in a handler uses lk_format and
// system calls alone, all of them on the list of arena/seal.c.
#define _GNU_SOURCE
#include "apps/cli/service.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "apps/cli/watch.h"
#include "comm/threads/clock.h"
#include "ops/variant.h"

typedef unsigned long long ull;

enum { MESSAGE_BYTES = 512, METRICS_BYTES = 16384, NAME_BYTES = 256 };

static const double status_seconds = 1.0, metrics_seconds = 5.0;

static struct {
    bool listens, notifies, watched;
    bool launched;  // by lockstep launch, which may start it again: its end is not the service's
    int socket;
    double said_at, written_at;
    bool moved;   // since the watchdog was fed
    int trouble;  // errno of the first write that failed in a row
    bool told;    // .. which was handed out
    uint64_t arena_bytes;
    uint32_t batch;
    char file[LK_PATH_BYTES], temporary[LK_PATH_BYTES];
    char labels[NAME_BYTES + 128];
    char text[METRICS_BYTES];
} here = {.socket = -1};

// --- sd_notify ---------------------------------------------------------------------------------

// A message that is not taken at once is lost; the next one comes in a second.
static void notify(const char *text) {
    if (!here.notifies) return;
    ssize_t sent = send(here.socket, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent;
}

static bool is_number(const char *text) {
    return *text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 19;
}

// Another process may be meant: what a shell or a launcher has passed on.
static lk_status read_watchdog(lk_error *error) {
    const char *period = getenv("WATCHDOG_USEC"), *process = getenv("WATCHDOG_PID");
    if (!period) return LK_OK;
    if (!is_number(period) || (process && !is_number(process))) {
        return lk_fail(error, LK_BAD_USAGE,
                       "WATCHDOG_USEC, WATCHDOG_PID: found \"%s\" and \"%s\", wanted numbers, as a "
                       "service manager gives them; unset them",
                       period, process ? process : "(none)");
    }
    here.watched = !process || strtoll(process, NULL, 10) == (long long)getpid();
    return LK_OK;
}

static lk_status open_socket(lk_error *error) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || !*path) return LK_OK;
    const size_t length = strlen(path);
    if ((*path != '/' && *path != '@') || length < 2 || length >= sizeof address.sun_path) {
        return lk_fail(error, LK_BAD_USAGE,
                       "NOTIFY_SOCKET: found \"%s\", wanted the path of a socket, or @ and a name, "
                       "as a service manager gives it; unset it",
                       path);
    }
    memcpy(address.sun_path, path, length + 1);
    if (*path == '@') address.sun_path[0] = '\0';
    const socklen_t bytes =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (*path == '/'));
    here.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (here.socket < 0 || connect(here.socket, (struct sockaddr *)&address, bytes) != 0) {
        return lk_fail(error, LK_UNAVAILABLE,
                       "NOTIFY_SOCKET: %s: %s; unset it where no service manager started this",
                       path, strerror(errno));
    }
    here.notifies = true;
    here.launched = getenv("LOCKSTEP_LISTEN_FD") != NULL;
    return read_watchdog(error);
}

void lk_service_ready(void) { notify("READY=1\nSTATUS=training"); }

void lk_service_stopping(void) {
    if (!here.launched) notify("STOPPING=1");
}

static void tell(const lk_service_view *v) {
    char message[MESSAGE_BYTES];
    const bool feeds = here.watched && here.moved;
    if (feeds) here.moved = false;
    lk_format(message, sizeof message, "%sSTATUS=%s", feeds ? "WATCHDOG=1\n" : "", v->progress);
    notify(message);
    here.said_at = v->now;
}

// --- metrics -----------------------------------------------------------------------------------

// A label's value: its quotes and backslashes escaped, no control characters.
static void label(char out[NAME_BYTES], const char *text) {
    size_t n = 0;
    for (; *text && n + 3 < NAME_BYTES; text++) {
        if (*text == '"' || *text == '\\') out[n++] = '\\';
        out[n++] = (unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text;
    }
    out[n] = '\0';
}

static size_t add(size_t used, const char *name, const char *type, const char *help,
                  const char *value) {
    const size_t left = METRICS_BYTES - used;
    const size_t n = lk_format(here.text + used, left,
                               "# HELP lockstep_%s %s\n# TYPE lockstep_%s %s\nlockstep_%s %s\n",
                               name, help, name, type, name, value);
    lk_assert(n < left);
    return used + n;
}

static size_t add_count(size_t used, const char *name, const char *type, const char *help,
                        uint64_t value) {
    char text[24];
    lk_format(text, sizeof text, "%llu", (ull)value);
    return add(used, name, type, help, text);
}

static const char *real(char out[LK_DECIMAL_BYTES + 1], double value) {
    out[0] = '-';
    (void)lk_watch_decimal(out + (value < 0), value < 0 ? -value : value, 6);
    return out;
}

static size_t add_real(size_t used, const char *name, const char *help, double value) {
    char text[LK_DECIMAL_BYTES + 1];
    return add(used, name, "gauge", help, real(text, value));
}

// The mean or the share of that name; NULL: the objective's loss reports none.
static const double *metric_of(const lk_service_metrics *m, const char *name) {
    for (uint32_t i = 0; i < m->names->sum_count; i++) {
        if (strcmp(m->names->sum[i], name) == 0) return &m->means[i];
    }
    for (uint32_t i = 0; i < m->names->count_count; i++) {
        if (m->names->share[i] && strcmp(m->names->share[i], name) == 0) return &m->shares[i];
    }
    return NULL;
}

// A name of objective `first`, with its value there and, as one metric has to stand together, in
// those behind it. One that another had before stands there already.
static size_t add_metric(size_t n, const lk_service_view *v, uint32_t first, const char *what,
                         const char *help) {
    char name[64], of[NAME_BYTES], value[LK_DECIMAL_BYTES + 1];
    for (uint32_t k = 0; k < first; k++) {
        if (metric_of(&v->metrics[k], what)) return n;
    }
    lk_format(name, sizeof name, "training_%s", what);
    if (!v->metrics[first].objective) return add_real(n, name, help, *metric_of(v->metrics, what));
    n += lk_format(here.text + n, METRICS_BYTES - n,
                   "# HELP lockstep_%s %s\n# TYPE lockstep_%s gauge\n", name, help, name);
    for (uint32_t k = first; k < v->metric_count; k++) {
        const double *found = metric_of(&v->metrics[k], what);
        if (!found) continue;
        label(of, v->metrics[k].objective);
        n += lk_format(here.text + n, METRICS_BYTES - n, "lockstep_%s{objective=\"%s\"} %s\n", name,
                       of, real(value, *found));
        lk_assert(n < METRICS_BYTES - 1);
    }
    return n;
}

// training_loss, training_accuracy and what else the losses report.
static size_t add_metrics(size_t n, const lk_service_view *v) {
    for (uint32_t k = 0; k < v->metric_count; k++) {
        const lk_metrics *names = v->metrics[k].names;
        for (uint32_t i = 0; i < names->sum_count; i++) {
            n = add_metric(n, v, k, names->sum[i],
                           i ? "Mean over its examples." : "Mean loss of the last step known.");
        }
        for (uint32_t i = 0; i < names->count_count; i++) {
            if (!names->share[i]) continue;
            n = add_metric(n, v, k, names->share[i], "Share of its examples, 0 to 1.");
        }
    }
    return n;
}

// The whole file in the buffer; returns its length.
static size_t compose(const lk_service_view *v) {
    size_t n = lk_format(here.text, METRICS_BYTES,
                         "# HELP lockstep_info What runs, and what decides its bits.\n"
                         "# TYPE lockstep_info gauge\nlockstep_info{%s} 1\n"
                         "# HELP lockstep_phase What it does now.\n"
                         "# TYPE lockstep_phase gauge\nlockstep_phase{phase=\"%s\"} 1\n",
                         here.labels, v->phase ? v->phase : "");
    lk_assert(n < METRICS_BYTES);
    n = add_count(n, "steps_total", "counter", "Steps finished, in all.", v->done);
    n = add_count(n, "steps_planned", "gauge", "Steps of the whole run.", v->total);
    n = add_real(n, "steps_per_second", "Speed of the last seconds.", v->rate);
    n = add_real(n, "examples_per_second", "The same in examples.", v->rate * here.batch);
    n = add_real(n, "seconds_left", "At that speed.", v->left);
    n = add_count(n, "arena_bytes", "gauge", "All memory of the run, planned.", here.arena_bytes);
    n = add_metrics(n, v);
    if (v->saved == UINT64_MAX) return n;
    return add_count(n, "checkpoint_step", "gauge", "Step of the last checkpoint.", v->saved);
}

// A reader finds the old file or the new one, never a part. Not synced: it says what is now.
static int write_metrics(const lk_service_view *v) {
    const size_t bytes = compose(v);
    here.written_at = v->now;
    (void)unlink(here.temporary);
    int file = open(here.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) return errno;
    errno = ENOSPC;  // of a write that ends early
    bool whole = write(file, here.text, bytes) == (ssize_t)bytes;
    int why = errno;
    if (close(file) == 0 && whole && rename(here.temporary, here.file) == 0) return 0;
    if (whole) why = errno;
    (void)unlink(here.temporary);
    return why;
}

// A file beside it can be made, so it can be.
static lk_status open_metrics(const char *path, lk_error *error) {
    char suffix[32];
    lk_format(suffix, sizeof suffix, ".%ld.tmp", (long)getpid());
    LK_CHECK(lk_path_join(here.file, path, "", "", error));
    LK_CHECK(lk_path_join(here.temporary, path, "", suffix, error));
    (void)unlink(here.temporary);
    const int file = open(here.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) {
        return lk_fail(error, LK_IO_ERROR,
                       "--metrics-file: %s: %s; name a file in a directory that this process may "
                       "write to",
                       path, strerror(errno));
    }
    (void)close(file);
    (void)unlink(here.temporary);
    return LK_OK;
}

// --- both --------------------------------------------------------------------------------------

lk_status lk_service_open(const char *metrics_file, lk_error *error) {
    LK_CHECK(open_socket(error));
    if (metrics_file) LK_CHECK(open_metrics(metrics_file, error));
    here.listens = here.notifies || metrics_file;
    return LK_OK;
}

void lk_service_prepare(const lk_run *run, uint64_t done) {
    char name[NAME_BYTES];
    if (!*here.file) return;
    label(name, *run->config.name ? run->config.name : "unnamed");
    lk_format(here.labels, sizeof here.labels, "version=\"%s\",name=\"%s\",run_identity=\"%s\"",
              LK_VERSION, name, run->identity_hex);
    here.arena_bytes = run->arena.used;
    here.batch = run->config.spec.global_batch;
    here.trouble = write_metrics(&(lk_service_view){.now = lk_seconds(),
                                                    .done = done,
                                                    .total = lk_run_steps(run),
                                                    .saved = UINT64_MAX,
                                                    .phase = "starting"});
}

bool lk_service_listens(void) { return here.listens; }

void lk_service_tick(const lk_service_view *v, bool last) {
    here.moved |= v->moves;
    if (here.notifies && (last || v->now - here.said_at >= status_seconds - 0.1)) tell(v);
    if (!*here.file || (!last && v->now - here.written_at < metrics_seconds - 0.1)) return;
    const int why = write_metrics(v);
    if (why == 0) here.told = false;
    here.trouble = why;
}

const char *lk_service_trouble(void) {
    if (!here.trouble || here.told) return NULL;
    here.told = true;
    return strerrordesc_np(here.trouble);
}
