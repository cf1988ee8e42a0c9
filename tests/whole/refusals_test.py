#!/usr/bin/env python3
"""refusals_test - configurations and command lines that must be refused, each with its exit code
and its exact line of error: refusals.json beside this file has them, so a new wording shows there.

   refusals_test.py PROGRAM WORK_DIR [--show]     --show prints what is found, in that file's form

<BYTES>, <LIMIT> and <NAMES> stand for what may differ between machines.
"""
import json
import os
import re
import sys

from program import Test

HERE = os.path.dirname(os.path.abspath(__file__))
DENSE = "model.layers.3"

# name: (changes, keys taken out, arguments); "raw" gives the document's text itself.
CASES = {
    # Words.
    "unknown key": ({"learning_rat": 1}, [], []),
    "unknown key, near": ({"global_bach": 1}, [], []),
    "unknown key in a layer": ({DENSE + ".unit": 3}, [], []),
    "unknown key in the optimizer": ({"optimizer.momentun": 0.5}, [], []),
    "unknown layer type": ({DENSE + ".type": "dens"}, [], []),
    "unknown activation": ({DENSE + ".activation": "mish"}, [], []),
    "duplicate key": ({"raw": '{"seed": 1, "seed": 2}'}, [], []),
    "not JSON": ({"raw": '{"seed": 1,}'}, [], []),
    "not an object": ({"raw": '[1, 2]'}, [], []),
    "same layer name": ({DENSE + ".name": "logits"}, [], []),
    "same layer name, far apart": ({"model.layers.4.name": "conv"}, [], []),
    "layer name with a slash": ({DENSE + ".name": "a/b"}, [], []),
    "name of the directory above": ({"name": ".."}, [], []),
    "precision of strict": ({"fast_precision": "bf16"}, [], []),
    "unknown input": ({"model.layers.4.inputs": ["dens"]}, [], []),
    "an input that comes later": ({DENSE + ".inputs": ["logits"]}, [], []),
    "a sum of one": ({"model.layers.4": {"type": "add", "inputs": ["dense"]}}, [], []),
    "a sum of none": ({"model.layers.4": {"type": "add"}}, [], []),
    "a sum of two shapes": ({"model.layers.4": {"type": "add", "inputs": ["dense", "flatten"]}},
                            [], []),
    "rows beside an image": ({"model.layers.4": {
        "type": "concatenate", "inputs": ["dense", "conv"]}}, [], []),
    "a shape of other values": ({"model.layers.4": {
        "type": "reshape", "target_shape": [2, 2, 26]}}, [], []),
    "a sequence of other values": ({"model.layers.4": {
        "type": "reshape", "target_shape": [10, 10]}}, [], []),
    "a state of a row": ({"model.layers.4": {"type": "lstm", "units": 3}}, [], []),
    "a state of no units": ({"model.layers.4": {"type": "lstm", "units": 0}}, [], []),
    "frames of a row": ({"model.layers.4": {"type": "time_reduction", "factor": 2}}, [], []),
    "frames of no number": ({"model.layers.4": {"type": "time_reduction"}}, [], []),
    "no frames as one": ({"model.layers.4": {"type": "time_reduction", "factor": 0}}, [], []),
    "more frames than there are": ({"model.layers": [
        {"type": "reshape", "target_shape": [10, 10]}, {"type": "time_reduction", "factor": 11},
        {"type": "flatten"}, {"type": "dense", "units": 10}]}, [], []),
    "more frames than a grain may have": ({"grain": 1, "model.input": [5000, 10, 1],
                                           "model.layers": [
        {"type": "reshape", "target_shape": [5000, 10]}, {"type": "dense", "units": 2},
        {"type": "flatten"}, {"type": "dense", "units": 10}]}, [], []),
    "gates of a row": ({"model.layers.4": {"type": "gru", "units": 3}}, [], []),
    "a reset before the product": ({"model.layers.4": {
        "type": "gru", "units": 3, "reset_after": False}}, [], []),
    "a forget gate of a gru": ({"model.layers.4": {
        "type": "gru", "units": 3, "unit_forget_bias": True}}, [], []),
    "a sequence too long for a grain": ({"grain": 16, "model.layers": [
        {"type": "reshape", "target_shape": [400, 1]}, {"type": "lstm", "units": 10}],
        "model.input": [20, 20, 1], "data.train.made_up.height": 20,
        "data.train.made_up.width": 20}, [], []),
    "labels of a classifier": ({"model.labels": 3}, [], []),
    "a transducer of one label": ({"model.loss": "transducer"}, [], []),
    "an embedding of one label": ({"model.layers.0": {"type": "label_embedding", "units": 3}},
                                  [], []),
    "zeros around a row": ({"model.layers.4": {"type": "zero_padding2d"}}, [], []),
    "three sides": ({"model.layers.4": {
        "type": "zero_padding2d", "padding": [[1, 2, 3], 4]}}, [], []),
    "a layer of no use": ({"model.layers.4.inputs": ["flatten"]}, [], []),
    # Types and ranges.
    "string for a number": ({"seed": "1"}, [], []),
    "number for an object": ({"model": 3}, [], []),
    "real for an integer": ({"global_batch": 25.5}, [], []),
    "negative": ({"steps": -1}, [], []),
    "zero batch": ({"global_batch": 0}, [], []),
    "more than 32 bits": ({"grain": 4294967296}, [], []),
    "learning rate is negative": ({"optimizer.learning_rate": -0.5}, [], []),
    "learning rate beyond float": ({"raw_set": "optimizer.learning_rate=1e39"}, [], []),
    "missing model": ({}, ["model"], []),
    "missing learning rate": ({}, ["optimizer.learning_rate"], []),
    "missing batch": ({}, ["global_batch"], []),
    "missing data": ({}, ["data"], []),
    # Sizes.
    "a layer for no machine": ({DENSE + ".units": 16777216, "model.layers.0.filters": 16777216},
                               [], []),
    "a batch for no machine": ({"global_batch": 1073741824, "grain": 4096,
                                DENSE + ".units": 16777216}, [], []),
    "groups that do not divide": ({"model.layers.0.groups": 3}, [], []),
    "groups that divide the input alone": ({"model.layers.1": {
        "type": "conv2d", "name": "other", "filters": 3, "kernel_size": 3, "groups": 2}}, [], []),
    "a window that skips cells, spread out": ({"model.layers.0.dilation_rate": [1, 2],
                                               "model.layers.0.strides": 2}, [], []),
    "a window spread out of the image": ({"model.layers.0.dilation_rate": 9,
                                          "model.layers.0.padding": "valid"}, [], []),
    "overflow of 63 bits": ({"model.layers.0.kernel_size": 1048576,
                             "model.layers.0.filters": 16777216}, [], []),
    "overflow of an example": ({"model.input": [65535, 65535, 1]}, [], []),
    "kernel larger than the image": ({"model.layers.0.kernel_size": 11,
                                      "model.layers.0.padding": "valid"}, [], []),
    "dense without flatten": ({"model.layers.2": {"type": "relu"}}, [], []),
    "output is not the classes": ({"model.layers.4.units": 9}, [], []),
    "classes above the limit": ({"model.classes": 65537, "model.layers.4.units": 65537}, [], []),
    "image above the limit": ({"model.input": [65536, 1, 1]}, [], []),
    "momentum rounded to its limit": ({"optimizer": {
        "type": "momentum", "learning_rate": 0.1, "momentum": 0.9999999999}}, [], []),
    "a rate that is no number": ({}, [], ["--set", "optimizer.learning_rate=nan"]),
    "steps that are no number": ({}, [], ["--set", "steps=5x"]),
    "momentum at its limit": ({"optimizer": {"type": "momentum", "learning_rate": 0.1,
                                             "momentum": 1}}, [], []),
    "beta at its limit": ({"optimizer": {"type": "adam_keras", "learning_rate": 0.1,
                                         "beta_2": 1.0}}, [], []),
    "epsilon of nothing": ({"optimizer": {"type": "rmsprop_tf1", "learning_rate": 0.1,
                                          "epsilon": 0.0}}, [], []),
    "clipvalue below 0": ({"optimizer.clipvalue": -1.0}, [], []),
    "two ways to clip": ({"optimizer.clipnorm": 1.0, "optimizer.global_clipnorm": 1.0}, [], []),
    "a clipped lamb": ({"optimizer": {"type": "lamb_keras", "learning_rate": 0.1,
                                      "clipnorm": 1.0}}, [], []),
    "a regularizer that is a number": ({DENSE + ".kernel_regularizer": 0.1}, [], []),
    "a regularizer of nobody": ({DENSE + ".kernel_regularizer": {"l1": 0.1}}, [], []),
    "a regularizer of nothing": ({DENSE + ".kernel_regularizer": {}}, [], []),
    "a regularizer below 0": ({DENSE + ".kernel_regularizer": {"l2": -0.1}}, [], []),
    "a regularizer of a pool": ({"model.layers.1.kernel_regularizer": {"l2": 0.1}}, [], []),
    "a spectral norm that is a number": ({DENSE + ".spectral_normalization": 1}, [], []),
    "a spectral norm of a pool": ({"model.layers.1.spectral_normalization": True}, [], []),
    "a spectral norm beside norms": ({DENSE + ".spectral_normalization": True,
                                      "optimizer.clipnorm": 1.0}, [], []),
    "a spectral norm of averages": ({DENSE + ".spectral_normalization": True,
                                     "optimizer.weight_average": 0.5}, [], []),
    "weights of fewer classes": ({"model.loss": {
        "type": "sparse_categorical_crossentropy", "class_weight": [1, 2]}}, [], []),
    "a weight of no class": ({"model.loss": {
        "type": "sparse_categorical_crossentropy", "class_weight": {"10": 2}}}, [], []),
    "a weight of a word": ({"model.loss": {
        "type": "sparse_categorical_crossentropy", "class_weight": {"cat": 2}}}, [], []),
    "a weight below 0": ({"model.loss": {
        "type": "sparse_categorical_crossentropy", "class_weight": {"1": -2}}}, [], []),
    "weights that are a number": ({"model.loss": {
        "type": "sparse_categorical_crossentropy", "class_weight": 2}}, [], []),
    "weights of another loss": ({"model.loss": {
        "type": "binary_crossentropy", "class_weight": {"1": 2}}}, [], []),
    "amsgrad of another": ({"optimizer": {"type": "adam_tf1", "learning_rate": 0.1,
                                          "amsgrad": True}}, [], []),
    "an optimizer of nobody": ({"optimizer.type": "adam"}, [], []),
    "a schedule of nobody": ({"optimizer.learning_rate_schedule": {"type": "cosin"}}, [], []),
    "a schedule without its length": ({"optimizer.learning_rate_schedule": {"type": "cosine"}},
                                      [], []),
    "a schedule that is a word": ({"optimizer.learning_rate_schedule": "cosine"}, [], []),
    "a key of another schedule": ({"optimizer.learning_rate_schedule": {
        "type": "cosine", "steps": 5, "staircase": True}}, [], []),
    "a decay that grows": ({"optimizer.learning_rate_schedule": {
        "type": "exponential", "steps": 5, "decay_rate": 1.5}}, [], []),
    "boundaries and fewer values": ({"optimizer.learning_rate_schedule": {
        "type": "piecewise", "boundaries": [5, 9], "values": [0.5]}}, [], []),
    "boundaries that do not ascend": ({"optimizer.learning_rate_schedule": {
        "type": "piecewise", "boundaries": [5, 5], "values": [0.5, 0.25]}}, [], []),
    "no boundaries": ({"optimizer.learning_rate_schedule": {
        "type": "piecewise", "boundaries": [], "values": []}}, [], []),
    "more boundaries than there may be": ({"optimizer.learning_rate_schedule": {
        "type": "piecewise", "boundaries": list(range(1, 18)), "values": [0.5] * 17}}, [], []),
    "no layers": ({"model.layers": []}, [], []),
    "no layers and no classes": ({"model.layers": [], "model.loss": "mean_squared_error"},
                                 ["model.classes"], []),
    "made-up classes above the model's": ({"model.classes": 3, "model.layers.4.units": 3}, [], []),
    "made-up classes of the test set alone": ({
        "model.classes": 3, "model.layers.4.units": 3, "data.train.made_up.classes": 3,
        "data.test": {"made_up": {"count": 10, "height": 10, "width": 10}}}, [], []),
    "nothing to train": ({"model.layers": [{"type": "flatten"}], "model.input": [1, 1, 10]},
                         [], []),
    "grain is no power of two": ({"grain": 12}, [], []),
    "grain too large": ({"grain": 8192}, [], []),
    "product mismatch": ({"replica_batch": 32, "replicas": 4, "accumulate": 3}, [], []),
    "product below the batch": ({"replica_batch": 32, "replicas": 2, "accumulate": 3}, [], []),
    "accumulate what": ({"accumulate": 3}, [], []),
    "more parameters than a line": ({"model.layers": [{"type": "flatten"}] + [
        {"type": "dense", "units": 10} for _ in range(500)]}, [], []),
    "more replicas than grains": ({}, [], ["--replicas", "17"]),
    "image of another shape": ({"model.input": [12, 10, 1]}, [], []),
    "name of two lines": ({"name": "two\nlines"}, [], []),
    # Data.
    "empty set": ({"data.train.made_up.count": 0}, [], []),
    "no such manifest": ({"data.train": {"manifest": "nowhere.json"}}, [], []),
    "two sources": ({"data.train.manifest": "nowhere.json"}, [], []),
    "two training sets": ({}, [], ["--set", "data.set=mnist"]),
    "less than a batch, remainder dropped": ({"global_batch": 1024, "drop_remainder": True},
                                             [], []),
    # Machine.
    "no such kernels": ({}, [], ["--kernels", "avx1024"]),
    "kernels, near": ({"layout.kernels": "avx51"}, [], []),
    "too little memory": ({}, [], ["--max-memory", "100K", "--replicas", "2"]),
    # Command line.
    "no such file": ({}, [], ["more.json"]),
    "unknown option": ({}, [], ["--replcas", "2"]),
    "option without value": ({}, [], ["--kernels"]),
    "replicas is a word": ({}, [], ["--replicas", "two"]),
    "resume and fresh": ({}, [], ["--resume", "--fresh"]),
    "collective, near": ({}, [], ["--collective", "rign"]),
    "no GPU code": ({}, [], ["--collective", "nccl"]),
    "set without a value": ({}, [], ["--set", "seed"]),
    "set of an unknown key": ({}, [], ["--set", "sead=3"]),
}


