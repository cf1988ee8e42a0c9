// save.c - what a checkpoint of a run records besides its tensors (save.h).
#include "apps/run/save.h"

#include <stdio.h>
#include <string.h>

void lk_saver_make(lk_saver *s, lk_run *run, const char *directory) {
    *s = (lk_saver){.run = run};
    lk_safetensors_tensor *tensors = (lk_safetensors_tensor *)(void *)run->checkpoint_tables;
    lk_run_tensors(run, tensors);
    const lk_run_spec *spec = &run->config.spec;
    snprintf(s->numbers[0], sizeof s->numbers[0], "%llu", (unsigned long long)spec->seed);
    snprintf(s->numbers[1], sizeof s->numbers[1], "%u", spec->global_batch);
    snprintf(s->numbers[2], sizeof s->numbers[2], "%u", spec->grain);
    snprintf(s->numbers[3], sizeof s->numbers[3], "%u", run->program.state_count);
    // A strict checkpoint is the same wherever it was computed, so the last four are not its.
    const size_t count = lk_run_pair_count(run);
    const lk_safetensors_pair pairs[LK_RUN_STATE_PAIRS] = {
        {"run_identity", run->identity_hex},
        {"digest", s->digest},
        {"state_hash", s->state},
        {"lockstep_version", LK_VERSION},
        {"name", run->config.name},
        {"seed", s->numbers[0]},
        {"global_batch", s->numbers[1]},
        {"grain", s->numbers[2]},
        {"arithmetic", "fast"},
        {"precision", lk_fast_precision_name(spec->model.fast_precision)},
        {"gpu", run->gpus.gpu[0].device.name},
        {"cublas", s->cublas}};
    memcpy(s->pairs, pairs, sizeof pairs);
    if (run->program.state_count) {
        s->pairs[count - 1] =
            (lk_safetensors_pair){LK_CHECKPOINT_KEY_STATES, s->numbers[3]};
    }
    lk_run_cublas(run, s->cublas, sizeof s->cublas);
    s->job = (lk_checkpoint_job){.directory = directory,
                                 .metadata = s->pairs,
                                 .metadata_count = count,
                                 .tensors = tensors,
                                 .tensor_count = lk_run_tensor_count(run),
                                 .keep_max = run->config.keep_max,
                                 .buffer = run->checkpoint_buffer,
                                 .buffer_bytes = run->checkpoint_bytes};
}

lk_status lk_saver_look(lk_saver *s, uint64_t steps_done, lk_error *error) {
    LK_CHECK(lk_run_fetch(s->run, error));
    lk_run_digest(s->run, s->digest);
    lk_run_state_hash(s->run, steps_done, s->state);
    s->job.step = steps_done;
    return LK_OK;
}
