// lockstep_train.c - a whole training through lockstep.h: train.h's, told to the caller's callback.
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "apps/run/lockstep_private.h"

typedef struct listener {
    lockstep_run *run;
    const lockstep_training *training;
} listener;

static void tell(const listener *l, const lockstep_event *event) {
    if (l->training->event) l->training->event(l->training->context, event);
}

static void on_line(void *context, const char *text) {
    tell(context, &(lockstep_event){.kind = LOCKSTEP_EVENT_LINE, .text = text});
}

static void on_warning(void *context, const char *text) {
    tell(context, &(lockstep_event){.kind = LOCKSTEP_EVENT_WARNING, .text = text});
}

static void on_event(void *context, const lk_train_event *e) {
    lockstep_event event = {.step = e->step, .steps = e->steps};
    switch (e->kind) {
    case LK_TRAIN_STEP: event.kind = LOCKSTEP_EVENT_STEP; break;
    case LK_TRAIN_EVALUATION: event.kind = LOCKSTEP_EVENT_EVALUATION; break;
    case LK_TRAIN_CHECKPOINT:
        event.kind = LOCKSTEP_EVENT_CHECKPOINT;
        event.text = e->digest;
        break;
    case LK_TRAIN_END: event.kind = LOCKSTEP_EVENT_END; break;
    default: return;
    }
    event.result.step = e->step;
    if (e->result) {
        lk_lockstep_result(lk_name_result(&e->run->program, e->result, 0).names, e->result,
                           &event.result);
    }
    tell(context, &event);
}

static uint32_t asked_to_stop(void *context) {
    const listener *l = context;
    return __atomic_load_n(&l->run->stop, __ATOMIC_RELAXED) ? LK_TERMINATED - 128u : 0;
}

static lk_status refuse(const lockstep_run *r, const lockstep_training *t, lk_error *error) {
    LK_CHECK(lk_lockstep_enter(r, error));
    if (r->prediction_only || r->started) {
        return lk_fail(error, LK_BAD_USAGE,
                       "lockstep_train: found a run that %s, wanted one that is newly opened",
                       r->started ? "has started" : "has no training data");
    }
    if ((unsigned)t->entry <= LOCKSTEP_ENTRY_FRESH) return LK_OK;
    return lk_fail(error, LK_BAD_USAGE, "lockstep_train: entry: found %d, wanted a lockstep_entry",
                   (int)t->entry);
}

static lk_status train(lockstep_run *r, const lockstep_training *training, lk_error *error) {
    listener l = {r, training};
    cpu_set_t before;
    LK_CHECK(refuse(r, training, error));
    r->trainer = malloc(sizeof *r->trainer);
    if (!r->trainer) return lk_fail(error, LK_UNAVAILABLE, "no memory at start-up");
    memset(r->trainer, 0, sizeof *r->trainer);
    const lk_train_options options = {.run_dir = training->run_dir,
                                      .max_memory = r->max_memory,
                                      .resume = training->entry == LOCKSTEP_ENTRY_RESUME,
                                      .fresh = training->entry == LOCKSTEP_ENTRY_FRESH,
                                      .resume_or_start = training->entry == LOCKSTEP_ENTRY_EITHER,
                                      .is_new = training->entry == LOCKSTEP_ENTRY_NEW,
                                      .calls = {.context = &l,
                                                .event = on_event,
                                                .stop = asked_to_stop,
                                                .say = {on_line, on_warning, &l}}};
    lk_trainer_make(r->trainer, &r->run, &options, true);
    const bool bound = sched_getaffinity(0, sizeof before, &before) == 0;
    r->planned = false;
    lk_status status = lk_train(r->trainer, &options, error);
    status = lk_train_close(r->trainer, status, error);
    if (bound) (void)sched_setaffinity(0, sizeof before, &before);
    r->done = r->trainer->done;
    r->started = status == LK_OK || lk_is_stop(status);
    if (!r->started) {
        r->broken = *error;
    } else {
        lk_saver_make(&r->saver, &r->run, r->directory);
    }
    if (lk_is_stop(status) && error->status == LK_OK) {
        return lk_fail(error, status, "stopped after step %llu, which is saved",
                       (unsigned long long)r->done);
    }
    return status;
}

lockstep_status lockstep_train(lockstep_run *r, const lockstep_training *training,
                               lockstep_error *error) {
    static const lockstep_training plain = {0};
    lk_error found = {.status = LK_OK};
    (void)train(r, training ? training : &plain, &found);
    return lk_lockstep_answer(&found, error);
}

void lockstep_stop(lockstep_run *r) {
    if (r) __atomic_store_n(&r->stop, 1, __ATOMIC_RELAXED);
}
