// threads.c - replicas meet at a barrier of their team.
#include "comm/threads/threads.h"

lk_wait lk_threads_meet(lk_member *m) {
    lk_team_barrier(m->driver->transport_context);
    return LK_WAIT_OVER;
}

const lk_transport lk_threads = {
    .step = &lk_course_alone, .evaluation = &lk_course_evaluate, .meet = lk_threads_meet};

static void meet_in_a_step(void *team) { lk_team_barrier(team); }

void lk_threads_share_work(lk_group *group, lk_team *team) {
    lk_group_share_work(group, meet_in_a_step, team);
}

static void body(void *context, uint32_t member, lk_team *team) {
    lk_member m;
    (void)team;
    lk_member_start(&m, context, member);
    while (lk_member_next(&m) == LK_GOES_ON) {
    }
    lk_assert(m.over);
}

void lk_threads_run(lk_driver *d, lk_team *team) {
    d->transport_context = team;
    lk_team_run(team, body, d);
}
