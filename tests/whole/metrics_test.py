#!/usr/bin/env python3
"""metrics_test - what a run reports, by name: of a classifier, of an autoencoder whose loss takes
the input, of a loss of the output alone; whoever computes it, in every place that shows it.

   metrics_test.py PROGRAM WORK_DIR
"""
import json
import re
import struct

from program import Test, finish, free_port, result, start, tf_config, value

TEST_SET = {"made_up": {"first": 1000, "count": 150, "height": 10, "width": 10}}
IMAGES = {"model.layers.4.units": 100, "model.loss": "mean_squared_error"}
KINDS = {
    "classifier": ({}, ["loss", "correct"], ["loss", "accuracy"]),
    "autoencoder": (IMAGES, ["loss", "mean_absolute_error"], ["loss", "mean_absolute_error"]),
    "score": ({"model.loss": {"type": "mean", "scale": -0.01}}, ["loss"], ["loss"]),
}
NUMBER = r"-?[0-9.e+-]+"


def metrics(directory):
    with open(directory + "/metrics.jsonl", encoding="ascii") as f:
        return f.read()


def logged(t, name, keys, shown):
    """Every place of a run alone; returns its configuration and its results."""
    changes = dict(KINDS[name][0], steps=5, evaluate_every_steps=3, **{"data.test": TEST_SET})
    config = t.write(name + ".json", changes,
                     () if name == "classifier" else ("model.classes",))
    _, lines, _ = t.expect(0, "train", config, "--run-dir", name, "--replicas", "1")
    for line in metrics(name).splitlines():
        entry = json.loads(line)
        kind = "train" if "train" in entry else "test"
        t.check(list(entry) == ["step", kind, "crc32"] and
                list(entry[kind]) == [*keys, "examples"], name, line)
    first = next(line for line in lines if line.startswith("loss = "))
    means = [key for key in keys if key != "correct"]
    t.check(re.fullmatch(", ".join(f"{key} = {NUMBER}" for key in means) + ", step = 0", first),
            name, first)
    said = next(line for line in lines if line.startswith("evaluation step 3"))
    words = ", ".join(f"{key} {NUMBER}" + "%" * (key == "accuracy") for key in shown)
    t.check(re.fullmatch(rf"evaluation step 3: 150 examples, {words}, after {NUMBER} s of training",
                         said), name, said)
    tests = [line.split()[0] for line in lines if line.startswith("test_")]
    t.check(tests == ["test_" + key for key in shown], name, *tests)
    _, lines_json, _ = t.expect(0, "train", config, "--run-dir", name + "-json", "--json")
    for line in lines_json:
        event = json.loads(line)
        wanted = {"step": [*keys, "examples"],
                  "evaluation": ["examples", *keys[1:], *shown]}.get(event["event"], [])
        t.check(all(key in event for key in wanted), name, line)
        if event["event"] == "end":
            t.check(list(event["test"]) ==
                    [*keys, "examples", *(key for key in shown if key not in keys)], name, line)
    _, answer, _ = t.expect(0, "eval", config, "--run-dir", name, "--json")
    found = json.loads(answer[0])
    t.check([key for key in found if key.startswith("test_")] ==
            ["test_examples", *("test_" + key for key in shown)], name, answer)
    t.check(value(lines, "test_loss") == "%.9g" % found["test_loss"], name, answer)
    wanted = result(lines)
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "waves", "--fresh", "--replicas", "1",
                           "--set", "layout.wave_examples=16")
    t.check(result(lines) == wanted, name, "by waves", *lines)
    t.check(metrics("waves") == metrics(name), name, "by waves", metrics("waves"), metrics(name))
    return config, wanted


def workers(t, config, name, wanted):
    """Two workers, by a window and by messages, with replicas of their own."""
    for collective in ("window", "messages"):
        port = free_port()
        ends = finish([start(t, tf_config(2, rank, port), "train", config, "--run-dir", "two",
                             "--fresh", "--replicas", str(1 + rank), "--collective", collective)
                       for rank in range(2)])
        if ends[0][0] == 69 and "has no MPI" in ends[0][2]:
            continue
        t.check([end[0] for end in ends] == [0, 0], name, collective, *ends)
        t.check(result(ends[0][1].splitlines()) == wanted, name, collective, ends[0][1])
        t.check(metrics("two") == metrics(name), name, collective, metrics("two"), metrics(name))


