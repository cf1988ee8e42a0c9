# verify_test.sh - lockstep verify: equal where it is equal, and a clear NO where one digit differs.
. "$(dirname "$0")/expect.sh"

cat >tiny.json <<'END'
{
  "name": "tiny", "seed": 1, "global_batch": 16, "steps": 5,
  "model": {"input": [8, 8, 1], "classes": 4,
    "layers": [{"type": "flatten", "name": "flatten"},
               {"type": "dense", "name": "logits", "units": 4}]},
  "optimizer": {"type": "momentum", "learning_rate": 0.05, "momentum": 0.9},
  "data": {"train": {"made_up": {"count": 100, "height": 8, "width": 8, "classes": 4}}}
}
END
sed 's/"made_up.*}}/"images": "no-such-file", "labels": "no-such-file"}}/' tiny.json >nowhere.json

# value STEPS WORD: what lockstep train prints behind WORD.
value() {
    "$program" train tiny.json --set "steps=$1" --fresh --run-dir run 2>err | sed -n "s/^$2 //p" |
        tail -n 1
}
# promises FILE CONFIG..: the true digests of steps 2 and 5, for each CONFIG.
identity=$(value 2 run_identity)
digests=""
for step in 2 5; do
    digests="$digests${digests:+, }{\"step\": $step, \"digest\": \"$(value $step digest)\",
     \"state_hash\": \"$(value $step state_hash)\"}"
done
promises() {
    file=$1 runs=""
    shift
    for config; do
        runs="$runs${runs:+, }{\"name\": \"tiny\", \"config\": \"$config\",
        \"run_identity\": \"$identity\", \"other_kernels_until\": 2, \"digests\": [$digests]}"
    done
    echo "{\"arithmetic_version\": 1, \"runs\": [$runs]}" >"$file"
}

promises true.json tiny.json
expect 0 '^verified: 1 of 1 runs, .* 0 differ' verify --digests true.json
require "the fastest kernels to the end" grep -q '^tiny .* 5  digest .* yes$' out
require "the reference as far as the file says" grep -q '^tiny *reference .* 2  digest .* yes$' out
require "and no further" [ "$(grep -c 'reference .* 5  digest' out)" -eq 0 ]
expect 0 '^verified' verify --digests "$work/true.json" --kernels reference --replicas 1
require "these kernels to the end" grep -q '^tiny *reference *1 *5  digest .* yes$' out

# One digit of one value.
for what in run_identity digest state_hash; do
    sed "s/\"$what\": \"[0-9a-f]\{6\}/\"$what\": \"000000/" true.json >false.json
    expect 1 '^DIFFERS' verify --digests false.json
    require "$what: a row that says NO" grep -q ' NO$' out
    require "$what: the published value" grep -q 'published: 000000' out
done

# Data that is not here: said, and the rest is compared.
promises some.json nowhere.json tiny.json
expect 0 '^verified: 1 of 2 runs' verify --digests some.json
require "what is left out" grep -q '^tiny *not run: .*no-such-file' out
promises none.json nowhere.json
expect 66 'nothing was compared' verify --digests none.json

# Files and words that are wrong.
expect 66 '' verify --digests missing.json
sed 's/"arithmetic_version": 1/"arithmetic_version": 2/' true.json >false.json
expect 78 'arithmetic version 2' verify --digests false.json
sed 's/"digest": "[0-9a-f]*/"digest": "12/' true.json >false.json
expect 78 '64 hexadecimal digits' verify --digests false.json
sed 's/"step": 5/"step": 1/' true.json >false.json
expect 78 'step' verify --digests false.json
expect 64 '' verify --digests true.json --kernels no-such
expect 64 'did you mean' verify --digits true.json
expect 0 '^lockstep verify ' verify --help

# The published file is found beside the program. (All of it runs among README.md's commands.)
expect 64 'no such variant' verify --kernels no-such
finish
