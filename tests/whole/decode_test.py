#!/usr/bin/env python3
"""decode_test - what a transducer says: label errors in evaluations, logs and events, the labels
of predict, the best checkpoint and the early end by them; the same in every layout.

   decode_test.py PROGRAM WORK_DIR

Standard library only.
"""
import json
import os
import random
import struct

from program import Test
from tensors import write_safetensors

ROWS, COLUMNS, LABELS, CLASSES, TESTED = 12, 4, 3, 4, 120
MIXED = [["precision=mixed_bfloat16"],
         ["precision=mixed_float16",
          'loss_scale={"initial": 16777216, "growth_steps": 3, "on_overflow": "replay"}']]
noise = random.Random(3)

CONFIG = {
    "name": "strips", "seed": 3, "global_batch": 32, "grain": 8, "steps": 120,
    "log_every_steps": 20, "evaluate_every_steps": 20, "hash_every_steps": 100,
    "checkpoint": {"every_steps": 0, "every_seconds": 0},
    "model": {"input": [ROWS, COLUMNS, 1], "classes": CLASSES, "labels": LABELS,
              "loss": "transducer", "layers": [
        {"type": "reshape", "name": "rows", "target_shape": [ROWS, COLUMNS]},
        {"type": "lstm", "name": "enc", "units": 12, "return_sequences": True},
        {"type": "dense", "name": "enc_out", "units": 12},
        {"type": "label_embedding", "name": "said", "units": 6},
        {"type": "lstm", "name": "pred", "units": 8, "return_sequences": True},
        {"type": "dense", "name": "pred_out", "units": 12},
        {"type": "joint", "name": "joint", "units": CLASSES, "inputs": ["enc_out", "pred_out"]}]},
    "optimizer": {"type": "adam_keras", "learning_rate": 0.01},
    "data": {"directory": "data"},
}


def write_set(name, count, classes=CLASSES, directory="data"):
    """A label is three rows with a bright column of its number, and a dark one."""
    images, labels, all_labels = bytearray(), bytearray(), []
    for _ in range(count):
        said = [noise.randint(1, classes - 1) for _ in range(noise.randint(0, LABELS))]
        frames = max(1, 4 * len(said))
        rows = [[noise.randint(0, 20) for _ in range(COLUMNS)] for _ in range(ROWS)]
        for i, label in enumerate(said):
            for k in range(3):
                rows[4 * i + k][label] = 200 + noise.randint(0, 50)
        images += b"".join(bytes(row) for row in rows)
        labels += struct.pack(">H", frames) + bytes(said) + bytes(LABELS - len(said))
        all_labels.append(said)
    with open(f"{directory}/{name}-images-idx3-ubyte", "wb") as f:
        f.write(struct.pack(">4I", 0x803, count, ROWS, COLUMNS) + images)
    with open(f"{directory}/{name}-labels-idx1-ubyte", "wb") as f:
        f.write(struct.pack(">3I", 0x802, count, 2 + LABELS) + labels)
    return all_labels


def errors(a, b):
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for k, y in enumerate(b, 1):
            last, row[k] = row[k], min(row[k] + 1, row[k - 1] + 1, last + (x != y))
    return row[-1]


def predicted(path):
    with open(path, "rb") as f:
        data = f.read()
    assert b"'<u4'" in data[:128] and f"({TESTED}, {LABELS})".encode() in data[:128], data[:128]
    rows = struct.iter_unpack(f"<{LABELS}I", data[128:])
    return [[label for label in row if label] for row in rows]


def figures(said, wanted):
    wrong = [errors(a, b) for a, b in zip(said, wanted)]
    return {"correct": wrong.count(0), "label_errors": sum(wrong),
            "labels": sum(len(b) for b in wanted)}


def evaluations(run):
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return [(line["step"], line["test"]) for line in lines if "test" in line]


def equal_training(t, ways, *more):
    seen = {}
    for way in ways:
        lines = t.expect(0, "train", "c.json", "--run-dir", "short", "--fresh", "--set",
                         "steps=20", *way, *more)[1]
        hashes = [line for line in lines if line.startswith(("digest ", "state_hash "))]
        seen[" ".join(way)] = (hashes, evaluations("short"))
    first = seen[" ".join(ways[0])]
    t.check(len(first[0]) == 2 and all(one == first for one in seen.values()), "equal training",
            more, seen)


def layouts(t, wanted):
    """Replicas, waves, kernels, tiles and workers: the same figures."""
    ways = [["--replicas", "1"], ["--replicas", "2", "--set", "layout.wave_examples=8"],
            ["--replicas", "4", "--set", "layout.guards=true"],
            ["--set", "layout.fuse=false", "--set", "layout.overlay=false"],
            ["--set", "layout.joint_tile=1024"]]
    for kernels in ("reference", "portable", "avx2", "avx512", "neon"):
        if t.run("plan", "c.json", "--kernels", kernels)[0] == 0:
            ways.append(["--kernels", kernels])
    for way in ways:
        lines = t.expect(0, "eval", "c.json", "--run-dir", "run", "--json", *way)[1]
        t.check(json.loads(lines[0]) == wanted, "equal figures", way, lines, wanted)
    equal_training(t, ways)
    for precise in MIXED:
        equal_training(t, ways, *[word for key in precise for word in ("--set", key)])
    # So many examples are several blocks of one replica (LK_MIXED_FLOATS).
    equal_training(t, ways[:2], "--set", "global_batch=128", "--set", *MIXED[0])
    lines = t.expect(0, "launch", "--workers", "2", "--replicas", "1", "train", "c.json",
                     "--run-dir", "workers", "--fresh")[1]
    t.check(any(wanted["digest"] in line for line in lines), "the same weights", lines)
    t.check(evaluations("workers") == evaluations("run"), "equal evaluations of workers",
            evaluations("workers"), evaluations("run"))


