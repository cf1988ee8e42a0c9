#!/usr/bin/env python3
"""objectives_test - models of several networks and objectives with --kernels cuda: one digest and
state hash on processors and GPUs, whatever the row; logs, evaluations and pictures, too; a run that
is killed and goes on in every position of the cycle; several GPUs over NCCL, and beside processors.
GPUs and NCCL are played by the host execution layer.

   objectives_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON few|some|all [PART..]
"""
import json
import os
import re
import shutil
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../whole")]
import world  # noqa: E402
from program import Test, golden, result, value  # noqa: E402

MATRICES = os.path.dirname(os.path.abspath(sys.argv[3]))
GOLDEN = os.path.abspath(sys.argv[4])
FEW, ALL = sys.argv[5] == "few", sys.argv[5] == "all"
COUNTS = re.compile(r"device: (\d+) allocations after the seal, (\d+) bytes, (\d+) launches, "
                    r"(\d+) graph launches")
TEST_SET = ["--set", 'data.test={"made_up":{"first":5000,"count":150,"height":10,"width":8}}']
LOGGED = ["--set", "log_every_steps=1", "--set", "hash_every_steps=1"]
CUDA = ["--kernels", "cuda"]

# In batches of 256 examples step 4 of an epoch is a short one, of 232.
ROWS = [
    ["--replicas", "1"],
    ["--replicas", "3", "--set", "layout.resident=true", "--set", "layout.wave_examples=64"],
    ["--replicas", "2", "--set", "layout.overlay=false", "--set", "layout.fuse=false"],
    ["--gpus", "3", "--replicas", "5", "--set", "layout.exchange_floats=1"],
    ["--gpus", "2", "--replicas", "2", "--set", "layout.resident=true"],
]
ROWS = [ROWS[1], ROWS[3]] if FEW else ROWS

# Losses of images, of noise alone and of labels; norms, regularizers and averages, each in one of
# the objectives; a kernel that is divided, in two uses, and in a step that does not train it;
# batches that objectives share unevenly; statistics that one of them moves.
SHARED = {
    "input": [10, 8, 1], "classes": 10,
    "networks": [
        {"name": "flat", "layers": [{"type": "flatten"}]},
        {"name": "maker", "inputs": [[7]], "layers": [
            {"type": "dense", "name": "seed", "units": 80},
            {"type": "reshape", "name": "image", "target_shape": [10, 8, 1]},
            {"type": "batch_normalization", "name": "norm"},
            {"type": "tanh", "name": "curve"}, {"type": "flatten", "name": "row"}]},
        {"name": "coder", "inputs": [[80]], "layers": [
            {"type": "dense", "name": "code", "units": 12, "activation": "leaky_relu",
             "spectral_normalization": True},
            {"type": "layer_normalization", "name": "even"}]},
        {"name": "head", "inputs": [[12]], "layers": [
            {"type": "dense", "name": "logits", "units": 10,
             "kernel_regularizer": {"l2": 0.01}}]}],
    "objectives": [
        {"name": "dream", "values": [
            {"name": "z", "noise": {"type": "truncated_normal", "shape": [7]}},
            {"name": "made", "network": "maker"}, {"name": "code", "network": "coder"}],
         "trains": ["maker"], "loss": {"type": "mean", "scale": -1},
         "optimizer": {"type": "sgd", "learning_rate": 0.01, "clipnorm": 0.5}},
        {"name": "match", "values": [
            {"name": "x", "network": "flat"}, {"name": "a", "network": "coder"},
            {"name": "z", "noise": {"type": "uniform", "shape": [7], "low": -1}},
            {"name": "made", "network": "maker"}, {"name": "b", "network": "coder"}],
         "trains": ["coder", "maker"],
         "loss": {"type": "mean_squared_error", "inputs": ["b", "a"]},
         "optimizer": {"type": "momentum", "learning_rate": 0.01}},
        {"name": "label", "values": [
            {"name": "x", "network": "flat"}, {"name": "a", "network": "coder"},
            {"name": "logits", "network": "head"}],
         "trains": ["coder", "head"],
         "optimizer": {"type": "adam_keras", "learning_rate": 0.01}}],
    "schedule": [["dream", 3], ["match", 1], ["label", 2]]}


def configurations(t):
    t.write("shared.json", {"model": SHARED, "global_batch": 256, "grain": 16, "steps": 4,
                            "name": "shared",
                            "data.train.made_up": {"count": 1000, "height": 10, "width": 8}},
            ["optimizer"])
    return {"shared": os.path.abspath("shared.json"),
            **{name: f"{MATRICES}/{name}.json" for name in ("gan", "objectives")}}


