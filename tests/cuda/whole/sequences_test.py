#!/usr/bin/env python3
"""sequences_test - transducers on GPUs, which the host execution layer plays: labels that are
sequences, of files and of strips, streamed and resident, with positions that have no example; what
is decoded in evaluations and predictions, in mixed precision too. All of it as on processors.

   sequences_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON
"""
import json
import os
import random
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../whole"))
from program import Test  # noqa: E402

STRIPS = os.path.join(os.path.dirname(os.path.abspath(sys.argv[3])), "transducer.json")
RESIDENT = ["--set", "layout.resident=true"]
EXAMPLES, ROWS, FEATURES, LABELS, CLASSES = 53, 6, 3, 4, 5
TEST_STRIPS = {"made_up": {"first": 1000, "count": 61, "height": 10, "width": 8}}


def write_examples(name, seed):
    """One frame and no labels, and the most of both, among them."""
    r, images, rows = random.Random(seed), b"", b""
    for n in range(EXAMPLES):
        frames, count = [(1, 0), (ROWS, LABELS), (1, LABELS), (ROWS, 0)][n] if n < 4 else (
            r.randint(1, ROWS), r.randint(0, LABELS))
        images += bytes(r.randint(0, 255) for _ in range(ROWS * FEATURES))  # behind the last, too
        rows += struct.pack(">H", frames)
        rows += bytes(r.randint(1, CLASSES - 1) for _ in range(count)) + bytes(LABELS - count)
    with open(name + "-images", "wb") as f:
        f.write(struct.pack(">4I", 0x803, EXAMPLES, ROWS, FEATURES) + images)
    with open(name + "-labels", "wb") as f:
        f.write(struct.pack(">3I", 0x802, EXAMPLES, 2 + LABELS) + rows)
    return {"images": name + "-images", "labels": name + "-labels"}


def sequences(recurrent="gru"):
    """Weights of the encoder are large, so that networks that learned nothing say much."""
    loud = {"kernel_initializer": "random_normal", "kernel_initializer_value": 3.0}
    return {
        "name": "sequences", "seed": 3, "global_batch": 20, "grain": 4, "steps": 7,
        "evaluate_every_steps": 3, "log_every_steps": 1,
        "checkpoint": {"every_steps": 0, "every_seconds": 0},
        "model": {"input": [ROWS, FEATURES, 1], "classes": CLASSES, "labels": LABELS,
                  "loss": "transducer", "layers": [
            {"type": "reshape", "name": "rows", "target_shape": [ROWS, FEATURES]},
            {"type": "time_reduction", "name": "fewer", "factor": 4},
            {"type": "dense", "name": "enc", "units": 9, **loud},
            {"type": "label_embedding", "name": "said", "units": 3},
            {"type": recurrent, "name": "pred", "units": 9, "return_sequences": True},
            {"type": "joint", "name": "joint", "units": CLASSES + 1, "use_bias": False,
             "inputs": ["enc", "pred"]}]},
        "optimizer": {"type": "adam_keras", "learning_rate": 0.01, "weight_average": 0.5},
        "data": {"train": write_examples("train", 1), "test": write_examples("test", 2)}}


def strips():
    with open(STRIPS, encoding="utf-8") as f:
        config = json.load(f)
    config["model"]["layers"][2].update(kernel_initializer="random_normal",
                                        kernel_initializer_value=3.0)
    config["data"]["test"] = TEST_STRIPS
    return dict(config, steps=4)


def said_by(lines):
    """All but what runs took."""
    return [line for line in lines if line.startswith(("test_", "digest ", "state_hash "))]


def same(t, config, *more):
    with open("c.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    train = ["train", "c.json", "--run-dir", "run", "--fresh"]
    wanted = said_by(t.expect(0, *train, "--kernels", "portable")[1])
    t.check(len(wanted) > 3 and "test_label_error_rate 100.00" not in wanted, "decodes", *wanted)
    predict(t, "portable")
    for number, row in enumerate([["--replicas", "1"], ["--set", "layout.wave_examples=8"],
                                  ["--replicas", "3", "--gpus", "2"], *more]):
        os.environ["LOCKSTEP_HOST_CUDA_SEED"] = str(number + 1)
        found = said_by(t.expect(0, *train, "--kernels", "cuda", *row)[1])
        t.check(found == wanted, config["name"], *row, found, wanted)
    os.environ.pop("LOCKSTEP_HOST_CUDA_SEED")
    predict(t, "cuda")
    with open("portable.npy", "rb") as a, open("cuda.npy", "rb") as b:
        t.check(a.read() == b.read(), config["name"], "predictions")


def predict(t, kernels):
    t.expect(0, "predict", "c.json", "--run-dir", "run", "--output", kernels + ".npy", "--kernels",
             kernels)


def sharded(t):
    """Shards of different lengths: some positions of a step have no example."""
    t.expect(0, "data", "shard", "--images", "train-images", "--labels", "train-labels",
             "--shards", "5", "--to", "shards")
    config = sequences()
    config["data"]["train"] = {"manifest": "shards/manifest.json"}
    config["data"]["order"] = "sharded"
    same(t, config, RESIDENT)


def one_network(t):
    """So a label_embedding and a joint have one use in an objective: whatever computes it, a model
    of several networks has none of them."""
    rows = {"type": "reshape", "name": "rows", "target_shape": [ROWS, FEATURES]}
    said = {"type": "label_embedding", "name": "said", "units": FEATURES, "inputs": []}
    joint = {"type": "joint", "name": "joint", "units": CLASSES, "inputs": ["input", "rows"]}
    for name, layers in (("said", [said]), ("joint", [rows, joint])):
        network = {"name": "net", "layers": layers}
        config = sequences()
        del config["optimizer"]
        config["model"] = {"input": [ROWS, FEATURES, 1], "classes": CLASSES, "labels": LABELS,
                           "networks": [network], "objectives": [
            {"name": "only", "values": [{"name": "x", "network": "net"}], "trains": ["net"],
             "loss": "transducer", "optimizer": {"type": "sgd", "learning_rate": 0.1}}]}
        with open("c.json", "w", encoding="utf-8") as f:
            json.dump(config, f)
        for kernels in ("portable", "cuda"):
            told = t.expect(78, "train", "c.json", "--run-dir", "never", "--kernels", kernels)[2]
            t.check(f"layer net.{name}: found a model of several networks, wanted one network"
                    in told, kernels, told)


def main():
    t = Test()
    os.environ["LOCKSTEP_HOST_CUDA_DEVICES"] = "2"
    same(t, sequences(), RESIDENT, ["--set", "layout.joint_tile=512", *RESIDENT])
    for precision, recurrent in (("mixed_float16", "gru"), ("mixed_bfloat16", "lstm")):
        same(t, {**sequences(recurrent), "precision": precision})
    same(t, strips(), ["--set", "layout.joint_tile=512"])
    moved = strips()
    moved["data"].update(normalize={"mean": [0.3], "deviation": [0.4]}, augment={"shift": [0, 2]})
    same(t, moved)
    said = t.expect(78, "train", "c.json", "--run-dir", "never", "--kernels", "cuda", *RESIDENT)[2]
    t.check("layout.resident: found true with data.strips" in said
            and not os.path.exists("never"), said)
    sharded(t)
    one_network(t)
    t.finish()


if __name__ == "__main__":
    main()
