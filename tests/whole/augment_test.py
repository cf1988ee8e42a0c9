#!/usr/bin/env python3
"""augment_test - data.augment and data.normalize from outside: what an evaluation does of them,
what an exported model does, what is refused. That the bits are the same everywhere the matrix shows
(--run augmented), and the formulas the judge.

   augment_test.py PROGRAM WORK_DIR

Standard library only.
"""
import json
import os
import statistics
import struct

from program import Test, result

TEST = {"made_up": {"first": 5000, "count": 90, "height": 10, "width": 10}}
AUGMENT = {"shift": 2, "flip": "horizontal", "cutout": 3, "brightness": 0.2, "contrast": 0.2}
NORMALIZE = {"mean": [0.25], "deviation": [0.5]}


def said(lines, key):
    return [line for line in lines if line.startswith(key)]


def sets(**keys):
    return [word for key, value in keys.items()
            for word in ("--set", key.replace("__", ".") + "=" + json.dumps(value))]


def trained(t):
    """Every key trains to other bits; workers of any layout, stopped or not, to the same."""
    config = t.write("config.json", {"data.test": TEST, "steps": 6})
    found = {}
    ways = {"plain": {}, "normalized": {"data__normalize": NORMALIZE},
            **{key: {"data__augment": {key: value}} for key, value in AUGMENT.items()},
            "all": {"data__augment": AUGMENT, "data__normalize": NORMALIZE}}
    for name, keys in ways.items():
        found[name] = result(t.expect(0, "train", config, "--run-dir", name, *sets(**keys))[1])
    t.check(len(set(map(str, found.values()))) == len(found), "each key changes the bits", found)
    t.expect(0, "train", config, "--run-dir", "cut", *sets(**ways["all"], steps=3))
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "cut", "--resume", "--replicas", "1",
                           "--kernels", "portable", *sets(**ways["all"]))
    t.check(result(lines) == found["all"], "stopped and gone on", lines[-2:])
    _, _, error = t.expect(78, "train", config, "--run-dir", "all", "--resume")
    t.check("data.augment" in error and error.count("\n") == 1, "another run, by its keys", error)


def evaluated(t):
    """Of all of it an evaluation does nothing but normalise."""
    saved = "all/checkpoints/step-0000000006.safetensors"
    values = [t.expect(0, "eval", "config.json", "--checkpoint", saved, *sets(**keys))[1]
              for keys in ({"data__normalize": NORMALIZE},
                           {"data__normalize": NORMALIZE, "data__augment": AUGMENT}, {})]
    losses = [said(lines, "test_loss") for lines in values]
    t.check(losses[0] and losses[0] == losses[1], "not augmented", losses)
    t.check(losses[0] != losses[2], "but normalised", losses)


def exported(t):
    """Normalisation before a padded convolution is a node of its own, with the scaling of bytes."""
    names = [b"/factor", b"/offset", b"/Mul", b"/Add"]
    for run, wanted in (("all", True), ("plain", False)):
        t.expect(0, "checkpoint", "export", run, "--output", run + ".onnx", "--layout", "onnx")
        with open(run + ".onnx", "rb") as f:
            content = f.read()
        t.check([name in content for name in names] == [wanted] * 4, "an ONNX model's", run)
        for name, value in ((names[0], 2 / 255), (names[1], -0.5)):  # name, raw_data of a tensor
            t.check((name + b"\x4a\x04" + struct.pack("<f", value) in content) == wanted,
                    "its numbers", run, name)


def measured(t):
    """data verify says mean and deviation of each channel, in units of 0 to 1."""
    pixels = bytes(i * 37 % 251 for i in range(20 * 2 * 3 * 3))
    with open("images", "wb") as f:
        f.write(struct.pack(">5I", 0x804, 20, 2, 3, 3) + pixels)
    with open("labels", "wb") as f:
        f.write(struct.pack(">2I", 0x801, 20) + bytes(20))
    source = ["data", "verify", "--images", "images", "--labels", "labels"]
    _, lines, _ = t.expect(0, *source)
    said_json = json.loads(t.expect(0, *source, "--json")[1][0])
    for key, of in (("mean", statistics.fmean), ("deviation", statistics.pstdev)):
        found = json.loads(said(lines, key + " ")[0][len(key) + 1:])
        wanted = [of([v / 255 for v in pixels[c::3]]) for c in range(3)]
        t.check(len(found) == 3 and max(abs(a - b) for a, b in zip(found, wanted)) < 1e-8 and
                max(abs(a - b) for a, b in zip(said_json[key], wanted)) < 1e-8, key, found,
                wanted)


def refused(t):
    layers = [{"type": "flatten"}, {"type": "dense", "units": 10}]
    small = sets(model__layers=layers, precision="mixed_float16",
                 data__normalize={"mean": [-1e6], "deviation": [1e-6]})
    for code, words, *options in (
            (78, "data.normalize: found 1 mean and 0 deviation, wanted one of each", *sets(
                data__normalize={"mean": [0.5]})),
            (78, "model.input, which has 1", *sets(
                data__normalize={"mean": [0.5] * 3, "deviation": [1.0] * 3})),
            (78, "data.normalize.deviation[0]", *sets(
                data__normalize={"mean": [0.5], "deviation": [0]})),
            (78, "data.augment.shift: found [10, 0], wanted less than the 10 rows", *sets(
                data__augment={"shift": [10, 0]})),
            (78, "data.augment.contrast", *sets(data__augment={"contrast": 1})),
            (78, "data.augment.flip", *sets(data__augment={"flip": "vertical"})),
            (78, "data.augment.cutout[0]", *sets(data__augment={"cutout": [-1, 2]})),
            (78, "data.augment", *sets(data__augment={"rotate": 10}))):
        _, _, error = t.expect(code, "train", "config.json", "--run-dir", "never", *options)
        t.check(words in error and error.count("\n") == 1, "one line", words, error)
    t.check(not os.path.exists("never"), "nothing was begun")
    _, _, error = t.expect(69, "embed", "config.json", "--to", "never.c",
                           *sets(data__normalize=NORMALIZE))
    t.check("data.normalize" in error and not os.path.exists("never.c"), "embed", error)
    # Values that 16 bits cannot hold are seen where they are stored.
    code, _, error = t.run("train", "config.json", "--run-dir", "large", *small)
    t.check(code == 80 and "input is not finite" in error, "too large for 16 bits", code, error)


def main():
    t = Test()
    trained(t)
    evaluated(t)
    exported(t)
    measured(t)
    refused(t)
    t.finish()


if __name__ == "__main__":
    main()
