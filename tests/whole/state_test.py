#!/usr/bin/env python3
"""state_test - what belongs to a run beside parameters and slots: moving statistics in checkpoints,
hashes and resumed runs; layers that are not trained; refusals.

   state_test.py PROGRAM WORK_DIR
"""
import json
import os
import struct

from program import Test, result, value

LAYERS = [
    {"type": "conv2d", "name": "fixed", "filters": 3, "kernel_size": 3, "trainable": False},
    {"type": "batch_normalization", "name": "norm"},
    {"type": "relu"}, {"type": "flatten"}, {"type": "dense", "name": "a", "units": 12},
    {"type": "batch_normalization", "name": "rows", "momentum": 0.5, "scale": False},
    {"type": "dense", "name": "logits", "units": 10}]
MODEL = {"input": [10, 10, 1], "classes": 10, "layers": LAYERS}
TEST = {"made_up": {"count": 100, "first": 1000, "height": 10, "width": 10}}


# A network with states that is applied twice in one objective, and is not trained in the other.
DENSE = {"type": "dense", "units": 8}
NETWORKS = {
    "input": [10, 10, 1], "classes": 10,
    "networks": [
        {"name": "body", "layers": [{"type": "flatten"}, DENSE]},
        {"name": "twice", "inputs": [[8]], "layers": [
            {**DENSE, "name": "d"}, {"type": "batch_normalization", "name": "n"},
            {"type": "tanh"}]},
        {"name": "head", "inputs": [[8]], "layers": [{"type": "dense", "units": 10}]}],
    "objectives": [
        {"name": "first", "values": [
            {"name": "x", "network": "body"}, {"name": "y", "network": "twice"},
            {"name": "z", "network": "twice"}, {"name": "logits", "network": "head"}],
         "trains": ["body", "twice", "head"], "optimizer": {"type": "sgd", "learning_rate": 0.1}},
        {"name": "second", "values": [
            {"name": "x", "network": "body"}, {"name": "y", "network": "twice"},
            {"name": "logits", "network": "head"}],
         "trains": ["body"], "optimizer": {"type": "momentum", "learning_rate": 0.1}}],
    "schedule": [["first", 1], ["second", 2]]}


def configuration(t, name="normed.json", layers=None, **more):
    return t.write(name, {"model": {**MODEL, "layers": layers or LAYERS}, "global_batch": 32,
                          "grain": 4, "steps": 24, "data.train.made_up.count": 200,
                          "data.test": TEST, **more})


def changed(name, **keys):
    """LAYERS with keys of one layer changed."""
    return [{**layer, **keys} if layer.get("name") == name else layer for layer in LAYERS]


