#!/usr/bin/env python3
"""long_run.py - all fuzzers by turns until they have made so many executions in all.

   long_run.py PROGRAMS FINDS [EXECUTIONS [SECONDS]]
   long_run.py grow PROGRAMS FINDS

PROGRAMS is tests/fuzz of a build of the preset fuzz. Each fuzzer goes on, SECONDS a turn (20), from
its seeds (corpus/NAME) and what it has found before (FINDS/NAME). Prints the executions of each and
of all, 100,000,000 if not said otherwise; those of earlier runs with the same FINDS count. Exit: 1
where one has found an input that breaks something; its report is printed, and the input lies in
FINDS.

grow: takes of the finds the fewest that reach code which the corpora do not, into the corpora.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys

CORPORA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def turn(programs, finds, name, seconds):
    """(name, executions, edges that are covered, what broke)"""
    own = os.path.join(finds, name)
    os.makedirs(own, exist_ok=True)
    done = subprocess.run(
        [os.path.join(programs, "fuzz_" + name), f"-max_total_time={seconds}",
         "-print_final_stats=1", f"-artifact_prefix={finds}/{name}-", own,
         os.path.join(CORPORA, name)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", check=False)
    made = re.search(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
    edges = re.findall(r" cov: (\d+)", done.stderr)
    return (name, int(made.group(1)) if made else 0, int(edges[-1]) if edges else 0,
            done.stderr[-4000:] if done.returncode else "")


def names_of(programs):
    return sorted(n[5:] for n in os.listdir(programs)
                  if n.startswith("fuzz_") and os.access(os.path.join(programs, n), os.X_OK))


def grow(programs, finds):
    for name in names_of(programs):
        corpus = os.path.join(CORPORA, name)
        before = len(os.listdir(corpus))
        subprocess.run([os.path.join(programs, "fuzz_" + name), "-set_cover_merge=1",
                        "-use_counters=0", corpus, os.path.join(finds, name)],
                       stdin=subprocess.DEVNULL, capture_output=True, check=True)
        print(f"{name:15} {before:4} files, {len(os.listdir(corpus)) - before:4} more")


def main():
    if sys.argv[1] == "grow":
        grow(*(os.path.abspath(a) for a in sys.argv[2:4]))
        return 0
    programs, finds = (os.path.abspath(a) for a in sys.argv[1:3])
    wanted = int(sys.argv[3]) if len(sys.argv) > 3 else 100_000_000
    seconds = int(sys.argv[4]) if len(sys.argv) > 4 else 20
    names = names_of(programs)
    made, covered, broken = dict.fromkeys(names, 0), {}, {}
    counts = os.path.join(finds, "executions.json")
    os.makedirs(finds, exist_ok=True)
    if os.path.exists(counts):
        with open(counts, encoding="utf-8") as f:
            made.update(json.load(f))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        while sum(made.values()) < wanted and not broken:
            turns = [pool.submit(turn, programs, finds, name, seconds) for name in names]
            for name, count, edges, report in (t.result() for t in turns):
                made[name] += count
                covered[name] = edges
                if report or not count:
                    broken[name] = report or "made nothing"
            with open(counts, "w", encoding="utf-8") as f:
                json.dump(made, f)
            print(f"{sum(made.values()):,} executions so far", flush=True)
    for name in names:
        print(f"{name:15} {made[name]:14,} executions, {covered.get(name, 0):6,} edges"
              f"{', BROKEN' if name in broken else ''}")
    for name, report in broken.items():
        print(f"--- {name}\n{report}")
    print(f"{sum(made.values()):,} executions, {len(broken)} of {len(names)} fuzzers broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
