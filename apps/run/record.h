// record.h - what a run leaves for whoever asks later: which data it was of and where it was
// computed (record.json), and which keys of two configurations differ. Host only, start-up only.
#ifndef LOCKSTEP_APPS_RUN_RECORD_H
#define LOCKSTEP_APPS_RUN_RECORD_H

#include <jansson.h>

#include "apps/run/run.h"

enum { LK_RECORD_FORMAT = 1 };
#define LK_RECORD_NAME "record.json"

// Writes <run>/record.json, when a started run enters its directory. It is the leader's.
lk_status lk_record_write(const lk_run *run, const lk_run_dir *dir, lk_error *error);

// Which keys that decide bits differ between two configurations, as "KEY (1 there, 2 here), ..."
// and how many more. Returns how many differ; `out` is "" where none does.
uint32_t lk_config_differences(json_t *there, json_t *here, char *out, size_t bytes);

#endif
