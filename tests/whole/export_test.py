#!/usr/bin/env python3
"""export_test - lockstep checkpoint export: the file byte by byte against the checkpoint, the same
numbers from a network that computes as PyTorch does, and everything that may be wrong.

   export_test.py PROGRAM WORK_DIR [torch [PYTHON]]

Standard library only. With `torch`, PyTorch itself loads the files and computes the logits of
lockstep predict, in an environment that is thrown away, or as PYTHON has it; skipped (77) where it
cannot be had.
"""
import glob
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys

from program import Test

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = 24
# Nothing is square, nothing has one channel: every exchange of two dimensions shows.
MODELS = {
    "conv": ([9, 7, 3], [
        {"type": "conv2d", "name": "conv1", "filters": 5, "kernel_size": [3, 2], "padding": "same",
         "activation": "relu"},
        {"type": "max_pool2d", "name": "pool", "pool_size": [2, 1]},
        {"type": "conv2d", "name": "conv2", "filters": 4, "kernel_size": [2, 3], "strides": [1, 2],
         "use_bias": False},
        {"type": "relu", "name": "relu"},
        {"type": "flatten", "name": "flatten"},
        {"type": "dense", "name": "dense", "units": 6, "activation": "relu"},
        {"type": "dense", "name": "logits", "units": 10}]),
    "flat": ([5, 4, 3], [
        {"type": "max_pool2d", "name": "pool", "pool_size": 2},
        {"type": "flatten", "name": "flatten"},
        {"type": "dense", "name": "dense", "units": 8, "activation": "relu"},
        {"type": "dense", "name": "logits", "units": 10}]),
}
# Height, width and channels at the flatten, by hand.
FLATTENED = {"conv": (3, 3, 4), "flat": (2, 2, 3)}


def write_images(name, shape):
    """IDX files of noise; returns the images as lists of bytes."""
    h, w, c = shape
    noise = random.Random(name)
    images = [noise.randbytes(h * w * c) for _ in range(EXAMPLES)]
    with open(name + "-images", "wb") as f:
        f.write(struct.pack(">5I", 0x804, EXAMPLES, h, w, c) + b"".join(images))
    with open(name + "-labels", "wb") as f:
        f.write(struct.pack(">2I", 0x801, EXAMPLES))
        f.write(bytes(noise.randrange(10) for _ in range(EXAMPLES)))
    return images


def train(t, name):
    """A run of the model, its logits as lists, its images."""
    shape, layers = MODELS[name]
    images = write_images(name, shape)
    files = {"images": name + "-images", "labels": name + "-labels"}
    config = t.write(name + ".json", {
        "name": name, "model.input": shape, "model.layers": layers, "global_batch": 8, "grain": 8,
        "steps": 6, "checkpoint.every_steps": 3, "data": {"train": files, "test": files}})
    t.expect(0, "train", config, "--run-dir", name)
    t.expect(0, "predict", config, "--run-dir", name, "--output", name + ".npy")
    with open(name + ".npy", "rb") as f:
        values = struct.unpack(f"<{EXAMPLES * 10}f", f.read()[128:])
    return [values[10 * i:10 * i + 10] for i in range(EXAMPLES)], images


# --- the file ------------------------------------------------------------------------------------

def read(path):
    """Metadata, and name: (shape, values as 4 bytes each), in file order; nothing between them."""
    with open(path, "rb") as f:
        content = f.read()
    data_at = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:data_at])
    metadata = header.pop("__metadata__")
    tensors, end = {}, 0
    for name, record in header.items():
        begin, data = record["data_offsets"][0], content[data_at:]
        assert begin == end and record["dtype"] == "F32", (name, record)
        end = record["data_offsets"][1]
        tensors[name] = (record["shape"], [data[i:i + 4] for i in range(begin, end, 4)])
    assert data_at % 64 == 0 and data_at + end == len(content), (data_at, end, len(content))
    return metadata, tensors


def turned(name, tensor, first_dense):
    """What PyTorch wants of a kernel, by the meaning of every index."""
    shape, values = tensor
    if len(shape) == 4:
        h, w, i, o = shape
        return [o, i, h, w], [values[((y * w + x) * i + c) * o + n]
                              for n in range(o) for c in range(i) for y in range(h)
                              for x in range(w)]
    inputs, units = shape
    if not first_dense:
        return [units, inputs], [values[k * units + n] for n in range(units)
                                 for k in range(inputs)]
    h, w, channels = FLATTENED[name]
    return [units, inputs], [values[((y * w + x) * channels + c) * units + n]
                             for n in range(units) for c in range(channels) for y in range(h)
                             for x in range(w)]


def newest(run):
    return sorted(glob.glob(run + "/checkpoints/*"))[-1]


