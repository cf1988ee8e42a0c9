#!/usr/bin/env python3
"""recipes_test - kernel_regularizer and class_weight are Keras': weights and losses of three steps
and an evaluation, of a net with given weights, against numbers that Keras computed in float64
(tests/golden/recipes.json); what is frozen or another network's is not regularised; embed refuses.

   recipes_test.py PROGRAM WORK_DIR
   recipes_test.py --make      with Keras installed: computes the numbers anew
"""
import json
import os
import random
import sys

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/recipes.json")
EXAMPLES, CLASSES, STEPS = 6, 3, 3
SHAPES = {"first/kernel": (4, 5), "first/bias": (5,), "second/kernel": (5, 5), "second/bias": (5,),
          "logits/kernel": (5, 3), "logits/bias": (3,)}

# What a layer's regularizer is, and what the loss and the optimizer have beside the common.
CASES = {
    "plain": {"l2": {}},
    "regularized": {"l2": {"first": 0.05, "logits": 0.02}},
    "frozen": {"l2": {"first": 0.05, "second": 0.5}, "frozen": True},
    "clipvalue": {"l2": {"first": 0.25, "logits": 0.125}, "optimizer": {"clipvalue": 0.03}},
    "clipnorm": {"l2": {"first": 0.25, "logits": 0.125}, "optimizer": {"clipnorm": 0.05}},
    "global_clipnorm": {"l2": {"first": 0.25}, "optimizer": {"global_clipnorm": 0.06}},
    "adam": {"l2": {"second": 0.125}, "adam": True},
    "weighted": {"l2": {}, "class_weight": {"0": 0.25, "2": 2.5}},
    "weighted and regularized": {"l2": {"first": 0.05}, "adam": True,
                                 "class_weight": {"0": 3.0, "1": 0.5, "2": 1.5}},
}


def drawn():
    """The examples, and the weights that all begin with: exact in fp32."""
    r = random.Random(3)
    images = [[r.randrange(256) for _ in range(4)] for _ in range(EXAMPLES)]
    labels = [r.randrange(CLASSES) for _ in range(EXAMPLES)]
    weights = {}
    for name, shape in SHAPES.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        weights[name] = [r.randrange(-64, 65) / 64 for _ in range(count)]
    return images, labels, weights


# --- Keras ---------------------------------------------------------------------------------------

