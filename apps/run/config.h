// config.h - a run's configuration: what the JSON document and the command line say, checked.
//
// Host only, start-up only. The keys are a table (config_keys.h); what they mean for the bits
// is ops/graph/model.h's. apps/README.md ("Configuration") shows them.
#ifndef LOCKSTEP_APPS_RUN_CONFIG_H
#define LOCKSTEP_APPS_RUN_CONFIG_H

#include "io/dataset.h"
#include "io/json.h"
#include "ops/graph/program.h"

// layout.gpus 0 and --gpus all.
#define LK_CONFIG_ALL_GPUS UINT32_MAX
// Where nobody says which GPU is the first.
#define LK_CONFIG_ANY_GPU UINT32_MAX
// checkpoint.hot_steps: as the plan reckons.
#define LK_CONFIG_HOT_AUTO UINT64_MAX

enum { LK_CONFIG_PATH_BYTES = 1024, LK_CONFIG_DUMP_BYTES = 1 << 20 };

// Where a data set comes from, with room for the names.
typedef struct lk_config_data {
    bool given;
    lk_dataset_source source;
    uint64_t strips;  // data.strips: how many, 0: as many as images
    char images[LK_CONFIG_PATH_BYTES], labels[LK_CONFIG_PATH_BYTES], manifest[LK_CONFIG_PATH_BYTES];
} lk_config_data;

// Exchange of messages under the computation: AUTO, between hosts.
typedef enum lk_overlap { LK_OVERLAP_AUTO, LK_OVERLAP_ON, LK_OVERLAP_OFF } lk_overlap;

// What a run may find in its directory: nothing; itself; either.
typedef enum lk_on_start { LK_ON_START_NEW, LK_ON_START_RESUME, LK_ON_START_EITHER } lk_on_start;

// As the document says it, where the program goes by what becomes of it.
typedef struct lk_config_said {
    char set[256], directory[LK_CONFIG_PATH_BYTES];
    uint32_t arithmetic, fast_precision, order, on_error;  // numbers of words
} lk_config_said;

typedef struct lk_config {
    lk_json document;
    lk_config_said said;
    char name[64];
    lk_run_spec spec;  // example_count and data_hash are filled when the data is open
    lk_layer *layers;  // spec.model.layers: start-up heap, freed by lk_config_close
    lk_graph graph;    // spec.model.graph, where the document names networks; its tables likewise
    lk_config_data train, test;
    bool evaluates;      // nothing is trained: `train` is one example of zeros
    bool unlabelled;     // .. and `test` has no labels; each example is an input of the model
    uint8_t *stand_in;   // ... which lies here: start-up heap, freed by lk_config_close
    bool sharded;  // data.order
    char cache[LK_CONFIG_PATH_BYTES];
    uint64_t steps, epochs, cycles;  // the run's length, 0: not said; of all said, what ends first
    uint32_t replicas;       // of this worker; 0: not said
    uint64_t replica_batch, accumulate;  // factors of global_batch; replica_batch 0: not said
    uint32_t workers;                    // that all of `replicas` belong to; 0: not asked
    uint64_t microbatch_examples;  // 0: chosen
    uint32_t joint_tile;           // 0: chosen
    bool fuse, overlay, guards;
    bool resident;           // on a GPU: the data set lies there
    uint32_t persistent;     // .. its steps are one kernel: a lk_cuda_persistence
    bool dependent_launches;  // .. a kernel starts while the one before it ends
    uint32_t gpus, gpu;      // how many, LK_CONFIG_ALL_GPUS: all; the number of the first, or
                             // LK_CONFIG_ANY_GPU
    uint64_t bucket_floats;  // of a part of an exchange; 0: chosen
    lk_reduce_choice reduce;
    lk_overlap overlap;
    char kernels[32];
    uint64_t log_every_steps;
    uint64_t hash_every_steps;
    uint64_t evaluate_every_steps;      // 0: at the end only
    struct {
        char file[LK_CONFIG_PATH_BYTES];  // empty: every layer as its initializers make it
        char map[LK_CONFIG_PATH_BYTES], skip[LK_CONFIG_PATH_BYTES];
    } init;  // apps/run/init.h
    struct {
        bool scalars, histograms;
        uint32_t images;  // how many of a step's examples are shown
    } events;             // files for TensorBoard: any of them
    struct {
        uint64_t every_steps;  // 0: none
        uint32_t count;
    } samples;  // pictures of what a generator makes (apps/run/generate.h)
    struct {
        char file[LK_CONFIG_PATH_BYTES];  // empty: none
        uint64_t first_step;              // counted from 1, as the logs do
        uint32_t steps;
    } trace;
    uint64_t checkpoint_every_steps;    // 0: not by steps
    uint64_t checkpoint_every_seconds;  // 0: not by time
    uint64_t hot_steps;                 // 0: no hot state; LK_CONFIG_HOT_AUTO: reckoned
    uint32_t keep_max;
    bool stop_on_failed_save;  // checkpoint.on_error
    lk_on_start on_start;
    struct {
        char metric[32];    // empty: the run goes on to its end
        uint64_t patience;  // evaluations
        float min_delta;
    } early;                // early_stopping (apps/run/best.h)
    char judge[LK_CONFIG_PATH_BYTES];  // what scores generated images (apps/cli/judge.h), or empty
    char checkpoint_best[32];  // checkpoint.best: a metric, or empty
} lk_config;

