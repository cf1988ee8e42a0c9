#!/usr/bin/env python3
"""best_test - early stopping and the checkpoint that stays: a run ends at the evaluation at which a
reader of its metrics would have ended it, with the same bits for any replicas and workers, killed
and resumed or not.

   best_test.py PROGRAM WORK_DIR

Standard library only.
"""
import json
import os
import re
import time

from program import Test, finish, free_port, result, start, tf_config

EVERY = 5
DATA = {"data.test": {"made_up": {"first": 5000, "count": 96, "height": 10, "width": 10}},
        "evaluate_every_steps": EVERY, "steps": 400, "log_every_steps": 50,
        "optimizer.learning_rate": 0.4}


def evaluations(run):
    with open(run + "/metrics.jsonl", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return [(line["step"], line["test"]) for line in lines if "test" in line]


def checkpoints(run):
    return sorted(int(name[5:15]) for name in os.listdir(run + "/checkpoints")
                  if name.endswith(".safetensors"))


def end_of(history, metric, patience, delta=0):
    """The step after which it ends, and the step of the best until then."""
    best, best_step, since = None, 0, 0
    for step, test in history:
        value = -test["correct"] / 96 if metric == "accuracy" else test[metric]
        if best is None or value < best - delta:
            best, best_step, since = value, step, 0
        else:
            since += 1
        if since >= patience:
            return step, best_step
    return None, best_step


def delta_that_matters(history, metric):
    """A patience, and a min_delta that moves the end, not too near to any difference."""
    return next((metric, patience, delta) for patience in range(2, 9)
                for delta in (2.0 ** -n * 1.03 for n in range(12, -5, -1))
                if end_of(history, metric, patience, delta)[0] and
                end_of(history, metric, patience, delta)[0] !=
                end_of(history, metric, patience)[0])


def stops(t, history):
    """The longer run says where each shorter one ends."""
    config = "config.json"
    for metric, patience, delta in (("loss", 2, 0), ("accuracy", 3, 0),
                                    delta_that_matters(history, "loss"),
                                    delta_that_matters(history, "accuracy")):
        wanted, best = end_of(history, metric, patience, delta)
        if not t.check(wanted and wanted < 400, "the test has a place to end", metric, patience):
            continue
        options = ["--set", f"early_stopping.metric={metric}", "--set",
                   f"early_stopping.patience={patience}", "--set",
                   f"early_stopping.min_delta={delta}"]
        name = f"{metric}-{patience}-{delta}"
        _, lines, _ = t.expect(0, "train", config, "--run-dir", name, *options)
        found = evaluations(name)
        t.check(found == [e for e in history if e[0] <= wanted], name + ": its evaluations",
                found[-2:], wanted)
        t.check(checkpoints(name)[-1] == wanted, "it is saved where it ends", checkpoints(name))
        t.check(any(f"early stopping after step {wanted}: {patience} evaluations since" in line and
                    f"after step {best}" in line for line in lines), "it is said", lines[-9:])
        _, plain, _ = t.expect(0, "train", config, "--run-dir", name + "-plain", "--set",
                               f"steps={wanted}")
        t.check(result(plain) == result(lines), "the bits of that step", lines[-2:], plain[-2:])
        # Cut anywhere and gone on from; at its end there is nothing to do.
        for cut in (3, 2 * EVERY, wanted - 1, wanted):
            again = f"{name}-{cut}"
            t.expect(0, "train", config, "--run-dir", again, "--set", f"steps={cut}", *options)
            _, more, _ = t.expect(0, "train", config, "--run-dir", again, "--resume", *options)
            t.check(result(more) == result(lines) and checkpoints(again)[-1] == wanted,
                    f"cut at {cut}", more[-3:], checkpoints(again))
        _, more, _ = t.expect(0, "train", config, "--run-dir", name, "--resume", *options)
        t.check(result(more) == result(lines) and evaluations(name) == found, "it is over")
        for more in (["--replicas", "3"], ["--kernels", "portable", "--replicas", "1"]):
            _, other, _ = t.expect(0, "train", config, "--run-dir", name, "--fresh", *options,
                                   *more)
            t.check(result(other) == result(lines), "another layout", more)
        yield name, options, result(lines), wanted


def workers(t, name, options, wanted, step):
    for collective in ("window", "messages"):
        for first in (step, step - 1):  # whole; or cut, where only the logs know what was before
            parts = [["--set", f"steps={first}"], ["--resume"]] if first < step else [["--fresh"]]
            for part in parts:
                port = free_port()
                ends = finish([start(t, tf_config(2, r, port), "train", "config.json", "--run-dir",
                                     f"{name}-{collective}-{first}", "--replicas", "1",
                                     "--collective", collective, *options, *part)
                               for r in range(2)])
                if ends[0][0] == 69 and "has no MPI" in ends[0][2]:
                    return print("this build has no MPI")
                t.check([e[0] for e in ends] == [0, 0], collective, first, part, ends)
            t.check(result(ends[0][1].splitlines()) == wanted, "two workers, " + collective, first)
    return None


def stays(t, history):
    """The best one stays beside the newest, and where it is."""
    for end in range(100, 401, 50):
        _, best = end_of([e for e in history if e[0] <= end], "loss", 10**9)
        if best < end - 50:
            break
    t.check(best < end - 50, "it is none of the newest", best, end)
    keep = ["--set", "checkpoint.best=loss", "--set", "checkpoint.keep_max=2"]
    often = ["--set", "checkpoint.every_steps=50", "--set", f"steps={end}"]
    t.expect(0, "train", "config.json", "--run-dir", "best", *keep, *often)
    t.check(checkpoints("best") == [best, end - 50, end], "kept", checkpoints("best"), best)
    said = dict(history)[best]
    _, lines, _ = t.expect(0, "eval", "config.json", "--checkpoint",
                           f"best/checkpoints/step-{best:010}.safetensors")
    t.check(f"test_loss {said['loss']:.9g}" in lines, "it is the best", lines, said)
    # Gone on from behind the best: it is known again.
    t.expect(0, "train", "config.json", "--run-dir", "again", *keep, "--set", f"steps={best + 3}")
    t.expect(0, "train", "config.json", "--run-dir", "again", *keep, *often, "--resume")
    t.check(checkpoints("again") == [best, end - 50, end], "resumed", checkpoints("again"), best)


def given_up(t):
    """A run that is asked to stop in an evaluation does so in its midst, and makes it when it is
    resumed: the logs, the best checkpoint and the end are those of a run that was left alone."""
    config = t.write("slow.json", {
        "data.test": {"made_up": {"first": 5000, "count": 200000, "height": 10, "width": 10}},
        "evaluate_every_steps": 4, "steps": 60, "optimizer.learning_rate": 0.3, "replicas": 2,
        "checkpoint.best": "loss", "checkpoint.keep_max": 1,
        "early_stopping.metric": "loss", "early_stopping.patience": 2})
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "left")
    wanted, ends = result(lines), len(evaluations("left")) - 1
    times, how = 0, "--fresh"
    for attempt in range(60):
        process = t.start("train", config, "--run-dir", "stopped", how)
        lines, how = [], "--resume"
        for line in process.lines():
            lines.append(line.rstrip())
            step = re.search(r"step = (\d+)", line)
            # Every third time in the evaluation that is made up for.
            again = attempt % 3 == 2 and line.startswith("weights of step")
            if again or (step and int(step.group(1)) % 4 == 3):
                time.sleep(0.2 if again else 0.02)
                process.terminate()
                break
        rest, error = process.communicate(timeout=100)
        lines += rest.splitlines()
        if process.returncode == 0:
            break
        # Start-up has nothing to save.
        t.check(process.returncode in (143, -15)[:1 + again], "stopped", process.returncode, error,
                *lines[-3:])
        times += "stopping in this evaluation, which a resumed run makes" in rest
    print(f"{times} evaluations given up, of {ends} before the end")
    t.check(times > 0 and result(lines) == wanted, "the same end", times, wanted, *lines[-5:])
    for name in ("metrics", "hashes"):
        with open(f"left/{name}.jsonl", "rb") as f, open(f"stopped/{name}.jsonl", "rb") as g:
            t.check(f.read() == g.read(), f"the same {name}.jsonl")
    t.check(checkpoints("left") == checkpoints("stopped"), "the same checkpoints",
            checkpoints("left"), checkpoints("stopped"))


def refused(t):
    for word, *options in (
            ("wanted a metric of this model: loss, accuracy", "early_stopping.metric=f1"),
            ("wanted a metric of this model: loss, accuracy", "checkpoint.best=f1"),
            ("set evaluate_every_steps", "checkpoint.best=loss", "evaluate_every_steps=0"),
            ("early_stopping.patience", "early_stopping.patience=0"),
            ("early_stopping.min_delta", "early_stopping.min_delta=-1"),
            ("early_stopping", "early_stopping.min_better=1")):
        sets = [word for option in options for word in ("--set", option)]
        _, _, error = t.expect(78, "train", "config.json", "--run-dir", "never", *sets)
        t.check(word in error and error.count("\n") == 1, "one line", error)
    t.check(not os.path.exists("never"), "nothing was begun")


def main():
    t = Test()
    config = t.write("config.json", DATA)
    t.expect(0, "train", config, "--run-dir", "long")
    history = evaluations("long")
    ends = list(stops(t, history))
    if ends:
        workers(t, *ends[0])
    stays(t, history)
    given_up(t)
    refused(t)
    t.finish()


if __name__ == "__main__":
    main()
