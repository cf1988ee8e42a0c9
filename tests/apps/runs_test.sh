# runs_test.sh - lockstep checkpoint, diff and doctor, on runs of a tiny network.
. "$(dirname "$0")/expect.sh"

cat >tiny.json <<'END'
{
  "name": "tiny", "seed": 1, "global_batch": 16, "steps": 12,
  "hash_every_steps": 2, "log_every_steps": 4,
  "model": {"input": [8, 8, 1], "classes": 4, "loss": "sparse_categorical_crossentropy",
    "layers": [{"type": "flatten", "name": "flatten"},
               {"type": "dense", "name": "hidden", "units": 8, "activation": "relu"},
               {"type": "dense", "name": "logits", "units": 4}]},
  "optimizer": {"type": "momentum", "learning_rate": 0.05, "momentum": 0.9},
  "checkpoint": {"every_steps": 4, "keep_max": 0},
  "data": {"train": {"made_up": {"count": 100, "height": 8, "width": 8, "classes": 4}}}
}
END
train() {
    directory=$1
    shift
    expect 0 '^digest ' train tiny.json --run-dir "$directory" "$@"
    digest=$(sed -n 's/^digest //p' out)
}
train a
train b --kernels reference
train short --set steps=7
train sparse --set hash_every_steps=4
train other --set seed=2
newest=a/checkpoints/step-0000000012.safetensors
test_set='--set data.test={"made_up":{"count":10,"height":8,"width":8,"classes":4}}'

# Of steps and epochs the fewer count.
expect 0 '^trained 7 steps in ' train tiny.json --run-dir epochs --set steps=50 --set epochs=1

expect 0 '^data [0-9a-f]*: 32 examples' train tiny.json --run-dir some --examples 32
require "the run's document says so" grep -q '"train_examples": 32' some/config.json

# --fresh removes nothing of a run that somebody works on.
if command -v flock >/dev/null; then
    exec 9>>other/lock
    flock -n 9
    expect 69 'in use by process' train tiny.json --set seed=2 --run-dir other --fresh
    require "what is there stays" [ -s other/identity ]
    exec 9>&-
fi

# checkpoint info and verify.
expect 64 'a subcommand is missing' checkpoint
expect 64 'did you mean "verify"' checkpoint verifi a
expect 0 '^lockstep checkpoint info FILE \[--json\]$' checkpoint info --help
for command in plan train eval predict embed; do
    expect 0 "^usage: lockstep $command CONFIG" $command --help
done
expect 0 '^usage: lockstep train' help train
for option in $("$program" help | sed -n '/^  lockstep train /s/[^-]*\(--[a-z-]*\)[^-]*/\1 /gp'); do
    require "$option of train is explained" grep -q "^  $option " out
done
expect 0 '^step  *12$' checkpoint info $newest
require "a tensor with its shape and bytes" grep -q 'hidden/kernel .*F32 *\[64, 8\]  2048 bytes' out
require "the identity" grep -q "^run_identity  *$(cat a/identity)\$" out
expect 66 '' checkpoint info missing.safetensors
expect 65 '' checkpoint info tiny.json
expect 0 '^ok .*step-0000000004' checkpoint verify a
require "a line for each checkpoint" [ "$(grep -c '^ok .*/step-' out)" -eq 3 ]
require "a line for each log" [ "$(grep -c '^ok .*\.jsonl: [0-9]* lines$' out)" -eq 2 ]
expect 0 '^ok ' checkpoint verify $newest
expect 66 '' checkpoint verify missing
mkdir empty
expect 66 'identity' checkpoint verify empty
cp -r a damaged
flip_byte damaged/checkpoints/step-0000000008.safetensors 1000
expect 65 '1 of 3 checkpoints are not valid' checkpoint verify damaged
require "the damaged one is named" grep -q '^WRONG .*step-0000000008' out
require "the others are ok" [ "$(grep -c '^ok .*/step-' out)" -eq 2 ]
expect 65 '' checkpoint verify damaged/checkpoints/step-0000000008.safetensors
cp other/checkpoints/step-0000000004.safetensors damaged/checkpoints/
expect 65 '2 of 3' checkpoint verify damaged
require "a foreign checkpoint is named" grep -q 'found run identity' out

