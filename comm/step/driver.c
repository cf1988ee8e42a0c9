// driver.c - rows of a step, one after another. Freestanding; adds nothing, and calls nobody but
// the two tables of driver.h.
#include "comm/step/driver.h"

// --- courses -----------------------------------------------------------------------------------

#define WHEN(table, repeat_, when_) \
    { .rows = (table), .count = LK_COUNT(table), .repeat = (repeat_), .when = (when_) }
#define ROWS(table, repeat_) WHEN(table, repeat_, LK_ALWAYS)

static const lk_row alone[] = {
    {LK_ACT_COMPUTE, LK_NO_ROUND, LK_LAP_COMPUTING},
    {LK_ACT_MEET, LK_NO_ROUND, LK_LAP_WAITING},
    {LK_ACT_VERDICT, LK_NO_ROUND, LK_NO_LAP},
};
static const lk_row alone_norms[] = {
    {LK_ACT_REDUCE, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_SQUARE, LK_NO_ROUND, LK_LAP_UPDATING},
    {LK_ACT_MEET, LK_NO_ROUND, LK_LAP_WAITING},
    {LK_ACT_JUDGE, LK_NO_ROUND, LK_NO_LAP},
};
static const lk_row update[] = {{LK_ACT_APPLY, LK_NO_ROUND, LK_LAP_UPDATING}};
const lk_course lk_course_alone = {
    .section = {ROWS(alone, LK_ONCE), WHEN(alone_norms, LK_ONCE, LK_NORMED),
                ROWS(update, LK_ONCE)}};

static const lk_row shared[] = {
    {LK_ACT_COMPUTE, LK_NO_ROUND, LK_LAP_COMPUTING}, {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_REPORT, LK_NO_ROUND, LK_NO_LAP},           {LK_ACT_GIVE, LK_ROUND_BOXES, LK_NO_LAP},
    {LK_ACT_AWAIT, LK_ROUND_BOXES, LK_LAP_ROUNDS},    {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_VERDICT, LK_NO_ROUND, LK_NO_LAP},
};
static const lk_row shared_norms[] = {
    {LK_ACT_REDUCE, LK_NO_ROUND, LK_NO_LAP},  {LK_ACT_SQUARE, LK_NO_ROUND, LK_LAP_UPDATING},
    {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},    {LK_ACT_GIVE, LK_ROUND_NORMS, LK_NO_LAP},
    {LK_ACT_AWAIT, LK_ROUND_NORMS, LK_NO_LAP}, {LK_ACT_MEET, LK_NO_ROUND, LK_LAP_ROUNDS},
    {LK_ACT_JUDGE, LK_NO_ROUND, LK_NO_LAP},
};
static const lk_row shared_update[] = {
    {LK_ACT_APPLY, LK_NO_ROUND, LK_LAP_UPDATING}, {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_COMPLETE, LK_NO_ROUND, LK_NO_LAP},    {LK_ACT_GIVE, LK_ROUND_SUMS, LK_NO_LAP},
    {LK_ACT_AWAIT, LK_ROUND_SUMS, LK_LAP_ROUNDS},
};
const lk_course lk_course_shared = {
    .section = {ROWS(shared, LK_ONCE), WHEN(shared_norms, LK_ONCE, LK_NORMED),
                ROWS(shared_update, LK_ONCE)}};

