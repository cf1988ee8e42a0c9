#!/usr/bin/env python3
"""init_test - a run that begins with weights from a file: it takes them bit for bit from every form
that we write, by other names, without layers that are skipped; its identity is of what was taken;
and what does not fit is refused in a line.

   init_test.py PROGRAM WORK_DIR

Standard library only.
"""
import json
import os
import random
import struct

from program import Test, result, tf_config, start, finish, free_port, value

LAYERS = ["conv", "dense", "logits"]
# What PyTorch has in another order, as other names, or twice.
TURNED = {
    "deep": ([6, 5, 3], [
        {"type": "conv2d", "name": "parts", "filters": 6, "kernel_size": [2, 3], "groups": 3},
        {"type": "depthwise_conv2d", "name": "each", "kernel_size": [3, 2],
         "depth_multiplier": 2},
        {"type": "batch_normalization", "name": "cells"},
        {"type": "flatten", "name": "flatten"},
        {"type": "batch_normalization", "name": "flat"},
        {"type": "layer_normalization", "name": "layered"},
        {"type": "dense", "name": "logits", "units": 10}]),
    "sequence": ([6, 5, 3], [
        {"type": "reshape", "name": "times", "target_shape": [9, 10]},
        {"type": "dense", "name": "rows", "units": 7},
        {"type": "lstm", "name": "first", "units": 5, "return_sequences": True},
        {"type": "lstm", "name": "bare", "units": 4, "use_bias": False, "return_sequences": True},
        {"type": "batch_normalization", "name": "norm"},
        {"type": "flatten", "name": "flatten"},
        {"type": "dense", "name": "logits", "units": 10}]),
    "gated": ([6, 1, 5], [
        {"type": "gru", "name": "first", "units": 5, "return_sequences": True},
        {"type": "gru", "name": "bare", "units": 4, "use_bias": False},
        {"type": "dense", "name": "logits", "units": 10}]),
    "transducer": ([6, 1, 3], [
        {"type": "lstm", "name": "encoder", "units": 4, "return_sequences": True},
        {"type": "label_embedding", "name": "said", "units": 3},
        {"type": "lstm", "name": "prediction", "units": 4, "return_sequences": True},
        {"type": "joint", "name": "joint", "units": 5, "inputs": ["encoder", "prediction"]}]),
}


def tensors(path):
    """{name: (dims, floats)} of a safetensors file, and its metadata."""
    with open(path, "rb") as f:
        data = f.read()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    found = {}
    for name, at in header.items():
        if name != "__metadata__" and at["dtype"] == "F32":
            begin, end = at["data_offsets"]
            found[name] = (at["shape"], data[8 + length + begin:8 + length + end])
    return found


