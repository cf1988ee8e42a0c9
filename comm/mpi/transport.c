// transport.c - turns of mpi.h, as a driver asks for them. In every build: without MPI there is
// nobody to exchange with.
#include "comm/mpi/transport.h"

static void give(lk_driver *d, lk_turn turn, uint32_t part) {
    lk_mpi_give(d->exchange, turn, part, d->step);
}

static bool look(lk_driver *d, lk_turn turn, uint32_t part) {
    return lk_mpi_look(d->exchange, turn, part);
}

static lk_wait await(lk_driver *d, lk_turn turn, uint32_t part) {
    const bool come = lk_mpi_await(d->exchange, turn, part, d->lost) == LK_OK;
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

const lk_transport lk_notes = {.step = &lk_course_devices,
                               .evaluation = &lk_course_evaluates,
                               .meet = lk_threads_meet,
                               .give = give,
                               .look = look,
                               .await = await};
