#!/usr/bin/env python3
"""floats_test - inputs of f32, from outside: floats with the values that LOAD makes of bytes train
to the bits of the bytes, whether they are made up, lie in files or in shards; what verify, predict
and embed say of them; what is refused.

   floats_test.py PROGRAM WORK_DIR

Standard library only.
"""
import json
import os
import struct

from import_test import npy
from program import Test, result

F32 = ["--set", "model.input_type=f32"]
COUNT, SIDE = 1000, 10


def widened(data):
    """What LOAD makes of bytes: the product is exact in double, and rounded once."""
    return [struct.unpack("<f", struct.pack("<f", b * float.fromhex("0x1.010102p-8")))[0]
            for b in data]


def as_floats(u8_file, f32_file):
    """An IDX file of bytes as one of floats."""
    with open(u8_file, "rb") as f:
        content = f.read()
    header = 4 + 4 * content[3]
    values = widened(content[header:])
    with open(f32_file, "wb") as f:
        f.write(b"\0\0\x0d" + content[3:header] + struct.pack(f">{len(values)}f", *values))
    return values


def files(t):
    """Of the configuration's made-up examples IDX files and shards, as bytes and floats."""
    t.expect(0, "data", "shard", "--made-up", str(COUNT), "--height", str(SIDE), "--width",
             str(SIDE), "--shards", "1", "--to", "bytes")
    values = as_floats("bytes/images-00000.idx", "floats.idx")
    t.expect(0, "data", "shard", "--images", "floats.idx", "--labels", "bytes/labels-00000.idx",
             "--shards", "7", "--to", "shards")
    with open("bytes/labels-00000.idx", "rb") as f:
        labels = f.read()[8:]
    npy("values.npy", "<f4", (COUNT, SIDE, SIDE), struct.pack(f"<{len(values)}f", *values))
    npy("labels.npy", "|u1", f"({COUNT},)", labels)
    t.expect(0, "data", "import", "npy", "values.npy", "labels.npy", "--to", "imported")
    t.expect(0, "data", "import", "npy", "values.npy", "labels.npy", "--part", "test", "--to",
             "imported")
    with open("imported/train-images-idx3-ubyte", "rb") as a, open("floats.idx", "rb") as b:
        t.check(a.read() == b.read(), "imported floats are those that were written")
    return values


def trained(t):
    """Wherever the values come from, the bits are the same."""
    config = t.write("config.json", {
        "steps": 8, "data.normalize": {"mean": [0.25], "deviation": [0.5]},
        "data.augment": {"shift": 2, "flip": "horizontal", "cutout": 3, "brightness": 0.2}})
    pair = {"images": "floats.idx", "labels": "bytes/labels-00000.idx"}
    ways = {"bytes": [], "made up": F32,
            "files": [*F32, "--set", "data.train=" + json.dumps(pair)],
            "imported": [*F32, "--data", "imported"],
            "shards": [*F32, "--set", 'data.train={"manifest": "shards/manifest.json"}'],
            "portable": [*F32, "--data", "imported", "--kernels", "portable", "--replicas", "3"],
            "reference": [*F32, "--kernels", "reference"]}
    found = {}
    for name, options in ways.items():
        found[name] = result(t.expect(0, "train", config, "--run-dir", "of " + name, *options)[1])
    t.check(len(set(map(str, found.values()))) == 1, "the bits of the bytes", found)
    mixed = [result(t.expect(0, "train", config, "--run-dir", "mixed" + str(len(options)),
                             "--set", "precision=mixed_float16", *options)[1])
             for options in ([], F32)]
    t.check(mixed[0] == mixed[1], "in mixed precision, too", mixed)
    _, _, error = t.expect(78, "train", config, "--run-dir", "of made up", "--resume")
    t.check("model.input_type" in error and error.count("\n") == 1, "another run", error)


def hashed(t):
    """The data hash is of the values, wherever they lie."""
    hashes = set()
    for source in (["--images", "floats.idx", "--labels", "bytes/labels-00000.idx"],
                   ["--manifest", "shards/manifest.json"], ["--directory", "imported"]):
        found = json.loads(t.expect(0, "data", "verify", *source, "--json")[1][0])
        hashes.add(found["data_sha256"])
        t.check(found["type"] == "f32" and found["image"] == [SIDE, SIDE, 1], "its type", found)
    plan = json.loads(t.expect(0, "data", "verify", "--images", "bytes/images-00000.idx",
                               "--labels", "bytes/labels-00000.idx", "--json")[1][0])
    t.check(abs(plan["mean"][0] - found["mean"][0]) < 1e-7 and
            abs(plan["deviation"][0] - found["deviation"][0]) < 1e-7, "mean and deviation", plan,
            found)
    t.check(len(hashes) == 1, "one data hash", hashes)


