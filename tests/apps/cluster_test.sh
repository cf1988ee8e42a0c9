# cluster_test.sh - lockstep cluster: what it prints, and what it refuses, as a user meets it.
. "$(dirname "$0")/expect.sh"

unset TF_CONFIG RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID PMI_RANK PMI_SIZE \
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE SLURM_STEP_ID SLURM_PROCID SLURM_NTASKS \
    SLURM_STEP_NUM_TASKS MPI_LOCALRANKID LOCKSTEP_KEY_FILE

# expect_line PART..: the last output has exactly this line, which may come in parts.
expect_line() {
    line=$(printf %s "$@")
    require "a line: $line" grep -q -x -F -e "$line" out
}

# describe CLUSTER TYPE INDEX [MORE]: sets TF_CONFIG.
describe() {
    TF_CONFIG="{\"cluster\":$1,\"task\":{\"type\":\"$2\",\"index\":$3}${4-}}"
    export TF_CONFIG
}

# Alone.
expect 0 '^usage: lockstep cluster' cluster --help
expect 0 '^cluster from nothing: one process on its own$' cluster
expect_line 'listens for MPI: nobody'
expect_line 'rank 0 of 1: worker:0, which leads'

# The tutorial's TF_CONFIG, and one with a chief and an evaluator.
tutorial='{"worker":["localhost:12345","localhost:23456"]}'
describe "$tutorial" worker 1
expect 0 '^cluster from TF_CONFIG$' cluster
expect_line '  TF_CONFIG is taken'
expect_line '  torchrun  says nothing'
expect_line 'rank 1 of 2: worker:1'
expect_line 'leader worker:0, rank 0'
expect_line '  rank 0    worker:0    localhost:12345        replicas not said'
expect_line '* rank 1    worker:1    localhost:23456        replicas not said'
expect_line 'listens to meet: rank 0 at localhost:12345 until all have come, for everybody: ' \
    'there is no LOCKSTEP_KEY_FILE'
expect_line 'listens for MPI: nobody: all workers are on this machine and share memory'
hash=$(grep '^cluster_sha256 ' out)
describe "$tutorial" worker '"0"'
expect 0 '^rank 0 of 2: worker:0, which leads$' cluster
require "workers of one cluster agree" [ "$hash" = "$(grep '^cluster_sha256 ' out)" ]
describe '{"worker":["localhost:12345","localhost:23457"]}' worker 0
expect 0 '' cluster
require "and those of another do not" [ "$hash" != "$(grep '^cluster_sha256 ' out)" ]
describe '{"chief":["a:1"],"worker":["b:1"]}' evaluator 0 ',"environment":"cloud"'
expect 0 '^rank none of 2: evaluator:0, beside the workers$' cluster
expect_line '  not used: environment'
expect_line 'leader chief:0, rank 0'
expect_line "listens for MPI: every worker at ports of the kernel's choice, without a key and " \
    'not encrypted, on the interface in --private-network, or with --insecure on all; nobody ' \
    'where the workers turn out to be on one machine'
LOCKSTEP_KEY_FILE=a.key
export LOCKSTEP_KEY_FILE
expect 0 '^listens to meet: rank 0 at a:1 until all have come, for those who have the key$' cluster
unset LOCKSTEP_KEY_FILE

for option in examples gpus gpu; do
    expect 64 "^lockstep: cluster: .*--$option.* go with a CONFIG" cluster --$option 2
done

# With a configuration: replicas, grains and shards of each, unequal ones too.
cat >tiny.json <<'END_OF_CONFIG'
{
  "name": "tiny", "seed": 1, "global_batch": 40, "grain": 8, "steps": 12,
  "model": {"input": [8, 8, 1], "classes": 4,
    "layers": [{"type": "flatten", "name": "flatten"},
               {"type": "dense", "name": "logits", "units": 4}]},
  "optimizer": {"type": "sgd", "learning_rate": 0.05},
  "data": {"train": {"manifest": "three/manifest.json"}}
}
END_OF_CONFIG
expect 0 '' data shard --made-up 100 --height 8 --width 8 --classes 4 --shards 3 --to three
cat >nodes.json <<'END_OF_NODES'
{"cluster": {"chief": ["A:2222"], "worker": ["[::1]:2222", "c:2222"]},
 "replicas": {"chief": 1, "worker": [3, 1]}}
