#!/usr/bin/env python3
"""nccl_test - several GPUs in one process: the golden digests, every call to NCCL, and what is said
when a GPU falls silent. GPUs and NCCL are played by the host execution layer.

   nccl_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON few|some|all
"""
import json
import os
import re
import sys
from collections import defaultdict

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../whole"))
from program import Test, golden, result, value  # noqa: E402

MATRIX, GOLDEN = (os.path.abspath(a) for a in sys.argv[3:5])
ALL, FEW = sys.argv[5:] == ["all"], sys.argv[5:] == ["few"]
COUNTS = re.compile(r"device: (\d+) allocations after the seal, (\d+) bytes")
LAYERS = ["--set", "layout.exchange_floats=1"]  # each layer travels alone
RESIDENT = ["--set", "layout.resident=true"]
TEST_SET = 'data.test={"made_up":{"count":150,"height":10,"width":8}}'

# Step 4 is a short one, of 232 of 256 examples: with 8 GPUs the last has one grain less.
ROWS = [
    ["--gpus", "1", "--replicas", "3"],
    ["--gpus", "2", "--replicas", "7", *LAYERS, "--set", "layout.wave_examples=16"],
    ["--gpus", "3", "--replicas", "5", *LAYERS],
    ["--gpus", "all", *LAYERS, *RESIDENT],
]
MORE_ROWS = [
    ["--gpus", "2"],
    ["--gpus", "3", "--replicas", "3", *RESIDENT, "--set", "layout.exchange_floats=700"],
    ["--gpus", "4", "--replicas", "16", *LAYERS],
    ["--gpus", "5", "--replicas", "11", "--set", "layout.fuse=false", *LAYERS],
    ["--gpus", "6", *LAYERS],
    ["--gpus", "7", "--replicas", "16", *LAYERS],
    ["--gpus", "8", "--replicas", "16", "--set", "layout.wave_examples=16"],
]


def train(t, steps, directory, *arguments, fresh=True, code=0):
    return t.expect(code, "train", MATRIX, "--set", f"steps={steps}", "--run-dir", directory,
                    "--fresh" if fresh else "--resume", *arguments)


def same_bits(t):
    seeds = range(6) if ALL else range(1)
    for number, row in enumerate(ROWS + (MORE_ROWS if ALL else [])):
        for seed in seeds:
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number + 100 * seed)
            lines = train(t, 4, "golden", "--kernels", "cuda", *row)[1]
            t.check(result(lines) == golden(GOLDEN, 4), " ".join(row),
                    f"seed {number + 100 * seed}", result(lines), golden(GOLDEN, 4))
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
    lines = train(t, 4, "golden", "--kernels", "cuda", *ROWS[2])[1]  # everything as late as can be
    t.check(result(lines) == golden(GOLDEN, 4), "without a seed", result(lines))
    if ALL:
        lines = train(t, 50, "golden", "--kernels", "cuda", *ROWS[2])[1]
        t.check(result(lines) == golden(GOLDEN, 50), "50 steps", result(lines))


def fast(t):
    """The fast arithmetic, too, is that of one GPU."""
    same = ["--kernels", "cuda", "--set", 'arithmetic="fast"', "--set", 'fast_precision="tf32"']
    wanted = train(t, 4, "fast", *same)[1]
    for row in ROWS[1:3] if FEW else ROWS[1:]:
        lines = train(t, 4, "fast", *same, *row)[1]
        t.check(result(lines) == result(wanted), "fast", row, result(lines), result(wanted))


def taking_turns(t):
    """A run that goes from the processor to three GPUs, to one and back."""
    train(t, 1, "turns", "--kernels", "portable")
    train(t, 2, "turns", "--kernels", "cuda", "--gpus", "3", fresh=False)
    train(t, 3, "turns", "--kernels", "cuda", fresh=False)
    lines = train(t, 4, "turns", "--kernels", "portable", "--replicas", "2", fresh=False)[1]
    t.check(result(lines) == golden(GOLDEN, 4), "processor, three GPUs, one, processor",
            result(lines))


def evaluating(t):
    """Evaluation, logs, checkpoints and logits are those of the processor, byte for byte."""
    seen = []
    for number, row in enumerate((["--kernels", "auto"], ["--kernels", "cuda", *ROWS[2]])):
        directory = f"evaluated{number}"
        same = ["--set", TEST_SET, *row]
        lines = train(t, 3, directory, *same, "--set", "evaluate_every_steps=2", "--set",
                      "log_every_steps=1", "--set", "hash_every_steps=2", "--set",
                      "checkpoint.every_steps=2")[1]
        found = [value(lines, "test_loss"), value(lines, "test_accuracy"), *result(lines)]
        t.expect(0, "predict", MATRIX, *same, "--run-dir", directory, "--output",
                 directory + ".npy")
        for name in (directory + ".npy", directory + "/metrics.jsonl", directory + "/hashes.jsonl",
                     directory + "/checkpoints/step-0000000002.safetensors"):
            with open(name, "rb") as f:
                found.append(f.read())
        seen.append(found)
    t.check(seen[0] == seen[1], "evaluation", [a == b for a, b in zip(*seen)])


