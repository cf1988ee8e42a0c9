#!/usr/bin/env python3
"""hosts_test - several hosts on one machine: network namespaces with names, addresses and cables
(veth links to a bridge) of their own. Workers that TF_CONFIG describes by address, with a key, over
TCP alone: the bits of one process; a worker killed; a cable pulled out in mid-run.

   hosts_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON

Skipped (77) where namespaces are not permitted. Nothing of them outlives the test.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from program import Test, golden, result

MATRIX, GOLDEN = (os.path.abspath(path) for path in sys.argv[3:5])
STEPS, PORT, STEP_TIMEOUT_S = "50", 2222, 2
INSIDE = "LOCKSTEP_TEST_INSIDE"  # set in the namespaces that the hosts are born from
TOOLS = ["unshare", "nsenter", "ip"]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def tool(*words, may_fail=False):
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0 and not may_fail:
        skip(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.returncode == 0


def enter_namespaces():
    """Runs this test again where it is allowed to make networks."""
    missing = [name for name in TOOLS if not shutil.which(name)]
    if missing:
        skip(f"no {', '.join(missing)}; install util-linux and iproute2")
    for way in (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"]):
        if tool(*way, "true", may_fail=True):
            os.environ[INSIDE] = "1"
            os.execvp("unshare", [*way, sys.executable, *sys.argv])
    skip("network namespaces are not permitted here")


class Host:
    """A name, an address, a cable; alive as long as a process that only sleeps."""

    def __init__(self, number):
        self.name, self.address = f"host{number}", f"10.99.0.{number}"
        self.cable = f"cable{number}"
        self.keeper = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c",
             f"hostname {self.name} && echo ready && exec sleep infinity"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if self.keeper.stdout.readline() != "ready\n":
            skip("namespaces for hosts are not permitted here")
        pid = str(self.keeper.pid)
        tool("ip", "link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
        tool("ip", "link", "set", self.cable, "master", "wire", "up")
        tool(*self.inside(), "ip", "link", "set", "lo", "up")
        tool(*self.inside(), "ip", "address", "add", self.address + "/24", "dev", "eth0")
        tool(*self.inside(), "ip", "link", "set", "eth0", "up")

    def inside(self):
        return ["nsenter", "--target", str(self.keeper.pid), "--net", "--uts"]

    def pull_cable(self):
        tool("ip", "link", "set", self.cable, "down")

    def plug_cable(self):
        tool("ip", "link", "set", self.cable, "up")

    def close(self):
        self.keeper.kill()
        self.keeper.wait()


class Workers:
    """cut: (host, replicas) of each worker."""

    def __init__(self, t, cut, *arguments, key="run.key", network="10.99.0.0/24", errors=None):
        """errors: where workers say errors that do not say them to a file, by rank."""
        addresses = [f"{host.address}:{PORT + i}" for i, (host, _) in enumerate(cut)]
        self.processes = []
        if network:
            arguments = [*arguments, "--private-network", network]
        for index, (host, replicas) in enumerate(cut):
            environment = {**os.environ, "UCX_TLS": "tcp,self", "TF_CONFIG": json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})}
            if key:
                environment["LOCKSTEP_KEY_FILE"] = key
            with open(f"out{index}", "w") as out, open(f"error{index}", "w") as error:
                self.processes.append(subprocess.Popen(
                    [*host.inside(), t.program, *arguments, "--replicas", str(replicas)],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=(errors or {}).get(index, error),
                    env=environment))

    def said(self, rank, what="error"):
        with open(f"{what}{rank}", encoding="utf-8", errors="replace") as f:
            return f.read()

    def ends(self, seconds=60):
        """Of each: (exit code or None after so long, what it said as an error)."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            try:
                process.wait(timeout=max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                pass
        codes = [process.poll() for process in self.processes]
        for process in self.processes:
            process.kill()
            process.wait()
        return [(code, self.said(rank)) for rank, code in enumerate(codes)]

    def await_line(self, start):
        end = time.monotonic() + 60
        while time.monotonic() < end and self.processes[0].poll() is None:
            if any(line.startswith(start) for line in self.said(0, "out").splitlines()):
                return True
            time.sleep(0.005)
        return False


def same_bits(t, a, b, c):
    wanted, early = golden(GOLDEN, STEPS), ["--set", "layout.exchange_floats=1"]
    for cut, more in (([(a, 1), (b, 1)], []), ([(a, 1), (b, 2)], early),
                      ([(a, 1), (a, 2), (b, 1), (c, 2)], early), ([(b, 3), (a, 1), (b, 1)], [])):
        shutil.rmtree("run", ignore_errors=True)
        workers = Workers(t, cut, "train", MATRIX, "--run-dir", "run", "--set", "steps=" + STEPS,
                          *more)
        ends, lines = workers.ends(), workers.said(0, "out").splitlines()
        what = " ".join(f"{host.name}:{replicas}" for host, replicas in cut)
        good = all(end == (0, "") for end in ends) and result(lines) == wanted
        print(f"{what:32} {'equal' if good else 'DIFFERS'}", flush=True)
        t.check(good, what, ends, lines[-20:])
        listens = re.findall(r"(?m)^MPI listens at: (.*)$", "\n".join(lines))
        t.check(len(listens) == 1 and
                all(at.startswith("10.99.0.") for at in listens[0].split(", ")), what, listens)
        t.check(any("messages" in line for line in lines if line.startswith("transport")), what,
                lines)
        t.check(any("buckets" in line for line in lines if line.startswith("overlap: on")) ==
                bool(more), what, lines)


def keys(t, a, b):
    ends = Workers(t, [(a, 1), (b, 1)], "train", MATRIX, "--run-dir", "none", key=None).ends()
    t.check(all(code == 78 and "LOCKSTEP_KEY_FILE" in error for code, error in ends),
            "no key, no run", ends)
    # MPI has no key: somebody must say that the network is theirs, and it is looked at.
    for network, code, words in ((None, 78, "neither encrypted nor authenticated"),
                                 ("192.0.2.0/24", 78, "no interface of this machine"),
                                 ("10.99.0.0", 64, "wanted an address and the number of its bits")):
        ends = Workers(t, [(a, 1), (b, 1)], "train", MATRIX, "--run-dir", "none",
                       network=network).ends()
        t.check(all(end[0] == code and words in end[1] for end in ends), "network", network, ends)
    own_line(t, a, b)


def own_line(t, a, b):
    """A worker that says what is wrong with its own start ends so, though another has ended before:
    it is held at its line, in a pipe that is full, until the other has been gone for a while."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    filled = 0
    while True:
        try:
            filled += os.write(writer, b"." * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    workers = Workers(t, [(a, 1), (b, 1)], "train", MATRIX, "--run-dir", "none",
                      network="192.0.2.0/24", errors={1: writer})
    os.close(writer)
    workers.processes[0].wait(60)
    time.sleep(0.5)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()[filled:].decode()
    code = workers.processes[1].wait(60)
    own = re.fullmatch("lockstep: rank 1: .*no interface of this machine.*\n", said)
    t.check(code == 78 and own, "a worker's own line", code, said)


def lose(t, cut, how, hosts_lost, wanted, config):
    """Workers on other hosts are lost: all that are left, on both sides, end in time."""
    shutil.rmtree("lost", ignore_errors=True)
    arguments = ["train", config, "--run-dir", "lost"]
    workers = Workers(t, cut, *arguments, "--step-timeout", str(STEP_TIMEOUT_S))
    t.check(workers.await_line("checkpoint step 20 "), "it runs", workers.said(0, "out")[-300:])
    begin = time.monotonic()
    gone = [rank for rank, (host, _) in enumerate(cut) if host in hosts_lost]
    for host in hosts_lost if how == "cable" else []:
        host.pull_cable()
    for rank in gone if how == "kill" else []:
        workers.processes[rank].send_signal(signal.SIGKILL)
    ends = workers.ends(30)
    seconds = time.monotonic() - begin
    for host in hosts_lost if how == "cable" else []:
        host.plug_cable()
    what = f"{how}: {' '.join(host.name for host in hosts_lost)} of {len(cut)} workers"
    print(f"{what:32} {seconds:.2f} s", flush=True)
    t.check(seconds < (STEP_TIMEOUT_S if how == "cable" else 0) + 2, what, seconds)
    for rank, (code, error) in enumerate(ends):
        if how == "kill" and rank in gone:
            continue
        # Whoever is on the other side of the cable.
        side = [r for r in range(len(cut)) if (r in gone) != (rank in gone)]
        named = "|".join(rf"rank {r} on {cut[r][0].name}" for r in side)
        t.check(code == 75 and re.fullmatch(
            rf"lockstep: rank {rank}: ({named}) \(process \d+\) (is silent|has died|is cut off).*"
            r" noticed at step \d+ in phase (reduce|apply).*\n", error), f"{what}: rank {rank}",
            code, error)
    t.expect(0, "checkpoint", "verify", "lost")
    _, lines, _ = t.expect(0, *arguments, "--resume", "--replicas", "2")
    t.check(result(lines) == wanted, f"{what}: resumed elsewhere", result(lines), wanted)


def main():
    if not os.environ.get(INSIDE):
        enter_namespaces()
    t = Test()
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK",
                 "PMI_SIZE", "PMI_FD", "SLURM_STEP_ID", "LOCKSTEP_KEY_FILE"):
        os.environ.pop(name, None)
    with open("run.key", "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(os.urandom(32).hex())
    tool("ip", "link", "add", "wire", "type", "bridge")
    tool("ip", "link", "set", "wire", "up")
    a, b, c = hosts = [Host(number) for number in (1, 2, 3)]
    try:
        first = Workers(t, [(a, 1), (b, 1)], "train", MATRIX, "--run-dir", "first",
                        "--set", "steps=1").ends()
        if first[0][0] == 69 and "has no MPI" in first[0][1]:
            skip("this build has no MPI")
        keys(t, a, b)
        same_bits(t, a, b, c)
        config = t.write("long.json", {"steps": 600, "checkpoint.every_steps": 10,
                                       "checkpoint.keep_max": 3})
        wanted = result(t.expect(0, "train", config, "--run-dir", "unhurt")[1])
        lose(t, [(a, 1), (b, 1)], "cable", [b], wanted, config)
        lose(t, [(a, 1), (a, 1), (b, 1), (c, 1)], "cable", [a], wanted, config)
        lose(t, [(a, 1), (b, 2), (c, 1)], "kill", [c], wanted, config)
        lose(t, [(a, 1), (b, 2), (c, 1)], "kill", [a], wanted, config)
    finally:
        for host in hosts:
            host.close()
    t.finish()


if __name__ == "__main__":
    main()
