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
    refused(t, config, wanted)
    t.finish()


if __name__ == "__main__":
    main()
