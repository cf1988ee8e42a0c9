#!/usr/bin/env python3
"""rendezvous_test - workers that no launcher started: TF_CONFIG, a file, torchrun's variables give
the bits of one process; keys, strangers, descriptions that differ, workers that never come or die.

   rendezvous_test.py PROGRAM WORK_DIR MATRIX_JSON GOLDEN_JSON
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from program import Test, finish, free_port, golden, result, start, tf_config

MATRIX, GOLDEN = os.path.abspath(sys.argv[3]), os.path.abspath(sys.argv[4])
STEPS = "50"


def torchrun(world, rank, port, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), **more}


# Another machine, as far as a process can tell: no common memory, names or process numbers.
APART = ["unshare", "--pid", "--ipc", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc",
         "sh", "-c", 'mount -t tmpfs none /dev/shm && hostname apart && exec "$@"', "sh"]


def train(*more):
    shutil.rmtree("run", ignore_errors=True)
    return ["train", MATRIX, "--run-dir", "run", "--set", "steps=" + STEPS, *more]


def judge(t, what, ends, wanted):
    good = all(code == 0 for code, _, _ in ends) and result(ends[0][1].splitlines()) == wanted
    print(f"{what:40} {'equal' if good else 'DIFFERS'}", flush=True)
    t.check(good, what, ends)
    t.check(not any(out for _, out, _ in ends[1:]), "one worker speaks", ends)
    t.check(not any(error for _, _, error in ends), "and nobody complains", ends)


def same_bits(t):
    wanted = golden(GOLDEN, STEPS)
    for world in (1, 2, 3, 4):
        port = free_port()
        # The chief last: the others have to wait for it.
        order = list(range(world))[::-1]
        workers = {r: start(t, tf_config(world, r, port, chief=world == 3),
                            *train("--replicas", str(1 + r % 2))) for r in order}
        judge(t, f"TF_CONFIG, {world} workers", finish([workers[r] for r in range(world)]), wanted)
    for agent in ("False", "True"):
        port = free_port()
        more = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": agent}
        # The agent's own socket, at the port that it tells.
        held = socket.socket()
        if agent == "True":
            held.bind(("127.0.0.1", port))
            held.listen()
        workers = [start(t, torchrun(2, r, port, **more), *train("--replicas", "1"))
                   for r in range(2)]
        judge(t, f"torchrun, agent's store: {agent}", finish(workers), wanted)
        held.close()
    port = free_port()
    with open("nodes.json", "w", encoding="utf-8") as f:
        json.dump({"cluster": {"chief": [f"127.0.0.1:{port}"], "worker": ["[::1]:7"]},
                   "replicas": {"worker": [2]}}, f)
    workers = [start(t, {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": str(port)},
                     *train("--cluster", "nodes.json", "--collective", "messages", "--seal"))
               for r in range(2)]
    judge(t, "--cluster FILE, --seal, messages", finish(workers), wanted)


def pair(t, environments, *more):
    """Ends of two workers, each with its own environment."""
    return finish([start(t, e, *train("--replicas", "1", *more)) for e in environments])


def keys(t):
    wanted = golden(GOLDEN, STEPS)
    for name, text in (("a.key", "0123456789abcdef\n"), ("b.key", "0123456789abcdeF\n")):
        with open(name, "w", encoding="ascii") as f:
            f.write(text)
        os.chmod(name, 0o600)
    a, b = {"LOCKSTEP_KEY_FILE": "a.key"}, {"LOCKSTEP_KEY_FILE": "b.key"}
    port = free_port()
    judge(t, "with a key", pair(t, [{**tf_config(2, r, port), **a} for r in range(2)]), wanted)
    # The chief with one key, a worker with another or none.
    for chief, worker in ((a, b), (a, {}), ({}, b)):
        port = free_port()
        ends = pair(t, [{**tf_config(2, 0, port), **chief}, {**tf_config(2, 1, port), **worker}],
                    "--start-timeout", "1")
        t.check(ends[1][0] == 78 and "has another key" in ends[1][2], "another key", ends)
        t.check(ends[0][0] == 75 and "it has not this run's key" in ends[0][2] and
                "rank 1 (worker:1 at localhost:2) has not come" in ends[0][2], "the chief", ends)
    # A worker with a key gives nothing away to a chief without its key, and does not follow it.
    os.chmod("a.key", 0o644)
    ends = pair(t, [{**tf_config(2, 0, 1), **a}])
    t.check(ends[0][0] == 78 and "chmod o= a.key" in ends[0][2], "a key for all to read", ends)
    # Off this machine only with a key, or in so many words without.
    for host in ("node7", "192.0.2.1", "127.0.0.1.example", "127.node"):
        ends = pair(t, [tf_config(2, 1, 2222, host=host)])
        t.check(ends[0][0] == 78 and f"rank 0 is at {host}:2222" in ends[0][2] and
                "LOCKSTEP_KEY_FILE" in ends[0][2] and "--insecure" in ends[0][2], host, ends)
    ends = pair(t, [tf_config(2, 0, 2222, host="192.0.2.1")], "--insecure")
    t.check(ends[0][0] == 69 and "not an address of this machine" in ends[0][2], "bind", ends)


# The same machine, where names mean what the file `hosts` says.
NAMED = ["unshare", "--mount", "sh", "-c", 'mount --bind hosts /etc/hosts && exec "$@"', "sh"]


def permitted(prefix):
    """May a program run so here?"""
    return shutil.which("unshare") and subprocess.run([*prefix, "true"], check=False,
                                                      capture_output=True).returncode == 0


def name_that_leads_elsewhere(t):
    """Without a key, a name of loopback must mean it: the chief does not listen, nobody calls."""
    with open("hosts", "w", encoding="ascii") as f:
        f.write("192.0.2.1 localhost\n")
    if not permitted(NAMED):
        print("not done: mounting is not permitted here")
        return
    for rank in (0, 1):
        [end] = finish([start(t, tf_config(2, rank, free_port()),
                              *train("--replicas", "1", "--start-timeout", "1"), before=NAMED)])
        t.check(end[0] in (69, 75) and
                "another address than loopback, and there is no key" in end[2],
                f"a name that leads elsewhere, rank {rank}", end)


def own_address():
    """An address of this machine that is not loopback, or None. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            return s.getsockname()[0]
        except OSError:
            return None


