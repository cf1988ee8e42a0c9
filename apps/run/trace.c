// trace.c - see trace.h. A record is an end: it began where the one before it ended.
#define _GNU_SOURCE
#include "apps/run/trace.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/run/flop.h"
#include "apps/run/output.h"
#include "apps/run/run.h"
#include "comm/threads/clock.h"
#include "io/text.h"

typedef unsigned long long ull;
enum { TEXT_BYTES = 64 * 1024, EVENT_BYTES = 2 * LK_TRACE_NAME_BYTES + 400 };

static bool is_wanted(const lk_run *run) { return run->config.trace.file[0] && !run->cuda; }

// --- memory --------------------------------------------------------------------------------------

// Records of one step in one lane: the ops of all microbatches, and some laps, of each bucket of
// the exchange seven.
static uint64_t records_of_step(const lk_run *run, const lk_program *p) {
    const uint64_t microbatches = (p->grains + p->microbatch_grains - 1) / p->microbatch_grains;
    const uint64_t buckets = run->workers.world > 1 ? lk_exchange_buckets(p).count : 0;
    return microbatches * p->reduce_op + 8 * buckets + 16;
}

// Of the objective that has most.
static uint64_t records_of_any_step(const lk_run *run) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < run->program.programs; i++) {
        most = LK_MAX(most, records_of_step(run, &run->program.all[i]));
    }
    return most;
}

void lk_trace_take(lk_run *run, lk_arena *a) {
    lk_trace *t = &run->trace;
    const uint64_t line = LK_TENSOR_ALIGN_BYTES;
    if (!is_wanted(run)) return;
    *t = (lk_trace){.run = run,
                    .lane_count = run->layout.replicas,
                    .step_count = run->config.trace.steps,
                    .capacity = run->config.trace.steps * records_of_any_step(run)};
    t->lanes = lk_arena_take(a, "trace lanes", sizeof *t->lanes, t->lane_count, line);
    t->steps = lk_arena_take(a, "trace steps",
                             t->step_count * (sizeof *t->steps + t->lane_count * sizeof *t->first),
                             1, line);
    lk_trace_record *records =
        lk_arena_take(a, "trace records", t->capacity * sizeof *records, t->lane_count, line);
    t->text = lk_arena_take(a, "trace text", TEXT_BYTES, 1, line);
    if (!t->lanes) return;
    const uint64_t stride = lk_round_up(t->capacity * sizeof *records, line);
    t->first = (uint64_t *)(void *)(t->steps + t->step_count);
    for (uint32_t i = 0; i < t->lane_count; i++) {
        t->lanes[i] = (lk_trace_lane){
            .records = (lk_trace_record *)(void *)((uint8_t *)records + i * stride)};
    }
}

static lk_status name_of(const lk_run *run, char path[LK_PATH_BYTES], lk_error *error) {
    char rank[16] = "";
    if (run->workers.rank) snprintf(rank, sizeof rank, ".%u", run->workers.rank);
    return lk_path_join(path, run->config.trace.file, rank, "", error);
}

lk_status lk_trace_check(const lk_run *run, const char *run_dir, lk_error *error) {
    char path[LK_PATH_BYTES], parent[LK_PATH_BYTES];
    struct stat there;
    if (!run->config.trace.file[0]) return LK_OK;
    if (run->cuda) {
        return lk_fail(error, LK_BAD_CONFIG,
                       "%s: trace.file: a GPU's steps are not seen from here, wanted kernels of "
                       "the processor; leave it out, and use NVIDIA's Nsight Systems",
                       run->config.document.source);
    }
    LK_CHECK(name_of(run, path, error));
    LK_CHECK(lk_output_check("--trace", path, run_dir, error));
    LK_CHECK(lk_output_of_no_input("--trace", path, &run->config, error));
    lk_path_parent(parent, path);
    if (stat(parent, &there) == 0 && S_ISDIR(there.st_mode)) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "--trace: %s: there is no directory %s; make it first",
                   path, parent);
}

// --- recording -----------------------------------------------------------------------------------

static void add(lk_trace_lane *lane, uint64_t capacity, uint32_t what, double now) {
    lk_assert(lane->used < capacity);
    lane->records[lane->used++] = (lk_trace_record){.end = now, .what = what};
    lane->at = now;
}

void lk_trace_begin(lk_trace *t, uint64_t step) {
    t->on = false;
    if (!t->lanes || t->steps_used == t->step_count) return;
    if (step + 1 < t->run->config.trace.first_step) return;
    const double now = lk_seconds();
    t->program = lk_program_of_step(&t->run->program, step);
    t->steps[t->steps_used] = (lk_trace_step){.step = step, .begin = now, .program = t->program};
    for (uint32_t i = 0; i < t->lane_count; i++) {
        t->first[(uint64_t)t->steps_used * t->lane_count + i] = t->lanes[i].used;
        t->lanes[i].at = now;
    }
    t->on = true;
}

static lk_trace *trace_of(const lk_member *m) { return m->driver->lanes_context; }