def write(path, content, dtypes=None):
    header, data = {}, b""
    for name, (dims, values) in content.items():
        header[name] = {"dtype": (dtypes or {}).get(name, "F32"), "shape": dims,
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return path


def newest(run):
    names = sorted(n for n in os.listdir(run + "/checkpoints") if n.endswith(".safetensors"))
    return f"{run}/checkpoints/{names[-1]}"


def parameters(run):
    return {n: v for n, v in tensors(newest(run)).items() if n.count("/") == 1}


def begun(t, config, run, *options):
    """The parameters that a run begins with: those after a step that changes nothing."""
    _, lines, _ = t.expect(0, "train", config, "--run-dir", run, "--set",
                           "optimizer.learning_rate=0", "--set", "steps=1", *options)
    return parameters(run), lines


def forms(t, config, donor):
    """From a checkpoint, and from exports of both layouts, the same weights and the same run."""
    wanted = parameters("donor")
    t.expect(0, "checkpoint", "export", "donor", "--output", "keras.safetensors")
    t.expect(0, "checkpoint", "export", "donor", "--output", "torch.safetensors", "--layout",
             "torch")
    t.check("conv.weight" in tensors("torch.safetensors"), "another layout it is")
    identities, ends = set(), set()
    for file in (donor, "keras.safetensors", "torch.safetensors"):
        name = "from-" + os.path.basename(file)[:5]
        found, lines = begun(t, config, name, "--init", file)
        t.check(found == wanted, file + ": bit for bit")
        t.check(f"init: 6 of 6 tensors from {file}" in lines, "it is said", lines[:6])
        identities.add(value(lines, "run_identity"))
        _, lines, _ = t.expect(0, "train", config, "--run-dir", name + "-on", "--init", file,
                               "--replicas", "3")
        ends.add(result(lines))
    t.check(len(identities) == 1 and len(ends) == 1, "one run of all three", identities, ends)
    _, lines = begun(t, config, "plain")
    t.check(value(lines, "run_identity") not in identities, "its identity is of what was taken")
    # Two changed bits are another run.
    content = tensors("keras.safetensors")
    dims, values = content["logits/bias"]
    content["logits/bias"] = (dims, bytes([values[0] ^ 3]) + values[1:])
    write("changed.safetensors", content)
    _, lines = begun(t, config, "changed", "--init", "changed.safetensors")
    t.check(value(lines, "run_identity") not in identities, "other bits, another run")
    return wanted, ends.pop()


def turned(t):
    """Of every model: from a checkpoint and from both exports the same run, bit for bit."""
    noise = random.Random(3)
    for name, (shape, layers) in TURNED.items():
        count, more = 32, {}
        with open(name + "-images", "wb") as f:
            f.write(struct.pack(">5I", 0x804, count, *shape))
            f.write(noise.randbytes(count * shape[0] * shape[1] * shape[2]))
        with open(name + "-labels", "wb") as f:
            if name == "transducer":
                more = {"model.labels": 2, "model.classes": 5, "model.loss": "transducer"}
                f.write(struct.pack(">3I", 0x802, count, 4))
                f.write(b"".join(bytes([0, 5, noise.randrange(1, 5), noise.randrange(1, 5)])
                                 for _ in range(count)))
            else:
                f.write(struct.pack(">2I", 0x801, count))
                f.write(bytes(noise.randrange(10) for _ in range(count)))
        config = t.write(name + ".json", {
            "model.input": shape, "model.layers": layers, "global_batch": 16, "grain": 8,
            "steps": 6, "data": {"train": {"images": name + "-images",
                                           "labels": name + "-labels"}}, **more})
        t.expect(0, "train", config, "--run-dir", name)
        wanted, found, identities = parameters(name), {}, set()
        for layout in ("keras", "torch"):
            t.expect(0, "checkpoint", "export", name, "--output", f"{name}.{layout}", "--layout",
                     layout)
            found[layout], lines = begun(t, config, f"{name}-{layout}", "--init",
                                         f"{name}.{layout}")
            identities.add(value(lines, "run_identity"))
        t.check(found["keras"] == found["torch"] and len(identities) == 1, f"{name}: one run",
                identities)
        kept = {n: v for n, v in wanted.items() if "/moving_" not in n}
        t.check(kept.items() <= found["torch"].items() and
                wanted.keys() == found["torch"].keys(), f"{name}: bit for bit")
        there = tensors(name + ".torch")
        t.check(not set(there) & set(wanted), f"{name}: another layout it is", list(there))
    # Moving statistics go on from those of the file; a step keeps 0.99 of them.
    for layout, word in (("keras", "cells/moving_{}"), ("torch", "cells.running_{}")):
        content = tensors("deep." + layout)
        for name in ("mean", "variance" if layout == "keras" else "var"):
            dims, values = content[word.format(name)]
            content[word.format(name)] = (dims, struct.pack("<f", 1000.0) * dims[0])
        found, _ = begun(t, "deep.json", "moved-" + layout, "--init",
                         write(f"moved-{layout}.st", content))
        for name in ("mean", "variance"):
            values = struct.unpack(f"<{dims[0]}f", found["cells/moving_" + name][1])
            t.check(all(980 < v < 1000 for v in values), "moving statistics", layout, name, values)
    # Of a GRU both rows are wanted, and are two.
    content = tensors("gated.torch")
    t.check({n: v[0] for n, v in content.items() if n.startswith("first.")} == {
        "first.weight_ih_l0": [15, 5], "first.weight_hh_l0": [15, 5], "first.bias_ih_l0": [15],
        "first.bias_hh_l0": [15]}, "as PyTorch calls them", list(content))
    del content["first.bias_hh_l0"]
    _, _, error = t.expect(65, "train", "gated.json", "--run-dir", "one-row", "--init",
                           write("one-row.st", content))
    t.check("there is no tensor for first/recurrent_bias" in error, "one row of two", error)
    # Keras has both as the rows of one tensor.
    content, (plain, _) = tensors("gated.keras"), begun(t, "gated.json", "two", "--init",
                                                        "gated.keras")
    content["first/bias"] = ([15], struct.pack("<15f", *range(15)))
    found, lines = begun(t, "gated.json", "apart", "--init", write("apart.st", content))
    content["first/bias"] = ([2, 15], content["first/bias"][1] +
                             content.pop("first/recurrent_bias")[1])
    both, theirs = begun(t, "gated.json", "rows", "--init", write("rows.st", content))
    t.check(both == found != plain and
            value(lines, "run_identity") == value(theirs, "run_identity"), "Keras' two rows")
    content["first/bias"] = ([3, 10], content["first/bias"][1])
    _, _, error = t.expect(65, "train", "gated.json", "--run-dir", "one-row", "--init",
                           write("one-row.st", content))
    t.check("first/bias is F32 (3, 10), wanted F32 (2, 15) for first/bias" in error, "no rows",
            error)
    # Two rows of biases, as PyTorch trains an LSTM's, are one: their sum.
    content = tensors("sequence.torch")
    dims, values = content["first.bias_ih_l0"]
    half = [x / 2 for x in struct.unpack("<20f", values)]
    parts = [[x + y for x, y in zip(half, (k / 8 for k in range(20)))],
             [x - y for x, y in zip(half, (k / 8 for k in range(20)))]]
    for word, row in zip(("ih", "hh"), parts):
        content[f"first.bias_{word}_l0"] = (dims, struct.pack("<20f", *row))
    sums = [struct.unpack("<f", struct.pack("<f", a + b))[0] for a, b in zip(
        *(struct.unpack("<20f", content[f"first.bias_{w}_l0"][1]) for w in ("ih", "hh")))]
    found, _ = begun(t, "sequence.json", "two-rows", "--init", write("two-rows.st", content))
    t.check(found["first/bias"] == ([20], struct.pack("<20f", *sums)), "the sum of two rows")
    del content["first.bias_hh_l0"]
    _, _, error = t.expect(65, "train", "sequence.json", "--run-dir", "one-row", "--init",
                           write("one-row.st", content))
    t.check("there is no tensor for first/bias" in error, "one row of two", error)
    content["first.bias_hh_l0"] = ([5], b"\0" * 20)
    _, _, error = t.expect(65, "train", "sequence.json", "--run-dir", "one-row", "--init",
                           write("one-row.st", content))
    t.check("first.bias_hh_l0 is F32 (5), wanted F32 (20)" in error, "another shape", error)


def workers(t, config, end):
    """Every worker takes part in the identity, however they share memory; and resumed runs."""
    for collective in ("window", "messages"):
        port = free_port()
        ends = finish([start(t, tf_config(2, r, port), "train", config, "--run-dir",
                             "by-" + collective, "--replicas", "1", "--collective", collective,
                             "--init", "torch.safetensors") for r in range(2)])
        if ends[0][0] == 69 and "has no MPI" in ends[0][2]:
            print("this build has no MPI")
            break
        t.check([e[0] for e in ends] == [0, 0] and result(ends[0][1].splitlines()) == end,
                collective, ends)
    t.expect(0, "train", config, "--run-dir", "cut", "--init", "keras.safetensors", "--set",
             "steps=7")
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "cut", "--init", "keras.safetensors",
                           "--resume")
    t.check(result(lines) == end, "resumed")
    _, lines, _ = t.expect(0, "train", "cut/config.json", "--run-dir", "again")
    t.check(result(lines) == end, "from its recorded configuration")
    _, _, error = t.expect(78, "train", config, "--run-dir", "cut", "--resume")
    t.check("they differ in init (" in error, "another run, and why", error)
    t.expect(0, "eval", "cut/config.json", "--run-dir", "cut", "--set", "data.test=" + json.dumps(
        {"made_up": {"first": 1000, "count": 64, "height": 10, "width": 10}}))


