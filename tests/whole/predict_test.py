#!/usr/bin/env python3
"""predict_test - lockstep eval and predict from what is left of a run: an export, without the
training set, without labels.

   predict_test.py PROGRAM WORK_DIR

Standard library only.
"""
import glob
import json
import os
import random
import shutil
import struct

from pictures import png, rows_of
from program import Test

COUNT, SIDE = 300, 10
noise = random.Random(5)


def write_data(directory):
    os.makedirs(directory)
    for name in ("train", "t10k"):
        with open(f"{directory}/{name}-images-idx3-ubyte", "wb") as f:
            f.write(struct.pack(">4I", 0x803, COUNT, SIDE, SIDE))
            f.write(noise.randbytes(COUNT * SIDE * SIDE))
        with open(f"{directory}/{name}-labels-idx1-ubyte", "wb") as f:
            f.write(struct.pack(">2I", 0x801, COUNT))
            f.write(bytes(noise.randrange(10) for _ in range(COUNT)))


def refused(t, code, word, *arguments):
    found, lines, error = t.run(*arguments)
    t.check(found == code and error.startswith("lockstep: ") and error.count("\n") == 1 and
            word in error, f"{code} and one line with {word!r}", arguments, found, lines, error)


def content(path):
    with open(path, "rb") as f:
        return f.read()


def changed(source, to, old, new):
    """The export with as many other bytes; its header may have one only."""
    data = content(source)
    assert data.count(old) >= 1 and len(old) == len(new), old
    with open(to, "wb") as f:
        f.write(data.replace(old, new, 1))
    return to


def wrong(t, config):
    export = "run.safetensors"
    digest = json.loads(t.expect(0, "eval", config, "--data", "test", "--checkpoint", export,
                                 "--json")[1][0])["digest"].encode()
    weights = ["eval", config, "--data", "test", "--checkpoint"]
    refused(t, 65, f"it says {digest[::-1].decode()}: it was changed or damaged", *weights,
            changed(export, "bad", digest, digest[::-1]))
    with open("bad", "wb") as f:
        f.write(content(export)[:-1] + bytes([content(export)[-1] ^ 1]))
    refused(t, 65, "the digest of its parameters", *weights, "bad")
    refused(t, 65, "are not those of the model", *weights,
            changed(export, "bad", b'"dense/bias"', b'"dense/gain"'))
    other = t.write("other.json", {"model.layers": json.loads(content(config))["model"]["layers"][
        :-1] + [{"type": "dense", "name": "logits", "units": 10, "use_bias": False}],
                                   "data": {"set": "mine"}})
    refused(t, 65, "are not those of the model", "eval", other, "--data", "test", "--checkpoint",
            export)
    t.expect(0, "checkpoint", "export", "run", "--output", "torch", "--layout", "torch")
    refused(t, 65, 'layout "torch"', *weights, "torch")
    refused(t, 65, "not a checkpoint", *weights, changed(export, "bad", b'"layout"', b'"leyout"'))
    refused(t, 66, "nowhere", *weights, "nowhere")
    refused(t, 66, "t10k-images", "eval", config, "--data", "run", "--checkpoint", export)
    predict = ["predict", config, "--checkpoint", export, "--output", "new.npy", "--images"]
    refused(t, 66, "nowhere", *predict, "nowhere")
    refused(t, 65, "labels", *predict, "test/t10k-labels-idx1-ubyte")
    with open("small", "wb") as f:
        f.write(struct.pack(">4I", 0x803, 1, 2, 2) + bytes(4))
    refused(t, 78, "its images are 2 x 2 x 1", *predict, "small")
    with open("short", "wb") as f:
        f.write(struct.pack(">4I", 0x803, 2, SIDE, SIDE) + bytes(SIDE * SIDE))
    refused(t, 65, "short", *predict, "short")
    refused(t, 64, "unknown option", "eval", config, "--checkpoint", export, "--images", "small")
    refused(t, 64, "unknown option", "train", config, "--images", "small")
    t.check(not glob.glob("new.npy*"), "nothing half-written")


def without_loss(t):
    """Outputs are finite, a loss that nobody asked for is none."""
    model = {"input": [2, 2, 1], "input_type": "f32", "loss": "mean_squared_error", "layers": [
        {"type": "flatten"}, {"type": "dense", "units": 4},
        {"type": "reshape", "target_shape": [2, 2, 1]}]}
    made = {"count": 8, "height": 2, "width": 2}
    config = t.write("squares.json", {"global_batch": 8, "steps": 1, "model": model, "data": {
        "train": {"made_up": made}, "test": {"made_up": made}}})
    t.expect(0, "train", config, "--run-dir", "squares")
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 2), }\n"
    with open("large.npy", "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() +
                struct.pack("<4f", 1e25, 1e25, 0, 0))
    t.expect(0, "predict", config, "--run-dir", "squares", "--images", "large.npy", "--output",
             "made.npy")
    values = struct.unpack("<4f", content("made.npy")[-16:])
    t.check(all(1e20 < abs(value) < 1e27 for value in values), "outputs", values)


