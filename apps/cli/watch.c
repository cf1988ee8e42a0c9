// watch.c - the handlers of watch.h. What runs in one uses lk_format and write alone: no printf,
// no heap, no lock.
#define _GNU_SOURCE
#include "apps/cli/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/service.h"
#include "comm/threads/clock.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

typedef unsigned long long ull;

enum { TEXT_BYTES = 400 };

// Of one Ctrl-C a worker may hear twice, by its terminal and by whoever started it.
static const double one_wish_seconds = 0.5;
static const double tick_seconds = 0.5, event_seconds = 1.0, line_seconds = 60.0;
// From when on a waiting is said: at once, but not of a breath.
static const double waiting_seconds = 1.0, waiting_line_seconds = 2.0;

lk_watch lk_watching = {.progress_file = -1, .instead = "starting"};

static volatile sig_atomic_t stop_signal;
static volatile sig_atomic_t answer_is_due, status_is_due;
static _Atomic double stop_time;

static struct {
    timer_t timer;
    bool made;
    double event_at;
    struct mark {
        double time;
        uint64_t done;
    } older, newer;  // of the speed, some seconds ago
    char waiting[160];
    double waiting_at, waiting_longest;
    struct {
        uint64_t done;
        uint32_t grains;
        const char *phase;
    } seen;  // by the watchdog
} here;

// --- how far it is -----------------------------------------------------------------------------

const char *lk_watch_decimal(char out[LK_DECIMAL_BYTES], double value, unsigned places) {
    uint64_t scale = 1;
    for (unsigned i = 0; i < places; i++) scale *= 10;
    if (!(value >= 0 && value < 1e12)) {
        lk_format(out, LK_DECIMAL_BYTES, value < 0 ? "0" : "1e12");
        return out;
    }
    const uint64_t all = (uint64_t)(value * (double)scale + 0.5);
    size_t n = lk_format(out, LK_DECIMAL_BYTES, "%llu", (ull)(all / scale));
    if (places == 0) return out;
    char digits[LK_DECIMAL_BYTES];
    lk_format(digits, sizeof digits, "%llu", (ull)(scale + all % scale));
    lk_format(out + n, LK_DECIMAL_BYTES - n, ".%s", digits + 1);
    return out;
}

// The mean of a metric, which may be below zero.
static const char *mean_of(char out[LK_DECIMAL_BYTES + 1], double value, unsigned places) {
    out[0] = '-';
    (void)lk_watch_decimal(out + (value < 0), value < 0 ? -value : value, places);
    return out;
}

typedef struct view {
    uint64_t done, total;
    uint32_t grains, all_grains;  // of the first replica, in what goes on; 0 of 0: not known
    const char *phase;
    double now, rate, left;  // steps a second, seconds
    const lk_watch_metrics *metrics;  // of the last step known; NULL: of none
} view;

static double rate_of(const lk_watch *w, double now, double fraction) {
    const double spent = now - here.older.time;
    if (here.older.time > 0 && spent > 0 && w->done > here.older.done) {
        return (double)(w->done - here.older.done) / spent;
    }
    const double trained = now - w->start - w->evaluating;
    return trained > 0 ? ((double)(w->done - w->first) + fraction) / trained : 0;
}

static view look(double now) {
    const lk_watch *w = &lk_watching;
    view v = {.done = w->done, .total = w->total, .now = now, .phase = w->run->arena.phase};
    const bool waits = here.waiting_at > 0 && now - here.waiting_at < tick_seconds;
    if (!w->run->cuda) {
        v.grains = w->run->group.progress.done;
        v.all_grains = w->run->group.progress.all;
    }
    const bool trains = v.phase && strcmp(v.phase, "training") == 0;
    double fraction = v.all_grains && trains ? (double)v.grains / v.all_grains : 0;
    v.rate = rate_of(w, now, fraction);
    v.left = v.rate > 0 ? ((double)(v.total - v.done) - fraction) / v.rate : 0;
    const lk_watch_metrics *last = &w->metrics[w->objective];
    if (last->examples > 0) v.metrics = last;
    if (waits) v.phase = here.waiting;
    return v;
}

static void take_mark(const view *v) {
    if (v->now - here.newer.time < 3) return;
    here.older =
        here.newer.time > 0 ? here.newer : (struct mark){lk_watching.start, lk_watching.first};
    here.newer = (struct mark){v->now, v->done};
}

