// train_command.c - lockstep train: what a run (apps/run/train.h) is started with, and how what it
// tells is shown: lines as users of the reference tutorial parse them, or events under --json.
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/command.h"
#include "apps/cli/service.h"
#include "apps/run/cluster.h"
#include "apps/run/metric_text.h"
#include "apps/run/plan_json.h"
#include "apps/run/train.h"
#include "ops/variant.h"

// Static, one run a process, and written whole at the start: no page of it is touched for the first
// time in the middle of a run.
typedef struct display {
    lk_text_out out;           // what is said on the way; nowhere under --quiet, --json or a leader
    lk_text_out own;           // standard output, where `out` leads elsewhere
    lk_text_out *result;       // what is said at the end
    lk_collective collective;  // as asked for
    char held[LK_RUN_LOG_BYTES / 2];  // lines that standard output has not taken yet
    bool leads, json;                 // --json: events in place of lines
} display;

// --json: an event, one line that is a JSON object.
static void say_event(display *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say_event(display *d, const char *format, ...) {
    char line[2048];
    va_list args;
    if (!d->json || !d->leads) return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    lk_text_record(&d->own, "%s", line);
}

// --- before the first step -----------------------------------------------------------------------

static void print_among_gpus(lk_collective asked, const lk_run *run, lk_text_out *out) {
    const bool automatic = asked == LK_COLLECTIVE_AUTO;
    if (lk_run_is_direct(run)) {
        lk_text_line(out, "collective: nccl (%s)",
                     automatic ? "auto: all workers have GPUs of their own" : "as asked");
    } else if (automatic) {
        lk_text_line(out, "collective: mpi (auto: not nccl, %s)", run->workers.why_staged);
    } else {
        lk_text_line(out, "collective: mpi (asked for %s)", lk_collective_word(asked));
    }
}

static void print_collective(lk_collective asked, const lk_run *run, lk_text_out *out) {
    const uint32_t world = run->workers.world, gpus = run->gpu_choice.gpus;
    static const char *const among_several[] = {
        [LK_COLLECTIVE_AUTO] = "auto: it is what carries bytes between processes",
        [LK_COLLECTIVE_MPI] = "as asked",
        [LK_COLLECTIVE_WINDOW] = "asked for its window",
        [LK_COLLECTIVE_MESSAGES] = "asked for its messages alone",
        [LK_COLLECTIVE_RING] = "asked for ring, which is the transport of the host",
    };
    if (gpus > 1 && world == 1) {
        lk_text_line(out, "collective: nccl (%s)",
                     asked == LK_COLLECTIVE_AUTO ? "auto: there are several GPUs" : "as asked");
    } else if (world > 1 && (gpus > 0 || *run->workers.why_staged)) {
        print_among_gpus(asked, run, out);
    } else if (world > 1) {
        lk_text_line(out, "collective: mpi (%s)", among_several[asked]);
    } else if (asked == LK_COLLECTIVE_AUTO) {
        lk_text_line(out, "collective: threads (auto: one worker, its replicas share its memory)");
    } else if (asked == LK_COLLECTIVE_THREADS) {
        lk_text_line(out, "collective: threads (as asked)");
    } else {
        lk_text_line(out,
                     "collective: threads (asked for %s, which is between workers: here is one)",
                     lk_collective_word(asked));
    }
}

// When gradients travel by messages.
static void print_overlap(const lk_run *run, lk_text_out *out) {
    const uint32_t parts = lk_exchange_buckets(&run->program).count;
    uint32_t gpus = 0;
    for (uint32_t w = 0; w < run->workers.world; w++) gpus += run->workers.list[w].gpus;
    if (run->layout.shared || lk_run_is_direct(run)) return;
    if (parts > 1) {
        lk_text_line(out,
                     "overlap: on, gradients are exchanged in %u buckets, all but the last while "
                     "earlier layers are computed",
                     parts);
        return;
    }
    lk_text_line(out, "overlap: off (%s)",
                 run->config.overlap == LK_OVERLAP_OFF ? "as asked"
                 : gpus                                ? "GPUs by way of the host give all at once"
                 : run->layout.bucket_floats
                     ? "no bucket of the gradients is large enough to go alone"
                     : "auto: on one host it would take the time of the "
                       "processors that compute");
}

static void print_slow(const lk_run *run, lk_text_out *out) {
    const char *slow = run->cuda ? NULL : lk_kernels_slow(run->kernels);
    if (slow) lk_text_line(out, "kernels: %s", slow);
}

// Who works here, and how bytes travel between them.
static void print_workers(const lk_run *run, lk_collective asked, lk_text_out *out) {
    const char *name = *run->config.name ? run->config.name : run->config.document.source;
    const lk_run_workers *w = &run->workers;
    uint32_t here, before;
    if (!w->joined) {
        lk_text_line(out, "lockstep %s  %s  1 worker x %u replicas (%s), kernels %s", LK_VERSION,
                     name, run->layout.replicas, lk_run_lanes(run), lk_run_kernels(run));
        print_slow(run, out);
        print_collective(asked, run, out);
        return;
    }
    lk_mpi_host(&here, &before);
    lk_text_line(out, "lockstep %s  %s  %u workers, %u replicas in all, kernels %s", LK_VERSION,
                 name, w->world, run->layout.replicas_all, lk_run_kernels(run));
    print_slow(run, out);
    print_collective(asked, run, out);
    lk_text_line(out,
                 "transport: %s; %u worker%s on this host; window %llu bytes, inbox %llu bytes, "
                 "rendezvous %llu bytes, external %llu bytes (%s)",
                 lk_mpi_transport(), here, here == 1 ? "" : "s",
                 (unsigned long long)run->window_bytes, (unsigned long long)run->inbox_bytes,
                 (unsigned long long)run->rendezvous_bytes,
                 (unsigned long long)lk_mpi_external_bytes(), lk_mpi_version());
    lk_text_line(out, "MPI listens at: %s", lk_mpi_listens());
    print_overlap(run, out);
}

// What each worker computes with, where that is not threads everywhere.
static void print_kinds(const lk_run *run, lk_text_out *out) {
    const lk_run_workers *w = &run->workers;
    uint32_t gpus = 0;
    for (uint32_t i = 0; w->joined && i < w->world; i++) gpus += w->list[i].gpus;
    for (uint32_t i = 0; gpus > 0 && i < LK_MIN(w->world, 16); i++) {
        const lk_worker *them = &w->list[i];
        const uint32_t lanes = them->gpus ? them->gpus : them->replicas;
        lk_text_line(out, "worker %u: %u replica%s on %u %s%s", i, them->replicas,
                     them->replicas == 1 ? "" : "s", lanes, them->gpus ? "GPU" : "thread",
                     lanes == 1 ? "" : "s");
    }
    if (gpus > 0 && w->world > 16) lk_text_line(out, "... and %u more workers", w->world - 16);
}

static void print_gpus(const lk_run *run, lk_text_out *out) {
    const lk_cuda_group *g = &run->gpus;
    for (uint32_t i = 0; run->cuda && i < g->count; i++) {
        const lk_cuda_device *d = &g->gpu[i].device;
        char number[16] = "";
        if (g->count > 1) snprintf(number, sizeof number, " %u", d->number);
        lk_text_line(
            out,
            "GPU%s %s (%u.%u): %llu bytes planned, external %llu bytes (context, kernels, other "
            "programs) of %llu",
            number, d->name, d->major, d->minor, (unsigned long long)g->gpu[i].arena.used,
            (unsigned long long)g->gpu[i].external_bytes, (unsigned long long)d->total_bytes);
    }
    char persistent[LK_PLAN_PERSISTENT_BYTES];
    lk_plan_persistent(run, persistent);
    if (*persistent) lk_text_line(out, "%s", persistent);
    if (run->cuda && run->config.dependent_launches && !g->gpu[0].dependent) {
        lk_text_line(out, "dependent launches: off (compute capability %u.%u, wanted %d.0)",
                     g->gpu[0].device.major, g->gpu[0].device.minor,
                     LK_CUDA_DEPENDENT_MAJOR_MIN);
    }
    if (g->count > 0 && g->choice.way == LK_CUDA_STAGED) {
        lk_text_line(out,
                     "exchange by way of the host: %llu bytes a step between it and this worker's "
                     "GPUs; nodes in %u bucket%s, each under the backward of earlier layers",
                     (unsigned long long)lk_cuda_staged_bytes(g), g->exchange.bucket_count,
                     g->exchange.bucket_count == 1 ? "" : "s");
    }
    if (g->exchange.peers <= 1 || g->choice.way == LK_CUDA_STAGED) return;
    lk_text_line(out,
                 "between %u GPUs: NCCL %s moves %llu bytes a step in %u buckets, each under the "
                 "backward of earlier layers; external %llu bytes of a GPU are NCCL's",
                 g->exchange.peers, g->nccl.version,
                 (unsigned long long)lk_cuda_exchange_bytes(&g->exchange), g->exchange.bucket_count,
                 (unsigned long long)g->nccl_bytes);
}

// Of steps and epochs, where both are said, the one that ends the run.
static void print_length(const lk_run *run, lk_text_out *out) {
    const lk_config *c = &run->config;
    const unsigned long long total = lk_run_steps(run), epochs = c->epochs;
    // Of several objectives some may read no images: so it is asked where the last of them ends.
    const unsigned long long ends =
        lk_steps_of_batches(&c->spec.model, epochs * lk_steps_per_epoch(&c->spec));
    const char *s = epochs == 1 ? "" : "s";
    if (c->cycles) {
        lk_text_line(out, "length: %llu steps, of %llu cycle%s%s%s", total,
                     (unsigned long long)c->cycles, c->cycles == 1 ? "" : "s",
                     c->steps ? ", steps" : "", c->epochs ? ", epochs" : "");
    } else if (!c->steps) {
        lk_text_line(out, "length: %llu steps (%llu epoch%s)", total, epochs, s);
    } else if (!epochs || ends == UINT64_MAX) {  // epochs of nothing: no objective reads images
        lk_text_line(out, "length: %llu steps", total);
    } else if (ends == c->steps) {
        lk_text_line(out, "length: %llu steps, both of steps and of %llu epoch%s", total, epochs,
                     s);
    } else if (total == c->steps) {
        lk_text_line(out, "length: %llu steps (steps), before %llu epoch%s, which are %llu", total,
                     epochs, s, ends);
    } else {
        lk_text_line(out, "length: %llu steps (%llu epoch%s), before the %llu of steps", total,
                     epochs, s, (unsigned long long)c->steps);
    }
}

// What a cycle of the schedule is and takes. Of one objective nothing.
static void print_cycle(const lk_run *run, lk_text_out *out) {
    const lk_graph *g = run->config.spec.model.graph;
    uint64_t steps[LK_OBJECTIVES_MAX] = {0}, batches = 0, draws = 0;
    char text[LK_OBJECTIVES_MAX * (LK_GRAPH_NAME_BYTES + 24)];
    size_t n = 0;
    if (!g || g->objective_count == 1) return;
    for (uint32_t i = 0; i < g->schedule_count; i++) {
        steps[g->schedule[i].objective] += g->schedule[i].steps;
    }
    for (uint32_t k = 0; k < g->objective_count; k++) {
        const lk_objective *o = &g->objectives[k];
        bool noise = false;
        for (uint32_t v = 0; v < o->value_count; v++) {
            noise = noise || lk_use_is_noise(&o->values[v]);
        }
        if (noise) draws += steps[k];
        if (g->calls->reads_images(o)) batches += steps[k];
        n += lk_format(text + n, sizeof text - n, "%s%s %llu", k ? ", " : "", o->name,
                       (unsigned long long)steps[k]);
    }
    lk_text_line(out,
                 "a cycle: %llu steps (%s); it reads %llu batch%s of images and draws noise "
                 "%llu times",
                 (unsigned long long)lk_cycle_steps(g), text, (unsigned long long)batches,
                 batches == 1 ? "" : "es", (unsigned long long)draws);
}

static void print_batch(const lk_run_spec *s, lk_text_out *out) {
    const uint64_t epoch = lk_steps_of_batches(&s->model, lk_steps_per_epoch(s));
    if (epoch == UINT64_MAX) {
        lk_text_line(out, "global batch %u = %u grains of %u; no objective reads images",
                     s->global_batch, lk_grain_count(s), s->grain);
        return;
    }
    lk_text_line(
        out, "global batch %u = %u grains of %u; %llu steps an epoch, the last with %u examples",
        s->global_batch, lk_grain_count(s), s->grain, (unsigned long long)epoch,
        lk_step_examples(s, lk_step_of_batch(&s->model, lk_steps_per_epoch(s) - 1)));
}

static void print_banner(display *d, const lk_run *run) {
    const lk_run_spec *s = &run->config.spec;
    char hash[LK_SHA256_HEX_BYTES], cublas[24];
    lk_hex(s->data_hash, LK_SHA256_BYTES, hash);
    lk_run_cublas(run, cublas, sizeof cublas);
    lk_text_out *out = &d->out;
    print_workers(run, d->collective, out);
    if (run->evaluator) lk_text_line(out, "evaluation: by the cluster's evaluator, not here");
    if (run->train.healed || run->test.healed) {
        lk_text_line(out,
                     "WARNING: bytes in the data cache had changed by themselves; they were "
                     "unpacked again; look after the disk");
    }
    lk_text_line(out, "data %s: %llu examples; test %llu", hash,
                 (unsigned long long)s->example_count,
                 (unsigned long long)lk_run_test_examples(run));
    if (lk_spec_has_strips(s)) {
        lk_text_line(out, "strips: each of %u to %u of %llu images", s->strips.least,
                     s->strips.most, (unsigned long long)s->strip_images);
    }
    print_batch(s, out);
    print_length(run, out);
    if (*run->config.init.file) {
        lk_text_line(out, "init: %u of %u tensors from %s", run->init_taken,
                     lk_entry_count(&run->program), run->config.init.file);
    }
    print_cycle(run, out);
    lk_text_line(out, "arena %llu bytes, %s; %llu parameters", (unsigned long long)run->arena.used,
                 run->block.locked ? "locked in memory" : "touched but NOT locked (see ulimit -l)",
                 (unsigned long long)run->program.param_floats);
    if (lk_run_is_fast(run)) {
        lk_text_line(out,
                     "arithmetic fast: products in %s by cuBLAS %s on %s; another GPU model or "
                     "version may give other bits",
                     lk_fast_precision_name(s->model.fast_precision), cublas,
                     run->gpus.gpu[0].device.name);
    }
    print_kinds(run, out);
    lk_text_line(out, "run_identity %s", run->identity_hex);
}

static void print_start(display *d, const lk_train_event *e) {
    const lk_run *run = e->run;
    char name[6 * LK_JSON_SOURCE_BYTES], dir[6 * LK_PATH_BYTES];
    const char *plain = *run->config.name ? run->config.name : run->config.document.source;
    if (!d->json) return;
    lk_text_escape(name, sizeof name, plain, strlen(plain));
    lk_text_escape(dir, LK_MIN(sizeof dir, (size_t)1024), e->run_dir, strlen(e->run_dir));
    say_event(d,
              "{\"event\":\"start\",\"version\":\"%s\",\"name\":\"%.400s\",\"run_dir\":\"%s\","
              "\"step\":%llu,\"steps\":%llu,\"workers\":%u,\"replicas\":%u,\"kernels\":\"%s\","
              "\"arena_bytes\":%llu,\"run_identity\":\"%s\"}",
              LK_VERSION, name, dir, (unsigned long long)e->step, (unsigned long long)e->steps,
              run->workers.world,
              run->workers.joined ? run->layout.replicas_all : run->layout.replicas,
              lk_run_kernels(run), (unsigned long long)run->arena.used, run->identity_hex);
}

// --- steps -------------------------------------------------------------------------------------

static lk_named_result named(const lk_train_event *e) {
    return lk_name_result(&e->run->program, e->result, e->kind == LK_TRAIN_STEP ? e->step : 0);
}

// The lines that users of the reference tutorial parse, or an event.
static void show_step(display *d, const lk_train_event *e) {
    const double rate = e->seconds > 0 ? (double)e->since / e->seconds : 0.0;
    char metrics[LK_METRIC_TEXT_BYTES];
    lk_metric_fields(metrics, named(e), false);
    say_event(d, "{\"event\":\"step\",\"step\":%llu,\"steps\":%llu,%s,\"steps_per_second\":%.6g}",
              (unsigned long long)e->step, (unsigned long long)e->steps, metrics, rate);
    // On a terminal the clock shows the steps.
    if (d->out.terminal) return;
    lk_metric_equations(metrics, named(e));
    if (e->step == e->first + 1) {
        lk_text_line(&d->out, "%s, step = %llu", metrics, (unsigned long long)(e->step - 1));
        return;
    }
    if (e->since == e->run->config.log_every_steps) {
        lk_text_line(&d->out, "global_step/sec: %g", rate);
    }
    lk_text_line(&d->out, "%s, step = %llu (%.3f sec)", metrics, (unsigned long long)(e->step - 1),
                 e->seconds);
}

static void show_evaluation(display *d, const lk_train_event *e) {
    char metrics[LK_METRIC_TEXT_BYTES];
    lk_metric_evaluation(metrics, named(e));
    say_event(d, "{\"event\":\"evaluation\",\"step\":%llu,%s,\"training_seconds\":%.3f}",
              (unsigned long long)e->step, metrics, e->seconds);
    lk_metric_words(metrics, named(e));
    lk_text_line(&d->out, "evaluation step %llu: %u examples, %s, after %.2f s of training",
                 (unsigned long long)e->step, e->result->examples, metrics, e->seconds);
}

static void show_checkpoint(display *d, const lk_train_event *e) {
    lk_text_line(&d->out, "checkpoint step %llu  digest %s", (unsigned long long)e->step,
                 e->digest);
    say_event(d, "{\"event\":\"checkpoint\",\"step\":%llu,\"digest\":\"%s\"}",
              (unsigned long long)e->step, e->digest);
}

static void show_stop(display *d, const lk_train_event *e) {
    lk_watch_clock(false);
    lk_text_line(d->result, "stopped after step %llu; go on with --resume",
                 (unsigned long long)e->step);
    say_event(d, "{\"event\":\"stopped\",\"step\":%llu,\"signal\":%u}", (unsigned long long)e->step,
              e->signal);
}

static void show_result(display *d, const lk_train_event *e) {
    const lk_step_result *r = e->result;
    lk_text_out *out = d->result;
    char metrics[LK_METRIC_TEXT_BYTES], test[LK_METRIC_TEXT_BYTES + 16] = "";
    lk_watch_clock(false);
    if (r->examples) {
        lk_metric_lines(out, named(e));
        lk_metric_fields(metrics, named(e), true);
        snprintf(test, sizeof test, "\"test\":{%s},", metrics);
    }
    if (e->since) {
        lk_text_line(out, "trained %llu steps in %.3f s: %.1f steps/s, %.0f images/s",
                     (unsigned long long)e->since, e->seconds, (double)e->since / e->seconds,
                     (double)e->since * e->run->config.spec.global_batch / e->seconds);
        lk_laps_print(&e->run->laps, &d->out);
    } else {
        lk_text_line(out, "nothing to do: step %llu of %llu is already %s",
                     (unsigned long long)e->step, (unsigned long long)e->steps,
                     e->saved == e->step ? "saved" : "trained");
    }
    lk_text_line(out, "run_identity %s", e->run->identity_hex);
    lk_text_line(out, "digest %s", e->digest);
    lk_text_line(out, "state_hash %s", e->state_hash);
    say_event(d,
              "{\"event\":\"end\",\"step\":%llu,\"trained\":%llu,\"seconds\":%.3f,%s"
              "\"run_identity\":\"%s\",\"digest\":\"%s\",\"state_hash\":\"%s\"}",
              (unsigned long long)e->step, (unsigned long long)e->since, e->seconds, test,
              e->run->identity_hex, e->digest, e->state_hash);
}

// --- what is told ------------------------------------------------------------------------------

// What the handlers of watch.h look at.
static void note_progress(const lk_train_event *e) {
    lk_watching.done = e->step;
    lk_watching.saved = e->saved;
    lk_watching.evaluating = e->evaluating;
    lk_watching.step_began = e->step_began;
    if (!e->result) return;
    const lk_named_result n = named(e);
    const uint32_t objective = e->result->program ? e->result->program->objective : 0;
    lk_watch_metrics *m = &lk_watching.metrics[objective];
    for (uint32_t i = 0; i < LK_METRIC_SUMS_MAX; i++) m->means[i] = e->result->means[i];
    for (uint32_t i = 0; i < LK_METRIC_COUNTS_MAX; i++) m->counts[i] = e->result->counts[i];
    m->names = n.names;
    m->objective = n.objective;
    m->examples = e->result->examples;
    lk_watching.objective = objective;
}

static void begin(const lk_train_event *e) {
    lk_watching.first = lk_watching.done = e->step;
    lk_watching.total = e->steps;
    lk_watching.start = e->start;
    lk_watching.said_at = lk_seconds();
    note_progress(e);
    lk_watching.run = e->run;
    lk_service_ready();
    lk_watch_clock(true);
}

// Start-up is over.
static void get_ready(display *d, const lk_train_event *e) {
    lk_watch_stop();
    // Others wait for this process, so it waits for no reader of what it says.
    if (e->run->workers.joined) lk_text_hold(lk_watching.out, d->held, sizeof d->held);
    lk_service_prepare(e->run, e->step);
    lk_watch_prepare();
}

static void on_event(void *context, const lk_train_event *e) {
    display *d = context;
    const bool shown = e->kind == LK_TRAIN_STEP || e->kind == LK_TRAIN_EVALUATION ||
                       e->kind == LK_TRAIN_CHECKPOINT;
    if (shown) lk_watching.said_at = lk_seconds();
    switch (e->kind) {
    case LK_TRAIN_OPENED: print_banner(d, e->run); break;
    case LK_TRAIN_LAID_OUT: print_start(d, e); break;
    case LK_TRAIN_CONNECTED: print_gpus(e->run, &d->out); break;
    case LK_TRAIN_READY: get_ready(d, e); break;
    case LK_TRAIN_BEGUN: begin(e); break;
    case LK_TRAIN_PROGRESS: note_progress(e); break;
    case LK_TRAIN_BETWEEN: lk_watch_catch_up(); break;
    case LK_TRAIN_STEP: show_step(d, e); break;
    case LK_TRAIN_EVALUATION: show_evaluation(d, e); break;
    case LK_TRAIN_CHECKPOINT: show_checkpoint(d, e); break;
    case LK_TRAIN_STOPPED: show_stop(d, e); break;
    case LK_TRAIN_END: show_result(d, e); break;
    }
}

static uint32_t asked_to_stop(void *context) {
    (void)context;
    return lk_stop_signal();
}

// Nobody reads any more.
static lk_status is_read(void *context, lk_error *error) {
    const display *d = context;
    LK_CHECK(lk_text_check(&d->own, "standard output", error));
    return lk_text_check(&d->out, "standard output", error);
}

// --- the command ---------------------------------------------------------------------------------

static void say_failure(display *d, lk_status status, const lk_error *error) {
    char text[2 * LK_ERROR_TEXT_BYTES];
    if (!d->json) return;
    lk_text_escape(text, sizeof text, error->text, strlen(error->text));
    say_event(d, "{\"event\":\"error\",\"code\":%d,\"text\":\"%s\"}", (int)status, text);
}

// The pipe of whoever started this process and shows its progress; or -1.
static lk_status inherited_progress(int *out, lk_error *error) {
    const char *text = getenv("LOCKSTEP_PROGRESS_FD");
    char *end;
    *out = -1;
    if (!text) return LK_OK;
    unsigned long number = strtoul(text, &end, 10);
    int flags = -1;
    if (*text >= '0' && *text <= '9' && *end == '\0' && number <= INT_MAX) {
        flags = fcntl((int)number, F_GETFL);
    }
    if (flags >= 0 && (flags & O_NONBLOCK)) {
        *out = (int)number;
        return LK_OK;
    }
    return lk_fail(
        error, LK_BAD_USAGE,
        "LOCKSTEP_PROGRESS_FD: found \"%s\", wanted the number of an inherited pipe that "
        "does not block, as lockstep launch gives it; unset it",
        text);
}

// Who hears what: lines on the way, the answers of watch.h, and the result.
static lk_status open_outputs(display *d, const lk_common_options *o, lk_error *error) {
    const bool talks = d->leads && !o->quiet && !o->json;
    lk_text_open(&d->out, talks ? STDOUT_FILENO : open("/dev/null", O_WRONLY | O_CLOEXEC));
    lk_text_open(&d->own, STDOUT_FILENO);
    d->result = d->leads && o->quiet ? &d->own : &d->out;
    lk_watching.out = talks ? &d->out : &d->own;
    lk_watching.leads = d->leads;
    lk_watching.json = o->json;
    lk_watching.quiet = o->quiet;
    return d->leads ? inherited_progress(&lk_watching.progress_file, error) : LK_OK;
}

static lk_train_options options_of(display *d, const lk_common_options *o) {
    return (lk_train_options){.run_dir = o->run_dir,
                              .metrics_file = d->leads ? o->metrics_file : NULL,
                              .max_memory = o->max_memory,
                              .resume = o->resume,
                              .fresh = o->fresh,
                              .resume_or_start = o->resume_or_start,
                              .seal = o->seal,
                              .require_lock = o->require_lock,
                              .step_timeout_seconds = o->mpi.step_timeout_seconds,
                              .calls = {.context = d,
                                        .event = on_event,
                                        .stop = asked_to_stop,
                                        .may_go_on = is_read,
                                        .say = lk_say_on(&d->out)}};
}

// Takes leave: of files, of readers, of the other workers.
static lk_status leave(display *d, lk_trainer *t, lk_status status, lk_error *error) {
    lk_watch_clock(false);
    lk_watch_last();
    lk_service_stopping();
    lk_text_clear(&d->out);
    if (status != LK_OK && !lk_is_stop(status)) say_failure(d, status, error);
    const lk_status closed = lk_train_close(t, status, error);
    if (status == LK_OK && closed != LK_OK) say_failure(d, closed, error);
    status = closed;
    if (status == LK_OK) status = lk_text_check(&d->out, "standard output", error);
    if (status == LK_OK) status = lk_text_check(&d->own, "standard output", error);
    lk_train_hush(t, status, error);
    // Said before anybody ends: a launcher stops all processes when the first does.
    lk_say_error(error);
    const lk_status end = lk_train_end(t, status, error);
    if (status == LK_OK && end != LK_OK) lk_say_error(error);
    // Nobody waits any more.
    (void)lk_text_release(lk_watching.out);
    if (end != LK_OK) return end;
    status = lk_text_check(lk_watching.out, "standard output", error);
    if (status != LK_OK) lk_say_error(error);
    return status;
}

static lk_status check_metrics_file(const lk_common_options *o, lk_error *error) {
    static const char option[] = "--metrics-file";
    LK_CHECK(lk_output_check(option, o->metrics_file, NULL, error));
    return lk_check_inputs(o, option, o->metrics_file, error);
}

lk_status lk_command_train(int argc, char **argv, lk_error *error) {
    static lk_run run;
    static lk_trainer trainer;
    static display d;
    static lk_cluster cluster;
    lk_gathering how;
    lk_common_options o;
    lk_watch_ask();
    LK_CHECK(lk_parse_common(argc, argv, LK_OPT_OF_TRAIN, &o, error));
    o.mpi.waiting = lk_watch_waiting;
    const lk_gather_options gather = {.config = o.config,
                                      .cluster = o.cluster,
                                      .mpi = o.mpi,
                                      .collective = o.collective,
                                      .insecure = o.insecure};
    LK_CHECK(lk_gather_read(&gather, &cluster, &how, error));
    if (cluster.evaluator) {  // its run is that of the workers
        o.config.workers = cluster.world;
        o.config.worker_replicas = cluster.replicas;
        return lk_evaluator(&o, error);
    }
    d = (display){.collective = o.collective, .json = o.json};
    d.leads = lk_cluster_leads(&cluster);
    const lk_train_options options = options_of(&d, &o);
    lk_trainer_make(&trainer, &run, &options, d.leads);
    LK_CHECK(open_outputs(&d, &o, error));
    if (d.leads && o.metrics_file) LK_CHECK(check_metrics_file(&o, error));
    LK_CHECK(lk_service_open(d.leads ? o.metrics_file : NULL, error));
    lk_status status = lk_gather(&run, &gather, &cluster, how, error);
    lk_watch_data(&run.train, &run.test);
    if (status == LK_OK) status = lk_train(&trainer, &options, error);
    status = leave(&d, &trainer, status, error);
    lk_run_close(&run);
    return status;
}
