#!/usr/bin/env python3
"""training_judge - PyTorch computes in float64 what training_torch_test.py has had trained, with
its own layers and gradients, and its own optimizers where the formula is theirs; those of Keras and
TensorFlow 1 stand below as they are written there.

   training_judge.py OUT CASE..

A case is a folder: config.json, order.json (the examples of each step), images, labels and
start.safetensors are given; run/ is what lockstep made of it. All is computed again in float32,
with the examples of a grain in several orders, which says what rounding alone does to it. Writes,
as JSON, of each case how far both are from the float64, for each tensor of the last checkpoint; and
what each step and the evaluation reported.
"""
import json
import math
import random
import struct
import sys

import torch
from torch.nn import functional

from tensors import read_safetensors
from torch_network import Network

MODULES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias",
           "moving_mean": "running_mean", "moving_variance": "running_var"}
RECURRENT = {"kernel": "weight_ih_l0", "bias": "bias_ih_l0", "recurrent_kernel": "weight_hh_l0",
             "recurrent_bias": "bias_hh_l0"}
DEFAULTS = {"momentum": 0.9, "rho": 0.9, "beta_1": 0.9, "beta_2": 0.999, "eta": 0.001,
            "weight_decay": 0.0}
EPSILONS = {"rmsprop_tf1": 1e-10, "rmsprop_keras": 1e-7, "adam_tf1": 1e-8, "adam_keras": 1e-7,
            "adam_torch": 1e-8, "adamw_torch": 1e-8, "lamb_keras": 1e-7}
SQUARES = ("v", "v_max", "mean_square")  # compared by their roots, as what they stand under
ROUNDED = 3  # trainings in float32
TORCH_SLOTS = {"momentum_buffer": "momentum", "exp_avg": "m", "exp_avg_sq": "v",
               "max_exp_avg_sq": "v_max"}


def single(number):
    """A configuration's numbers are fp32."""
    return struct.unpack("<f", struct.pack("<f", float(number)))[0]


# --- the network ---------------------------------------------------------------------------------

class Trained(Network):
    """Norms of a grain while it trains; flat layers in the order of an image's bytes."""

    def __init__(self, config):
        self.grain, self.moments = config["grain"], {}
        super().__init__(config["model"])

    def make(self, layer, x):
        super().make(layer, x)
        if layer.get("spectral_normalization"):  # our columns are the first size of PyTorch's
            torch.nn.utils.spectral_norm(getattr(self, layer["name"]), dim=0)

    def flatten_image(self, x):
        return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)

    def batch_norm(self, layer, rows):
        if not self.training or not layer.get("trainable", True):
            return super().batch_norm(layer, rows)
        norm, cells = getattr(self, layer["name"]), [d for d in range(rows.dim()) if d != 1]
        out, squares = [], 0
        for grain in rows.split(self.grain):
            d = grain - grain.mean(cells, keepdim=True)
            out.append(d / torch.sqrt((d * d).mean(cells, keepdim=True) + norm.eps))
            squares = squares + (d * d).sum(cells)
        self.moments[layer["name"]] = (rows.mean(cells).detach(),
                                       (squares / (rows.numel() / rows.shape[1])).detach())
        shape = [1, -1] + [1] * (rows.dim() - 2)
        y = torch.cat(out)
        return y if norm.weight is None else y * norm.weight.view(shape) + norm.bias.view(shape)

    def move_statistics(self):
        for layer in self.model["layers"]:
            if layer["name"] in self.moments:
                norm, keep = getattr(self, layer["name"]), layer.get("momentum", 0.99)
                mean, variance = self.moments[layer["name"]]
                norm.running_mean.mul_(keep).add_(mean, alpha=1 - keep)
                norm.running_var.mul_(keep).add_(variance, alpha=1 - keep)


def tensor_of(net, layer, name):
    table, module = RECURRENT if layer["type"] in ("lstm", "gru") else MODULES, \
        getattr(net, layer["name"])
    if name == "vector_u":
        return module.weight_u
    whole = name == "kernel" and layer.get("spectral_normalization")
    return module.weight_orig if whole else getattr(module, table[name])


