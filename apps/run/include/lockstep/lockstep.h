// lockstep.h - Lockstep as a library: a fixed-memory, deterministic trainer, for C and C++.
//
// Intended use:
//
//     lockstep_error error = {LOCKSTEP_OK, ""};
//     lockstep_config *config = lockstep_config_new("mlp");      // or _load, _parse
//     lockstep_config_input(config, 1, 4, 1, 3);                 // the model: 4 bytes, 3 classes
//     lockstep_config_layer(config, "flatten");
//     lockstep_config_layer(config, "dense");
//     lockstep_layer_integer(config, "units", 3);
//     lockstep_config_text(config, "optimizer.type", "sgd");     // the objective
//     lockstep_config_number(config, "optimizer.learning_rate", 0.1);
//     lockstep_config_integer(config, "global_batch", 30);
//     lockstep_config_examples(config, LOCKSTEP_TRAIN, &examples);   // or a data set by name
//     lockstep_run *run = lockstep_open(config, NULL, &error);   // NULL: error says why
//     lockstep_config_free(config);
//     while (lockstep_step(run, &result, &error) == LOCKSTEP_OK && result.step < 100) continue;
//     lockstep_predict(run, inputs, count, outputs, &error);
//     lockstep_save(run, "weights", &error);
//     lockstep_close(run);
//
// The same configuration gives the same bits as `lockstep train`, on any machine and with any
// number of replicas. The keys of a configuration are those of its JSON document: `lockstep help
// keys`, apps/README.md. Memory is planned: lockstep_plan tells its bytes. Once a run has started,
// lockstep_step, _evaluate, _predict, _save and the hashes allocate nothing; lockstep_load takes
// heap for a moment, to read a checkpoint's header.
//
// Errors. Every function that can fail returns a status and fills `error`, which may be NULL, with
// one line that says what, where, what was wanted and what to do. Nothing that a caller hands over
// ends the process. Only a defect of Lockstep itself does, rather than train wrong. After an error
// of lockstep_step the run is over: every later call returns that error, and lockstep_close is
// left; likewise where planning, starting (by whatever call needs it first) or lockstep_train
// fails, and where lockstep_load has begun to change the run. After any other error it goes on.
//
// Threads. A handle belongs to one thread at a time; any one, with 256 KiB of stack. Several runs
// may be open at once and may be used by several threads, each its own. Exceptions: runs with
// kernels "cuda" and those inside of lockstep_train want to be the only ones of the process.
// lockstep_stop may be called by any thread and by a signal's handler; lockstep_version and
// lockstep_status_text by anybody. The replicas are threads of the library's own, with all signals
// blocked but the fatal ones. No handler of signals is installed, nothing is printed, neither
// standard stream is written. A fork of the process has no use of its runs.
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// --- status --------------------------------------------------------------------------------------

typedef enum lockstep_status {
    LOCKSTEP_OK = 0,
    LOCKSTEP_BAD_USAGE = 64,     // the call is wrong here
    LOCKSTEP_BAD_DATA = 65,      // a data file, a checkpoint or examples are damaged or foreign
    LOCKSTEP_NO_INPUT = 66,      // an input file is missing or unreadable
    LOCKSTEP_UNAVAILABLE = 69,   // memory, a device or a CPU feature is not there
    LOCKSTEP_INTERNAL = 70,      // a defect of Lockstep
    LOCKSTEP_IO_ERROR = 74,      // reading or writing failed
    LOCKSTEP_RETRY = 75,         // another process was at it: try again
    LOCKSTEP_BAD_CONFIG = 78,    // the configuration is wrong
    LOCKSTEP_NOT_FINITE = 80,    // a number became infinite or NaN: the run diverged
    LOCKSTEP_STOPPED = 143,      // lockstep_train: by lockstep_stop, after saving
} lockstep_status;

enum { LOCKSTEP_ERROR_BYTES = 640, LOCKSTEP_HASH_BYTES = 65 };

typedef struct lockstep_error {
    lockstep_status status;
    char text[LOCKSTEP_ERROR_BYTES];  // one line without a newline; "" after LOCKSTEP_OK
} lockstep_error;

// What a status means, in some words. And the version, "0.1.0".
const char *lockstep_status_text(lockstep_status status);
const char *lockstep_version(void);

// --- what to train -------------------------------------------------------------------------------

// A configuration document. A mistake in building it is remembered, the first one, and told by
// lockstep_open; so are keys and values that do not fit.
typedef struct lockstep_config lockstep_config;

// An empty one; `name` names default run directories. NULL: no memory.
lockstep_config *lockstep_config_new(const char *name);
// A JSON file, or the name of a ready configuration, which is looked for in $LOCKSTEP_CONFIGS and
// beside the calling program (configs/, ../share/lockstep/configs/); a JSON text. NULL: error says
// why.
lockstep_config *lockstep_config_load(const char *file_or_name, lockstep_error *error);
lockstep_config *lockstep_config_parse(const char *text, size_t bytes, lockstep_error *error);
void lockstep_config_free(lockstep_config *config);