def off_loopback(t):
    address = own_address()
    if not address or address.startswith("127."):
        print("not done: this machine has only a loopback address")
        return
    with open("net.key", "w", encoding="ascii") as f:
        f.write("fedcba9876543210\n")
    os.chmod("net.key", 0o600)
    for more, key in ((["--insecure"], {}), ([], {"LOCKSTEP_KEY_FILE": "net.key"})):
        port = free_port()
        ends = pair(t, [{**tf_config(2, r, port, host=address), **key} for r in range(2)], *more)
        judge(t, "off loopback" + "".join(more), ends, golden(GOLDEN, STEPS))


def disagree(t):
    port = free_port()
    ends = pair(t, [tf_config(2, 0, port), tf_config(3, 1, port)])
    t.check([e[0] for e in ends] == [76, 76] and "another description" in ends[1][2] and
            "comes as rank 1 of 3" in ends[0][2], "two descriptions", ends)
    port = free_port()
    ends = finish([start(t, tf_config(3, r, port), *train()) for r in (0, 1, 1)])
    t.check([e[0] for e in ends] == [76] * 3 and "come as rank 1;" in ends[0][2] and
            sum("has this rank already" in e[2] for e in ends[1:]) == 1, "one rank twice", ends)
    # A run identity is compared once all are in, as under a launcher.
    port = free_port()
    ends = finish([start(t, tf_config(2, r, port), *train("--set", f"seed={r}")) for r in (0, 1)])
    t.check([e[0] for e in ends] == [76, 76] and "run identity" in ends[0][2] and
            sum(e[2].count("lockstep:") for e in ends) == 1, "two runs", ends)
    # Something else listens there.
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        worker = start(t, tf_config(2, 1, other.getsockname()[1]), *train())
        caller, _ = other.accept()
        caller.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        ends = finish([worker])
        caller.close()
    t.check(ends[0][0] == 69 and "another program answers" in ends[0][2], "another program", ends)


def given_socket(t):
    """What says where rank 0 listens must be such a socket, not anything that is open; and a pipe
    is no key, nor waited for."""
    for text in ("junk", "", "0", "-1", "3x", "99999999999999999999"):
        ends = pair(t, [{**tf_config(2, 0, free_port()), "LOCKSTEP_LISTEN_FD": text}])
        t.check(ends[0][0] == 64 and f'LOCKSTEP_LISTEN_FD: found "{text}"' in ends[0][2] and
                ends[0][2].count("\n") == 1, "LOCKSTEP_LISTEN_FD", text, ends)
    os.mkfifo("pipe.key")
    ends = pair(t, [{**tf_config(2, 0, free_port()), "LOCKSTEP_KEY_FILE": "pipe.key"}])
    t.check(ends[0][0] == 66 and "LOCKSTEP_KEY_FILE: pipe.key: cannot be read" in ends[0][2],
            "a pipe for a key", ends)