def sharded(t):
    t.expect(0, "data", "shard", "--made-up", "1001", "--height", "10", "--width", "8", "--shards",
             "4", "--to", "shards")
    data = 'data={"order":"sharded","train":{"manifest":"shards/manifest.json"}}'
    wanted = train(t, 4, "sharded", "--kernels", "portable", "--set", data)[1]
    lines = train(t, 4, "sharded", "--kernels", "cuda", "--set", data, *ROWS[2])[1]
    t.check(result(lines) == result(wanted), "sharded", result(lines), result(wanted))


def diverging(t):
    """The step and the tensor that a run which looks at every step reports."""
    said = []
    for row in (["--kernels", "portable"], ["--kernels", "cuda", *ROWS[2]]):
        error = train(t, 50, "diverged", *row, "--set", "optimizer.learning_rate=1e20", code=80)[2]
        said.append([line for line in error.splitlines() if line.startswith("lockstep:")])
    t.check(len(said[0]) == 1 and said[0] == said[1], "diverging", *said)


# --- every call ----------------------------------------------------------------------------------


def read_calls(name):
    names = "rank group kind peer count type offset stream when".split()
    calls = []
    with open(name, encoding="ascii") as f:
        for line in f:
            call = dict(zip(names, line.split()))
            for key in ("rank", "group", "peer", "count", "offset", "stream"):
                call[key] = int(call[key])
            calls.append(call)
    return calls


def check_ends(t, calls, row):
    """What each rank sends another is what that one receives, in this order."""
    ends = {"send": defaultdict(list), "recv": defaultdict(list)}
    for c in calls:
        pair = (c["rank"], c["peer"]) if c["kind"] == "send" else (c["peer"], c["rank"])
        ends[c["kind"]][pair].append(c["count"])
    t.check(ends["send"] == ends["recv"], "sends and receives", row)
    return ends["send"]


def check_ranges(t, calls, plan, row):
    """Each end lies in a region of the exchange, and on one stream of its GPU."""
    streams = {(c["rank"], c["stream"]) for c in calls}
    t.check(len(streams) == len(plan["gpus"]), "one stream a GPU", row, streams)
    t.check({c["type"] for c in calls} == {"u8"}, "bytes, not numbers", row)
    for c in calls:
        regions = [r for r in plan["gpus"][c["rank"]]["regions"]
                   if r["name"].startswith("exchange: ")
                   and ("inbox" not in r["name"] or c["kind"] == "recv")
                   and ("whole nodes" not in r["name"] or c["kind"] == "send")]
        t.check(any(r["offset"] <= c["offset"] and
                    c["offset"] + c["count"] <= r["offset"] + r["bytes"] * r["count"]
                    for r in regions), "a buffer", row, c)