def names(t, wanted):
    """Layers of other names, and layers that are left out."""
    config = t.write("renamed.json", {
        "steps": 20, "seed": 3, "model.layers.0.name": "stem", "model.layers.3.name": "steps",
        "model.layers.4.name": "head"})
    found, lines = begun(t, config, "renamed", "--init", "torch.safetensors", "--init-map",
                         "conv=stem,logits=head,dense=steps")
    theirs = {"stem": "conv", "steps": "dense", "head": "logits"}
    t.check(len(found) == 6 and all(
        value == wanted[theirs[name.split("/")[0]] + "/" + name.split("/")[1]]
        for name, value in found.items()), "by other names")
    fresh, _ = begun(t, config, "fresh")
    found, lines = begun(t, config, "part", "--init", "keras.safetensors", "--init-map",
                         "conv=stem,dense=steps", "--init-skip", "head")
    t.check(found["stem/kernel"] == wanted["conv/kernel"] and
            found["steps/kernel"] == wanted["dense/kernel"] and
            found["head/kernel"] == fresh["head/kernel"] != wanted["logits/kernel"], "a part")
    t.check("init: 4 of 6 tensors from keras.safetensors" in lines, "it is said", lines[:6])
    # Frozen, the part that was taken stays as it is, and the head learns: fine-tuning.
    config = t.write("tuned.json", {
        "steps": 20, "model.layers.0.trainable": False, "model.layers.3.trainable": False,
        "init": {"file": "keras.safetensors", "skip": "logits"}})
    t.expect(0, "train", config, "--run-dir", "tuned")
    found = parameters("tuned")
    t.check(all(found[n] == wanted[n] for n in found if not n.startswith("logits")) and
            found["logits/kernel"] != wanted["logits/kernel"], "a head of its own", sorted(found))


