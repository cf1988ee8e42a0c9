#!/usr/bin/env python3
"""service_test - a run as a service: sd_notify at a fake manager's socket, the watchdog, the
metrics file, --require-lock, and what journald is told.

    service_test.py PROGRAM WORK_DIR
"""
import ctypes
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time

import program

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17


class Manager:
    """The socket of a service manager: what came, with the time."""

    def __init__(self, name, abstract=False):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.path = os.path.abspath(name)
        self.socket.bind("\0" + name if abstract else self.path)
        self.address = "@" + name if abstract else self.path
        self.heard = []

    def listen(self, seconds=0.0, until=None):
        """All that comes, until one of them holds `until`. Returns whether one did."""
        end = time.monotonic() + seconds
        while True:
            left = max(0.0, end - time.monotonic())
            if not select.select([self.socket], [], [], left)[0]:
                return False
            self.heard.append((time.monotonic(), self.socket.recv(4096).decode()))
            if until and until in self.heard[-1][1]:
                return True

    def lines(self):
        return [line for _, text in self.heard for line in text.split("\n")]


def long_run(t, file, **changes):
    return t.write(file, {"steps": 1000000, "log_every_steps": 1000000,
                          "hash_every_steps": 1000000, **changes})


def whole_life(t):
    """READY, STATUS once a second, WATCHDOG with it, STOPPING; the same bits as without."""
    config = long_run(t, "life.json")
    for abstract, options in ((False, ["--seal"]), (True, ["--quiet"])):
        manager = Manager("notify-a" if abstract else "notify", abstract)
        run = program.start(t, {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "3000000"},
                            "train", config, "--run-dir", f"life{abstract}", "--replicas", "2",
                            *options)
        t.check(manager.listen(60, "READY=1"), "READY", manager.heard)
        t.check(not any("STATUS=step" in text for _, text in manager.heard[:-1]),
                "nothing before READY", manager.heard)
        manager.listen(4.2)
        status = [text for _, text in manager.heard if "STATUS=step" in text]
        t.check(3 <= len(status) <= 6, "once a second", status)
        t.check(all(text.startswith("WATCHDOG=1\nSTATUS=step ") and "images/s" in text
                    for text in status[1:]), "progress, and the watchdog is fed", status)
        t.check("STOPPING=1" not in manager.lines(), "not stopping yet", manager.heard)
        run.send_signal(signal.SIGTERM)
        t.check(manager.listen(20, "STOPPING=1"), "STOPPING", manager.heard[-3:])
        _, error = run.communicate(timeout=60)
        t.check(run.returncode == 143, "it ends", run.returncode, error)


def equal_bits(t):
    config = t.write("equal.json", {"steps": 60})
    manager = Manager("notify-equal")
    plain = t.expect(0, "train", config, "--run-dir", "plain")
    run = program.start(t, {"NOTIFY_SOCKET": manager.address}, "train", config, "--run-dir",
                        "served", "--metrics-file", "equal.prom", "--seal")
    lines = run.communicate(timeout=60)[0].splitlines()
    manager.listen()
    t.check(program.result(lines) == program.result(plain[1]), "the same digest", lines)
    t.check("READY=1" in manager.lines() and "STOPPING=1" in manager.lines() and
            not any("WATCHDOG" in line for line in manager.lines()), "no watchdog asked for",
            manager.heard)


def stands_still(t):
    """One replica stops for ever: the run speaks, but feeds the watchdog no more."""
    config = long_run(t, "still.json")
    manager = Manager("notify-still")
    run = program.start(t, {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "3000000"},
                        "train", config, "--run-dir", "still", "--replicas", "2")
    t.check(manager.listen(60, "WATCHDOG=1"), "it is fed", manager.heard)
    threads = sorted(int(name) for name in os.listdir(f"/proc/{run.pid}/task"))
    libc = ctypes.CDLL(None, use_errno=True)
    seized = len(threads) > 1 and libc.ptrace(PTRACE_SEIZE, threads[1], None, None) == 0
    if not seized:
        print("stands still: not tried, this process may not trace")
    else:
        libc.ptrace(PTRACE_INTERRUPT, threads[1], None, None)
        manager.listen(2.5)  # what went on before
        manager.heard.clear()
        manager.listen(4)
        t.check(len(manager.heard) >= 3, "it speaks", manager.heard)
        t.check(not any("WATCHDOG" in text for _, text in manager.heard), "it is not fed",
                manager.heard)
        os.waitpid(threads[1], 0x40000000)  # __WALL
        libc.ptrace(PTRACE_DETACH, threads[1], None, None)
        t.check(manager.listen(10, "WATCHDOG=1"), "it goes on, and is fed", manager.heard)
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)