def every_call(t):
    for gpus in (1, 3, 8) if FEW else range(1, 9):
        row = ["--kernels", "cuda", "--gpus", str(gpus), *LAYERS]
        os.environ["LOCKSTEP_HOST_NCCL_LOG"] = "calls"
        open("calls", "w", encoding="ascii").close()
        train(t, 1, "calls_run", *row)
        os.environ.pop("LOCKSTEP_HOST_NCCL_LOG")
        plan = json.loads("\n".join(t.expect(0, "plan", MATRIX, "--json", *row)[1]))
        calls = read_calls("calls")
        t.check(len(plan["gpus"]) == gpus, "the plan shows every GPU", gpus)
        if gpus == 1:
            t.check(not calls, "one GPU calls NCCL", calls[:3])
            continue
        check_ranges(t, calls, plan, row)
        graph = [c for c in calls if c["when"] == "graph"]
        pairs = check_ends(t, [c for c in calls if c["when"] == "now"], row)
        t.check(len(pairs) == gpus * (gpus - 1), "every pair is connected at start-up", row)
        check_ends(t, graph, row)
        # The groups of a full step are the first half of those in graphs: a step of 256 examples
        # and the short one have as many.
        parts = len(plan["gpu_exchange"])
        groups = sorted({c["group"] for c in graph if c["rank"] == 0})
        t.check(len(groups) == 4 * parts, "two groups for each part of the exchange", row, groups)
        full = set()
        for rank in range(gpus):
            mine = sorted({c["group"] for c in graph if c["rank"] == rank})
            full |= set(mine[:len(mine) // 2])
        sent = sum(c["count"] for c in graph if c["kind"] == "send" and c["group"] in full)
        notes = 16 * gpus * (gpus - 1)
        t.check(sent == plan["gpu_exchange_bytes"] + notes, "bytes of a step", row, sent,
                plan["gpu_exchange_bytes"], notes)


def memory(t):
    for row in ROWS[2:3] if FEW else ROWS[1:]:
        lines = t.expect(0, "plan", MATRIX, "--kernels", "cuda", "--json", *row)[1]
        plan = json.loads("\n".join(lines))
        _, lines, error = train(t, 6, "memory", "--kernels", "cuda", *row)
        after, taken = (int(c) for c in COUNTS.search(error).groups())
        planned = sum(g["bytes"] for g in plan["gpus"])
        t.check(after == 0, f"{after} allocations after the seal", row)
        t.check(taken == planned, "taken and planned", row, taken, planned)
        t.check(sum("bytes planned, external" in line for line in lines) == len(plan["gpus"]),
                "a line for each GPU", row)
        t.check(re.search(r"^between \d GPUs: NCCL 2.28.9 moves", "\n".join(lines), re.M), "NCCL")
        t.check(value(lines, "collective:") == "nccl (auto: there are several GPUs)", "collective")


# --- what goes wrong -----------------------------------------------------------------------------


def refused(t, code, text, *arguments, **environment):
    os.environ.update(environment)
    found, _, error = t.run("train", MATRIX, "--run-dir", "refused", "--fresh", *arguments)
    for name in environment:
        os.environ.pop(name)
    said = [line for line in error.splitlines() if not line.startswith("device: ")]
    t.check(found == code and len(said) == 1 and re.search(text, said[0]),
            f"exit {found}, wanted {code}", f"wanted: {text}", *said)


def losing(t):
    three = ["--kernels", "cuda", "--gpus", "3", "--set", "steps=9"]
    error = r"rank 0 on .*: GPU {} of 3: remote process exited .*, noticed {}; .*--resume"
    dead = r"rank 0 on .*: one is silent for longer than --step-timeout \(1 s\), noticed {}; .*"
    step = r"at step \d in phase reduce"
    for fault in ("error:1:6", "error:2:9"):
        refused(t, 75, error.format(fault[6], step), *three, LOCKSTEP_HOST_NCCL_FAIL=fault)
    refused(t, 75, error.format(0, "at start-up"), *three, LOCKSTEP_HOST_NCCL_FAIL="error:0:0")
    refused(t, 75, dead.format(step), *three, "--step-timeout", "1",
            LOCKSTEP_HOST_NCCL_FAIL="dead:2:7")
    # While the GPUs are connected, and while a step is tried.
    for fault in ("dead:1:0", "dead:2:3"):
        refused(t, 75, dead.format("at start-up"), *three, "--step-timeout", "1",
                LOCKSTEP_HOST_NCCL_FAIL=fault)


def refusing(t):
    three = ["--kernels", "cuda", "--gpus", "3"]
    calls = ("ncclGetUniqueId:1", "ncclCommInitRankConfig:3", "ncclGroupStart:1", "ncclGroupEnd:2",
             "ncclSend:3", "ncclRecv:20", "ncclGroupEnd:5")
    for call in calls[4:] if FEW else calls:
        refused(t, 69, "NCCL: .*; use one GPU, the result is the same", *three,
                LOCKSTEP_HOST_CUDA_FAIL=call)
    for call in ("cudaMalloc:3", "cudaStreamCreateWithFlags:9", "cudaGraphInstantiate:2"):
        refused(t, 69, "GPU", *three, LOCKSTEP_HOST_CUDA_FAIL=call)
    refused(t, 69, "GPU 2 is wanted, and this process sees 2", *three,
            LOCKSTEP_HOST_CUDA_DEVICES="2")
    refused(t, 69, "GPU 8 is wanted", "--kernels", "cuda", "--gpu", "8")
    refused(t, 69, "no GPU can be used here", "--kernels", "cuda", "--gpus", "all",
            LOCKSTEP_HOST_CUDA_DEVICES="0")
    refused(t, 78, "3 GPUs for 2 replicas", *three, "--replicas", "2")
    refused(t, 78, "GPUs are asked for", "--kernels", "portable", "--gpus", "2")
    refused(t, 64, "--collective threads: found 3 GPUs", *three, "--collective", "threads")
    refused(t, 69, "--collective nccl: found 1 GPUs", "--kernels", "cuda", "--collective", "nccl")
    refused(t, 64, "--gpus: found", "--kernels", "cuda", "--gpus", "none")


def main():
    t = Test()
    os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "8"
    same_bits(t)
    fast(t)
    taking_turns(t)
    evaluating(t)
    sharded(t)
    diverging(t)
    every_call(t)
    memory(t)
    losing(t)
    refusing(t)
    t.finish()


main()
