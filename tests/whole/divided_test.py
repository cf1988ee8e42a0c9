#!/usr/bin/env python3
"""divided_test - dense layers of so many weights that the replicas of a process compute them
together (lk_op.divided): one digest for every cut, where replicas have as many examples, some more
than others, or none, so that each computes its own.

   divided_test.py PROGRAM WORK_DIR
"""
from program import Test, result

# Each kernel has more than 2^21 weights.
LAYERS = [{"type": "flatten"},
          {"type": "dense", "name": "wide", "units": 2700, "activation": "relu"},
          {"type": "dense", "name": "narrow", "units": 800, "activation": "relu"},
          {"type": "dense", "name": "logits", "units": 10}]
# Six grains a step; the third, which ends the epoch, has 14 examples, the last grain two.
KEYS = {"model.layers": LAYERS, "data.train.made_up.count": 62, "global_batch": 24, "grain": 4,
        "steps": 3}


def train(t, *arguments):
    _, lines, _ = t.expect(0, "train", "divided.json", "--run-dir", "run", "--fresh", "--quiet",
                           *arguments)
    return result(lines)


def main():
    t = Test()
    t.write("divided.json", KEYS)
    golden = train(t, "--replicas", "1", "--kernels", "reference")
    for replicas, kernel in (("2", "portable"), ("4", "portable"), ("2", "auto"), ("3", "auto"),
                             ("4", "auto"), ("5", "auto")):
        found = train(t, "--replicas", replicas, "--kernels", kernel)
        t.check(found == golden, f"{replicas} replicas, {kernel}", found, golden)
    for replicas, more in (("2", "wave_examples=4"), ("4", "wave_examples=4"), ("4", "guards=true"),
                           ("2", "overlay=false"), ("4", "fuse=false"), ("2", "reduce=partials")):
        found = train(t, "--replicas", replicas, "--set", "layout." + more)
        t.check(found == golden, f"{replicas} replicas, {more}", found, golden)
    for collective in ("window", "messages"):
        _, lines, _ = t.expect(
            0, "launch", "--workers", "2", "--replicas", "2", "train", "divided.json",
            "--run-dir", "workers", "--fresh", "--quiet", "--collective", collective, "--set",
            "layout.overlap=on", "--set", "layout.exchange_floats=1000000")
        found = result([line.partition("] ")[2] for line in lines])
        t.check(found == golden, f"2 workers of 2, {collective}", found, golden)
    t.finish()


main()