// A value by its path: "global_batch", "optimizer.learning_rate". Objects on the way are made.
void lockstep_config_integer(lockstep_config *config, const char *path, int64_t value);
void lockstep_config_number(lockstep_config *config, const char *path, double value);
void lockstep_config_text(lockstep_config *config, const char *path, const char *value);
void lockstep_config_flag(lockstep_config *config, const char *path, bool value);
// Any JSON value, as text: ("data.train", "{\"made_up\": {\"count\": 512}}").
void lockstep_config_json(lockstep_config *config, const char *path, const char *value);

// The model. Inputs are (height, width, channels), bytes, or floats where "model.input_type" is
// "f32"; the last layer has `classes` units. 0: the loss takes no labels.
void lockstep_config_input(lockstep_config *config, uint32_t height, uint32_t width,
                           uint32_t channels, uint32_t classes);
// One more layer of this type; the keys that follow are its.
void lockstep_config_layer(lockstep_config *config, const char *type);
void lockstep_layer_integer(lockstep_config *config, const char *key, int64_t value);
void lockstep_layer_number(lockstep_config *config, const char *key, double value);
void lockstep_layer_text(lockstep_config *config, const char *key, const char *value);
void lockstep_layer_flag(lockstep_config *config, const char *key, bool value);
void lockstep_layer_json(lockstep_config *config, const char *key, const char *value);

// Examples in the caller's memory, which stays his and stays as it is until lockstep_close. They
// have the bits of the same bytes in IDX files. Training examples take the place of all data of the
// document, test examples that of its test set.
typedef enum lockstep_values { LOCKSTEP_U8, LOCKSTEP_F32 } lockstep_values;

typedef struct lockstep_examples {
    const void *inputs;     // (count, height, width, channels)
    const uint8_t *labels;  // (count), each below the model's classes; or wide_labels
    uint64_t count;
    uint32_t height, width, channels;
    lockstep_values values;  // what the inputs are: bytes, or finite floats
    // (count), instead of labels: of models with more than 256 classes. They are copied.
    const uint16_t *wide_labels;
} lockstep_examples;

typedef enum lockstep_set { LOCKSTEP_TRAIN, LOCKSTEP_TEST } lockstep_set;

void lockstep_config_examples(lockstep_config *config, lockstep_set set,
                              const lockstep_examples *examples);

// --- a run ---------------------------------------------------------------------------------------

typedef struct lockstep_run lockstep_run;

// How it is computed; none of it changes a bit. All zero: as the document says.
typedef struct lockstep_options {
    uint32_t replicas;    // threads; 0: one for each processor, as far as there is work
    const char *kernels;  // "avx2", "cuda", ...; NULL: the fastest here
    uint64_t max_memory;  // bytes that the plan may take at most; 0: what there is
    // No training: weights are loaded, any whose tensors fit, and lockstep_predict is what is done
    // with them; or lockstep_evaluate, of test examples handed over. What the document says of data
    // is not looked at: it need not be on this machine.
    bool prediction_only;
} lockstep_options;

// Reads and checks a configuration, which may be freed then. `options` may be NULL. NULL: error
// says why. Takes no memory but its own tables.
lockstep_run *lockstep_open(const lockstep_config *config, const lockstep_options *options,
                            lockstep_error *error);
// Ends it and gives everything back; run may be NULL.
void lockstep_close(lockstep_run *run);

typedef struct lockstep_memory {
    uint64_t bytes;       // all that is planned for this process, in one block
    uint64_t parameters;  // numbers that are trained
    uint64_t parameter_bytes, replica_bytes;  // once; for each replica
    uint32_t replicas;
    uint32_t global_batch, grain;  // examples
    uint32_t output_count;         // numbers of one example's prediction
    uint64_t input_bytes;          // of one example
} lockstep_memory;

// What it will take, before it takes it.
lockstep_status lockstep_plan(lockstep_run *run, lockstep_memory *plan, lockstep_error *error);
// The same as JSON, as `lockstep plan --json` prints it: at most `bytes` with the terminating zero.
// Returns the length of the whole; 0: error says why.
size_t lockstep_plan_json(lockstep_run *run, char *out, size_t bytes, lockstep_error *error);

// Takes the memory, opens the data, starts the replicas. The functions below do it where it was not
// done.
lockstep_status lockstep_start(lockstep_run *run, lockstep_error *error);

// A number that the model's loss reports: "loss", "accuracy" as a share of the examples,
// "mean_absolute_error". The name stays as long as the program runs.
typedef struct lockstep_metric {
    const char *name;
    double value;
} lockstep_metric;
enum { LOCKSTEP_METRICS_MAX = 7 };

