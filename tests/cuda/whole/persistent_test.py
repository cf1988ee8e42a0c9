#!/usr/bin/env python3
"""persistent_test - steps as one persistent kernel (layout.persistent): the bits of graphs, of the
processor and of the golden digests, whatever order its blocks go on in; and when there is none.

   persistent_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON few|some|all CONFIG_DIR
"""
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../whole"))
from program import Test, golden, result, value  # noqa: E402

MATRIX, GOLDEN = (os.path.abspath(a) for a in sys.argv[3:5])
HOW_MUCH, CONFIGS = sys.argv[5], os.path.abspath(sys.argv[6])
COUNTS = re.compile(r"device: (\d+) allocations after the seal, (\d+) bytes, (\d+) launches, "
                    r"(\d+) graph launches, (\d+) synchronisations")
TEST_SET = 'data.test={"made_up":{"count":150,"height":10,"width":8}}'
ON, OFF, AUTO = (["--kernels", "cuda", "--set", f"layout.persistent={way}"]
                 for way in ("on", "off", "auto"))
RESIDENT = ["--set", "layout.resident=true"]
WAVE = ["--set", "layout.wave_examples=48"]

# Step 4 is a short one: 232 of 256 examples. The table of nine replicas has no room in what a block
# shares.
ROWS = [
    ["--replicas", "1"],
    ["--replicas", "9"],
    ["--replicas", "3", *RESIDENT, *WAVE],
    ["--replicas", "2", *WAVE, "--set", "layout.overlay=false"],
    ["--replicas", "5", "--set", "layout.fuse=false"],
    ["--replicas", "2", *RESIDENT],
    ["--replicas", "1", "--set", "layout.wave_examples=32", *RESIDENT],  # 16: too many launches
]
ROWS = ROWS[:{"few": 3, "some": 5}.get(HOW_MUCH, len(ROWS))]
SEEDS = {"few": 1, "some": 2}.get(HOW_MUCH, 6)
# The ready configurations that shall be one kernel, with images and labels that are made up.
READY = [("mnist-cnn", 32), ("bench-mlp", 32), ("bench-lenet", 8), ("mnist-99", 8),
         ("mnist-995", 8)]
# Models of the other bodies: of the matrix, and one of what these have not.
MODELS = ["normed", "graph", "unfolded", "autoencoder", "dropped", "gan"]
MODELS = MODELS[:{"few": 2}.get(HOW_MUCH, len(MODELS))]
OTHERS = [{"type": "zero_padding2d", "padding": 1},
          {"type": "depthwise_conv2d", "kernel_size": 3, "depth_multiplier": 2, "strides": 2},
          {"type": "relu6"},
          {"type": "conv2d", "filters": 6, "kernel_size": 3, "groups": 2, "padding": "same",
           "activation": "softplus"},
          {"type": "batch_normalization", "trainable": False},
          {"type": "layer_normalization"}, {"type": "elu"},
          {"type": "conv2d", "filters": 4, "kernel_size": 2, "dilation_rate": 2,
           "activation": "gelu"},
          {"type": "flatten"}, {"type": "dense", "units": 12, "activation": "swish"},
          {"type": "layer_normalization"}, {"type": "gelu", "approximate": True},
          {"type": "dense", "units": 10}]
READY = READY[:{"few": 1, "some": 3}.get(HOW_MUCH, len(READY))]


def train(t, steps, directory, *arguments, config=MATRIX, fresh=True, code=0):
    return t.expect(code, "train", config, "--set", f"steps={steps}", "--run-dir", directory,
                    "--fresh" if fresh else "--resume", *arguments)


def says(t, lines, text):
    found = [line for line in lines if line.startswith("persistent kernel: ")]
    t.check(len(found) == 1 and text in found[0], f"wanted: {text}", *found)


def same_bits(t):
    for row in ROWS:
        for seed in range(1, SEEDS + 1):
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(seed)
            lines = train(t, 4, "golden", *ON, *row)[1]
            t.check(result(lines) == golden(GOLDEN, 4), *row, f"seed {seed}", result(lines))
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
    lines = train(t, 4, "golden", *ON)[1]
    says(t, lines, "on (")
    t.check(result(lines) == golden(GOLDEN, 4), "no seed", result(lines))


