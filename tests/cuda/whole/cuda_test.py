#!/usr/bin/env python3
"""cuda_test - the whole program with --kernels cuda, its GPU played by the host execution layer:
the golden digests, whoever else computes a part of a run, and what it says where there is no GPU.

   cuda_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON few|some|all|device

`device` is for a program with a GPU (tests/cuda/gpu): all, but for the failures that only the host
layer can play.
"""
import json
import os
import re
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../whole"))
from program import Test, golden, model_of, result, value  # noqa: E402

MATRIX, GOLDEN = (os.path.abspath(a) for a in sys.argv[3:5])
HOW_MUCH = sys.argv[5]
COUNTS = re.compile(r"device: (\d+) allocations after the seal, (\d+) bytes, (\d+) launches, "
                    r"(\d+) graph launches, (\d+) synchronisations")
TEST_SET = 'data.test={"made_up":{"count":150,"height":10,"width":8}}'
RESIDENT = ["--set", "layout.resident=true"]
WAVE = ["--set", "layout.wave_examples=48"]
DEPENDENT = ["--set", "layout.dependent_launches=true"]

# Step 4 is a short one: 232 of 256 examples.
ROWS = [
    ["--replicas", "1"],
    ["--replicas", "2", *RESIDENT],
    ["--replicas", "3"],
    ["--replicas", "3", *RESIDENT, *WAVE],
    ["--replicas", "2", *WAVE, "--set", "layout.overlay=false", *DEPENDENT],
]
MORE_ROWS = [
    ["--replicas", "1", *RESIDENT],
    ["--replicas", "2"],
    ["--replicas", "16", "--set", "layout.wave_examples=16"],
    ["--replicas", "5", "--set", "layout.fuse=false"],
    ["--replicas", "1", "--set", "layout.wave_examples=16", *RESIDENT, *DEPENDENT],
]


# Whose short step has as many launches as the others.
MEMORY_ROWS = [ROWS[1], ROWS[4]]
if HOW_MUCH in ("all", "device"):
    ROWS += MORE_ROWS
elif HOW_MUCH == "few":
    ROWS = ROWS[1:2] + ROWS[4:5]


def train(t, steps, directory, *arguments, fresh=True, code=0):
    return t.expect(code, "train", MATRIX, "--set", f"steps={steps}", "--run-dir", directory,
                    "--fresh" if fresh else "--resume", *arguments)


def same_bits(t):
    for number, row in enumerate(ROWS):
        os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number)
        lines = train(t, 4, "golden", "--kernels", "cuda", *row)[1]
        t.check(result(lines) == golden(GOLDEN, 4), " ".join(row), result(lines), golden(GOLDEN, 4))
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
    if HOW_MUCH in ("all", "device"):
        lines = train(t, 200, "golden", "--kernels", "cuda", "--replicas", "2")[1]
        t.check(result(lines) == golden(GOLDEN, 200), "200 steps", result(lines))


def round_the_ring(t):
    """Runs that fill each half of the ring of 4 steps again and again, looked at only at the end:
    the host, the copies and the device may each be as far ahead as the seed likes."""
    wanted = result(train(t, 18, "ring", "--kernels", "portable")[1])
    for seed in range(1, 4 if HOW_MUCH == "few" else 7):
        os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(seed)
        row = RESIDENT if seed % 2 else []
        found = result(train(t, 18, "ring", "--kernels", "cuda", *row)[1])
        t.check(found == wanted, f"18 steps, seed {seed}", *row, found, wanted)
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
    found = result(train(t, 18, "ring", "--kernels", "cuda")[1])
    t.check(found == wanted, "18 steps, everything as late as can be", found, wanted)


def taking_turns(t):
    """A run that goes from the processor to the GPU and back."""
    train(t, 1, "turns", "--kernels", "portable")
    train(t, 3, "turns", "--kernels", "cuda", "--replicas", "3", fresh=False)
    lines = train(t, 4, "turns", "--kernels", "portable", "--replicas", "2", fresh=False)[1]
    t.check(result(lines) == golden(GOLDEN, 4), "processor, GPU, processor", result(lines))


