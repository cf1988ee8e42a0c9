// run_data.c - the data of a run while it goes on: are its bytes still those it began with? Between
// two steps only. Knows no step's result and writes nothing.
#include "apps/run/run.h"
#include "comm/threads/clock.h"

// The scrub reads one chunk of 64 KiB, and then waits 500 times as long as that took, and 2 ms at
// least: a five-hundredth of the run's time, however slow the disk is. 47 MB take 2 s.
static const double wait_factor = 500, wait_seconds = 2e-3;

// Of several workers each looks at its own files, so it is said whose they are.
static lk_status of_worker(const lk_run *run, lk_status status, lk_error *error) {
    char why[LK_ERROR_TEXT_BYTES];
    if (status == LK_OK || !run->workers.joined) return status;
    lk_format(why, sizeof why, "%s", error->text);
    error->status = LK_OK;
    return lk_fail(error, status, "rank %u: %s", run->workers.rank, why);
}

lk_status lk_run_check_data(lk_run *run, lk_error *error) {
    lk_status status = lk_dataset_unchanged(&run->train, error);
    if (status == LK_OK) status = lk_dataset_unchanged(&run->test, error);
    return of_worker(run, status, error);
}

lk_status lk_run_scrub(lk_run *run, lk_error *error) {
    const double begin = lk_seconds();
    if (begin < run->next_scrub) return LK_OK;
    lk_dataset *set = run->scrubs_test && run->test.count ? &run->test : &run->train;
    run->scrubs_test = !run->scrubs_test;
    const lk_status status = lk_dataset_scrub(set, error);
    const double end = lk_seconds(), wait = wait_factor * (end - begin);
    run->next_scrub = end + LK_MAX(wait, wait_seconds);
    return of_worker(run, status, error);
}

lk_status lk_run_blame_data(lk_run *run, lk_status status, lk_error *error) {
    const uint32_t classes = lk_config_image_classes(&run->config);
    lk_error found = {.status = LK_OK};
    if (status != LK_NOT_FINITE) return status;
    if (lk_run_check_data(run, &found) == LK_OK && classes &&
        lk_dataset_check_labels(&run->train, classes, &found) == LK_OK) {
        (void)lk_dataset_check_labels(&run->test, classes, &found);
    }
    if (found.status == LK_OK) return status;
    *error = found;
    return error->status;
}