static void lap_ends(const lk_member *m, lk_lap lap) {
    lk_trace *t = trace_of(m);
    add(&t->lanes[m->replica], t->capacity, t->program->op_count + (uint32_t)lap, lk_seconds());
}

static void op_ends(void *trace, uint32_t replica, uint32_t op) {
    lk_trace *t = trace;
    add(&t->lanes[replica], t->capacity, op, lk_seconds());
}

static void compute_seen(lk_member *m) {
    lk_step_compute_seen(m->driver->group, m->replica, m->driver->step, op_ends, trace_of(m));
    lap_ends(m, LK_LAP_COMPUTING);
}

static void compute_bucket_seen(lk_member *m) {
    trace_of(m)->plain->compute(m);
    lap_ends(m, LK_LAP_COMPUTING);
}

static void share_seen(lk_member *m) {
    lap_ends(m, LK_LAP_WAITING);
    trace_of(m)->plain->share(m);
    lap_ends(m, LK_LAP_MOVING);
}

static void join_seen(lk_member *m, uint32_t bucket) {
    lap_ends(m, LK_LAP_ROUNDS);
    trace_of(m)->plain->join(m, bucket);
    lap_ends(m, LK_LAP_MOVING);
}

// What comes before it is a wait for the replicas, or with several workers a turn.
static void apply_seen(lk_member *m) {
    lap_ends(m, m->driver->exchange ? LK_LAP_ROUNDS : LK_LAP_WAITING);
    trace_of(m)->plain->apply(m);
    lap_ends(m, LK_LAP_UPDATING);
}

void lk_trace_drive(lk_trace *t, lk_driver *d) {
    t->plain = d->lanes;
    t->seen = *d->lanes;
    t->seen.compute = d->lanes == &lk_lanes_boxes ? compute_bucket_seen : compute_seen;
    if (t->plain->share) t->seen.share = share_seen;
    if (t->plain->join) t->seen.join = join_seen;
    t->seen.apply = apply_seen;
    d->lanes = &t->seen;
    d->lanes_context = t;
}

// Whoever was done before the others waited for them.
void lk_trace_end(lk_trace *t) {
    if (!t->on) return;
    const double now = lk_seconds();
    for (uint32_t i = 0; i < t->lane_count; i++) {
        add(&t->lanes[i], t->capacity, t->program->op_count + LK_LAP_WAITING, now);
    }
    t->steps[t->steps_used++].end = now;
    t->on = false;
}

// --- what is known of it -------------------------------------------------------------------------

void lk_trace_name(const lk_program *p, uint32_t what, char out[LK_TRACE_NAME_BYTES],
                   const char **phase) {
    if (what >= p->op_count) {
        // What is left between two laps is nothing to look at, but for its time.
        *phase = "lap";
        snprintf(out, LK_TRACE_NAME_BYTES, "%s", lk_lap_names[what - p->op_count]);
        return;
    }
    const lk_op *op = &p->ops[what];
    *phase = lk_phase_name(op->phase);
    const char *layer = op->layer == LK_NONE ? "" : p->spec->model.layers[op->layer].name;
    snprintf(out, LK_TRACE_NAME_BYTES, "%.100s%s%s", op->type->name, *layer ? " " : "", layer);
}

// The end of a step's records in a lane.
static uint64_t records_end(const lk_trace *t, uint32_t number, uint32_t lane) {
    if (number + 1 == t->steps_used) return t->lanes[lane].used;
    return t->first[(uint64_t)(number + 1) * t->lane_count + lane];
}

double lk_trace_means(const lk_trace *t, double *seconds) {
    double step = 0;
    const uint32_t kinds = t->run->program.op_count + LK_LAPS;
    memset(seconds, 0, kinds * sizeof *seconds);
    for (uint32_t n = 0; n < t->steps_used; n++) {
        step += (t->steps[n].end - t->steps[n].begin) / t->steps_used;
        for (uint32_t i = 0; i < t->lane_count; i++) {
            double begin = t->steps[n].begin;
            uint64_t at = t->first[(uint64_t)n * t->lane_count + i];
            for (; at < records_end(t, n, i); at++) {
                const lk_trace_record *r = &t->lanes[i].records[at];
                seconds[r->what] += (r->end - begin) / ((double)t->steps_used * t->lane_count);
                begin = r->end;
            }
        }
    }
    return step;
}

// --- the file ------------------------------------------------------------------------------------

typedef struct output {
    const lk_trace *trace;
    const char *path;
    int file;
    size_t used;
    double zero;  // the first step's begin
    lk_error *error;
} output;

static void flush(output *o) {
    if (o->error->status == LK_OK) {
        (void)lk_file_write_all(&lk_file_ops_posix, o->file, o->path, o->trace->text, o->used,
                                o->error);
    }
    o->used = 0;
}