// "  loss 0.1234  accuracy 93.75%", of several objectives behind "  objective NAME". Returns the
// length.
static size_t write_metrics(const lk_watch_metrics *m, char *text, size_t bytes) {
    const lk_metrics *names = m->names;
    const char *of = m->objective;
    char a[LK_DECIMAL_BYTES + 1];
    size_t n = of ? lk_format(text, bytes, "  objective %s", of) : 0;
    for (uint32_t i = 0; i < names->sum_count; i++) {
        n += lk_format(text + n, bytes - n, "  %s %s", names->sum[i],
                       mean_of(a, (double)m->means[i], 4));
    }
    for (uint32_t i = 0; i < names->count_count; i++) {
        if (!names->share[i]) continue;
        n += lk_format(text + n, bytes - n, "  %s %s%%", names->share[i],
                       lk_watch_decimal(a, 100.0 * m->counts[i] / m->examples, 2));
    }
    return n;
}

// "step 12/59  grains 3/16  loss 0.1234  accuracy 93.75%  47000 images/s  33 s left"
static void write_progress(const view *v, char text[TEXT_BYTES]) {
    const uint32_t batch = lk_watching.run->config.spec.global_batch;
    const bool long_step = v->now - lk_watching.step_began > tick_seconds;
    char c[LK_DECIMAL_BYTES], d[LK_DECIMAL_BYTES];
    size_t n = lk_format(text, TEXT_BYTES, "step %llu/%llu", (ull)v->done, (ull)v->total);
    if (v->phase && strcmp(v->phase, "training") != 0) {
        n += lk_format(text + n, TEXT_BYTES - n, "  %s", v->phase);
    }
    if (long_step && v->all_grains) {
        n += lk_format(text + n, TEXT_BYTES - n, "  grains %u/%u", v->grains, v->all_grains);
    }
    if (v->metrics) n += write_metrics(v->metrics, text + n, TEXT_BYTES - n);
    if (v->rate <= 0) return;
    lk_format(text + n, TEXT_BYTES - n, "  %s images/s  %s s left",
              lk_watch_decimal(c, v->rate * batch, 0), lk_watch_decimal(d, v->left, 0));
}

// The same for a program: {"event":KIND,...}
static void write_event(const view *v, const char *kind, char text[TEXT_BYTES]) {
    char a[LK_DECIMAL_BYTES + 1], b[LK_DECIMAL_BYTES], c[LK_DECIMAL_BYTES];
    size_t n = lk_format(text, TEXT_BYTES,
                         "{\"event\":\"%s\",\"step\":%llu,\"steps\":%llu,\"phase\":\"%s\"", kind,
                         (ull)v->done, (ull)v->total, v->phase ? v->phase : "");
    if (v->all_grains) {
        n += lk_format(text + n, TEXT_BYTES - n, ",\"grains\":%u,\"grains_of_step\":%u", v->grains,
                       v->all_grains);
    }
    const lk_watch_metrics *m = v->metrics;
    if (m && m->objective) {
        char name[6 * LK_GRAPH_NAME_BYTES];
        lk_text_escape(name, sizeof name, m->objective, strlen(m->objective));
        n += lk_format(text + n, TEXT_BYTES - n, ",\"objective\":\"%s\"", name);
    }
    for (uint32_t i = 0; m && i < m->names->sum_count; i++) {
        n += lk_format(text + n, TEXT_BYTES - n, ",\"%s\":%s", m->names->sum[i],
                       mean_of(a, (double)m->means[i], 6));
    }
    lk_format(text + n, TEXT_BYTES - n, ",\"steps_per_second\":%s,\"seconds_left\":%s}",
              lk_watch_decimal(b, v->rate, 3), lk_watch_decimal(c, v->left, 1));
}

static void write_status(const view *v, char text[TEXT_BYTES]) {
    const lk_watch *w = &lk_watching;
    char progress[TEXT_BYTES], rank[32] = "", seconds[LK_DECIMAL_BYTES], saved[48];
    write_progress(v, progress);
    lk_format(saved, sizeof saved, "no checkpoint yet");
    if (w->saved != UINT64_MAX) {
        lk_format(saved, sizeof saved, "last checkpoint step %llu", (ull)w->saved);
    }
    if (!w->leads) lk_format(rank, sizeof rank, "rank %u: ", w->run->workers.rank);
    lk_format(text, TEXT_BYTES, "%sstatus: %s  running %s s  %s", rank, progress,
              lk_watch_decimal(seconds, v->now - w->start, 0), saved);
}