// Each bucket goes as soon as it is computed, and with it the sums of those that have come
// meanwhile; then what is left. The laps of COMPUTE are its own (lanes.c).
static const lk_row early[] = {
    {LK_ACT_COMPUTE, LK_NO_ROUND, LK_NO_LAP}, {LK_ACT_LOOK, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},    {LK_ACT_SHARE, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},    {LK_ACT_REPORT, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_GIVE, LK_ROUND_BOXES, LK_NO_LAP}, {LK_ACT_GIVE_JOINED, LK_ROUND_SUMS, LK_LAP_EARLY},
};
static const lk_row join[] = {
    {LK_ACT_AWAIT, LK_ROUND_BOXES, LK_NO_LAP},
    {LK_ACT_MEET, LK_NO_ROUND, LK_LAP_ROUNDS},
    {LK_ACT_JOIN, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_GIVE_JOINED, LK_ROUND_SUMS, LK_LAP_MOVING},
};
static const lk_row verdict[] = {{LK_ACT_VERDICT, LK_NO_ROUND, LK_NO_LAP}};
static const lk_row apply[] = {
    {LK_ACT_AWAIT, LK_ROUND_SUMS, LK_NO_LAP},
    {LK_ACT_MEET, LK_NO_ROUND, LK_LAP_ROUNDS},
    {LK_ACT_APPLY, LK_NO_ROUND, LK_LAP_UPDATING},
};
static const lk_row boxes_reduce[] = {
    {LK_ACT_AWAIT, LK_ROUND_SUMS, LK_NO_LAP},
    {LK_ACT_MEET, LK_NO_ROUND, LK_LAP_ROUNDS},
    {LK_ACT_REDUCE, LK_NO_ROUND, LK_LAP_UPDATING},
};
static const lk_row boxes_norms[] = {
    {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},  {LK_ACT_SQUARE, LK_NO_ROUND, LK_LAP_UPDATING},
    {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},  {LK_ACT_JUDGE, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_APPLY, LK_NO_ROUND, LK_LAP_UPDATING},
};
const lk_course lk_course_boxes = {
    .section = {ROWS(early, LK_EACH_BUCKET), ROWS(join, LK_BUCKETS_LEFT), ROWS(verdict, LK_ONCE),
                WHEN(boxes_reduce, LK_EACH_BUCKET, LK_NORMED),
                WHEN(boxes_norms, LK_ONCE, LK_NORMED), WHEN(apply, LK_EACH_BUCKET, LK_PLAIN)}};

static const lk_row device[] = {{LK_ACT_COMPUTE, LK_NO_ROUND, LK_NO_LAP},
                                {LK_ACT_VERDICT, LK_NO_ROUND, LK_NO_LAP}};
const lk_course lk_course_device = {.section = {ROWS(device, LK_ONCE)}};

static const lk_row devices[] = {
    {LK_ACT_COMPUTE, LK_NO_ROUND, LK_NO_LAP}, {LK_ACT_VERDICT, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_REPORT, LK_NO_ROUND, LK_NO_LAP},    {LK_ACT_GIVE, LK_ROUND_STEP, LK_NO_LAP},
    {LK_ACT_AWAIT, LK_ROUND_STEP, LK_NO_LAP},
};
const lk_course lk_course_devices = {.section = {ROWS(devices, LK_ONCE)}};

static const lk_row evaluates[] = {
    {LK_ACT_EVALUATE, LK_NO_ROUND, LK_NO_LAP}, {LK_ACT_MEET, LK_NO_ROUND, LK_NO_LAP},
    {LK_ACT_REPORT, LK_NO_ROUND, LK_NO_LAP},     {LK_ACT_GIVE, LK_ROUND_REPORTS, LK_NO_LAP},
    {LK_ACT_AWAIT, LK_ROUND_REPORTS, LK_NO_LAP},
};
const lk_course lk_course_evaluates = {.section = {ROWS(evaluates, LK_ONCE)}};
const lk_course lk_course_evaluate = {
    .section = {{.rows = evaluates, .count = 1, .repeat = LK_ONCE}}};

// --- a step ------------------------------------------------------------------------------------

static void begin(lk_driver *d, uint32_t program, uint64_t step) {
    lk_assert(program < d->programs);
    d->group = &d->groups[program];
    d->exchange = d->exchanges ? &d->exchanges[program] : NULL;
    d->step = step;
    d->buckets = d->exchange ? d->exchange->buckets.count : 1;
    d->here = d->lost_after = 0;
    d->when = lk_program_norm(d->group->program) ? LK_NORMED : LK_PLAIN;
}

