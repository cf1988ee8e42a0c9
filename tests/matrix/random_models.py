#!/usr/bin/env python3
"""Random models, batches and grains: each one trained and evaluated in several ways, one result;
once more with a stop on the way, from which other kernels and replicas go on.

   random_models.py LOCKSTEP WORK COUNT [FIRST]

Model number n depends on n alone, so a failure is told by its number; its configuration stays in
WORK. Shapes are small and odd: one pixel, one unit, grains above the batch, steps with one example.
"""
import json
import math
import os
import random
import subprocess
import sys

# Kernels, and what of the layout. The first is the reference; all others must equal it. Where a
# processor or a build lacks the kernels, the way is left out.
WAYS = [
    ("reference", {}),
    ("portable", {"overlay": False}),
    ("avx2", {"fuse": False}),
    ("avx512", {"reduce": "partials", "wave_examples": 1}),
    ("neon", {"fuse": False, "reduce": "operands"}),
    ("auto", {"guards": True}),
    ("auto", {"reduce": "operands", "wave_examples": 3, "guards": True}),
    ("cuda", {"resident": True}),
    ("cuda", {"wave_examples": 1}),
    ("cuda", {"guards": True}),
]
RESULTS = ("digest ", "state_hash ", "test_")
KERNELS = {"conv2d", "conv2d_transpose", "depthwise_conv2d", "dense", "lstm", "gru"}
SPECTRAL = {"conv2d", "conv2d_transpose", "dense"}
TAKES = ["constant", "random_uniform", "random_normal", "truncated_normal", "orthogonal"]
INITIALIZERS = [f"{who}_{how}" for who in ("glorot", "he", "lecun") for how in (
    "uniform", "normal")] + ["zeros", "ones", *TAKES]


ACTIVATIONS = ["relu", "leaky_relu", "tanh", "sigmoid", "relu6", "elu", "softplus", "swish",
               "gelu"]


def activation(r):
    return r.choice(["relu", "relu", "linear", "linear", *ACTIVATIONS])