// What the command line adds to a document.
typedef struct lk_config_options {
    const char *config;      // a file, or the name of a ready configuration
    const char *text;        // the document itself, then `config` is what errors call it; or NULL
    size_t text_bytes;
    const lk_dataset_held *train, *test;  // examples in memory, not the document's; or NULL
    bool unlabelled;         // of `test` nobody knows labels; each is an input of the model
    const char *const *set;  // --set key=value, in order
    uint32_t set_count;
    const char *data_directory;  // --data: a directory with the four IDX files, or NULL
    uint32_t replicas;           // --replicas, 0: not given
    // Of how many workers the factors of global_batch are to be; 0: where that does not matter.
    uint32_t workers;
    const uint32_t *worker_replicas;  // (workers) what their cluster says, 0: nothing; or NULL
    uint32_t own_replicas;            // .. of this process, 0: nothing
    uint64_t examples;           // --examples: data.train_examples, 0: not given
    bool verify_data;            // --verify-data
    bool no_data;                // no data set is looked for: it need not be on this machine
    bool counted;                // .. nor named: how many training examples there are is known
    bool evaluates;              // nothing is trained: no training set is looked for
    const char *kernels;         // --kernels, or NULL
    uint32_t gpus;               // --gpus, 0: not given
    uint32_t gpu;                // --gpu plus 1, 0: not given
} lk_config_options;

// The document alone: of a file, or of a ready configuration by its name.
lk_status lk_config_load(lk_json *document, const char *file, lk_error *error);
// Finds, reads and checks. LK_NO_INPUT, LK_BAD_USAGE, LK_BAD_CONFIG. Close it also after an error.
lk_status lk_config_open(lk_config *config, const lk_config_options *options, lk_error *error);
// Reads and checks the model of a configuration alone, and data.normalize; the data need not be on
// this machine.
lk_status lk_config_open_model(lk_config *config, const char *name, lk_error *error);
// Classes of a set's images, or 0: strips have a blank besides.
uint32_t lk_config_image_classes(const lk_config *config);
// Steps of the whole run.
uint64_t lk_config_steps(const lk_config *config);
// The same of a run that ends after `steps`, `epochs` or `cycles`, whichever is first; 0 is no end.
// UINT64_MAX: it has no end.
uint64_t lk_config_steps_of(const lk_config *config, uint64_t steps, uint64_t epochs,
                            uint64_t cycles);
// Is replica_batch x replicas (of all workers) x accumulate the global batch? LK_BAD_CONFIG.
lk_status lk_config_check_factors(const lk_config *config, uint64_t replicas, lk_error *error);
void lk_config_close(lk_config *config);

// The ready configuration of that name, from $LOCKSTEP_CONFIGS, beside the program (build tree) or
// where it is installed. False if there is none; `path` then holds the first place that was looked
// at.
bool lk_config_find_ready(const char *name, char *path, size_t bytes);

#endif