__attribute__((format(printf, 2, 3))) static void put(output *o, const char *format, ...) {
    __builtin_va_list args;
    if (TEXT_BYTES - o->used < EVENT_BYTES) flush(o);
    __builtin_va_start(args, format);
    const int n = vsnprintf(o->trace->text + o->used, TEXT_BYTES - o->used, format, args);
    __builtin_va_end(args);
    lk_assert(n >= 0 && n < EVENT_BYTES);
    o->used += (size_t)n;
}

// A span of microseconds, to the nanosecond; its ends, and not its length, are rounded, so that
// those that follow on each other still do. `more`: members of its "args", each after a comma.
static void put_span(output *o, const char *name, const char *kind, uint32_t lane, double begin,
                     double end, uint64_t step, const char *more) {
    const ull from = (ull)(1e9 * (begin - o->zero) + 0.5), to = (ull)(1e9 * (end - o->zero) + 0.5);
    const ull length = to > from ? to - from : 0;
    put(o,
        ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%llu.%03llu,"
        "\"dur\":%llu.%03llu,\"args\":{\"step\":%llu%s}}",
        name, kind, o->trace->run->workers.rank, lane, from / 1000, from % 1000, length / 1000,
        length % 1000, (ull)step + 1, more);
}

// The operations of an op, where they are counted, as "routed" of flop.h. A weight gradient of
// operands is computed with the update, and not by its op.
static double flop_of(const lk_program *p, uint32_t what, uint64_t examples) {
    if (what >= p->op_count) return 0;
    const uint32_t param = p->ops[what].param[0];
    const bool later = param != LK_NONE && p->params[param].gradient_op == what &&
                       p->params[param].mode == LK_REDUCE_OPERANDS;
    return later ? 0 : lk_op_flop_of(&p->ops[what], examples).routed;
}

static void put_record(output *o, uint32_t lane, double begin, const lk_trace_record *r,
                       const lk_trace_step *of, uint64_t examples) {
    char name[LK_TRACE_NAME_BYTES], escaped[2 * LK_TRACE_NAME_BYTES], flop[40] = "";
    const char *phase;
    const lk_program *p = of->program;
    lk_trace_name(p, r->what, name, &phase);
    lk_text_escape(escaped, sizeof escaped, name, strlen(name));
    const double count = flop_of(p, r->what, examples);
    if (count > 0) snprintf(flop, sizeof flop, ",\"flop\":%.0f", count);
    put_span(o, escaped, phase, lane, begin, r->end, of->step, flop);
}

static void put_names(output *o) {
    const lk_trace *t = o->trace;
    const uint32_t rank = t->run->workers.rank;
    put(o,
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"lockstep %s\","
        "\"run_identity\":\"%s\"},\"traceEvents\":[\n",
        LK_VERSION, t->run->identity_hex);
    put(o, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"worker %u\"}}",
        rank, rank);
    for (uint32_t i = 0; i <= t->lane_count; i++) {
        put(o,
            ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":"
            "\"%s",
            rank, i, i ? "replica " : "steps\"}}");
        if (i) put(o, "%u\"}}", t->run->layout.replicas_before + i - 1);
    }
}

static void put_step(output *o, uint32_t number) {
    const lk_trace *t = o->trace;
    const lk_trace_step *s = &t->steps[number];
    put_span(o, "step", "step", 0, s->begin, s->end, s->step, "");
    for (uint32_t i = 0; i < t->lane_count; i++) {
        const lk_trace_lane *lane = &t->lanes[i];
        const uint64_t *first = &t->first[(uint64_t)number * t->lane_count + i];
        const uint64_t end = records_end(t, number, i);
        lk_microbatches w = lk_step_microbatches(s->program, i, s->step);
        double begin = s->begin;
        for (uint64_t at = *first; at < end; at++) {
            // The first op begins a microbatch.
            if (lane->records[at].what == 0) (void)lk_next_microbatch(&w);
            put_record(o, i + 1, begin, &lane->records[at], s, w.microbatch.examples);
            begin = lane->records[at].end;
        }
    }
}

lk_status lk_trace_write(lk_trace *t, bool over, lk_error *error) {
    char path[LK_PATH_BYTES], temporary[LK_PATH_BYTES];
    if (!t->lanes || t->written || t->steps_used == 0) return LK_OK;
    if (t->steps_used < t->step_count && !over) return LK_OK;
    t->written = true;
    LK_CHECK(name_of(t->run, path, error));
    output o = {.trace = t, .path = temporary, .zero = t->steps[0].begin, .error = error};
    LK_CHECK(lk_file_create_beside(&lk_file_ops_posix, path, temporary, &o.file, error));
    put_names(&o);
    for (uint32_t i = 0; i < t->steps_used; i++) put_step(&o, i);
    put(&o, "\n]}\n");
    flush(&o);
    (void)lk_file_sync_close(&lk_file_ops_posix, o.file, temporary, error);
    if (error->status == LK_OK &&
        lk_file_publish(&lk_file_ops_posix, temporary, path, error) == LK_OK) {
        return LK_OK;
    }
    (void)lk_file_ops_posix.remove(lk_file_ops_posix.context, temporary);
    return error->status;
}