# A log whose lines have no checksums, as earlier versions wrote it.
without_sums() { sed 's/,"crc32":"[0-9a-f]*"}$/}/' "$1"; }

# diff: the same.
expect 64 'found 1 arguments, wanted 2' diff a
expect 0 'lockstep diff RUN_A RUN_B' diff --help
expect 0 '^same: 6 steps compared, last step 12, digest ' diff a b
digest=$(sed -n 's/.*"digest":"\([0-9a-f]*\)".*/\1/p' $newest | head -1)
require "with the digest" grep -q "$digest" out
expect 0 '^same: 3 steps compared, last step 12' diff a sparse
expect 0 '^A ends at step 7, B goes on to step 12' diff short a
require "as far as it goes" grep -q '^same: 3 steps compared, last step 6' out
expect 0 'checkpoint of step 12, every byte' diff a/../a b/../b
require "nothing is passed over" [ "$(grep -c 'passed over' out)" -eq 0 ]

# diff: they part.
expect 1 '^the run identities differ' diff a other
require "first step and tensor" grep -q '^differ: step 2, tensor hidden/kernel: hash A ' out
cp -r a late
without_sums a/hashes.jsonl |
    sed 's/\("step":8,.*"logits.kernel":"\)[0-9a-f]/\1x/' >late/hashes.jsonl
expect 1 '^differ: step 8, tensor logits/kernel: hash A [0-9a-f]*, B x' diff a late
require "and the last equal step" grep -q 'the last equal step that both logged is 6' out
cp -r other slots
cp a/hashes.jsonl a/identity slots
expect 1 '^differ: checkpoint of step 12, tensor hidden/kernel, element 0: A ' diff a slots

# diff: logs that are missing, torn, damaged; nothing in common.
rm -rf late && cp -r a late
rm late/hashes.jsonl
expect 0 '^B has no step hashes' diff a late
require "checkpoints alone are enough" grep -q '^same: 0 steps compared, digest ' out
printf '{"step":2,"hidden/ker' >late/hashes.jsonl
expect 0 'hashes.jsonl is empty' diff a late
printf '{"step":2,"hidden/ker\n' >late/hashes.jsonl
expect 65 'hashes.jsonl: line 1: found a line without' diff a late
printf '{"step":2,"hidden/ker":x}\n' >late/hashes.jsonl
expect 65 'hashes.jsonl line 1' diff a late
(cat a/hashes.jsonl && head -1 a/hashes.jsonl) >late/hashes.jsonl
expect 65 'found step 2 after step 12' diff a late
rm -rf late/hashes.jsonl late/checkpoints
expect 66 'nothing to compare' diff a late
expect 66 '' diff a missing
rm -rf late && cp -r a late
flip_byte late/checkpoints/step-0000000012.safetensors 1000
expect 0 '^passed over: .*step-0000000012' diff a late
require "the next older one serves" grep -q 'checkpoint of step 8' out

# diff --tolerance: how far they lie apart.
expect 64 'wanted a relative difference' diff a b --tolerance x
expect 64 'wanted a relative difference' diff a b --tolerance -1
expect 0 '^within 0: ' diff a b --tolerance 0
require "losses" grep -q '^train loss: [0-9]* steps in both, largest relative difference 0 ' out
require "accuracy" grep -q '^train accuracy at the last of them, step 12: A ' out
require "tensors" [ "$(grep -c '^checkpoint of step .*largest relative difference 0, ' out)" -eq 3 ]
expect 1 '^further apart than 0: first at step ' diff a other --tolerance 0
expect 0 '^within 2: ' diff a other --tolerance 2
train plain --set 'optimizer={"type":"sgd","learning_rate":0.05}'
expect 0 'tensor hidden/kernel/momentum is not compared: B has none' diff a plain --tolerance 2
expect 0 'tensor hidden/kernel/momentum is not compared: A has none' diff plain a --tolerance 2
# Whole numbers, as the state of a loss scale, are compared and must be equal.
half='--set precision=mixed_float16'
train half $half
train more $half --set 'loss_scale={"growth_steps":5}'
expect 0 '^within 0: ' diff half half --tolerance 0
require "all tensors" [ "$(grep -c 'is not compared' out)" -eq 0 ]
expect 1 'step 8, tensor run/loss_scale/state, whole numbers that are not equal' \
    diff half more --tolerance 2