// How a step or an evaluation went.
typedef struct lockstep_result {
    uint64_t step;      // steps finished
    uint32_t examples;  // that it saw
    uint32_t correct;   // .. classified as their labels say; 0 where the loss takes no labels
    float loss;         // mean over them
    uint32_t metric_count;
    lockstep_metric metrics[LOCKSTEP_METRICS_MAX];  // by name, the loss first
} lockstep_result;

// The next step of training. Of a run's length nothing is known here: how many, the caller decides.
// `result` may be NULL.
lockstep_status lockstep_step(lockstep_run *run, lockstep_result *result, lockstep_error *error);

// The whole test set, in order. LOCKSTEP_BAD_CONFIG: there is none.
lockstep_status lockstep_evaluate(lockstep_run *run, lockstep_result *result,
                                  lockstep_error *error);

// The model's outputs (logits) for examples of the caller's. Of a transducer: the labels that it
// says, as numbers, zeros behind them; each example has all its frames.
//
// inputs   (count, height, width, channels), bytes or floats as the model's input
// outputs  (count, output_count), written entirely after LOCKSTEP_OK
lockstep_status lockstep_predict(lockstep_run *run, const void *inputs, uint64_t count,
                                 float *outputs, lockstep_error *error);

// Writes DIRECTORY/step-NNNNNNNNNN.safetensors, the checkpoint that `lockstep train` would write,
// whole or not at all; makes the directory where its parent is.
lockstep_status lockstep_save(lockstep_run *run, const char *directory, lockstep_error *error);

// Goes on from a checkpoint: a file, or the newest whole one of a directory; with prediction_only
// an export of layout keras, too. LOCKSTEP_BAD_CONFIG: it is of another run. Refused before the
// first byte of the run is changed, or, where the values turn out damaged, the run is over.
lockstep_status lockstep_load(lockstep_run *run, const char *path, lockstep_error *error);

// Steps finished; by the configuration, all of them (known once it has started).
uint64_t lockstep_steps_done(const lockstep_run *run);
uint64_t lockstep_steps_configured(lockstep_run *run, lockstep_error *error);

// SHA-256 in hex: of the weights (what `lockstep train` prints as digest); of all that the next
// step needs (state_hash); of all that decides the bits (run_identity).
lockstep_status lockstep_digest(lockstep_run *run, char hex[LOCKSTEP_HASH_BYTES],
                                lockstep_error *error);
lockstep_status lockstep_state_hash(lockstep_run *run, char hex[LOCKSTEP_HASH_BYTES],
                                    lockstep_error *error);
lockstep_status lockstep_run_identity(lockstep_run *run, char hex[LOCKSTEP_HASH_BYTES],
                                      lockstep_error *error);

// --- a whole training ----------------------------------------------------------------------------

typedef enum lockstep_event_kind {
    LOCKSTEP_EVENT_LINE,        // `text`
    LOCKSTEP_EVENT_WARNING,     // `text`: something is not as it should be, the run goes on
    LOCKSTEP_EVENT_STEP,        // a step that is shown (log_every_steps): `result`
    LOCKSTEP_EVENT_EVALUATION,  // `result`
    LOCKSTEP_EVENT_CHECKPOINT,  // it is saved; `text` is the digest
    LOCKSTEP_EVENT_END,         // `result` of the test set, or no examples
} lockstep_event_kind;

typedef struct lockstep_event {
    lockstep_event_kind kind;
    uint64_t step, steps;  // finished; of the whole run
    lockstep_result result;
    const char *text;  // valid during the call; NULL: none
} lockstep_event;

typedef enum lockstep_entry {
    LOCKSTEP_ENTRY_CONFIGURED,  // as the document's "on_start" says
    LOCKSTEP_ENTRY_NEW,         // a run that is there is refused
    LOCKSTEP_ENTRY_RESUME,      // goes on with the run that is there
    LOCKSTEP_ENTRY_EITHER,      // .. or starts where nothing is
    LOCKSTEP_ENTRY_FRESH,       // removes the run that is there
} lockstep_entry;

typedef struct lockstep_training {
    const char *run_dir;  // NULL: runs/NAME
    lockstep_entry entry;
    // Is told what happens, on the calling thread; NULL: nothing is. It must not call a function of
    // this run but lockstep_stop.
    void (*event)(void *context, const lockstep_event *event);
    void *context;
} lockstep_training;

// What `lockstep train` does, alone: logs, checkpoints, evaluations, hot state, resuming, to the
// end. The run must be new: opened, planned perhaps, not started. Afterwards it can still be
// evaluated, asked and closed. `training` may be NULL. LOCKSTEP_STOPPED: by lockstep_stop; go on
// with LOCKSTEP_ENTRY_RESUME.
lockstep_status lockstep_train(lockstep_run *run, const lockstep_training *training,
                               lockstep_error *error);

// lockstep_train saves and returns after the step at hand, or in the evaluation behind it, which is
// made when the run is resumed. On GPUs, and after the last step, that is ended first.
void lockstep_stop(lockstep_run *run);

#ifdef __cplusplus
}
#endif
#endif