def absent(t):
    """Workers that never come, and a chief that does not."""
    port = free_port()
    ends = finish([start(t, tf_config(4, r, port), *train("--start-timeout", "1"))
                   for r in (0, 3)])
    t.check([e[0] for e in ends] == [75, 75] and
            all("rank 1 (worker:1 at localhost:2) has not come" in e[2] for e in ends) and
            "nor have 1 others" in ends[0][2], "two never come", ends)
    ends = finish([start(t, tf_config(2, 1, free_port()), *train("--start-timeout", "1"))])
    t.check(ends[0][0] == 75 and "rank 0 does not let it in at localhost:" in ends[0][2] and
            "Connection refused" in ends[0][2], "no chief", ends)
    # One dies while the others wait for another: at once, long before the deadline.
    for victim in (0, 1):
        port = free_port()
        workers = [start(t, tf_config(3, r, port), *train()) for r in (0, 1)]
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", port)) != 0:
                time.sleep(0.01)
        time.sleep(0.3)
        begin = time.monotonic()
        workers[victim].kill()
        ends = finish([workers[1 - victim]])
        t.check(ends[0][0] == 75 and re.search(rf"rank {1 - victim}: rank {victim} (on|at) .* has "
                r"died during start-up", ends[0][2]), f"rank {victim} dies early", ends)
        t.check(time.monotonic() - begin < 2, "at once")
        finish([workers[victim]])


def strangers(t):
    """While the chief waits: nothing of this keeps the workers out."""
    port = free_port()
    chief = start(t, tf_config(2, 0, port), *train("--replicas", "1"))
    calls = []
    for i in range(300):
        call = socket.socket()
        call.settimeout(5)
        while call.connect_ex(("127.0.0.1", port)) != 0:
            time.sleep(0.01)
        try:
            call.sendall((b"", b"jo", b"x" * 5000, b"GET / HTTP/1.1\r\n\r\n", b"\0\n")[i % 5])
            if i % 3 == 0:
                call.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # turned away already
        calls.append(call)
    worker = start(t, tf_config(2, 1, port), *train("--replicas", "1"))
    ends = finish([chief, worker])
    for call in calls:
        call.close()
    found = result(ends[0][1].splitlines())
    t.check([e[0] for e in ends] == [0, 0] and found == golden(GOLDEN, STEPS), "300 strangers",
            ends)
    t.check(0 < ends[0][2].count("lockstep: rank 0: a connection from 127.0.0.1") <= 8,
            "some of them are told of", ends)


def die(t, victim, collective, before=()):
    """A worker of three is killed in mid-run; the others know it at once."""
    port = free_port()
    config = t.write("long.json", {"steps": 100000, "checkpoint.every_steps": 20,
                                   "checkpoint.keep_max": 3})
    shutil.rmtree("lost", ignore_errors=True)
    workers = [start(t, tf_config(3, r, port), "train", config, "--run-dir", "lost", "--replicas",
                     "1", "--collective", collective, *(["--insecure"] if before else []),
                     before=before if r == victim else ())
               for r in range(3)]
    for line in workers[0].lines():
        if line.startswith("checkpoint step 40 "):
            break
    begin = time.monotonic()
    workers[victim].send_signal(signal.SIGKILL)
    others = [workers[r] for r in range(3) if r != victim]
    ends = finish(others)
    seconds = time.monotonic() - begin
    what = f"SIGKILL of rank {victim}, {collective}{', on another host' * bool(before)}"
    print(f"{what:40} {seconds:.2f} s", flush=True)
    t.check(seconds < 2.0, what, seconds)
    host = "apart" if before else r"\S+"
    for code, _, error in ends:
        t.check(code == 75 and error.count("lockstep:") == 1 and
                re.search(rf"rank \d: rank {victim} on {host} \(process \d+\) has died, noticed "
                          r"at step \d+ in phase (reduce|apply|evaluation)", error), what, ends)
    finish([workers[victim]])


def start_time(t):
    """From the first of four processes to the first step of all."""
    best = 1e9
    for _ in range(3):
        port, begin = free_port(), time.monotonic()
        workers = [start(t, tf_config(4, r, port), *train("--replicas", "1")) for r in range(4)]
        for line in workers[0].lines():
            if line.startswith("loss = "):
                break
        best = min(best, time.monotonic() - begin)
        finish(workers)
    print(f"4 workers, start to first step: {best:.2f} s (best of 3)", flush=True)
    return best


def main():
    t = Test()
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK",
                 "PMI_SIZE", "SLURM_STEP_ID", "LOCKSTEP_KEY_FILE"):
        os.environ.pop(name, None)
    code, _, error = finish([start(t, tf_config(2, 1, 1), *train("--start-timeout", "1"))])[0]
    if code == 69 and "has no MPI" in error:
        print("skipped: this build has no MPI")
        sys.exit(77)
    same_bits(t)
    keys(t)
    name_that_leads_elsewhere(t)
    off_loopback(t)
    disagree(t)
    given_socket(t)
    absent(t)
    strangers(t)
    for victim, collective in ((1, "window"), (0, "window"), (2, "messages")):
        die(t, victim, collective)
    # There nothing but the sign of life tells of an end.
    if permitted(APART):
        die(t, 1, "window", APART)
        die(t, 0, "window", APART)
    else:
        print("not done: namespaces are not permitted here")
    start_time(t)
    t.finish()


if __name__ == "__main__":
    main()
