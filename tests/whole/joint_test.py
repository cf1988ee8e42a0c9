#!/usr/bin/env python3
"""joint_test - the joint of a transducer whose scores would be 2,588 MB: 16 examples of 455 frames
and 20 labels, 4,233 symbols. Its plan, at most a tenth of that; and three steps in 1 GiB.

   joint_test.py PROGRAM WORK_DIR [train]

Standard library only.
"""
import json
import os
import random
import struct
import sys

from program import Test

EXAMPLES, FRAMES, FEATURES, LABELS, SYMBOLS = 16, 455, 64, 20, 4233
ALL = EXAMPLES * FRAMES * (LABELS + 1) * SYMBOLS * 4

CONFIG = {
    "name": "joint", "seed": 1, "global_batch": EXAMPLES, "grain": 8, "steps": 3,
    "log_every_steps": 1, "checkpoint": {"every_steps": 0, "every_seconds": 0},
    "model": {"input": [FRAMES, FEATURES, 1], "classes": 256, "labels": LABELS,
              "loss": "transducer", "layers": [
        {"type": "reshape", "name": "rows", "target_shape": [FRAMES, FEATURES]},
        {"type": "dense", "name": "enc", "units": 128},
        {"type": "label_embedding", "name": "said", "units": 32},
        {"type": "lstm", "name": "pred", "units": 128, "return_sequences": True},
        {"type": "joint", "name": "joint", "units": SYMBOLS, "inputs": ["enc", "pred"]}]},
    "optimizer": {"type": "sgd", "learning_rate": 0.001},
    "data": {"train": {"images": "images", "labels": "labels"}},
}


def write_data():
    r = random.Random(1)
    with open("images", "wb") as f:
        f.write(struct.pack(">4I", 0x803, EXAMPLES, FRAMES, FEATURES))
        f.write(r.randbytes(EXAMPLES * FRAMES * FEATURES))
    with open("labels", "wb") as f:
        f.write(struct.pack(">3I", 0x802, EXAMPLES, 2 + LABELS))
        for _ in range(EXAMPLES):
            f.write(struct.pack(">H", FRAMES) + bytes(r.choices(range(1, 256), k=LABELS)))


def main():
    t = Test()
    write_data()
    with open("c.json", "w", encoding="utf-8") as f:
        json.dump(CONFIG, f)
    plan = ["plan", "c.json", "--replicas", "1"]
    found = json.loads("".join(t.expect(0, *plan, "--json")[1]))
    joint = found["joints"][0]
    t.check(joint["whole_bytes"] == ALL == 2588564160, "what others have", joint, ALL)
    t.check(joint["whole_shape"] == [EXAMPLES, FRAMES, LABELS + 1, SYMBOLS], "its shape", joint)
    t.check(joint["saved_bytes"] == ALL - joint["tile_bytes"], "what is saved", joint)
    scratch = [tensor["bytes"] for tensor in found["tensors"]
               if tensor["name"].startswith("joint/") and tensor["name"].endswith("/scratch")]
    t.check(joint["tile_bytes"] == max(scratch), "the tile is in the plan", joint, scratch)
    t.check(found["arena_bytes"] <= ALL / 10, "all of it is a tenth", found["arena_bytes"])
    lines = t.expect(0, *plan)[1]
    t.check(any(f"joint joint: {joint['tile_bytes']} bytes for {joint['tile_cells']} cells" in line
                and f"{joint['saved_bytes']} fewer" in line for line in lines), "the line", lines)
    if sys.argv[3:] == ["train"]:
        lines = t.expect(0, "train", "c.json", "--run-dir", "run", "--fresh", "--replicas", "1",
                         "--max-memory", "1G", "--quiet")[1]
        with open("run/metrics.jsonl", encoding="utf-8") as f:
            losses = [json.loads(line)["train"]["loss"] for line in f]
        t.check(len(losses) == 3 and losses[2] < losses[0], "three steps, and it learns", losses)
    os.remove("images")
    t.finish()


if __name__ == "__main__":
    main()
