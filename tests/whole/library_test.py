#!/usr/bin/env python3
"""library_test - nothing is allocated between the seal and the end of a run through lockstep.h:
1,000 steps with evaluations, predictions and checkpoints, one by one and as a whole training,
counted by noalloc.c.

   library_test.py PROGRAM WORK_DIR COUNTING_LIBRARY
"""
import os
import subprocess
import sys

from program import Test

KINDS = 11


def run(library, *arguments, broken=None):
    environment = {**os.environ, **({"NOALLOC_BREAK": broken} if broken else {})}
    done = subprocess.run([library, *arguments], capture_output=True, text=True, timeout=300,
                          env=environment)
    return done.returncode, done.stdout, done.stderr


def main():
    t = Test()
    library = os.path.abspath(sys.argv[3])
    digests = []
    for how in ("steps", "train"):
        code, out, error = run(library, how, os.path.join(t.work, how))
        counts = error.split("after the seal:")[-1].split()[1::2]
        t.check(code == 0 and counts == ["0"] * KINDS, "nothing is counted", how, code, error)
        digests.append(out.split()[-1])
        print(how, error.strip())
    t.check(len(digests[0]) == 64 and digests[0] == digests[1], "one result", digests)
    saved = sorted(os.listdir(os.path.join(t.work, "steps")))
    t.check(saved == [f"step-{90 * i:010}.safetensors" for i in range(1, 12)], "saved", saved)
    # The test can fail: in step 500 something is asked for.
    for way, how in (("steps", "malloc"), ("steps", "thread"), ("train", "free")):
        code, _, error = run(library, way, os.path.join(t.work, "broken-" + way), broken=how)
        t.check(code == 99, "it is found", how, way, code, error)
    t.finish()


if __name__ == "__main__":
    main()