def predicted(t):
    checkpoint = ["--checkpoint", "of made up/checkpoints/step-0000000008.safetensors"]
    outputs = []
    for images in ("values.npy", "floats.idx"):
        t.expect(0, "predict", "config.json", *F32, *checkpoint, "--images", images, "--output",
                 "logits.npy")
        with open("logits.npy", "rb") as f:
            outputs.append(f.read())
    t.check(outputs[0] == outputs[1] and len(outputs[0]) == 128 + 4 * 10 * COUNT, "predictions")
    _, _, error = t.expect(65, "predict", "config.json", *F32, *checkpoint, "--images",
                           "bytes/images-00000.idx", "--output", "never.npy")
    t.check("found u8 values, wanted f32" in error and error.count("\n") == 1, "bytes", error)
    t.check(not os.path.exists("never.npy"), "nothing was written")


def embedded(t):
    """Made-up floats are written as those of files."""
    texts = []
    plain = t.write("plain.json", {"steps": 4, "data.train.made_up.count": 64})
    for name, options in (("a.c", []), ("b.c", ["--set", 'data.train={"images": "some.idx", '
                                                '"labels": "some-labels.idx"}'])):
        t.expect(0, "embed", plain, *F32, "--to", name, *options)
        with open(name, encoding="utf-8") as f:
            texts.append(f.read())
    t.check(texts[0] == texts[1] and ".input_type = 1u" in texts[0], "embedded",
            [len(text) for text in texts])


def some_files(t):
    t.expect(0, "data", "shard", "--made-up", "64", "--height", str(SIDE), "--width", str(SIDE),
             "--shards", "1", "--to", "some")
    as_floats("some/images-00000.idx", "some.idx")
    os.rename("some/labels-00000.idx", "some-labels.idx")


def refused(t):
    labels = ["--labels", "bytes/labels-00000.idx"]
    with open("floats.idx", "rb") as f:
        good = f.read()
    for number, (word, what) in enumerate(((0x7fc00000, "NaN"), (0xff800000, "an infinity"))):
        name = f"bad{number}.idx"
        with open(name, "wb") as f:
            f.write(good[:16 + 4 * 105] + struct.pack(">I", word) + good[16 + 4 * 106:])
        _, _, error = t.expect(65, "data", "verify", "--images", name, *labels)
        t.check(f"{name}: example 1: value 5: found {what}" in error and error.count("\n") == 1,
                "not finite", error)
    for code, words, *options in (
            (78, "model.input_range: found with model.input_type", *F32, "--set",
             "model.input_range=signed"),
            (78, "events.images: found with model.input_type", *F32, "--set", "events.images=2"),
            (78, '"u8", "f32"', "--set", "model.input_type=f64"),
            (65, "found f32 values, wanted u8; set model.input_type to \"f32\"", "--data",
             "imported"),
            (65, "found u8 values, wanted f32; set model.input_type to \"u8\"", *F32, "--set",
             'data.train={"manifest": "bytes/manifest.json"}')):
        _, _, error = t.expect(code, "train", "config.json", "--run-dir", "never", *options)
        t.check(words in error and error.count("\n") == 1, "one line", words, error)
    t.check(not os.path.exists("never"), "nothing was begun")
    with open("shards/manifest.json", encoding="utf-8") as f:
        text = f.read()
    with open("shards/manifest.json", "w", encoding="utf-8") as f:
        f.write(text.replace('  "type": "f32",\n', ""))
    _, _, error = t.expect(65, "data", "verify", "--manifest", "shards/manifest.json")
    t.check("found f32 values, wanted u8 by" in error, "a manifest of bytes", error)


def exported(t):
    """An ONNX model of floats takes them as they are; normalisation is folded, or a node."""
    export = ["checkpoint", "export", "of files", "--layout", "onnx", "--output"]
    said = json.loads(t.expect(0, *export, "model.onnx", "--json")[1][0])
    t.expect(0, *export, "asked.onnx", "--input", "f32")
    with open("model.onnx", "rb") as a, open("asked.onnx", "rb") as b:
        model = a.read()
        t.check(model == b.read() and said["input"] == "f32", "floats alone", said)
    t.check(b"/Cast" not in model and b"/Add" in model and
            b"/factor\x4a\x04" + struct.pack("<f", 2.0) in model, "what becomes of them")
    _, _, error = t.expect(64, *export, "never.onnx", "--input", "u8")
    t.check("its model takes floats" in error and error.count("\n") == 1, "one line", error)


def main():
    t = Test()
    files(t)
    some_files(t)
    trained(t)
    hashed(t)
    predicted(t)
    embedded(t)
    exported(t)
    refused(t)
    t.finish()


if __name__ == "__main__":
    main()
