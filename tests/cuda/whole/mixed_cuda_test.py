#!/usr/bin/env python3
"""mixed_cuda_test - mixed precision on GPUs, which the host execution layer plays, as on
processors: the golden digests of one GPU, of several, and of workers whose hosts exchange;
overflows that are skipped or computed again, killed and gone on with by either; norms, positions
without an example, averages, sequences; logs, ends and what is refused.

   mixed_cuda_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON few|some|all [part ..]
"""
import json
import os
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../whole")]
import sequences_test  # noqa: E402
import world  # noqa: E402
from mixed_test import MODES, NORMS, hidden, odd  # noqa: E402
from program import SMALL, Test, golden, log_of, result  # noqa: E402
from world import end, gpu, shown, threads  # noqa: E402

MATRIX, GOLDEN = (os.path.abspath(a) for a in sys.argv[3:5])
FEW, ALL = sys.argv[5] == "few", sys.argv[5] == "all"
RUNS = os.path.dirname(MATRIX)
RESIDENT = ["--set", "layout.resident=true"]
WAVE = ["--set", "layout.wave_examples=48"]

NAMES = ["mixed_skip", "mixed_replay", "mixed_bfloat16", "mixed_norms", "mixed_transducer"]
ROWS = [["--replicas", "1"], ["--replicas", "2", "--set", "layout.fuse=false"],
        ["--replicas", "3", *WAVE], ["--gpus", "2", "--replicas", "3", *world.LAYERS]]
MIXES = [[threads(2), gpu()], [gpu(2), gpu()]]
STEPS = 9
TEST_SET = {"made_up": {"count": 150, "height": 10, "width": 10}}


def arguments(name, steps=4):
    return [os.path.join(RUNS, name + ".json"), "--run-dir", "run", "--fresh", "--set",
            f"steps={steps}"]


def check(name, lines, *what, steps=4):
    wanted = golden(GOLDEN, steps, name)
    T.check(result(lines) == wanted, name, *what, result(lines), wanted)


def one_process():
    """Step 4 is a short one. The first ones of mixed_skip and mixed_replay overflow."""
    for at, name in enumerate(NAMES[:3] if FEW else NAMES):
        rows = ROWS if ALL or at == 0 else ROWS[2:]
        if ALL and name != "mixed_transducer":
            rows = [*rows, ["--set", "layout.overlay=false", *RESIDENT]]
        for number, row in enumerate(rows):
            os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number + 1)
            check(name, T.expect(0, "train", *arguments(name), "--kernels", "cuda", *row)[1], *row)
        os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
    for row in ROWS[2:]:  # rows of two uses are widened, once discriminator steps overflow no more
        check("mixed_gan", T.expect(0, "train", *arguments("mixed_gan", 50), "--kernels", "cuda",
                                    *row)[1], *row, steps=50)
    for name in NAMES[:2] if ALL else []:  # the scale grows, and overflows again
        check(name, T.expect(0, "train", *arguments(name, 50), "--kernels", "cuda", "--replicas",
                             "2")[1], steps=50)


def by_way_of_hosts():
    for name in NAMES if ALL else NAMES[:2]:
        for mix in MIXES:
            code, lines, error = end(start(mix, [*arguments(name), "--collective", "mpi"]))
            T.check(code == 0, shown(mix), f"exit {code}, wanted 0", *error[-8:])
            check(name, lines, shown(mix))


def train(config, *more, fresh=True, code=0):
    return T.expect(code, "train", config, "--run-dir", "run", "--fresh" if fresh else "--resume",
                    *more)


def modes():
    """Bits, logs and evaluations of a processor; and a run that changes hands, the first step of
    which overflows, wherever it was computed."""
    for name, changes in MODES.items():
        config = T.write(name + ".json", {
            "steps": STEPS, "global_batch": 128, "evaluate_every_steps": 4,
            "optimizer.weight_average": 0.5, "data.test": TEST_SET, **changes})
        wanted, log = said_by(train(config, "--kernels", "portable")[1]), log_of("run")
        for row in (["--replicas", "3"], ["--gpus", "2", *RESIDENT]):
            found = said_by(train(config, "--kernels", "cuda", *row)[1])
            T.check(found == wanted and len(wanted) > 3, name, *row, found, wanted)
            T.check(log_of("run") == log, name, "the log", *row, log_of("run"), log)
        for before, after in (("portable", "cuda"), ("cuda", "portable")):
            train(config, "--kernels", before, "--set", "steps=5")
            found = train(config, "--kernels", after, "--replicas", "2", fresh=False)[1]
            T.check(result(found) == result(wanted), name, before, after, result(found))


def said_by(lines):
    return [line for line in lines if line.startswith(("test_", "digest ", "state_hash "))]