def predictions(t):
    """As many numbers as the last layer gives, not as there are classes."""
    t.expect(0, "predict", "autoencoder.json", "--run-dir", "autoencoder", "--output", "p.npy")
    with open("p.npy", "rb") as f:
        head = f.read(128)
    length = struct.unpack("<H", head[8:10])[0]
    t.check(b"(150, 100)" in head[10:10 + length], "predict", head)


def exported(t):
    """An ONNX model ends with the last layer's rows of values: others are refused."""
    def export(code, name):
        return t.expect(code, "checkpoint", "export", name, "--layout", "onnx", "--output",
                        name + ".onnx")[2]

    export(0, "autoencoder")
    conv = {"type": "conv2d", "name": "image", "filters": 1, "kernel_size": 3, "padding": "same"}
    distance = [{"type": "flatten"}, {"type": "dense", "name": "a", "units": 5},
                {"type": "dense", "name": "b", "units": 5}]
    for name, layers, inputs, words in (("images", [conv], ["image", "input"], "rows of values"),
                                        ("distance", distance, ["a", "b"], "wanted the last")):
        config = t.write(name + ".json", {"steps": 2, "model.layers": layers, "model.loss": {
            "type": "mean_squared_error", "inputs": inputs}}, ("model.classes",))
        t.expect(0, "train", config, "--run-dir", name)
        error = export(78, name)
        t.check(words in error and error.count("\n") == 1, name, error)


def apart(t):
    """diff --tolerance, where there is no accuracy to compare."""
    _, lines, _ = t.expect(0, "diff", "autoencoder", "two", "--tolerance", "0")
    t.check(any(line.startswith("train loss:") for line in lines) and
            not any("accuracy" in line for line in lines), "diff", *lines)
    _, lines, _ = t.expect(0, "diff", "classifier", "classifier-json", "--tolerance", "0")
    t.check(any("accuracy" in line for line in lines), "diff", *lines)


def shown_and_read(t):
    """config show gives a configuration of the same run, with all that was left out."""
    for name in KINDS:
        _, lines, _ = t.expect(0, "config", "show", name + ".json")
        with open("shown.json", "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        identities = [value(t.expect(0, "plan", config)[1], "run_identity")
                      for config in (name + ".json", "shown.json")]
        t.check(identities[0] == identities[1], name, *identities)


def refusals(t):
    for what, changes, without, words in (
            ("sizes", {"model.loss": "mean_squared_error"}, (), "1 x 1 x 10 and 10 x 10 x 1"),
            ("the same twice", {"model.loss": {"type": "mean_squared_error",
                                               "inputs": ["logits", "logits"]}}, (),
             "same tensor"),
            ("no such layer", {"model.loss": {"type": "mean", "inputs": ["dens"]}}, (),
             'model.loss.inputs[0]: found string "dens"'),
            ("not used", {"model.loss": {"type": "mean", "inputs": ["dense"]}}, (),
             "layer logits: no other layer takes its output"),
            ("too many inputs", {"model.loss": {"type": "mean", "inputs": ["dense", "logits"]}},
             (), "model.loss.inputs"),
            ("another's key", {"model.loss": {"type": "mean_squared_error", "scale": 1}}, (),
             "scale"),
            ("scale", {"model.loss": {"type": "mean", "scale": 2e6}}, (), "model.loss.scale"),
            ("no type", {"model.loss": {"scale": 2}}, (),
             'required key "type"'),
            ("no classes", {}, ("model.classes",), 'required key "classes"'),
            ("no such loss", {"model.loss": "mean_square"}, (), "mean_squared_error")):
        config = t.write("refused.json", changes, without)
        _, _, error = t.expect(78, "plan", config)
        t.check(words in error and error.count("\n") == 1, what, error)


def main():
    t = Test()
    for name, (_, keys, shown) in KINDS.items():
        config, wanted = logged(t, name, keys, shown)
        workers(t, config, name, wanted)
    workers(t, "autoencoder.json", "autoencoder", result(t.run(
        "train", "autoencoder.json", "--run-dir", "again", "--replicas", "3")[1]))
    predictions(t)
    exported(t)
    apart(t)
    shown_and_read(t)
    refusals(t)
    t.finish()


if __name__ == "__main__":
    main()
