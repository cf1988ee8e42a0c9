#!/usr/bin/env python3
"""losses_test - a worker is lost: killed, stopped or gone with exit code 0, in every phase of a
step, in start-up, in evaluation, in a checkpoint, at the end; the chief or another; of two or three
workers; with the window or with messages. The others end in time with one line that says whom they
lost and exit code 75, what is saved stays whole, a stopped one that goes on harms nobody, and other
workers bring the run to the end of an uninterrupted one.

   losses_test.py PROGRAM WORK_DIR STRIKE_PROGRAM [all | FIRST:COUNT]

With `all` everything is lost everywhere, otherwise a choice; FIRST:COUNT is a part of `all`.
"""
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from program import Test, result

STRIKE, PART = os.path.abspath(sys.argv[3]), (sys.argv[4:] or [""])[0]
STEP, STEPS, EVALUATE, SAVE = 25, 40, 15, 10
START_TIMEOUT_S, STEP_TIMEOUT_S, NOTICED_S = 4, 2, 2.0
START_UP = ["start", "meet", "window", "agree", "connect"]
PHASES = ["load", "forward", "backward", "boxes", "reduce", "apply", "sums"]
SAVING = ["create", "write", "sync", "rename", "directory"]  # done by the chief alone
PLACES = START_UP + PHASES + ["evaluation"] + SAVING + ["end"]
CUTS = {2: [1, 2], 3: [2, 1, 1], 4: [1, 1, 1, 1]}  # replicas of each worker
EARLY = ["--set", "layout.overlap=on", "--set", "layout.exchange_floats=1"]


def every_case():
    return [(how, place, victim, world, collective)
            for world in (2, 3) for collective in ("window", "messages") for place in PLACES
            for victim in ((0, world - 1) if place not in SAVING else (0,))
            for how in ("kill", "exit", "stop")]


SOME = [("stop", "start", 1, 2, "window"), ("stop", "start", 0, 3, "window"),
        ("stop", "start", 2, 3, "messages"),
        ("kill", "connect", 0, 2, "window"), ("exit", "meet", 1, 2, "messages"),
        ("kill", "load", 2, 3, "window"), ("exit", "forward", 0, 3, "messages"),
        ("kill", "backward", 0, 2, "messages"), ("kill", "boxes", 1, 2, "window"),
        ("kill", "reduce", 2, 3, "messages"), ("exit", "apply", 0, 2, "window"),
        ("stop", "apply", 2, 3, "window"), ("stop", "sums", 0, 2, "messages"),
        ("kill", "evaluation", 1, 2, "window"), ("kill", "write", 0, 3, "window"),
        ("stop", "rename", 0, 2, "window"), ("exit", "directory", 0, 2, "messages"),
        ("kill", "end", 0, 3, "messages")]