def refused(t, config, wanted):
    def bad(code, word, *options):
        found, lines, error = t.run("train", config, "--run-dir", "never", *options)
        t.check(found == code and word in error and error.count("\n") == 1,
                f"{code} and a line with {word!r}", options, found, error)
        t.check(not os.path.exists("never"), "nothing was begun")

    def file(word, change, dtypes=None):
        content = dict(wanted)
        change(content)
        bad(65, word, "--init", write("bad.safetensors", content, dtypes))

    bad(66, "nowhere", "--init", "nowhere")
    file("there is no tensor for logits/kernel", lambda c: c.pop("logits/kernel"))
    file("wanted F32 (16, 10) for logits/kernel",
         lambda c: c.update({"logits/kernel": ([10, 16], c["logits/kernel"][1])}))
    file("wanted F32 (10) for logits/bias",
         lambda c: c.update({"logits/bias": ([5], c["logits/bias"][1][:20])}))
    file("is F16 (20)", lambda c: c.update({"logits/bias": ([20], c["logits/bias"][1])}),
         {"logits/bias": "F16"})
    for hostile in (float("nan"), float("inf")):
        file("number 3 of tensor logits/bias is not finite", lambda c, v=hostile: c.update(
            {"logits/bias": ([10], struct.pack("<10f", 0, 0, 0, v, *[0] * 6))}))
    with open("keras.safetensors", "rb") as f:
        data = f.read()
    for name, content in (("short", data[:-1]), ("head", data[:40]), ("empty", b""),
                          ("noise", random.Random(1).randbytes(500))):
        with open(name, "wb") as f:
            f.write(content)
        bad(65, name, "--init", name)
    for key, items in (
            ("map", ("conv", "=conv", "conv=", "a=nothing", ",", "a=conv=b", "a=\x1b[2J")),
            ("skip", ("nothing", ",", "conv,,dense", "pool", "c" * 900))):
        for item in items:
            bad(78, f"init.{key}", "--init", "keras.safetensors", f"--init-{key}", item)
    bad(64, "--init", "--init", "x" * 2000)
    t.expect(78, "embed", config, "--to", "run.c", "--set", "init.file=\"keras.safetensors\"")


def main():
    t = Test()
    config = t.write("config.json", {"steps": 20, "seed": 3})
    t.expect(0, "train", t.write("donor.json", {"steps": 30}), "--run-dir", "donor")
    wanted, end = forms(t, config, newest("donor"))
    workers(t, config, end)
    names(t, wanted)
    turned(t)
    refused(t, config, wanted)
    t.finish()


if __name__ == "__main__":
    main()
