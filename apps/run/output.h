// output.h - may a file of this name be written? Asked of each that a command or a run is told to
// write outside of its run directory. Host only, start-up only.
//
// `option` is what named it, such as "--output". LK_BAD_USAGE says what it is and what was wanted.
#ifndef LOCKSTEP_APPS_RUN_OUTPUT_H
#define LOCKSTEP_APPS_RUN_OUTPUT_H

#include "apps/run/config.h"

// It takes the place of what has this name, of a plain file, not of a device or pipe, and not of a
// file that a run has written: nothing in the folders that a run has for itself, and in its
// directory no name of its own but report.html. `run_dir`, where it is not NULL, is a directory
// that is about to become a run's.
lk_status lk_output_check(const char *option, const char *path, const char *run_dir,
                          lk_error *error);

// .. of a run alone: it may be a device or a pipe.
lk_status lk_output_of_no_run(const char *option, const char *path, const char *run_dir,
                              lk_error *error);

// It is not the file that is read, by whatever name; NULL: none is.
lk_status lk_output_apart(const char *option, const char *path, const char *input, lk_error *error);
// .. and none of those that the configuration says to read: itself, data, weights to begin with.
lk_status lk_output_of_no_input(const char *option, const char *path, const lk_config *config,
                                lk_error *error);

#endif
