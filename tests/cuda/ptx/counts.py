#!/usr/bin/env python3
"""counts.py - a table of what the PTX executor counted (LOCKSTEP_PTX_COUNTS=FILE).

   counts.py FILE
   counts.py BEFORE NOW      the kernels that cost something else now, and by how much

Of each kernel: launches; instructions of PTX that its warps ran, in thousands, and of these those
that multiply and add, other arithmetic of floats, integers (comparisons, too), moves, memory; lanes
that took part, of 32; global memory: 32-byte sectors asked for, and how many the bytes wanted would
fill; shared memory: passes over the banks, and without any conflict; branches that parted lanes;
barriers of warps. PTX is not what a GPU runs: ptxas removes moves, joins and orders anew.
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../launches"))
from budget_test import kernel_name  # noqa: E402

FLOATS, INTEGERS, MOVES = ("float",), ("integer", "compare"), ("move", "load_param")
# A copy reads global memory and writes shared memory.
GLOBAL = ("load_global", "store_global", "load_generic", "store_generic", "atomic", "copy")
SHARED, LOCAL = ("load_shared", "store_shared", "copy"), ("load_local", "store_local")
COLUMNS = (("launches", 8), ("k instr", 9), ("fma", 5), ("float", 5), ("int", 5), ("move", 5),
           ("memory", 6), ("lanes", 5), ("sectors", 9), ("needed", 9), ("passes", 9),
           ("least", 9), ("parted", 8), ("barriers", 8))


def read(path):
    """The counts of each kernel by its short name: instances of a name, as of several files, are
    one."""
    with open(path, encoding="ascii") as f:
        counted = json.load(f)
    said = subprocess.run(["c++filt"], input="\n".join(k["kernel"] for k in counted), text=True,
                          stdout=subprocess.PIPE, check=True).stdout.splitlines()
    found = {}
    for k, name in zip(counted, said):
        k["name"] = kernel_name(name)
        same = found.setdefault(k["name"], {"launches": 0, "blocks": 0, "warps": 0, "diverged": 0,
                                            "kinds": {}, "barriers": []})
        for key in ("launches", "blocks", "warps", "diverged"):
            same[key] += k[key]
        same["barriers"] += [(k["kernel"], line) for line in k["barriers"]]
        for kind, numbers in k["kinds"].items():
            into = same["kinds"].setdefault(kind, dict.fromkeys(numbers, 0))
            for key, value in numbers.items():
                into[key] += value
    return found


def sum_of(kernel, key, kinds=None):
    return sum(numbers[key] for kind, numbers in kernel["kinds"].items()
               if kinds is None or kind in kinds)


def row(kernel):
    runs = sum_of(kernel, "runs")

    def share(*kinds):
        return f"{100 * sum_of(kernel, 'runs', kinds) / runs:.0f}%"
    needed = -(-sum_of(kernel, "bytes", GLOBAL) // 32)
    return [kernel["launches"], f"{runs / 1000:.1f}", share("fma"), share(*FLOATS),
            share(*INTEGERS), share(*MOVES), share(*GLOBAL, *SHARED, *LOCAL),
            f"{sum_of(kernel, 'lanes') / runs:.1f}", sum_of(kernel, "sectors", GLOBAL), needed,
            sum_of(kernel, "passes", SHARED), sum_of(kernel, "optimum", SHARED),
            kernel["diverged"], sum_of(kernel, "runs", ("barrier",))]


def costs(kernel):
    return {"instructions": sum_of(kernel, "runs"), "launches": kernel["launches"],
            "sectors": sum_of(kernel, "sectors", GLOBAL),
            "passes": sum_of(kernel, "passes", SHARED), "parted": kernel["diverged"],
            "barriers": sum_of(kernel, "runs", ("barrier",))}


def differences(before, now):
    """A line for each kernel that is new, gone, or costs something else."""
    lines = []
    for name in sorted(set(before) | set(now)):
        if name not in before or name not in now:
            lines.append(f"{name}: {'gone' if name in before else 'new'}")
            continue
        a, b = costs(before[name]), costs(now[name])
        said = [f"{what} {a[what]} -> {b[what]}" + (
            f" ({100 * (b[what] - a[what]) / a[what]:+.1f}%)" if a[what] else "")
            for what in a if a[what] != b[what]]
        if said:
            lines.append(f"{name}: {', '.join(said)}")
    return lines


def main():
    kernels = read(sys.argv[1])
    if len(sys.argv) > 2:
        lines = differences(kernels, read(sys.argv[2]))
        print("\n".join(lines + [f"{len(lines)} kernels cost something else"]))
        return
    print(f"{'kernel':36}" + "".join(f" {name:>{width}}" for name, width in COLUMNS))
    for name in sorted(kernels, key=lambda n: -sum_of(kernels[n], "runs")):
        print(f"{name:36}" + "".join(f" {value!s:>{width}}" for value, (_, width)
                                     in zip(row(kernels[name]), COLUMNS)))


if __name__ == "__main__":
    main()
