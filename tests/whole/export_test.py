#!/usr/bin/env python3
"""export_test - lockstep checkpoint export: the file byte by byte against the checkpoint, the same
numbers from a network that computes as PyTorch does, and everything that may be wrong.

   export_test.py PROGRAM WORK_DIR [torch|keras|onnx [PYTHON]]

Standard library only. With `torch` or `keras`, PyTorch or Keras itself loads the files and
computes the logits of lockstep predict; with `onnx`, the checker of onnx judges the models and
onnxruntime computes them: in an environment that is thrown away, or as PYTHON has it; skipped (77)
where it cannot be had.
"""
import glob
import hashlib
import json
import math
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys

from judges import python_of
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
    # Every layer there is, two branches, sums of images and of rows; strides over odd borders.
    "graph": ([9, 7, 3], [
        {"type": "conv2d", "name": "conv1", "filters": 4, "kernel_size": [3, 2], "padding": "same",
         "strides": [2, 2], "activation": "leaky_relu"},
        {"type": "conv2d", "name": "conv2", "filters": 4, "kernel_size": 3, "padding": "same",
         "activation": "tanh"},
        {"type": "add", "name": "add", "inputs": ["conv1", "conv2"]},
        {"type": "dropout", "name": "drop", "rate": 0.25},
        {"type": "leaky_relu", "name": "leak", "negative_slope": 0.125},
        {"type": "average_pool2d", "name": "average", "pool_size": [3, 2], "strides": [2, 1],
         "padding": "same"},
        {"type": "max_pool2d", "name": "pool", "pool_size": [2, 3], "strides": [1, 2],
         "padding": "same"},
        {"type": "flatten", "name": "flatten"},
        {"type": "dense", "name": "wide", "units": 6, "activation": "sigmoid"},
        {"type": "conv2d", "name": "side", "filters": 6, "kernel_size": [2, 3],
         "inputs": ["input"]},
        {"type": "sigmoid", "name": "squash"},
        {"type": "dropout", "name": "drop2", "rate": 0.5},
        {"type": "global_average_pool2d", "name": "means"},
        {"type": "add", "name": "both", "inputs": ["wide", "means"]},
        {"type": "flatten", "name": "again"},
        {"type": "tanh", "name": "tanh"},
        {"type": "dense", "name": "head", "units": 10}]),
    # Norms of images, of flattened images, whose order PyTorch has otherwise, and of rows; with a
    # factor or not, a summand or not.
    "normed": ([6, 5, 3], [
        {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": 3},
        {"type": "batch_normalization", "name": "norm", "momentum": 0.5},
        {"type": "relu", "name": "relu"},
        {"type": "flatten", "name": "flatten"},
        {"type": "batch_normalization", "name": "flat", "momentum": 0.5},
        {"type": "dense", "name": "wide", "units": 6},
        {"type": "batch_normalization", "name": "rows", "momentum": 0.5},
        {"type": "dense", "name": "next", "units": 5, "activation": "tanh"},
        {"type": "batch_normalization", "name": "bare", "momentum": 0.5, "scale": False,
         "center": False},
        {"type": "dense", "name": "head", "units": 10}]),
    "halves": ([6, 5, 3], [
        {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": 3},
        {"type": "batch_normalization", "name": "centered", "momentum": 0.5, "scale": False},
        {"type": "relu", "name": "relu"},
        {"type": "flatten", "name": "flatten"},
        {"type": "batch_normalization", "name": "scaled", "momentum": 0.5, "center": False,
         "epsilon": 0.01},
        {"type": "dense", "name": "head", "units": 10}]),
    "layered": ([6, 5, 3], [
        {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": 3},
        {"type": "layer_normalization", "name": "cells"},
        {"type": "layer_normalization", "name": "centered", "scale": False},
        {"type": "relu", "name": "relu"},
        {"type": "flatten", "name": "flatten"},
        {"type": "layer_normalization", "name": "flat", "epsilon": 0.01},
        {"type": "dense", "name": "wide", "units": 6},
        {"type": "layer_normalization", "name": "rows", "center": False},
        {"type": "dense", "name": "next", "units": 5, "activation": "tanh"},
        {"type": "layer_normalization", "name": "bare", "scale": False, "center": False},
        {"type": "dense", "name": "head", "units": 10}]),
    # Channels in groups, each by itself, and windows that are spread out.
    "grouped": ([6, 5, 3], [
        {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": 3, "activation": "relu"},
        {"type": "conv2d", "name": "parts", "filters": 6, "kernel_size": [2, 3], "groups": 2,
         "strides": [1, 2], "padding": "same"},
        {"type": "conv2d", "name": "spread", "filters": 4, "kernel_size": 2,
         "dilation_rate": [3, 1], "padding": "same", "use_bias": False},
        {"type": "depthwise_conv2d", "name": "each", "kernel_size": [2, 1], "depth_multiplier": 3,
         "dilation_rate": [2, 1], "activation": "tanh"},
        {"type": "flatten", "name": "flatten"},
        {"type": "dense", "name": "head", "units": 10}]),
    # What puts values elsewhere: images and rows beside each other, zeros around, other shapes.
    "places": ([6, 5, 3], [
        {"type": "zero_padding2d", "name": "frame", "padding": [[0, 1], [2, 0]]},
        {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": [3, 2],
         "activation": "relu"},
        {"type": "concatenate", "name": "twice", "inputs": ["conv", "conv"]},
        {"type": "reshape", "name": "seen", "target_shape": [4, 10, 6]},
        {"type": "conv2d", "name": "next", "filters": 3, "kernel_size": 3},
        {"type": "reshape", "name": "row", "target_shape": [48]},
        {"type": "dense", "name": "wide", "units": 6, "activation": "tanh"},
        {"type": "dense", "name": "small", "units": 12, "inputs": ["row"]},
        {"type": "concatenate", "name": "rows", "inputs": ["wide", "small"]},
        {"type": "reshape", "name": "image", "target_shape": [3, 2, 3]},
        {"type": "conv2d_transpose", "name": "up", "filters": 2, "kernel_size": [4, 3],
         "strides": [1, 2], "padding": "same", "activation": "sigmoid"},
        {"type": "conv2d_transpose", "name": "out", "filters": 3, "kernel_size": [3, 2],
         "strides": [2, 3], "activation": "relu"},
        {"type": "average_pool2d", "name": "small_again", "pool_size": [2, 6]},
        {"type": "conv2d", "name": "last", "filters": 4, "kernel_size": 2},
        {"type": "flatten", "name": "flatten"},
        {"type": "dense", "name": "head", "units": 10}]),
    "smooth": ([5, 4, 3], [
        {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": 2, "activation": "gelu"},
        {"type": "gelu", "name": "tanh_form", "approximate": True},
        {"type": "swish", "name": "swish"}, {"type": "elu", "name": "elu", "alpha": 0.5},
        {"type": "softplus", "name": "softplus"},
        {"type": "flatten", "name": "flatten"},
        {"type": "dense", "name": "wide", "units": 6, "activation": "swish"},
        {"type": "relu6", "name": "relu6"},
        {"type": "dense", "name": "more", "units": 7, "activation": "elu"},
        {"type": "gelu", "name": "gelu"},
        {"type": "dense", "name": "logits", "units": 10}]),
}
# Norms that the layers beside them compute in an ONNX model: behind a layer without a bias, behind
# what leaves values out in training, two in a row, before a pool and a flatten. Two stay: there are
# zeros around what one gives, and another layer, too, takes what the other one takes.
MODELS["folded"] = ([6, 5, 3], [
    {"type": "conv2d", "name": "conv", "filters": 4, "kernel_size": [3, 2], "use_bias": False},
    {"type": "batch_normalization", "name": "behind", "momentum": 0.5},
    {"type": "relu", "name": "relu"},
    {"type": "batch_normalization", "name": "stays", "momentum": 0.5},
    {"type": "conv2d", "name": "padded", "filters": 4, "kernel_size": 3, "padding": "same"},
    {"type": "batch_normalization", "name": "shares", "momentum": 0.5},
    {"type": "add", "name": "both", "inputs": ["padded", "shares"]},
    {"type": "conv2d_transpose", "name": "up", "filters": 3, "kernel_size": [2, 3],
     "strides": [1, 1], "use_bias": False},
    {"type": "batch_normalization", "name": "behind_up", "momentum": 0.5},
    {"type": "relu", "name": "relu2"},
    {"type": "batch_normalization", "name": "before", "momentum": 0.5},
    {"type": "max_pool2d", "name": "pool", "pool_size": 2},
    {"type": "flatten", "name": "flatten"},
    {"type": "dense", "name": "wide", "units": 6, "use_bias": False},
    {"type": "dropout", "name": "drop", "rate": 0.25},
    {"type": "batch_normalization", "name": "rows", "momentum": 0.5},
    {"type": "batch_normalization", "name": "rows2", "momentum": 0.5, "scale": False},
    {"type": "dense", "name": "next", "units": 5, "activation": "tanh"},
    {"type": "batch_normalization", "name": "last", "momentum": 0.5, "center": False},
    {"type": "dense", "name": "head", "units": 10}])
MODELS["parts"] = ([6, 5, 3], [
    {"type": "conv2d", "name": "parts", "filters": 6, "kernel_size": [2, 3], "groups": 3,
     "use_bias": False},
    {"type": "batch_normalization", "name": "behind", "momentum": 0.5},
    {"type": "relu", "name": "relu"},
    {"type": "batch_normalization", "name": "before", "momentum": 0.5},
    {"type": "depthwise_conv2d", "name": "each", "kernel_size": [2, 1], "depth_multiplier": 2,
     "use_bias": False},
    {"type": "batch_normalization", "name": "deep", "momentum": 0.5},
    {"type": "flatten", "name": "flatten"},
    {"type": "dense", "name": "head", "units": 10}])
# Sequences: of images reshaped, and images that are one column wide; a layer norm, a batch norm
# that the dense layer before it computes, an LSTM with and without biases, of every time and of the
# last, windows over time, and what adds and joins them; flattened in our order.
MODELS["sequence"] = ([6, 5, 3], [
    {"type": "reshape", "name": "times", "target_shape": [9, 10]},
    {"type": "dense", "name": "rows", "units": 7},
    {"type": "batch_normalization", "name": "norm", "momentum": 0.5},
    {"type": "relu", "name": "relu"},
    {"type": "lstm", "name": "first", "units": 5, "return_sequences": True},
    {"type": "batch_normalization", "name": "stays", "momentum": 0.5},
    {"type": "dense", "name": "bare", "units": 5, "use_bias": False, "activation": "tanh"},
    {"type": "add", "name": "both", "inputs": ["first", "bare"]},
    {"type": "layer_normalization", "name": "cells"},
    {"type": "concatenate", "name": "beside", "inputs": ["cells", "relu"]},
    {"type": "lstm", "name": "second", "units": 4, "return_sequences": True, "use_bias": False},
    {"type": "dropout", "name": "drop", "rate": 0.25},
    {"type": "flatten", "name": "flatten"},
    {"type": "batch_normalization", "name": "flat", "momentum": 0.5},
    {"type": "dense", "name": "wide", "units": 6},
    {"type": "lstm", "name": "other", "units": 3, "inputs": ["times"], "return_sequences": True},
    {"type": "conv2d", "name": "over", "filters": 4, "kernel_size": [2, 1], "strides": [3, 1]},
    {"type": "flatten", "name": "seen"},
    {"type": "dense", "name": "last", "units": 6},
    {"type": "add", "name": "sum", "inputs": ["wide", "last"]},
    {"type": "dense", "name": "head", "units": 10}])
MODELS["state"] = ([7, 1, 4], [
    {"type": "lstm", "name": "state", "units": 5, "unit_forget_bias": False},
    {"type": "batch_normalization", "name": "norm", "momentum": 0.5},
    {"type": "dense", "name": "head", "units": 10}])
# Gated states, of every time with and without biases, and of the last.
MODELS["gated"] = ([7, 1, 4], [
    {"type": "gru", "name": "first", "units": 5, "return_sequences": True},
    {"type": "gru", "name": "bare", "units": 4, "return_sequences": True, "use_bias": False},
    {"type": "gru", "name": "state", "units": 3},
    {"type": "dense", "name": "head", "units": 10}])
# Neighbouring frames as one: of the images, with zeros behind the last; of a sequence; of what a
# window gives, flattened in our order. A norm that stays, one that the layer before it computes.
MODELS["reduced"] = ([7, 1, 4], [
    {"type": "time_reduction", "name": "pairs", "factor": 2},
    {"type": "dense", "name": "rows", "units": 5},
    {"type": "batch_normalization", "name": "norm", "momentum": 0.5},
    {"type": "time_reduction", "name": "even", "factor": 2},
    {"type": "batch_normalization", "name": "stays", "momentum": 0.5},
    {"type": "gru", "name": "state", "units": 3, "return_sequences": True},
    {"type": "conv2d", "name": "over", "filters": 3, "kernel_size": [2, 1], "padding": "same"},
    {"type": "time_reduction", "name": "all", "factor": 2},
    {"type": "flatten", "name": "flatten"},
    {"type": "dense", "name": "head", "units": 10}])
# An odd number of frames, of a layer that is two ops, as one.
MODELS["states_reduced"] = ([7, 1, 4], [
    {"type": "dense", "name": "rows", "units": 5},
    {"type": "lstm", "name": "states", "units": 3, "return_sequences": True},
    {"type": "time_reduction", "name": "pairs", "factor": 2},
    {"type": "gru", "name": "last", "units": 3},
    {"type": "dense", "name": "head", "units": 10}])
# A transducer: half of the frames, labels that are sequences.
MODELS["transducer"] = ([12, 1, 6], [
    {"type": "dense", "name": "rows", "units": 5, "activation": "relu"},
    {"type": "max_pool2d", "name": "half", "pool_size": [2, 1]},
    {"type": "lstm", "name": "encoder", "units": 5, "return_sequences": True},
    {"type": "dense", "name": "frames", "units": 8},
    {"type": "label_embedding", "name": "said", "units": 3},
    {"type": "lstm", "name": "prediction", "units": 4, "return_sequences": True},
    {"type": "dense", "name": "labels", "units": 8, "use_bias": False},
    {"type": "joint", "name": "joint", "units": 9, "inputs": ["frames", "labels"]}])
LABELS, CLASSES = 4, 7
ROWS_OF = {}  # of a model's examples: frames, labels
# Bytes become -1 to 1 there.
SIGNED = ("flat",)
# .. and have mean and deviation of each channel taken out.
NORMALIZE = {"mean": [0.5, 0.25, 0.75], "deviation": [0.25, 0.5, 0.125]}
NORMALIZED = ("conv", "folded", "parts")
# Nodes of scaling and norms that no layer beside them can compute: of bytes, of floats.
KEPT = {"conv": (["/Mul", "/Add"], ["/Mul", "/Add"]),
        "folded": (2 * [["stays/BatchNormalization", "shares/BatchNormalization"]]),
        "sequence": (["/Mul", "stays/BatchNormalization"], ["stays/BatchNormalization"]),
        "reduced": (["/Mul", "stays/BatchNormalization"], ["stays/BatchNormalization"]),
        "state": (["/Mul"], []), "gated": (["/Mul"], [])}
# Of every dense layer behind a flatten, by hand: height, width and channels there.
FLATTENED = {"conv": {"dense": (3, 3, 4)}, "flat": {"dense": (2, 2, 3)},
             "graph": {"wide": (3, 2, 4)}, "normed": {"flat": (4, 3, 4), "wide": (4, 3, 4)},
             "places": {"wide": (2, 8, 3), "small": (2, 8, 3), "head": (2, 1, 4)},
             "halves": {"scaled": (4, 3, 4), "head": (4, 3, 4)}, "smooth": {"wide": (4, 3, 4)},
             "grouped": {"head": (2, 2, 12)}, "parts": {"head": (4, 3, 12)},
             "layered": {"flat": (4, 3, 4), "wide": (4, 3, 4)}, "sequence": {"last": (3, 1, 4)},
             "folded": {"wide": (2, 3, 3)}}
# What a norm has not and PyTorch wants, behind the others: name, values.
CONSTANTS = {"layered": [("centered.weight", [1.0] * 4), ("rows.bias", [0.0] * 6)],
             "halves": [("centered.weight", [1.0] * 4), ("scaled.bias", [0.0] * 48)],
             "folded": [("rows2.weight", [1.0] * 6), ("last.bias", [0.0] * 5)],
             "sequence": [(name + ".bias_hh_l0", [0.0] * 4 * units)
                          for name, units in (("first", 5), ("other", 3))],
             "state": [("state.bias_hh_l0", [0.0] * 20)],
             "states_reduced": [("states.bias_hh_l0", [0.0] * 12)],
             "transducer": [("encoder.bias_hh_l0", [0.0] * 20),
                            ("prediction.bias_hh_l0", [0.0] * 16)]}


# What PyTorch calls our rows.
ROWS = {"bias": "bias", "gamma": "weight", "beta": "bias", "moving_mean": "running_mean",
        "moving_variance": "running_var"}
RECURRENT = {"kernel": "weight_ih_l0", "recurrent_kernel": "weight_hh_l0", "bias": "bias_ih_l0",
             "recurrent_bias": "bias_hh_l0"}


def type_of(name, layer):
    return {made["name"]: made["type"] for made in MODELS[name][1]}.get(layer)


def resets_first(values):
    """Of a GRU's gates z r h, as PyTorch has them: r z n. Or back."""
    gate = len(values) // 3
    return values[gate:2 * gate] + values[:gate] + values[2 * gate:]


def write_images(name, shape):
    """IDX files of noise; returns the images as lists of bytes."""
    h, w, c = shape
    noise = random.Random(name)
    images = [noise.randbytes(h * w * c) for _ in range(EXAMPLES)]
    with open(name + "-images", "wb") as f:
        f.write(struct.pack(">5I", 0x804, EXAMPLES, h, w, c) + b"".join(images))
    with open(name + "-labels", "wb") as f:
        if name != "transducer":
            f.write(struct.pack(">2I", 0x801, EXAMPLES))
            f.write(bytes(noise.randrange(10) for _ in range(EXAMPLES)))
            return images
        f.write(struct.pack(">3I", 0x802, EXAMPLES, 2 + LABELS))
        for i in range(EXAMPLES):  # all lengths; so many of one label that it is said, too
            frames = noise.randrange(1, h + 1) if i % 6 == 0 else noise.randrange(1, 4)
            said = [3] * (LABELS - 1 - i // 4 % 2) if i % 4 else [noise.randrange(1, CLASSES)
                                                             for _ in range(i // 4 % 3)]
            ROWS_OF.setdefault(name, []).append((frames, said))
            f.write(struct.pack(">H", frames) + bytes(said) + bytes(LABELS - len(said)))
    # What lies behind an example's own frames is zeros to the layers.
    rows = [frames * w * c for frames, _ in ROWS_OF[name]]
    return [image[:own] + bytes(len(image) - own) for image, own in zip(images, rows)]


def train(t, name):
    """A run of the model, its logits as lists, its images."""
    shape, layers = MODELS[name]
    images = write_images(name, shape)
    files = {"images": name + "-images", "labels": name + "-labels"}
    config = t.write(name + ".json", {
        "name": name, "model.input": shape, "model.layers": layers, "global_batch": 8, "grain": 8,
        "steps": 6, "checkpoint.every_steps": 3,
        "data": {"train": files, "test": files,
                 **({"normalize": NORMALIZE} if name in NORMALIZED else {})},
        **({"model.labels": LABELS, "model.classes": CLASSES, "model.loss": "transducer"}
           if name == "transducer" else {}),
        "model.input_range": "signed" if name in SIGNED else "unit"})
    t.expect(0, "train", config, "--run-dir", name)
    t.expect(0, "predict", config, "--run-dir", name, "--output", name + ".npy")
    with open(name + ".npy", "rb") as f:
        data = f.read()[128:]
    kind, each_has = "I" if name in ROWS_OF else "f", len(data) // 4 // EXAMPLES
    values = struct.unpack(f"<{len(data) // 4}{kind}", data)
    rows = [values[each_has * i:each_has * (i + 1)] for i in range(EXAMPLES)]
    return (with_losses(t, name, config, rows) if name in ROWS_OF else rows), images


def with_losses(t, name, config, said):
    """Of each example its loss, before the labels said of it; for the judges, too."""
    with open(name + "-images", "rb") as f:
        images = f.read()
    with open(name + "-labels", "rb") as f:
        labels = f.read()
    rows, one = [], {"images": "one-images", "labels": "one-labels"}
    for i in range(EXAMPLES):
        for data, head, path in ((images, 20, "one-images"), (labels, 12, "one-labels")):
            size = (len(data) - head) // EXAMPLES
            with open(path, "wb") as f:
                f.write(data[:4] + struct.pack(">I", 1) + data[8:head] +
                        data[head + i * size:head + (i + 1) * size])
        _, lines, _ = t.expect(0, "eval", config, "--run-dir", name, "--set",
                               "data.test=" + json.dumps(one))
        loss = float([line for line in lines if line.startswith("test_loss ")][0].split()[1])
        rows.append([loss, *said[i]])
    t.check(any(map(any, said)), "labels that say something", said)
    with open(name + ".answers", "w", encoding="utf-8") as f:
        json.dump(rows, f)
    return rows


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


def turned(name, layer, tensor):
    """What PyTorch wants of a kernel, by the meaning of every index."""
    shape, values = tensor
    if len(shape) == 4:
        h, w, i, o = shape
        if type_of(name, layer) == "depthwise_conv2d":
            return [i * o, 1, h, w], [values[((y * w + x) * i + c) * o + n]
                                      for c in range(i) for n in range(o) for y in range(h)
                                      for x in range(w)]
        return [o, i, h, w], [values[((y * w + x) * i + c) * o + n]
                              for n in range(o) for c in range(i) for y in range(h)
                              for x in range(w)]
    inputs, units = shape
    if layer not in FLATTENED.get(name, {}):
        return [units, inputs], [values[k * units + n] for n in range(units)
                                 for k in range(inputs)]
    h, w, channels = FLATTENED[name][layer]
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
    states = [n for n in parameters if "/moving_" in n]
    t.check(len(saved) == 2 * len(parameters) - len(states), "slots of all parameters", list(saved))

    metadata, keras = read(name + "-keras")
    t.check(list(keras.items()) == list(parameters.items()), "keras: all parameters, bit by bit")
    data = b"".join(b"".join(values) for _, values in keras.values())
    t.check(hashlib.sha256(data).hexdigest() == metadata["digest"], "its bytes have the digest")
    wanted = {"format": "np", "layout": "keras", **{key: source[key] for key in (
        "name", "step", "run_identity", "digest", "lockstep_version")}}
    t.check(metadata == wanted, "keras: metadata", metadata, wanted)

    metadata, torch = read(name + "-torch")
    t.check(metadata == {**wanted, "format": "pt", "layout": "torch"}, "torch: metadata", metadata)
    expected = {}
    for full, tensor in parameters.items():
        layer, part = full.split("/")
        if type_of(name, layer) in ("lstm", "gru"):
            dims, values = turned(name, layer, tensor) if "kernel" in part else tensor
            if type_of(name, layer) == "gru":
                values = resets_first(values)
            expected[f"{layer}.{RECURRENT[part]}"] = dims, values
        elif part == "kernel":
            expected[layer + ".weight"] = turned(name, layer, tensor)
        elif part == "embeddings":
            expected[layer + ".weight"] = tensor
        elif layer in FLATTENED.get(name, {}) and part != "bias":  # a norm of flattened images
            h, w, c = FLATTENED[name][layer]
            expected[f"{layer}.{ROWS[part]}"] = tensor[0], [
                tensor[1][at * c + channel] for channel in range(c) for at in range(h * w)]
        else:
            expected[f"{layer}.{ROWS[part]}"] = tensor
    for full, values in CONSTANTS.get(name, []):
        expected[full] = [len(values)], [struct.pack("<f", v) for v in values]
    t.check(list(torch.items()) == list(expected.items()), f"{name}: torch, value by value")


# --- the network, as PyTorch computes it ---------------------------------------------------------

def pair(value):
    return value if isinstance(value, list) else [value, value]


def padding(in_size, size, stride, same):
    """Cells before and behind, as TensorFlow pads."""
    total = max((-(-in_size // stride) - 1) * stride + size - in_size, 0) if same else 0
    return total // 2, total - total // 2


def windows(planes, layer, key):
    """Rows of windows of each plane [c][y][x]: [row][column][c][position], None where padded."""
    size = pair(layer[key])
    strides = pair(layer.get("strides", size if key == "pool_size" else 1))
    same, by = layer.get("padding") == "same", pair(layer.get("dilation_rate", 1))
    reach = [(k - 1) * d + 1 for k, d in zip(size, by)]
    (top, bottom), (left, right) = (padding(*at, same) for at in zip(
        (len(planes[0]), len(planes[0][0])), reach, strides))
    planes = [[[None] * left + row + [None] * right for row in p] for p in planes]
    blank = [None] * len(planes[0][0])
    planes = [[blank] * top + p + [blank] * bottom for p in planes]
    h, w = len(planes[0]), len(planes[0][0])
    return [[[[p[y + i * by[0]][x + j * by[1]] for i in range(size[0]) for j in range(size[1])]
              for p in planes] for x in range(0, w - reach[1] + 1, strides[1])]
            for y in range(0, h - reach[0] + 1, strides[0])]


def by_plane(rows, count, value):
    return [[[value(cell, c) for cell in row] for row in rows] for c in range(count)]


def each(function, *values):
    """Of single values, in rows or planes."""
    if isinstance(values[0], list):
        return [each(function, *v) for v in zip(*values)]
    return function(*values)


def inside(cell):
    return [x for x in cell if x is not None]


def gelu(layer):
    if layer.get("approximate"):
        return lambda x: x / (1 + math.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x ** 3)))
    return lambda x: x * math.erfc(-x / math.sqrt(2)) / 2


ACTIVATIONS = {
    "relu6": lambda layer: lambda x: min(max(x, 0.0), 6.0), "gelu": gelu,
    "elu": lambda layer: lambda x: x if x > 0 else layer.get("alpha", 1) * math.expm1(x),
    "softplus": lambda layer: lambda x: math.log1p(math.exp(x)),
    "swish": lambda layer: lambda x: x / (1 + math.exp(-x)),
    "relu": lambda layer: lambda x: max(x, 0.0), "tanh": lambda layer: math.tanh,
    "sigmoid": lambda layer: lambda x: 1 / (1 + math.exp(-x)),
    "leaky_relu": lambda layer: lambda x: x if x > 0 else x * layer.get(
        "negative_slope", 0.2 if layer["type"] != "leaky_relu" else 0.3)}


def transposed(layer, shape, weight, bias, x):
    """What each value gives to the output; weights (in, out, h, w)."""
    (kh, kw), (sh, sw), same = shape[2:], pair(layer["strides"]), "padding" in layer
    more = [0 if same else max(k - s, 0) for k, s in ((kh, sh), (kw, sw))]
    top, left = [max(k - s, 0) // 2 if same else 0 for k, s in ((kh, sh), (kw, sw))]
    y = [[[b] * (len(x[0][0]) * sw + more[1]) for _ in range(len(x[0]) * sh + more[0])]
         for b in bias]
    for number, (n, w) in enumerate((n, w) for n in range(shape[0]) for w in range(
            shape[1] * kh * kw)):
        o, at = divmod(w, kh * kw)
        for i, row in enumerate(x[n]):
            for j, value in enumerate(row):
                oy, ox = i * sh + at // kw - top, j * sw + at % kw - left
                if 0 <= oy < len(y[0]) and 0 <= ox < len(y[0][0]):
                    y[o][oy][ox] += value * weight[number]
    return y


def reshape(x, target):
    """An image in our order of values, channels last; a row as PyTorch flattens it."""
    if len(target) == 1:
        return [v for plane in x for row in plane for v in row]
    if len(target) == 2:
        values = [plane[i][j] for i in range(len(x[0])) for j in range(len(x[0][0])) for plane in x]
        return [values[i * target[1]:(i + 1) * target[1]] for i in range(target[0])]
    h, w, c = target
    if isinstance(x[0], list):
        x = [plane[i][j] for i in range(len(x[0])) for j in range(len(x[0][0])) for plane in x]
    return [[[x[(i * w + j) * c + k] for j in range(w)] for i in range(h)] for k in range(c)]


def depth(x):
    """3: an image [c][y][x]; 2: a sequence [time][feature]; 1: a row."""
    return 1 + depth(x[0]) if isinstance(x, list) else 0


def sequence_of(x):
    """Of an image that is one column wide."""
    return [[plane[t][0] for plane in x] for t in range(len(x[0]))] if depth(x) == 3 else x


def image_of(x):
    return [[[row[c]] for row in x] for c in range(len(x[0]))] if depth(x) == 2 else x


def lstm(layer, name, tensors, x):
    """As PyTorch has it: rows of gates i, f, g, o, and two biases."""
    (gates, units), inner = tensors[name + ".weight_hh_l0"]
    outer = tensors[name + ".weight_ih_l0"][1]
    bias = [sum(tensors.get(f"{name}.bias_{which}_l0", (0, [0.0] * gates))[1][g]
                for which in ("ih", "hh")) for g in range(gates)]
    h, c, found = [0.0] * units, [0.0] * units, []
    for row in sequence_of(x):
        a = [bias[g] + sum(v * w for v, w in zip(row, outer[g * len(row):])) +
             sum(v * w for v, w in zip(h, inner[g * units:(g + 1) * units])) for g in range(gates)]
        i, f, o = ([1 / (1 + math.exp(-v)) for v in a[n * units:(n + 1) * units]]
                   for n in (0, 1, 3))
        c = [f[k] * c[k] + i[k] * math.tanh(a[2 * units + k]) for k in range(units)]
        h = [o[k] * math.tanh(c[k]) for k in range(units)]
        found.append(h)
    return found if layer.get("return_sequences") else h


def gru(layer, name, tensors, x):
    """As PyTorch has it: rows of gates r, z, n, and two biases."""
    (gates, units), inner = tensors[name + ".weight_hh_l0"]
    outer = tensors[name + ".weight_ih_l0"][1]
    zeros = (0, [0.0] * gates)
    h, found = [0.0] * units, []
    for row in sequence_of(x):
        of_x, of_h = ([tensors.get(f"{name}.bias_{which}_l0", zeros)[1][g] +
                       sum(v * w for v, w in zip(by, kernel[g * len(by):]))
                       for g in range(gates)]
                      for which, by, kernel in (("ih", row, outer), ("hh", h, inner)))
        r, z = ([1 / (1 + math.exp(-of_x[n] - of_h[n])) for n in range(g * units, (g + 1) * units)]
                for g in (0, 1))
        n = [math.tanh(of_x[2 * units + k] + r[k] * of_h[2 * units + k]) for k in range(units)]
        h = [(1 - z[k]) * n[k] + z[k] * h[k] for k in range(units)]
        found.append(h)
    return found if layer.get("return_sequences") else h


def layer_norm(layer, weight, bias, x):
    """Of the values of each cell, or of a row."""
    if depth(x) == 2:
        return [layer_norm(layer, weight, bias, row) for row in x]
    if isinstance(x[0], list):
        cells = [layer_norm(layer, weight, bias, [plane[i][j] for plane in x])
                 for i in range(len(x[0])) for j in range(len(x[0][0]))]
        return reshape([v for cell in cells for v in cell], [len(x[0]), len(x[0][0]), len(x)])
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + layer.get("epsilon", 0.001))
    return [(v - mean) / spread * (weight[k] if weight else 1) + (bias[k] if bias else 0)
            for k, v in enumerate(x)]


def layer_of(layer, shape, weight, bias, at):
    """What a layer makes of its inputs, images [c][y][x] or rows."""
    kind, x = layer["type"], at[0]
    if kind in ("conv2d", "max_pool2d"):
        x = image_of(x)
    if kind in ("conv2d", "depthwise_conv2d"):
        size, filters = len(weight) // shape[0], shape[0] * shape[1] // len(x)  # of a group
        return by_plane(windows(x, layer, "kernel_size"), shape[0], lambda cell, n: bias[n] + sum(
            (a or 0.0) * b for a, b in zip(sum(cell[n // filters * shape[1]:], []),
                                           weight[n * size:(n + 1) * size])))
    if kind == "conv2d_transpose":
        return transposed(layer, shape, weight, bias, x)
    if kind == "max_pool2d":
        return by_plane(windows(x, layer, "pool_size"), len(x), lambda cell, c: max(
            inside(cell[c])))
    if kind == "average_pool2d":
        return by_plane(windows(x, layer, "pool_size"), len(x), lambda cell, c: sum(
            inside(cell[c])) / len(inside(cell[c])))
    if kind == "global_average_pool2d":
        return [sum(map(sum, plane)) / (len(plane) * len(plane[0])) for plane in x]
    if kind == "flatten":
        if depth(x) == 2:
            return [v for row in x for v in row]
        return [v for plane in x for row in plane for v in row] if isinstance(x[0], list) else x
    if kind == "dense" and depth(x) > 1:
        return [layer_of(layer, shape, weight, bias, [row]) for row in sequence_of(x)]
    if kind == "joint":
        cells = [[[math.tanh(a + b) for a, b in zip(frame, said)] for said in at[1]]
                 for frame in x]
        return [layer_of({"type": "dense"}, shape, weight, bias, [row]) for row in cells]
    if kind == "dense":
        return [bias[n] + sum(a * b for a, b in zip(x, weight[n * len(x):]))
                for n in range(shape[0])]
    if kind == "add":
        return each(lambda a, b: a + b, *at)
    if kind == "concatenate" and depth(x) == 2:
        return [a + b for a, b in zip(*at)]
    if kind == "concatenate":
        return at[0] + at[1]
    if kind == "zero_padding2d":
        (top, bottom), (left, right) = map(pair, pair(layer["padding"]))
        rows = [[[0.0] * left + row + [0.0] * right for row in plane] for plane in x]
        blank = [0.0] * len(rows[0][0])
        return [[blank] * top + plane + [blank] * bottom for plane in rows]
    if kind == "reshape":
        return reshape(x, layer["target_shape"])
    if kind == "time_reduction":
        frames = sequence_of(x)
        frames = frames + [[0.0] * len(frames[0])] * (-len(frames) % layer["factor"])
        return [sum(frames[i:i + layer["factor"]], [])
                for i in range(0, len(frames), layer["factor"])]
    if kind == "batch_normalization":
        mean, variance = layer["moving"]
        # One with neither factor nor summand.
        weight, bias = weight or [1.0] * len(x), bias or [0.0] * len(x)
        epsilon = layer.get("epsilon", 0.001)
        if depth(x) == 2:
            return [layer_of(layer, shape, weight, bias, [row]) for row in x]
        return [each(lambda v: (v - mean[c]) / math.sqrt(variance[c] + epsilon) * weight[c] +
                     bias[c], values) for c, values in enumerate(x)]
    if kind == "layer_normalization":
        return layer_norm(layer, weight, bias, x)
    if kind == "dropout":
        return x
    return each(ACTIVATIONS[kind](layer), x)


def forward(layers, tensors, at, said=()):
    """Of one image [c][y][x] and its labels, with weights (out, in, ..)."""
    values = {"input": at}
    for layer in layers:
        name = layer["name"]
        shape, weight = tensors.get(name + ".weight", ([0], []))
        outputs = shape[layer["type"] == "conv2d_transpose"]
        bias = tensors.get(name + ".bias", ([], [0.0] * outputs))[1]
        inputs = [values[n] for n in layer["inputs"]] if "inputs" in layer else [at]
        if layer["type"] == "batch_normalization":
            layer = {**layer, "moving": [tensors[f"{name}.running_{what}"][1]
                                         for what in ("mean", "var")]}
        if layer["type"] in ("lstm", "gru"):
            at = {"lstm": lstm, "gru": gru}[layer["type"]](layer, name, tensors, inputs[0])
        elif layer["type"] == "label_embedding":
            at = [weight[i * shape[1]:(i + 1) * shape[1]] for i in [0, *said]]
        else:
            at = layer_of(layer, shape, weight, bias, inputs)
        if "activation" in layer:
            at = each(ACTIVATIONS[layer["activation"]](layer), at)
        values[name] = at
    return at


def transducer_loss(cells, labels):
    """Less the logarithm of the sum over all ways to say the labels; logits [frame][u][symbol]."""
    ways = {}
    for t, row in enumerate(cells):
        for u in range(len(labels) + 1):
            at = 1.0 if (t, u) == (0, 0) else 0.0
            at += ways.get((t - 1, u, 0), 0.0) + ways.get((t, u - 1, 1), 0.0)
            size = sum(map(math.exp, row[u]))
            ways[t, u, 0] = at * math.exp(row[u][0]) / size
            if u < len(labels):
                ways[t, u, 1] = at * math.exp(row[u][labels[u]]) / size
    return -math.log(ways[len(cells) - 1, len(labels), 0])


def decoded(cells_of, frames):
    """The labels said, greedily; cells_of labels are the logits once these are said."""
    said, t, here = [], 0, 0
    cells = cells_of(said)
    while t < frames and len(said) < LABELS:
        row = cells[t][len(said)][:CLASSES]
        best = row.index(max(row))
        if best:
            said.append(best)
            cells, here = cells_of(said), here + 1
        if not best or here == 10:
            t, here = t + 1, 0
    return said + [0] * (LABELS - len(said))


def answers(name, example, cells_of):
    """What is known of an example: logits; of a transducer its loss and the labels said."""
    if name not in ROWS_OF:
        return cells_of([])
    frames, labels = ROWS_OF[name][example]
    cells = cells_of(labels)
    frames = min(len(cells), -(-frames * len(cells) // MODELS[name][0][0]))
    return [transducer_loss(cells[:frames], labels), *decoded(cells_of, frames)]


def scaled(name, byte):
    middle, scale = (127.5, 127.5) if name in SIGNED else (0, 255)
    return (byte - middle) / scale


def compute(t, name, logits, images):
    (h, w, channels), layers = MODELS[name]
    tensors = {n: (shape, [struct.unpack("<f", v)[0] for v in values])
               for n, (shape, values) in read(name + "-torch")[1].items()}
    normalize = NORMALIZE if name in NORMALIZED else {
        "mean": [0.0] * channels, "deviation": [1.0] * channels}
    worst = 0.0
    for example, (image, wanted) in enumerate(zip(images, logits)):
        planes = [[[(scaled(name, image[(y * w + x) * channels + c]) - normalize["mean"][c]) /
                    normalize["deviation"][c] for x in range(w)] for y in range(h)]
                  for c in range(channels)]
        found = answers(name, example, lambda said: forward(layers, tensors, planes, said))
        worst = max(worst, max(abs(a - b) for a, b in zip(found, wanted)))
    t.check(worst < 1e-5, f"{name}: the logits of predict", worst)
    spread = max(max(row) - min(row) for row in logits)
    t.check(spread > 0.01, f"{name}: logits that say something", spread)


# --- the ONNX model ------------------------------------------------------------------------------

def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7f) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def fields(data):
    """field number: list of values, of a message of protocol buffers."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size = 4
            if kind == 2:
                size, at = varint(data, at)
            assert kind in (2, 5) and at + size <= len(data), (kind, size)
            value, at = data[at:at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def attribute(data):
    a = fields(data)
    kind = a[20][0]
    value = {1: lambda: struct.unpack("<f", a[2][0])[0], 2: lambda: a[3][0],
             7: lambda: a[8]}[kind]()
    return a[1][0].decode(), value


def node(data):
    n = fields(data)
    return (n[4][0].decode(), [i.decode() for i in n[1]], n[2][0].decode(),
            dict(attribute(a) for a in n.get(5, [])))


def onnx_graph(path):
    """Nodes, and name: (shape, floats) of its constants that are floats."""
    with open(path, "rb") as f:
        graph = fields(fields(f.read())[7][0])
    values = {}
    for data in graph[5]:
        tensor = fields(data)
        if tensor[2] == [1]:
            raw = tensor[9][0]
            values[tensor[8][0].decode()] = (tensor.get(1, []),
                                             list(struct.unpack(f"<{len(raw) // 4}f", raw)))
    return [node(n) for n in graph[1]], values


PASSES = ("Transpose", "Flatten", "MaxPool", "AveragePool", "GlobalAveragePool", "Pad")


def before(nodes, output, moves):
    """Do all who take it end in products that could be of other numbers?"""
    takers = [n for n in nodes if output in n[1]]
    for kind, _, gives, more in takers:
        padded = any(more.get("pads", [])) or kind == "ConvTranspose"
        if kind in PASSES:
            if kind == "Pad" and moves or not before(nodes, gives, moves):
                return False
        elif kind not in ("Gemm", "Conv", "ConvTranspose") or padded and moves:
            return False
    return bool(takers)


def foldable(nodes, values):
    """Nodes of constants, of scaling and norms, that a layer beside them could compute."""
    makers, found = {n[2]: n for n in nodes}, []
    for kind, inputs, output, _ in nodes:
        if not (output.startswith("/") and len(inputs) == 2 or kind == "BatchNormalization"):
            continue
        users = sum(inputs[0] in n[1] for n in nodes)
        maker = makers.get(inputs[0], ("",))[0]
        moves = kind != "Mul" and any(values[inputs[-1]][1])
        if maker in ("Conv", "ConvTranspose", "Gemm") and users == 1 or before(nodes, output,
                                                                               moves):
            found.append(output)
    return found


def of_onnx(kind, layer, part, tensor):
    """Parameters (1, gates, in), of an LSTM i, o, f, c, of a GRU z, r, h; both biases in a row."""
    shape, values = tensor
    if kind == "gru" and part == "bias":
        half = shape[1] // 2
        return {f"{layer}.bias_{which}_l0": ([half], resets_first(values[at:at + half]))
                for which, at in (("ih", 0), ("hh", half))}
    if kind == "gru":
        return {f"{layer}.{RECURRENT[part]}": (shape[1:], resets_first(values))}
    units, size = shape[1] // (8 if part == "bias" else 4), shape[2] if part != "bias" else 1
    turned_back = [v for gate in (0, 2, 3, 1)
                   for v in values[gate * units * size:(gate + 1) * units * size]]
    if part != "bias":
        return {f"{layer}.{RECURRENT[part]}": ([4 * units, size], turned_back)}
    assert not any(values[4 * units:]), "a second row of biases"
    return {layer + ".bias_ih_l0": ([4 * units], turned_back)}


def folded(t, name, logits, images):
    """What constants took over others: no node is left that could be, and the network that the
    file's numbers make of raw bytes, or of floats, gives the logits of predict."""
    (h, w, channels), layers = MODELS[name]
    for number, word in enumerate(("u8", "f32")):
        path = f"{name}-{word}"
        t.expect(0, "checkpoint", "export", name, "--output", path, "--layout", "onnx", "--input",
                 word)
        nodes, values = onnx_graph(path)
        kept = [n[2] for n in nodes if n[2] in ("/Mul", "/Add", "/Sub", "/Div") or
                n[0] == "BatchNormalization"]
        t.check(kept == KEPT.get(name, ([], []))[number], f"{path}: nodes of constants", kept)
        left = foldable(nodes, values)
        t.check(not left, f"{path}: none that another layer could compute", left)
        used = {i for n in nodes for i in n[1]}
        t.check(set(values) <= used, f"{path}: no number in vain", set(values) - used)
        factor = values.get("/factor", ([], [1.0]))[1] * channels
        offset = values.get("/offset", ([], [0.0]))[1] * channels
        tensors = {}
        for full, tensor in values.items():
            layer, part = full.split("/")[:2]
            if type_of(name, layer) in ("lstm", "gru"):
                tensors.update(of_onnx(type_of(name, layer), layer, part, tensor))
            elif part == "embeddings":
                tensors[layer + ".weight"] = tensor
            elif part == "kernel":
                tensors[layer + ".weight"] = turned(name, layer, tensor) \
                    if len(tensor[0]) == 2 else tensor
            elif layer in FLATTENED.get(name, {}) and part in ("gamma", "beta"):
                channels_there = FLATTENED[name][layer][2]
                tensors[f"{layer}.{ROWS[part]}"] = tensor[0], [
                    v for c in range(channels_there) for v in tensor[1][c::channels_there]]
            elif layer:
                tensors[f"{layer}.{ROWS.get(part, part)}"] = tensor
        gone = [{**layer, "type": "dropout"} if layer["type"] == "batch_normalization" and
                layer["name"] + "/moving_mean" not in values else layer for layer in layers]
        worst = 0.0
        for example, (image, wanted) in enumerate(list(zip(images, logits))[:4]):
            planes = [[[(lambda b: b if word == "u8" else scaled(name, b))(
                image[(y * w + x) * channels + c]) * factor[c] + offset[c] for x in range(w)]
                for y in range(h)] for c in range(channels)]
            found = answers(name, example, lambda said: forward(gone, tensors, planes, said))
            worst = max(worst, max(abs(a - b) for a, b in zip(found, wanted)))
        t.check(worst < 1e-5, f"{path}: the logits of predict", worst)


# Of the graph model: type, inputs, attributes. What a node gives is named LAYER/TYPE.
WINDOWS = {"conv1": ([3, 2], [2, 2], [1, 0, 1, 1]), "conv2": ([3, 3], [1, 1], [1, 1, 1, 1]),
           "average": ([3, 2], [2, 1], [1, 0, 1, 1]), "pool": ([2, 3], [1, 2], [0, 0, 1, 1]),
           "side": ([2, 3], [1, 1], [0, 0, 0, 0])}
NODES = [
    ("Cast", ["images"], "/Cast", {"to": 1}),
    ("Transpose", ["/Cast"], "/Transpose", {"perm": [0, 3, 1, 2]}),
    ("Conv", ["/Transpose", "conv1/kernel", "conv1/bias"], "conv1/Conv", {}),
    ("LeakyRelu", ["conv1/Conv"], "conv1/LeakyRelu", {"alpha": struct.unpack(
        "<f", struct.pack("<f", 0.2))[0]}),
    ("Conv", ["conv1/LeakyRelu", "conv2/kernel", "conv2/bias"], "conv2/Conv", {}),
    ("Tanh", ["conv2/Conv"], "conv2/Tanh", {}),
    ("Add", ["conv1/LeakyRelu", "conv2/Tanh"], "add/Add", {}),
    ("LeakyRelu", ["add/Add"], "leak/LeakyRelu", {"alpha": 0.125}),
    ("AveragePool", ["leak/LeakyRelu"], "average/AveragePool", {"count_include_pad": 0}),
    ("MaxPool", ["average/AveragePool"], "pool/MaxPool", {}),
    ("Transpose", ["pool/MaxPool"], "flatten/Transpose", {"perm": [0, 2, 3, 1]}),
    ("Flatten", ["flatten/Transpose"], "flatten/Flatten", {"axis": 1}),
    ("Gemm", ["flatten/Flatten", "wide/kernel", "wide/bias"], "wide/Gemm", {}),
    ("Sigmoid", ["wide/Gemm"], "wide/Sigmoid", {}),
    ("Conv", ["/Transpose", "side/kernel", "side/bias"], "side/Conv", {}),
    ("Sigmoid", ["side/Conv"], "squash/Sigmoid", {}),
    ("GlobalAveragePool", ["squash/Sigmoid"], "means/GlobalAveragePool", {}),
    ("Flatten", ["means/GlobalAveragePool"], "means/Flatten", {"axis": 1}),
    ("Add", ["wide/Sigmoid", "means/Flatten"], "both/Add", {}),
    ("Flatten", ["both/Add"], "again/Flatten", {"axis": 1}),
    ("Tanh", ["again/Flatten"], "tanh/Tanh", {}),
    ("Gemm", ["tanh/Tanh", "head/kernel", "head/bias"], "head/Gemm", {}),
    ("Identity", ["head/Gemm"], "logits", {}),
    ("Softmax", ["logits"], "probabilities", {"axis": 1})]
# Of the transducer, which images of one column come to without a reshape.
ROWS_LAST, ROWS_SECOND, TIMES_FIRST = ({"perm": p} for p in ([0, 2, 3, 1], [0, 3, 1, 2],
                                                             [2, 0, 1]))
TRANSDUCER = [
    ("Cast", ["images"], "/Cast", {"to": 1}),
    ("Transpose", ["/Cast"], "/Transpose", {"perm": [0, 3, 1, 2]}),
    ("Transpose", ["/Transpose"], "rows/Rows", ROWS_LAST),
    ("MatMul", ["rows/Rows", "rows/kernel"], "rows/MatMul", {}),
    ("Add", ["rows/MatMul", "rows/bias"], "rows/Add", {}),
    ("Transpose", ["rows/Add"], "rows/Transpose", ROWS_SECOND),
    ("Relu", ["rows/Transpose"], "rows/Relu", {}),
    ("MaxPool", ["rows/Relu"], "half/MaxPool",
     {"kernel_shape": [2, 1], "strides": [2, 1], "pads": [0, 0, 0, 0]}),
    ("Squeeze", ["half/MaxPool", "encoder/Squeeze/constant"], "encoder/Squeeze", {}),
    ("Transpose", ["encoder/Squeeze"], "encoder/Times", TIMES_FIRST),
    ("LSTM", ["encoder/Times", "encoder/kernel", "encoder/recurrent_kernel", "encoder/bias"],
     "encoder/LSTM", {"hidden_size": 5}),
    ("Transpose", ["encoder/LSTM"], "encoder/Transpose", {"perm": [2, 3, 0, 1]}),
    ("Transpose", ["encoder/Transpose"], "frames/Rows", ROWS_LAST),
    ("MatMul", ["frames/Rows", "frames/kernel"], "frames/MatMul", {}),
    ("Add", ["frames/MatMul", "frames/bias"], "frames/Add", {}),
    ("Transpose", ["frames/Add"], "frames/Transpose", ROWS_SECOND),
    ("Pad", ["labels", "said/Pad/constant"], "said/Pad", {}),
    ("Gather", ["said/embeddings", "said/Pad"], "said/Gather", {}),
    ("Transpose", ["said/Gather"], "said/Transpose", {"perm": [0, 2, 1]}),
    ("Unsqueeze", ["said/Transpose", "said/Unsqueeze/constant"], "said/Unsqueeze", {}),
    ("Squeeze", ["said/Unsqueeze", "prediction/Squeeze/constant"], "prediction/Squeeze", {}),
    ("Transpose", ["prediction/Squeeze"], "prediction/Times", TIMES_FIRST),
    ("LSTM", ["prediction/Times", "prediction/kernel", "prediction/recurrent_kernel",
              "prediction/bias"], "prediction/LSTM", {"hidden_size": 4}),
    ("Transpose", ["prediction/LSTM"], "prediction/Transpose", {"perm": [2, 3, 0, 1]}),
    ("Transpose", ["prediction/Transpose"], "labels/Rows", ROWS_LAST),
    ("MatMul", ["labels/Rows", "labels/kernel"], "labels/MatMul", {}),
    ("Transpose", ["labels/MatMul"], "labels/Transpose", ROWS_SECOND),
    ("Squeeze", ["frames/Transpose", "joint/Frames/constant"], "joint/Frames", {}),
    ("Transpose", ["joint/Frames"], "encoder", {"perm": [0, 2, 1]}),
    ("Squeeze", ["labels/Transpose", "joint/Labels/constant"], "joint/Labels", {}),
    ("Transpose", ["joint/Labels"], "prediction", {"perm": [0, 2, 1]}),
    ("Unsqueeze", ["encoder", "joint/EachFrame/constant"], "joint/EachFrame", {}),
    ("Unsqueeze", ["prediction", "joint/EachLabel/constant"], "joint/EachLabel", {}),
    ("Add", ["joint/EachFrame", "joint/EachLabel"], "joint/Cells", {}),
    ("Tanh", ["joint/Cells"], "joint/Tanh", {}),
    ("MatMul", ["joint/Tanh", "joint/kernel"], "joint/MatMul", {}),
    ("Add", ["joint/MatMul", "joint/bias"], "joint/Add", {}),
    ("Identity", ["joint/Add"], "logits", {}),
    ("LogSoftmax", ["logits"], "log_probabilities", {"axis": 3})]
INTEGERS = {"said/Pad": [0, 1, 0, 0], "said/Unsqueeze": [3], "encoder/Squeeze": [3],
            "prediction/Squeeze": [3], "joint/Frames": [3], "joint/Labels": [3],
            "joint/EachFrame": [2], "joint/EachLabel": [1]}
for kind, _, gives, more in NODES:
    if gives.split("/")[0] in WINDOWS and kind in ("Conv", "AveragePool", "MaxPool"):
        more.update(zip(("kernel_shape", "strides", "pads"), WINDOWS[gives.split("/")[0]]))


def onnx(t):
    """The file, field by field. What it computes, export_test.py onnx asks onnxruntime."""
    made = json.loads(t.expect(0, "checkpoint", "export", "graph", "--output", "graph-onnx",
                               "--layout", "onnx", "--json")[1][0])
    with open("graph-onnx", "rb") as f:
        content = f.read()
    t.check(made["bytes"] == len(content) and made["input"] == "u8", "what is said", made)
    model = fields(content)
    t.check(model[1] == [8] and fields(model[8][0]) == {1: [b""], 2: [17]}, "versions", model[8])
    graph = fields(model[7][0])
    nodes = [node(n) for n in graph[1]]
    for found, wanted in zip(nodes, NODES):
        t.check(found == wanted, "a node", found, wanted)
    t.check(len(nodes) == len(NODES), "all nodes", len(nodes))
    saved, values = read(newest("graph"))[1], {}
    for data in graph[5]:
        tensor = fields(data)
        raw = tensor[9][0]
        values[tensor[8][0].decode()] = (tensor.get(1, []), [raw[i:i + 4] for i in
                                                             range(0, len(raw), 4)])
    wanted = {n: turned("graph", n.split("/")[0], v) if len(v[0]) == 4 else v
              for n, v in saved.items() if n.count("/") == 1}
    scale = struct.unpack("<f", struct.pack("<f", 1 / 255))[0]
    for full in ("conv1/kernel", "side/kernel"):  # those that see bytes
        wanted[full] = wanted[full][0], [
            struct.pack("<f", struct.unpack("<f", v)[0] * scale) for v in wanted[full][1]]
    t.check(values == wanted, "all parameters, bit by bit; kernels of convolutions turned")
    facts = {fields(p)[1][0].decode(): fields(p)[2][0].decode() for p in model[14]}
    t.check(facts["digest"] == made["digest"] and facts["step"] == "6", "its metadata", facts)
    t.expect(0, "checkpoint", "export", "graph", "--output", "graph-f32", "--layout", "onnx",
             "--input", "f32")
    with open("graph-f32", "rb") as f:
        graph = fields(fields(f.read())[7][0])
    t.check(node(graph[1][0]) == ("Transpose", ["images"], "/Transpose", NODES[1][3]) and
            len(graph[1]) == len(NODES) - 1, "floats are taken as they are")
    t.expect(0, "checkpoint", "export", "layered", "--output", "layered-onnx", "--layout", "onnx")
    with open("layered-onnx", "rb") as f:
        graph = fields(fields(f.read())[7][0])
    nodes = [n for n in map(node, graph[1]) if n[2].startswith(("centered/", "rows/"))]
    over = {"axis": 2 ** 64 - 1, "epsilon": struct.unpack("<f", struct.pack("<f", 1e-3))[0]}
    t.check(nodes == [
        ("Transpose", ["cells/Channels"], "centered/Transpose", {"perm": [0, 2, 3, 1]}),
        ("LayerNormalization", ["centered/Transpose", "centered/gamma", "centered/beta"],
         "centered/LayerNormalization", over),
        ("Transpose", ["centered/LayerNormalization"], "centered/Channels", {"perm": [0, 3, 1, 2]}),
        ("LayerNormalization", ["wide/Gemm", "rows/gamma", "rows/beta"],
         "rows/LayerNormalization", over)], "norms of cells and of rows", nodes)


def onnx_sequences(t):
    """Nodes and integers of the transducer; the last state of an LSTM is its second output. A GRU
    says that its reset gate comes after the product."""
    with open("gated-u8", "rb") as f:
        nodes = [node(n) for n in fields(fields(f.read())[7][0])[1]]
    t.check([n for n in nodes if n[0] == "GRU"] == [
        ("GRU", [f"{name}/Times", f"{name}/kernel", f"{name}/recurrent_kernel", *bias],
         gives, {"hidden_size": units, "linear_before_reset": 1})
        for name, gives, units, bias in (("first", "first/GRU", 5, ["first/bias"]),
                                         ("bare", "bare/GRU", 4, []),
                                         ("state", "", 3, ["state/bias"]))], "gated states", nodes)
    for name, wanted in (("transducer", TRANSDUCER), ("state", None)):
        t.expect(0, "checkpoint", "export", name, "--output", name + "-onnx", "--layout", "onnx")
        with open(name + "-onnx", "rb") as f:
            graph = fields(fields(f.read())[7][0])
        nodes = [node(n) for n in graph[1]]
        for found, node_wanted in zip(nodes, wanted or []):
            t.check(found == node_wanted, "a node", found, node_wanted)
        t.check(wanted is None or len(nodes) == len(wanted), "all nodes", len(nodes))
        integers = {}
        for tensor in map(fields, graph[5]):
            if tensor[2] == [7]:
                integers[tensor[8][0].decode().rsplit("/", 1)[0]] = tensor[7]
        if wanted:
            t.check(integers == INTEGERS, "integers", integers)
            names = [fields(v)[1][0].decode() for v in (*graph[11], *graph[12])]
            t.check(names == ["images", "labels", "encoder", "prediction", "logits",
                              "log_probabilities"], "inputs and outputs", names)
        else:
            gives = [[o.decode() for o in fields(n)[2]] for n in graph[1]]
            t.check(["", "state/LSTM"] in gives and ("Squeeze", [
                "state/LSTM", "state/State/constant"], "state/State", {}) in nodes and
                    integers["state/State"] == [0], "the last state", gives)


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
    refused(t, 64, 'found "keros", wanted "keras", "torch" or "onnx"', "conv", "--output", "new",
            "--layout", "keros")
    refused(t, 64, 'found "f16", wanted "u8" or "f32"', "conv", "--output", "new", "--layout",
            "onnx", "--input", "f16")
    refused(t, 64, "weights alone take no images", "conv", "--output", "new", "--layout", "torch",
            "--input", "u8")
    os.mkdir("folder")
    os.mkfifo("pipe")
    for place in ("folder", "pipe"):
        refused(t, 64, "which is no plain file", "conv", "--output", place)
    refused(t, 74, "cannot create", "conv", "--output", "nowhere/new")
    # The checkpoint, by whatever name, is not replaced; nor is one put beside it.
    shutil.copy(checkpoint, "copy.tmp")
    os.link("copy.tmp", "link")
    os.symlink("copy.tmp", "symbolic")
    for place in ("copy.tmp", "link", "symbolic"):
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
                refused(t, code, "use --layout onnx or keras", source, *to)
            else:
                t.expect(code, "checkpoint", "export", source, *to)
        t.check(os.path.exists(name + "-torch") == (code == 0), f"{name}: a file or none")
        t.expect(0, "checkpoint", "export", name, "--output", name + "-onnx", "--layout", "onnx")


def mixed(t):
    """Images of different shapes, flattened and added: an order that no weights of PyTorch undo."""
    branches = [{"type": "conv2d", "name": "a", "filters": 2, "kernel_size": 2,
                 "inputs": ["input"]},
                {"type": "flatten", "name": "flat_a"},
                {"type": "conv2d", "name": "b", "filters": 4, "kernel_size": [3, 2],
                 "strides": [1, 1], "inputs": ["input"]},
                {"type": "flatten", "name": "flat_b"},
                {"type": "add", "name": "add", "inputs": ["flat_a", "flat_b"]}]
    for name, more in (("mixed", [{"type": "dense", "name": "dense", "units": 12}]),
                       ("mixed-logits", [])):
        config = t.write(name + ".json", {
            "model.input": [3, 4, 2], "model.layers": branches + more, "model.classes": 12,
            "data.train.made_up": {"count": 40, "height": 3, "width": 4, "channels": 2,
                                   "classes": 12},
            "steps": 2, "global_batch": 8, "grain": 8})
        t.expect(0, "train", config, "--run-dir", name)
        refused(t, 78, "a sum or a row of flattened images of different shapes", name, "--output",
                "new", "--layout", "torch")
        t.expect(0, "checkpoint", "export", name, "--output", name + "-onnx", "--layout", "onnx")
    beside = branches[:-1] + [{"type": "concatenate", "name": "beside",
                               "inputs": ["flat_a", "flat_b"]}]
    image = [branches[0], branches[1], {"type": "reshape", "name": "again",
                                        "target_shape": [12, 1, 1]}]
    end = [{"type": "flatten", "name": "end"}, {"type": "dense", "name": "dense", "units": 12}]
    for name, layers, word in (("rows-beside", beside + end[1:], "a sum or a row of flattened"),
                               ("reshaped", image + end, "layer again reshapes flattened")):
        config = t.write(name + ".json", {
            "model.input": [3, 4, 2], "model.layers": layers, "model.classes": 12,
            "data.train.made_up": {"count": 40, "height": 3, "width": 4, "channels": 2,
                                   "classes": 12},
            "steps": 2, "global_batch": 8, "grain": 8})
        t.expect(0, "train", config, "--run-dir", name)
        refused(t, 78, word, name, "--output", "new", "--layout", "torch")
        t.expect(0, "checkpoint", "export", name, "--output", name + "-onnx", "--layout", "onnx")


def models(t):
    """What is flattened, and all of an ONNX model's network, only the configuration knows."""
    place = newest("flat")
    t.expect(0, "checkpoint", "export", place, "--output", "beside", "--layout", "torch")
    t.check(read("beside") == read("flat-torch"), "a file in its run: the run's configuration")
    shutil.copytree("flat", "foreign")
    with open("foreign/identity", "r+", encoding="utf-8") as f:
        f.write("0" * 8)
    new = ["--output", "new", "--layout", "torch"]
    refused(t, 64, "does not say which layers", newest("foreign"), *new)
    checkpoint = shutil.copy(place, "alone.safetensors")
    for layout in ("torch", "onnx"):
        refused(t, 64, "does not say which layers", checkpoint, "--output", "new", "--layout",
                layout)
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
                    re.search(place + r"\.\d+\.tmp: cannot write", done.stderr),
                    "a full disk: 74", done)
            t.check(not glob.glob(place + ".*.tmp"), "no half is left")
    with open("kept", encoding="utf-8") as f:
        t.check(f.read() == "old", "what was there stays")
    t.expect(0, "checkpoint", "export", "conv", "--output", "kept")
    t.check(read("kept") == read("conv-keras"), "and is replaced once all is well")


def while_it_runs(t):
    """The newest checkpoint of a run that removes it as soon as there is another."""
    config = t.write("busy.json", {"steps": 10 ** 7, "checkpoint.every_steps": 1,
                                   "checkpoint.keep_max": 1, "log_every_steps": 10 ** 7,
                                   "model.layers.3.units": 2000})
    process = t.start("train", config, "--run-dir", "busy")
    for line in process.lines():
        if line.startswith("checkpoint step "):
            break
    for _ in range(20):
        t.expect(0, "checkpoint", "export", "busy", "--output", "busy.safetensors")
    process.terminate()
    process.communicate()


def wrong(t):
    checkpoint = newest("conv")
    digest = read(checkpoint)[0]["digest"].encode()
    rewritten(checkpoint, "odd", b'"dense/bias"', b'"dense/gain"')
    rewritten(checkpoint, "other", digest, digest[::-1])
    usage(t)
    sources(t)
    models(t)
    mixed(t)
    flattened_logits(t)
    full_disk(t)
    while_it_runs(t)
    t.check(not os.path.exists("new"), "nothing that was refused was written")
    t.check(not glob.glob("*.tmp.*") and not glob.glob("new.*"), "nor begun")


# --- PyTorch and onnxruntime ---------------------------------------------------------------------

PACKAGES = {"torch": ["safetensors"], "keras": ["keras", "jax", "safetensors", "numpy"],
            "onnx": ["onnx", "onnxruntime", "numpy"]}


def all_layers(t):
    """Each type that a configuration may name is in one of the models."""
    schema = json.loads("\n".join(t.expect(0, "config", "schema")[1]))
    layers = schema["properties"]["model"]["properties"]["layers"]["items"]["oneOf"]
    wanted = {layer["properties"]["type"]["const"] for layer in layers}
    found = {layer["type"] for _, layers in MODELS.values() for layer in layers}
    t.check(len(wanted) > 20 and wanted == found, "layers that nobody judges", wanted ^ found)


def judge(t, kind, python):
    all_layers(t)
    for name in MODELS:
        for word in ("u8", "f32") if kind == "onnx" else ():
            _, lines, _ = t.expect(0, "checkpoint", "export", name, "--output", f"{name}-{word}",
                                   "--layout", "onnx", "--input", word)
            t.check(f"layout onnx, images of {word}:" in "".join(lines), "says what", lines)
        done = subprocess.run([python, HERE + "/export_judge.py", kind, name], check=False)
        t.check(done.returncode == 0, f"{name}: the verdict of {kind}")


def main():
    t = Test()
    runs = {name: train(t, name) for name in MODELS}
    for name, (logits, images) in runs.items():
        compare(t, name)
        compute(t, name, logits, images)
        folded(t, name, logits, images)
    if sys.argv[3:4]:
        kind = sys.argv[3]
        try:
            judge(t, kind, sys.argv[4] if len(sys.argv) > 4 else python_of(kind, PACKAGES[kind]))
        finally:
            shutil.rmtree("environment", ignore_errors=True)
    else:
        onnx(t)
        onnx_sequences(t)
        wrong(t)
    t.finish()


main()