def keras_case(case):
    import keras
    import numpy
    keras.config.set_floatx("float64")
    images, labels, weights = drawn()
    x, y = numpy.array(images) * float.fromhex("0x1.010102p-8"), numpy.array(labels)

    def dense(name, units, **more):
        l2 = case["l2"].get(name)
        return keras.layers.Dense(units, name=name, kernel_regularizer=keras.regularizers.L2(l2)
                                  if l2 else None, **more)

    model = keras.Sequential([
        keras.Input([4]), dense("first", 5, activation="tanh"),
        dense("second", 5, activation="tanh", trainable=not case.get("frozen")),
        dense("logits", CLASSES)])
    for layer in model.layers:
        layer.set_weights([numpy.array(weights[f"{layer.name}/{w}"]).reshape(
            SHAPES[f"{layer.name}/{w}"]) for w in ("kernel", "bias")])
    own = case.get("optimizer", {})
    model.compile(optimizer=keras.optimizers.Adam(0.05, **own) if case.get("adam") else
                  keras.optimizers.SGD(0.5, momentum=0.5, **own),
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weight = {int(k): v for k, v in case.get("class_weight", {}).items()} or None
    fit = model.fit(x, y, batch_size=EXAMPLES, epochs=STEPS, shuffle=False, verbose=0,
                    class_weight=weight)
    found = {f"{layer.name}/{w.name}": [float(v) for v in numpy.array(w).ravel()]
             for layer in model.layers for w in layer.weights}
    return {"losses": [float(v) for v in fit.history["loss"]],
            "test_loss": float(model.evaluate(x, y, batch_size=4, verbose=0)), "weights": found}


def make():
    import keras
    out = {"made by": f"Keras {keras.__version__}, {keras.backend.backend()}, float64"}
    out.update({name: keras_case(case) for name, case in CASES.items()})
    with open(GOLDEN, "w", encoding="ascii") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


if sys.argv[1:] == ["--make"]:
    make()
    sys.exit(0)

# --- the program ---------------------------------------------------------------------------------

from program import Test, result, value  # noqa: E402
from tensors import read_safetensors, write_idx, write_safetensors  # noqa: E402


def dense(case, name, units, **more):
    l2 = case["l2"].get(name)
    return {"type": "dense", "name": name, "units": units, **more,
            **({"kernel_regularizer": {"l2": l2}} if l2 else {})}


def config_of(case):
    own = case.get("optimizer", {})
    optimizer = {"type": "adam_keras", "learning_rate": 0.05} if case.get("adam") else \
        {"type": "momentum_keras", "learning_rate": 0.5, "momentum": 0.5}
    data = {"images": "images.idx", "labels": "labels.idx"}
    model = {"input": [2, 2, 1], "classes": CLASSES, "layers": [
        {"type": "flatten"}, dense(case, "first", 5, activation="tanh"),
        dense(case, "second", 5, activation="tanh", trainable=not case.get("frozen")),
        dense(case, "logits", CLASSES)]}
    if "class_weight" in case:
        model["loss"] = {"type": "sparse_categorical_crossentropy",
                         "class_weight": case["class_weight"]}
    return {"name": "recipe", "seed": 1, "global_batch": EXAMPLES, "grain": 2, "steps": STEPS,
            "log_every_steps": 1, "model": model, "optimizer": dict(optimizer, **own),
            "init": {"file": "start.safetensors"}, "data": {"train": data, "test": data}}


def near(name, found, wanted):
    worst = max(abs(a - b) / (1 + abs(b)) for a, b in zip(found, wanted))
    return T.check(len(found) == len(wanted) and worst < 2e-6, name, "found", found, "wanted",
                   wanted)


def check_case(name, case, wanted):
    """One digest in three layouts; losses, the test's and weights near Keras'."""
    with open("recipe.json", "w", encoding="ascii") as file:
        json.dump(config_of(case), file)
    ends = set()
    for words in (["--replicas", "1"], ["--replicas", "3", "--set", "layout.wave_examples=2"],
                  ["--replicas", "2", "--set", 'layout.reduce="operands"']):
        lines = T.expect(0, "train", "recipe.json", "--run-dir", "run", "--fresh", *words)[1]
        ends.add(result(lines))
    T.check(len(ends) == 1, name, "several results", *ends)
    with open("run/metrics.jsonl", encoding="ascii") as file:
        rows = [json.loads(line) for line in file]
    near(name + ": losses", [row["train"]["loss"] for row in rows if "train" in row],
         wanted["losses"])
    near(name + ": test loss", [row["test"]["loss"] for row in rows if "test" in row],
         [wanted["test_loss"]])
    T.expect(0, "checkpoint", "export", "run", "--output", "out.safetensors", "--layout", "keras")
    out = read_safetensors("out.safetensors")[0]
    for tensor, values in wanted["weights"].items():
        near(f"{name}: {tensor}", out[tensor], values)


def last_loss(lines):
    return float(value(lines, "test_loss"))


def energy(tensors, names):
    return sum(v * v for name in names for v in tensors[name])


def check_averages(golden):
    """An evaluation takes averages, and weighs them."""
    l2 = {"first": 0.25, "logits": 0.125}
    case = {"l2": l2, "optimizer": {"weight_average": 0.5}}
    for name, content in (("recipe.json", config_of(case)), ("plain.json", config_of({"l2": {}}))):
        with open(name, "w", encoding="ascii") as file:
            json.dump(content, file)
    lines = T.expect(0, "train", "recipe.json", "--run-dir", "run", "--fresh")[1]
    T.expect(0, "checkpoint", "export", "run", "--output", "out.safetensors", "--layout", "keras")
    plain = T.expect(0, "eval", "plain.json", "--checkpoint", "out.safetensors")[1]
    averages = read_safetensors("out.safetensors")[0]
    added = sum(l2[name] * energy(averages, [name + "/kernel"]) for name in l2)
    near("averages", [last_loss(lines)], [last_loss(plain) + added])
    trained = golden["regularized"]["weights"]["first/kernel"]
    T.check(abs(energy({"x": trained}, ["x"]) - energy(averages, ["first/kernel"])) > 1e-3,
            "averages that are the weights")


def gan(l2):
    discriminator = [{"type": "flatten"}, {"type": "dense", "name": "score", "units": 1,
                                           **({"kernel_regularizer": {"l2": l2}} if l2 else {})}]
    optimizer = {"type": "sgd", "learning_rate": 0.1}
    return {"name": "gan", "seed": 1, "global_batch": 6, "grain": 2, "steps": 3,
            "log_every_steps": 1, "checkpoint": {"every_steps": 1, "keep_max": 0},
            "model": {"input": [2, 2, 1], "gan": {
                "noise": {"type": "normal", "shape": [3]},
                "generator": [{"type": "dense", "name": "made", "units": 4},
                              {"type": "reshape", "target_shape": [2, 2, 1]}],
                "discriminator": discriminator, "loss": "least_squares",
                "generator_optimizer": optimizer, "discriminator_optimizer": optimizer}},
            "data": {"train": {"images": "images.idx", "labels": "labels.idx"}}}


def check_own_scope():
    """What a step does not train it does not weigh: a discriminator's regularizer leaves the
    generator's step as it was, and adds to its own."""
    rows, first = {}, {}
    for l2 in (0, 0.5):
        with open("gan.json", "w", encoding="ascii") as file:
            json.dump(gan(l2), file)
        T.expect(0, "train", "gan.json", "--run-dir", f"gan{l2}", "--fresh")
        with open(f"gan{l2}/metrics.jsonl", encoding="ascii") as file:
            rows[l2] = [json.loads(line) for line in file]
        first[l2] = read_safetensors(f"gan{l2}/checkpoints/step-0000000001.safetensors")[0]
    T.check(first[0] == first[0.5], "the generator's step is another one")
    losses = {l2: [row["train"]["loss"] for row in rows[l2] if "train" in row] for l2 in rows}
    T.check(losses[0][0] == losses[0.5][0], "the generator's loss is another one", losses)
    near("own scope", [losses[0.5][1]],
         [losses[0][1] + 0.5 * energy(first[0], ["discriminator.score/kernel"])])


def check_many_classes():
    """In mixed precision a loss is computed in blocks of examples: all take the same weights,
    however many a replica has."""
    config = {"name": "many", "seed": 1, "global_batch": 256, "grain": 16, "steps": 2,
              "precision": "mixed_float16", "loss_scale": {"initial": 256},
              "optimizer": {"type": "sgd", "learning_rate": 0.1},
              "model": {"input": [4, 4, 1], "classes": 256, "layers": [
                  {"type": "flatten"}, {"type": "dense", "units": 256}],
                        "loss": {"type": "sparse_categorical_crossentropy",
                                 "class_weight": [1 + c % 7 for c in range(256)]}},
              "data": {"train": {"made_up": {"count": 600, "height": 4, "width": 4,
                                             "classes": 256}}}}
    with open("many.json", "w", encoding="ascii") as file:
        json.dump(config, file)
    ends = {words: result(T.expect(0, "train", "many.json", "--run-dir", "many", "--fresh",
                                   *words.split())[1])
            for words in ("--replicas 1", "--replicas 4", "--replicas 1 --kernels reference")}
    T.check(len(set(ends.values())) == 1, "weights of many classes", ends)


def check_boards():
    """Boards know neither: embed writes nothing, and the same run without them."""
    of_layer = "kernel_regularizer of layer %s: boards know none yet"
    of_loss = "model.loss.class_weight: boards know none yet"
    for case, text in (({"l2": {"first": 0.05}}, of_layer % "first"),
                       ({"l2": {"logits": 0.02}}, of_layer % "logits"),
                       ({"l2": {}, "class_weight": {"2": 2.5}}, of_loss),
                       ({"l2": {}, "class_weight": [0.5, 1, 2]}, of_loss), ({"l2": {}}, "")):
        with open("board.json", "w", encoding="ascii") as file:
            json.dump({**config_of(case), "init": {}}, file)
        error = T.expect(69 if text else 0, "embed", "board.json", "--to", "board.c")[2]
        T.check(not text or (error.startswith("lockstep: embed: board.json: " + text) and
                             error.count("\n") == 1), "embed", case, error)
        T.check(os.path.exists("board.c") != bool(text), "what embed wrote", case)
    error = T.expect(78, "embed", "board.json", "--to", "early.c", "--set", "early_stopping=" +
                     json.dumps({"metric": "loss", "patience": 1}), "--set",
                     "evaluate_every_steps=1")[2]
    T.check("board.json: early_stopping: embed" in error and
            not os.path.exists("early.c"), "embed of a run that may end early", error)


def write_data():
    images, labels, weights = drawn()
    write_idx("images.idx", 8, (EXAMPLES, 2, 2), bytes(v for image in images for v in image))
    write_idx("labels.idx", 8, (EXAMPLES,), bytes(labels))
    write_safetensors("start.safetensors", weights, SHAPES)


def main():
    with open(GOLDEN, encoding="ascii") as file:
        golden = json.load(file)
    write_data()
    for name, case in CASES.items():
        check_case(name, case, golden[name])
    check_averages(golden)
    check_own_scope()
    check_many_classes()
    check_boards()


T = Test()
main()
sys.exit(T.finish())
