#!/usr/bin/env python3
"""averages_test - averages of weights: what evaluation, early stopping, the best checkpoint,
exports and generators take, for any kernels, replicas and workers, resumed or not.

   averages_test.py PROGRAM WORK_DIR GAN_JSON

Standard library only.
"""
import json
import struct
import sys

from program import Test, finish, free_port, result, start, tf_config, value

EVERY = 5
DATA = {"data.test": {"made_up": {"first": 5000, "count": 96, "height": 10, "width": 10}},
        "evaluate_every_steps": EVERY, "steps": 60, "log_every_steps": 50,
        "optimizer.weight_average": 0.8}


def evaluations(run):
    with open(run + "/metrics.jsonl", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return [(line["step"], line["test"]["loss"], line["test"]["correct"]) for line in lines
            if "test" in line]


def tensors(path):
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    return {name: struct.unpack(f"<{(e['data_offsets'][1] - e['data_offsets'][0]) // 4}f",
                                data[8 + size + e["data_offsets"][0]:8 + size +
                                     e["data_offsets"][1]])
            for name, e in head.items() if name != "__metadata__" and e["dtype"] == "F32"}


def follows(t):
    """Every step's averages, from the weights of the steps before."""
    t.expect(0, "train", "config.json", "--run-dir", "each", "--set", "steps=6", "--set",
             "checkpoint.every_steps=1", "--set", "checkpoint.keep_max=0")
    averages = {}
    for step in range(1, 7):
        found = tensors(f"each/checkpoints/step-{step:010}.safetensors")
        for name in [name for name in found if name + "/average" in found]:
            w, keep = found[name], 0.8 if step > 1 else 0.0
            before = averages.get(name, w)
            averages[name] = [keep * a + (1 - keep) * v for a, v in zip(before, w)]
            far = max(abs(a - b) for a, b in zip(averages[name], found[name + "/average"]))
            t.check(far < 1e-6, name, step, far)
    t.check(len(averages) == 6, "every parameter has one", list(averages))


def layouts(t, wanted):
    config = "config.json"
    for more in (["--kernels", "reference", "--replicas", "1"],
                 ["--kernels", "portable", "--replicas", "3"],
                 ["--set", "layout.reduce=partials", "--set", "layout.wave_examples=16"],
                 ["--set", "layout.guards=true", "--set", "layout.fuse=false"]):
        t.expect(0, "train", config, "--run-dir", "other", "--fresh", "--set", "steps=25", *more)
        _, lines, _ = t.expect(0, "train", config, "--run-dir", "other", "--resume")
        t.check(result(lines) == wanted and evaluations("other") == evaluations("run"),
                "another layout, resumed", more, lines[-3:])
    for collective in ("window", "messages"):
        port = free_port()
        ends = finish([start(t, tf_config(2, r, port), "train", config, "--run-dir", collective,
                             "--replicas", "1", "--collective", collective) for r in range(2)])
        if ends[0][0] == 69 and "has no MPI" in ends[0][2]:
            print("this build has no MPI")
            return
        t.check([e[0] for e in ends] == [0, 0], collective, ends)
        t.check(result(ends[0][1].splitlines()) == wanted and
                evaluations(collective) == evaluations("run"), "two workers, " + collective)


def exports(t):
    """An export's loss is that of who evaluated the averages, or the weights."""
    plain = ["--set", "optimizer.weight_average=0"]
    _, lines, _ = t.expect(0, "eval", "config.json", "--run-dir", "run")
    averaged = value(lines, "test_loss")
    t.check(averaged == f"{evaluations('run')[-1][1]:.9g}", "as the run", lines)
    trained = f"{evaluations('plain')[-1][1]:.9g}"
    for weights, wanted in (([], averaged), (["--weights", "trained"], trained)):
        _, said, _ = t.expect(0, "checkpoint", "export", "run", "--output", "out.safetensors",
                              *weights)
        t.check(said[0].startswith("averaged weights" if not weights else "weights"), said)
        for more in ([], plain):
            _, lines, _ = t.expect(0, "eval", "config.json", "--checkpoint", "out.safetensors",
                                   *more)
            t.check(value(lines, "test_loss") == wanted, "evaluated", weights, more, lines)
        # Begun from, the first evaluation sees them.
        t.expect(0, "train", "config.json", "--run-dir", "begun", "--fresh", "--init",
                 "out.safetensors", "--set", "optimizer.learning_rate=0", "--set", "steps=5")
        t.check(f"{evaluations('begun')[-1][1]:.9g}" == wanted, "begun", evaluations("begun"))
    _, _, error = t.expect(64, "checkpoint", "export", "plain", "--output", "no.safetensors",
                           "--weights", "averaged")
    t.check("has no averages" in error and error.count("\n") == 1, error)
    _, _, error = t.expect(64, "checkpoint", "export", "run", "--output", "no.safetensors",
                           "--weights", "all")
    t.check('wanted "averaged" or "trained"' in error, error)


def stops(t):
    """Whoever reads the averages' metrics ends where the run does."""
    wild = ["--set", "optimizer.learning_rate=0.4", "--set", "steps=300"]
    t.expect(0, "train", "config.json", "--run-dir", "wild", *wild)
    history, best, since, end = evaluations("wild"), None, 0, None
    for step, loss, _ in history:
        best, since = (loss, 0) if best is None or loss < best else (best, since + 1)
        if since == 2 and end is None:
            end = step
    if not t.check(end and end < 300, "the test has a place to end", history):
        return
    _, lines, _ = t.expect(0, "train", "config.json", "--run-dir", "early", *wild, "--set",
                           "early_stopping.patience=2", "--set", "early_stopping.metric=loss",
                           "--set", "checkpoint.best=loss")
    t.check(evaluations("early") == history[:end // EVERY], "it ends there", end, lines[-3:])


def mixed(t):
    for precision in ("mixed_float16", "mixed_bfloat16"):
        ends = []
        for name, more in (("one", ["--kernels", "reference", "--replicas", "1"]),
                           ("two", ["--replicas", "3"]), ("three", ["--set", "steps=20"])):
            options = ["--set", f"precision={precision}", *more]
            _, lines, _ = t.expect(0, "train", "config.json", "--run-dir", name, "--fresh",
                                   *options)
            if name == "three":
                _, lines, _ = t.expect(0, "train", "config.json", "--run-dir", name, "--resume",
                                       *options[:2])
            ends.append((result(lines), evaluations(name)))
        t.check(ends[0] == ends[1] == ends[2], precision, ends)
        t.check(len({loss for _, loss, _ in ends[0][1]}) > 6, "averages move", ends[0][1])
        _, lines, _ = t.expect(0, "eval", "config.json", "--run-dir", "one", "--set",
                               f"precision={precision}")
        t.check(value(lines, "test_loss") == f"{ends[0][1][-1][1]:.9g}", "loaded", lines)
        # As a network that keeps none takes them.
        t.expect(0, "checkpoint", "export", "one", "--output", "mixed.safetensors")
        _, lines, _ = t.expect(0, "eval", "config.json", "--checkpoint", "mixed.safetensors",
                               "--set", f"precision={precision}", "--set",
                               "optimizer.weight_average=0")
        t.check(value(lines, "test_loss") == f"{ends[0][1][-1][1]:.9g}", "exported", lines)


def generators(t):
    """Of several objectives: a generator's images are those of its averages."""
    with open(sys.argv[3], encoding="utf-8") as f:
        document = json.load(f)
    for optimizer in ("generator_optimizer", "discriminator_optimizer"):
        document["model"]["gan"][optimizer]["weight_average"] = 0.9
    document["steps"] = 40
    with open("gan.json", "w", encoding="utf-8") as f:
        json.dump(document, f)
    ends = []
    for name, more in (("gan", []), ("gan-other", ["--replicas", "3", "--kernels", "portable"])):
        _, lines, _ = t.expect(0, "train", "gan.json", "--run-dir", name, *more)
        ends.append(result(lines))
        t.expect(0, "generate", "gan.json", "--run-dir", name, "--count", "4", "--output",
                 name + ".npy")
    t.check(ends[0] == ends[1] and ends[0][0], "the same bits", ends)
    images = [open(name + ".npy", "rb").read() for name in ("gan", "gan-other")]
    t.check(images[0] == images[1], "the same images")
    for weights in ("averaged", "trained"):
        t.expect(0, "checkpoint", "export", "gan", "--output", weights + ".safetensors",
                 "--weights", weights)
        t.expect(0, "generate", "gan.json", "--checkpoint", weights + ".safetensors", "--count",
                 "4", "--output", weights + ".npy")
        with open(weights + ".npy", "rb") as f:
            t.check((f.read() == images[0]) == (weights == "averaged"), "images of " + weights)


def refused(t):
    for wrong in ("1", "-0.1", "1e-60", '"half"'):
        code, _, error = t.run("train", "config.json", "--run-dir", "never", "--set",
                               f"optimizer.weight_average={wrong}")
        t.check(code == 78 and "optimizer.weight_average" in error and error.count("\n") == 1,
                "one line", wrong, error)


def main():
    t = Test()
    t.write("config.json", DATA)
    _, lines, _ = t.expect(0, "train", "config.json", "--run-dir", "run")
    _, plain, _ = t.expect(0, "train", "config.json", "--run-dir", "plain", "--set",
                           "optimizer.weight_average=0")
    t.check(value(lines, "digest") == value(plain, "digest"), "training knows nothing of them")
    t.check(value(lines, "state_hash") != value(plain, "state_hash"), "they are state")
    t.check(evaluations("run") != evaluations("plain"), "they are evaluated")
    follows(t)
    layouts(t, result(lines))
    exports(t)
    stops(t)
    mixed(t)
    generators(t)
    refused(t)
    t.finish()


if __name__ == "__main__":
    main()