# A momentum of 0 gives the weights of plain SGD, and has slots.
train zero --set 'optimizer={"type":"momentum","learning_rate":0.05,"momentum":0}'
expect 1 '^differ: checkpoint of step 12, tensor .*/momentum: only B has it' diff plain zero
expect 1 '^differ: checkpoint of step 12, tensor .*/momentum: A has F32 .*, B has none' \
    diff zero plain
rm -rf late && cp -r a late
without_sums a/metrics.jsonl |
    sed '/"step":4,/s/\("train":{"loss":\)\([0-9.]*\)/\11e3/' >late/metrics.jsonl
expect 1 '^further apart than 0.5: first at step 4, train loss, relative difference ' \
    diff a late --tolerance 0.5
without_sums a/metrics.jsonl | sed '2s/"loss"/"lost"/' >late/metrics.jsonl
expect 65 'metrics.jsonl line 2: train: the required key "loss"' diff a late --tolerance 0.5
rm -rf late/metrics.jsonl late/checkpoints
expect 66 'nothing to compare' diff a late --tolerance 0.5

# What is said must arrive: a full disk under standard output is no success.
if [ -c /dev/full ]; then
    for command in help version doctor cluster 'cluster --json' 'plan tiny.json' \
        'plan tiny.json --json' 'checkpoint info '$newest 'checkpoint verify a' 'diff a b' \
        'data verify --made-up 10' 'help configs' \
        'checkpoint export a --output exported' "eval tiny.json --run-dir a $test_set" \
        'train tiny.json --run-dir unheard --fresh' \
        'train tiny.json --run-dir unheard --fresh --set checkpoint.every_steps=0'; do
        checks=$((checks + 1))
        # shellcheck disable=SC2086
        "$program" $command >/dev/full 2>err
        code=$?
        : >out
        [ "$code" -eq 74 ] && [ "$(wc -l <err)" -eq 1 ] || complain "$command >/dev/full: $code"
    done
    TF_CONFIG='{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}' \
        "$program" train tiny.json --run-dir b $test_set >/dev/full 2>err
    code=$?
    [ "$code" -eq 74 ] && [ "$(wc -l <err)" -eq 1 ] || complain "evaluator >/dev/full: $code"
    ln -s /dev/full full
    expect 74 '^lockstep: full: writing failed' embed tiny.json --to full
    require "what is no plain file is left alone" [ -L full ]
fi

# Ctrl-C ends whoever reads along, too: the run is saved, and that is what it says.
mkfifo said
"$program" train tiny.json --set steps=1000000000 --run-dir left --set checkpoint.every_steps=0 \
    >said 2>err &
sed '/^loss = /q' <said >out
kill -INT $!
wait $!
code=$?
require "stopped by Ctrl-C after saving: $code, $(cat err)" [ "$code" -eq 130 ]
require "saved" [ -n "$(ls left/checkpoints)" ]

# A layer without a name is called by its type and its place.
expect 0 ' dense_1/kernel$' plan tiny.json --set \
    'model.layers=[{"type":"flatten"},{"type":"dense","units":4}]'

# Replicas that nobody said are as many as the grains give each worker, as in training.
expect 0 '^4 workers, 4 replicas in all' plan tiny.json --workers 4 --set grain=4

# The batch said by its factors is that of every command, also of one that needs a single replica.
factors='--set replica_batch=4 --set replicas=2 --set accumulate=2 --set grain=4'
expect 0 '^digest ' train tiny.json --run-dir factors $factors
for more in '' '--replicas 2'; do
    expect 0 '^logits logits.npy (10, 4)$' predict tiny.json --run-dir factors $factors $more \
        --output logits.npy $test_set
done

# .. of all workers: their replicas are factors, too.
expect 0 '^global batch 32 = 8 grains of 4' \
    plan tiny.json $factors --set global_batch=32 --workers 2
expect 78 'replica_batch 4 x replicas 4 of 2 workers x accumulate 2 = 32, but global_batch is 16' \
    plan tiny.json $factors --workers 2
