#!/usr/bin/env python3
"""exchange_test - the program that measures the exchange (tests/bench/exchange.c): blocks of
steps that share give the digest of the plain program, the others leave alone what is shared.

   exchange_test.py PROGRAM WORK_DIR MEASURING_PROGRAM
"""
import os
import re
import sys

from program import Test, finish, free_port, result, start, tf_config

BLOCK = 32
LINE = re.compile(r"^of (\d+) pairs of blocks: a step [0-9.]+ \([0-9.]+ \.\. [0-9.]+\) us; longer "
                  r"than without exchange: there .*, back .*, both .*, waiting .* us$")


def run(t, config, world, steps, environment=None):
    port = free_port()
    return finish([start(t, {**tf_config(world, r, port), **(environment or {})}, "train", config,
                         "--run-dir", "run", "--fresh", "--replicas", str(1 + r % 2),
                         "--collective", "window", "--set", f"steps={steps}",
                         "--set", "layout.reduce=" + ("operands" if world == 2 else "partials"))
                   for r in range(world)])


def main():
    t = Test()
    plain, measuring = t.program, os.path.abspath(sys.argv[3])
    config = t.write("exchange.json", {"log_every_steps": 1000})
    _, lines, _ = t.expect(0, "train", config, "--run-dir", "plain", "--set", f"steps={BLOCK}")
    digest = {1: result(lines)[0]}
    t.program = measuring
    for world in (2, 3):
        for blocks in (1, 2, 3, 4):
            ends = run(t, config, world, blocks * BLOCK)
            if ends[0][0] == 69 and "has no MPI" in ends[0][2]:
                print("this build has no MPI")
                sys.exit(77)
            t.check([end[0] for end in ends] == [0] * world, "exit codes", ends)
            lines = ends[0][1].splitlines()
            # The parameters of the end are those that all share: the second and the fourth block
            # leave them alone, and what the third makes of them is the same for any workers.
            wanted = digest.setdefault((blocks + 1) // 2, result(lines)[0])
            t.check(result(lines)[0] == wanted, "digest", world, blocks, *lines)
            said = [LINE.match(line) for line in lines if line.startswith("of ")]
            pairs = [int(match[1]) for match in said if match]
            t.check(pairs == [blocks // 2] * (blocks > 1), "what is printed", *lines)
    near = run(t, config, 2, 2 * BLOCK, {"EXCHANGE_NEAR": "1"})
    t.check([end[0] for end in near] == [0, 0], "its own replica's in place of copies", near)
    broken = run(t, config, 2, 3 * BLOCK, {"EXCHANGE_BREAK": "shared"})
    t.check(70 in [end[0] for end in broken] and
            "written by a step that shares nothing" in broken[0][2] + broken[1][2],
            "memory that stays shared is found", broken)
    _, _, error = t.expect(64, "train", config, "--run-dir", "plain", "--resume", "--set",
                           f"steps={2 * BLOCK}")
    t.check("from its first step" in error, "blocks are whole", error)
    _, _, error = t.expect(64, "train", config, "--run-dir", "alone")
    t.check("2 to 64 workers" in error, "alone there is no exchange", error)
    t.program = plain
    t.finish()


if __name__ == "__main__":
    main()