def main():
    t = Test()
    without_loss(t)
    write_data("data")
    config = t.write("config.json", {"data": {"set": "mine"}, "steps": 6, "global_batch": 64})
    t.expect(0, "train", config, "--data", "data", "--run-dir", "run")
    run = ["--run-dir", "run"]
    _, wanted, _ = t.expect(0, "eval", config, "--data", "data", *run)
    said = json.loads(t.expect(0, "eval", config, "--data", "data", *run, "--json")[1][0])
    with open("run/identity", encoding="ascii") as f:
        t.check(said["run_identity"] == f.read().strip(), "the identity of the run", said)
    t.expect(0, "predict", config, "--data", "data", *run, "--output", "wanted.npy")
    t.expect(0, "checkpoint", "export", "run", "--output", "run.safetensors")

    # From here on there is no training set.
    os.mkdir("test")
    for path in glob.glob("data/t10k-*"):
        shutil.copy(path, "test")
    shutil.rmtree("data")
    for weights in (run, ["--checkpoint", "run.safetensors"]):
        _, lines, _ = t.expect(0, "eval", config, "--data", "test", *weights)
        t.check(lines[1:] == wanted[1:], f"the same figures: {weights[0]}", lines, wanted)
        again = json.loads(t.expect(0, "eval", config, "--data", "test", *weights, "--json")[1][0])
        t.check(again == said, "and as JSON", again, said)
        t.expect(0, "predict", config, "--data", "test", *weights, "--output", "found.npy")
        t.check(content("found.npy") == content("wanted.npy"), "the same logits")

    # Nor are there labels, nor any other data.
    images = shutil.move("test/t10k-images-idx3-ubyte", "images")
    shutil.rmtree("test")
    for more in ([], ["--replicas", "2", "--kernels", "portable"]):
        _, lines, _ = t.expect(0, "predict", config, "--checkpoint", "run.safetensors", "--images",
                               images, "--output", "found.npy", *more)
        t.check(content("found.npy") == content("wanted.npy"), "the same logits without labels")
        t.check(f"images {COUNT}" in lines and not any("loss" in line or "accuracy" in line
                                                       for line in lines),
                "nothing is said of what nobody knows", lines)
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({COUNT}, {SIDE}, {SIDE}), }}\n"
    with open("array.npy", "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() +
                content(images)[16:])
    t.expect(0, "predict", config, *run, "--images", "array.npy", "--output", "found.npy")
    t.check(content("found.npy") == content("wanted.npy"), "the same logits from an array")
    refused(t, 65, "found f32 values, wanted u8", "predict", config, *run, "--images", "wanted.npy",
            "--output", "new.npy")
    # Pictures: a folder of them, and one alone.
    pixels = content(images)[16:]
    os.mkdir("pictures")
    for i in range(COUNT):
        with open(f"pictures/{i:05}.png", "wb") as f:
            f.write(png(rows_of(pixels[i * SIDE * SIDE:(i + 1) * SIDE * SIDE], SIDE), SIDE))
    t.expect(0, "predict", config, *run, "--images", "pictures", "--output", "found.npy")
    t.check(content("found.npy") == content("wanted.npy"), "the same logits from pictures")
    t.expect(0, "predict", config, *run, "--images", "pictures/00007.png", "--output", "found.npy")
    t.check(content("found.npy")[128:] == content("wanted.npy")[128 + 7 * 40:128 + 8 * 40],
            "the logits of one picture")
    new = ["predict", config, *run, "--output", "new.npy", "--images"]
    os.mkdir("odd")
    refused(t, 65, "there is no picture", *new, "odd")
    shutil.copy("pictures/00000.png", "odd/a.png")
    for name, data, word in (("b.png", png([b"1234"], 4), "wanted 10 x 10 of 1"),
                             ("b.png", png([bytes(20)] * 10, 10, bits=16), "found 16 bits"),
                             ("b.png", content("odd/a.png")[:-9], "no whole PNG"),
                             ("b.txt", b"", "wanted PNG files alone")):
        with open("odd/" + name, "wb") as f:
            f.write(data)
        refused(t, 65, word, *new, "odd")
    refused(t, 65, "no whole PNG", *new, changed("odd/a.png", "bad.png", b"IDAT", b"IDAU"))
    found = json.loads(t.expect(0, "predict", config, *run, "--images", images, "--output",
                                "found.npy", "--json")[1][0])
    t.check((found["images"], found["digest"], found["run_identity"]) ==
            (COUNT, said["digest"], said["run_identity"]) and "test_loss" not in found, "as JSON",
            found)
    os.mkdir("test")
    shutil.copy(images, "test/t10k-images-idx3-ubyte")
    with open("test/t10k-labels-idx1-ubyte", "wb") as f:
        f.write(struct.pack(">2I", 0x801, COUNT) + bytes(COUNT))
    wrong(t, config)
    t.finish()


main()
