#!/usr/bin/env python3
"""steps_test - whole steps of small models by the PTX that nvcc made, in several orders of warps
and blocks: the golden digests; and what was counted is what the launching code says of itself.

   steps_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON LAUNCHES some|all

PROGRAM is lockstep with the PTX executor as its GPU, LAUNCHES tells the launches of a step
(tests/cuda/launches). Exits 77 where there is no PROGRAM: no nvcc.
"""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../whole"), os.path.join(HERE, "../launches")]
if not os.path.exists(sys.argv[1]):
    print("skipped: no nvcc, so there is no PTX")
    sys.exit(77)
import counts  # noqa: E402
from budget_test import kernel_name, symbols  # noqa: E402
from program import Test, golden, result  # noqa: E402

MATRIX, GOLDEN, LAUNCHES = (os.path.abspath(a) for a in sys.argv[3:6])
ALL = sys.argv[6] == "all"
RUNS = os.path.dirname(MATRIX)
WAVE = ["--set", "layout.wave_examples=48"]
ROWS = [["--replicas", "1"], ["--replicas", "3", *WAVE], ["--set", "layout.resident=true"],
        ["--replicas", "2", "--set", "layout.overlay=false", "--set",
         "layout.dependent_launches=true"]]
SOME = ["adam", "augmented", "gan", "graph", "layered", "mixed_gan", "mixed_norms", "mixed_skip",
        "mixed_transducer", "norms", "spectral", "transducer", "unfolded", "weighted"]
NAMES = SOME if not ALL else sorted(
    name[:-5] for name in os.listdir(RUNS) if name.endswith(".json"))
STRIPS = ("cropped", "transducer", "mixed_transducer")  # which are not resident
COUNTED = ["matrix", "normed", "unfolded", "transducer"]


def train(t, name, steps, *row, seed=None):
    if seed is not None:
        os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(seed)
    lines = t.expect(0, "train", os.path.join(RUNS, name + ".json"), "--run-dir", "run", "--fresh",
                     "--set", f"steps={steps}", "--kernels", "cuda", *row)[1]
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED", None)
    return result(lines)


def same_bits(t):
    for number, seed in enumerate((None, 1, 2, 3)):
        steps, row = (20, 20, 4, 4)[number], ROWS[number]
        found = train(t, "matrix", steps, *row, seed=seed)
        t.check(found == golden(GOLDEN, steps), "matrix", seed, *row, found)
    for number, name in enumerate(NAMES):
        for seed in (number, number + 100) if ALL else (number,):
            row = ROWS[seed % len(ROWS)] if name not in STRIPS else ROWS[seed % 2]
            found = train(t, name, 4, *row, seed=seed)
            t.check(found == golden(GOLDEN, 4, name), name, seed, *row, found)


def told(config):
    """(launches, blocks, fma) of each kernel, as the launching code has them."""
    with open(config, encoding="utf-8") as f:
        batch = str(json.load(f)["global_batch"])
    done = subprocess.run([LAUNCHES, config, batch], stdout=subprocess.PIPE, text=True, check=True)
    names, found = symbols(LAUNCHES), {}
    for line in done.stdout.splitlines():
        launch = json.loads(line)
        if "kernel" not in launch:  # of the step as a persistent kernel
            continue
        name = kernel_name(names[launch["kernel"]])
        before = found.get(name, (0, 0, 0))
        blocks = launch["blocks"][0] * launch["blocks"][1] * launch["blocks"][2]
        found[name] = tuple(map(sum, zip(before, (1, blocks, launch["fma"]))))
    return found


def costs(t):
    """Every launch of a step was told, with its blocks; and of those that multiply matrices the
    multiply-adds are as many as told, each of them. Recurrent cells have some of their own."""
    for name in COUNTED:
        os.environ["LOCKSTEP_PTX_COUNTS"] = "counts.json"
        train(t, name, 1, "--replicas", "1")
        del os.environ["LOCKSTEP_PTX_COUNTS"]
        found, wanted = counts.read("counts.json"), told(os.path.join(RUNS, name + ".json"))
        t.check(set(wanted) <= set(found), name, set(wanted) ^ set(found))
        products = 0
        for kernel, (launches, blocks, fma) in wanted.items():
            ran = found[kernel]
            t.check((ran["launches"], ran["blocks"]) == (launches, blocks), name, kernel,
                    ran["launches"], ran["blocks"], launches, blocks)
            done = counts.sum_of(ran, "lanes", ("fma",))
            products += fma
            right = fma in (0, done) or (kernel.startswith("sums") and "recurrent" in kernel
                                         and fma < done < 2 * fma)
            t.check(right, name, kernel, f"{done} multiply-adds, told {fma}")
        t.check(products > 10 ** 5, name, products)
    dearer = counts.read("counts.json")
    dearer.pop("step_end")
    dearer["load"]["diverged"] += 1
    said = counts.differences(counts.read("counts.json"), dearer)
    t.check(len(said) == 2 and said[0].startswith("load: parted ") and said[1] == "step_end: gone",
            "what a change costs", *said)


def main():
    t = Test()
    same_bits(t)
    costs(t)
    t.finish()


if __name__ == "__main__":
    main()