def others(t):
    """Somebody else's watchdog; sockets that are none; a launcher's workers."""
    config = t.write("others.json", {"steps": 20})
    manager = Manager("notify-others")
    run = program.start(t, {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000000",
                            "WATCHDOG_PID": "1"}, "train", config, "--run-dir", "other")
    run.communicate(timeout=60)
    manager.listen()
    t.check(not any("WATCHDOG" in line for line in manager.lines()), "not its own", manager.heard)
    for variables, wanted, code in (
            ({"NOTIFY_SOCKET": "relative"}, "found \"relative\"", 64),
            ({"NOTIFY_SOCKET": "/" + "x" * 200}, "NOTIFY_SOCKET", 64),
            ({"NOTIFY_SOCKET": t.work + "/nobody"}, "unset it", 69),
            ({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "soon"}, "\"soon\"", 64)):
        run = program.start(t, variables, "train", config, "--run-dir", "refused", "--fresh")
        error = run.communicate(timeout=60)[1]
        t.check(run.returncode == code and wanted in error and error.count("\n") == 1, "refused",
                variables, run.returncode, error)
    manager.listen()
    manager.heard.clear()
    config = long_run(t, "launched.json")
    run = program.start(t, {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "3000000",
                            "WATCHDOG_PID": "1"}, "launch", "--workers", "2", "--replicas", "1",
                        "train", config, "--run-dir", "launched")
    t.check(manager.listen(60, "WATCHDOG=1"), "rank 0 speaks for a launcher", manager.heard)
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    manager.listen()
    t.check(manager.lines().count("READY=1") == 1 and "STOPPING=1" not in manager.lines(),
            "one of them, and the launcher's end is its own", manager.heard)


# --- metrics -------------------------------------------------------------------------------------

SAMPLE = re.compile(r'^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)'
                    r'(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? '
                    r'(?P<value>-?[0-9.]+(?:e[0-9]+)?|NaN)$')


def parse(path):
    """{name: (type, value, labels)}, as the text format says; ValueError where it is not that."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if not text.endswith("\n"):
        raise ValueError("no newline at the end")
    types, found = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            if name in types or kind not in ("gauge", "counter"):
                raise ValueError(line)
            types[name] = kind
        elif not line.startswith("# HELP "):
            m = SAMPLE.match(line)
            if not m or m["name"] not in types:
                raise ValueError(line)
            found[m["name"]] = (types[m["name"]], float(m["value"]), m["labels"])
    return found


def judge_by_others(t, path):
    """The real readers, where they are: promtool, and Prometheus' own Python client."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    try:
        done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                              capture_output=True, check=False)
        t.check(done.returncode == 0, "promtool", done.stdout, done.stderr)
    except FileNotFoundError:
        print("promtool: not here")
    script = ("import sys\n"
              "from prometheus_client.parser import text_string_to_metric_families as r\n"
              "print(*sorted({s.name for f in r(sys.stdin.read()) for s in f.samples}))")
    for python in (sys.executable, "/usr/bin/python3"):  # Debian's module is its own Python's
        done = subprocess.run([python, "-c", script], input=text, text=True, capture_output=True,
                              check=False)
        if "ModuleNotFoundError" not in done.stderr:
            t.check(done.stdout.split() == sorted(parse(path)), "Prometheus' own client reads the "
                    "same", done.stdout, done.stderr)
            return
    print("prometheus_client: not here")


