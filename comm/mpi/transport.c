// transport.c - rounds of mpi.h, as a driver asks for them. In every build: without MPI there is
// nobody to exchange with.
#include "comm/mpi/transport.h"

static void give(lk_driver *d, lk_round round, uint32_t bucket) {
    lk_mpi_give(d->exchange, round, bucket, d->step);
}

static bool look(lk_driver *d, lk_round round, uint32_t bucket) {
    return lk_mpi_look(d->exchange, round, bucket);
}

static lk_wait await(lk_driver *d, lk_round round, uint32_t bucket) {
    const bool come = lk_mpi_await(d->exchange, round, bucket, d->lost) == LK_OK;
    return come ? LK_WAIT_OVER : LK_WAIT_LOST;
}

const lk_transport lk_window = {.step = &lk_course_shared,
                                .evaluation = &lk_course_evaluates,
                                .meet = lk_threads_meet,
                                .give = give,
                                .look = look,
                                .await = await};

const lk_transport lk_messages = {.step = &lk_course_boxes,
                                  .evaluation = &lk_course_evaluates,
                                  .meet = lk_threads_meet,
                                  .give = give,
                                  .look = look,
                                  .await = await};

const lk_transport lk_reports_alone = {.step = &lk_course_devices,
                               .evaluation = &lk_course_evaluates,
                               .meet = lk_threads_meet,
                               .give = give,
                               .look = look,
                               .await = await};