def window(r, shape, sizes):
    """Size, strides and padding of a window that fits, and the shape behind it."""
    size = [r.randint(1, min(s, n)) for s, n in zip(sizes, shape)]
    strides = [r.randint(1, 3), r.randint(1, 3)]
    padding = r.choice(["same", "valid"])
    if padding == "same":
        behind = [-(-n // s) for n, s in zip(shape, strides)]
    else:
        behind = [(n - k) // s + 1 for n, k, s in zip(shape, size, strides)]
    return size, strides, padding, behind


def wide(r, shape):
    """Those of a transposed convolution; small images grow, others hardly."""
    size = [r.randint(1, 4), r.randint(1, 4)]
    strides = [r.randint(1, 3 if n < 6 else 1) for n in shape]
    padding = r.choice(["same", "valid"])
    behind = [n * s + (max(k - s, 0) if padding == "valid" else 0)
              for n, k, s in zip(shape, size, strides)]
    return size, strides, padding, behind


def maybe_sum(r, layers, shapes):
    """Adds the last tensor, or one of the same shape before it, to the last one."""
    alike = [i for i, shape in enumerate(shapes) if shape == shapes[-1]]
    if not layers or layers[-1]["type"] == "flatten" or r.random() < 0.6:
        return
    names = ["input"] + [f"{layer['type']}_{i}" for i, layer in enumerate(layers)]
    layers.append({"type": "add", "inputs": [names[-1], names[r.choice(alike)]]})
    shapes.append(shapes[-1])


def maybe_beside(r, layers, shapes):
    """The last tensor and one of the same rows and columns before it, or two rows, beside each
    other."""
    def place(shape):
        return shape[:2] if isinstance(shape, tuple) else None

    alike = [i for i, shape in enumerate(shapes) if place(shape) == place(shapes[-1])]
    if not layers or layers[-1]["type"] == "flatten" or r.random() < 0.85:
        return
    other, last = r.choice(alike), shapes[-1]
    names = ["input"] + [f"{layer['type']}_{i}" for i, layer in enumerate(layers)]
    layers.append({"type": "concatenate", "inputs": r.sample([names[-1], names[other]], 2)})
    added = shapes[other]
    shapes.append((*last[:2], last[2] + added[2]) if isinstance(last, tuple) else last + added)


def maybe_placed(r, layers, shapes):
    """Zeros around the last image, or the image in another shape."""
    (h, w, c), kind = shapes[-1], r.random()
    if kind < 0.1:
        sides = [[r.randint(0, 2), r.randint(0, 2)], [r.randint(0, 2), r.randint(0, 2)]]
        layers.append({"type": "zero_padding2d", "padding": sides})
        shapes.append((h + sum(sides[0]), w + sum(sides[1]), c))
    elif kind < 0.2:
        target = r.choice([(w, h, c), (1, h * w, c), (h, c, w), (w, 1, h * c)])
        layers.append({"type": "reshape", "target_shape": list(target)})
        shapes.append(target)


def norm(r):
    return {"type": "batch_normalization", "momentum": r.choice([0.5, 0.99]),
            "epsilon": r.choice([0.001, 0.01]), "scale": r.random() < 0.8,
            "center": r.random() < 0.8, "trainable": r.random() < 0.9}


def layer_norm(r):
    return {"type": "layer_normalization", "epsilon": r.choice([0.001, 0.01]),
            "scale": r.random() < 0.8, "center": r.random() < 0.8, "trainable": r.random() < 0.9}


def grouped(r, layer, channels):
    """A convolution with its channels in groups, or of each channel by itself: its output has the
    shape that it had."""
    kind, filters = r.random(), layer["filters"]
    if kind < 0.25 and filters % channels == 0:
        layer.update(type="depthwise_conv2d", depth_multiplier=filters // channels)
        del layer["filters"]
    elif kind < 0.45:
        layer["groups"] = r.choice([n for n in range(1, channels + 1)
                                    if channels % n == 0 and filters % n == 0])


def layers_of(r, shape, classes, channels, grain, parts):
    layers, shape = [], list(shape)
    shapes = [(*shape, channels)]
    for _ in range(r.randint(0, 3)):
        maybe_sum(r, layers, shapes)
        maybe_beside(r, layers, shapes)
        maybe_placed(r, layers, shapes)
        shape = list(shapes[-1][:2])
        kind = r.choice(["conv2d", "conv2d", "conv2d_transpose", "max_pool2d", "average_pool2d",
                         "activation"])
        layer = {"type": kind}
        if r.random() < 0.15:
            layers.append({"type": "dropout", "rate": r.choice([0.0, 0.1, 0.5])})
            shapes.append(shapes[-1])
        if r.random() < 0.1:
            layers.append(layer_norm(r))
            shapes.append(shapes[-1])
        if grain > 1 and r.random() < 0.2:
            layers.append(norm(r))
            shapes.append(shapes[-1])
        if kind == "activation":
            layers.append({"type": r.choice(ACTIVATIONS)})
            shapes.append(shapes[-1])
            continue
        if kind == "conv2d_transpose":
            size, layer["strides"], layer["padding"], shape = wide(r, shape)
        else:
            size, layer["strides"], layer["padding"], shape = window(r, shape, (6, 4))
        if kind.startswith("conv2d"):
            layer.update(kernel_size=size, filters=r.choice([1, 2, 7, 8, 16, 17, 33]),
                         use_bias=r.random() < 0.8, activation=activation(r))
        else:
            layer.update(pool_size=size)
        if kind == "conv2d" and parts.random() < 0.35:  # spread out
            layer.update(strides=[1, 1], padding="same",
                         dilation_rate=parts.choice([2, [1, 3], [2, 1]]))
            shape = list(shapes[-1][:2])
        shapes.append((*shape, layer.get("filters", shapes[-1][2])))
        if kind == "conv2d":
            grouped(parts, layer, shapes[-2][2])
        layers.append(layer)
    maybe_sum(r, layers, shapes)
    flat = r.choice(["flatten", "flatten", "global_average_pool2d"])
    layers.append({"type": flat})
    shapes.append(math.prod(shapes[-1]) if flat == "flatten" else shapes[-1][2])
    for _ in range(r.randint(0, 3)):
        layers.append(r.choice([
            norm(r) if grain > 1 else {"type": "relu"},
            {"type": r.choice(ACTIVATIONS)},
            {"type": "dropout", "rate": r.choice([0.2, 0.7])},
            {"type": "dense", "units": r.choice([1, 1, 3, 16, 31, 64, 100]),
             "use_bias": r.random() < 0.8, "activation": activation(r)}]))
        shapes.append(layers[-1].get("units", shapes[-1]))
        maybe_sum(r, layers, shapes)
        maybe_beside(r, layers, shapes)
    return layers + [{"type": "dense", "units": classes}]


def schedule(r):
    """Of a run of four steps."""
    steps = {"steps": r.randint(1, 4)}
    boundaries = sorted(r.sample(range(1, 4), r.randint(1, 3)))
    chosen = r.choice([
        {"type": "constant"},
        {"type": "piecewise", "boundaries": boundaries, "values": [0.01] * len(boundaries)},
        {"type": "exponential", **steps, "decay_rate": r.random(), "staircase": r.random() < 0.5},
        {"type": "cosine", **steps, "alpha": r.choice([0.0, 0.1])},
        {"type": "cosine_restarts", **steps, "t_mul": r.randint(1, 3), "m_mul": 0.7},
        {"type": "polynomial", **steps, "power": r.choice([0.5, 1.0, 2.0])}])
    if r.random() < 0.5:
        chosen.update(warmup_steps=r.randint(1, 3), warmup_from=0.001)
    return chosen


def optimizer(r):
    """Any of all, with each of its switches now and then."""
    def some(**keys):
        return {key: value for key, value in keys.items() if r.random() < 0.5}

    kind = r.choice(["sgd", "momentum", "momentum_keras", "rmsprop_tf1", "rmsprop_keras",
                     "adam_tf1", "adam_keras", "adam_torch", "adamw_torch", "lars_tf",
                     "lamb_keras"])
    small = kind.startswith(("adam", "rmsprop", "lamb"))
    chosen = {"type": kind, "learning_rate": 0.002 if small else 0.02,
              **some(clipvalue=0.01, learning_rate_schedule=schedule(r))}
    if not kind.startswith("la") and "clipvalue" not in chosen and r.random() < 0.5:
        chosen[r.choice(["clipnorm", "global_clipnorm"])] = 0.02
    if kind == "lars_tf":
        chosen["eta"] = 0.1
    if kind.startswith(("momentum", "lars")):
        chosen.update(some(nesterov=True, momentum=0.5))
    if kind.startswith("rmsprop"):
        chosen.update(some(centered=True, momentum=0.9, rho=0.5))
    if kind.startswith(("adam", "lamb")):
        chosen.update(some(beta_1=0.5, beta_2=0.9, epsilon=1e-4))
    if kind in ("adam_keras", "adam_torch", "adamw_torch"):
        chosen.update(some(amsgrad=True))
    if kind not in ("sgd", "momentum", "rmsprop_tf1", "adam_tf1"):
        chosen.update(some(weight_decay=0.01))
    return chosen


def other_loss(config):
    """Some models have a loss without labels: of their own input, or of the output alone."""
    r, model = random.Random(-1 - config["seed"]), config["model"]
    kind = r.choice(["labels", "labels", "labels", "mean_squared_error", "mean"])
    if kind == "labels":
        return config
    del model["classes"]
    model["loss"] = kind if r.random() < 0.5 else {"type": kind}
    if kind == "mean":
        model["layers"].append({"type": r.choice(["tanh", "sigmoid"])})
        model["loss"] = {"type": kind, "scale": r.choice([1, -1, 0.3, 0])}
    else:
        model["layers"][-1]["units"] = math.prod(model["input"])
    return config


def precise(config):
    """Some are in mixed precision, and of those some overflow at first or have a layer in fp32."""
    r = random.Random(-2 - config["seed"])
    config["precision"] = r.choice(["float32", "float32", "mixed_float16", "mixed_bfloat16"])
    layers = config["model"]["layers"]
    if config["precision"] == "float32":
        return config
    for layer in layers:
        if r.random() < 0.15:
            layer["dtype"] = "float32"
    if config["precision"] == "mixed_float16" and r.random() < 0.7:
        config["loss_scale"] = {"initial": 2 ** r.choice([4, 15, 20, 24]),
                                "growth_steps": r.randint(1, 3),
                                "growth_factor": r.choice([2, 16]),
                                "on_overflow": r.choice(["skip", "replay"])}
    return config


def augmented(number, shape, channels):
    """What LOAD does to images, of one model in three; of its own numbers: the others stay."""
    r = random.Random(f"augment {number}")
    out = {"augment": {}}
    if r.random() < 0.66:
        return {}
    if r.random() < 0.6:
        out["augment"].update(shift=[r.randrange(n) for n in shape],
                              padding=r.choice(["black", "edge"]))
    if r.random() < 0.5:
        out["augment"]["flip"] = "horizontal"
    if r.random() < 0.4:
        out["augment"]["cutout"] = r.choice([1, 4, [2, 3], [0, 1]])
    for key in ("brightness", "contrast"):
        if r.random() < 0.4:
            out["augment"][key] = r.choice([0.1, 0.5])
    if r.random() < 0.5:
        out["normalize"] = {"mean": [round(r.random(), 3) for _ in range(channels)],
                            "deviation": [0.1 + round(r.random(), 3) for _ in range(channels)]}
    return out


def sequences(config):
    """Some see their images as sequences: dense layers over the steps, and states that go on."""
    r, (h, w, c) = random.Random(-3 - config["seed"]), config["model"]["input"]
    if r.random() < 0.75:
        return config
    steps, values = r.choice([(h, w * c), (w, h * c), (1, h * w * c)])
    layers, every = [{"type": "reshape", "target_shape": [steps, values]}], True
    for _ in range(r.randint(1, 3)):
        kind = r.choice(["lstm", "gru", "dense", "dropout"]) if every else "dense"
        if kind == "dropout":
            layers.append({"type": kind, "rate": 0.3})
            continue
        if every and r.random() < 0.4:
            layers.append({"type": "time_reduction", "factor": r.randint(1, steps)})
            steps = -(-steps // layers[-1]["factor"])
        layers.append({"type": kind, "units": r.choice([1, 3, 8, 17, 33]),
                       "use_bias": r.random() < 0.8})
        if kind == "dense":
            layers[-1]["activation"] = activation(r)
            continue
        every = r.random() < 0.6
        layers[-1]["return_sequences"] = every
        if kind == "lstm":
            layers[-1]["unit_forget_bias"] = r.random() < 0.7
    if not {layer["type"] for layer in layers} & {"lstm", "gru"}:
        layers.append({"type": r.choice(["lstm", "gru"]), "units": 5, "return_sequences": True,
                       "kernel_initializer": "orthogonal"})
    config["model"]["layers"] = layers + [{"type": "flatten"},
                                          config["model"]["layers"][-1]]
    return config


def initialized(config):
    """Some kernels begin with other values; some labels are smoothed; some runs stop early."""
    r = random.Random(f"initial {config['seed']}")
    for layer in config["model"]["layers"]:
        if layer["type"] in KERNELS and r.random() < 0.25:
            layer["kernel_initializer"] = r.choice(INITIALIZERS)
            takes = layer["kernel_initializer"] in TAKES and layer["type"] not in ("lstm", "gru")
            if takes and r.random() < 0.5:
                layer["kernel_initializer_value"] = r.choice([0.01, 0.25])
    if "loss" not in config["model"] and r.random() < 0.3:
        config["model"]["loss"] = {"type": r.choice(["sparse_categorical_crossentropy",
                                                     "binary_crossentropy"]),
                                   "label_smoothing": r.choice([0, 0.1, 0.7])}
        if config["model"]["classes"] == 2 and "binary" in config["model"]["loss"]["type"]:
            config["model"]["layers"][-1]["units"] = r.randint(1, 2)
    if r.random() < 0.1:
        config["evaluate_every_steps"] = 1
        config["early_stopping"] = {"metric": "loss", "patience": r.randint(1, 2),
                                    "min_delta": r.choice([0.0, 0.01])}
    return config


def averaged(config):
    """Some keep averages of their weights, which evaluations take."""
    r = random.Random(f"average {config['seed']}")
    if r.random() < 0.25:
        config["optimizer"]["weight_average"] = r.choice([0.5, 0.99])
    return config


def regularized(config):
    """Some kernels' squares are part of the loss."""
    r = random.Random(f"regularizer {config['seed']}")
    some = r.random() < 0.25
    for layer in config["model"]["layers"]:
        if some and layer["type"] in KERNELS and r.random() < 0.7:
            layer["kernel_regularizer"] = {"l2": r.choice([1e-4, 0.01, 0.3])}
    return config


def normalized(config):
    """Some kernels are divided by their spectral norms, where no norm is wanted nor an average
    kept."""
    r, o = random.Random(f"spectral {config['seed']}"), config["optimizer"]
    wants = {"clipnorm", "global_clipnorm", "weight_average"} & set(o) or o["type"] in (
        "lars_tf", "lamb_keras")
    some = r.random() < 0.25 and not wants
    for layer in config["model"]["layers"]:
        if some and layer["type"] in SPECTRAL and r.random() < 0.7:
            layer["spectral_normalization"] = True
    return config


def weighted(config):
    """Some classes count more than others, or nothing."""
    r, model = random.Random(f"weights {config['seed']}"), config["model"]
    loss = model.get("loss", {"type": "sparse_categorical_crossentropy"})
    if r.random() < 0.25 and "sparse" in (loss if isinstance(loss, str) else loss["type"]):
        numbers = [r.choice([0, 0.3, 1, 2.5]) for _ in range(model["classes"])]
        some = {str(k): w for k, w in enumerate(numbers) if r.random() < 0.5}
        model["loss"] = dict({"type": loss} if isinstance(loss, str) else loss,
                             class_weight=r.choice([numbers, some]))
    return config


def cropped(config):
    """Some take parts of larger images."""
    r, data = random.Random(f"crop {config['seed']}"), config["data"]
    if r.random() < 0.15:
        sizes = [n + r.randrange(4) for n in config["model"]["input"][:2]]
        data.setdefault("augment", {})["crop_from"] = sizes
        for part in ("train", "test"):
            data[part]["made_up"].update(height=sizes[0], width=sizes[1])
    return config


def against(config):
    """Some judge, in place of labels, images beside those that another network makes of noise."""
    r, m = random.Random(f"against {config['seed']}"), config["model"]
    if "classes" not in m or r.random() > 0.2:
        return config
    scorer, (h, w, c) = m.pop("layers"), m["input"]
    scorer[-1]["units"] = r.choice([1, 1, 3])
    maker = [{"type": "dense", "name": "seed", "units": h * w * 2, "activation": activation(r)},
             {"type": "reshape", "target_shape": [h, w, 2]},
             {"type": "conv2d_transpose", "filters": c, "kernel_size": r.randint(1, 3),
              "padding": "same", "activation": r.choice(["tanh", "sigmoid", "linear"])}]
    for layer in maker:
        if config["precision"] != "float32" and r.random() < 0.3:
            layer["dtype"] = "float32"
    kind, z = r.choice(["wasserstein", "minimax", "modified", "least_squares", "hinge"]), {
        "name": "z", "noise": {"type": r.choice(["normal", "uniform"]), "shape": [5]}}
    made = [z, {"name": "made", "network": "maker", "inputs": ["z"]},
            {"name": "fake", "network": "scorer", "inputs": ["made"]}]
    real = [{"name": "real", "network": "scorer", "inputs": ["images"]}]
    o = config.pop("optimizer")
    config["model"] = {
        "input": m["input"],
        "networks": [{"name": "maker", "inputs": [[5]], "layers": maker},
                     {"name": "scorer", "layers": scorer}],
        "objectives": [
            {"name": "make", "values": made, "trains": ["maker"], "optimizer": o,
             "loss": {"type": "gan_generator", "kind": kind}},
            {"name": "judge", "values": r.choice([real + made, made + real]),
             "trains": ["scorer"], "optimizer": o,
             "loss": {"type": "gan_discriminator", "kind": kind, "inputs": ["real", "fake"]}}],
        "schedule": [["make", r.randint(1, 2)], ["judge", r.randint(1, 2)]]}
    return config


def model(number):
    made = other_loss(sequences(classifier(number)))
    return against(cropped(precise(weighted(normalized(regularized(averaged(initialized(made))))))))


def classifier(number):
    r = random.Random(number)
    shape, classes = [r.randint(1, 13), r.randint(1, 11)], r.choice([2, 3, 10, 256])
    data = {"count": r.choice([1, 3, 20, 65]), "height": shape[0], "width": shape[1],
            "channels": r.choice([1, 2, 3, 5]), "classes": classes}
    batch, grain = r.choice([1, 2, 5, 16, 24, 64]), r.choice([1, 2, 4, 16, 64])
    return {"name": f"model-{number}", "seed": number, "steps": 4, "global_batch": batch,
            "grain": grain,
            "drop_remainder": batch <= data["count"] and r.random() < 0.3,
            "model": {"input": [*shape, data["channels"]], "classes": classes,
                      "layers": layers_of(r, shape, classes, data["channels"], grain,
                                          random.Random(f"groups {number}"))},
            "optimizer": optimizer(r),
            "data": {"train": {"made_up": data},
                     "test": {"made_up": dict(data, first=data["count"])},
                     **augmented(number, shape, data["channels"])}}


def result(program, path, kernels, layout, replicas, *options):
    """The lines that must be equal; how it ended where it failed; None without such kernels, or
    where the data of this model cannot lie on a GPU."""
    run_dir = os.path.join(os.path.dirname(path), "run")
    command = [program, "train", path, "--run-dir", run_dir, "--kernels", kernels,
               "--replicas", str(replicas), *(options or ["--fresh"])]
    for key, value in layout.items():
        command += ["--set", f"layout.{key}={json.dumps(value)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode in (64, 69) and kernels != "reference":
        return None
    if done.returncode == 78 and "layout.resident: found true" in done.stderr:
        return None
    if done.returncode != 0:
        return f"exit code {done.returncode}: {done.stderr}"
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith(RESULTS))


def stopped_result(program, path, config, grains):
    """The same after a stop; the data are read and the examples ordered anew."""
    r = random.Random(config["seed"])
    stop = r.randint(1, config["steps"] - 1)
    some = r.randint(0, 2)
    every = [] if "early_stopping" in config else ["--set", f"evaluate_every_steps={some}"]
    begun = result(program, path, "portable", {}, min(grains, r.randint(1, 3)), "--fresh",
                   "--set", f"steps={stop}", *every)
    if begun is None or "digest " not in begun:
        return begun
    return result(program, path, "auto", {"wave_examples": r.randint(1, 9)},
                  min(grains, r.randint(1, 3)), "--resume")


def check(program, path, config):
    """How many ways were tried, and whether all had one result."""
    with open(path, "w", encoding="ascii") as file:
        json.dump(config, file)
    grains = -(-config["global_batch"] // config["grain"])
    wanted, runs, good = None, 0, True
    for n, (kernels, layout) in enumerate(WAYS):
        replicas = min(grains, 1 + n % 3)
        found = result(program, path, kernels, layout, replicas)
        if found is None:
            continue
        runs += 1
        wanted = wanted or found
        if found != wanted or "digest " not in found:
            good = False
            print(f"{path}: {kernels} {layout}, {replicas} replicas:\n{found}\n"
                  f"wanted, as the first:\n{wanted}", flush=True)
    found = stopped_result(program, path, config, grains)
    if found != wanted:
        good = False
        print(f"{path}: stopped and gone on with:\n{found}\nwanted, as the first:\n{wanted}")
    return runs + 2, good


def main():
    program, work, count = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    os.makedirs(work, exist_ok=True)
    failed = runs = 0
    for number in range(first, first + count):
        config = model(number)
        path = os.path.join(work, config["name"] + ".json")
        ways, good = check(program, path, config)
        runs += ways
        failed += not good
        if good:
            os.remove(path)
    print(f"{count} models, {runs} runs, {failed} models with more than one result")
    return 1 if failed or runs < 5 * count else 0


if __name__ == "__main__":
    sys.exit(main())
