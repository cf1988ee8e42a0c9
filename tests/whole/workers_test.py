#!/usr/bin/env python3
"""workers_test - several processes under mpiexec against one: the same bits for every number of
workers and replicas, equal or not, over the shared-memory window and over TCP; refusals; workers
that are killed or stopped; a run that goes on with other workers.

   workers_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON [all|few]

With `all` every cut goes over TCP too, otherwise some. With `few` the window has no more of them:
for builds with sanitizers, whose processes are slow to begin.
"""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from program import Process, Test, golden, result

MATRIX, GOLDEN = os.path.abspath(sys.argv[3]), os.path.abspath(sys.argv[4])
WORD = sys.argv[5] if sys.argv[5:] else ""
STEPS = "50"
# Replicas of each worker; the run has 16 grains.
CUTS = [[1], [2], [3], [1, 1], [2, 2], [3, 3], [1, 3], [1, 1, 1], [2, 2, 2], [3, 3, 3], [3, 1, 2],
        [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3], [1, 5, 2, 3], [4, 4, 4, 4]]
SOME = [[1, 1], [3, 1, 2], [2, 2, 2], [1, 1, 1, 1]]
# MPICH pretends that ranks 0, 2, .. and 1, 3, .. are on a host each.
TWO_HOSTS = {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1"}
# Everything that decides how workers of one host share their memory.
LAYOUTS = [([1, 1], {"reduce": "operands"}), ([3, 1, 2], {"reduce": "operands", "guards": "true"}),
           ([2, 2], {"reduce": "partials", "guards": "true"}),
           ([1, 2, 1], {"wave_examples": "16", "guards": "true"}),
           ([4, 4, 4, 4], {"reduce": "operands", "overlay": "false"})]
# Messages that go while the rest is computed, each layer as soon as it can.
EARLY = {"overlap": "on", "exchange_floats": "1"}
OVERLAPS = [([1, 1], EARLY), ([3, 1, 2], {**EARLY, "guards": "true"}),
            ([2, 2], {**EARLY, "wave_examples": "16"}), ([1, 1, 1, 1], {"overlap": "on"})]


def mpiexec(t, cut, arguments, options=(), environment=None, start=False):
    """Runs, or starts, one worker for each of `cut`. Each leaves its exit code in a file."""
    for name in glob.glob("exit.*"):
        os.remove(name)
    script = 'trap : USR1; "$0" "$@"; code=$?; echo $code > exit.$PMI_RANK; exit $code'
    command = ["mpiexec", *options]
    for i, replicas in enumerate(cut):
        command += [":"] * (i > 0) + ["-n", "1", "sh", "-c", script, t.program, *arguments,
                                      "--replicas", str(replicas)]
    process = Process(command, stdin=subprocess.DEVNULL,
                      env={**os.environ, **(environment or {})})
    if start:
        return process
    try:
        out, error = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        error += "\nit hangs"
    return process.returncode, out.splitlines(), error


def exit_codes():
    codes = {}
    for name in glob.glob("exit.*"):
        with open(name, encoding="ascii") as f:
            codes[int(name.split(".")[1])] = int(f.read() or -1)
    return codes


def ranks_of(t):
    """Process of each rank of this test's workers."""
    found = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{process}/exe") != os.path.realpath(t.program):
                continue
            with open(f"/proc/{process}/environ", "rb") as f:
                text = f.read().decode(errors="replace")
        except OSError:
            continue
        rank = re.search(r"(?:^|\0)PMI_RANK=(\d+)", text)
        if rank and f"HOME={t.work}\0" in text:
            found[int(rank.group(1))] = int(process)
    return found


def same_bits_elsewhere(t):
    """Two hosts with several workers each, which MPICH makes believe; layouts of shared memory;
    messages under the computation, between such hosts and on one."""
    cases = [(cut, layout, TWO_HOSTS) for cut in ([1, 1, 1], [1, 2, 3, 1])
             for layout in ({"overlap": "off"}, EARLY)]
    tcp = {"UCX_TLS": "tcp,self"}
    cases += [(cut, layout, tcp) for cut, layout in OVERLAPS]
    for cut, layout, environment in cases + [(cut, layout, {}) for cut, layout in LAYOUTS]:
        sets = [word for key, value in layout.items()
                for word in ("--set", f"layout.{key}={value}")]
        code, lines, error = mpiexec(t, cut, ["train", MATRIX, "--run-dir", "elsewhere", "--fresh",
                                              "--set", "steps=" + STEPS, *sets, *(
                                                  ["--collective", "messages"]
                                                  if environment is tcp else [])],
                                     environment=environment)
        what = f"{cut} {layout} {' '.join(environment)}"
        print(what, "equal" if result(lines) == golden(GOLDEN, STEPS) else "DIFFERS", flush=True)
        t.check(code == 0 and result(lines) == golden(GOLDEN, STEPS), what, code, lines[-20:],
                error)
        t.check(any("messages between hosts" in line for line in lines) ==
                (environment is TWO_HOSTS), what)


def slots_and_rates(t):
    """Three slots and a rate that follows the updates; begun by some workers, gone on with by
    others."""
    config = os.path.join(os.path.dirname(MATRIX), "adam.json")
    with open(GOLDEN, encoding="utf-8") as f:
        entry = json.load(f)["adam"][STEPS]
    wanted = entry["digest"], entry["state_hash"]
    train = ["train", config, "--run-dir", "adam", "--set", "layout.overlap=on"]
    code, lines, error = mpiexec(t, [1, 2], [*train, "--set", "steps=17"])
    t.check(code == 0, "begun with Adam", code, lines, error)
    code, lines, error = mpiexec(t, [2, 1, 1], [*train, "--set", "steps=" + STEPS, "--resume"])
    t.check(code == 0 and result(lines) == wanted, "Adam on 2, then 3 workers", code, lines, error)


def same_bits(t):
    wanted = golden(GOLDEN, STEPS)
    test_set = '{"made_up": {"count": 300, "first": 1000, "height": 10, "width": 8}}'
    told = set()
    for collective in ("window", "messages"):
        every = WORD == "all" or (collective == "window" and WORD != "few")
        for cut in CUTS if every else SOME:
            shutil.rmtree("run", ignore_errors=True)
            code, lines, error = mpiexec(
                t, cut, ["train", MATRIX, "--run-dir", "run", "--set", "steps=" + STEPS,
                         "--set", "evaluate_every_steps=20", "--collective", collective,
                         "--set", "data.test=" + test_set],
                environment={"UCX_TLS": "tcp,self"} if collective == "messages" else {})
            good = code == 0 and result(lines) == wanted
            print(f"{collective:9} {'+'.join(map(str, cut)):10} {result(lines)[0][:12]:12} "
                  f"{'equal' if good else 'DIFFERS'}", flush=True)
            t.check(good, f"{collective} {cut}", code, lines[-20:], exit_codes(), error[-800:])
            told.add(tuple(re.sub(", after .*", "", l) for l in lines
                           if l.startswith(("evaluation", "test_"))))
            t.check(sum(l.startswith("digest") for l in lines) == 1, "one worker speaks", lines)
    t.check(len(told) == 1 and len(told.pop()) > 3, "evaluations print the same", told)


def refusals(t):
    config = t.write("small.json", {"steps": 20})
    run = ["train", config, "--run-dir", "refused"]
    for extra, code, *parts in (
            (["--set", "seed=8"], 76, "rank 0 on", "rank 1 on", "run identity"),
            (["--set", "steps=21"], 76, "rank 0 on", "rank 1 on", "number of steps is 20"),
            (["--set", "data.train.made_up.seed=3"], 76, "hash of the training data")):
        command = ["mpiexec", "-n", "1", t.program, *run, ":", "-n", "1", t.program, *run, *extra]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        t.check(done.returncode == code and done.stderr.count("lockstep:") == 1 and
                all(p in done.stderr for p in parts), f"{extra}", done.returncode, done.stderr)
    code, _, error = mpiexec(t, [9, 9], run)
    t.check(code == 78 and "found 18 in all, wanted 1 to 16" in error, "too many", code, error)
    t.check(error.count("lockstep:") == 1, "one line for all", error)
    t.check(not os.path.exists("refused"), "nothing was written")


def collectives(t):
    """Each name: what was taken and why, the same bits; what cannot be is refused, by one line."""
    config = t.write("small.json", {"steps": 5})
    wanted = result(t.expect(0, "train", config, "--run-dir", "compared")[1])
    for name, alone, two in (
            ("auto", "threads (auto: one worker", "mpi (auto: "),
            ("threads", "threads (as asked)", 64),
            ("mpi", "threads (asked for mpi, which is between workers", "mpi (as asked)"),
            ("ring", "threads (asked for ring,", "mpi (asked for ring, which is the transport of"),
            ("window", "threads (asked for window,", "mpi (asked for its window)"),
            ("messages", "threads (asked for messages,", "mpi (asked for its messages alone)"),
            ("nccl", 69, 69)):
        for cut, says in (([2], alone), ([1, 1], two)):
            shutil.rmtree("chosen", ignore_errors=True)
            run = ["train", config, "--run-dir", "chosen", "--collective", name]
            code, lines, error = mpiexec(t, cut, run)
            if isinstance(says, int):
                good = code == says and error.count("lockstep: --collective " + name) == 1
                good = good and not os.path.exists("chosen")
            else:
                said = [line for line in lines if line.startswith("collective: ")]
                good = code == 0 and len(said) == 1 and said[0].startswith("collective: " + says)
                good = good and result(lines) == wanted
            t.check(good, f"--collective {name}, {len(cut)} workers", code, lines, error)


def seal(t):
    config = t.write("small.json", {"steps": 300})
    wanted = result(t.expect(0, "train", config, "--run-dir", "alone")[1])
    for collective in ("window", "messages"):
        shutil.rmtree("sealed", ignore_errors=True)
        code, lines, error = mpiexec(t, [1, 2], ["train", config, "--run-dir", "sealed", "--seal",
                                                 "--collective", collective])
        t.check(code == 0 and result(lines) == wanted, f"--seal, {collective}", code, error)


def lose(t, how, victim, collective, wanted, config):
    """A worker of three is lost in mid-run; the run goes on with others."""
    shutil.rmtree("lost", ignore_errors=True)
    arguments = ["train", config, "--run-dir", "lost", "--collective", collective]
    process = mpiexec(t, [1, 2, 1], arguments + ["--step-timeout", "2"],
                      options=["-disable-auto-cleanup"], start=True)
    for line in process.lines():
        if line.startswith("checkpoint step 40 "):
            break
    ranks = ranks_of(t)
    begin = time.monotonic()
    os.kill(ranks[victim], how)
    others = [r for r in range(3) if r != victim]
    while not all(r in exit_codes() for r in others) and time.monotonic() - begin < 20:
        time.sleep(0.02)
    seconds, codes = time.monotonic() - begin, exit_codes()
    if how == signal.SIGSTOP:
        os.kill(ranks[victim], signal.SIGKILL)
    process.terminate()
    _, error = process.communicate(timeout=60)
    what = f"{how.name} of rank {victim}, {collective}: {seconds:.2f} s"
    print(what, flush=True)
    t.check(all(codes.get(r) == 75 for r in others), what, codes, error)
    t.check(seconds < (2.0 if how == signal.SIGKILL else 5.0), what)
    t.check(re.search(rf"rank \d: rank {victim} on \S+ \(process {ranks[victim]}\) .* at step \d+ "
                      r"in phase (reduce|apply|evaluation)", error), what, error)
    code, lines, error = mpiexec(t, [2, 1], arguments + ["--resume"])
    t.check(code == 0 and result(lines) == wanted, what + ", resumed", code, result(lines), error)


def factors(t):
    """replica_batch x the replicas of all workers x accumulate is the global batch."""
    wanted = result(t.expect(0, "train", t.write("batch.json", {"steps": 20}), "--run-dir", "one",
                             "--replicas", "2")[1])
    config = t.write("factors.json", {"steps": 20, "replica_batch": 32, "accumulate": 2},
                     ["global_batch"])
    for cut in [2, 2], [1, 1, 1, 1]:
        code, lines, error = mpiexec(t, cut, ["train", config, "--run-dir", "many", "--fresh"])
        t.check(code == 0 and result(lines) == wanted, f"factors, {cut}", code, result(lines),
                wanted, error)
    # Each of these expects that all have as many replicas as it has.
    code, _, error = mpiexec(t, [3, 1], ["train", config, "--run-dir", "uneven"])
    t.check(code == 78 and "of 2 workers x accumulate 2 = 256, but global_batch is" in error,
            "factors of uneven workers", code, error)
    t.check(not os.path.exists("uneven"), "nothing was written")
    code, lines, error = mpiexec(t, [3, 1], ["train", config, "--run-dir", "uneven",
                                             "--set", "global_batch=256"])
    t.check(code == 0 and result(lines) == wanted, "factors, uneven, all said", code, error)
    config = t.write("factors.json", {"steps": 20, "replica_batch": 32, "accumulate": 4})
    code, _, error = mpiexec(t, [1, 1, 1], ["train", config, "--run-dir", "three"])
    t.check(code == 78 and "replica_batch 32 x replicas 3 of 3 workers x accumulate 4 = 384, but "
            "global_batch is 256" in error and error.count("lockstep:") <= 3, "factors, refused",
            code, error)


def losses(t):
    config = t.write("long.json", {"steps": 3000, "checkpoint.every_steps": 20,
                                   "checkpoint.keep_max": 3})
    wanted = result(t.expect(0, "train", config, "--run-dir", "unhurt")[1])
    lose(t, signal.SIGKILL, 1, "window", wanted, config)
    lose(t, signal.SIGKILL, 0, "window", wanted, config)
    lose(t, signal.SIGKILL, 2, "messages", wanted, config)
    lose(t, signal.SIGSTOP, 1, "window", wanted, config)
    # Stopped by a signal to one worker: all stop after the same step, having saved it.
    shutil.rmtree("stop", ignore_errors=True)
    arguments = ["train", config, "--run-dir", "stop"]
    process = mpiexec(t, [1, 1], arguments, start=True)
    for line in process.lines():
        if line.startswith("checkpoint step 40 "):
            break
    os.kill(ranks_of(t)[1], signal.SIGTERM)
    out, error = process.communicate(timeout=60)
    t.check("stopped after step" in out and exit_codes() == {0: 143, 1: 143}, "SIGTERM of rank 1",
            exit_codes(), out[-300:], error)
    code, lines, error = t.run(*arguments, "--resume", "--replicas", "2")
    t.check(code == 0 and result(lines) == wanted, "resumed by one process", error)


def main():
    t = Test()
    if not shutil.which("mpiexec"):
        print("skipped: no mpiexec; install mpich")
        sys.exit(77)
    config = t.write("small.json", {"steps": 1})
    code, _, error = mpiexec(t, [1, 1], ["train", config, "--run-dir", "first"])
    if code == 69 and "has no MPI" in error:
        print("skipped: this build has no MPI")
        sys.exit(77)
    refusals(t)
    factors(t)
    collectives(t)
    seal(t)
    losses(t)
    slots_and_rates(t)
    same_bits_elsewhere(t)
    same_bits(t)
    t.finish()


if __name__ == "__main__":
    main()