END_OF_NODES
unset TF_CONFIG
expect 78 'you must also specify' cluster --cluster nodes.json
export PMI_RANK=2 PMI_SIZE=3
expect 0 '^cluster from --cluster nodes.json, rank from MPICH (PMI_RANK, PMI_SIZE)$' \
    cluster tiny.json --cluster nodes.json
expect_line '  MPICH     says which rank this is'
expect_line '  rank 0    chief:0     a:2222                 1 replica' '  grains 0 .. 0' \
    ' of 5 (examples 0 .. 7 of a step)' \
    '  shards 0 .. 2, all'
expect_line '  rank 1    worker:0    [::1]:2222             3 replicas' '  grains 1 .. 3' \
    ' of 5 (examples 8 .. 31 of a step)' \
    '  shards 0 .. 2, all'
expect_line '* rank 2    worker:1    c:2222                 1 replica' '  grains 4 .. 4' \
    ' of 5 (examples 32 .. 39 of a step)' \
    '  shards 0 .. 2, all'
expect 0 '"told": {"--cluster": "taken".*"MPICH": "rank"' \
    cluster tiny.json --cluster nodes.json --json
require "the rank in JSON" grep -q '^  "rank": 2,$' out
require "the leader's address in JSON" grep -q \
    '{"rank": 0, "task": "chief:0", "address": "a:2222", "replicas": 1, "replicas_said": true,' out
require "a worker's grains in JSON" grep -q '"first_grain": 1, "grains": 3, "first_shard": 0' out
expect 0 '2 replicas (as here)' cluster tiny.json --replicas 2 --set global_batch=64
expect 78 '6 replicas of 3 workers: a global batch of 40 has 5 grains of 8' \
    cluster tiny.json --replicas 2
expect 78 'says 1 replicas for rank 2, --replicas says 2' cluster --cluster nodes.json --replicas 2

# Refused.
describe '{"worker":["a:1","b:1"]}' worker 1
expect 78 'TF_CONFIG says rank 1 of 2, MPICH (PMI_RANK, PMI_SIZE) says rank 2 of 3; take' cluster
expect 78 'cluster nodes.json says rank 1 of 3, TF_CONFIG says rank 1 of 2' \
    cluster --cluster nodes.json
unset PMI_RANK PMI_SIZE
describe '{"worker":["a:1","b:1"]}' worker 2
expect 78 'TF_CONFIG (byte 68): task.index: The `task_id` 2 exceeds the maximum id' cluster
TF_CONFIG='{"cluster":{"ps":["a:1"]}}'
expect 78 'TF_CONFIG (byte 17): cluster.ps: a parameter server has no rank here' cluster
TF_CONFIG='{"sparseCluster":{}}'
expect 78 'TF_CONFIG (byte 17): sparseCluster: ' cluster
TF_CONFIG='{"cluster":{"worker":["a:1",""]}}'
expect 78 'TF_CONFIG (byte 28): cluster.worker\[1\]: found string "", with no host' cluster
TF_CONFIG='{"cluster":'
expect 78 'TF_CONFIG:1:11 (byte 11): ' cluster
# train: workers meet where rank 0 is, with a key between hosts.
TF_CONFIG='{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}}'
expect 78 'rank 0 is at a:1, so strangers could come in, and there is no key' train tiny.json
unset TF_CONFIG
export SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2
expect 69 'Slurm .* describes 2 workers, but neither where rank 0 is, nor' train tiny.json
unset SLURM_STEP_ID SLURM_PROCID SLURM_NTASKS
export TF_CONFIG
TF_CONFIG='{"cluster":{"worker":["a:1"],"evaluator":["b:1"]},"task":{"type":"evaluator","index":0}}'
expect 78 'data.test: missing, an evaluator has nothing to do' train tiny.json
TF_CONFIG='{"cluster":{"worker":["a:1"]'
expect 78 'TF_CONFIG:1:' train tiny.json
unset TF_CONFIG
expect 66 'missing.json: cannot be read' cluster --cluster missing.json
expect 64 'did you mean "--cluster"' cluster --clustr nodes.json
expect 64 'found 2 arguments' cluster tiny.json tiny.json
expect 64 'go with a CONFIG' cluster --set seed=1
finish
