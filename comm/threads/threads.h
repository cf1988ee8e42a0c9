// threads.h - the transport of one worker alone (comm/step/driver.h): its replicas are threads of a
// team, which share its memory. Host only.
#ifndef LOCKSTEP_COMM_THREADS_THREADS_H
#define LOCKSTEP_COMM_THREADS_THREADS_H

#include "comm/step/driver.h"
#include "comm/threads/team.h"

// d->transport_context is the lk_team.
extern const lk_transport lk_threads;

// For transports whose replicas are threads, too.
lk_wait lk_threads_meet(lk_member *m);

// From now on the team's members share the work of their group's divided ops.
void lk_threads_share_work(lk_group *group, lk_team *team);

// The step or evaluation that was started, by all members of the team.
void lk_threads_run(lk_driver *d, lk_team *team);

#endif