def compare(t, name):
    source, saved = read(newest(name))
    t.expect(0, "checkpoint", "export", name, "--output", name + "-keras")
    t.expect(0, "checkpoint", "export", name, "--output", name + "-torch", "--layout", "torch")
    parameters = {n: tensor for n, tensor in saved.items() if n.count("/") == 1}
    t.check(len(saved) == 2 * len(parameters), "the checkpoint has slots", list(saved))

    metadata, keras = read(name + "-keras")
    t.check(list(keras.items()) == list(parameters.items()), "keras: all parameters, bit by bit")
    data = b"".join(b"".join(values) for _, values in keras.values())
    t.check(hashlib.sha256(data).hexdigest() == metadata["digest"], "its bytes have the digest")
    wanted = {"format": "np", "layout": "keras", **{key: source[key] for key in (
        "name", "step", "run_identity", "digest", "lockstep_version")}}
    t.check(metadata == wanted, "keras: metadata", metadata, wanted)

    metadata, torch = read(name + "-torch")
    t.check(metadata == {**wanted, "format": "pt", "layout": "torch"}, "torch: metadata", metadata)
    expected, first_dense = {}, True
    for full, tensor in parameters.items():
        layer, part = full.split("/")
        if part == "kernel":
            expected[layer + ".weight"] = turned(name, tensor, first_dense)
            first_dense = first_dense and len(tensor[0]) == 4
        else:
            expected[layer + ".bias"] = tensor
    t.check(list(torch.items()) == list(expected.items()), f"{name}: torch, value by value")


# --- the network, as PyTorch computes it ---------------------------------------------------------

def pair(value):
    return value if isinstance(value, list) else [value, value]