def hot_state(t):
    """Fetched from the GPU where it is said how often, and gone on from by whoever."""
    more = ["--set", "log_every_steps=1", "--set", "checkpoint.hot_steps=2"]
    wanted = result(train(t, 12, "undisturbed")[1])
    lines = train(t, 1, "off", "--kernels", "cuda")[1]
    t.check(any(line.startswith("hot state: off (GPUs keep") for line in lines), "off", lines)
    process = t.start("train", MATRIX, "--set", "steps=12", "--run-dir", "hot", "--kernels", "cuda",
                      "--replicas", "1", *more)
    for line in process.lines():
        if line.startswith("loss") and "step = 6 " in line.replace(",", " "):
            process.kill()
            break
    _, error = process.communicate()
    t.check(process.returncode == -signal.SIGKILL, "killed", process.returncode, error)
    lines = train(t, 12, "hot", "--replicas", "3", *more, fresh=False)[1]
    t.check(result(lines) == wanted, "the same bits", result(lines), wanted)
    began = value(lines, "weights of step")
    t.check("hot state" in began and int(began.split()[0]) in (6, 8, 10, 12), "from memory", began)


def evaluating(t):
    """Evaluation, logs, checkpoints and logits are those of the processor, byte for byte."""
    seen = {}
    for kernels, replicas in (("auto", 2), ("cuda", 1), ("cuda", 3)):
        directory = f"{kernels}{replicas}"
        same = ["--set", TEST_SET, "--kernels", kernels, "--replicas", str(replicas)]
        if replicas == 3:
            same += [*RESIDENT, *WAVE]
        lines = train(t, 3, directory, *same, "--set", "evaluate_every_steps=2", "--set",
                      "log_every_steps=1", "--set", "hash_every_steps=2", "--set",
                      "checkpoint.every_steps=2")[1]
        found = [value(lines, "test_loss"), value(lines, "test_accuracy"), *result(lines)]
        lines = t.expect(0, "eval", MATRIX, *same, "--run-dir", directory)[1]
        found += [value(lines, "test_loss"), value(lines, "digest")]
        t.expect(0, "predict", MATRIX, *same, "--run-dir", directory, "--output",
                 directory + ".npy")
        files = [directory + ".npy"] + [f"{directory}/{name}" for name in (
            "metrics.jsonl", "hashes.jsonl", "checkpoints/step-0000000002.safetensors",
            "checkpoints/step-0000000003.safetensors")]
        for name in files:
            with open(name, "rb") as f:
                found.append(f.read())
        seen[directory] = found
    for directory in ("cuda1", "cuda3"):
        t.check(seen[directory] == seen["auto2"], f"{directory} is not what auto2 is",
                [a == b for a, b in zip(seen[directory], seen["auto2"])])


def sharded(t):
    """Order "sharded", whose last step has positions without an example."""
    t.expect(0, "data", "shard", "--made-up", "1001", "--height", "10", "--width", "8", "--shards",
             "4", "--to", "shards")
    data = 'data={"order":"sharded","train":{"manifest":"shards/manifest.json"}}'
    wanted = train(t, 4, "sharded", "--kernels", "portable", "--set", data)[1]
    for row in ROWS[:4]:
        lines = train(t, 4, "sharded", "--kernels", "cuda", "--set", data, *row)[1]
        t.check(result(lines) == result(wanted), "sharded", row, result(lines), result(wanted))
        t.check(value(lines, "loss").split()[:2] == value(wanted, "loss").split()[:2], "loss", row)


def diverging(t):
    """The step and the tensor that a run which looks at every step reports."""
    said = []
    for rate in ("1e9",) if HOW_MUCH == "few" else ("1e9", "1e20", "3e38"):
        for kernels in ("portable", "cuda"):
            code, _, error = train(t, 50, "diverged", "--kernels", kernels, "--set",
                                   f"optimizer.learning_rate={rate}", code=80)
            said.append([line for line in error.splitlines() if line.startswith("lockstep:")])
        t.check(len(said[-1]) == 1 and said[-1] == said[-2], f"learning rate {rate}", *said[-2:])


