#!/usr/bin/env python3
"""budget_test - what the launches of a step on a GPU may cost, of every ready configuration, and
of those in configs/ beside this file, whose layers or arithmetic no ready one has.

   budget_test.py LAUNCHES CONFIG_DIR KNOWN [--table CONFIG BATCH] [--record]

LAUNCHES tells every launch of a step as the launching code chooses it (launches.c). A kind of
launches is an op's type and a kernel. Limits:

   waste   executed over useful floating-point operations of an op: at most 1.3. Useful is what
           the op's descriptor counts, of a gradient through a 2x2 pool the routed quarter.
   blocks  at least 64 where launches of its kind take more than a tenth of the step
   chain   at most 2,048 steps of a thread, one after another, where they take more than a fiftieth
   idle    at most half of the threads, where their work takes more than a fiftieth of all work

KNOWN lists what is over a limit today, with its value and why: a worse value fails, a new entry
fails, and so does an entry that is better than listed by a twentieth, or gone: lower it then
(--record writes the values anew and keeps the reasons).

Times are estimates for an H100 SXM; one took two to four times as long: 1.5 us for a node of a
graph, and the longest of
   products   the blocks, dealt evenly to 132 multiprocessors, at 128 fma a cycle of 1.755 GHz
   memory     the bytes that blocks ask for, at 5.5 TB/s
   chain      700 cycles for a trip to the second-level cache; each fetches 16 steps; 24 or 8 where
              batch normalisation sums one tensor or two; or, of matrix tiles, the chunks that are
              under way at once: three of 32 terms (16x16), three of 16 terms, two of 16 (128x64);
              one where a gradient is routed through a pool

A product of cuBLAS, whose kernel is its own affair, takes the longer of its operations at 700
TFLOP/s in bf16 (350 in tf32) and its operands and result at 3.35 TB/s. It has no limits here.

Address arithmetic, bank conflicts, divergence and what runs side by side are left out.

A step as one persistent kernel (ops/cuda/tasks.h) is estimated, too: for each level two trips for
the barrier of the grid, and the longest of
   products   all of the level's, dealt to 132 multiprocessors, or those of one tile
   memory     the bytes that tiles ask for, at 5.5 TB/s
   chain      the trips of a tile, or of all, dealt to 264 blocks, if that is longer
The program chooses by the same formulas (ops/cuda/tasks.c): what it reckons with must be this.
"""
import json
import math
import os
import re
import subprocess
import sys

BATCHES = (64, 1024, 8192)
PROCESSORS, CYCLES, FMA, BYTES = 132, 1.755e9, 128, 5.5e12
NODE, TRIP, RESIDENT = 1.5e-6, 700, 2048
PRODUCT_FLOPS, PRODUCT_BYTES = {2: 700e12, 4: 350e12}, 3.35e12  # of cuBLAS, by an operand's bytes
TASK_BLOCKS = 2 * PROCESSORS  # of the persistent kernel
# Terms that a trip brings to a matrix tile; where values go through registers, those of a chunk.
AHEAD, CHUNK = {"16x16": 96, "64x16": 48, "64x64": 48, "128x64": 32}, {"16x16": 32}
# A quarter of it at least: a tile of an image of one cell has one of four.
SLICES_AHEAD = {"sum_grain": 24, "square_grain": 24, "sum_gradients": 8}  # of one tensor, or two
LIMITS = {"waste": 1.3, "blocks": 64, "chain": 2048, "idle": 0.5}
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "configs")
# Configurations that GPUs do not run, with a word of what the program says of it.
REFUSED = {}


