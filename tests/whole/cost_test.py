#!/usr/bin/env python3
"""cost_test - what a run costs that tells all it can, beside its work: below a hundredth of its
steps' processor time; and that dearer logs would be noticed.

   cost_test.py PROGRAM WORK_DIR COST

COST is the program with what cost.c counts. Standard library only.
"""
import os
import re
import sys

from program import Test

LINE = re.compile(r"cost: (\d+) steps, work ([\d.]+) us, telling ([\d.]+) us, share ([\d.]+)$",
                  re.MULTILINE)
STEPS, MOST = 200, 0.01
SOME = ["--replicas", "1", "--fresh", "--set", f"steps={STEPS}", "--set",
        "evaluate_every_steps=100", "--set", "global_batch=256", "--set", "grain=16"]
ALL = ["--tensorboard", "--set", "events.images=8", "--set", "events.histograms=true",
       "--trace", "trace.json", "--metrics-file", "metrics.prom"]


def share(t, *options):
    _, _, error = t.expect(0, "train", "made-up-cnn", "--run-dir", "run", *SOME, *options)
    found = LINE.search(error)
    if not t.check(found and int(found[1]) == STEPS, "what was counted", error):
        t.finish()
    print(f"{' '.join(options[:1]) or 'plain':<14} {found[0]}")
    return float(found[4])


def main():
    t = Test()
    os.environ["LOCKSTEP_CONFIGS"] = os.path.join(os.path.dirname(t.program), "configs")
    t.program = os.path.abspath(sys.argv[3])
    few = [share(t)]
    every = [share(t, *ALL)]
    t.check(0 < min(few) < MOST, "logs alone", few)
    t.check(0 < min(every) < MOST, "all of it: below 1% of a step", every)
    for name in ("trace.json", "metrics.prom", "run/times.jsonl"):
        t.check(os.path.getsize(name) > 0, "it was all written", name)
    t.check(any(n.startswith("events.out") for n in os.listdir("run")), "event files")
    os.environ["COST_BREAK"] = "1"
    t.check(share(t) > MOST, "dearer logs are noticed")
    t.finish()


if __name__ == "__main__":
    main()
