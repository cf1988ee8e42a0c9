#!/usr/bin/env python3
"""Judges files of Lockstep with the packages that everybody else reads them with.

    judge_safetensors.py FILE...      .safetensors with `safetensors`, .npy with `numpy`

Prints each tensor; for a checkpoint also recomputes content_sha256 from its definition: the
SHA-256 of the whole file with the 64 digits of that value taken as '0'.
Exit: 0 all good, 1 a file is wrong, 77 the packages are not installed.
"""
import hashlib
import sys

try:
    import numpy
    from safetensors import safe_open
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def judge_hash(path, recorded):
    with open(path, "rb") as file:
        content = file.read()
    if content.count(recorded.encode()) != 1:
        raise ValueError("content_sha256 is not found exactly once")
    computed = hashlib.sha256(content.replace(recorded.encode(), b"0" * 64)).hexdigest()
    if computed != recorded:
        raise ValueError(f"content_sha256 is {recorded}, computed {computed}")


def judge_safetensors(path):
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        for key, value in metadata.items():
            print(f"  {key} = {value!r}")
        for name in file.keys():
            tensor = file.get_tensor(name)
            print(f"  {name}: {tensor.dtype} {list(tensor.shape)} sum {tensor.sum()}")
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    if (8 + header_bytes) % 64 != 0:
        raise ValueError(f"tensor bytes start at {8 + header_bytes}, not a multiple of 64")
    if "lockstep_checkpoint" in metadata:
        judge_hash(path, metadata["content_sha256"])


def judge_npy(path):
    matrix = numpy.load(path, mmap_mode="r", allow_pickle=False)
    if matrix.ndim != 2 or matrix.dtype != numpy.dtype("<f4") or matrix.offset % 64 != 0:
        raise ValueError(f"{matrix.dtype} {matrix.shape} at {matrix.offset}: not a float matrix")
    print(f"  {matrix.dtype} {list(matrix.shape)} sum {matrix.sum(dtype=numpy.float64)}")


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 64
    for path in sys.argv[1:]:
        print(path)
        try:
            (judge_npy if path.endswith(".npy") else judge_safetensors)(path)
        except Exception as wrong:  # whatever the reader throws is its verdict
            print(f"{path}: {type(wrong).__name__}: {wrong}", file=sys.stderr)
            return 1
    return 0


sys.exit(main())