def train(t, config, steps, directory, *arguments, fresh=True, code=0):
    return t.expect(code, "train", config, "--set", f"steps={steps}", "--run-dir", directory,
                    "--fresh" if fresh else "--resume", *arguments)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def same_bits(t, configs):
    for name, config in configs.items():
        wanted = {steps: result(train(t, config, steps, "cpu", "--kernels", "portable")[1])
                  for steps in (4, 27)}
        if name != "shared":
            t.check(wanted[4] == golden(GOLDEN, 4, name), "golden", name, wanted[4])
        for number, row in enumerate(ROWS):
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number)
            for steps in (4, 27) if ALL or number == 1 else (27,):
                found = result(train(t, config, steps, "gpu", *CUDA, *row)[1])
                t.check(found == wanted[steps], name, steps, *row, found, wanted[steps])
        os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
        found = result(train(t, config, 27, "gpu", *CUDA)[1])
        t.check(found == wanted[27], name, "everything as late as can be", found)


def logged(t, configs):
    """All that a run writes, and says of its test set."""
    for name, config in configs.items():
        more = [*LOGGED, *TEST_SET, "--set", "evaluate_every_steps=5", "--set",
                "checkpoint.every_steps=6"]
        seen = []
        for directory, row in (("cpu", ["--kernels", "portable", "--replicas", "2"]),
                               ("gpu", [*CUDA, *ROWS[1]])):
            train(t, config, 12, directory, *more, *row)
            said = t.expect(0, "eval", config, "--run-dir", directory, *TEST_SET, *row)[1]
            said = [value(said, key) for key in ("digest", "test_loss", "test_accuracy",
                                                 "generator_loss", "discriminator_loss")
                    if any(line.startswith(key) for line in said)]
            seen.append([said] + [read(f"{directory}/{file}") for file in (
                "metrics.jsonl", "hashes.jsonl", "checkpoints/step-0000000006.safetensors",
                "checkpoints/step-0000000012.safetensors")])
        t.check(seen[0] == seen[1], name, "logs", [a == b for a, b in zip(*seen)], seen[0][0],
                seen[1][0], seen[0][1][-300:], seen[1][1][-300:])


def going_on(t, configs):
    """From the processor to the GPU and back, in every position of the cycle."""
    for name, cycle in (("gan", 11), ("shared", 6)):
        config = configs[name]
        wanted = result(train(t, config, cycle + 2, "whole", "--kernels", "portable")[1])
        rows = [[*CUDA], ["--kernels", "portable", "--replicas", "2"], [*CUDA, *ROWS[1]]]
        for step in range(1, cycle + 3):
            lines = train(t, config, step, "parts", *rows[step % 3], fresh=step == 1)[1]
        t.check(result(lines) == wanted, name, "in parts", result(lines), wanted)


def killed(t, configs):
    config, more = configs["gan"], ["--set", "checkpoint.every_steps=3", *LOGGED]
    wanted = result(train(t, config, 24, "whole", "--kernels", "portable")[1])
    process = t.start("train", config, "--set", "steps=100000", "--run-dir", "killed", "--fresh",
                      *CUDA, *more)
    for line in process.lines():
        if re.search(r"cycle = 2, step = ", line):
            process.kill()
            break
    _, error = process.communicate()
    t.check(process.returncode == -signal.SIGKILL, "killed", process.returncode, error[-500:])
    lines = train(t, config, 24, "killed", *CUDA, *ROWS[0], *more, fresh=False)[1]
    t.check(result(lines) == wanted, "killed", result(lines), wanted)


def pictures(t, configs):
    """Of a GPU's training, and of its checkpoint by either."""
    config = configs["gan"]
    more = ["--set", "samples.every_steps=5", "--set", "samples.count=10"]
    kinds = (("cpu", ["--kernels", "portable"]), ("gpu", CUDA), ("gpus", [*CUDA, *ROWS[-1]]),
             ("guards", [*CUDA, "--set", "layout.guards=true"]))
    for directory, row in kinds:
        lines = train(t, config, 10, directory, *more, *row)[1]
        for name in ("samples-0000000005.png", "samples-0000000010.png"):
            t.check(read(f"{directory}/{name}") == read(f"cpu/{name}"), directory, name)
    t.check(result(lines) == result(train(t, config, 10, "plain")[1]), "they change nothing")
    for number, choice in enumerate((["--count", "300"], ["--count", "5", "--between", "2,6"])):
        made = []
        for directory, row in (kinds[0], kinds[1], kinds[3],
                               ("gpu", [*CUDA, "--set", "layout.wave_examples=64"])):
            t.expect(0, "generate", config, "--run-dir", directory, "--output", "made.npy",
                     *choice, *row[:4])
            made.append(read("made.npy"))
        t.check(all(one == made[0] for one in made), "generate", *choice, number)