// Has something gone on since this was asked last? Saving, and waiting for others, end by
// themselves, or have a limit of their own; a GPU says nothing of its grains.
static bool moves(const view *v, bool waits) {
    const bool computes = v->phase && (strcmp(v->phase, "training") == 0 ||
                                       (strcmp(v->phase, "evaluation") == 0 && v->all_grains));
    const bool same =
        here.seen.done == v->done && here.seen.grains == v->grains && here.seen.phase == v->phase;
    here.seen.done = v->done;
    here.seen.grains = v->grains;
    here.seen.phase = v->phase;
    return !same || waits || !computes;
}

static void serve(bool last) {
    const lk_watch *w = &lk_watching;
    char text[TEXT_BYTES];
    const view v = look(lk_seconds());
    const bool waits = here.waiting_at > 0 && v.now - here.waiting_at < tick_seconds;
    write_progress(&v, text);
    lk_service_view s = {.now = v.now,
                               .done = v.done,
                               .total = v.total,
                               .saved = w->saved,
                               .phase = last ? "ended" : v.phase,
                               .progress = text,
                               .rate = v.rate,
                               .left = v.left,
                               .moves = moves(&v, waits)};
    for (uint32_t k = 0; k < LK_OBJECTIVES_MAX; k++) {
        const lk_watch_metrics *m = &w->metrics[k];
        if (m->examples == 0) continue;
        lk_service_metrics *of = &s.metrics[s.metric_count++];
        of->names = m->names;
        of->objective = m->objective;
        for (uint32_t i = 0; i < LK_METRIC_SUMS_MAX; i++) of->means[i] = (double)m->means[i];
        for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) {
            of->shares[i] = (double)m->counts[i] / m->examples;
        }
    }
    lk_service_tick(&s, last);
}

void lk_watch_last(void) {
    if (lk_watching.run && lk_service_listens()) serve(true);
}

// --- handlers ----------------------------------------------------------------------------------

// A line now, by a handler; or when it can be, by who is interrupted.
static bool say(const char *text, bool may_wait) {
    if (may_wait) (void)lk_text_line(lk_watching.out, "%s", text);
    return may_wait || lk_text_line_now(lk_watching.out, text);
}

static void answer_stop(bool may_wait) {
    const lk_watch *w = &lk_watching;
    const char *phase = w->run ? w->run->arena.phase : NULL;
    const bool evaluates = phase && strcmp(phase, "evaluation") == 0;
    char text[TEXT_BYTES];
    answer_is_due = false;  // before: who reads the answer may ask again
    if (!w->run || !w->leads || !w->out) return;
    const bool given_up = evaluates && w->run->group.gives_up;
    lk_format(text, sizeof text, "stopping %s%s",
              given_up    ? "in this evaluation, which a resumed run makes"
              : evaluates ? "after this evaluation"
                          : "after this step",
              stop_signal == SIGINT ? "; Ctrl-C once more ends at once" : "");
    if (w->json) {
        lk_format(text, sizeof text, "{\"event\":\"stopping\",\"signal\":%d,\"step\":%llu}",
                  (int)stop_signal, (ull)w->done);
    }
    if (!say(text, may_wait)) answer_is_due = true;
}

// A user who asks again does not want to wait: whatever is being written is under a temporary name
// or at the end of a log, so nothing is lost but what was not saved.
static void on_stop(int signal_number) {
    static const char line[] =
        "lockstep: interrupted again: ended at once; what was saved stands\n";
    const int kept = errno;
    double now = lk_seconds();
    if (signal_number == SIGINT && stop_signal && now - stop_time >= one_wish_seconds) {
        ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
        (void)written;
        _exit(LK_INTERRUPTED);
    }
    const bool first = !stop_signal;
    if (first) stop_time = now;
    stop_signal = signal_number;
    if (first) {
        lk_service_stopping();
        answer_is_due = true;
        answer_stop(false);
    }
    errno = kept;
}

static void answer_ask(bool may_wait) {
    const lk_watch *w = &lk_watching;
    char text[TEXT_BYTES];
    status_is_due = false;
    if (!w->out) return;
    lk_format(text, sizeof text, w->json ? "{\"event\":\"status\",\"phase\":\"%s\"}" : "status: %s",
              w->instead);
    if (w->run) {
        const view v = look(lk_seconds());
        if (w->json)
            write_event(&v, "status", text);
        else
            write_status(&v, text);
    }
    if (!say(text, may_wait)) status_is_due = true;
}

static void on_ask(int signal_number) {
    const int kept = errno;
    (void)signal_number;
    status_is_due = true;
    answer_ask(false);
    errno = kept;
}

