#!/usr/bin/env python3
"""labels_test - labels of two bytes: 1,000 classes from an imported array train to one digest,
however the run is cut or stopped; and labels that a byte could hold give the same weights in two.

   labels_test.py PROGRAM WORK_DIR

Standard library only.
"""
import gzip
import json
import os
import random
import re
import shutil
import struct

from program import Test, result, value

noise = random.Random(14)
COUNT, TESTS, SIDE, CLASSES = 600, 300, 6, 1000
PIXELS = SIDE * SIDE
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def npy(path, descr, shape, data):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def label_file(labels, wide):
    return (bytes([0, 0, 11 if wide else 8, 1]) +
            struct.pack(f">I{len(labels)}{'H' if wide else 'B'}", len(labels), *labels))


def make_data(t):
    """A set of 1,000 classes by way of NumPy's arrays; returns the labels of its test set."""
    there = {label: noise.randbytes(PIXELS) for label in noise.sample(range(CLASSES), 119)}
    there[CLASSES - 1] = noise.randbytes(PIXELS)
    labels = noise.choices(list(there), k=COUNT + TESTS)
    images = [bytes((3 * v + noise.randrange(256)) // 4 for v in there[label]) for label in labels]
    for part, first, count in (("train", 0, COUNT), ("test", COUNT, TESTS)):
        npy("images.npy", "|u1", (count, SIDE, SIDE), b"".join(images[first:first + count]))
        npy("labels.npy", "<i4", f"({count},)", struct.pack(f"<{count}i",
                                                            *labels[first:first + count]))
        t.expect(0, "data", "import", "npy", "images.npy", "labels.npy", "--to", "set", "--part",
                 part)
    t.check(read("set/" + LABELS) == label_file(labels[:COUNT], True), "labels in two bytes")
    return labels


def configure(t, name, classes):
    return t.write(name, {
        "model.input": [SIDE, SIDE, 1], "model.classes": classes, "steps": 60, "global_batch": 32,
        "grain": 4, "hash_every_steps": 5, "log_every_steps": 1, "data": {"set": "mine"},
        "model.layers": [{"type": "flatten"}, {"type": "dense", "units": classes}],
        "optimizer.learning_rate": 0.1, "evaluate_every_steps": 20,
        "checkpoint": {"every_steps": 20, "every_seconds": 0}})


def one_digest(t, config):
    """Replicas, kernels, shards, a packed file, a run that was stopped and goes on."""
    wanted = result(t.expect(0, "train", config, "--data", "set", "--run-dir", "run", "--replicas",
                             "1")[1])
    log = read("run/metrics.jsonl")

    def same(what, *arguments):
        lines = t.expect(0, "train", config, "--run-dir", "way", "--fresh", *arguments)[1]
        t.check(result(lines) == wanted, what, result(lines), wanted)
        t.check(read("way/metrics.jsonl") == log, what + ": the log")

    same("two replicas", "--data", "set", "--replicas", "2")
    same("plain kernels", "--data", "set", "--replicas", "1", "--kernels", "reference")
    for part, images, labels in (("train", IMAGES, LABELS), ("test", TEST_IMAGES, TEST_LABELS)):
        t.expect(0, "data", "shard", "--images", "set/" + images, "--labels", "set/" + labels,
                 "--shards", "2", "--to", f"shards-{part}")
    t.check(b"".join(read(f"shards-train/labels-0000{i}.idx")[8:] for i in range(2)) ==
            read("set/" + LABELS)[8:], "labels of the shards")
    # Without --data, which would take the place of both.
    shards = {part: {"manifest": f"shards-{part}/manifest.json"} for part in ("train", "test")}
    same("two shards", "--set", f"data={json.dumps(shards)}", "--replicas", "2")
    os.mkdir("packed")
    for name in (IMAGES, LABELS, TEST_IMAGES, TEST_LABELS):
        put(f"packed/{name}.gz", gzip.compress(read("set/" + name)))
    same("packed files", "--data", "packed", "--replicas", "2")
    t.expect(0, "train", config, "--data", "set", "--run-dir", "part", "--replicas", "2", "--set",
             "steps=20")
    lines = t.expect(0, "train", config, "--data", "set", "--run-dir", "part", "--resume",
                     "--replicas", "1")[1]
    t.check(result(lines) == wanted, "a run that goes on", result(lines), wanted)
    t.check(read("part/metrics.jsonl") == log, "its log")
    return wanted


def one_answer(t, config, labels):
    """What evaluation says is what the logits say; and the report."""
    lines = t.expect(0, "eval", config, "--data", "set", "--run-dir", "run")[1]
    t.expect(0, "predict", config, "--data", "set", "--run-dir", "run", "--output", "logits.npy")
    content = read("logits.npy")
    logits = struct.unpack(f"<{TESTS * CLASSES}f", content[-4 * TESTS * CLASSES:])
    rows = [logits[CLASSES * i:CLASSES * (i + 1)] for i in range(TESTS)]
    right = [row.index(max(row)) == label for row, label in zip(rows, labels)]
    t.check(value(lines, "test_accuracy") == f"{100 * sum(right) / TESTS:.2f}", "accuracy",
            value(lines, "test_accuracy"), sum(right))
    t.check(sum(right) >= TESTS // 5, "it learns", sum(right))
    t.expect(0, "report", "run", "--data", "set", "--output", "page.html")
    page = read("page.html").decode()
    t.check(f"{sum(right)} of {TESTS} are right" in page, "the report's count")
    of = {}
    for label, hit in zip(labels, right):
        of.setdefault(label, []).append(hit)
    worst = sorted((sum(hits) / len(hits), label) for label, hits in of.items())[:100]
    table = page[page.index("Accuracy by class"):page.index("The most confident mistakes")]
    t.check([int(n) for n in re.findall(r"<th>(\d+)</th>", table)] == [w[1] for w in worst],
            "the classes that are right the least often")
    lines = t.expect(0, "data", "verify", "--directory", "set", "--part", "test")[1]
    t.check(value(lines, "class_counts").split() ==
            [str(labels.count(c)) for c in range(max(labels) + 1)], "how often each class is there")


def twins(t):
    """The same labels, all below 256, in a byte and in two: other data, the same weights."""
    config = configure(t, "twins.json", 256)
    few = {"train": [noise.randrange(256) for _ in range(COUNT)],
           "test": [noise.randrange(256) for _ in range(TESTS)]}
    found = {}
    for wide in (False, True):
        place = f"twin-{wide}"
        for part, images, labels in (("train", IMAGES, LABELS),
                                     ("test", TEST_IMAGES, TEST_LABELS)):
            os.makedirs(place, exist_ok=True)
            shutil.copy("set/" + images, place)
            put(f"{place}/{labels}", label_file(few[part], wide))
        lines = t.expect(0, "train", config, "--data", place, "--run-dir", "run-" + place,
                         "--replicas", "2" if wide else "1")[1]
        hashes = [json.loads(line) for line in read(f"run-{place}/hashes.jsonl").splitlines()]
        found[wide] = (result(lines), read(f"run-{place}/metrics.jsonl"), hashes)
        data = [json.loads(t.expect(0, "data", "verify", "--directory", place, "--json")[1][0])]
        found[wide, "data"] = data[0].pop("data_sha256")
        found[wide, "set"] = data
    t.check(found[False][0] == found[True][0] and found[False][1] == found[True][1],
            "the same weights and log", found[False][0], found[True][0])
    t.check(found[False][2] == found[True][2], "and step hashes")
    t.check(found[False, "data"] != found[True, "data"], "of other data")
    t.check(found[False, "set"] == found[True, "set"], "what verify counts", found[True, "set"])
    code, _, error = t.run("train", config, "--data", "twin-True", "--run-dir", "run-twin-False",
                           "--resume")
    t.check(code == 78 and "the data or the version is another" in error, "another run", code,
            error)


def refusals(t, config, labels):
    def refused(code, text, *arguments):
        found, lines, error = t.run(*arguments)
        t.check(found == code and text in error and error.count("\n") == 1, text, arguments, found,
                lines, error)

    train = ["train", config, "--data", "set", "--run-dir", "never", "--set"]
    layers = json.loads(read(config))["model"]["layers"]
    layers[1]["units"] = 700
    first = next(i for i in range(COUNT) if labels[i] >= 700)
    refused(65, f"{LABELS}: byte {8 + 2 * first}: label {first}: found {labels[first]}, wanted 0 "
            "to 699 (700 classes)", *train, "model.classes=700", "--set",
            f"model.layers={json.dumps(layers)}")
    # Labels are looked at before anything is trained: one that the first step does not draw, too.
    shutil.copytree("set", "late")
    put("late/" + LABELS, read("set/" + LABELS)[:-2] + struct.pack(">H", CLASSES))
    refused(65, f"label {COUNT - 1}: found {CLASSES}, wanted 0 to {CLASSES - 1}", "train", config,
            "--data", "late", "--run-dir", "never", "--set", "steps=1")
    t.check(not os.path.exists("never"), "nothing was begun")
    refused(78, "wanted an integer from 2 to 65536", *train, "model.classes=65537")
    refused(64, "--classes", "data", "verify", "--made-up", "9", "--classes", "65537")
    for name, content, text in (
            ("short", read("set/" + LABELS)[:-1], "truncated: found 1207 bytes, wanted 1208"),
            ("i8", bytes([0, 0, 9, 1]) + read("set/" + LABELS)[4:],
             "byte 2: found type 09 (i8), wanted 08 (u8) or 0b (16 bits)")):
        put("./" + name, content)
        refused(65, text, "data", "verify", "--images", "set/" + IMAGES, "--labels", name)
    put("./images", bytes([0, 0, 11, 3]) + read("set/" + IMAGES)[4:])
    refused(65, "images: byte 2: found type 0b (i16), wanted 08 (u8) or 0d (f32)", "data", "verify",
            "--images", "images", "--labels", "set/" + LABELS)


def main():
    t = Test()
    labels = make_data(t)
    config = configure(t, "config.json", CLASSES)
    one_digest(t, config)
    one_answer(t, config, labels[COUNT:])
    twins(t)
    refusals(t, config, labels)
    t.finish()


main()