void lk_driver_start(lk_driver *d, uint32_t program, uint64_t step) {
    lk_assert(d->verdict != LK_VERDICT_REPLAY || step == d->step);
    begin(d, program, step);
    d->course = d->transport->step;
    d->test = NULL;
    d->verdict = LK_VERDICT_APPLY;
}

void lk_driver_start_evaluation(lk_driver *d, uint32_t program, uint64_t steps_done,
                                const lk_source *test, uint64_t count) {
    lk_assert(d->verdict != LK_VERDICT_REPLAY);
    begin(d, program, steps_done);
    d->course = d->transport->evaluation;
    d->test = test;
    d->test_count = count;
    d->verdict = LK_VERDICT_APPLY;
}

lk_step_result lk_driver_finish(lk_driver *d) {
    lk_step_result result = d->lanes->finish(d);
    result.verdict = d->verdict;
    return result;
}

// --- a member ----------------------------------------------------------------------------------

void lk_member_start(lk_member *m, lk_driver *d, uint32_t replica) {
    m->driver = d;
    m->replica = replica;
    m->section = m->row = m->bucket = 0;
    m->meetings = m->joined = m->given = 0;
    m->over = false;
    m->verdict = LK_VERDICT_APPLY;
    m->bad_param = LK_NONE;
}

static void next_row(lk_member *m) {
    const lk_section *section = &m->driver->course->section[m->section];
    if (++m->row < section->count) return;
    m->row = 0;
    if (section->repeat != LK_ONCE && ++m->bucket < m->driver->buckets) return;
    do {
        m->section++;
        section++;
        m->over = m->section == LK_SECTIONS_MAX || section->count == 0;
    } while (!m->over && section->when != LK_ALWAYS && section->when != m->driver->when);
    m->bucket = !m->over && section->repeat == LK_BUCKETS_LEFT ? m->joined : 0;
}

// After the same meeting every member ends, whoever was quick and whoever slow: the first may have
// lost somebody again, after the next meeting, before a slow one looks here.
static lk_wait meet_all(lk_member *m) {
    const lk_driver *d = m->driver;
    if (d->transport->meet(m) == LK_WAIT_ON) return LK_WAIT_ON;
    m->meetings++;
    m->over = __atomic_load_n(&d->lost_after, __ATOMIC_RELAXED) == m->meetings;
    return LK_WAIT_OVER;
}

static lk_wait await_round(lk_member *m, const lk_row *row) {
    lk_driver *d = m->driver;
    const lk_wait wait = d->transport->await(d, (lk_round)row->round, m->bucket);
    if (wait == LK_WAIT_LOST) __atomic_store_n(&d->lost_after, m->meetings + 1, __ATOMIC_RELAXED);
    return wait;
}

// Every replica reads the same flags, after the meeting that made them known, and so finds the
// same.
static void judge_step(lk_member *m, bool (*find)(const lk_member *m, lk_flags *out)) {
    lk_driver *d = m->driver;
    lk_flags flags;
    if (!d->decide || m->verdict != LK_VERDICT_APPLY) return;
    if (!find(m, &flags)) {
        lk_member_end(m);
        return;
    }
    m->bad_param = flags.bad_param;
    m->verdict = d->decide(d->decide_context, d->step, &flags);
    lk_assert((m->verdict == LK_VERDICT_APPLY) == !lk_is_flagged(&flags));
    if (m->replica == 0) d->verdict = m->verdict;
}

static void look_for_boxes(lk_member *m) {
    lk_driver *d = m->driver;
    while (d->here < m->bucket && d->transport->look(d, LK_ROUND_BOXES, d->here)) d->here++;
}

// The boxes of a bucket, and the sums of those buckets whose boxes have come meanwhile.
static void share_and_join(lk_member *m) {
    const lk_driver *d = m->driver;
    d->lanes->share(m);
    for (; m->joined < d->here; m->joined++) d->lanes->join(m, m->joined);
}

