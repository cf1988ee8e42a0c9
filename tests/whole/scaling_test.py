#!/usr/bin/env python3
"""scaling_test - what `lockstep plan --workers N --bandwidth B` adds up, against sums made here
from the plan's tensors alone, and the table of tests/README.md against what the command prints.

   scaling_test.py PROGRAM WORK_DIR README
"""
import json
import os
import re
import sys

from program import Test

README = os.path.abspath(sys.argv[3])
PLAN = ["plan", "made-up-cnn", "--set", "global_batch=16384", "--replicas", "1"]
MESSAGE_US, LATENCY_US = 5, 20
PART_FLOATS, PART_SLICE_FLOATS = 65536, 8192


def link_of(t, workers, *more):
    _, lines, _ = t.expect(0, *PLAN, "--workers", str(workers), "--json", *more)
    return json.loads("\n".join(lines))


def check_parts(t, plan, workers):
    """The parts of the exchange, from the last layer to the first: all of the gradients."""
    floats = 0
    for tensor in plan["tensors"]:
        if tensor["class"] == "parameter":
            count = 1
            for length in tensor["shape"]:
                count *= length
            floats += (count + 15) // 16 * 16
    parts = plan["exchange_parts"]
    ends = [floats] + [part["begin"] for part in parts]
    alone = floats > max(PART_FLOATS, PART_SLICE_FLOATS * workers)  # of them nearly all are dense
    t.check(ends[-1] == 0 and ends[:-1] == [part["end"] for part in parts] and
            len(parts) == 1 + alone and
            sorted({part["after_op"] for part in parts}) == [part["after_op"] for part in parts],
            "the parts of the exchange", parts, floats)
    return parts


def slices(part, workers):
    """Floats of every worker's slice of a part, and of all of it."""
    floats = part["end"] - part["begin"]
    cuts = [floats // 16 * i // workers * 16 for i in range(workers + 1)]
    return [b - a for a, b in zip(cuts, cuts[1:])], floats


def check_sums(t, workers, bandwidth, latency=None):
    """1,024 grains on a power of two of workers: every worker has one whole node."""
    options = ["--bandwidth", str(bandwidth)]
    plan = link_of(t, workers, *options, *(["--latency", str(latency)] if latency else []))
    found = plan["exchange_of_workers"]
    others = workers - 1
    sent, messages = [0] * workers, [others] * workers  # notes go to all, what is empty to nobody
    for part in check_parts(t, plan, workers):
        cut, floats = slices(part, workers)
        for i, own in enumerate(cut):
            sent[i] += max(floats - own, others * own)
            messages[i] += 2 * (others if own else sum(c > 0 for c in cut))
    notes = found["bytes_per_step"] - 4 * 2 * max(sent)
    messages = max(messages)
    us = (2 * (latency or LATENCY_US) + MESSAGE_US * messages +
          8 * found["bytes_per_step"] / (bandwidth * 1e3))
    what = f"{workers} workers at {bandwidth} Gbit/s: {found}"
    t.check(notes % others == 0 and 0 < notes // others < 1200, what, notes)
    t.check(found["turns"] == 2 and found["messages_per_step"] == messages, what, messages)
    t.check(abs(found["us_per_step"] - us) < 0.001, what, us)
    return found, notes // others


def check_text(t, workers, found):
    """The same numbers in words, and the formula as the README has it."""
    _, lines, _ = t.expect(0, *PLAN, "--workers", str(workers), "--bandwidth", "10")
    said = "\n".join(lines[-5:])
    messages = found["messages_per_step"]
    for wanted in (f"2 rounds, {found['bytes_per_step']} bytes and {messages} messages",
                   "latency + messages x 5 us + 8 x bytes / bandwidth",
                   f"= {found['us_per_step'] / 1e3:.3f} ms"):
        t.check(wanted in said, "the text of the plan", wanted, said)


def check_table(t):
    with open(README, encoding="utf-8") as f:
        text = f.read()
    rate = int(re.search(r"computes ([\d,]+) images/s", text)[1].replace(",", ""))
    notes_said = int(re.search(r"the reports \((\d+) bytes", text)[1])
    rows = 0
    for workers in (8, 64, 1024):
        (slow, note), (fast, _) = check_sums(t, workers, 10), check_sums(t, workers, 100)
        cells = [f"{workers:,}", f"{slow['messages_per_step']:,}", f"{slow['bytes_per_step']:,}",
                 f"{slow['us_per_step'] / 1e3:.3f} ms", f"{fast['us_per_step'] / 1e3:.3f} ms",
                 f"{16384 / workers / rate * 1e3:.3f} ms"]
        row = "| " + " | ".join(cells) + " |"
        rows += t.check(row in text, "the README's table wants this row", row)
        t.check(note == notes_said, "the README's bytes of a note", note)
        check_text(t, workers, slow)
    # Where the step is shortest: the terms that fall and grow with the workers are equal there.
    best = (16384 / rate * 1e6 / (3 * MESSAGE_US)) ** 0.5
    t.check(abs(best - int(re.search(r"shortest at about (\d+)", text)[1])) < 5, "best", best)
    return rows


def main():
    t = Test()
    rows = check_table(t)
    check_sums(t, 2, 2.5)
    check_sums(t, 16, 400, latency=1.5)
    # A number of workers whose grains are no whole nodes: more boxes than in the even case.
    uneven = link_of(t, 3, "--bandwidth", "800M")["exchange_of_workers"]
    even = link_of(t, 4, "--bandwidth", "0.8")["exchange_of_workers"]
    t.check(uneven["bytes_per_step"] > 2 * even["bytes_per_step"], "3 workers", uneven, even)
    t.check(uneven["bandwidth_bits_per_second"] == even["bandwidth_bits_per_second"] == 8e8, "unit")
    t.check("exchange_of_workers" not in link_of(t, 4), "no bandwidth, no time")
    for wrong in (["--bandwidth", "10"], ["--workers", "1", "--bandwidth", "10"],
                  ["--workers", "2", "--latency", "3"],
                  *(["--workers", "2", "--bandwidth", b]
                    for b in ("", "0", "-1", "10x", "1GG", "0x1", "1e3", "nan", "inf", "1e400")),
                  *(["--workers", "2", "--bandwidth", "1", "--latency", u] for u in ("2u", "0"))):
        code, _, error = t.run(*PLAN, *wrong)
        t.check(code == 64 and wrong[-2] in error, wrong, code, error)
    print(f"{rows} rows of the README hold")
    t.finish()


if __name__ == "__main__":
    main()
