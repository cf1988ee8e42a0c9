#!/usr/bin/env python3
"""transducer_test - loss and gradient of a transducer beside another implementation of it: ours in
double here, whose loss is the sum over all ways by dynamic programming, and whose gradient is its
slope along every parameter. Random networks and lengths, with T = 1, U = 0, and the longest of
both.

   transducer_test.py PROGRAM WORK_DIR [MODELS [torch [PYTHON]]]

One step of SGD with a rate of 1 from weights that this test has written: what they lose is the
gradient. Standard library only. With `torch` PyTorch's own gradients in float64 are in the place of
ours, and then three steps of its Adam: in an environment that is thrown away, or as PYTHON has it;
skipped (77) where it cannot be had.
"""
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys

from judges import python_of
from program import Test

HERE = os.path.dirname(os.path.abspath(__file__))

ROWS, FEATURES, LABELS, CLASSES, EXAMPLES = 6, 3, 4, 4, 8
SLOPE = 1e-5


def shapes(units, said, values):
    """In the order of the layers."""
    return {"enc/kernel": (2 * FEATURES, values), "enc/bias": (values,),
            "said/embeddings": (CLASSES, said),
            "pred/kernel": (said, 4 * units), "pred/bias": (4 * units,),
            "pred/recurrent_kernel": (units, 4 * units),
            "out/kernel": (units, values), "out/bias": (values,),
            "joint/kernel": (values, CLASSES), "joint/bias": (CLASSES,)}


def config(units, said, values):
    return {
        "name": "slopes", "seed": 1, "global_batch": EXAMPLES, "grain": 2, "steps": 1,
        "log_every_steps": 1, "checkpoint": {"every_steps": 0, "every_seconds": 0},
        "model": {"input": [ROWS, FEATURES, 1], "classes": CLASSES, "labels": LABELS,
                  "loss": "transducer", "layers": [
            {"type": "reshape", "name": "rows", "target_shape": [ROWS // 2, 2 * FEATURES]},
            {"type": "dense", "name": "enc", "units": values},
            {"type": "label_embedding", "name": "said", "units": said},
            {"type": "lstm", "name": "pred", "units": units, "return_sequences": True},
            {"type": "dense", "name": "out", "units": values},
            {"type": "joint", "name": "joint", "units": CLASSES, "inputs": ["enc", "out"]}]},
        "optimizer": {"type": "sgd", "learning_rate": 1.0},
        "data": {"train": {"images": "images", "labels": "labels"}}}


def size(shape):
    return math.prod(shape)


def write_weights(path, weights, all_shapes):
    header, at, data = {}, 0, b""
    for name, values in weights.items():
        block = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(all_shapes[name]),
                        "data_offsets": [at, at + len(block)]}
        data, at = data + block, at + len(block)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read_weights(path, names):
    with open(path, "rb") as f:
        data = f.read()
    length = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8:8 + length]), data[8 + length:]
    return {name: [v for v, in struct.iter_unpack("<f", data[slice(*header[name]
                                                                    ["data_offsets"])])]
            for name in names}


def dense(x, kernel, bias):
    """x, a row, times a kernel (inputs, units)."""
    units = len(bias)
    return [bias[n] + sum(v * kernel[k * units + n] for k, v in enumerate(x))
            for n in range(units)]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def prediction(w, labels, units, said):
    """A row for the blank and one for each label: the lstm's states through a dense layer."""
    h, c, rows = [0.0] * units, [0.0] * units, []
    for label in [0] + labels:
        x = w["said/embeddings"][label * said:(label + 1) * said]
        a = dense(x, w["pred/kernel"], w["pred/bias"])
        r = dense(h, w["pred/recurrent_kernel"], [0.0] * (4 * units))
        i, f, n, o = ([v + u for v, u in zip(a[g * units:(g + 1) * units],
                                             r[g * units:(g + 1) * units])] for g in range(4))
        c = [sigmoid(f[j]) * c[j] + sigmoid(i[j]) * math.tanh(n[j]) for j in range(units)]
        h = [sigmoid(o[j]) * math.tanh(c[j]) for j in range(units)]
        rows.append(dense(h, w["out/kernel"], w["out/bias"]))
    return rows


def cell(w, x, x2):
    z = dense([math.tanh(a + b) for a, b in zip(x, x2)], w["joint/kernel"], w["joint/bias"])
    top = max(z)
    total = top + math.log(sum(math.exp(v - top) for v in z))
    return [v - total for v in z]


def loss_of(w, example, units, said):
    """Minus the logarithm of the probability, as alpha is summed from the first cell on."""
    x, labels = example
    rows = prediction(w, labels, units, said)
    alpha = {}
    for t, values in enumerate(x):
        frame = dense(values, w["enc/kernel"], w["enc/bias"])
        for u, row in enumerate(rows):
            y = cell(w, frame, row)
            here = alpha.pop((t, u), 0.0) if (t, u) == (0, 0) else alpha[t, u]
            for to, symbol in (((t + 1, u), 0), ((t, u + 1), labels[u] if u < len(labels) else 0)):
                if to[1] > len(labels):
                    continue
                p = here + y[symbol]
                old = alpha.get(to)
                alpha[to] = p if old is None else \
                    max(p, old) + math.log1p(math.exp(-abs(p - old)))
    return -alpha[len(x), len(labels)]