def memory(t, configs):
    """The plan is what is taken, and nothing is taken after the seal."""
    for name, config in configs.items():
        for row in (ROWS[0], ["--set", "samples.every_steps=5"] if name == "gan" else ROWS[1]):
            lines = t.expect(0, "plan", config, *CUDA, "--json", *row)[1]
            plan = json.loads("\n".join(lines))
            for gpu in plan["gpus"]:
                end = max(r["offset"] + r["bytes"] * r["count"] for r in gpu["regions"])
                t.check(gpu["bytes"] == end, name, "the sum of the regions", gpu["bytes"], end)
            error = train(t, config, 12, "memory", *CUDA, *row)[2]
            counts = COUNTS.search(error)
            if not t.check(counts, "no counts", error):
                continue
            after, taken, _, graphs = (int(c) for c in counts.groups())
            t.check(after == 0, name, f"{after} allocations after the seal")
            planned = sum(gpu["bytes"] for gpu in plan["gpus"])
            t.check(taken == planned, name, "taken and planned", taken, planned)
            t.check(graphs == 12 * len(plan["gpus"]), name, "graphs", graphs)


def sharded(t, configs):
    """Order "sharded", whose short steps have positions without an example."""
    t.expect(0, "data", "shard", "--made-up", "1001", "--height", "10", "--width", "8", "--shards",
             "4", "--to", "shards")
    data = ["--set", 'data={"order":"sharded","train":{"manifest":"shards/manifest.json"}}']
    for name, config in configs.items():
        wanted = result(train(t, config, 24, "sharded", "--kernels", "portable", *data)[1])
        for row in ROWS[1:2]:
            found = result(train(t, config, 24, "sharded", *CUDA, *row, *data)[1])
            t.check(found == wanted, name, "sharded", *row, found, wanted)


def mixed(t, configs):
    """In mixed precision: the rows of several uses are widened. Steps that overflow are skipped or
    computed again; positions have no example; images are made."""
    golden_gan = f"{MATRICES}/mixed_gan.json"
    for steps in (4, 50) if ALL else (50,):
        lines = train(t, golden_gan, steps, "golden", *CUDA, *ROWS[1])[1]
        t.check(result(lines) == golden(GOLDEN, steps, "mixed_gan"), "golden", steps, lines)
    data = 'data={"order":"sharded","train":{"manifest":"shards/manifest.json"}}'
    scale = 'loss_scale={"initial":16777216,"growth_steps":6,"on_overflow":"%s"}'
    modes = [["precision=mixed_bfloat16", data],
             ["precision=mixed_float16", scale % "replay"],
             ["precision=mixed_float16", scale % "skip", "layout.fuse=false"]]
    for name, config in {**configs, "spectral": f"{MATRICES}/spectral.json"}.items():
        for mode in modes if ALL else [modes[len(name) % 2]]:
            more = [word for change in mode for word in ("--set", change)]
            wanted = result(train(t, config, 24, "cpu", "--kernels", "portable", *more)[1])
            for row in ROWS[1:4]:
                found = result(train(t, config, 24, "gpu", *CUDA, *row, *more)[1])
                t.check(found == wanted, name, "mixed", *row, *mode, found, wanted)
    for directory, row in (("cpu", ["--kernels", "portable"]), ("gpu", CUDA)):
        t.expect(0, "generate", golden_gan, "--run-dir", "golden", "--output", f"{directory}.npy",
                 "--count", "30", *row)
    t.check(read("cpu.npy") == read("gpu.npy"), "images of mixed precision")


MIXES = [
    ([world.threads(), world.gpu()], "mpi"),
    ([world.gpus(2, 2), world.threads(2), world.gpu(1, *world.LAYERS)], "messages"),
    ([world.gpu(), world.gpus(2, 3)], "nccl"),
]


def several_workers(t, configs):
    """Staged beside processors, and directly."""
    if not shutil.which("mpiexec"):
        print("not done with workers: there is no mpiexec")
        return
    for name, config in configs.items():
        wanted = result(train(t, config, 13, "whole", "--kernels", "portable", *TEST_SET)[1])
        for mix, way in MIXES[name != "gan":] if FEW else MIXES:
            code, lines, error = world.end(world.start(
                t, mix, [config, "--run-dir", "mix", "--fresh", "--collective", way, "--set",
                         "steps=13", "--set", "evaluate_every_steps=6", *TEST_SET],
                {"UCX_TLS": "tcp,self"} if way == "messages" else None))
            if code == 69 and any("has no MPI" in line for line in error):
                print("not done with workers: this build has no MPI")
                return
            t.check(code == 0 and result(lines) == wanted, name, world.shown(mix), way, code,
                    error[-4:], result(lines), wanted)


def main():
    t = Test()
    os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "8"
    configs = configurations(t)
    for part in (same_bits, logged, going_on, killed, pictures, memory, sharded, mixed,
                 several_workers):
        if not sys.argv[6:] or part.__name__ in sys.argv[6:]:
            part(t, configs)
    t.finish()


main()