expect 78 'replica_batch 4 x replicas 2 x accumulate 2 = 16, but global_batch is 32' \
    train tiny.json --run-dir nowhere $factors --set global_batch=32
expect 78 'replica_batch 4 x replicas 3 x accumulate 2 = 24, but global_batch is 16' \
    train tiny.json --run-dir nowhere $factors --replicas 3
expect 0 '^plan of .*: 1 replicas, ' plan tiny.json --set replica_batch=16
expect 0 '^digest ' eval tiny.json --run-dir factors $factors $test_set --set global_batch=32
for said in 1 '{"worker":[3,2]}'; do
    TF_CONFIG='{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1},"replicas":'
    export TF_CONFIG="$TF_CONFIG$said}"
    all=$([ "$said" = 1 ] && echo 2 || echo 5)
    batch=$((4 * all))
    expect 78 "4 x replicas $all of 2 workers x accumulate 1 = $batch, but global_batch is 16" \
        cluster tiny.json --set replica_batch=4 --set grain=2
    expect 0 '' cluster tiny.json --set replica_batch=4 --set grain=2 --set global_batch=$batch
done
unset TF_CONFIG

# Of steps and epochs the one that ends the run is said: 7 steps an epoch.
expect 0 '^length: 12 steps (steps), before 50 epochs, which are 350$' \
    train tiny.json --run-dir ends --set epochs=50
expect 0 '^length: 7 steps (1 epoch), before the 12 of steps$' \
    train tiny.json --run-dir ends --fresh --set epochs=1
expect 0 '^length: 14 steps, both of steps and of 2 epochs$' \
    train tiny.json --run-dir ends --fresh --set epochs=2 --set steps=14
expect 0 '^length: 12 steps$' train tiny.json --run-dir ends --fresh

# What a value may not be.
newline='
'
expect 66 '^lockstep: two?lines: ' plan "two${newline}lines"
expect 64 '^lockstep: --run-dir wants a value' train --run-dir '' tiny.json
expect 78 'wanted a name without "/"' train tiny.json --set 'name="../elsewhere"'
expect 64 'checkpoint verify a$' checkpoint info a
expect 66 'holds no checkpoint; name a run' eval tiny.json --run-dir nowhere $test_set
expect 64 '^lockstep: --rounds: found "1.5"' bench --rounds 1.5

# An option that there is not is named itself, wherever it stands.
expect 64 '^lockstep: unknown option "-x"; see' plan tiny.json -xy
expect 64 '^lockstep: unknown option "-x"; usage' diff a b -xy
expect 64 '^lockstep: unknown option "--resume=1", did you' train tiny.json --resume=1
expect 64 '^lockstep: bench: unknown option "--rings"' bench word --rings
expect 64 '^lockstep: bench: a value is missing after "--rounds"' bench word --rounds

# A run in a directory that is called as its ready configuration.
mkdir made-up-cnn
expect 0 '^arena ' plan made-up-cnn
expect 66 'Is a directory' plan ./made-up-cnn
expect 66 'Is a directory' plan empty

# Streams that are closed are no places for the run's own files.
"$program" train tiny.json --run-dir closed <&- >&- 2>&-
require "nothing but the process in the lock" [ "$(wc -l <closed/lock)" -eq 1 ]
expect 0 '^same: 6 steps compared' diff a closed

# --fresh keeps the lock's file: two who want it want one and the same.
before=$(ls -i closed/lock)
expect 0 '^digest ' train tiny.json --run-dir closed --fresh
touch closed/plan.json.tmp closed/checkpoints/step-0000000008.safetensors.tmp
expect 0 '^digest ' train tiny.json --run-dir closed --fresh
require "the same lock" [ "$before" = "$(ls -i closed/lock)" ]

# ... and removes all of a run or nothing: not what somebody else has put beside it.
echo mine >closed/notes.txt
expect 64 '^lockstep: closed: --fresh removes a run, and "notes.txt"' train tiny.json \
    --run-dir closed --fresh
rm closed/notes.txt
cp closed/checkpoints/step-0000000012.safetensors closed/checkpoints/best.safetensors
expect 64 '^lockstep: closed/checkpoints: .*"best.safetensors"' train tiny.json --run-dir closed \
    --fresh
