#!/usr/bin/env python3
"""outputs_test - no command writes its output over a file of a run, nor over one that it reads:
each is told so by one line and exit code 64, and nothing has changed.

   outputs_test.py PROGRAM WORK_DIR

Standard library only.
"""
import hashlib
import os

from program import Test

GAN = {"noise": {"type": "normal", "shape": [4]}, "loss": "modified",
       "generator": [{"type": "dense", "units": 100}, {"type": "reshape",
                                                       "target_shape": [10, 10, 1]}],
       "discriminator": [{"type": "flatten"}, {"type": "dense", "units": 1}],
       "generator_optimizer": {"type": "sgd", "learning_rate": 0.1},
       "discriminator_optimizer": {"type": "sgd", "learning_rate": 0.1}}


def content(folder="."):
    """Of every file its hash."""
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as f:
                found[os.path.join(at, name)] = hashlib.sha256(f.read()).hexdigest()
    return found


def main():
    t = Test()
    made = {"count": 300, "height": 10, "width": 10}
    config = t.write("config.json", {"steps": 3, "data": {"train": {"made_up": made},
                                                          "test": {"made_up": made}}})
    gan = t.write("gan.json", {"model.gan": GAN, "cycles": 2, "samples": {"every_steps": 2}},
                  ("model.layers", "model.classes", "optimizer", "steps"))
    t.expect(0, "train", config, "--run-dir", "run")
    t.expect(0, "train", gan, "--run-dir", "gan")
    t.expect(0, "checkpoint", "export", "run", "--output", "weights.safetensors")
    weights = "run/checkpoints/step-0000000003.safetensors"
    t.expect(0, "data", "shard", "--made-up", "300", "--height", "10", "--width", "10", "--shards",
             "1", "--to", "made")
    pair = {"images": "made/images-00000.idx", "labels": "made/labels-00000.idx"}
    read = t.write("read.json", {"steps": 3, "data": {"train": pair, "test": pair}})
    t.expect(0, "train", read, "--run-dir", "read")
    os.makedirs("runs/small")
    os.symlink("run", "link")
    os.mkdir("empty")
    ours = ("run/config.json", "run/metrics.jsonl", "run/identity", "run/lock", weights,
            "run/config.json.tmp", "run/evaluations.jsonl", "run/checkpoints/new", "link/plan.json",
            "run/../link/checkpoints/new")
    predict = ("predict", config, "--run-dir", "run", "--output")
    again = ("train", config, "--run-dir", "run", "--fresh")
    orders = [(*predict, path) for path in ours] + [
        (*predict, config), (*predict, "./gan.json", "--images", "gan.json"),
        ("predict", config, "--checkpoint", "weights.safetensors", "--output",
         "weights.safetensors"),
        ("checkpoint", "export", "run", "--output", "run/config.json"),
        ("checkpoint", "export", "run", "--output", "gan/checkpoints/new"),
        ("report", "run", "--output", "run/config.json"),
        ("report", "run", "--output", "gan/hashes.jsonl"),
        (*again, "--trace", "run/config.json"), (*again, "--trace", config),
        (*again, "--metrics-file", "run/metrics.jsonl"), (*again, "--metrics-file", config),
        (*again, "--metrics-file", "gan/times.jsonl"),
        ("train", config, "--run-dir", "empty", "--trace", "empty/config.json"),
        ("train", config, "--run-dir", "empty", "--metrics-file", "empty/plan.json"),
        ("generate", gan, "--run-dir", "gan", "--output", "gan/samples-0000000002.png"),
        ("predict", read, "--run-dir", "read", "--output", pair["images"]),
        ("report", "read", "--output", pair["labels"]),
        ("train", read, "--run-dir", "empty", "--trace", pair["images"]),
        ("train", read, "--run-dir", "empty", "--metrics-file", pair["labels"]),
        ("train", config, "--run-dir", "empty", "--init", "weights.safetensors",
         "--metrics-file", "weights.safetensors"),
        ("train", config, "--metrics-file", "runs/small/metrics.jsonl"),
        ("embed", config, "--to", "run/plan.json"), ("embed", config, "--to", config),
        ("pack", "run", "--to", "gan/config.json"), ("pack", "run", "--to", "run/config.json")]
    before = content()
    for order in orders:
        _, _, error = t.expect(64, *order)
        t.check("wanted another" in error or "wanted a place outside" in error, "what to do", order,
                error)
        t.check(error.count("\n") == 1, "one line", order, error)
        t.check(content() == before, "nothing has changed", order)
    # Other names may lie in a run directory, and report.html is made anew.
    t.expect(0, *predict, "run/logits.npy")
    t.expect(0, "report", "run")
    t.expect(0, "report", "run", "--output", "link/report.html")
    t.expect(0, "generate", gan, "--run-dir", "gan", "--output", "gan/digits.png")
    # What is no run's may have the name of one.
    os.mkdir("checkpoints")
    t.expect(0, *predict, "checkpoints/metrics.jsonl")
    t.expect(0, *predict, "plan.json")
    t.expect(0, "train", config, "--run-dir", "empty", "--trace", "empty/trace.json",
             "--metrics-file", "empty/run.prom")
    t.finish()


if __name__ == "__main__":
    main()