def rounded(t):
    """Two hidden values, tanh(2) and tanh(2 + 2^-6), are one in 16 bits, so that of two equal
    scores the blank's is the first; in 32 bits the label's is greater."""
    layers = [CONFIG["model"]["layers"][0], {"type": "dense", "name": "enc", "units": 2},
              {"type": "label_embedding", "name": "said", "units": 2},
              {"type": "joint", "name": "joint", "units": 2, "inputs": ["enc", "said"]}]
    model = dict(CONFIG["model"], classes=2, layers=layers)
    with open("rounded.json", "w", encoding="utf-8") as f:
        json.dump(dict(CONFIG, model=model, steps=1, evaluate_every_steps=0,
                       optimizer={"type": "sgd", "learning_rate": 1e-20},
                       data={"directory": "few"}), f)
    write_safetensors("rounded.safetensors", {
        "enc/kernel": [0] * 2 * COLUMNS, "enc/bias": [2, 2 + 2 ** -6], "said/embeddings": [0] * 4,
        "joint/kernel": [1, 0, 0, 1], "joint/bias": [0, 0]},
        {"enc/kernel": [COLUMNS, 2], "said/embeddings": [2, 2], "joint/kernel": [2, 2]})
    for precision, says in (("float32", True), ("mixed_bfloat16", False), ("mixed_float16", True)):
        t.expect(0, "train", "rounded.json", "--run-dir", "rounded", "--fresh", "--init",
                 "rounded.safetensors", "--set", f"precision={precision}")
        t.expect(0, "predict", "rounded.json", "--run-dir", "rounded", "--output", "rounded.npy",
                 "--set", f"precision={precision}")
        t.check(all((len(row) == LABELS) == says for row in predicted("rounded.npy")),
                "what is said in", precision, predicted("rounded.npy")[:3])


def by_errors(t):
    """Less is better: the best checkpoint stays, and the run ends early by the share of labels."""
    seen = {step: test["label_errors"] for step, test in evaluations("run")}
    best = min(seen, key=lambda step: (seen[step], step))
    t.check(len(set(seen.values())) > 3 and seen[20] == seen[40] > seen[60] > seen[best],
            "errors become fewer", seen)
    t.expect(0, "train", "c.json", "--run-dir", "best", "--fresh",
             "--set", "checkpoint.best=label_error_rate", "--set", "checkpoint.every_steps=20",
             "--set", "checkpoint.keep_max=1")
    kept = sorted(int(name[5:15]) for name in os.listdir("best/checkpoints")
                  if name.endswith(".safetensors"))
    t.check(best in kept and 20 not in kept, "the best one stays", kept, best)
    labels = evaluations("run")[0][1]["labels"]
    for delta, end in ((0.0, 120), ((seen[20] - seen[60] + 5) / labels, 60)):
        stop = json.dumps({"metric": "label_error_rate", "patience": 2, "min_delta": delta})
        lines = t.expect(0, "train", "c.json", "--run-dir", "early", "--fresh", "--set",
                         "early_stopping=" + stop)[1]
        t.check(evaluations("early")[-1][0] == end, "it ended", delta, evaluations("early"))
        said = f"test_label_errors {seen[20]} after step 20"
        t.check(any(said in line for line in lines) == (end == 60), "said why", lines)
    error = t.expect(78, "train", "c.json", "--run-dir", "none", "--set",
                     "checkpoint.best=accuracy")[2]
    t.check("loss, sequence_accuracy, label_error_rate" in error, "the metrics there are", error)


def main():
    t = Test()
    os.makedirs("data")
    write_set("train", 256)
    wanted = write_set("t10k", TESTED)
    with open("c.json", "w", encoding="utf-8") as f:
        json.dump(CONFIG, f)
    events = t.expect(0, "train", "c.json", "--run-dir", "run", "--fresh", "--json")[1]
    line = t.expect(0, "predict", "c.json", "--run-dir", "run", "--output", "p.npy")[1]
    t.check(f"labels p.npy ({TESTED}, {LABELS})" in line, "what was written", line)
    found = figures(predicted("p.npy"), wanted)
    figure = json.loads(t.expect(0, "eval", "c.json", "--run-dir", "run", "--json")[1][0])
    t.check({k: figure[k] for k in found} == found, "as predicted", figure, found)
    rate, right = found["label_errors"] / found["labels"], found["correct"] / TESTED
    t.check(abs(figure["test_label_error_rate"] - rate) < 1e-8 and
            abs(figure["test_sequence_accuracy"] - right) < 1e-8, "rates", figure, found)
    t.check(0 < rate < 0.5, "it has learnt, and not all", rate)
    step, last = evaluations("run")[-1]
    t.check(step == 120 and {k: last[k] for k in found} == found and
            abs(last["label_error_rate"] - rate) < 1e-5, "metrics.jsonl", step, last)
    last = [e for e in map(json.loads, events) if e["event"] == "evaluation"][-1]
    t.check(abs(last["label_error_rate"] - rate) < 1e-5 and "accuracy" not in last,
            "the event", last)
    t.expect(0, "report", "run")
    with open("run/report.html", encoding="utf-8") as f:
        page = f.read()
    said = f"sequence accuracy {100 * right:.2f}%, label error rate {100 * rate:.2f}%, after step"
    t.check(said in page and page.count("label error rate") >= 2, "the page", said)
    layouts(t, figure)
    by_errors(t)
    os.makedirs("few")
    write_set("train", 64, 2, "few")
    write_set("t10k", TESTED, 2, "few")
    rounded(t)
    t.finish()


if __name__ == "__main__":
    main()