def models(t):
    for number, name in enumerate(MODELS):
        config = os.path.join(os.path.dirname(MATRIX), name + ".json")
        # A row of one replica, or of two: the table is not made for more of these.
        for row in [ROWS[0], ["--replicas", "2", *RESIDENT]][:1 if HOW_MUCH == "few" else 2]:
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number + 1)
            lines = train(t, 4, "model", *ON, *row, config=config)[1]
            says(t, lines, "on (")
            t.check(result(lines) == golden(GOLDEN, 4, name), name, *row, result(lines))
    for loss in ("binary_crossentropy", "sparse_categorical_crossentropy"):
        config = t.write("others.json", {
            "steps": 4, "model.layers": OTHERS, "model.loss": loss, "evaluate_every_steps": 2,
            "data.test": {"made_up": {"first": 5000, "count": 90, "height": 10, "width": 10}}})
        found = []
        for row in (["--kernels", "portable"], [*ON, "--replicas", "1"], [*ON, "--replicas", "2"]):
            lines = train(t, 4, "others", *row, config=config)[1]
            found.append([*result(lines), value(lines, "test_loss")])
        t.check(found[0] == found[1] == found[2] and found[0][2], "other layers", loss, *found)
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")


def ready_configurations(t):
    data = 'data={"train":{"made_up":{"count":80}}}'
    for name, batch in READY:
        more = ["--set", data, "--set", f"global_batch={batch}", "--set", "log_every_steps=1",
                "--set", "evaluate_every_steps=0"]
        config = os.path.join(CONFIGS, name + ".json")
        found = {}
        for way, row in (("processor", ["--kernels", "portable"]), ("one kernel", ON),
                         ("graph", OFF)):
            lines = train(t, 3, "ready", *row, *more, "--replicas", "1", config=config)[1]
            with open("ready/metrics.jsonl", encoding="ascii") as f:
                found[way] = [*result(lines), f.read()]
        t.check(found["one kernel"] == found["processor"] == found["graph"], name, found)


def round_the_ring(t):
    """Runs that fill each half of the ring of 4 steps again and again, looked at only at the end:
    two steps are a launch, and a step of another kind is one of its own."""
    wanted = result(train(t, 18, "ring", "--kernels", "portable")[1])
    for seed in range(1, 2 + SEEDS):
        os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(seed)
        _, lines, error = train(t, 18, "ring", *ON, *(RESIDENT if seed % 2 else []))
        t.check(result(lines) == wanted, f"18 steps, seed {seed}", result(lines), wanted)
        after, _, launches, graphs, _ = (int(c) for c in COUNTS.search(error).groups())
        # The first step is looked at; then every fourth is short, and ends its half of the ring.
        t.check((after, graphs, launches) == (0, 0, 14), "launches", after, graphs, launches)
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
    _, lines, error = train(t, 6, "ring", *ON, "--set", "log_every_steps=1")
    t.check(int(COUNTS.search(error).group(3)) == 6, "one a launch where each is looked at", error)


def taking_turns(t):
    """A run that goes from the processor to one kernel, to a graph and back."""
    train(t, 1, "turns", "--kernels", "portable")
    train(t, 2, "turns", *ON, "--replicas", "3", fresh=False)
    train(t, 3, "turns", *OFF, fresh=False)
    lines = train(t, 4, "turns", *ON, "--replicas", "2", fresh=False)[1]
    t.check(result(lines) == golden(GOLDEN, 4), "turns", result(lines))


def evaluating(t):
    """Evaluation, logs, checkpoints and logits are those of the processor, byte for byte."""
    seen = {}
    for name, way in (("processor", ["--kernels", "auto"]), ("kernel", ON),
                      ("parts", [*ON, *RESIDENT, *WAVE, "--replicas", "3"])):
        same = ["--set", TEST_SET, *way]
        lines = train(t, 3, name, *same, "--set", "evaluate_every_steps=2", "--set",
                      "log_every_steps=1", "--set", "hash_every_steps=2", "--set",
                      "checkpoint.every_steps=2")[1]
        found = [value(lines, "test_loss"), value(lines, "test_accuracy"), *result(lines)]
        lines = t.expect(0, "eval", MATRIX, *same, "--run-dir", name)[1]
        found += [value(lines, "test_loss"), value(lines, "digest")]
        for file in ("metrics.jsonl", "hashes.jsonl", "checkpoints/step-0000000002.safetensors",
                     "checkpoints/step-0000000003.safetensors"):
            with open(f"{name}/{file}", "rb") as f:
                found.append(f.read())
        seen[name] = found
    for name in ("kernel", "parts"):
        t.check(seen[name] == seen["processor"], name,
                [a == b for a, b in zip(seen[name], seen["processor"])])


