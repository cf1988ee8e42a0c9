"""torch_network.py - the network of a configuration in PyTorch, as a user would build it: modules
of the layers' names, which take the tensors of checkpoint export's layout torch.
"""
import math

import torch
from torch.nn import functional


def pair(value):
    return value if isinstance(value, list) else [value, value]


def padded(layer, key, x, fill):
    if layer.get("padding") != "same":
        return x
    spread = pair(layer.get("dilation_rate", 1))
    size = [(k - 1) * d + 1 for k, d in zip(pair(layer[key]), spread)]
    strides = pair(layer.get("strides", size if key == "pool_size" else 1))
    pads = []
    for length, k, s in reversed(list(zip(x.shape[2:], size, strides))):
        total = max((-(-length // s) - 1) * s + k - length, 0)
        pads += [total // 2, total - total // 2]
    return functional.pad(x, pads, value=fill)


class Network(torch.nn.Module):
    """Modules of the layers' names, called in the order that their inputs say."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.eval()
        self(torch.zeros(1, model["input"][2], *model["input"][:2]), build=True,
             labels=torch.zeros(1, 1, dtype=torch.int64))

    def activate(self, kind, layer, x):
        if kind == "leaky_relu":
            own = layer["type"] == "leaky_relu"
            return functional.leaky_relu(x, layer.get("negative_slope", 0.3) if own else 0.2)
        if kind == "gelu":
            form = "tanh" if layer.get("approximate") else "none"
            return functional.gelu(x, approximate=form)
        if kind == "elu":
            return functional.elu(x, layer.get("alpha", 1.0))
        return {"relu6": functional.relu6, "softplus": functional.softplus,
                "swish": functional.silu, "relu": torch.relu,
                "tanh": torch.tanh, "sigmoid": torch.sigmoid}[kind](x)

    def make(self, layer, x):
        bias = layer.get("use_bias", True)
        if layer["type"] == "conv2d_transpose":
            made = torch.nn.ConvTranspose2d(x.shape[1], layer["filters"],
                                            layer["kernel_size"], stride=layer["strides"],
                                            bias=bias)
        elif layer["type"] in ("conv2d", "depthwise_conv2d"):
            deep = x.shape[1] * layer.get("depth_multiplier", 1)
            made = torch.nn.Conv2d(
                x.shape[1], layer.get("filters", deep), layer["kernel_size"],
                stride=layer.get("strides", 1), bias=bias,
                dilation=layer.get("dilation_rate", 1),
                groups=layer.get("groups", 1) if "filters" in layer else x.shape[1])
        elif layer["type"] in ("lstm", "gru"):
            kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[layer["type"]]
            made = kind(x.shape[-1], layer["units"], bias=bias, batch_first=True)
        elif layer["type"] == "label_embedding":
            made = torch.nn.Embedding(self.model["classes"], layer["units"])
        else:
            made = torch.nn.Linear(x.shape[-1], layer["units"], bias=bias)
        self.add_module(layer["name"], made)

    def make_norm(self, layer, kind, features):
        affine = layer.get("scale", True) or layer.get("center", True)
        said = "elementwise_affine" if kind is torch.nn.LayerNorm else "affine"
        self.add_module(layer["name"], kind(features, eps=layer.get("epsilon", 1e-3),
                                            **{said: affine}))

    def batch_norm(self, layer, rows):
        norm = getattr(self, layer["name"])
        return functional.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight,
                                     norm.bias, eps=norm.eps)

    def flatten_image(self, x):
        return x.flatten(1)

    def cut(self, layer, y, size):
        """What PyTorch has too much or too little of, as Keras pads."""
        slices = []
        for n, k, s in zip(size, pair(layer["kernel_size"]), pair(layer["strides"])):
            same = layer.get("padding") == "same"
            begin = max(k - s, 0) // 2 if same else 0
            slices.append((begin, n * s + (0 if same else max(k - s, 0))))
        (top, h), (left, w) = slices
        y = y[:, :, top:top + h, left:left + w]
        bias = getattr(self, layer["name"]).bias
        if bias is None:
            bias = y.new_zeros(y.shape[1])
        full = bias.view(1, -1, 1, 1).expand(y.shape[0], -1, h, w).clone()
        full[:, :, :y.shape[2], :y.shape[3]] = y
        return full

    def apply_layer(self, layer, inputs, build):
        kind, x = layer["type"], inputs[0]
        if kind in ("lstm", "gru", "dense") and x.dim() == 4:  # (batch, time, features)
            x = x[:, :, :, 0].permute(0, 2, 1)
        if kind in ("conv2d", "max_pool2d") and x.dim() == 3:
            x = x.permute(0, 2, 1)[:, :, :, None]
        if build and kind in ("conv2d", "depthwise_conv2d", "conv2d_transpose", "dense", "lstm",
                              "gru", "label_embedding", "joint"):
            self.make(layer, x)
        if kind in ("lstm", "gru"):
            every, last = getattr(self, layer["name"])(x)
            last = last[0] if kind == "lstm" else last
            return every if layer.get("return_sequences") else last[0]
        if kind == "label_embedding":  # the blank, then the labels
            return getattr(self, layer["name"])(functional.pad(self.given, [1, 0]))
        if kind == "joint":
            return getattr(self, layer["name"])(
                torch.tanh(x[:, :, None, :] + inputs[1][:, None, :, :]))
        if kind in ("conv2d", "depthwise_conv2d"):
            return getattr(self, layer["name"])(padded(layer, "kernel_size", x, 0.0))
        if kind == "conv2d_transpose":
            return self.cut(layer, getattr(self, layer["name"])(x), x.shape[2:])
        if kind == "dense":
            return getattr(self, layer["name"])(x)
        if kind == "max_pool2d":
            return functional.max_pool2d(padded(layer, "pool_size", x, -math.inf),
                                         layer["pool_size"], layer.get("strides"))
        if kind == "average_pool2d":
            cells = torch.ones_like(x)
            both = [functional.avg_pool2d(padded(layer, "pool_size", v, 0.0),
                                          layer["pool_size"], layer.get("strides"))
                    for v in (x, cells)]
            return both[0] / both[1]
        if kind == "global_average_pool2d":
            return functional.adaptive_avg_pool2d(x, 1).flatten(1)
        if kind == "flatten":
            return self.flatten_image(x)
        if kind == "concatenate":
            return torch.cat(inputs, 2 if x.dim() == 3 else 1)
        if kind == "zero_padding2d":
            (top, bottom), (left, right) = map(pair, pair(layer["padding"]))
            return functional.pad(x, [left, right, top, bottom])
        if kind == "reshape":
            if len(layer["target_shape"]) == 1:
                return self.flatten_image(x)
            rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
            if len(layer["target_shape"]) == 2:
                return rows.reshape(-1, *layer["target_shape"])
            return rows.reshape(-1, *layer["target_shape"]).permute(0, 3, 1, 2)
        if kind == "time_reduction":
            rows = x.permute(0, 2, 3, 1).flatten(2) if x.dim() == 4 else x
            rows = functional.pad(rows, [0, 0, 0, -rows.shape[1] % layer["factor"]])
            return rows.reshape(len(rows), -1, layer["factor"] * rows.shape[2])
        if kind == "batch_normalization":
            rows = x.permute(0, 2, 1) if x.dim() == 3 else x  # channels are the second
            if build:
                self.make_norm(layer, torch.nn.BatchNorm2d if x.dim() == 4 else
                               torch.nn.BatchNorm1d, rows.shape[1])
            rows = self.batch_norm(layer, rows)
            return rows.permute(0, 2, 1) if x.dim() == 3 else rows
        if kind == "layer_normalization":
            rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x  # channels are the last
            if build:
                self.make_norm(layer, torch.nn.LayerNorm, rows.shape[-1])
            rows = getattr(self, layer["name"])(rows)
            return rows.permute(0, 3, 1, 2) if x.dim() == 4 else rows
        if kind == "dropout":
            return functional.dropout(x, layer["rate"], self.training)
        return inputs[0] + inputs[1] if kind == "add" else self.activate(kind, layer, x)

    def forward(self, x, build=False, labels=None):
        self.given = labels
        values = {"input": x}
        for layer in self.model["layers"]:
            inputs = [values[n] for n in layer["inputs"]] if "inputs" in layer else [x]
            x = self.apply_layer(layer, inputs, build)
            if layer.get("activation", "linear") != "linear":
                x = self.activate(layer["activation"], layer, x)
            values[layer["name"]] = x
        return x
