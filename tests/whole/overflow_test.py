#!/usr/bin/env python3
"""overflow_test - overflows in chosen grains: an example here and there, of a class that counts
four times, overflows in 16 bits at a scale that all others bear. Whoever computes it, in whatever
order and company, the same steps are skipped or computed again, and the result is one; killed while
a step is computed again, a run goes on to the same one. What no scale cures ends it.

   overflow_test.py PROGRAM WORK_DIR STRIKE_PROGRAM [few]

With `few` a third of the ways to compute it.
"""
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys

from program import Test, log_of, result

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ops"))
sys.dont_write_bytecode = True
from arithmetic_judge import perm

STRIKE, FEW = os.path.abspath(sys.argv[3]), sys.argv[4:] == ["few"]
SEED, COUNT, BATCH, GRAIN, STEPS = 11, 326, 64, 4, 14
EPOCH = -(-COUNT // BATCH)
# Where those lie in the first epoch: the first example of the first of 16 grains, the last of the
# last, two in the same step, the last of a grain of two.
CHOSEN = [1 * BATCH, 2 * BATCH + 63, 3 * BATCH + 21, 3 * BATCH + 50, 5 * BATCH + 5]
HEAVY = 9
# At 2^15 such an example has a gradient of some 0.9 * 4 * 2^15; 65,504 is the largest of float16.
SCALE = {"initial": 2 ** 15, "growth_steps": 1}
MODES = {
    "static": ("mixed_float16", {"type": "static"}),
    "skip": ("mixed_float16", SCALE),
    "replay": ("mixed_float16", {**SCALE, "on_overflow": "replay"}),
}
LIMIT = {"heavy": 2 ** 15, "light": 2 ** 17}  # scales from which an example overflows


def write_data():
    r = random.Random(4)
    heavy = {perm(SEED, 0, COUNT, position) for position in CHOSEN}
    labels = bytes(HEAVY if i in heavy else r.randrange(HEAVY) for i in range(COUNT))
    images = bytes(r.randrange(256) for _ in range(COUNT * 36))
    for name, sizes, data in (("images", (COUNT, 6, 6), images), ("labels", (COUNT,), labels)):
        with open(name, "wb") as f:
            f.write(struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + data)
    return heavy


def write_config(t, name, precision, scale, weight=4):
    return t.write(name + ".json", {
        "seed": SEED, "global_batch": BATCH, "grain": GRAIN, "steps": STEPS,
        "precision": precision, "checkpoint.every_steps": 4,
        "model": {"input": [6, 6, 1], "classes": 10, "layers": [
            {"type": "flatten"}, {"type": "dense", "units": 12, "activation": "relu"},
            {"type": "dense", "units": 10}],
            "loss": {"type": "sparse_categorical_crossentropy",
                     "class_weight": {str(HEAVY): weight}}},
        "optimizer": {"type": "adam_keras", "learning_rate": 0.0005},
        "data": {"train": {"images": "images", "labels": "labels"}},
        **({"loss_scale": scale} if scale else {})})


def batch(step):
    """The examples of a step."""
    first = step % EPOCH * BATCH
    return {perm(SEED, step // EPOCH, COUNT, first + p) for p in range(min(BATCH, COUNT - first))}


def expected(heavy, scale_of):
    """After each step: scale, skipped steps, computations that were thrown away."""
    fixed, again = scale_of.get("type") == "static", "on_overflow" in scale_of
    scale, skipped, replayed, out = 2 ** 15, 0, 0, []
    for step in range(STEPS):
        limit = LIMIT["heavy" if heavy & batch(step) else "light"]
        over = scale >= limit
        while scale >= limit and again:
            scale, replayed, over = scale // 2, replayed + 1, False
        skipped += over
        if not fixed:
            scale = scale // 2 if over else scale * 2
        out.append((scale, skipped, replayed))
    return out


def everywhere(t, name, config, heavy):
    """Replicas, kernels, waves of single grains, workers: one result, one log, and the log says
    what the labels let one expect."""
    wanted = result(t.expect(0, "train", config, "--run-dir", name, "--replicas", "1")[1])
    log, said = log_of(name), [json.loads(line)["train"] for line in log_of(name).splitlines()]
    found = [(line["loss_scale"], line["skipped"], line["replayed"]) for line in said]
    t.check(all(wanted) and found == expected(heavy, MODES[name][1]), name, found,
            expected(heavy, MODES[name][1]))
    ways = [["train", config, *more.split()] for more in (
        "--replicas 1 --set layout.wave_examples=4", "--replicas 3 --kernels portable",
        "--replicas 2 --set layout.wave_examples=8 --set layout.reduce=operands",
        "--replicas 8 --set layout.reduce=partials", "--replicas 16")]
    ways += [["launch", "--workers", w, "--replicas", r, "train", config, *more]
             for w, r, more in (("2", "1", []), ("2", "3", ["--collective", "messages"]),
                                ("3", "1", ["--collective", "messages"]))
             if name != "static"]
    t.same_everywhere(name, ways[::3] if FEW else ways, wanted, log)
    return wanted, log


def lost(t, program, way, strike, run):
    """(exit code, its lines, its error)"""
    done = subprocess.run([program, *way, "--run-dir", run], capture_output=True, text=True,
                          errors="replace", stdin=subprocess.DEVNULL, timeout=300,
                          env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0", **strike})
    return done.returncode, [line.removeprefix("[0] ") for line in done.stdout.splitlines()], \
        done.stderr


def killed(t, config, wanted):
    """In every phase of a step that is computed again, of a process alone, which another cut of
    replicas goes on with, and of one of two workers, who are all started again."""
    result_, log = wanted
    for number, (place, step) in enumerate((("load", "1+2"), ("forward", "2+1"),
                                            ("backward", "3+1"), ("backward", "5+1"),
                                            ("apply", "5+2"))):
        shutil.rmtree("lost", ignore_errors=True)
        strike = {"STRIKE": f"kill@{place}:{step}"}
        code, _, error = lost(t, STRIKE, ["train", config, "--replicas", "2"], strike, "lost")
        t.check(code == -signal.SIGKILL, "struck", place, step, code, error)
        code, lines, error = lost(t, t.program, ["train", config, "--resume", "--replicas",
                                                 str(1 + number)], {}, "lost")
        t.check(code == 0 and (result(lines), log_of("lost")) == (result_, log), "gone on with",
                place, step, code, result(lines), result_, error)
    for place, step, rank, collective in (("backward", "3+1", "1", "window"),
                                          ("forward", "1+2", "0", "messages")):
        shutil.rmtree("lost", ignore_errors=True)
        strike = {"STRIKE": f"kill@{place}:{step}", "STRIKE_RANK": rank,
                  "STRIKE_ONCE": f"{t.work}/struck.{rank}"}
        code, lines, error = lost(t, STRIKE, [
            "launch", "--workers", "2", "--replicas", "2", "--restarts", "1", "train", config,
            "--collective", collective], strike, "lost")
        if code == 69:
            return  # this build has no MPI
        t.check(os.path.exists(f"struck.{rank}") and code == 0 and
                (result(lines), log_of("lost")) == (result_, log), "a worker is lost", place, rank,
                code, result(lines), result_, error)


def ends(t):
    """What overflows before the loss no scale cures: an image of too large numbers ends the run at
    its step, with both precisions. All say the same, and nothing is saved."""
    large = perm(SEED, 0, COUNT, CHOSEN[0])
    values = [3e38 if i == large else 0.5 for i in range(COUNT) for _ in range(36)]
    with open("images", "wb") as f:
        f.write(struct.pack(">BBBB4I", 0, 0, 13, 4, COUNT, 6, 6, 1) +
                struct.pack(f">{len(values)}f", *values))
    for precision, scale, tensor in (("mixed_float16", MODES["replay"][1], "input"),
                                     ("mixed_bfloat16", None, "dense")):
        config, errors = write_config(t, precision, precision, scale), set()
        for more in ("--replicas 1", "--replicas 1 --set layout.wave_examples=4",
                     "--replicas 3 --kernels portable", "--replicas 16"):
            errors.add(t.expect(80, "train", config, "--run-dir", "ends", "--fresh", "--set",
                                'model.input_type="f32"', *more.split())[2])
        t.check(len(errors) == 1 and min(errors).startswith("lockstep: step 2: ") and
                f" {tensor}" in min(errors), "one word", errors)
        t.check(not os.path.exists("ends/checkpoints") or not os.listdir("ends/checkpoints"),
                "nothing is saved")


def main():
    t = Test()
    heavy = write_data()
    t.check(len(heavy) == len(CHOSEN) and not heavy & (batch(0) | batch(4)), "chosen", heavy)
    for name, (precision, scale) in MODES.items():
        config = write_config(t, name, precision, scale)
        wanted = everywhere(t, name, config, heavy)
        if name == "replay":
            killed(t, config, wanted)
    ends(t)
    t.finish()


if __name__ == "__main__":
    main()