require "the copy is left" [ -f closed/checkpoints/best.safetensors ]
rm closed/checkpoints/best.safetensors
expect 0 '^same: 6 steps compared' diff a closed

# What cannot be opened is said with what to look at.
expect 74 'nowhere/e.c.[0-9]*.tmp: cannot create: No such .*; check the path$' embed tiny.json \
    --to nowhere/e.c

# Files that are written: whole, or what was there; a pipe is not replaced by a file.
echo old >kept.c
(ulimit -f 1 && "$program" embed tiny.json --to kept.c >out 2>err)
require "an embedded run that does not fit" grep -q \
    '^lockstep: kept.c.[0-9]*.tmp: writing failed' err
require "what was there stays" [ "$(cat kept.c)" = old ]
require "no half is left" \
    [ -z "$(find . -maxdepth 1 -name "kept.c.*")" ]
mkfifo pipe
expect 64 'pipe, which is no plain file' predict tiny.json --run-dir a --output pipe $test_set
require "the pipe is left alone" [ -p pipe ]
expect 64 'exclude each other' plan tiny.json --json --show-shards

# Nobody writes into that pipe: whoever wants to read it must not wait.
expect 65 '^WRONG  pipe: found a pipe' checkpoint verify pipe
expect 65 '^lockstep: pipe: found a pipe' checkpoint info pipe
expect 65 '^lockstep: pipe: found a pipe' eval tiny.json --checkpoint pipe $test_set
rm -rf late && cp -r a late
rm late/hashes.jsonl && mkfifo late/hashes.jsonl
expect 66 '^lockstep: late/hashes.jsonl: found a pipe' diff a late

# A run that has nothing left to do says its evaluation again, and writes it once; one that was
# ended before it could write it does so now.
train tested $test_set
for round in again again; do
    expect 0 '^nothing to do' train tiny.json --run-dir tested --resume $test_set
    require "the evaluation is said" grep -q '^test_accuracy ' out
    require "one line of it" [ "$(grep -c '"step":12,"test"' tested/metrics.jsonl)" -eq 1 ]
done
sed '/"test"/d' tested/metrics.jsonl >untested
cp untested tested/metrics.jsonl
expect 0 '^nothing to do' train tiny.json --run-dir tested --resume $test_set
require "the missing line" [ "$(grep -c '"step":12,"test"' tested/metrics.jsonl)" -eq 1 ]

# A test set of one's own beside a set by directory or name; a place that has only half of a set.
expect 0 '' data shard --made-up 100 --height 8 --width 8 --classes 4 --shards 1 --to one
mkdir -p cache/lockstep/data/mine half/mine
for part in train t10k; do
    cp one/images-00000.idx cache/lockstep/data/mine/$part-images-idx3-ubyte
    cp one/labels-00000.idx cache/lockstep/data/mine/$part-labels-idx1-ubyte
done
cp one/images-00000.idx half/mine/train-images-idx3-ubyte
sed 's/"data": .*/"data": {"set": "mine"}/' tiny.json >named.json
export LOCKSTEP_DATA="$work/half"
expect 0 '100 examples; test 100$' train named.json --run-dir named
expect 0 '100 examples; test 7$' train named.json --run-dir named --fresh \
    --set data.test.made_up.count=7 --set data.test.made_up.height=8 \
    --set data.test.made_up.width=8 --set data.test.made_up.classes=4
unset LOCKSTEP_DATA
expect 66 'data.set: mine2 is not on this machine, nor is it mnist' train named.json --fresh \
    --set data.set=mine2
require "what cannot be fetched is not advised" [ "$(grep -c 'get it with' err)" -eq 0 ]
expect 66 'get it with: lockstep data fetch mnist' train named.json --fresh --set data.set=mnist

# doctor.
expect 0 '^ok  *kernels ' doctor
require "ready configurations are found" grep -q '^ok  *configurations ' out
require "no line but ok and warning" [ "$(grep -c -v -e '^ok ' -e '^warning ' out)" -eq 0 ]
expect 64 '' doctor word
export LOCKSTEP_CONFIGS="$work/nowhere"
expect 0 '^warning  *configurations ' doctor
finish
