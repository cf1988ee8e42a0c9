#!/usr/bin/env python3
"""evaluator_test - the evaluator of a cluster: the figures of one process, each checkpoint once
though it is killed, what it waits for, and that the workers then leave evaluation to it.

   evaluator_test.py PROGRAM WORK_DIR
"""
import json
import os
import shutil
import signal
import time

import events_test
from program import Test, finish, free_port, result, start

EVERY, STEPS = 20, 200


def cluster(world, rank, port, evaluator=True):
    """TF_CONFIG of a worker, or of the evaluator (rank None); `evaluator`: it is listed."""
    lists = {"worker": [f"localhost:{port if r == 0 else 1 + r}" for r in range(world)]}
    if evaluator:
        lists["evaluator"] = ["localhost:99"]
    task = {"type": "worker", "index": rank} if rank is not None else {"type": "evaluator",
                                                                       "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": lists, "task": task})}


def lines_of(path):
    """Whole ones."""
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().split("\n")[:-1]
    except FileNotFoundError:
        return []


def tests_of(path):
    return [line for line in lines_of(path) if '"test"' in line]


def wait_for(t, what, holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    t.check(holds(), what)


def together(t, config, wanted, alone):
    """Two workers, and an evaluator that is listed or not: what the workers then leave to it."""
    for listed in (True, False):
        port, run = free_port(), f"listed-{listed}"
        train = ["train", config, "--run-dir", run, "--replicas", "1"]
        evaluator = start(t, cluster(2, None, port, listed), *train, "--tensorboard")
        ends = finish([start(t, cluster(2, r, port, listed), *train) for r in (0, 1)])
        ends += finish([evaluator])
        t.check([e[0] for e in ends] == [0, 0, 0] and not any(e[2] for e in ends), "all end well",
                ends)
        t.check(lines_of(f"{run}/evaluations.jsonl") == wanted, "the figures of one process", run,
                lines_of(f"{run}/evaluations.jsonl"), wanted)
        t.check(result(ends[0][1].splitlines()) == alone, "the same run", ends[0][1])
        t.check(result(ends[2][1].splitlines())[0] == alone[0], "the weights it evaluated",
                ends[2][1])
        t.check([v[:2] for v in events_test.read(run + "/evaluator")["scalars"]["test/loss"]] ==
                events_test.wanted_scalars(run, "evaluations.jsonl")["test/loss"], "its events")
        t.check(tests_of(f"{run}/metrics.jsonl") == ([] if listed else wanted) and
                ("evaluation step" in ends[0][1]) != listed, "who evaluates", run, ends[0][1])
        # Once more: it has nothing to do.
        code, out, _ = finish([start(t, cluster(2, None, port, listed), *train)])[0]
        t.check(code == 0 and "nothing to do: step 200 of 200 was evaluated already" in out and
                lines_of(f"{run}/evaluations.jsonl") == wanted, "each only once", code, out)
    port = free_port()
    train = ["train", config, "--run-dir", "parted", "--replicas", "1"]
    ends = finish([start(t, cluster(2, r, port, r == 0), *train) for r in (0, 1)])
    t.check([e[0] for e in ends] == [76, 76] and "who evaluates is an evaluator on the one and the "
            "workers on the other" in ends[0][2], "two descriptions", ends)


def one_by_one(t, config, wanted):
    """Checkpoints laid before it as it goes, itself killed at each: every one once, in order."""
    os.makedirs("slow/checkpoints")
    shutil.copy("kept/identity", "slow/identity")
    here = cluster(1, None, 1)
    log = "slow/evaluations.jsonl"
    train = ["train", config, "--run-dir", "slow"]
    for n, name in enumerate(sorted(os.listdir("kept/checkpoints")), 1):
        evaluator = start(t, here, *train)
        for part in ("tmp", "safetensors"):  # as it is saved
            shutil.copy(f"kept/checkpoints/{name}", f"slow/checkpoints/part.{part}")
        os.rename("slow/checkpoints/part.safetensors", f"slow/checkpoints/{name}")
        wait_for(t, f"checkpoint {n} is evaluated", lambda n=n: len(lines_of(log)) >= n)
        evaluator.kill()
        finish([evaluator])
        t.check(lines_of(log)[:n] == wanted[:n], "in order", lines_of(log))
        if n == 3:  # ... and the machine went down in the middle of a line
            with open(log, "a", encoding="ascii") as f:
                f.write('{"step":80,"te')
            t.check(tests_of(log) == wanted[:3], "a torn line")
    t.check(lines_of(log) == wanted, "each once", lines_of(log), wanted)
    # Two at once, of which one works.
    os.remove(log)
    ends = finish([start(t, here, *train) for _ in range(2)])
    t.check([e[0] for e in ends] == [0, 0] and lines_of(log) == wanted, "two evaluators", ends,
            lines_of(log))


def of_cycles(t):
    """A run whose length is said in cycles of its schedule ends for its evaluator where it ends."""
    model = {"input": [10, 10, 1], "classes": 10, "networks": [
        {"name": "net", "layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]}],
             "objectives": [{"name": "only", "values": [{"name": "x", "network": "net"}],
                             "trains": ["net"], "loss": "sparse_categorical_crossentropy",
                             "optimizer": {"type": "sgd", "learning_rate": 0.1}}]}
    config = t.write("cycles.json", {
        "model": model, "cycles": 9, "evaluate_every_steps": 3, "checkpoint.every_steps": 3,
        "checkpoint.keep_max": 10,
        "data.test": {"made_up": {"first": 1000, "count": 30, "height": 10, "width": 10}}},
                     ["optimizer", "steps"])
    t.expect(0, "train", config, "--run-dir", "cycles")
    wanted = tests_of("cycles/metrics.jsonl")
    for more in ([], ["--set", "cycles=20"]):
        code, lines, error = finish([start(t, cluster(1, None, 1), "train", config, "--run-dir",
                                           "cycles", *more)])[0]
        t.check(code == 0 and lines_of("cycles/evaluations.jsonl") == wanted and len(wanted) == 3,
                "to the end of the last cycle", more, code, lines, error)
        told = "the run in cycles ends at step 9, this configuration at step 20: the run's counts"
        t.check((told in lines) == bool(more), "whose length counts", more, lines)


ASKED = ["--tensorboard", "--set", "events.histograms=true", "--set", "events.images=2"]


def event_files(t, config, wanted):
    """Beside each line of the log, in a directory of their own; each once, though it is killed."""
    shutil.copytree("kept", "seen")
    names = sorted(os.listdir("seen/checkpoints"))
    for name in names[5:]:
        os.remove(f"seen/checkpoints/{name}")
    train = ["train", config, "--run-dir", "seen"]
    log = "seen/evaluations.jsonl"
    first = start(t, cluster(1, None, 1), *train, *ASKED)
    wait_for(t, "those that are there", lambda: len(lines_of(log)) >= 5)
    wait_for(t, "it waits", lambda: any(
        s[0] == 5 * EVERY for s in events_test.read("seen/evaluator")["scalars"].get(
            "test/accuracy", [])))
    first.kill()
    finish([first])
    for name in names[5:]:
        shutil.copy(f"kept/checkpoints/{name}", "seen/checkpoints")
    code, out, error = finish([start(t, cluster(1, None, 1), *train, *ASKED)])[0]
    t.check(code == 0 and lines_of(log) == wanted, "the others", error)
    found = events_test.read("seen/evaluator")
    scalars = events_test.wanted_scalars("seen", "evaluations.jsonl")
    t.check({tag: [v[:2] for v in values] for tag, values in found["scalars"].items()} == scalars
            and len(scalars["test/loss"]) == len(wanted), "each once", found["scalars"])
    steps = [EVERY * n for n in range(1, len(wanted) + 1)]
    t.check(len(found["histograms"]) == 6 and all(
        [v[0] for v in values] == steps for values in found["histograms"].values()),
        "histograms of the weights", found["histograms"].keys())
    t.check(not found["images"], "training inputs are the trainer's")
    t.check(found["starts"] == [EVERY, 6 * EVERY] and not events_test.files_of("seen"),
            "each process its file", found["starts"])
    t.check(not os.path.exists("kept/evaluator"), "none where none are asked for")
    # A resumed run leaves them alone; --fresh takes them, but nothing of others.
    before = {p: os.path.getsize(p) for p in events_test.files_of("seen/evaluator")}
    t.expect(0, "train", config, "--run-dir", "seen", "--resume", *ASKED)
    t.check(before == {p: os.path.getsize(p) for p in events_test.files_of("seen/evaluator")},
            "what a resumed run cuts")
    for other in ("seen/evaluator/notes", "seen/evaluator/step-0000000020.safetensors"):
        with open(other, "w", encoding="ascii"):
            pass
        _, _, error = t.expect(64, "train", config, "--run-dir", "seen", "--fresh")
        t.check(os.path.basename(other) in error and "nothing was removed" in error and
                os.path.exists("seen/metrics.jsonl"), "somebody's file", error)
        os.remove(other)
    os.rename("seen/evaluator", "elsewhere")
    os.symlink("../elsewhere", "seen/evaluator")
    _, _, error = t.expect(64, "train", config, "--run-dir", "seen", "--fresh")
    t.check('"evaluator" is not of one' in error and len(os.listdir("elsewhere")) == 2,
            "a link is followed nowhere", error)
    os.remove("seen/evaluator")
    os.rename("elsewhere", "seen/evaluator")
    # Removed while it works: what comes then is in a new file.
    shutil.copytree("seen", "gone")
    shutil.rmtree("gone/evaluator")
    os.remove("gone/evaluations.jsonl")
    for name in names[2:]:
        os.remove(f"gone/checkpoints/{name}")
    there = start(t, cluster(1, None, 1), "train", config, "--run-dir", "gone", *ASKED)
    wait_for(t, "two of them", lambda: len(lines_of("gone/evaluations.jsonl")) == 2)
    wait_for(t, "and their events", lambda: len(events_test.read("gone/evaluator")[
        "histograms"].get("logits/bias", [])) == 2)
    shutil.rmtree("gone/evaluator")
    for name in names[2:]:
        shutil.copy(f"kept/checkpoints/{name}", "gone/checkpoints")
    finish([there])
    t.check([v[0] for v in events_test.read("gone/evaluator")["scalars"]["test/loss"]] ==
            steps[2:], "a new file")
    t.expect(0, "train", config, "--run-dir", "seen", "--fresh", "--set", "steps=20")
    t.check(not os.path.exists("seen/evaluator"), "--fresh", os.listdir("seen"))


def turn_last(path, byte=b"\xff"):
    """Another last byte, in the same file; returned is the one that was there."""
    with open(path, "r+b") as f:
        f.seek(-1, 2)
        before = f.read(1)
        f.seek(-1, 2)
        f.write(byte)
    return before


def until_damaged(t, evaluator):
    t.check(any("WARNING: damaged checkpoint passed over" in line for line in evaluator.lines()),
            "it is said to be damaged")


def waits(t, config, wanted):
    log = "late/evaluations.jsonl"
    here = cluster(1, None, 1)
    train = ["train", config, "--run-dir", "late"]
    # Nothing there, or another run: it says so, and goes on waiting until it is asked to end.
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        evaluator = start(t, here, *train)
        lines = [line for _, line in zip(range(2), evaluator.lines())]
        t.check("evaluator of late" in lines[0], "the banner", lines)
        what = "waiting: no run has begun in late" if code == 143 else "waiting: late holds run 0"
        t.check(lines[1].startswith(what), "it waits", lines)
        evaluator.send_signal(number)
        t.check(finish([evaluator])[0][0] == code, "asked to end")
        os.makedirs("late/checkpoints", exist_ok=True)
        with open("late/identity", "w", encoding="ascii") as f:
            f.write("0" * 64 + "\n")
    # With a throttle: the newest, and the last at once. A damaged one is passed over, until it is
    # there again.
    shutil.copy("kept/identity", "late/identity")
    names = sorted(os.listdir("kept/checkpoints"))
    for name in names[:3]:
        shutil.copy(f"kept/checkpoints/{name}", "late/checkpoints")
    begin = time.monotonic()
    evaluator = start(t, here, *train, "--throttle", "1000", "--start-delay", "1")
    wait_for(t, "the newest", lambda: lines_of(log) == [wanted[2]])
    t.check(time.monotonic() - begin > 1, "not before its delay")
    shutil.copy(f"kept/checkpoints/{names[4]}", "late/checkpoints")
    time.sleep(0.5)
    t.check(lines_of(log) == [wanted[2]], "throttled", lines_of(log))
    last = f"late/checkpoints/{names[-1]}"
    shutil.copy(f"kept/checkpoints/{names[-1]}", last + ".tmp")
    whole = turn_last(last + ".tmp")
    os.rename(last + ".tmp", last)
    until_damaged(t, evaluator)
    # Another file, as old as the one before it and no better.
    shutil.copy2(last, last + ".tmp")
    os.rename(last + ".tmp", last)
    until_damaged(t, evaluator)
    time.sleep(0.5)
    turn_last(last, whole)
    code, out, error = finish([evaluator])[0]
    t.check(code == 0 and lines_of(log) == [wanted[2], wanted[-1]], "the last at once", code, out,
            error, lines_of(log))
    t.check("WARNING" not in out, "each is said once", out)
    two_damaged(t, config, wanted)
    config = t.write("blind.json")
    code, _, error = finish([start(t, here, "train", config)])[0]
    t.check(code == 78 and "data.test: missing" in error, "nothing to evaluate", error)


def two_damaged(t, config, wanted):
    """Each is passed over once, and what comes after them is evaluated."""
    shutil.copytree("kept", "damaged")
    names = sorted(os.listdir("damaged/checkpoints"))
    for name in names[:2]:
        turn_last(f"damaged/checkpoints/{name}")
    code, out, error = finish([start(t, cluster(1, None, 1), "train", config, "--run-dir",
                                     "damaged")], 20)[0]
    found = lines_of("damaged/evaluations.jsonl")
    t.check(code == 0 and found == wanted[2:], "behind two damaged ones", code, error, found)
    t.check(out.count("WARNING: damaged checkpoint passed over") == 2, "each said once", out[:2000])


def main():
    t = Test()
    os.environ.pop("TF_CONFIG", None)
    config = t.write("run.json", {
        "steps": STEPS, "evaluate_every_steps": EVERY, "checkpoint.every_steps": EVERY,
        "checkpoint.keep_max": 100,
        "data.test": {"made_up": {"first": 1000, "count": 300, "height": 10, "width": 10}}})
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "kept", "--replicas", "2")
    wanted = tests_of("kept/metrics.jsonl")
    t.check(len(wanted) == STEPS // EVERY, "evaluations of one process", wanted)
    one_by_one(t, config, wanted)
    waits(t, config, wanted)
    event_files(t, config, wanted)
    of_cycles(t)
    probe = finish([start(t, cluster(2, 1, 1), "train", config, "--start-timeout", "1")])[0]
    if probe[0] == 69 and "has no MPI" in probe[2]:
        print("not done: this build has no MPI")
    else:
        together(t, config, wanted, result(lines))
    t.finish()


if __name__ == "__main__":
    main()