static void join_one(lk_member *m) {
    m->driver->lanes->join(m, m->bucket);
    m->joined = m->bucket + 1;
}

static void give_joined(lk_member *m) {
    lk_driver *d = m->driver;
    for (; m->given < m->joined; m->given++) d->transport->give(d, LK_ROUND_SUMS, m->given);
}

// What the first replica does for all. LK_WAIT_ON: not yet.
static lk_wait first_alone(lk_member *m, const lk_row *row) {
    lk_driver *d = m->driver;
    switch ((lk_act)row->act) {
    case LK_ACT_AWAIT: return await_round(m, row);
    case LK_ACT_LOOK: look_for_boxes(m); break;
    case LK_ACT_REPORT:
        if (m->bucket + 1 == d->buckets || d->test) d->lanes->report(d);
        break;
    case LK_ACT_COMPLETE: d->lanes->complete(d); break;
    case LK_ACT_GIVE: d->transport->give(d, (lk_round)row->round, m->bucket); break;
    default: give_joined(m); break;
    }
    return LK_WAIT_OVER;
}

static lk_wait do_row(lk_member *m, const lk_row *row) {
    const lk_lanes *lanes = m->driver->lanes;
    switch ((lk_act)row->act) {
    case LK_ACT_COMPUTE: lanes->compute(m); break;
    case LK_ACT_SHARE: share_and_join(m); break;
    case LK_ACT_JOIN: join_one(m); break;
    case LK_ACT_VERDICT: judge_step(m, lanes->flags); break;
    case LK_ACT_REDUCE: lanes->reduce(m); break;
    case LK_ACT_SQUARE: lanes->square(m); break;
    case LK_ACT_JUDGE: judge_step(m, lanes->norm_flags); break;
    case LK_ACT_APPLY: lanes->apply(m); break;
    case LK_ACT_EVALUATE: lanes->evaluate(m); break;
    case LK_ACT_MEET: return meet_all(m);
    default: return m->replica == 0 ? first_alone(m, row) : LK_WAIT_OVER;
    }
    return LK_WAIT_OVER;
}

lk_going lk_member_next(lk_member *m) {
    const lk_driver *d = m->driver;
    if (m->over) return LK_OVER;
    const lk_row *row = &d->course->section[m->section].rows[m->row];
    if (do_row(m, row) == LK_WAIT_ON) return LK_WAITS;
    // With the last bucket nothing is left to be hidden under.
    const bool late = row->lap == LK_LAP_EARLY && m->bucket + 1 == d->buckets;
    lk_member_lap(m, late ? LK_LAP_MOVING : (lk_lap)row->lap,
                  row->act == LK_ACT_AWAIT ? (lk_round)row->round : LK_NO_ROUND);
    if (!m->over) next_row(m);
    return m->over ? LK_OVER : LK_GOES_ON;
}

// --- replicas that take turns ------------------------------------------------------------------

static lk_wait meet_at_once(lk_member *m) {
    (void)m;
    return LK_WAIT_OVER;
}

const lk_transport lk_in_turn = {
    .step = &lk_course_alone, .evaluation = &lk_course_evaluate, .meet = meet_at_once};

// Of rows that every replica can do one after the other: nobody computes meanwhile, and what a
// member keeps for itself from row to row is the same for all.
void lk_driver_run_in_turn(lk_driver *d) {
    lk_member m;
    lk_assert(d->course == &lk_course_alone || d->course == &lk_course_evaluate);
    lk_member_start(&m, d, 0);
    do {
        const lk_row *row = &d->course->section[m.section].rows[m.row];
        for (m.replica = d->group->replicas - 1; m.replica > 0; m.replica--) (void)do_row(&m, row);
    } while (lk_member_next(&m) == LK_GOES_ON);
    d->verdict = m.verdict;  // that the last replica has found, for all
}