def metrics(t):
    config = long_run(t, "metrics.json", name='a "name" \\ of its own',
                      **{"checkpoint.every_seconds": 1})
    os.mkdir("prom")
    run = program.start(t, {}, "train", config, "--run-dir", "metered", "--seal", "--metrics-file",
                        "prom/run.prom", "--quiet")
    end, seen = time.monotonic() + 60, []
    while time.monotonic() < end and len(seen) < 3:
        try:
            found = parse("prom/run.prom")
        except FileNotFoundError:
            continue
        if not seen or found != seen[-1]:
            seen.append(found)
    t.check(len(seen) == 3, "a file, and new ones", seen)
    first, _, last = seen
    t.check(first["lockstep_phase"][2] == 'phase="starting"' and
            first["lockstep_steps_total"] == ("counter", 0, None), "before the first step", first)
    t.check(last["lockstep_steps_total"][1] > 0 and last["lockstep_steps_planned"][1] == 1000000 and
            last["lockstep_examples_per_second"][1] > 0 and
            last["lockstep_arena_bytes"][1] > 1e5 and
            0 < last["lockstep_training_loss"][1] < 10 and
            0 <= last["lockstep_training_accuracy"][1] <= 1 and
            last["lockstep_checkpoint_step"][1] > 0, "what is in it", last)
    t.check(r'name="a \"name\" \\ of its own"' in last["lockstep_info"][2] and
            re.search(r'run_identity="[0-9a-f]{64}"', last["lockstep_info"][2]), "labels", last)
    t.check(os.listdir("prom") == ["run.prom"] or run.poll() is None, "no other file")
    judge_by_others(t, "prom/run.prom")
    # A disk that is gone ends nothing, and is said once, on standard error: with --json it is no
    # event, with --quiet no result.
    os.mkdir("events")
    events = program.start(t, {}, "train", config, "--run-dir", "events-run", "--metrics-file",
                           "events/run.prom", "--json")
    end = time.monotonic() + 60
    while time.monotonic() < end and not os.path.exists("events/run.prom"):
        time.sleep(0.02)
    os.rename("prom", "gone")
    os.rename("events", "gone-too")
    time.sleep(6)
    t.check(run.poll() is None, "it goes on")
    os.rename("gone", "prom")
    events.send_signal(signal.SIGTERM)
    out, error = events.communicate(timeout=60)
    t.check(all(line.startswith("{") for line in out.splitlines()) and
            error.count("WARNING: the metrics file: ") == 1, "events alone", out[-900:], error)
    run.send_signal(signal.SIGTERM)
    out, error = run.communicate(timeout=60)
    t.check(run.returncode == 143 and error.count("WARNING: the metrics file: ") == 1 and
            "WARNING" not in out, "it ends", out, error)
    t.check(parse("prom/run.prom")["lockstep_phase"][2] == 'phase="ended"' and
            os.listdir("prom") == ["run.prom"], "the last word", os.listdir("prom"))
    judge_by_others(t, "prom/run.prom")
    # More than one writer, and places that are none.
    config = t.write("small.json", {"steps": 2})
    for place, code in (("missing/run.prom", 74), ("prom", 64), ("/dev/full", 64)):
        _, _, error = t.expect(code, "train", config, "--run-dir", "no", "--fresh",
                               "--metrics-file", place)
        t.check(place in error and error.count("\n") == 1, "a place that is none", error)


def objectives(t):
    """Of a GAN: whose loss is whose, in the file and in what SIGUSR1 asks for."""
    adam = {"type": "adam_keras", "learning_rate": 0.001}
    gan = {"noise": {"type": "normal", "shape": [4]}, "loss": "modified",
           "generator": [{"type": "dense", "units": 100},
                         {"type": "reshape", "target_shape": [10, 10, 1]}],
           "discriminator": [{"type": "flatten"}, {"type": "dense", "units": 1}],
           "generator_optimizer": adam, "discriminator_optimizer": adam}
    config = t.write("gan.json", {"model.gan": gan, "cycles": 500000},
                     ("model.layers", "model.classes", "optimizer", "steps"))
    t.expect(0, "train", config, "--run-dir", "gan", "--set", "cycles=5", "--metrics-file",
             "gan.prom")
    with open("gan.prom", encoding="utf-8") as f:
        text = f.read()
    found = re.findall(r'^lockstep_training_(\w+)\{objective="(\w+)"\} (-?[\d.]+)$', text, re.M)
    with open("gan/metrics.jsonl", encoding="utf-8") as f:
        logged = {line["train"]["objective"]: line["train"] for line in map(json.loads, f)}
    t.check(sorted((name, of) for name, of, _ in found) ==
            [("fake", "generator"), ("loss", "discriminator"), ("loss", "generator"),
             ("real", "discriminator")] and
            all(abs(float(number) - logged[of][name]) < 1e-6 for name, of, number in found),
            "of each objective the last", found, logged)
    t.check(text.count("# TYPE lockstep_training_loss gauge\n") == 1 and parse("gan.prom"),
            "each metric once", text)
    judge_by_others(t, "gan.prom")
    run = program.start(t, {}, "train", config, "--run-dir", "asked", "--json")
    lines = run.lines()
    while '"event":"step"' not in next(lines):
        pass
    run.send_signal(signal.SIGUSR1)
    said = json.loads(next(line for line in lines if '"event":"status"' in line))
    t.check(said.get("objective") in ("generator", "discriminator") and
            ("fake" in said) == (said["objective"] == "generator"), "whose loss it is", said)
    run.send_signal(signal.SIGTERM)
    for _ in lines:
        pass
    run.communicate(timeout=60)


