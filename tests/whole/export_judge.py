#!/usr/bin/env python3
"""Judges what lockstep checkpoint export wrote with PyTorch and the package safetensors.

    export_judge.py NAME     NAME.json, NAME-torch, NAME-keras, NAME-images and NAME.npy lie here

Builds the layers of the configuration as a user of PyTorch would, loads the file strictly, and
compares the logits with those of lockstep predict. Exit: 0 the same within rounding, 1 not.
"""
import collections
import json
import sys

import numpy
import safetensors.numpy
import safetensors.torch
import torch

TOLERANCE = 1e-5


def module(layer, shape):
    """The module of a layer, and the shape (channels, height, width) behind it."""
    kind = layer["type"]
    if kind == "conv2d":
        made = torch.nn.Conv2d(
            shape[0], layer["filters"], layer["kernel_size"], stride=layer.get("strides", 1),
            padding=layer.get("padding", "valid"), bias=layer.get("use_bias", True))
    elif kind == "max_pool2d":
        made = torch.nn.MaxPool2d(layer["pool_size"], layer.get("strides"))
    elif kind == "flatten":
        made = torch.nn.Flatten()
    elif kind == "dense":
        made = torch.nn.Linear(shape[0], layer["units"], bias=layer.get("use_bias", True))
    else:
        made = torch.nn.ReLU()
    return made, made(torch.zeros(1, *shape)).shape[1:]


def network(model):
    layers = collections.OrderedDict()
    h, w, c = model["input"]
    shape = (c, h, w)
    for layer in model["layers"]:
        layers[layer["name"]], shape = module(layer, shape)
        if layer.get("activation") == "relu":
            layers[layer["name"] + "_relu"] = torch.nn.ReLU()
    return torch.nn.Sequential(layers)


def main():
    name = sys.argv[1]
    with open(name + ".json", encoding="utf-8") as f:
        model = json.load(f)["model"]
    with open(name + "-images", "rb") as f:
        raw = numpy.frombuffer(f.read()[20:], numpy.uint8).reshape(-1, *model["input"])
    images = torch.from_numpy(raw.astype(numpy.float32) / 255).permute(0, 3, 1, 2)
    net = network(model)
    net.load_state_dict(safetensors.torch.load_file(name + "-torch"), strict=True)
    with torch.no_grad():
        logits = net(images).numpy()
    worst = float(abs(logits - numpy.load(name + ".npy")).max())
    keras = safetensors.numpy.load_file(name + "-keras")
    shapes = {n: list(v.shape) for n, v in keras.items()}
    print(f"{name}: PyTorch {torch.__version__}, {len(raw)} images, largest difference "
          f"{worst:.2g}; numpy {shapes}")
    return 0 if worst < TOLERANCE else 1


sys.exit(main())