def windows(planes, layer, key, fill):
    """Rows of windows of each plane [c][y][x]: [row][column][c][position]."""
    kh, kw = pair(layer[key])
    sh, sw = pair(layer.get("strides", layer["pool_size"] if key == "pool_size" else 1))
    if layer.get("padding") == "same":  # of stride 1
        wide = [[fill] * (kw - 1) for _ in range(2)]
        planes = [[wide[0][:(kw - 1) // 2] + row + wide[0][(kw - 1) // 2:] for row in p]
                  for p in planes]
        blank = [fill] * len(planes[0][0])
        planes = [[blank] * ((kh - 1) // 2) + p + [blank] * (kh - 1 - (kh - 1) // 2)
                  for p in planes]
    h, w = len(planes[0]), len(planes[0][0])
    return [[[[p[y + i][x + j] for i in range(kh) for j in range(kw)] for p in planes]
             for x in range(0, w - kw + 1, sw)] for y in range(0, h - kh + 1, sh)]


def by_plane(rows, count, value):
    return [[[value(cell, c) for cell in row] for row in rows] for c in range(count)]


def forward(layers, tensors, at):
    """Of one image [c][y][x], with weights (out, in, ..)."""
    for layer in layers:
        kind, name = layer["type"], layer["name"]
        shape, weight = tensors.get(name + ".weight", ([0], []))
        bias = tensors.get(name + ".bias", ([], [0.0] * shape[0]))[1]
        if kind == "conv2d":
            size = len(weight) // shape[0]
            at = by_plane(windows(at, layer, "kernel_size", 0.0), shape[0], lambda cell, n: bias[
                n] + sum(a * b for a, b in zip(sum(cell, []), weight[n * size:(n + 1) * size])))
        elif kind == "max_pool2d":
            at = by_plane(windows(at, layer, "pool_size", None), len(at), lambda cell, c: max(
                cell[c]))
        elif kind == "flatten":
            at = [x for plane in at for row in plane for x in row]
        elif kind == "dense":
            at = [bias[n] + sum(a * b for a, b in zip(at, weight[n * len(at):]))
                  for n in range(shape[0])]
        if kind == "relu" or layer.get("activation") == "relu":
            at = ([[[max(x, 0.0) for x in row] for row in plane] for plane in at]
                  if isinstance(at[0], list) else [max(x, 0.0) for x in at])
    return at


def compute(t, name, logits, images):
    (h, w, channels), layers = MODELS[name]
    tensors = {n: (shape, [struct.unpack("<f", v)[0] for v in values])
               for n, (shape, values) in read(name + "-torch")[1].items()}
    worst = 0.0
    for image, wanted in zip(images, logits):
        planes = [[[image[(y * w + x) * channels + c] / 255 for x in range(w)] for y in range(h)]
                  for c in range(channels)]
        found = forward(layers, tensors, planes)
        worst = max(worst, max(abs(a - b) for a, b in zip(found, wanted)))
    t.check(worst < 1e-5, f"{name}: the logits of predict", worst)
    spread = max(max(row) - min(row) for row in logits)
    t.check(spread > 0.01, f"{name}: logits that say something", spread)


# --- what may be wrong ---------------------------------------------------------------------------

def refused(t, code, word, *arguments):
    _, lines, error = t.expect(code, "checkpoint", "export", *arguments)
    t.check(error.startswith("lockstep: ") and error.count("\n") == 1 and word in error,
            f"one line with {word!r}", arguments, error)
    t.check(not lines, "nothing is said", lines)


def rewritten(source, to, old, new):
    """A checkpoint that is whole, with `old` replaced by as many letters."""
    with open(source, "rb") as f:
        content = f.read()
    assert content.count(old) and len(old) == len(new), old
    content = content.replace(old, new)
    recorded = read(source)[0]["content_sha256"].encode()
    content = content.replace(recorded, b"0" * 64)
    digest = hashlib.sha256(content).hexdigest().encode()
    with open(to, "wb") as f:
        f.write(content.replace(b"0" * 64, digest, 1))


def usage(t):
    checkpoint = newest("conv")
    refused(t, 64, "wanted --output", "conv")
    refused(t, 64, '--output: found ""', "conv", "--output", "")
    refused(t, 64, "found 0 arguments, wanted 1", "--output", "new")
    refused(t, 64, 'did you mean "--layout"', "conv", "--output", "new", "--layot", "torch")
    refused(t, 64, 'found "keros", wanted "keras" or "torch"', "conv", "--output", "new",
            "--layout", "keros")
    os.mkdir("folder")
    os.mkfifo("pipe")
    for place in ("folder", "pipe"):
        refused(t, 64, "which is no plain file", "conv", "--output", place)
    refused(t, 74, "cannot create", "conv", "--output", "nowhere/new")
    # The checkpoint, by whatever name, is not replaced; nor is one put beside it.
    shutil.copy(checkpoint, "copy.tmp")
    os.link("copy.tmp", "link")
    os.symlink("copy.tmp", "symbolic")
    for place in ("copy.tmp", "link", "symbolic", "copy"):
        refused(t, 64, "would replace the checkpoint itself", "copy.tmp", "--output", place)
    refused(t, 64, "would replace the checkpoint itself", "conv", "--output", checkpoint)
    for place in (checkpoint.replace("06.", "03."), "step-0000000099.safetensors"):
        refused(t, 64, "the name of a checkpoint", "conv", "--output", place)
    with open(checkpoint, "rb") as a, open("copy.tmp", "rb") as b:
        t.check(a.read() == b.read(), "the checkpoint is as it was")


def sources(t):
    refused(t, 66, "cannot open", "nowhere", "--output", "new")
    os.mkdir("empty")
    refused(t, 66, "holds no checkpoint", "empty", "--output", "new")
    refused(t, 65, "found a pipe", "pipe", "--output", "new")
    refused(t, 65, "not a checkpoint of Lockstep", "conv-keras", "--output", "new")
    refused(t, 65, "is no kernel, bias or slot", "odd", "--output", "new")
    refused(t, 65, "the digest of its parameters is", "other", "--output", "new")
    # Of a run: the newest whole one, and loudly what was passed over.
    shutil.copytree("conv", "damaged")
    for step in (6, 3):
        path = f"damaged/checkpoints/step-{step:010}.safetensors"
        with open(path, "r+b") as f:
            f.seek(-100, os.SEEK_END)
            f.write(b"\xff" * 8)
        refused(t, 65, "damaged", path, "--output", "new")
        if step == 6:
            _, lines, error = t.expect(0, "checkpoint", "export", "damaged", "--output", "older")
            t.check(error.startswith("lockstep: WARNING: damaged") and error.count("\n") == 1 and
                    "weights of step 3" in "".join(lines), "the older one serves, loudly", error)
            t.check(read("older")[0]["step"] == "3", "the older one's step")
    code, _, error = t.run("checkpoint", "export", "damaged", "--output", "new")
    t.check(code == 65 and "all 2 checkpoints are damaged" in error, "all damaged: 65", error)


def flattened_logits(t):
    """No dense layer: the logits are the flattened cells, whose order no file of weights says."""
    def convolution(filters, size):
        return [{"type": "conv2d", "name": "conv", "filters": filters, "kernel_size": size},
                {"type": "flatten", "name": "flatten"}]
    shape = [3, 4, 2]
    for name, filters, size, code in (("cells", 5, [3, 3], 64), ("one-cell", 10, [3, 4], 0),
                                      ("one-channel", 1, [2, 2], 0)):
        classes = {"cells": 10, "one-cell": 10, "one-channel": 6}[name]
        config = t.write(name + ".json", {
            "model.input": shape, "model.layers": convolution(filters, size), "steps": 2,
            "model.classes": classes, "data.train.made_up": {
                "count": 40, "height": 3, "width": 4, "channels": 2, "classes": classes},
            "checkpoint.every_steps": 2, "global_batch": 8, "grain": 8})
        t.expect(0, "train", config, "--run-dir", name)
        t.expect(0, "checkpoint", "export", name, "--output", name + "-keras")
        for source, more in ((name, []), (newest(name), ["--config", config])):
            to = ["--output", name + "-torch", "--layout", "torch", *more]
            if code:
                refused(t, code, "which PyTorch flattens in another order", source, *to)
            else:
                t.expect(code, "checkpoint", "export", source, *to)
        t.check(os.path.exists(name + "-torch") == (code == 0), f"{name}: a file or none")
        refused(t, 64, "how many channels and cells are flattened", newest(name), "--output", "new",
                "--layout", "torch")


def models(t):
    """What PyTorch flattens without a convolution before: only the configuration knows."""
    checkpoint = newest("flat")
    new = ["--output", "new", "--layout", "torch"]
    refused(t, 64, "does not say how many channels", checkpoint, *new)
    refused(t, 66, "there is no such file", checkpoint, *new, "--config", "nowhere")
    refused(t, 78, "its model has other parameters", checkpoint, *new, "--config", "conv.json")
    refused(t, 78, "its model has other parameters", "conv", *new, "--config", "mnist-cnn")
    other = t.write("other.json", {"model.input": [5, 4, 1], "model.layers": MODELS["flat"][1]})
    refused(t, 78, "its model has other parameters", checkpoint, *new, "--config", other)
    refused(t, 78, "", checkpoint, *new, "--config", checkpoint)
    t.expect(0, "checkpoint", "export", checkpoint, "--output", "named", "--layout", "torch",
             "--config", "flat.json")
    with open("named", "rb") as a, open("flat-torch", "rb") as b:
        t.check(a.read() == b.read(), "by name or by run directory: the same file")
    shutil.copytree("flat", "bare")
    os.remove("bare/config.json")
    refused(t, 66, "bare/config.json", "bare", *new)
    t.expect(0, "checkpoint", "export", "bare", "--output", "bare-keras")


def full_disk(t):
    """In the shape of a limit on the size of a file: nothing of the new one is left."""
    with open("kept", "w", encoding="utf-8") as f:
        f.write("old")
    for place in ("kept", "new"):
        for most in (0, 100, 2000):
            done = subprocess.run(
                [t.program, "checkpoint", "export", "conv", "--output", place], text=True,
                capture_output=True, check=False,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
            t.check(done.returncode == 74 and done.stderr.count("\n") == 1 and
                    place + ".tmp: cannot write" in done.stderr, "a full disk: 74", done)
            t.check(not os.path.exists(place + ".tmp"), "no half is left")
    with open("kept", encoding="utf-8") as f:
        t.check(f.read() == "old", "what was there stays")
    t.expect(0, "checkpoint", "export", "conv", "--output", "kept")
    t.check(read("kept") == read("conv-keras"), "and is replaced once all is well")


def wrong(t):
    checkpoint = newest("conv")
    digest = read(checkpoint)[0]["digest"].encode()
    rewritten(checkpoint, "odd", b'"dense/bias"', b'"dense/gain"')
    rewritten(checkpoint, "other", digest, digest[::-1])
    usage(t)
    sources(t)
    models(t)
    flattened_logits(t)
    full_disk(t)
    t.check(not os.path.exists("new"), "nothing that was refused was written")
    t.check(not glob.glob("*.tmp.tmp") and not os.path.exists("new.tmp"), "nor begun")


# --- PyTorch -------------------------------------------------------------------------------------

def torch_python():
    """An environment as the comparison with other frameworks makes it."""
    loader = importlib.machinery.SourceFileLoader("peers", HERE + "/../bench/peers")
    peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(peers)
    try:
        os.mkdir("environment")
        python = peers.torch_python(os.path.abspath("environment"))
        subprocess.run([python, "-m", "pip", "install", "-q", "safetensors"], check=True,
                       timeout=300)
        return python
    except (peers.Left_out, subprocess.SubprocessError) as why:
        print("skipped: PyTorch cannot be installed here:", why)
        sys.exit(77)


def judge(t, python):
    for name in MODELS:
        done = subprocess.run([python, HERE + "/export_judge.py", name], check=False)
        t.check(done.returncode == 0, f"{name}: PyTorch's verdict")


def main():
    t = Test()
    runs = {name: train(t, name) for name in MODELS}
    for name, (logits, images) in runs.items():
        compare(t, name)
        compute(t, name, logits, images)
    if sys.argv[3:4] == ["torch"]:
        try:
            judge(t, sys.argv[4] if len(sys.argv) > 4 else torch_python())
        finally:
            shutil.rmtree("environment", ignore_errors=True)
    else:
        wrong(t)
    t.finish()


main()
