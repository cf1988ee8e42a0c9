// transport.h - the transports between workers (comm/step/driver.h): the window of a host, and
// messages; both by the rounds of mpi.h. Host only.
#ifndef LOCKSTEP_COMM_MPI_TRANSPORT_H
#define LOCKSTEP_COMM_MPI_TRANSPORT_H

#include "comm/mpi/mpi.h"
#include "comm/threads/threads.h"

// d->transport_context is the lk_team of this worker's replicas.
extern const lk_transport lk_window;    // all that replicas hold lies in the window of a host
extern const lk_transport lk_messages;  // boxes and sums travel, in the window or by messages
extern const lk_transport lk_reports_alone;     // reports alone: the step's bytes go another way

#endif
