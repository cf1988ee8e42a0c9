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
import struct
import sys

import numpy

TOLERANCE = 1e-5


def read_images(name, model):
    with open(name + "-images", "rb") as f:
        images = numpy.frombuffer(f.read()[20:], numpy.uint8).reshape(-1, *model["input"])
    if "labels" not in model:
        return images
    # What lies behind an example's own frames is zeros to the layers.
    frames = read_labels(name)[0]
    return numpy.where((numpy.arange(images.shape[1]) < frames[:, None])[:, :, None, None], images,
                       numpy.uint8(0))


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


def read_labels(name):
    """Of a transducer's examples: how many frames, and their labels with zeros behind."""
    with open(name + "-labels", "rb") as f:
        count, size = struct.unpack(">2I", f.read(12)[4:])
        rows = numpy.frombuffer(f.read(), numpy.uint8).reshape(count, size).astype(numpy.int64)
    return rows[:, 0] * 256 + rows[:, 1], rows[:, 2:]


def transducer_loss(z, labels):
    """Less the logarithm of the sum over all ways to say the labels; log-probabilities (frames,
    said, symbols)."""
    ways = numpy.full((len(z) + 1, len(labels) + 2), -numpy.inf)
    for t in range(len(z)):
        for u in range(len(labels) + 1):
            before = [ways[t, u + 1] + z[t - 1, u, 0] if t else -numpy.inf,
                      ways[t + 1, u] + z[t, u - 1, labels[u - 1]] if u else -numpy.inf]
            ways[t + 1, u + 1] = numpy.logaddexp(*before) if t or u else 0.0
    return -(ways[len(z), len(labels) + 1] + z[-1, len(labels), 0])


