#!/usr/bin/env python3
"""gan_judge - PyTorch in float64 computes what gan_torch_test.py has had trained: convolutions,
batch norms, losses and gradients are its own, the optimizers TensorFlow 1's formulas.

   gan_judge.py FOLDER..

Of each folder: reads c.json, start.safetensors and draws.json, which has the noise of each step and
the images of those that read some, and of an evaluation; and ../images. Writes judged.json: loss
and mean score of each step; parameters, slots and states behind the last one; and both losses and
mean scores of the evaluation of all images then.
"""
import json
import math
import os
import struct
import sys

import torch
from torch.nn import functional

from tensors import read_safetensors, shapes_of


def near(number):
    """A number of a configuration is rounded once to fp32."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def pair(value):
    return value if isinstance(value, list) else [value, value]


# --- layers, of tensors (example, row, column, channel) or (example, value) -----------------------

def turned(x):
    return x.permute(0, 3, 1, 2)


def turned_back(x):
    return x.permute(0, 2, 3, 1)


def kernel_of(w):
    """(row, column, two kinds of channels) with the last size first, as of both convolutions."""
    return w.permute(3, 2, 0, 1).contiguous()


def conv2d(x, w, layer):
    """TensorFlow's padding: the odd row or column lies behind the image."""
    strides, edges = pair(layer.get("strides", 1)), []
    for size, kernel, stride in zip(x.shape[1:3], w.shape, strides):
        more = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        edges = [more // 2, more - more // 2] + edges if layer["padding"] == "same" else [0] * 4
    x = functional.pad(turned(x), edges)
    return turned_back(functional.conv2d(x, kernel_of(w), stride=strides))


def conv2d_transpose(x, w, layer):
    """The gradient of a convolution of the same padding."""
    strides = pair(layer.get("strides", 1))
    y = turned_back(functional.conv_transpose2d(turned(x), kernel_of(w), stride=strides))
    if layer["padding"] == "same":
        (top, rows), (left, columns) = ((max(kernel - stride, 0) // 2, size * stride)
                                        for size, kernel, stride in zip(x.shape[1:3], w.shape,
                                                                        strides))
        y = y[:, top:top + rows, left:left + columns]
    return y


def activated(x, kind, slope):
    return functional.leaky_relu(x, near(slope)) if kind == "leaky_relu" else \
        {"tanh": torch.tanh, "relu": torch.relu}[kind](x)


class Network:
    """Layers, and their tensors by the names of a checkpoint."""

    def __init__(self, name, layers, grain, tensors):
        self.name, self.layers, self.grain, self.evaluates = name, layers, grain, False
        self.state = {key: value for key, value in tensors.items()
                      if key.startswith(name + ".") and ("/moving_" in key or "/vector_" in key)}
        self.own = {key: value.requires_grad_() for key, value in tensors.items()
                    if key.startswith(name + ".") and key not in self.state}
        self.begin()

    def begin(self):
        """A step or evaluation: each vector iterates once; and what layers take of each kernel."""
        self.seen, self.vectors, self.kernels = {}, {}, {}
        for layer in self.layers:
            key = f"{self.name}.{layer['name']}/"
            w = self.own.get(key + "kernel")
            if layer.get("spectral_normalization"):
                rows = w.reshape(-1, w.shape[-1])
                with torch.no_grad():
                    v = functional.normalize(rows @ self.state[key + "vector_u"], dim=0)
                    self.vectors[key + "vector_u"] = functional.normalize(v @ rows, dim=0)
                w = w / (v @ rows @ self.vectors[key + "vector_u"])
            self.kernels[key] = w

    def __call__(self, x):
        for layer in self.layers:
            x = self.layer(x, layer, f"{self.name}.{layer['name']}/")
        return x

    def layer(self, x, layer, key):
        kind, w = layer["type"], self.kernels[key]
        if kind in ("reshape", "flatten"):
            return x.reshape(len(x), *layer.get("target_shape", [-1]))
        if kind == "batch_normalization":
            return self.normalized(x, layer, key)
        if w is None:
            return activated(x, kind, layer.get("negative_slope"))
        x = x @ w if kind == "dense" else \
            {"conv2d": conv2d, "conv2d_transpose": conv2d_transpose}[kind](x, w, layer)
        x = x + self.own[key + "bias"] if key + "bias" in self.own else x
        return activated(x, layer["activation"], 0.2) if "activation" in layer else x

    def normalized(self, x, layer, key):
        """Each grain by itself; what moves is of all of them, and of all uses in the step."""
        if self.evaluates:
            return functional.batch_norm(
                x.reshape(-1, x.shape[-1]), *(self.state[f"{key}moving_{word}"]
                                              for word in ("mean", "variance")),
                self.own[key + "gamma"], self.own[key + "beta"],
                eps=near(layer["epsilon"])).reshape(x.shape)
        y = []
        for part in x.split(self.grain):
            by_value = part.reshape(-1, part.shape[-1])
            y.append(functional.batch_norm(
                by_value, None, None, self.own[key + "gamma"], self.own[key + "beta"],
                training=True, eps=near(layer["epsilon"])).reshape(part.shape))
            with torch.no_grad():
                self.seen.setdefault(key, []).append(
                    (by_value.sum(0), ((by_value - by_value.mean(0)) ** 2).sum(0), len(by_value)))
        return torch.cat(y)

    def regularizer(self):
        return sum(near(layer["kernel_regularizer"]["l2"]) *
                   (self.own[f"{self.name}.{layer['name']}/kernel"] ** 2).sum()
                   for layer in self.layers if "kernel_regularizer" in layer)

    def end(self):
        """Of a step that trains it: the states move."""
        self.state.update(self.vectors)
        for layer in self.layers:
            key = f"{self.name}.{layer['name']}/"
            if key in self.seen:
                sums, squares, counts = zip(*self.seen[key])
                keep = near(layer["momentum"])
                for word, total in (("mean", sums), ("variance", squares)):
                    name = f"{key}moving_{word}"
                    self.state[name] = keep * self.state.get(name, 0) + \
                        (1 - keep) * sum(total) / sum(counts)


# --- losses and optimizers ------------------------------------------------------------------------

def cross_entropy(scores, label):
    return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))


