#!/usr/bin/env python3
"""Judges what lockstep checkpoint export wrote with those for whom it was written.

    export_judge.py torch NAME   PyTorch, and the package safetensors: NAME-torch
    export_judge.py keras NAME   Keras, and the package safetensors: NAME-keras
    export_judge.py onnx NAME    the checker of onnx, and onnxruntime: NAME-u8, NAME-f32

NAME.json, NAME-images and NAME.npy, the logits of lockstep predict, lie here. `torch` and `keras`
build the layers of the configuration as a user would and load the file by its names, all of them;
an ONNX model needs no words of ours. Exit: 0 the same logits within rounding, 1 not.
"""
import json
import os
import sys

import numpy

TOLERANCE = 1e-5


def read_images(name, model):
    with open(name + "-images", "rb") as f:
        return numpy.frombuffer(f.read()[20:], numpy.uint8).reshape(-1, *model["input"])


def as_floats(raw, model, normalized=True):
    """As the layers take them; an ONNX model normalises itself."""
    numbers = raw.astype(numpy.float32)
    if model["input_range"] == "signed":
        numbers = (numbers - numpy.float32(127.5)) / numpy.float32(127.5)
    else:
        numbers = numbers / 255
    if normalized and "normalize" in model:
        mean, deviation = (numpy.float32(model["normalize"][k]) for k in ("mean", "deviation"))
        numbers = (numbers - mean) / deviation
    return numbers


# --- PyTorch -------------------------------------------------------------------------------------

def torch_network(model):
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

        def __init__(self):
            super().__init__()
            self.eval()
            self(torch.zeros(1, model["input"][2], *model["input"][:2]), build=True)

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
            else:
                made = torch.nn.Linear(x.shape[1], layer["units"], bias=bias)
            self.add_module(layer["name"], made)

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
            full = bias.view(1, -1, 1, 1).expand(y.shape[0], -1, h, w).clone()
            full[:, :, :y.shape[2], :y.shape[3]] = y
            return full

        def apply_layer(self, layer, inputs, build):
            kind, x = layer["type"], inputs[0]
            if build and kind in ("conv2d", "depthwise_conv2d", "conv2d_transpose", "dense"):
                self.make(layer, x)
            if kind in ("conv2d", "depthwise_conv2d"):
                return getattr(self, layer["name"])(padded(layer, "kernel_size", x, 0.0))
            if kind == "conv2d_transpose":
                return self.cut(layer, getattr(self, layer["name"])(x), x.shape[2:])
            if kind == "dense":
                return getattr(self, layer["name"])(x)
            if kind == "max_pool2d":
                return functional.max_pool2d(padded(layer, "pool_size", x, -numpy.inf),
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
                return x.flatten(1)
            if kind == "concatenate":
                return torch.cat(inputs, 1)
            if kind == "zero_padding2d":
                (top, bottom), (left, right) = map(pair, pair(layer["padding"]))
                return functional.pad(x, [left, right, top, bottom])
            if kind == "reshape":
                if len(layer["target_shape"]) == 1:
                    return x.flatten(1)
                rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
                return rows.reshape(-1, *layer["target_shape"]).permute(0, 3, 1, 2)
            if kind == "batch_normalization":
                if build:
                    norm = torch.nn.BatchNorm2d if x.dim() == 4 else torch.nn.BatchNorm1d
                    affine = layer.get("scale", True) or layer.get("center", True)
                    setattr(self, layer["name"], norm(x.shape[1], affine=affine,
                                                      eps=layer.get("epsilon", 1e-3)))
                norm = getattr(self, layer["name"])
                return functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight,
                                             norm.bias, eps=norm.eps)
            if kind == "layer_normalization":
                if build:
                    affine = layer.get("scale", True) or layer.get("center", True)
                    setattr(self, layer["name"], torch.nn.LayerNorm(
                        x.shape[1], eps=layer.get("epsilon", 1e-3), elementwise_affine=affine))
                norm = getattr(self, layer["name"])
                if x.dim() == 2:
                    return norm(x)
                return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            if kind == "dropout":
                return functional.dropout(x, layer["rate"], self.training)
            return inputs[0] + inputs[1] if kind == "add" else self.activate(kind, layer, x)

        def forward(self, x, build=False):
            values = {"input": x}
            for layer in model["layers"]:
                inputs = [values[n] for n in layer["inputs"]] if "inputs" in layer else [x]
                x = self.apply_layer(layer, inputs, build)
                if "activation" in layer:
                    x = self.activate(layer["activation"], layer, x)
                values[layer["name"]] = x
            return x

    return Network()