def symbols(program):
    """Names of functions by their distance from main."""
    said = subprocess.run(["nm", "-C", "--defined-only", program], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    found, main = {}, None
    for line in said.splitlines():
        address, kind, name = line.split(" ", 2)
        if kind not in "tTwW":
            continue
        found[int(address, 16)] = name
        main = int(address, 16) if name == "main" else main
    return {address - main: name for address, name in found.items()}


def kernel_name(text):
    """A function's name without its namespace of types and arguments: sums<64x16, conv_weight>."""
    tile = re.search(r"lk_cuda_tile<(\d+), (\d+)", text)
    job = re.search(r"(\w+)_job(<\w+>)?", text)
    name = re.search(r"(\w+)(<|\(|$)", re.sub(r"^(static )?void ", "", text)).group(1)
    inside = [f"{tile[1]}x{tile[2]}"] if tile else []
    inside += [job[1] + (", pooled" if job[2] == "<true>" else "")] if job else []
    return name.replace("lk_cuda_", "") + (f"<{', '.join(inside)}>" if inside else "")


def ahead_of(kernel):
    """Steps that a trip feeds."""
    tile = re.match(r"sums<(\w+)", kernel)
    if not tile:
        return SLICES_AHEAD.get(kernel, 16)
    return CHUNK.get(tile[1], 16) if "conv_input, pooled" in kernel else AHEAD[tile[1]]


def is_product(launch):
    return launch["kernel"] == "lk_blas_multiply"


def seconds(launch):
    if is_product(launch):
        return NODE + max(2 * launch["fma"] / PRODUCT_FLOPS[launch["steps"]],
                          launch["bytes"] / PRODUCT_BYTES)
    blocks, threads = math.prod(launch["blocks"]), launch["threads"]
    share = launch["fma"] / blocks * math.ceil(blocks / PROCESSORS)
    turns = max(math.ceil(launch["items"] / (blocks * threads)),
                math.ceil(blocks * threads / (PROCESSORS * RESIDENT)))
    trips = math.ceil(turns * launch["steps"] / launch["ahead"])
    return NODE + max(share / FMA / CYCLES, launch["bytes"] / BYTES, trips * TRIP / CYCLES)


def kernel_seconds(tasks):
    """Of a step as one persistent kernel."""
    levels = {}
    for one in tasks:
        levels.setdefault(one["level"], []).append(one)
    whole = 0.0
    for level in levels.values():
        trips = [math.ceil(math.ceil(one["items"] / (one["tiles"] * one["threads"]))
                           * one["steps"] / one["ahead"]) for one in level]
        dealt = sum(n * one["tiles"] for n, one in zip(trips, level)) / TASK_BLOCKS
        fma = max(sum(one["fma"] for one in level) / PROCESSORS,
                  max(one["fma"] / one["tiles"] for one in level))
        whole += 2 * TRIP / CYCLES + max(fma / FMA / CYCLES,
                                         sum(one["bytes"] for one in level) / BYTES,
                                         max(*trips, dealt) * TRIP / CYCLES)
    return whole


def kernel_of(lines, whole, name):
    """What is said of the step as one kernel, beside `whole` seconds as launches."""
    said = next(one for one in lines if "tasks_s" in one)
    if said["refused"]:
        return f"no persistent kernel: {said['refused']} an op"
    tasks = [one for one in lines if "level" in one]
    mine = kernel_seconds(tasks)
    for what, here, there in (("launches", whole, said["launches_s"]),
                              ("one kernel", mine, said["tasks_s"])):
        if abs(here - there) > 1e-8:
            sys.exit(f"{name}: {what}: {here} s by this test, {there} s by the program")
    levels = 1 + max(one["level"] for one in tasks)
    return f"as one persistent kernel {levels} levels, {1e6 * mine:.1f} us"


def step_of(program, names, config, batch):
    """The launches of a step, those of equal microbatches as one, and the lines of its tasks; None
    where GPUs do not run it."""
    done = subprocess.run([program, config, str(batch)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    name = os.path.basename(config)[:-len(".json")]
    if name in REFUSED:
        if done.returncode != 69 or REFUSED[name] not in done.stderr:
            sys.exit(f"{name}: wanted a refusal ({REFUSED[name]}), got {done.returncode}: "
                     f"{done.stderr}; where GPUs run it now, take it off REFUSED")
        return None
    if done.returncode != 0:
        sys.exit(f"{name} at batch {batch}: {done.returncode}: {done.stderr}")
    found, others = {}, []
    for line in done.stdout.splitlines():
        launch = json.loads(line)
        if "kernel" not in launch:
            others.append(launch)
            continue
        launch["kernel"] = kernel_name(names[launch["kernel"]])
        wanted, found_ahead = ahead_of(launch["kernel"]), launch["ahead"]
        least = wanted // 4 if launch["kernel"] in SLICES_AHEAD else wanted
        if not least <= found_ahead <= wanted:
            sys.exit(f"{name}: {launch['kernel']}: a trip feeds {found_ahead} steps, wanted "
                     f"{wanted}")
        one = found.setdefault(json.dumps(launch), dict(launch, times=0))
        one["times"] += 1
    return list(found.values()), others


def objectives(launches, others):
    """The steps of a configuration, one for each objective: (what their names end in, launches,
    lines of tasks)."""
    numbers = sorted({one["objective"] for one in launches})
    return [("" if len(numbers) == 1 else f".{number}",
             *([one for one in some if one["objective"] == number] for some in (launches, others)))
            for number in numbers]


def weigh(launches, batch):
    """Adds what the columns say."""
    executed = {}
    for one in launches:
        executed[one["op"]] = executed.get(one["op"], 0) + 2 * one["fma"] * one["times"]
        one["seconds"] = seconds(one)
    whole = sum(one["seconds"] * one["times"] for one in launches)
    work = sum((one["seconds"] - NODE) * one["times"] for one in launches)
    alike = {}
    for one in launches:
        sums = alike.setdefault((one["name"], one["kernel"]), [0, 0])
        sums[0] += one["seconds"] * one["times"] / whole
        sums[1] += (one["seconds"] - NODE) * one["times"] / work
    for one in launches:
        useful = one["flop"] * batch
        threads = math.prod(one["blocks"]) * one["threads"]
        one["share"], one["worth"] = alike[one["name"], one["kernel"]]
        one["waste"] = executed[one["op"]] / useful if useful and one["fma"] else 0.0
        one["idle"] = 1 - min(one["items"], threads) / threads
        one["chain"] = math.ceil(one["items"] / threads) * one["steps"]
    return whole


def over(one):
    """(column, value) of what is over a limit; a greater value is worse."""
    if is_product(one):
        return
    if one["waste"] > LIMITS["waste"]:
        yield "waste", round(one["waste"], 3)
    if one["share"] > 0.1 and math.prod(one["blocks"]) < LIMITS["blocks"]:
        yield "blocks", -math.prod(one["blocks"])
    if one["share"] > 0.02 and one["chain"] > LIMITS["chain"]:
        yield "chain", one["chain"]
    if one["worth"] > 0.02 and one["idle"] > LIMITS["idle"]:
        yield "idle", round(one["idle"], 3)


def print_table(launches, whole):
    print(f"{'op':32} {'kernel':34} {'times':>5} {'blocks':>8} {'thr':>4} {'MFLOP':>9} "
          f"{'useful':>9} {'waste':>6} {'MB':>7} {'chain':>6} {'idle':>5} {'us':>7} {'share':>6}")
    for one in launches:
        print(f"{one['op']:3} {one['name'][:28]:28} {one['kernel'][:34]:34} {one['times']:5} "
              f"{math.prod(one['blocks']):8} {one['threads']:4} {2e-6 * one['fma']:9.1f} "
              f"{one['useful']:9.1f} {one['waste']:6.2f} {1e-6 * one['bytes']:7.1f} "
              f"{one['chain']:6} {one['idle']:5.0%} {1e6 * one['seconds']:7.1f} "
              f"{one['seconds'] * one['times'] / whole:6.1%}")
    print(f"a step: {1e6 * whole:.1f} us, an estimate for an H100, which took 2 to 4 times that")


def configurations(folder):
    found = []
    for part in (folder, os.path.join(folder, "published"), OWN):
        found += [os.path.join(part, name) for name in sorted(os.listdir(part))]
    return [path for path in found
            if path.endswith(".json") and os.path.basename(path) != "digests.json"]


def find_all(program, names, folder):
    """{key: value} of all that is over a limit; configurations of equal launches count once."""
    found, seen = {}, {}
    for batch in BATCHES:
        for config in configurations(folder):
            told = step_of(program, names, config, batch)
            if told is None:
                continue
            same = json.dumps([batch, told[0]])
            name = os.path.relpath(config, OWN if config.startswith(OWN) else folder)
            name = name[:-len(".json")]
            if same in seen:
                print(f"{name} at batch {batch}: as {seen[same]}")
                continue
            seen[same] = name
            for end, step, tasks in objectives(*told):
                whole = weigh(step, batch)
                kernel = kernel_of(tasks, whole, f"{name}{end} at batch {batch}")
                print(f"{name}{end} at batch {batch}: {sum(one['times'] for one in step)} "
                      f"launches, {1e6 * whole:.1f} us; {kernel} (estimates)")
                for one in step:
                    for column, value in over(one):
                        key = f"{name}{end} {batch} {one['name']} {one['kernel']} {column}"
                        found[key] = max(value, found.get(key, value))
    if len(seen) < 9:
        sys.exit(f"found only {len(seen)} different steps")
    return found


def compare(found, known):
    failed = 0
    for key, value in sorted(found.items()):
        if key not in known:
            print(f"over its limit, and not listed: {key} {value}")
            failed += 1
        elif value > known[key] + 1e-9:
            print(f"worse than listed: {key} {value}, listed {known[key]}")
            failed += 1
        elif value < known[key] - 0.05 * abs(known[key]):
            print(f"better than listed, lower it: {key} {value}, listed {known[key]}")
            failed += 1
    for key in sorted(set(known) - set(found)):
        print(f"within its limit now, take it off the list: {key}")
        failed += 1
    return failed


def main():
    program, folder, known_file = sys.argv[1:4]
    names = symbols(program)
    if sys.argv[4:5] == ["--table"]:
        batch = int(sys.argv[6])
        for _, step, tasks in objectives(*step_of(program, names, sys.argv[5], batch)):
            whole = weigh(step, batch)
            for one in step:
                one["useful"] = 1e-6 * one["flop"] * batch if one["fma"] else 0.0
            print_table(step, whole)
            print(kernel_of(tasks, whole, sys.argv[5]))
        return 0
    found = find_all(program, names, folder)
    with open(known_file, encoding="utf-8") as f:
        known = json.load(f)
    if sys.argv[4:5] == ["--record"]:
        known["over"] = dict(sorted(found.items()))
        with open(known_file, "w", encoding="utf-8") as f:
            f.write(json.dumps(known, indent=1) + "\n")
        return 0
    kinds = {(key.split(" ", 2)[2]) for key in known["over"]}
    unexplained = sorted(kind for kind in kinds
                         if not any(re.search(pattern, kind) for pattern in known["why"]))
    for kind in unexplained:
        print(f"listed without a reason: {kind}")
    failed = compare(found, known["over"]) + len(unexplained)
    print(f"{len(found)} over a limit, {failed} problems")
    if failed:
        print("where that is meant so, as of a new configuration, --record lists it")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
