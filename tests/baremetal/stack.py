#!/usr/bin/env python3
"""stack - the most stack that an image can use, added up from the compiler's own call graph.

   tests/baremetal/stack.py BUILD_DIRECTORY ENTRY IMAGE

Reads the .ci files that gcc writes beside its objects (-fcallgraph-info=su): the frame of each
function and whom it calls. What the compiler cannot know is said here, and checked:

  - a call through a pointer may reach every function of the image whose address the objects hold
    (their relocations say which), but those of ONLY_FROM, which one function alone calls
  - a recursion is as deep as RECURSION says; any other one is an error
  - a function of the compiler's library has no node: LIBRARY_BYTES for each call into it

Prints the bytes, then the path of calls that needs them.
"""
import os
import re
import subprocess
import sys

READELF = os.environ.get("READELF", "arm-none-eabi-readelf")
LIBRARY_BYTES = 128           # __aeabi_uldivmod and what it calls save 56 (gcc 12)
RECURSION = {"node_value": 33}  # LK_TREE_LEVELS_MAX: once for each level of the tree
ONLY_FROM = {"on_panic": "lk_panic",
             # the walk over the ops
             "before": "lk_walk_ops", "load": "lk_walk_ops", "examples": "lk_walk_ops",
             "metric_sum": "lk_walk_ops", "gradient": "lk_walk_ops", "after_op": "lk_walk_ops",
             "apply_sums": "each_sum", "store_sums": "each_sum",
             "count_present": "lk_lane_present",
             # the driver's tables
             **{name: "do_row" for name in (
                 "meet_at_once", "compute_whole", "compute_bucket", "share_bucket", "join_bucket",
                 "update_all", "apply_judged", "follow_and_apply_normed", "update_partition",
                 "reduce_partition", "square_partition", "reduce_bucket", "apply_bucket",
                 "evaluate_share", "write_report", "complete_report")},
             **{name: "judge_step" for name in (
                 "flags_of_replicas", "flags_of_all", "flags_of_norms", "lk_step_decide")},
             **{name: "lk_driver_finish" for name in (
                 "finish_step", "finish_alone", "finish_with_all")}}
# Functions whose calls through pointers reach these alone: the slots of optimizers, averages of
# weights, functions that are handed over by name, the kernel that calls one of its table.
SMOOTH = ("softplus", "swish", "gelu", "gelu_tanh")
SLOTS = {"list_momentum_slots", "list_rmsprop_slots", "list_adam_slots"}
TERMS = {"term_x", "term_square", "term_dy", "term_gamma"}
REACHES = {"smooth": {name + "_of" for name in SMOOTH},
           "smooth_backward": {name + "_slope" for name in SMOOTH},
           "dense_bias_gradient": {"column_sums"},
           "example_sum": TERMS, "grain_of": TERMS,
           "each_sum": {"apply_sums", "store_sums"}, "lk_lane_present": {"count_present"},
           "follow_weights": SLOTS | {"lk_average_reference", "round_floats"},
           **{name: SLOTS | {"round_floats"} for name in (
               "round_some", "round_average", "start_averages", "take_averages")},
           **{name: SLOTS for name in (
               "lk_program_initialize", "fill_slots", "own_tensor", "lk_average_of")}}
INDIRECT = "__indirect_call"


def short(title):
    return title.rsplit(":", 1)[-1]


def read_graph(path, frames, calls):
    """Adds one .ci file; returns the functions that it defines, by name."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    defined = {}
    for title, label in re.findall(r'^node: \{ title: "([^"]*)" label: "([^"]*)"', text, re.M):
        size = re.search(r"\\n(\d+) bytes \(([^)]*)\)", label)
        if not size:
            continue
        if size.group(2) != "static":
            sys.exit(f"stack: {short(title)}: its frame is {size.group(2)}, wanted static")
        frames[title] = int(size.group(1))
        defined[short(title)] = title
    for source, target in re.findall(
            r'^edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"', text, re.M):
        calls.setdefault(source, set()).add(target)
    return defined


def taken_names(path):
    """Names that an object refers to other than by a call."""
    names = set()
    out = subprocess.run([READELF, "-rW", path], capture_output=True, text=True, check=True).stdout
    section = ""
    for line in out.split("\n"):
        if line.startswith("Relocation section"):
            section = line.split("'")[1]
        words = line.split()
        described = any(part in section for part in (".debug", ".ARM", ".eh_frame", "vectors"))
        if described or len(words) < 5 or not words[2].startswith("R_ARM"):
            continue
        if words[2] in ("R_ARM_THM_CALL", "R_ARM_THM_JUMP24", "R_ARM_THM_JUMP11", "R_ARM_CALL"):
            continue
        names.add(words[4].removeprefix(".text."))  # each function has a section of its own
    return names


class Stack:
    def __init__(self, frames, calls, pointed):
        self.frames, self.calls, self.pointed = frames, calls, pointed
        self.known, self.active = {}, []

    def targets(self, title):
        for target in self.calls.get(title, ()):
            if target != INDIRECT:
                yield target
                continue
            for pointed in self.pointed:
                if short(pointed) not in REACHES.get(short(title), {short(pointed)}):
                    continue
                if ONLY_FROM.get(short(pointed), short(title)) == short(title) and (
                        short(title) != "lk_panic" or short(pointed) in ONLY_FROM):
                    yield pointed

    def worst(self, title):
        """(bytes, path) of the deepest chain of calls that starts here."""
        if title in self.known:
            return self.known[title]
        if title not in self.frames:
            if not title.startswith("__"):
                sys.exit(f"stack: nobody knows the frame of {title}")
            return LIBRARY_BYTES, [f"{title} {LIBRARY_BYTES}"]
        if title in self.active:
            sys.exit("stack: a recursion that nobody bounded: "
                     + " > ".join(short(t) for t in self.active + [title]))
        self.active.append(title)
        deepest = (0, [])
        times = 1
        for target in sorted(self.targets(title)):
            if target == title:
                if short(title) not in RECURSION:
                    sys.exit(f"stack: {short(title)} calls itself, and nobody said how often")
                times = RECURSION[short(title)]
                continue
            deepest = max(deepest, self.worst(target))
        self.active.pop()
        own = self.frames[title] * times
        name = short(title) + (f" x {times}" if times > 1 else "")
        self.known[title] = own + deepest[0], [f"{name} {own}"] + deepest[1]
        return self.known[title]


def linked_names(image):
    out = subprocess.run([READELF, "-sW", image], capture_output=True, text=True, check=True).stdout
    lines = (line.split() for line in out.split("\n"))
    return {words[7] for words in lines if len(words) > 7 and words[3] == "FUNC"}


def worst_case(build, entry, image):
    frames, calls, pointed = {}, {}, set()
    taken_anywhere = set()
    for folder, _, names in os.walk(build):
        for name in names:
            if not name.endswith(".c.obj"):
                continue
            path = os.path.join(folder, name)
            taken = taken_names(path)
            taken_anywhere |= taken
            defined = read_graph(path.removesuffix(".obj") + ".ci", frames, calls)
            pointed |= {defined[n] for n in taken if n in defined}
    pointed |= taken_anywhere & set(frames)  # one file takes, another one defines
    linked = linked_names(image)
    pointed = {title for title in pointed if short(title) in linked}
    if entry not in frames:
        sys.exit(f"stack: {build} has no function {entry}")
    return Stack(frames, calls, pointed).worst(entry)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    total, path = worst_case(sys.argv[1], sys.argv[2], sys.argv[3])
    print(f"{total} bytes: " + ", ".join(path))