def tensors(path):
    """Names in file order, values by name, metadata."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    meta = header.pop("__metadata__")
    names = sorted(header, key=lambda name: header[name]["data_offsets"])
    values = {name: data[slice(*header[name]["data_offsets"])] for name in names}
    return names, values, meta


def saved(run_dir, step):
    return os.path.join(run_dir, "checkpoints", f"step-{step:010}.safetensors")


def train(t, config, to, *arguments):
    _, lines, _ = t.expect(0, "train", config, "--run-dir", to, "--quiet", *arguments)
    return result(lines)


def checkpoints(t):
    states = ["norm/moving_mean", "norm/moving_variance", "rows/moving_mean",
              "rows/moving_variance"]
    names, values, meta = tensors(saved("golden", 24))
    before = tensors(saved("golden", 8))[1]
    t.check(names[-4:] == states, "states are a checkpoint's last tensors", names)
    t.check(meta.get("state_tensors") == "4", "a checkpoint says how many they are", meta)
    t.check("fixed/kernel/momentum" not in names, "a frozen layer has no slots", names)
    t.check("rows/beta/momentum" in names and "rows/gamma" not in names, "parameters", names)
    t.check(before["fixed/kernel"] == values["fixed/kernel"], "a frozen layer stays as it is")
    for name in states + ["a/kernel", "norm/gamma"]:
        t.check(before[name] != values[name], f"{name} moves")
    with open(saved("golden", 24), "rb") as f:
        data = bytearray(f.read())
    data[-1] ^= 1
    with open("step-0000000024.safetensors", "wb") as f:
        f.write(data)
    t.expect(65, "checkpoint", "verify", "step-0000000024.safetensors")


def other_ways(t, config, wanted):
    ways = [("--replicas", "4", "--kernels", "portable", "--set", "layout.wave_examples=4"),
            ("--replicas", "1", "--kernels", "reference", "--set", "layout.fuse=false"),
            ("--replicas", "3", "--set", "layout.guards=true", "--set", "layout.reduce=partials"),
            ("--replicas", "2", "--set", "layout.overlay=false")]
    for n, way in enumerate(ways):
        t.check(train(t, config, f"way{n}", *way) == wanted, "the same bits", *way)
    for n, way in enumerate((("--collective", "window"), ("--collective", "messages"),
                             ("--collective", "messages", "--set", "layout.overlap=on", "--set",
                              "layout.exchange_floats=1"))):
        _, lines, _ = t.expect(0, "launch", "--workers", "2", "--replicas", "2", "train", config,
                               "--run-dir", f"workers{n}", "--quiet", *way)
        found = result([line.partition("] ")[2] for line in lines])
        t.check(found == wanted, "two workers", *way, found, wanted)


def resumed(t, config, wanted):
    train(t, config, "stopped", "--set", "steps=9")
    t.check(train(t, config, "stopped", "--resume", "--replicas", "2") == wanted,
            "what is resumed goes on with its moving statistics")
    _, lines, _ = t.expect(0, "eval", config, "--checkpoint", saved("golden", 24))
    loss = value(lines, "test_loss")
    t.check(loss, "a checkpoint is evaluated", lines)
    _, values, _ = tensors(saved("golden", 24))
    t.check(len(values["norm/moving_mean"]) == 12, "a number for each channel")


def refusals(t):
    layers = [{**layer, "trainable": False} if layer["type"] not in ("relu", "flatten") else layer
              for layer in LAYERS]
    cases = [(changed("norm", momentum=1.5), {}, "momentum: found real 1.5"),
             (changed("norm", epsilon=0), {}, "epsilon: found integer 0"),
             (changed("norm", axis=1), {}, "\"axis\""),
             (changed("fixed", trainable=1), {}, "trainable: found"),
             (LAYERS[:2] + [{"type": "relu", "trainable": False}] + LAYERS[3:], {},
              "a layer of type \"relu\" has no parameters"),
             (layers, {}, "found no layer that a step changes"),
             (LAYERS, {"grain": 1}, "layer rows: batch_normalization: a grain of 1 example")]
    for layers, more, words in cases:
        configuration(t, "bad.json", layers, **more)
        _, _, error = t.expect(78, "plan", "bad.json")
        t.check(words in error and error.count("\n") == 1, words, error)


def main():
    t = Test()
    config = configuration(t, **{"checkpoint": {"every_steps": 8, "every_seconds": 0,
                                                "keep_max": 0}})
    wanted = train(t, config, "golden", "--replicas", "1")
    checkpoints(t)
    other_ways(t, config, wanted)
    resumed(t, config, wanted)
    several = t.write("several.json", {
        "model": NETWORKS, "global_batch": 32, "grain": 4, "steps": 24,
        "data.train.made_up.count": 200, "data.test": TEST}, ["optimizer"])
    of_several = train(t, several, "several", "--replicas", "1")
    for n, way in enumerate((("--replicas", "3", "--kernels", "portable"),
                             ("--replicas", "2", "--set", "layout.wave_examples=4"),
                             ("--replicas", "1", "--kernels", "reference"))):
        t.check(train(t, several, f"several{n}", *way) == of_several, "several networks", *way)
    refusals(t)
    t.finish()


main()