def generator_loss(kind, fake):
    return {"wasserstein": lambda: -fake.mean(),
            "minimax": lambda: -cross_entropy(fake, 0.0),
            "modified": lambda: cross_entropy(fake, 1.0),
            "least_squares": lambda: ((fake - 1) ** 2).mean() / 2,
            "hinge": lambda: -fake.mean()}[kind]()


def discriminator_loss(said, real, fake):
    smooth = said.get("label_smoothing", 0.25)
    return {"wasserstein": lambda: fake.mean() - real.mean(),
            "minimax": lambda: cross_entropy(real, 1.0) + cross_entropy(fake, 0.0),
            "modified": lambda: cross_entropy(real, 1 - smooth / 2) + cross_entropy(fake, 0.0),
            "least_squares": lambda: (((real - 1) ** 2).mean() + (fake ** 2).mean()) / 2,
            "hinge": lambda: torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()
            }[said["kind"]]()


class Optimizer:
    def __init__(self, said, clip, own):
        self.said, self.clip, self.updates = said, near(clip), 0
        words = {"sgd": [], "adam_tf1": ["m", "v"], "rmsprop_tf1": ["mean_square"]}[said["type"]]
        words = words + ["mean_gradient"] * bool(said.get("centered"))
        words = words + ["momentum"] * bool(said.get("momentum"))
        self.slots = {key: {word: torch.full_like(w, float(word == "mean_square"))
                            for word in words} for key, w in own.items()}

    def key(self, word):
        return near(self.said[word])

    def rmsprop(self, slots, g):
        share = 1 - self.key("rho")
        slots["mean_square"] += share * (g * g - slots["mean_square"])
        size = slots["mean_square"]
        if "mean_gradient" in slots:
            slots["mean_gradient"] += share * (g - slots["mean_gradient"])
            size = size - slots["mean_gradient"] ** 2
        change = self.key("learning_rate") * g / torch.sqrt(size + self.key("epsilon"))
        if "momentum" in slots:
            change = slots["momentum"].mul_(self.key("momentum")).add_(change)
        return change

    def adam(self, slots, g):
        one, two = self.key("beta_1"), self.key("beta_2")
        rate = self.key("learning_rate") * math.sqrt(1 - two ** self.updates) / \
            (1 - one ** self.updates)
        slots["m"] += (1 - one) * (g - slots["m"])
        slots["v"] += (1 - two) * (g * g - slots["v"])
        return rate * slots["m"] / (torch.sqrt(slots["v"]) + self.key("epsilon"))

    def update(self, own, gradients):
        self.updates += 1
        kind = self.said["type"]
        with torch.no_grad():
            for (key, w), g in zip(own.items(), gradients):
                slots = self.slots[key]
                w -= self.key("learning_rate") * g if kind == "sgd" else \
                    self.adam(slots, g) if kind == "adam_tf1" else self.rmsprop(slots, g)
                if self.clip > 0:
                    w.clamp_(-self.clip, self.clip)