def draw_examples(r):
    """Frames are of two rows, so that T of 3 are of 5 or 6 rows; black ones behind them."""
    lengths = [(1, 0), (ROWS, LABELS), (1, LABELS), (ROWS, 0), (2, 1)]
    lengths += [(r.randint(1, ROWS), r.randint(0, LABELS)) for _ in range(EXAMPLES - len(lengths))]
    examples, images, rows = [], b"", b""
    for frames, count in lengths:
        image = [[r.randint(0, 255) if t < frames else 0 for _ in range(FEATURES)]
                 for t in range(ROWS)]
        labels = [r.randint(1, CLASSES - 1) for _ in range(count)]
        images += bytes(v for row in image for v in row)
        rows += struct.pack(">H", frames) + bytes(labels) + bytes(LABELS - count)
        x = [[v / 255 for row in image[2 * t:2 * t + 2] for v in row]
             for t in range((frames + 1) // 2)]
        examples.append((x, labels))
    with open("images", "wb") as f:
        f.write(struct.pack(">4I", 0x803, EXAMPLES, ROWS, FEATURES) + images)
    with open("labels", "wb") as f:
        f.write(struct.pack(">3I", 0x802, EXAMPLES, 2 + LABELS) + rows)
    return examples


def prepare(number):
    """Weights, examples and the sizes of the layers."""
    r = random.Random(number)
    units, said, values = r.randint(1, 4), r.randint(1, 4), r.randint(2, 5)
    all_shapes = shapes(units, said, values)
    w = {name: list(struct.unpack(f"<{size(shape)}f", struct.pack(
        f"<{size(shape)}f", *(r.uniform(-1, 1) for _ in range(size(shape))))))
         for name, shape in all_shapes.items()}
    write_weights("start.safetensors", w, all_shapes)
    return w, draw_examples(r), (units, said, values)


def train(t, said, names):
    """The losses of the steps, and the weights behind them."""
    with open("c.json", "w", encoding="utf-8") as f:
        json.dump(said, f)
    t.expect(0, "train", "c.json", "--run-dir", "run", "--fresh", "--init", "start.safetensors")
    after = read_weights(f"run/checkpoints/step-{said['steps']:010}.safetensors", names)
    with open("run/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line)["train"]["loss"] for line in f], after


def compare(t, number):
    w, examples, (units, said, values) = prepare(number)
    (found,), after = train(t, config(units, said, values), w)

    def mean():
        return sum(loss_of(w, example, units, said) for example in examples) / EXAMPLES
    wanted, worst = mean(), (0, None)
    t.check(abs(found - wanted) <= 2e-6 * (1 + wanted), "the loss", number, found, wanted)
    for name, start in w.items():
        for e, value in enumerate(list(start)):
            start[e] = value + SLOPE
            more = mean()
            start[e] = value - SLOPE
            slope = (more - mean()) / (2 * SLOPE)
            start[e] = value
            # A gradient above 1 has fewer places behind the point.
            off = abs(value - after[name][e] - slope) / max(1, abs(slope))
            worst = max(worst, (off, f"{name}[{e}]"))
    t.check(worst[0] <= 1e-6, "the gradient", number, worst)


def compare_torch(t, number, python):
    """The largest difference of a weight, after a step of SGD and after three of Adam."""
    w, _, sizes = prepare(number)
    adam = {"type": "adam_torch", "learning_rate": 0.01, "epsilon": 0.001}
    largest = []
    for more in ({}, {"optimizer": adam, "steps": 3}):
        losses, after = train(t, {**config(*sizes), **more}, w)
        done = subprocess.run([python, os.path.join(HERE, "transducer_judge.py"), "judged.json"],
                              check=False)
        if not t.check(done.returncode == 0, "PyTorch computes it", number):
            return [math.inf]
        with open("judged.json", encoding="utf-8") as f:
            judged = json.load(f)
        t.check(all(abs(a - b) <= 2e-6 * (1 + b) for a, b in zip(losses, judged["losses"])) and
                len(losses) == len(judged["losses"]), "losses", number, losses, judged["losses"])
        largest.append(max(abs(a - b) for name in w
                           for a, b in zip(after[name], judged["weights"][name])))
        t.check(largest[-1] <= 1e-6, "weights", number, more, largest[-1])
    return largest


def main():
    t, count = Test(), int(sys.argv[3]) if len(sys.argv) > 3 else 2
    if len(sys.argv) < 5:
        for number in range(count):
            compare(t, number)
        t.finish()
    try:
        python = sys.argv[5] if len(sys.argv) > 5 else python_of("torch", [])
        largest = [compare_torch(t, number, python) for number in range(count)]
    finally:
        shutil.rmtree("environment", ignore_errors=True)
    sgd, adam = (max(each[i] for each in largest) for i in (0, -1))
    print(f"{count} models, largest difference of a weight: {sgd:.2e} after a step of SGD with "
          f"rate 1, {adam:.2e} after three of Adam")
    t.finish()


if __name__ == "__main__":
    main()
