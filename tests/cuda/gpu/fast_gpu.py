#!/usr/bin/env python3
"""fast_gpu - the fast arithmetic on the GPU at hand: the same bits for 4 replicas as for 1, for
waves of any size and for one op a layer; an accuracy like that of the strict arithmetic, and images
a second beside it.

   fast_gpu.py PROGRAM WORK_DIR CONFIG [--set KEY=VALUE ..]

CONFIG names a test set; accuracies on it may differ by POINTS per cent. Standard library only;
exit code 77 where there is no GPU or no cuBLAS.
"""
import os
import re
import shutil
import subprocess
import sys

POINTS = 2.0
PRECISIONS = ("tf32", "bf16", "fp16")
WAYS = [[], ["--replicas", "4"], ["--replicas", "3", "--set", "layout.resident=true"],
        ["--set", "layout.fuse=false"]]


class Failed(Exception):
    pass


def run(program, *arguments, codes=(0,)):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace")
    if done.returncode not in codes:
        raise Failed(f"lockstep {' '.join(arguments)}\nexit {done.returncode}: {done.stderr}")
    return done.returncode, done.stdout, done.stderr


def after(key, text):
    """What follows `key` on the last line that starts with it."""
    return re.findall(rf"^{key} (.*)$", text, re.M)[-1]


def train(program, config, settings, directory, *more):
    return run(program, "train", config, *settings, "--kernels", "cuda", "--fresh", "--run-dir",
               directory, *more)[1]


def fast(precision):
    return ["--set", "arithmetic=fast", "--set", f"fast_precision={precision}"]


def speed(text):
    return re.search(r"([\d.]+) images/s", text).group(1)


def same_bits(program, config, settings):
    for precision in PRECISIONS:
        found = {}
        text = run(program, "plan", config, *settings, "--kernels", "cuda", *fast(precision))[1]
        grain = re.search(r"grains of (\d+);", text).group(1)
        for way in WAYS + [["--set", f"layout.wave_examples={grain}"]]:
            text = train(program, config, settings, f"bits-{precision}", *fast(precision), *way)
            found[" ".join(way) or "1 replica"] = after("digest", text)
        if len(set(found.values())) != 1:
            raise Failed(f"{precision}: bits depend on who computes what: {found}")
        print(f"{precision}: one digest in {len(found)} ways, {next(iter(found.values()))}")


def accuracy(program, config, settings):
    strict = train(program, config, settings, "strict")
    wanted = float(after("test_accuracy", strict))
    print(f"strict: accuracy {wanted:.2f}%, {speed(strict)} images/s")
    for precision in PRECISIONS:
        text = train(program, config, settings, precision, *fast(precision))
        found = float(after("test_accuracy", text))
        print(f"{precision}: accuracy {found:.2f}%, {speed(text)} images/s")
        if abs(found - wanted) > POINTS:
            raise Failed(f"{precision}: accuracy {found}, strict {wanted}: over {POINTS} apart")
        apart = run(program, "diff", "strict", precision, "--tolerance", "2", codes=(0, 1))[1]
        print("  " + "\n  ".join(line for line in apart.splitlines() if "largest" in line))


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    program, work, config = sys.argv[1:4]
    program = os.path.abspath(program)
    config = os.path.abspath(config) if os.path.exists(config) else config
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    os.chdir(work)
    code, _, error = run(program, "train", config, *sys.argv[4:], "--kernels", "cuda", "--fresh",
                         "--run-dir", "first", "--set", "steps=1", *fast("tf32"), codes=(0, 69))
    if code == 69:
        print("skipped:", error.strip())
        sys.exit(77)
    try:
        same_bits(program, config, sys.argv[4:])
        accuracy(program, config, sys.argv[4:])
    except Failed as failed:
        sys.exit(f"FAILED: {failed}")


main()