def killed():
    """On a GPU, and gone on with there or by a processor."""
    wanted = result(train("replay.json", "--kernels", "portable")[1])
    for seen, after in ((1, "cuda"), (6, "portable")):
        shutil.rmtree("run", ignore_errors=True)
        process = T.start("train", "replay.json", "--run-dir", "run", "--kernels", "cuda", "--set",
                          "checkpoint.every_steps=1")
        for line in process.lines():
            seen -= line.startswith("checkpoint step ")
            if seen <= 0:
                break
        process.kill()
        process.communicate()
        found = result(train("replay.json", "--kernels", after, fresh=False)[1])
        T.check(found == wanted, "killed", after, found, wanted)


def same(config):
    wanted = None
    for kernels, *more in (("portable",), ("cuda",), ("cuda", "--replicas", "3", *WAVE),
                           ("cuda", "--gpus", "2", *RESIDENT)):
        found = said_by(train(config, "--kernels", kernels, *more)[1])
        wanted = wanted or found
        T.check(found == wanted and len(wanted) > 1, config, kernels, *more, found, wanted)


# A convolution of odd rows and columns, whose pool drops the last of them, and its gradients.
ODD = [{"type": "conv2d", "filters": 3, "kernel_size": 2, "activation": "relu"},
       {"type": "max_pool2d", "pool_size": 2},
       {"type": "conv2d", "filters": 4, "kernel_size": 2}, {"type": "relu"},
       {"type": "flatten"}, {"type": "dense", "units": 10, "dtype": "float32"}]


def shapes():
    """A last grain of few examples, and positions that have none."""
    T.expect(0, "data", "shard", "--made-up", "203", "--height", "10", "--width", "10",
             "--shards", "4", "--to", "cut")
    cut = {"order": "sharded", "train": {"manifest": "cut/manifest.json"}}
    both = [(NORMS, "replay"), (ODD, "bfloat16")]
    for layers, name in both + ([(NORMS, "bfloat16"), (ODD, "skip")] if ALL else []):
        changes = {"steps": 3, "global_batch": 128, "grain": 8, "model.layers": layers,
                   **MODES[name]}
        same(T.write("whole.json", {**changes, "data.train.made_up.count": 203}))
        same(T.write("cut.json", {**changes, "data": cut}))


def divided():
    """Kernels that are divided, then rounded; a step that overflows moves no vector."""
    for name in ("skip", "replay") if ALL else ("skip",):
        changes = {**MODES[name], "steps": 5, "data.test": TEST_SET}
        for layer in range(len(SMALL["model"]["layers"])):
            if SMALL["model"]["layers"][layer]["type"] in ("conv2d", "dense"):
                changes[f"model.layers.{layer}.spectral_normalization"] = True
        same(T.write("divided.json", changes))


def sequences():
    for precision in ("mixed_float16", "mixed_bfloat16")[:1 + ALL]:
        sequences_test.same(T, {**sequences_test.sequences(), "precision": precision})
    sequences_test.same(T, {**sequences_test.strips(), "precision": "mixed_float16"})


def ends():
    """As processors say it."""
    for more in (["loss_scale.skips_max=4"],
                 ['loss_scale={"initial": 1073741824, "type": "static", "skips_max": 2}'],
                 ['loss_scale={"initial": 16777216, "floor": 8388608, "on_overflow": "replay"}'],
                 ['optimizer={"type": "sgd", "learning_rate": 1e6}', "loss_scale.initial=1",
                  "loss_scale.on_overflow=replay"]):
        options = [word for key in more for word in ("--set", key)]
        wanted = train("skip.json", "--kernels", "portable", *options, code=80)[2].splitlines()[0]
        for row in ([], ["--gpus", "2"]):
            found = train("skip.json", "--kernels", "cuda", *row, *options, code=80)[2]
            found = found.splitlines()[0]
            T.check(found == wanted, "how it ends", more, *row, found, wanted)
    found = train("bfloat16.json", "--kernels", "cuda", "--set", "arithmetic=fast", code=78)[2]
    T.check("in \"fast\" set fast_precision to \"bf16\" instead" in found, "fast", found)


def plan():
    """On a GPU, too, activations have half the bytes."""
    tensors = {}
    for precision in ("float32", "mixed_bfloat16"):
        said = json.loads("\n".join(T.expect(
            0, "plan", "bfloat16.json", "--json", "--kernels", "cuda", "--set",
            f"precision={precision}")[1]))
        tensors[precision] = {x["name"]: (x["dtype"], x["bytes"]) for x in said["tensors"]}
    for name in ("input", "conv", "dense", "conv/gradient", "dense/gradient"):
        wide, half = (tensors[p].get(name) for p in ("float32", "mixed_bfloat16"))
        T.check(wide and half == ("bf16", wide[1] // 2), "plan", name, wide, half)


def looks():
    odd(T, "cuda")
    hidden(T, "cuda")


def start(mix, words):
    return world.start(T, mix, words)


T = Test()
os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "2"
parts = (one_process, modes, divided, killed, ends, plan, looks)
for part in parts + (() if FEW else (shapes, sequences)):
    if not sys.argv[6:] or part.__name__ in sys.argv[6:]:
        began = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
world.main(T, start, MATRIX, 2, by_way_of_hosts)