def memory(t):
    """The plan is what is taken, and nothing is taken after the seal."""
    for row in MEMORY_ROWS:
        lines = t.expect(0, "plan", MATRIX, "--kernels", "cuda", "--json", *row)[1]
        plan = json.loads("\n".join(lines))
        gpu = plan["gpus"][0]
        end = max(r["offset"] + r["bytes"] * r["count"] for r in gpu["regions"])
        t.check(gpu["bytes"] == end, "the sum of the regions", gpu["bytes"], end)
        _, lines, error = train(t, 6, "memory", "--kernels", "cuda", *row)
        counts = COUNTS.search(error)
        if not t.check(counts, "no counts", error):
            continue
        after, taken, launches, graphs, waits = (int(c) for c in counts.groups())
        t.check(after == 0, f"{after} allocations after the seal")
        t.check(taken == gpu["bytes"], "taken and planned", taken, gpu["bytes"])
        t.check(graphs == 6 and launches % 6 == 0, f"{graphs} graphs, {launches} launches", row)
        t.check(any(f"{taken} bytes planned, external " in line for line in lines), "banner")
        # What was free at the seal is free at the end: the host layer's driver takes memory at the
        # first launch of each kernel. On a GPU others may have given some back.
        grown = int(re.search(r", (-?\d+) bytes by the driver", error).group(1))
        t.check(grown <= 0, f"the driver took {grown} bytes after the seal", row)
    # Nor is anything where evaluation launches what no step does: a test set of several
    # microbatches has nodes to join.
    large = 'data.test={"made_up":{"count":2053,"height":10,"width":8}}'
    error = train(t, 1, "memory", "--kernels", "cuda", "--replicas", "1", "--set", large, "--set",
                  "evaluate_every_steps=1")[2]
    t.check(re.search(r", (-\d+|0) bytes by the driver", error), "an evaluation", error)
    # Nobody waits for the results of steps that nobody looks at. The host goes once round the ring
    # of 4 steps without waiting, then waits for each half that it fills again.
    def waits_of(steps):
        return int(COUNTS.search(train(t, steps, "memory", "--kernels", "cuda")[2]).group(5))
    few, more = waits_of(8), waits_of(16)
    t.check(more - few == 4, "waits of 8 and 16 steps", few, more)


def left_in_parts(t):
    """Gradients are joined by the update where nobody else reads them (comm/cuda/left.h)."""
    ways = [(True, []), (True, ["--set", "layout.persistent=on"]),
            (True, ["--set", "global_batch=232"]),
            (False, ["--replicas", "2"]), (False, WAVE), (False, GUARDS),
            (False, ["--set", "optimizer.global_clipnorm=1"]),
            (False, ["--set", "precision=mixed_bfloat16"]),
            (False, ["--set", "arithmetic=fast", "--set", "fast_precision=tf32"])]
    for wanted, row in ways:
        row = ["--replicas", "1", *row] if "--replicas" not in row else row
        lines = t.expect(0, "plan", MATRIX, "--kernels", "cuda", "--json", *row)[1]
        regions = json.loads("\n".join(lines))["gpus"][0]["regions"]
        found = [r["bytes"] for r in regions if r["name"] == "gradients in parts"]
        t.check(bool(found and found[0]) == wanted, f"left in parts: {found}, {wanted}", *row)


def refused(t, code, text, *arguments, **environment):
    os.environ.update(environment)
    found, _, error = t.run("train", MATRIX, "--kernels", "cuda", "--run-dir", "refused",
                            "--fresh", *arguments)
    for name in environment:
        os.environ.pop(name)
    said = [line for line in error.splitlines() if not line.startswith("device: ")]
    t.check(found == code and len(said) == 1 and text in said[0], f"exit {found}, wanted {code}",
            f"wanted: {text}", *said)


GUARDS = ["--set", "layout.guards=true"]


def guards(t):
    """The checking mode: the same bits, its bytes are in the plan, and what it finds is said as a
    processor says it."""
    def bytes_of(*arguments):
        lines = t.expect(0, "plan", MATRIX, "--kernels", "cuda", "--json", *arguments)[1]
        return json.loads("\n".join(lines))["gpus"][0]
    for row in ROWS[-2:]:
        plain, checked = bytes_of(*row), bytes_of(*GUARDS, *row)
        t.check(plain["bytes"] < checked["bytes"], "in the plan", plain["bytes"], checked["bytes"])
        t.check(any(r["name"].startswith("guards") for r in checked["regions"]), "regions", checked)
        same = ["--kernels", "cuda", "--set", TEST_SET, "--set", "evaluate_every_steps=2", *row]
        seen = []
        for more in ([], GUARDS):
            _, lines, error = train(t, 4, "guards", *same, *more)
            seen.append([value(lines, "test_loss"), *result(lines)])
            counts = COUNTS.search(error)
            t.check(counts and counts.group(1) == "0", "after the seal", error)
            if more:
                t.check(counts.group(2) == str(checked_with(same, bytes_of)), "taken", error)
        t.check(seen[0] == seen[1] and tuple(seen[1][1:]) == tuple(golden(GOLDEN, 4)), "same bits",
                row, *seen)


def checked_with(same, bytes_of):
    return bytes_of(*GUARDS, *same[2:])["bytes"]