def as_torch(layer, name, values, shape):
    """Values of a checkpoint in the shape that PyTorch's module has."""
    kind, x = layer["type"], torch.tensor(values, dtype=torch.float64)
    if name == "kernel" and len(shape) == 4:
        filters, inputs, h, w = shape
        x = x.reshape(h, w, inputs, filters).permute(3, 2, 0, 1)
    elif name in ("kernel", "recurrent_kernel"):
        x = x.reshape(shape[1], shape[0]).T
    if kind == "gru":  # z r h, there r z n
        z, r, n = x.chunk(3)
        x = torch.cat([r, z, n])
    return x.reshape(shape)


# --- the loss ------------------------------------------------------------------------------------

def losses_of(model, z, x, labels, training):
    """Of each example its loss, and what else is reported of it."""
    said = model.get("loss", "sparse_categorical_crossentropy")
    said = {"type": said} if isinstance(said, str) else said
    z, smoothing = z.flatten(1), said.get("label_smoothing", 0.0)
    if said["type"] == "mean":
        return z.mean(1) * said.get("scale", 1), {}
    if said["type"] == "mean_squared_error":
        d = z - x.permute(0, 2, 3, 1).flatten(1)
        return (d * d).mean(1), {"mean_absolute_error": d.abs().mean(1)}
    if said["type"] == "binary_crossentropy":
        alone = z.shape[1] == 1
        y = labels[:, None] if alone else functional.one_hot(labels, z.shape[1])
        y = y.to(z.dtype) * (1 - smoothing) + smoothing / 2
        loss = functional.binary_cross_entropy_with_logits(z, y, reduction="none").mean(1)
        found = (z[:, 0] > 0).long() if alone else z.argmax(1)
        return loss, {"correct": found == labels}
    loss = functional.cross_entropy(z, labels, reduction="none", label_smoothing=smoothing)
    weights = said.get("class_weight", {}) if training else {}
    if isinstance(weights, list):
        weights = dict(enumerate(weights))
    weights = {int(k): w for k, w in weights.items()}
    factors = [weights.get(int(label), 1.0) for label in labels]
    return loss * torch.tensor(factors, dtype=z.dtype), {"correct": z.argmax(1) == labels}


# --- optimizers ----------------------------------------------------------------------------------