def diverging(t):
    """The step and the tensor that a run which looks at every step reports."""
    said = []
    for way in (["--kernels", "portable"], ON):
        error = train(t, 50, "diverged", *way, "--set", "optimizer.learning_rate=1e9", code=80)[2]
        said.append([line for line in error.splitlines() if line.startswith("lockstep:")])
    t.check(len(said[0]) == 1 and said[0] == said[1], "diverged", *said)


def memory(t):
    """The plan is what is taken, tables and all, and no graph is made."""
    for row in ROWS[:2]:
        plan = json.loads("\n".join(t.expect(0, "plan", MATRIX, "--json", *ON, *row)[1]))
        gpu = plan["gpus"][0]
        _, lines, error = train(t, 6, "memory", *ON, *row)
        after, taken, _, graphs, _ = (int(c) for c in COUNTS.search(error).groups())
        t.check(gpu["persistent"] is True and after == 0 and graphs == 0, "kernel", after, graphs)
        t.check(taken == gpu["bytes"], "taken and planned", taken, gpu["bytes"])
    # Replicas of a GPU take turns in a graph, and share levels in the kernel: there auto takes it.
    for way, is_on in ((OFF, False), (ON, True), (AUTO, False), ([*AUTO, "--replicas", "4"], True)):
        gpu = json.loads("\n".join(t.expect(0, "plan", MATRIX, "--json", *way)[1]))["gpus"][0]
        t.check(gpu["persistent"] is is_on, "plan --json", way, gpu["persistent"])
        tables = [r for r in gpu["regions"] if r["name"].startswith("persistent kernel")]
        t.check((len(tables) > 0) == (way is not OFF), "regions", way, tables)


def refused(t, why, *arguments, config=MATRIX):
    """Who insists is refused; with auto a graph is taken, and why is said."""
    for command in ("plan", "train"):
        more = ["--run-dir", "refused", "--fresh"] if command == "train" else []
        code, _, error = t.run(command, config, *ON, *arguments, *more)
        said = [line for line in error.splitlines() if not line.startswith("device: ")]
        t.check(code == 78 and len(said) == 1 and "layout.persistent: found \"on\"" in said[0]
                and why in said[0], f"{command}: exit {code}, wanted 78", why, *said)
    says(t, t.expect(0, "plan", config, *AUTO, *arguments)[1], why)


def refusing(t):
    refused(t, "other GPUs or workers compute a part of each step", "--gpus", "2", "--replicas",
            "2")
    refused(t, "the arithmetic is \"fast\"", "--set", "arithmetic=fast")
    refused(t, "precision is not \"float32\"", "--set", "precision=mixed_bfloat16")
    refused(t, "layout.guards looks at every op", "--set", "layout.guards=true")
    refused(t, "no body of reduce_apply", "--set", "optimizer.clipnorm=1")
    refused(t, "no body of gru of layer encoder",
            config=os.path.join(os.path.dirname(MATRIX), "transducer.json"))
    refused(t, "a step has too many launches for its table", "--replicas", "16", "--set",
            "layout.wave_examples=16")
    # auto leaves it off.
    lines = t.expect(0, "plan", os.path.join(CONFIGS, "mnist-cnn.json"), *AUTO, "--set",
                     "global_batch=1024", "--set", 'data={"train":{"made_up":{"count":2000}}}')[1]
    says(t, lines, "off (")
    t.check(not any("persistent kernel" in line for line in
                    t.expect(0, "plan", MATRIX, *OFF)[1]), "nothing is said where nobody asks")
    for call, text in (("cudaOccupancyMaxActiveBlocksPerMultiprocessor:1", "GPU: asking how many"),
                       ("cudaLaunchKernelEx:1", "GPU: a step"),
                       ("cudaLaunchKernelEx:2", "GPU: a step")):
        os.environ["LOCKSTEP_HOST_CUDA_FAIL"] = call
        found, _, error = t.run("train", MATRIX, *ON, "--run-dir", "failed", "--fresh", "--set",
                                "steps=2")
        os.environ.pop("LOCKSTEP_HOST_CUDA_FAIL")
        t.check(found == 70 and text in error, call, found, error)


def main():
    t = Test()
    same_bits(t)
    models(t)
    ready_configurations(t)
    round_the_ring(t)
    taking_turns(t)
    evaluating(t)
    diverging(t)
    memory(t)
    refusing(t)
    t.finish()


main()