def transducer(name, model, run):
    """Of each example its loss, and the labels said greedily; run(labels) gives logits (examples,
    frames, labels + 1, symbols)."""
    own, labels = read_labels(name)
    logits = numpy.asarray(run(labels), numpy.float64)
    frames = -(-own * logits.shape[1] // model["input"][0])
    z = logits - numpy.logaddexp.reduce(logits, axis=-1, keepdims=True)
    found = numpy.zeros((len(own), 1 + labels.shape[1]))
    for example, row in enumerate(labels):
        found[example, 0] = transducer_loss(z[example, :frames[example]], row[row > 0])
    said, at = numpy.zeros_like(labels), numpy.zeros((len(own), 3), int)  # frame, said, here
    for _ in range(labels.shape[1] + 1):
        logits = numpy.asarray(run(said))[..., :model["classes"]]
        for example, state in enumerate(at):
            while state[0] < frames[example] and state[1] < labels.shape[1]:
                best = int(logits[example, state[0], state[1]].argmax())
                if best:
                    said[example, state[1]] = best
                    state[1:] += 1
                if not best or state[2] == 10:
                    state[:] = state[0] + 1, state[1], 0
                if best:
                    break
    found[:, 1:] = said
    return found


# --- PyTorch -------------------------------------------------------------------------------------

def judge_torch(name, model):
    import safetensors.torch
    import torch

    from torch_network import Network
    raw = read_images(name, model)
    images = torch.from_numpy(as_floats(raw, model)).permute(0, 3, 1, 2)
    net = Network(model)
    net.load_state_dict(safetensors.torch.load_file(name + "-torch"), strict=True)
    with torch.no_grad():
        if "labels" in model:
            found = transducer(name, model, lambda said: net(
                images, labels=torch.from_numpy(said)).numpy())
        else:
            found = net(images).numpy()
    return [found], f"PyTorch {torch.__version__}"


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
    names = {"leaky_relu": "LeakyReLU", "elu": "ELU", "lstm": "LSTM", "gru": "GRU",
             "conv2d_transpose": "Conv2DTranspose",
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
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras
    import safetensors.numpy
    at = images = keras.Input(model["input"])
    labels = keras.Input([None], dtype="int32")
    values, made = {"input": at}, []
    for layer in model["layers"]:
        inputs = [values[n] for n in layer["inputs"]] if "inputs" in layer else [at]
        kind, x = layer["type"], inputs[0]
        if kind in ("lstm", "gru", "dense") and len(x.shape) == 4:  # (batch, time, features)
            x = keras.layers.Reshape((x.shape[1], x.shape[3]))(x)
        if kind in ("conv2d", "max_pool2d") and len(x.shape) == 3:
            x = keras.layers.Reshape((x.shape[1], 1, x.shape[2]))(x)
        if kind == "label_embedding":
            made.append(keras.layers.Embedding(model["classes"], layer["units"],
                                               name=layer["name"]))
            at = made[-1](keras.ops.pad(labels, [[0, 0], [1, 0]]))
        elif kind == "time_reduction":
            rows = keras.layers.Reshape((x.shape[1], x.shape[-1]))(x)
            rows = keras.layers.ZeroPadding1D((0, -x.shape[1] % layer["factor"]))(rows)
            at = keras.layers.Reshape((-1, layer["factor"] * x.shape[-1]))(rows)
        elif kind == "joint":
            made.append(keras.layers.Dense(layer["units"], name=layer["name"]))
            frames, said = (keras.ops.expand_dims(v, axis)
                            for v, axis in zip(inputs, (2, 1)))
            at = made[-1](keras.ops.tanh(keras.ops.add(frames, said)))
        else:
            made.append(keras_layer(layer))
            at = made[-1]([x, *inputs[1:]] if len(inputs) > 1 else x)
        values[layer["name"]] = at
    network = keras.Model([images, labels] if "labels" in model else images, at)
    file = safetensors.numpy.load_file(name + "-keras")
    for who in (layer["name"] for layer in model["layers"] if layer["type"] == "gru"):
        if who + "/bias" in file:  # Keras has both rows in one
            file[who + "/bias"] = numpy.stack([file[who + "/bias"],
                                               file.pop(who + "/recurrent_bias")])
    wanted = {f"{layer.name}/{w.name}": w for layer in made for w in layer.weights}
    assert set(wanted) == set(file), set(wanted) ^ set(file)
    for layer in made:  # refuses shapes that are not its own
        layer.set_weights([file[f"{layer.name}/{w.name}"] for w in layer.weights])
    numbers = as_floats(read_images(name, model), model)
    who = f"Keras {keras.__version__}"
    if "labels" in model:
        return [transducer(name, model, lambda said: network([numbers, said],
                                                             training=False))], who
    return [numpy.asarray(network(numbers, training=False))], who


# --- onnxruntime ---------------------------------------------------------------------------------

def session(path):
    import onnx
    import onnxruntime
    onnx.checker.check_model(path, full_check=True)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def judge_transducer(name, model):
    """The whole, and its three parts as whoever decodes needs them, taken apart by onnx itself."""
    import onnx
    raw, labels = read_images(name, model), read_labels(name)[1]
    found = []
    for word, images in (("u8", raw), ("f32", as_floats(raw, model, False))):
        path = f"{name}-{word}"
        run = session(path)
        shapes = {v.name: v.shape for v in (*run.get_inputs(), *run.get_outputs())}
        said = "labels_and_blank"
        assert shapes == {
            "images": ["batch", *model["input"]], "labels": ["batch", "labels"],
            "encoder": ["batch", 6, 8], "prediction": ["batch", said, 8],
            "logits": ["batch", 6, said, 9], "log_probabilities": ["batch", 6, said, 9]}, shapes
        logits, odds = run.run(["logits", "log_probabilities"],
                               {"images": images, "labels": labels})
        odds_wanted = logits - numpy.logaddexp.reduce(logits.astype(numpy.float64), axis=-1,
                                                      keepdims=True)
        assert abs(odds - odds_wanted).max() < TOLERANCE
        parts = {}
        for part, takes in (("encoder", ["images"]), ("prediction", ["labels"]),
                            ("logits", ["encoder", "prediction"])):
            onnx.utils.extract_model(path, f"{path}-{part}.onnx", takes, [part])
            parts[part] = session(f"{path}-{part}.onnx")
        encoder = parts["encoder"].run(None, {"images": images})[0]
        for count in range(labels.shape[1] + 1):  # any number of labels, and none
            prediction = parts["prediction"].run(None, {"labels": labels[:, :count]})[0]
            some = parts["logits"].run(None, {"encoder": encoder, "prediction": prediction})[0]
            assert some.shape[2] == count + 1, some.shape
            assert abs(some - logits[:, :, :count + 1]).max() < TOLERANCE, count
        found.append(transducer(name, model, lambda said, run=run, images=images: run.run(
            ["logits"], {"images": images, "labels": said})[0]))
    return found, f"onnx {onnx.__version__}, onnxruntime"


def judge_onnx(name, model):
    import onnx
    import onnxruntime
    if "labels" in model:
        return judge_transducer(name, model)
    raw = read_images(name, model)
    found = []
    for word, images in (("u8", raw), ("f32", as_floats(raw, model, False))):
        run = session(f"{name}-{word}")
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
    if "labels" in model:
        with open(name + ".answers", encoding="utf-8") as f:
            wanted = numpy.array(json.load(f))
    worst = max(float(abs(logits - wanted).max()) for logits in found)
    print(f"{name}: {who}, {len(wanted)} images, largest difference {worst:.2g}")
    return 0 if worst < TOLERANCE else 1


sys.exit(main())
