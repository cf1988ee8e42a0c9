#!/usr/bin/env python3
"""cost_test - what a run costs that tells all it can, beside its work: below a hundredth of its
steps' processor time, also of the smallest step that is shipped; and that dearer logs would be
noticed. The test prints its commands. Other programs only make a run dearer: where one costs more
it is run again, up to ROUNDS times (3), and the least counts.

   cost_test.py PROGRAM WORK_DIR COST [ROUNDS]

COST is the program with what cost.c counts. Standard library only.
"""
import os
import re
import sys

from program import Test, result

LINE = re.compile(r"cost: (\d+) steps, work ([\d.]+) us, telling ([\d.]+) us, share ([\d.]+)$",
                  re.MULTILINE)
MOST = 0.01
digests = {}  # of each batch
# Examples of a step, and steps: a run of some seconds, as what is told once is none of a step's.
CASES = ((256, 200), (64, 1000))
ALL = ["--tensorboard", "--set", "events.images=8", "--set", "events.histograms=true",
       "--trace", "trace.json", "--metrics-file", "metrics.prom"]


def share(t, batch, steps, *options):
    command = ["train", "made-up-cnn", "--run-dir", "run", "--replicas", "1", "--fresh", "--set",
               f"steps={steps}", "--set", "evaluate_every_steps=100", "--set",
               f"global_batch={batch}", "--set", "grain=16", *options]
    _, lines, error = t.expect(0, *command)
    found = LINE.search(error)
    if not t.check(found and int(found[1]) == steps, "what was counted", error):
        t.finish()
    print(f"{os.path.basename(t.program)} {' '.join(command)}\n    {found[0]}")
    digests.setdefault(batch, set()).add(result(lines))
    return float(found[4])


def least(t, rounds, *run):
    found = share(t, *run)
    while found >= MOST and rounds > 1:
        found = min(found, share(t, *run))
        rounds -= 1
    return found


def main():
    t = Test()
    os.environ["LOCKSTEP_CONFIGS"] = os.path.join(os.path.dirname(t.program), "configs")
    t.program = os.path.abspath(sys.argv[3])
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    for batch, steps in CASES:
        few = least(t, rounds, batch, steps)
        every = least(t, rounds, batch, steps, *ALL)
        print(f"batch {batch}: logs alone {few:.2%}, all of it {every:.2%} of a step")
        t.check(0 < few < MOST, "logs alone", few)
        t.check(0 < every < MOST, "all of it: below 1% of a step", every)
        t.check(len(digests[batch]) == 1 and all(*digests[batch]), "one digest", digests[batch])
    for name in ("trace.json", "metrics.prom", "run/times.jsonl"):
        t.check(os.path.getsize(name) > 0, "it was all written", name)
    t.check(any(n.startswith("events.out") for n in os.listdir("run")), "event files")
    os.environ["COST_BREAK"] = "1"
    t.check(share(t, *CASES[0]) > MOST, "dearer logs are noticed")
    t.finish()


if __name__ == "__main__":
    main()