def rate_of(how, t):
    """Keras' schedules, in update t."""
    said, rate = how.get("learning_rate_schedule", {}), how["learning_rate"]
    kind, warm, steps = (said.get(k, d) for k, d in (("type", "constant"), ("warmup_steps", 0),
                                                     ("steps", 1)))
    if t < warm:
        start = said.get("warmup_from", 0.0)
        return start + (rate - start) * t / warm
    t, alpha, share = t - warm, said.get("alpha", 0.0), 1.0
    if kind == "piecewise":
        return [rate, *said["values"]][sum(b < t for b in said["boundaries"])]
    if kind == "exponential":
        return rate * said["decay_rate"] ** (t // steps if said.get("staircase") else t / steps)
    while kind == "cosine_restarts" and t >= steps:
        t, steps, share = t - steps, steps * said.get("t_mul", 2), share * said.get("m_mul", 1.0)
    part = min(t / steps, 1.0)
    if kind.startswith("cosine"):
        return rate * ((1 - alpha) * share * (1 + math.cos(math.pi * part)) / 2 + alpha)
    if kind == "polynomial":
        end = said.get("end_learning_rate", 0.0001)
        return end + (rate - end) * (1 - part) ** said.get("power", 1.0)
    return rate


def clip(how, gradients):
    if how.get("clipvalue"):
        gradients = [g.clamp(-how["clipvalue"], how["clipvalue"]) for g in gradients]
    norms = [g.norm() for g in gradients]
    if how.get("clipnorm"):
        most = how["clipnorm"]
        return [g * most / max(n, most) for g, n in zip(gradients, norms)]
    if how.get("global_clipnorm"):
        most, whole = how["global_clipnorm"], math.sqrt(sum(n * n for n in norms))
        return [g * most / max(whole, most) for g in gradients]
    return gradients


class Optimizer:
    """`weights` by name; update(gradients in their order) is one step."""

    def __init__(self, how, weights):
        self.how, self.weights, self.t = how, weights, 0
        usual = {**DEFAULTS, "epsilon": EPSILONS.get(how["type"], 0.0)}
        if how["type"] == "adamw_torch":
            usual["weight_decay"] = 0.01
        self.number = {**{key: single(value) for key, value in usual.items()}, **how}
        self.torch = self.torch_optimizer(list(weights.values()))
        self.slots = {name: {} for name in weights}

    def torch_optimizer(self, tensors):
        """PyTorch's own, where the formula is its."""
        n, kind = self.number, self.how["type"]
        if kind in ("sgd", "momentum"):
            return torch.optim.SGD(tensors, lr=1.0, nesterov=n.get("nesterov", False),
                                   momentum=n["momentum"] if kind == "momentum" else 0.0)
        if kind not in ("adam_torch", "adamw_torch"):
            return None
        made = torch.optim.Adam if kind == "adam_torch" else torch.optim.AdamW
        return made(tensors, lr=1.0, betas=(n["beta_1"], n["beta_2"]), eps=n["epsilon"],
                    weight_decay=n["weight_decay"], amsgrad=n.get("amsgrad", False))

    def update(self, gradients):
        rate, gradients = rate_of(self.how, self.t), clip(self.how, gradients)
        self.t += 1
        if self.torch:
            for group in self.torch.param_groups:
                group["lr"] = rate
            for w, g in zip(self.weights.values(), gradients):
                w.grad = g
            self.torch.step()
            for name, w in self.weights.items():
                self.slots[name].update({TORCH_SLOTS[k]: s for k, s in
                                         self.torch.state[w].items() if k in TORCH_SLOTS})
        else:
            step = getattr(self, self.how["type"].split("_")[0])
            for (name, w), g in zip(self.weights.items(), gradients):
                if not self.how["type"].startswith("lars"):
                    w.mul_(1 - rate * self.number["weight_decay"])
                step(w, g, self.slots[name], rate)
        self.average()

    def average(self):
        keep = self.how.get("weight_average", 0.0)
        for name, w in self.weights.items() if keep else ():
            old = self.slots[name].get("average", w)  # the first is the weight
            self.slots[name]["average"] = keep * old + (1 - keep) * w

    def slot(self, slots, name, like, value=0.0):
        return slots.setdefault(name, torch.full_like(like, value))

    def momentum(self, w, g, slots, rate):
        """Keras' SGD."""
        mu, m = self.number["momentum"], self.slot(slots, "momentum", w)
        m.mul_(mu).sub_(rate * g)
        w.add_(mu * m - rate * g if self.number.get("nesterov") else m)

    def rmsprop(self, w, g, slots, rate):
        rho, mu = self.number["rho"], self.how.get("momentum", 0.0)
        ms = self.slot(slots, "mean_square", w, 1.0 if self.how["type"] == "rmsprop_tf1" else 0.0)
        ms.mul_(rho).add_((1 - rho) * g * g)
        d = ms
        if self.number.get("centered"):
            mg = self.slot(slots, "mean_gradient", w)
            mg.mul_(rho).add_((1 - rho) * g)
            d = (ms - mg * mg).clamp(min=0)
        u = rate * g / torch.sqrt(d + self.number["epsilon"])
        if mu:
            mom = self.slot(slots, "momentum", w)
            u = mom.mul_(mu).add_(u)
        w.sub_(u)

    def moments(self, g, slots):
        b1, b2 = self.number["beta_1"], self.number["beta_2"]
        m, v = self.slot(slots, "m", g), self.slot(slots, "v", g)
        return m.add_((g - m) * (1 - b1)), v.add_((g * g - v) * (1 - b2)), \
            1 - b1 ** self.t, 1 - b2 ** self.t

    def adam(self, w, g, slots, rate):
        """Keras' and TensorFlow 1's: epsilon hat."""
        m, v, c1, c2 = self.moments(g, slots)
        if self.number.get("amsgrad"):
            v_max = self.slot(slots, "v_max", w)
            v = v_max.copy_(torch.maximum(v_max, v))
        w.sub_(m * (rate * math.sqrt(c2) / c1) / (torch.sqrt(v) + self.number["epsilon"]))

    def lamb(self, w, g, slots, rate):
        m, v, c1, c2 = self.moments(g, slots)
        u = (m / c1) / (torch.sqrt(v / c2) + self.number["epsilon"])
        ratio = w.norm() / u.norm() if w.norm() > 0 and u.norm() > 0 else 1.0
        w.sub_(rate * ratio * u)

    def lars(self, w, g, slots, rate):
        mu, v = self.number["momentum"], self.slot(slots, "momentum", w)
        g = g + self.number["weight_decay"] * w
        if w.norm() > 0 and g.norm() > 0:
            rate = rate * self.number["eta"] * w.norm() / g.norm()
        v.mul_(mu).add_(rate * g)
        w.sub_(mu * v + rate * g if self.number.get("nesterov") else v)


# --- a case --------------------------------------------------------------------------------------

def read_examples(config, part):
    """Inputs as the layers take them, and the labels."""
    model, said = config["model"], config["data"]
    with open(said[part]["images"], "rb") as f:
        data = f.read()[20:]
    if model.get("input_type") == "f32":
        x = torch.tensor(struct.unpack(f">{len(data) // 4}f", data), dtype=torch.float64)
    else:
        x = torch.tensor(list(data), dtype=torch.float64)
        x = (x - 127.5) / 127.5 if model.get("input_range") == "signed" else x / 255
    x = x.reshape(-1, *model["input"])
    if "normalize" in said:
        mean, deviation = (torch.tensor(said["normalize"][k], dtype=torch.float64)
                           for k in ("mean", "deviation"))
        x = (x - mean) / deviation
    with open(said[part]["labels"], "rb") as f:
        labels = torch.tensor(list(f.read()[8:]))
    return x.permute(0, 3, 1, 2), labels


class Case:
    """The training of a folder in numbers of `dtype`."""

    def __init__(self, config, start, dtype):
        self.config, self.model, self.dtype = config, config["model"], dtype
        self.net = Trained(config).to(dtype)
        self.layers = {layer["name"]: layer for layer in self.model["layers"]}
        self.tensors, trained = {}, {}
        for name, values in read_safetensors(start)[0].items():
            who, what = name.split("/")
            tensor = tensor_of(self.net, self.layers[who], what)
            with torch.no_grad():
                tensor.copy_(as_torch(self.layers[who], what, values, tensor.shape))
            self.tensors[name] = tensor
            state = what.startswith(("moving", "vector"))
            if not state and self.layers[who].get("trainable", True):
                trained[name] = tensor
        self.leave_out(trained)
        self.start = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        self.vectors = {name: start for name, start in self.start.items() if "vector" in name}
        self.optimizer = Optimizer(config["optimizer"], trained)
        self.squares = {name: self.layers[name.split("/")[0]]["kernel_regularizer"]["l2"]
                        for name in trained if name.endswith("/kernel") and
                        "kernel_regularizer" in self.layers[name.split("/")[0]]}

    def leave_out(self, trained):
        """What PyTorch's modules have and ours have not is nothing, and stays so."""
        own = {id(tensor) for tensor in self.tensors.values()}
        with torch.no_grad():
            for name, tensor in self.net.named_parameters():
                if id(tensor) not in own:
                    one = name.endswith("weight")  # a norm's, without scale
                    tensor.fill_(1.0 if one else 0.0)
                tensor.requires_grad = any(tensor is t for t in trained.values())

    def keep_vectors(self):
        """Only a step that trains a layer moves its vector."""
        for name, start in self.vectors.items():
            if not self.layers[name.split("/")[0]].get("trainable", True):
                self.tensors[name].copy_(start)

    def mean(self, x, labels):
        """The means of the examples' numbers."""
        x = x.to(self.dtype)
        loss, more = losses_of(self.model, self.net(x), x, labels, self.net.training)
        total = loss.mean() + sum(l2 * (self.tensors[name] ** 2).sum()
                                  for name, l2 in self.squares.items())
        return total, {k: float(v.sum()) if k == "correct" else v.mean().item()
                       for k, v in more.items()}

    def train(self, order):
        """What each step reports, and then the evaluation."""
        (x, labels), told = read_examples(self.config, "train"), []
        self.net.train()
        for step in order:
            loss, more = self.mean(x[step], labels[step])
            self.keep_vectors()
            gradients = torch.autograd.grad(loss, list(self.optimizer.weights.values()),
                                            allow_unused=True, materialize_grads=True) \
                if loss.requires_grad else \
                [torch.zeros_like(w) for w in self.optimizer.weights.values()]
            with torch.no_grad():
                self.optimizer.update(gradients)
                self.net.move_statistics()
            told.append({"loss": loss.item(), **more})
        found = self.found()
        self.net.eval()
        for name in self.vectors:  # an evaluation iterates once, too
            getattr(self.net, name.split("/")[0]).train()
        with torch.no_grad():
            for name, slots in self.optimizer.slots.items():
                if "average" in slots:
                    self.tensors[name].copy_(slots["average"])
            loss, more = self.mean(*read_examples(self.config, "test"))
        return told + [{"loss": loss.item(), **more}], found

    def found(self):
        """All tensors of a checkpoint."""
        found = {name: tensor.detach().double().clone() for name, tensor in self.tensors.items()}
        for name, slots in self.optimizer.slots.items():
            found.update({f"{name}/{slot}": tensor.double() for slot, tensor in slots.items()})
        return found


def largest(x):
    return float(x.abs().max())


def shuffled(order, grain, number):
    """The same examples in each grain, so that other roundings come to the same."""
    r = random.Random(number)
    return [[example for first in range(0, len(step), grain)
             for example in r.sample(step[first:first + grain], len(step[first:first + grain]))]
            for step in order]


def judge(folder):
    def read(name):
        with open(f"{folder}/{name}", encoding="utf-8") as f:
            return f.read()
    config = json.loads(read("config.json"), parse_float=single)
    order = json.loads(read("order.json"))
    for part in ("train", "test"):
        for key in ("images", "labels"):
            config["data"][part][key] = f"{folder}/{part}-{key}"
    exact = Case(config, f"{folder}/start.safetensors", torch.float64)
    told, wanted = exact.train(order)
    rounded = [Case(config, f"{folder}/start.safetensors", torch.float32).train(
        shuffled(order, config["grain"], number)) for number in range(ROUNDED)]
    lines = [json.loads(line) for line in read("run/metrics.jsonl").splitlines()]
    said = [line["train" if "train" in line else "test"] for line in lines]
    ours = read_safetensors(f"{folder}/run/checkpoints/step-{config['steps']:010}.safetensors")[0]
    tensors = {name: None for name in {*ours, *wanted}}
    for name in {*ours} & {*wanted}:
        (who, what), slot = name.split("/")[:2], name.split("/")[2:]
        begin = exact.start[f"{who}/{what}"] if slot in ([], ["average"]) else \
            torch.tensor(slot == ["mean_square"] and config["optimizer"]["type"] == "rmsprop_tf1")
        x, begin, exact_x, *others = (
            value.double().sqrt() if slot and slot[0] in SQUARES else value.double()
            for value in (as_torch(exact.layers[who], what, ours[name], wanted[name].shape), begin,
                          wanted[name], *(found[name] for _, found in rounded)))
        tensors[name] = {"error": largest(x - exact_x),
                         "float32": max(largest(other - exact_x) for other in others),
                         "size": largest(exact_x), "moved": largest(exact_x - begin)}
    off = [{key: max(abs(told32[n][key] - value) for told32, _ in rounded)
            for key, value in report.items()} for n, report in enumerate(told)]
    return {"tensors": tensors, "said": said, "told": told, "float32": off}


def main():
    torch.set_num_threads(1)
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump({"judge": f"PyTorch {torch.__version__}",
                   "cases": {folder: judge(folder) for folder in sys.argv[2:]}}, f)


if __name__ == "__main__":
    main()