# --- locked memory, the journal ------------------------------------------------------------------

def locked(t):
    config = t.write("locked.json", {"steps": 2})

    def without():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    def limited(*command):
        # Root is above the limit; without its capability it is not.
        drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--reuid", "65534",
                "--clear-groups"] if os.geteuid() == 0 else []
        return subprocess.run([*drop, t.program, *command], capture_output=True, text=True,
                              preexec_fn=without, check=False)
    os.chmod(t.work, 0o777)
    os.chmod(t.hot, 0o777)
    done = limited("train", config, "--run-dir", "unlocked")
    if "touched but NOT locked" not in done.stdout:
        print("--require-lock: not tried, the limit does not hold here:", done.stderr)
    else:
        done = limited("train", config, "--run-dir", "required", "--require-lock")
        t.check(done.returncode == 69 and "65536" in done.stderr and "ulimit -l" in done.stderr and
                done.stderr.count("\n") == 1 and not os.path.exists("required"),
                "refused, and nothing is made", done.returncode, done.stderr)
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY or \
            os.geteuid() == 0:
        t.expect(0, "train", config, "--run-dir", "locked", "--require-lock")


def severities(t):
    """A file in place of the journal's socket: it is known by device and inode."""
    config = t.write("journal.json", {"steps": 8, "checkpoint.every_steps": 4})
    t.expect(0, "train", config, "--run-dir", "journal")
    path = "journal/checkpoints/step-0000000008.safetensors"
    with open(path, "r+b") as f:
        f.seek(2000)
        byte = f.read(1)
        f.seek(2000)
        f.write(bytes([byte[0] ^ 1]))
    for ours in (True, False):
        with open("stream", "wb") as stream:
            about = os.fstat(stream.fileno())
            name = f"{about.st_dev}:{about.st_ino + (not ours)}"
            for command in (["train", config, "--run-dir", "journal", "--resume"],
                            ["train", "missing.json"]):
                subprocess.run([t.program, *command], stdout=stream, stderr=stream, check=False,
                               env={**os.environ, "JOURNAL_STREAM": name})
        with open("stream", encoding="utf-8") as f:
            lines = f.read().splitlines()
        grades = {re.match(r"(?:<(\d)>)?", line)[1] for line in lines if "WARNING" in line}
        t.check(grades == {"4" if ours else None}, "warnings", ours, lines)
        grades = {re.match(r"(?:<(\d)>)?", line)[1] for line in lines if "missing.json" in line}
        t.check(grades == {"3" if ours else None}, "errors", ours, lines)
        t.check(not any(line.startswith("<") for line in lines if "WARNING" not in line and
                        "missing.json" not in line), "nothing else", lines)
        # The damaged one was passed over and written anew: once more for the second turn.
        with open(path, "r+b") as f:
            f.seek(2000)
            byte = f.read(1)
            f.seek(2000)
            f.write(bytes([byte[0] ^ 1]))


def main():
    t = program.Test()
    for part in (whole_life, equal_bits, stands_still, others, metrics, objectives, locked,
                 severities):
        part(t)
    t.finish()


main()
