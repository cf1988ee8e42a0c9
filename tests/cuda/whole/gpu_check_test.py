#!/usr/bin/env python3
"""gpu_check_test - toolchain/gpu-check where there is no GPU: what it says, and, with the programs
of the host execution layer in the place of a GPU's, what it does.

   gpu_check_test.py LOCKSTEP_ON_HOST WORK_DIR GPU_CHECK MEASURE KERNELS CONV_KERNELS SEQUENCE
                     TRANSDUCER UPDATE
"""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../whole"))
from program import Test  # noqa: E402

GPU_CHECK, *PROGRAMS = (os.path.abspath(path) for path in sys.argv[3:10])
NAMES = ("gpu_measure", "gpu_kernels_test", "gpu_conv_kernels_test",
         "gpu_sequence_test", "gpu_transducer_test", "gpu_update_test")
# Stands before the program: a benchmark is the processor's, or the digests are not its own.
STAND_IN = """#!/bin/sh
case "$1" in
bench) exec "$PROGRAM" bench --json --cases mnist-cnn-64 --seconds 0.1 --rounds 1 ;;
train) "$PROGRAM" "$@" | sed "$CHANGE" ;;
*) exec "$PROGRAM" "$@" ;;
esac
"""


def gpu_check(*arguments, **environment):
    done = subprocess.run([sys.executable, GPU_CHECK, "--quick", *arguments], timeout=280,
                          capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def rows_of(file):
    with open(file, encoding="utf-8") as f:
        return {row["part"]: row for row in json.load(f)["parts"]}


def without_a_gpu(t):
    for environment in ({"LOCKSTEP_HOST_CUDA_DEVICES": "0"}, {"LOCKSTEP_HOST_CUDA_DEVICES": "-1"}):
        code, out, error = gpu_check("--program", t.program, **environment)
        t.check(code == 69 and not out and error.count("\n") == 1
                and error.startswith("gpu-check: no GPU can be used here: "), code, out, error)
    code, out, error = gpu_check("--only", "kernels,nothing")
    t.check(code == 64 and "\"nothing\"" in error, "a part that is not there", code, error)


def with_all(t):
    """Every part that the host layer can play; the others say why not."""
    parts = "kernels,equal,gpus,workers,fast,allocations,memory,measure,bench"
    code, out, error = gpu_check("--program", "program", "--tests", "tests", "--to", "all.json",
                                 "--only", parts, "--work", "work",
                                 LOCKSTEP_HOST_CUDA_DEVICES="3")
    t.check(code == 0, "gpu-check", code, out, error)
    rows = rows_of("all.json")
    for name in ("kernels", "equal", "gpus", "workers", "fast", "allocations", "measure", "bench"):
        t.check(rows[name]["status"] == "ok", name, rows[name])
    t.check("4 workers by nccl: not run: " in rows["workers"]["text"], rows["workers"])
    for name, key in (("bench", "64"), ("measure", "chain_term_ns"), ("allocations", "bytes"),
                      ("fast", "bf16")):
        t.check(rows[name]["figures"].get(key), f"{name} has no {key}", rows[name])
    t.check(out.count("\n") == len(rows) + 2, "a line for each part", out)


def with_faults(t):
    """Wrong bits and a failing test are found; what is missing is said; the rest is run."""
    os.remove("tests/gpu_measure")
    os.remove("tests/gpu_update_test")
    os.symlink("/bin/false", "tests/gpu_update_test")
    code, out, error = gpu_check("--program", "program", "--tests", "tests", "--to", "faults.json",
                                 "--only", "kernels,equal,gpus,allocations,measure",
                                 "--work", "work", LOCKSTEP_HOST_CUDA_DEVICES="2",
                                 CHANGE="s/^digest ./digest 0/")
    rows = rows_of("faults.json")
    found = {name: row["status"] for name, row in rows.items()}
    t.check(code == 1 and found == {"kernels": "FAILED", "equal": "FAILED", "gpus": "FAILED",
                                    "allocations": "ok", "measure": "not run"},
            found, code, out, error)
    t.check("no gpu_measure" in rows["measure"]["text"], rows["measure"])


def main():
    t = Test()
    os.mkdir("tests")
    for name, path in zip(NAMES, PROGRAMS):
        os.symlink(path, "tests/" + name)
    os.symlink(t.program, "tests/lockstep_on_gpu")
    with open("program", "w", encoding="utf-8") as f:
        f.write(STAND_IN)
    os.chmod("program", 0o755)
    os.environ.update(PROGRAM=t.program, CHANGE="")
    without_a_gpu(t)
    with_all(t)
    with_faults(t)
    t.finish()


main()