class Workers:
    """One process for each of `cut`, described by TF_CONFIG; the first has its listening socket
    from here, so that no two runs meet."""

    def __init__(self, program, where, cut, arguments, environments):
        listener = socket.create_server(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}"]
        addresses += [f"127.0.0.1:{r}" for r in range(1, len(cut))]  # nobody calls them
        self.where, self.processes = where, []
        for rank, replicas in enumerate(cut):
            task = {"type": "worker", "index": rank}
            environment = {**os.environ, **environments[rank], "TF_CONFIG": json.dumps(
                {"cluster": {"worker": addresses}, "task": task})}
            if rank == 0:
                environment["LOCKSTEP_LISTEN_FD"] = str(listener.fileno())
            with open(f"{where}.out{rank}", "w") as out, open(f"{where}.error{rank}", "w") as error:
                self.processes.append(subprocess.Popen(
                    [program, *arguments, "--replicas", str(replicas)], stdin=subprocess.DEVNULL,
                    stdout=out, stderr=error, env=environment,
                    pass_fds=[listener.fileno()] if rank == 0 else []))
        listener.close()

    def end(self, rank, seconds=60):
        """Exit code, or None after so long."""
        try:
            return self.processes[rank].wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def said(self, rank, what="error"):
        with open(f"{self.where}.{what}{rank}", encoding="utf-8", errors="replace") as f:
            return f.read()

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def is_stopped(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def await_strike(workers, victim, how):
    process = workers.processes[victim]
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None or (how == "stop" and is_stopped(process.pid)):
            return process.returncode == {"kill": -signal.SIGKILL, "exit": 0, "stop": None}[how]
        time.sleep(0.002)
    return False


def wanted_line(case, process):
    """What each of the others says, in one line."""
    how, place, victim, _, collective = case
    who = rf"rank {victim} on \S+ \(process {process}\)"
    if place in START_UP and how != "stop":
        if victim == 0:
            who = rf"(rank 0 at \S+|{who})"  # as it was called, if it did not say who it is
        return rf"{who} has died during start-up"
    if place in START_UP:
        return rf"start-up (did not end within|does not end).*; {who} is stopped"
    fate = "is silent for longer than --step-timeout" if how == "stop" else \
        r"(has died|is cut off: MPI says its connection broke)"
    step, phase = STEP, "(reduce|apply)"
    if place == "evaluation":
        step, phase = 2 * EVALUATE, "evaluation"
    elif (place, collective) == ("apply", "messages"):  # the others have all they need for it
        step = rf"({STEP}|{STEP + 1})"
    elif place in SAVING:
        step, phase = 3 * SAVE, "reduce"
    elif place == "end":
        step, phase = STEPS, "end"
    return rf"{who} {fate}, noticed at step {step} in phase {phase}; .*--resume"


def judge_others(t, what, workers, case, seconds):
    how, place, victim, world, _ = case
    process = workers.processes[victim].pid
    for rank in range(world):
        if rank == victim:
            continue
        # What is over is not undone by the loss of one who only had to leave.
        if place == "end" and victim != 0:
            t.check((workers.end(rank), workers.said(rank)) == (0, ""), f"{what}: all is done",
                    rank, workers.end(rank), workers.said(rank))
            continue
        line = rf"lockstep: rank {rank}: {wanted_line(case, process)}.*\n"
        t.check(workers.end(rank) == 75 and re.fullmatch(line, workers.said(rank)),
                f"{what}: rank {rank}", workers.end(rank), workers.said(rank), line)
    deadline = NOTICED_S
    if how == "stop":
        deadline += START_TIMEOUT_S if place in START_UP else STEP_TIMEOUT_S
    t.check(seconds < deadline, f"{what}: in time", seconds)


def go_on(t, what, workers, victim):
    """The stopped one wakes up alone."""
    process = workers.processes[victim]
    process.send_signal(signal.SIGCONT)
    code = workers.end(victim, START_TIMEOUT_S + NOTICED_S)
    t.check(code in (0, 75), f"{what}: goes on and ends", code, workers.said(victim))


def resume(t, what, run, arguments, number, wanted):
    if glob.glob(run + "/checkpoints/*.safetensors"):
        t.expect(0, "checkpoint", "verify", run)
    began = os.path.exists(run + "/identity")
    arguments = [*arguments, *(["--resume"] if began else [])]
    cut = [[2], [1, 1], [3], [1, 2, 1], [5]][number % 5]
    workers = Workers(t.program, run + ".resumed", cut, arguments, [{}] * len(cut))
    codes = [workers.end(rank) for rank in range(len(cut))]
    workers.close()
    digest = result(workers.said(0, "out").splitlines())
    t.check(codes == [0] * len(cut) and digest == wanted, f"{what}: resumed by {cut}", codes,
            digest, *[workers.said(rank) for rank in range(len(cut))])


def lose(t, number, case, config, wanted):
    how, place, victim, world, collective = case
    what = f"{how} {place}, rank {victim} of {world}, {collective}"
    failures, run = t.failures, f"run{number}"
    arguments = ["train", config, "--run-dir", run]
    environments = [{}] * world
    # Who goes in the middle of a run has freed nothing.
    environments[victim] = {"STRIKE": f"{how}@{place}:{STEP}", "ASAN_OPTIONS": "detect_leaks=0"}
    if collective == "messages":
        environments = [{**e, "UCX_TLS": "tcp,self"} for e in environments]
    workers = Workers(STRIKE, run, CUTS[world],
                      [*arguments, "--collective", collective, "--step-timeout",
                       str(STEP_TIMEOUT_S), "--start-timeout", str(START_TIMEOUT_S),
                       *(EARLY if collective == "messages" and world == 3 else [])], environments)
    t.check(await_strike(workers, victim, how), f"{what}: is struck",
            workers.processes[victim].returncode, workers.said(victim))
    begin = time.monotonic()
    others = [r for r in range(world) if r != victim]
    for rank in others:
        workers.end(rank, 20)
    seconds = time.monotonic() - begin
    judge_others(t, what, workers, case, seconds)
    if how == "stop":
        go_on(t, what, workers, victim)
    workers.close()
    if t.failures == failures:
        resume(t, what, run, arguments, number, wanted)
    survived = t.failures == failures
    print(f"{number:3} {what:44} {seconds:5.2f} s  {'survived' if survived else 'FAILED'}",
          flush=True)
    for path in glob.glob(run + "*") if survived else []:
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    return survived


def save_slowly(t, config, wanted):
    """The disk of the chief takes longer than --step-timeout: nobody is lost. After the last step,
    too. That a worker is as slow in a step is its loss, and the chief's in an evaluation before it
    saves."""
    for place, step, collective, code in (("sync", STEP, "window", 0),
                                          ("sync", 2 * EVALUATE, "window", 0),
                                          ("sync", STEPS, "messages", 0),
                                          ("evaluation", 2 * EVALUATE, "window", 75),
                                          ("load", STEP, "window", 75)):
        run, what = f"slow-{place}-{step}", f"slow {place} {step}, {collective}"
        environments = [{"STRIKE": f"wait@{place}:{step}"}, {}]
        if collective == "messages":
            environments = [{**e, "UCX_TLS": "tcp,self"} for e in environments]
        workers = Workers(STRIKE, run, [1, 2],
                          ["train", config, "--run-dir", run, "--collective", collective,
                           "--step-timeout", str(STEP_TIMEOUT_S)], environments)
        begin = time.monotonic()
        ends = [(workers.end(rank), workers.said(rank)) for rank in (1, 0)]
        workers.close()
        t.check(time.monotonic() - begin > STEP_TIMEOUT_S, f"{what}: it was slow")
        t.check(ends[0][0] == code, what, ends)
        t.check(code or ends == [(0, "")] * 2, what, ends)
        digest = result(workers.said(0, "out").splitlines())
        t.check(code or digest == wanted, f"{what}: the same bits", digest)
        print(f"{what:44} {time.monotonic() - begin:5.2f} s", flush=True)


def strike_of(victim, wish, world):
    environments = [{} for _ in range(world)]
    for rank, text in zip(victim, wish):
        environments[rank] = {"STRIKE": text, "ASAN_OPTIONS": "detect_leaks=0"}
    return environments


def several_dead(t, config):
    """One is killed, the next ones end because of that, and a last one, which was stopped
    meanwhile, finds all of them dead: it blames the one that was killed."""
    for victim, collective in ((2, "window"), (1, "messages"), (3, "window")):
        what = f"several dead, rank {victim} before the others, {collective}"
        environments = strike_of((0, victim), (f"stop@backward:{STEP}", f"kill@backward:{STEP}"), 4)
        if collective == "messages":
            environments = [{**e, "UCX_TLS": "tcp,self"} for e in environments]
        workers = Workers(STRIKE, "several", CUTS[4],
                          ["train", config, "--run-dir", "several", "--fresh", "--collective",
                           collective, "--step-timeout", "20"], environments)
        t.check(await_strike(workers, 0, "stop"), f"{what}: is stopped")
        codes = [workers.end(rank, 10) for rank in (1, 2, 3)]
        workers.processes[0].send_signal(signal.SIGCONT)
        codes = [workers.end(0, 10), *codes]
        wanted = [75] * 4
        wanted[victim] = -signal.SIGKILL
        process = workers.processes[victim].pid
        t.check(codes == wanted, what, codes, [workers.said(rank) for rank in range(4)])
        for rank in range(4):
            t.check(rank == victim or f": rank {victim} on " in workers.said(rank) and
                    f"(process {process}) has died" in workers.said(rank), what,
                    workers.said(rank))
        workers.close()
        print(f"{what:44} {codes}", flush=True)


def stop_slowly(t):
    """Asked to stop, the leader saves to a slow disk: nobody is lost meanwhile, also where an
    evaluation lies between."""
    for evaluate, collective in ((0, "window"), (1, "messages"), (1, "window")):
        run, what = "asked", f"asked to stop, evaluation {evaluate}, {collective}"
        test_set = {"made_up": {"count": 300, "first": 1000, "height": 10, "width": 10}}
        config = t.write("asked.json", {
            "steps": 1000000, "evaluate_every_steps": evaluate, "data.test": test_set})
        environments = [{"STRIKE": "wait@sync:1"}, {}]
        if collective == "messages":
            environments = [{**e, "UCX_TLS": "tcp,self"} for e in environments]
        workers = Workers(STRIKE, run, [1, 1],
                          ["train", config, "--run-dir", run, "--fresh", "--collective", collective,
                           "--step-timeout", str(STEP_TIMEOUT_S)], environments)
        end = time.monotonic() + 60
        while time.monotonic() < end and "step = 5" not in workers.said(0, "out"):
            time.sleep(0.01)
        begin = time.monotonic()
        workers.processes[1].send_signal(signal.SIGTERM)
        # A launcher of MPI would kill the leader if another left before it.
        time.sleep(STEP_TIMEOUT_S + 1)
        t.check(workers.processes[1].poll() is None, f"{what}: waits for the leader",
                workers.said(1))
        codes = [workers.end(rank) for rank in (0, 1)]
        seconds = time.monotonic() - begin
        workers.close()
        t.check(codes == [143, 143] and seconds > STEP_TIMEOUT_S, what, codes, seconds,
                workers.said(0), workers.said(1))
        t.check("stopped after step" in workers.said(0, "out"), what, workers.said(0, "out"))
        print(f"{what:44} {seconds:5.2f} s", flush=True)


def main():
    t = Test()
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK",
                 "PMI_SIZE", "PMI_FD", "SLURM_STEP_ID", "LOCKSTEP_KEY_FILE"):
        os.environ.pop(name, None)
    test_set = {"made_up": {"count": 300, "first": 1000, "height": 10, "width": 10}}
    config = t.write("losses.json", {"steps": STEPS, "evaluate_every_steps": EVALUATE,
                                     "checkpoint.every_steps": SAVE, "data.test": test_set})
    wanted = result(t.expect(0, "train", config, "--run-dir", "alone")[1])
    workers = Workers(t.program, "first", [1, 1], ["train", config, "--run-dir", "first"], [{}, {}])
    if workers.end(0) == 69 and "has no MPI" in workers.said(0):
        print("skipped: this build has no MPI")
        sys.exit(77)
    workers.close()
    save_slowly(t, config, wanted)
    stop_slowly(t)
    several_dead(t, config)
    cases = every_case() if PART else SOME
    first, count = map(int, PART.split(":")) if ":" in PART else (0, len(cases))
    survived = sum(lose(t, n, cases[n], config, wanted)
                   for n in range(first, min(first + count, len(cases))))
    print(f"{survived} faults survived")
    t.finish()


if __name__ == "__main__":
    main()
