#!/usr/bin/env python3
"""A few made-up sequences for board-transducer.json: FRAMES and LABELS of these are IDX files.

   sequences.py FRAMES LABELS
"""
import random
import struct
import sys

EXAMPLES, FRAMES, FEATURES, LABELS, CLASSES = 23, 6, 5, 3, 6


def write(frames, labels):
    """Examples of every length, among them the longest of both, one frame, and no label."""
    r = random.Random(17)
    with open(frames, "wb") as f:
        f.write(struct.pack(">4I", 0x803, EXAMPLES, FRAMES, FEATURES))
        f.write(r.randbytes(EXAMPLES * FRAMES * FEATURES))
    with open(labels, "wb") as f:
        f.write(struct.pack(">3I", 0x802, EXAMPLES, 2 + LABELS))
        for i in range(EXAMPLES):
            count = (LABELS, 0, 1)[i] if i < 3 else r.randint(0, LABELS)
            said = [r.randrange(1, CLASSES) for _ in range(count)]
            f.write(struct.pack(">H", (FRAMES, 1, FRAMES)[i] if i < 3 else r.randint(1, FRAMES)))
            f.write(bytes(said + [0] * (LABELS - count)))


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2])