def judge_torch(name, model):
    import safetensors.torch
    import torch
    raw = read_images(name, model)
    images = torch.from_numpy(as_floats(raw, model)).permute(0, 3, 1, 2)
    net = torch_network(model)
    net.load_state_dict(safetensors.torch.load_file(name + "-torch"), strict=True)
    with torch.no_grad():
        logits = net(images).numpy()
    return [logits], f"PyTorch {torch.__version__}"


# --- Keras ---------------------------------------------------------------------------------------

def keras_layer(layer):
    """The layer of the configuration in Keras' words, which are ours but for some."""
    from keras import layers
    said = {k: v for k, v in layer.items() if k not in ("type", "inputs")}
    kind = layer["type"]
    if kind == "gelu":
        return layers.Activation(lambda x: keras_gelu(x, layer.get("approximate", False)),
                                 name=layer["name"])
    if kind in ("relu", "relu6", "tanh", "sigmoid", "softplus", "swish"):
        return layers.Activation(kind, name=layer["name"])
    if kind == "zero_padding2d":
        said["padding"] = [at if isinstance(at, list) else [at, at] for at in said["padding"]]
    names = {"leaky_relu": "LeakyReLU", "elu": "ELU", "conv2d_transpose": "Conv2DTranspose",
             "global_average_pool2d": "GlobalAveragePooling2D", "max_pool2d": "MaxPooling2D",
             "average_pool2d": "AveragePooling2D", "zero_padding2d": "ZeroPadding2D",
             "batch_normalization": "BatchNormalization", "conv2d": "Conv2D",
             "depthwise_conv2d": "DepthwiseConv2D",
             "layer_normalization": "LayerNormalization"}
    return getattr(layers, names.get(kind, kind.capitalize()))(**said)


def keras_gelu(x, approximate):
    import keras
    return keras.activations.gelu(x, approximate=approximate)


def judge_keras(name, model):
    os.environ.setdefault("KERAS_BACKEND", "numpy")
    import keras
    import safetensors.numpy
    at = images = keras.Input(model["input"])
    values, made = {"input": at}, []
    for layer in model["layers"]:
        inputs = [values[n] for n in layer["inputs"]] if "inputs" in layer else [at]
        made.append(keras_layer(layer))
        at = values[layer["name"]] = made[-1](inputs if len(inputs) > 1 else inputs[0])
    network = keras.Model(images, at)
    file = safetensors.numpy.load_file(name + "-keras")
    wanted = {f"{layer.name}/{w.name}": w for layer in made for w in layer.weights}
    assert set(wanted) == set(file), set(wanted) ^ set(file)
    for full, weight in wanted.items():
        weight.assign(file[full])
    numbers = as_floats(read_images(name, model), model)
    return [numpy.asarray(network(numbers, training=False))], f"Keras {keras.__version__}"


# --- onnxruntime ---------------------------------------------------------------------------------

def judge_onnx(name, model):
    import onnx
    import onnxruntime
    raw = read_images(name, model)
    found = []
    for word, images in (("u8", raw), ("f32", as_floats(raw, model, False))):
        onnx.checker.check_model(f"{name}-{word}", full_check=True)
        run = onnxruntime.InferenceSession(f"{name}-{word}", providers=["CPUExecutionProvider"])
        (given,), taken = run.get_inputs(), run.get_outputs()
        assert (given.name, given.shape) == ("images", ["batch", *model["input"]]), given
        assert [(o.name, o.shape) for o in taken] == [
            (o, ["batch", 10]) for o in ("logits", "probabilities")], taken
        logits, odds = run.run(None, {"images": images})
        one = run.run(["logits"], {"images": images[3:4]})[0]  # any number of images
        softmax = numpy.exp(logits - logits.max(axis=1, keepdims=True), dtype=numpy.float64)
        softmax /= softmax.sum(axis=1, keepdims=True)
        assert abs(odds - softmax).max() < TOLERANCE and abs(one - logits[3:4]).max() < TOLERANCE
        facts = {p.key: p.value for p in onnx.load(f"{name}-{word}").metadata_props}
        assert facts["step"] == "6" and len(facts["digest"]) == 64, facts
        found.append(logits)
    return found, f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}"


def main():
    kind, name = sys.argv[1:3]
    with open(name + ".json", encoding="utf-8") as f:
        config = json.load(f)
    model = {**config["model"], **{k: v for k, v in config["data"].items() if k == "normalize"}}
    judges = {"torch": judge_torch, "keras": judge_keras, "onnx": judge_onnx}
    found, who = judges[kind](name, model)
    wanted = numpy.load(name + ".npy")
    worst = max(float(abs(logits - wanted).max()) for logits in found)
    print(f"{name}: {who}, {len(wanted)} images, largest difference {worst:.2g}")
    return 0 if worst < TOLERANCE else 1


sys.exit(main())
