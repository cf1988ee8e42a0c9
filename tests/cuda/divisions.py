"""divisions.py - where kernels divide integers by what nvcc does not know, which is some dozens of
instructions: never once an element. Numbers of elements are taken apart by multiplications with
what the host found (lk_cuda_quotient of ops/cuda/device.h), or by the dimensions of a grid.

A body of the persistent kernel is listed as the kernel whose body it is.
"""
import re
import subprocess

# Kernel: the most div and rem of integers in the PTX of one instance, and of what they are one. One
# of 64 bits has a short form of 32 beside it.
ALLOWED = {
    "lk_cuda_sums": (10, "a leaf of LK_SLICE_TERMS terms, and the tile of a block"),
    "routed_sums": (9, "a leaf, and the tile of a block"),
    "routed": (9, "a leaf, and the tile of a block"),  # the body of routed_sums
    "column_sums": (8, "a leaf, and a thread"),
    "label_sums": (8, "a leaf, and a thread"),
    "lk_cuda_join": (2, "a sum whose number is 2^31 or more"),
    "sum_grain": (5, "a slice of LK_SLICE_TERMS terms"),
    "square_grain": (7, "a slice of LK_SLICE_TERMS terms"),
    "sum_gradients": (5, "a slice of LK_SLICE_TERMS terms"),
    "normalize_grain": (4, "a thread: how many slices its grain has"),
    "turn_back_grain": (4, "a thread: how many slices its grain has"),
    "sums_of_cells": (4, "a slice of LK_SLICE_TERMS terms"),
    "group_weights": (12, "a weight, whose terms are all cells of its grains"),
    "load": (9, "an example, and the part of a block"),
    "narrow": (12, "a value that is not finite"),
    "look_for": (6, "a value that is not finite"),
    "sum_lattices": (2, "an example: how many frames it has"),
    "decode": (2, "an example: how many frames it has"),
    "square": (2, "a thread: the slot of its step"),
    "fit_all": (2, "a thread: the slot of its step"),
    "update": (2, "a thread: the slot of its step"),
    "join_and_update": (2, "a thread: the slot of its step"),
    "step_end": (4, "a thread: the slot of its step"),
    "persistent": (4, "a tile, and a thread"),
}
FUNCTION = re.compile(r"^[^/\n]*\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(\w+)\s*\(", re.M)
DIVISION = re.compile(r"^\s*(?:@\S+\s+)?(?:div|rem)\.[us](?:16|32|64)\b", re.M)


def kernel_of(text):
    """The name of a function of the PTX, demangled, in the list."""
    body = re.search(r"(\w+)_body\b", text)
    if body:
        return body[1]
    return re.search(r"(\w+)(?:<|\(|$)", re.sub(r"^(?:static )?void ", "", text))[1]


def counts(ptx):
    """{kernel: the most of one instance} of those that divide."""
    starts = list(FUNCTION.finditer(ptx))
    ends = [one.start() for one in starts[1:]] + [len(ptx)]
    found = [(one[1], len(DIVISION.findall(ptx, one.start(), end)))
             for one, end in zip(starts, ends)]
    said = subprocess.run(["c++filt"], input="\n".join(name for name, _ in found), text=True,
                          stdout=subprocess.PIPE, check=True).stdout.splitlines()
    most = {}
    for name, (_, count) in zip(said, found):
        if count:
            most[kernel_of(name)] = max(count, most.get(kernel_of(name), 0))
    return most


def problems(most):
    """Of {kernel: count} a line for each that divides more than it may."""
    lines = []
    for kernel, count in sorted(most.items()):
        allowed, of = ALLOWED.get(kernel, (0, "nothing"))
        if count > allowed:
            lines.append(f"{kernel}: found {count} div and rem of integers, wanted at most "
                         f"{allowed}, one of {of}; take numbers apart by lk_cuda_quotient")
    return lines


def stale(most):
    """A line for each entry of the list that is more than all kernels need."""
    return [f"{kernel}: listed with {allowed} divisions, has {most.get(kernel, 0)}: lower it"
            for kernel, (allowed, _) in sorted(ALLOWED.items()) if most.get(kernel, 0) < allowed]
