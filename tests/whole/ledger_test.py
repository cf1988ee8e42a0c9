#!/usr/bin/env python3
"""ledger_test - lockstep ledger against what a run really loads.

   ledger_test.py PROGRAM WORK_DIR

Every example has a pixel of its own, and the model is one dense layer: a step changes the weights
of the pixels of its examples, and no others. So the checkpoints of a run that saves after every
step say which examples each step has used. Standard library only.
"""
import json
import os
import shutil
import struct

from program import Test

COUNT, SIDE = 96, 10  # 100 pixels: the last four are nobody's
STEPS = 11


def write_data():
    os.makedirs("data")
    with open("data/images", "wb") as f:
        f.write(struct.pack(">4I", 0x803, COUNT, SIDE, SIDE))
        for i in range(COUNT):
            f.write(bytes(255 * (at == i) for at in range(SIDE * SIDE)))
    with open("data/labels", "wb") as f:
        f.write(struct.pack(">2I", 0x801, COUNT) + bytes(i % 3 for i in range(COUNT)))


def kernel(path):
    """Rows of the dense layer's weights, as bytes."""
    with open(path, "rb") as f:
        content = f.read()
    at = 8 + int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8:at])["dense/kernel"]["data_offsets"]
    rows = content[at + begin:at + end]
    size = len(rows) // (SIDE * SIDE)
    return [rows[i:i + size] for i in range(0, len(rows), size)]


def really_used(run, steps):
    """Of each step but the first, the examples whose weights it changed."""
    saved = [kernel(f"{run}/checkpoints/step-{s:010}.safetensors") for s in range(1, steps + 1)]
    return {s + 2: {i for i, (a, b) in enumerate(zip(saved[s], saved[s + 1])) if a != b}
            for s in range(steps - 1)}


def ledger(t, place, *more):
    return json.loads(t.expect(0, "ledger", place, "--json", *more)[1][0])


def compare(t, name, data, **more):
    config = t.write(name + ".json", {
        "model.input": [SIDE, SIDE, 1], "model.classes": 3, "model.layers": [
            {"type": "flatten"}, {"type": "dense", "name": "dense", "units": 3}],
        "optimizer": {"type": "sgd", "learning_rate": 0.5}, "global_batch": 20, "grain": 4,
        "steps": STEPS, "data": data, "checkpoint": {"every_steps": 1, "keep_max": 0}, **more})
    t.expect(0, "train", config, "--run-dir", name, "--replicas", "2")
    found = really_used(name, STEPS)
    for step, examples in found.items():
        said = ledger(t, name, "--step", str(step))
        uses = said["uses"]
        t.check({u["example"] for u in uses} == examples and len(uses) == len(examples),
                f"{name}: what step {step} used", examples, uses)
        t.check(all(u["grain"] == u["position"] // 4 and u["replica"] == (u["grain"] >= 2)
                    for u in uses) and said["replicas"] == 2, "its grains and replicas", uses)
    for example in (0, 17, COUNT - 1):
        uses = ledger(t, name, "--example", str(example))["uses"]
        steps = [u["step"] for u in uses]
        t.check([s for s in steps if s > 1] == [s for s in found if example in found[s]],
                f"{name}: where example {example} was used", steps)
        for u in uses:
            t.check(u in ledger(t, name, "--step", str(u["step"]))["uses"], "and back", u)
    sizes = [len(found[s]) for s in sorted(found)]
    t.check(max(sizes) == 20, "whole batches were seen", sizes)
    return config, sizes


def refused(t, code, word, *arguments):
    found, lines, error = t.run("ledger", *arguments)
    t.check((found, lines) == (code, []) and error.count("\n") == 1 and word in error,
            f"{code} and one line with {word!r}", arguments, found, lines, error)


def main():
    t = Test()
    write_data()
    data = {"train": {"images": "data/images", "labels": "data/labels"}}
    config, sizes = compare(t, "whole", data)
    t.check(16 in sizes, "a last, short batch too", sizes)
    _, sizes = compare(t, "dropped", data, drop_remainder=True)
    t.check(16 not in sizes, "which may be left out", sizes)
    t.expect(0, "data", "shard", "--images", "data/images", "--labels", "data/labels", "--shards",
             "5", "--to", "shards")
    compare(t, "sharded", {"order": "sharded", "train": {"manifest": "shards/manifest.json"}})

    os.makedirs("four")
    for part in ("train", "t10k"):
        shutil.copy("data/images", f"four/{part}-images-idx3-ubyte")
        shutil.copy("data/labels", f"four/{part}-labels-idx1-ubyte")
    with open("unnamed.json", "w", encoding="utf-8") as f:
        json.dump({k: v for k, v in json.load(open(config, encoding="utf-8")).items()
                   if k != "data"}, f)
    t.expect(0, "train", "unnamed.json", "--data", "four", "--run-dir", "named")
    shutil.rmtree("four")
    of_run = ledger(t, "whole", "--step", "4")
    t.check(ledger(t, config, "--step", "4", "--replicas", "2") == of_run,
            "a configuration says the same")
    plan = json.loads("\n".join(t.expect(0, "plan", config, "--json")[1]))
    t.check(ledger(t, config, "--step", "4")["replicas"] == plan["replicas"],
            "as many replicas as a plan has", plan["replicas"])
    other = ledger(t, "whole", "--step", "4", "--replicas", "5")["uses"]
    t.check([u["replica"] for u in other] == [u["grain"] for u in other] and
            [u["example"] for u in other] == [u["example"] for u in of_run["uses"]],
            "other replicas, the same examples")
    _, lines, _ = t.expect(0, "ledger", "whole", "--example", "17")
    t.check(lines[-1].startswith("example 17 of 96: used ") and len(lines) > 2, "lines", lines)
    shutil.move("data", "gone")
    t.check(ledger(t, "whole", "--step", "4") == of_run, "without the data")
    t.check(ledger(t, "named", "--step", "4")["uses"], "nor is it named")
    refused(t, 66, "data/images", config, "--step", "4")
    os.rename("gone", "data")
    refused(t, 64, "wanted a number from 0 to", "whole", "--example", "-1")
    refused(t, 64, "either --example N or --step S", "whole")
    refused(t, 64, "either --example N or --step S", "whole", "--example", "1", "--step", "1")
    refused(t, 64, "wanted a number from 0 to 95", "whole", "--example", "96")
    refused(t, 64, "wanted a number from 1 to 11", "whole", "--step", "12")
    refused(t, 64, "the grains of a step", "whole", "--step", "2", "--replicas", "6")
    refused(t, 66, "config.json", "shards", "--step", "2")
    t.finish()


main()
