#!/usr/bin/env python3
"""score_test - eval with a judge: a GAN's score is the one that its own images and the judge's own
logits give in Python; the test set's stands beside it; nothing depends on kernels and microbatches.

   score_test.py PROGRAM WORK_DIR GAN_JSON
"""
import json
import math
import os
import shutil
import struct
import sys

from program import Test, value

FIGURES = ("score", "frechet_distance", "test_score", "test_frechet_distance")
TEST = {"made_up": {"first": 1000, "count": 400, "height": 10, "width": 8}}


def logits_of(path):
    with open(path, "rb") as f:
        data = f.read()
    count = (len(data) - 128) // 40
    return [struct.unpack_from("<10f", data, 128 + 40 * i) for i in range(count)]


def score(logits):
    """exp of the mean of KL(p(y|x) || p(y))."""
    answers = []
    for row in logits:
        most = max(row)
        parts = [math.exp(v - most) for v in row]
        answers.append([p / sum(parts) for p in parts])
    share = [sum(a[k] for a in answers) / len(answers) for k in range(10)]
    return math.exp(sum(p * math.log(p / share[k]) for a in answers for k, p in enumerate(a) if p)
                    / len(answers))


def figures(t, config, *more):
    _, lines, _ = t.expect(0, "eval", config, "--run-dir", "gan", "--judge", "judge", *more)
    return [value(lines, name) for name in FIGURES], lines


def main():
    t = Test()
    with open(sys.argv[3], encoding="utf-8") as f:
        document = json.load(f)
    document["data"]["test"] = TEST
    with open("gan.json", "w", encoding="utf-8") as f:
        json.dump(document, f)
    judge = t.write("judge.json", {
        "model.input": [10, 8, 1], "steps": 100, "global_batch": 64,
        "data.train": {"made_up": {"count": 1000, "height": 10, "width": 8}}, "data.test": TEST})
    t.expect(0, "train", judge, "--run-dir", "judge", "--quiet")
    _, lines, _ = t.expect(0, "train", "gan.json", "--run-dir", "gan", "--set", "steps=22")
    tested = next(line for line in open("gan/metrics.jsonl", encoding="utf-8") if '"test"' in line)
    tested = json.loads(tested)["test"]
    names = set(tested) - {"objective", "examples"}
    t.check(names == {"loss", "real", "generator_loss", "fake"}, "metrics of both", tested)
    t.check(tested["generator_loss"] == -tested["fake"] != tested["loss"],
            "wasserstein: the generator's loss is what the discriminator says of its images",
            tested)

    found, lines = figures(t, "gan.json", "--count", "300")
    t.check(value(lines, "test_generator_loss") and value(lines, "test_fake"), "of both", lines)
    t.expect(0, "generate", "gan.json", "--run-dir", "gan", "--count", "300", "--output",
             "made.npy")
    t.expect(0, "predict", judge, "--run-dir", "judge", "--images", "made.npy", "--output",
             "made-logits.npy")
    t.expect(0, "predict", judge, "--run-dir", "judge", "--output", "test-logits.npy")
    for name, path in (("score", "made-logits.npy"), ("test_score", "test-logits.npy")):
        wanted, is_ = score(logits_of(path)), float(found[FIGURES.index(name)])
        t.check(1 <= is_ <= 10 and abs(is_ - wanted) < 1e-5 * wanted, name, is_, wanted)
    made, own = float(found[1]), float(found[3])
    t.check(0 < own < made, "made images are farther off than half of the test set from the other",
            found)
    for more in (["--set", "layout.wave_examples=32"], ["--kernels", "portable"],
                 ["--set", "layout.guards=true"], ["--replicas", "3"]):
        again, _ = figures(t, "gan.json", "--count", "300", *more)
        t.check(again == found, "the same figures", more, again, found)
    checkpoint = "judge/checkpoints/" + os.listdir("judge/checkpoints")[0]
    _, lines, _ = t.expect(0, "eval", "gan.json", "--run-dir", "gan", "--json", "--set",
                           f"judge=\"{checkpoint}\"")
    said = json.loads("\n".join(lines))
    t.check(said["generated"] == 400 and f"{said['test_score']:.6g}" == found[2] and
            "frechet_distance" in said, "as JSON, of as many as the test set has", said)

    name = os.path.basename(checkpoint)
    for there, judge_path in (("judge/checkpoints", name), ("judge/checkpoints", "./" + name),
                              ("judge", "checkpoints/" + name), ("gan", "../" + checkpoint),
                              ("judge/checkpoints", "../checkpoints/" + name)):
        os.chdir(there)
        _, lines, _ = t.expect(0, "eval", t.work + "/gan.json", "--run-dir", t.work + "/gan",
                               "--judge", judge_path, "--count", "300")
        t.check(value(lines, "score") == found[0], "from another directory", judge_path, lines)
        os.chdir(t.work)
    shutil.copy(checkpoint, name)
    _, _, error = t.expect(66, "eval", "gan.json", "--run-dir", "gan", "--judge", name)
    t.check(f"judge: {name}: the configuration of its run, ../config.json, cannot be read; wanted"
            in error, "a checkpoint without its run", error)

    small = t.write("small.json", {"data.test": {"made_up": {"count": 100, "height": 10,
                                                             "width": 10}}})
    t.expect(0, "train", small, "--run-dir", "small", "--quiet", "--set", "steps=1")
    for code, words, arguments in (
            (64, "--count: of images that a judge scores",
             ["gan.json", "--run-dir", "gan", "--count", "5"]),
            (64, "wanted 2 and 4 or more",
             ["gan.json", "--run-dir", "gan", "--judge", "judge", "--count", "1"]),
            (78, "it is no classifier", ["gan.json", "--run-dir", "gan", "--judge", "gan"]),
            (78, "its images are of another size",
             ["gan.json", "--run-dir", "gan", "--judge", "small"]),
            (66, "none/config.json", ["gan.json", "--run-dir", "gan", "--judge", "none"]),
            (78, "a generator of images", [judge, "--run-dir", "judge", "--judge", "judge"])):
        exit_code, lines, error = t.run("eval", *arguments)
        t.check(exit_code == code and words in error, "refused", arguments, exit_code, error)
    return t.finish()


if __name__ == "__main__":
    sys.exit(main())