def found(t, changes, without, arguments):
    changes = dict(changes)
    raw, raw_set = changes.pop("raw", None), changes.pop("raw_set", None)
    t.write("c.json", changes, without)
    if raw is not None:
        with open("c.json", "w", encoding="utf-8") as f:
            f.write(raw)
    more = ["--set", raw_set] if raw_set else []
    code, lines, error = t.run("train", "c.json", "--run-dir", "r", *more, *arguments)
    error = re.sub(r"the plan needs \d+", "the plan needs <BYTES>", error)
    error = re.sub(r"bytes, \S.* leaves \d+, \d+ are",
                   "bytes, <LIMIT> leaves <BYTES>, <BYTES> are", error)
    error = re.sub(r"this build has .*", "this build has <NAMES>", error)
    return code, lines, error


def main():
    t = Test()
    results = {name: found(t, *case) for name, case in CASES.items()}
    if "--show" in sys.argv:
        print(json.dumps({name: [code, error.rstrip("\n")] for name, (code, _, error)
                          in results.items()}, indent=2))
        return
    with open(os.path.join(HERE, "refusals.json"), encoding="utf-8") as f:
        wanted = json.load(f)
    for name, (code, lines, error) in results.items():
        t.check([code, error.rstrip("\n")] == wanted.get(name), name, (code, error),
                wanted.get(name))
        t.check(error.count("\n") == 1 and error.startswith("lockstep: "), name, error)
        t.check(not any(line.startswith("loss") for line in lines), name + ": no step was made")
    t.check(set(wanted) == set(CASES), "refusals.json and the cases are the same", wanted.keys())
    # Where memory is short, the numbers add up.
    t.write("c.json")
    _, plan, _ = t.expect(0, "plan", "c.json", "--json", "--replicas", "2")
    plan = json.loads("\n".join(plan))
    bytes_ = plan["arena_bytes"] + plan["hot_bytes"]
    for most, code in ((bytes_, 0), (bytes_ - 1, 69)):
        _, _, error = t.expect(code, "plan", "c.json", "--max-memory", str(most), "--replicas", "2")
    for part in (f"needs {bytes_} bytes", f"leaves {bytes_ - 1}", " 1 are missing"):
        t.check(part in error, part, error)
    t.finish()


if __name__ == "__main__":
    main()