def broken_guards(t):
    """A kernel that writes behind its output, on the host layer (beyond.c)."""
    apart = ["--set", "layout.fuse=false"]
    line = ("guard: something wrote 0 bytes behind tensor conv1/relu (seen after relu_backward)")
    for beyond in ("1", "3"):
        for row in (apart, [*apart, "--replicas", "3", *WAVE]):
            refused(t, 70, line, *GUARDS, *row, LOCKSTEP_TEST_BEYOND=beyond)
    refused(t, 78, "layout.guards looks at every op", *GUARDS, "--set", "layout.persistent=on")
    # Nobody else sees it: bits change.
    os.environ["LOCKSTEP_TEST_BEYOND"] = "1"
    lines = train(t, 4, "beyond", "--kernels", "cuda", *apart)[1]
    os.environ.pop("LOCKSTEP_TEST_BEYOND")
    t.check(result(lines) != golden(GOLDEN, 4), "a write beyond changes bits", result(lines))


def refusing(t):
    refused(t, 64, "--seal: found with --kernels cuda", "--seal")
    lines = t.expect(0, "doctor")[1]
    t.check(any("use it with --kernels cuda" in line for line in lines), "doctor", *lines)


def refusing_on_host(t):
    refused(t, 69, 'kernels "cuda": no GPU can be used here', LOCKSTEP_HOST_CUDA_DEVICES="0")
    refused(t, 69, 'kernels "cuda": no GPU can be used here', LOCKSTEP_HOST_CUDA_DEVICES="-1")
    refused(t, 69, "not enough GPU memory: the plan needs", LOCKSTEP_HOST_CUDA_FAIL="cudaMalloc:1")
    refused(t, 69, "are missing; use fewer replicas", LOCKSTEP_HOST_CUDA_MEMORY="315000000")
    for call in ("cudaHostRegister:1", "cudaHostRegister:2", "cudaStreamCreateWithFlags:2",
                 "cudaEventCreateWithFlags:6", "cudaGraphInstantiate:2"):
        refused(t, 69, "GPU: ", LOCKSTEP_HOST_CUDA_FAIL=call)
    refused(t, 70, "GPU: a step", LOCKSTEP_HOST_CUDA_FAIL="cudaStreamSynchronize:5")
    refused(t, 70, "GPU: starting a step", LOCKSTEP_HOST_CUDA_FAIL="cudaGraphLaunch:3")


def wide(t):
    """Dense layers whose sums need scratch, on the chain and beside it at once."""
    layers = [{"type": "flatten", "name": "flat"}] + [
        {"type": "dense", "name": f"d{n}", "units": n, "activation": "relu"}
        for n in (33, 1300, 700, 31)] + [{"type": "dense", "name": "logits", "units": 10}]
    model = ["--set", "model.layers=" + json.dumps(layers), "--set", "global_batch=64"]
    wanted = result(train(t, 6, "wide", "--kernels", "portable", *model)[1])
    for seed in range(1, 3 if HOW_MUCH == "few" else 5):
        os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(seed)
        found = result(train(t, 6, "wide", "--kernels", "cuda", *model)[1])
        t.check(found == wanted, f"wide layers, seed {seed}", found, wanted)
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")


def other_losses(t):
    """Without labels: golden digests, and all that is logged, in both orders of the examples."""
    data = 'data={"order":"sharded","train":{"manifest":"shards/manifest.json"}}'
    more = ["--set", "log_every_steps=1", "--set", "evaluate_every_steps=3", "--set", TEST_SET]
    ways = [("autoencoder", ["--set", data]), ("score", [])]
    if HOW_MUCH in ("all", "device"):
        ways += [("autoencoder", []), ("score", ["--set", data])]
    for name, order in ways:
        model = model_of(MATRIX, name)
        wanted, found = (
            train(t, 4, kernels, "--kernels", kernels, *row, *model, *order, *more)[1]
            for kernels, row in (("portable", []), ("cuda", ROWS[1])))
        t.check(result(found) == result(wanted), name, *order, result(found), result(wanted))
        t.check(order or result(found) == golden(GOLDEN, 4, name), "golden", name)
        logs = []
        for kernels in ("portable", "cuda"):
            with open(f"{kernels}/metrics.jsonl", encoding="ascii") as f:
                logs.append(f.read())
        t.check(logs[0] == logs[1] and logs[0].count("\n") == 6, name, *order, *logs)


def main():
    t = Test()
    same_bits(t)
    round_the_ring(t)
    taking_turns(t)
    evaluating(t)
    hot_state(t)
    sharded(t)
    other_losses(t)
    wide(t)
    diverging(t)
    memory(t)
    left_in_parts(t)
    guards(t)
    refusing(t)
    if HOW_MUCH != "device":
        broken_guards(t)
        refusing_on_host(t)
    t.finish()


main()