void lk_watch_catch_up(void) {
    if (answer_is_due) answer_stop(true);
    if (status_is_due) answer_ask(true);
    const char *trouble = lk_service_trouble();
    if (trouble) {
        // Standard output is for events alone with --json, for the result with --quiet.
        const lk_watch *w = &lk_watching;
        const lk_say say = lk_say_on(w->json || w->quiet ? NULL : w->out);
        lk_say_warning(&say, "the metrics file: %s", trouble);
    }
}

static void on_tick(int signal_number) {
    lk_watch *w = &lk_watching;
    const int kept = errno;
    char text[TEXT_BYTES];
    (void)signal_number;
    if (answer_is_due) answer_stop(false);
    if (status_is_due) answer_ask(false);
    if (w->run && lk_service_listens()) serve(false);
    if (w->run && w->out && w->leads && !w->quiet) {
        const view v = look(lk_seconds());
        take_mark(&v);
        if (w->json && v.now - here.event_at >= event_seconds - 0.1) {
            here.event_at = v.now;
            write_event(&v, "progress", text);
            (void)lk_text_line_now(w->out, text);
        } else if (w->progress_file >= 0) {  // never waits: a reader that is slow misses some
            write_progress(&v, text);
            const size_t n = strlen(text);
            text[n] = '\n';
            ssize_t written = write(w->progress_file, text, n + 1);
            (void)written;
        } else if (w->out->terminal) {
            write_progress(&v, text);
            (void)lk_text_progress_now(w->out, text);
        } else if (!w->json && v.now - w->said_at >= line_seconds) {
            w->said_at = v.now;
            write_status(&v, text);
            (void)lk_text_line_now(w->out, text);
        }
    }
    errno = kept;
}

// --- signals -----------------------------------------------------------------------------------

// None interrupts another: they share a buffer.
static void handle(int signal_number, void (*handler)(int), int flags) {
    const int ours[] = {SIGTERM, SIGHUP, SIGUSR1, SIGVTALRM, SIGINT};
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    for (uint32_t i = 0; i < LK_COUNT(ours); i++) sigaddset(&action.sa_mask, ours[i]);
    sigaction(signal_number, &action, NULL);
}

void lk_watch_ask(void) { handle(SIGUSR1, on_ask, SA_RESTART); }

void lk_watch_stop(void) {
    struct sigaction hangup;
    handle(SIGINT, on_stop, 0);
    handle(SIGTERM, on_stop, 0);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
        handle(SIGHUP, on_stop, 0);
    }
    lk_watch_ask();
    signal(SIGPIPE, SIG_IGN);
}

uint32_t lk_stop_signal(void) { return (uint32_t)stop_signal; }

// Under --quiet only a service manager or a monitoring agent sees what the clock would show.
void lk_watch_prepare(void) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGVTALRM};
    const bool unseen = lk_watching.quiet && lk_watching.progress_file < 0;
    if (here.made || (unseen && !lk_service_listens())) return;
    event.sigev_notify_thread_id = gettid();
    handle(SIGVTALRM, on_tick, SA_RESTART);
    here.made = timer_create(CLOCK_MONOTONIC, &event, &here.timer) == 0;
}

void lk_watch_clock(bool runs) {
    const struct itimerspec every = {.it_interval.tv_nsec = (long)(1e9 * tick_seconds),
                                     .it_value.tv_nsec = (long)(1e9 * tick_seconds)};
    const struct itimerspec never = {.it_value = {0}};
    if (runs) lk_watch_prepare();
    if (here.made) (void)timer_settime(here.timer, 0, runs ? &every : &never, NULL);
}

// --- waiting -----------------------------------------------------------------------------------

// A line where it lasts, and again only for one that lasts twice as long: what is uneven at every
// step is said a few times, not at each.
void lk_watch_waiting(const char *who, double seconds) {
    const lk_watch *w = &lk_watching;
    char text[TEXT_BYTES];
    if (seconds < waiting_seconds) return;
    lk_format(here.waiting, sizeof here.waiting, "waiting for %s", who);
    here.waiting_at = lk_seconds();
    const double least = w->run ? waiting_line_seconds : waiting_seconds;
    const double said = LK_MAX(least, 2 * here.waiting_longest);
    if (seconds < said || !w->out || w->quiet) return;
    here.waiting_longest = seconds;
    char safe[TEXT_BYTES - 40];
    lk_text_escape(safe, sizeof safe, who, strlen(who));
    lk_format(text, sizeof text,
              w->json ? "{\"event\":\"waiting\",\"for\":\"%s\"}" : "waiting for %s",
              w->json ? safe : who);
    (void)lk_text_line(w->out, "%s", text);
}