# --- a case ---------------------------------------------------------------------------------------

def read_case(folder):
    def read(name):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            return json.load(f)
    path = os.path.join(folder, "start.safetensors")
    shapes = shapes_of(path)
    return read("c.json"), read("draws.json"), {
        name: torch.tensor(values, dtype=torch.float64).reshape(shapes[name])
        for name, values in read_safetensors(path)[0].items()}


def read_images(folder, shape):
    with open(os.path.join(folder, "../images"), "rb") as f:
        data = f.read()[4 + 4 * 3:]
    return (torch.tensor(list(data), dtype=torch.float64).reshape(-1, *shape) - 127.5) / 127.5


def noise_of(draw, gan):
    z = torch.tensor(draw["noise"], dtype=torch.float64)
    return z.reshape(len(z), *gan["noise"]["shape"])


def loss_of(draw, gan, made, scores, images):
    """The network that it is of, its loss and mean score."""
    z = noise_of(draw, gan)
    made.begin()
    scores.begin()
    if "images" in draw:
        net, real, fake = scores, scores(images[draw["images"]]), scores(made(z).detach())
        loss, score = discriminator_loss(gan["loss"], real, fake), real
    else:
        net, score = made, scores(made(z))
        loss = generator_loss(gan["loss"]["kind"], score)
    return net, loss + net.regularizer(), score.mean().item()


def judge(folder):
    config, draws, tensors = read_case(folder)
    images, gan = read_images(folder, config["model"]["input"]), config["model"]["gan"]
    made, scores = (Network(name, gan[name], config["grain"], tensors)
                    for name in ("generator", "discriminator"))
    optimizers = {made.name: Optimizer(gan["generator_optimizer"], 0, made.own),
                  scores.name: Optimizer(gan["discriminator_optimizer"], gan.get("weight_clip", 0),
                                         scores.own)}
    said = []
    for draw in draws["steps"]:
        net, loss, score = loss_of(draw, gan, made, scores, images)
        optimizers[net.name].update(net.own, torch.autograd.grad(loss, list(net.own.values())))
        net.end()
        said.append([loss.item(), score])
    made.evaluates = scores.evaluates = True
    with torch.no_grad():
        evaluation = [number for draw in draws["evaluation"]
                      for _, loss, score in [loss_of(draw, gan, made, scores, images)]
                      for number in (loss.item(), score)]
    behind = {**made.own, **made.state, **scores.own, **scores.state}
    for optimizer in optimizers.values():
        behind.update({f"{key}/{word}": slot for key, slots in optimizer.slots.items()
                       for word, slot in slots.items()})
    with open(os.path.join(folder, "judged.json"), "w", encoding="utf-8") as f:
        json.dump({"steps": said, "evaluation": evaluation,
                   "tensors": {key: value.detach().reshape(-1).tolist()
                               for key, value in behind.items()}}, f)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        judge(each)
