#!/usr/bin/env python3
"""resnet_test - the ready residual networks as they are, but for few made-up images and few steps:
one digest and log over replicas, workers, shards, kernels, and when they are resumed.

   resnet_test.py PROGRAM WORK_DIR CONFIGS [few]
"""
import json
import sys

from program import Test, log_of, result

CONFIGS, FEW = sys.argv[3], sys.argv[4:] == ["few"]
IMAGES, STEPS = 48, 3
SIZES = {"resnet20-mnist": (28, 1), "resnet20-cifar10": (32, 3)}


def sharded(t, name, count):
    """The configuration, with batches of 8 in grains of 2, on images in so many shards."""
    size, channels = SIZES[name]
    folder = f"{name}-{count}"
    t.expect(0, "data", "shard", "--made-up", str(IMAGES), "--height", str(size), "--width",
             str(size), "--channels", str(channels), "--shards", str(count), "--to", folder)
    with open(f"{CONFIGS}/{name}.json", encoding="utf-8") as f:
        document = json.load(f)
    document["data"].pop("set", None)
    document["data"]["train"] = {"manifest": folder + "/manifest.json"}
    document.pop("epochs", None)
    document.update(global_batch=8, grain=2, steps=STEPS, log_every_steps=1,
                    evaluate_every_steps=0)
    with open(folder + ".json", "w", encoding="utf-8") as f:
        json.dump(document, f)
    return folder + ".json"


def one_digest(t, name):
    whole, cut = (sharded(t, name, n) for n in (1, 3))
    train, others = ["train", whole], ["train", cut]
    wanted = result(t.expect(0, *train, "--run-dir", name, "--replicas", "1")[1])
    t.check(all(wanted), name, wanted)
    ways = [[*others, "--replicas", "4"], [*train, "--replicas", "2", "--kernels", "portable"],
            ["launch", "--workers", "2", "--replicas", "1", *others]]
    if not FEW:
        ways += [["launch", "--workers", "2", "--replicas", "2", *train, "--collective",
                  "messages"]]
    if not FEW and name == "resnet20-mnist":
        ways += [[*train, "--kernels", "reference", "--replicas", "2"]]
    t.same_everywhere(name, ways, wanted, log_of(name))
    t.expect(0, *train, "--run-dir", "on", "--fresh", "--replicas", "4", "--set", "steps=1")
    lines = t.expect(0, *others, "--run-dir", "on", "--resume", "--replicas", "2")[1]
    t.check((result(lines), log_of("on")) == (wanted, log_of(name)), f"{name}: resumed",
            result(lines), wanted)


def main():
    t = Test()
    for name in SIZES:
        one_digest(t, name)
    t.finish()


if __name__ == "__main__":
    main()
