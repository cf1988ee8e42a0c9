#!/usr/bin/env python3
"""mutation - proof that the tests can fail: puts mistakes into the program, one at a time, and
counts how many the tests notice. Standard library only; works on a copy, never on the tree itself.

   tests/mutation/mutation.py [SOURCE]            every mutant, then the score
      --module NAME   only the mutants of NAME.mutants (again for more)
      --only REGEX    only mutants whose name matches
      --since REF     only mutants of files that differ from that commit
      --part K/N      only the K-th of N parts: for several nights, or machines
      --jobs N        so many copies at once (1)
      --goal P        exit with 1 below P percent (95)
      --work DIR      where copies and builds lie, kept for the next time (SOURCE/build/mutation)
      --list          names, files and tests, and no more
      --check         no build: does each mutant's text stand in its file exactly once, and is what
                      tests/README.md says of some of them true?

A file NAME.mutants is TOML, one for each module:

   tests = "json|text"           the module's own tests, by their CTest names: a regular expression
   [[mutant]]
   name = "boundary"             lower case, with hyphens
   file = "io/json.c"
   find = 'integer <= max'       exactly once in that file, or the mutant is stale: an error
   with = 'integer < max'
   tests = "json"                who should notice, tried first; one or several, split at spaces
   equivalent = "why"            no test can notice: checked for staleness, not run, not counted

A mutant that does not compile is an error too. A test that fails, crashes or hangs has noticed.
Exit codes: 0 the goal is met, 1 it is not, 2 a mutant or the unchanged program is in disorder.
"""
import argparse
import concurrent.futures
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
CAUGHT, SURVIVED, BROKEN, EQUIVALENT = "caught", "SURVIVED", "does not compile", "equivalent"
KEYS = {"name", "file", "find", "with", "tests", "equivalent"}
BUILD_S = 1800
# A test that takes longer than this many times its usual time hangs.
PATIENCE_TIMES, PATIENCE_S = 8, 20


class Disorder(Exception):
    pass


# --- the lists ----------------------------------------------------------------------------------

def read_module(path):
    module = os.path.basename(path)[:-len(".mutants")]
    with open(path, "rb") as f:
        try:
            document = tomllib.load(f)
        except tomllib.TOMLDecodeError as e:
            raise Disorder(f"{path}: {e}") from e
    mutants = document.get("mutant", [])
    if set(document) != {"tests", "mutant"} or not mutants:
        raise Disorder(f"{path}: wanted the keys tests and [[mutant]], and at least one mutant")
    for m in mutants:
        where = f"{path}: mutant {m.get('name', '(no name)')}"
        wanted = KEYS - {"equivalent"} - ({"tests"} if "equivalent" in m else set())
        if not wanted <= set(m) <= KEYS or not all(isinstance(v, str) for v in m.values()):
            raise Disorder(f"{where}: found the keys {', '.join(sorted(m))}, wanted "
                           f"{', '.join(sorted(wanted))}")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", m["name"]) or m["find"] == m["with"]:
            raise Disorder(f"{where}: a name of other characters, or find and with are the same")
        if not re.fullmatch(r"(\w+( \w+)*)?", m.get("tests", "")):
            raise Disorder(f"{where}: tests \"{m['tests']}\", wanted names, spaces between them")
        m["module"], m["module_tests"] = module, document["tests"]
    return mutants


def read_all(chosen):
    names = sorted(n[:-len(".mutants")] for n in os.listdir(HERE) if n.endswith(".mutants"))
    unknown = [c for c in chosen or [] if c not in names]
    if unknown:
        raise Disorder(f"--module {unknown[0]}: there is no such list, wanted one of "
                       f"{', '.join(names)}")
    mutants = [m for n in names if not chosen or n in chosen
               for m in read_module(os.path.join(HERE, n + ".mutants"))]
    seen = set()
    for m in mutants:
        key = (m["module"], m["name"])
        if key in seen:
            raise Disorder(f"{m['module']}.mutants: two mutants are called {m['name']}")
        seen.add(key)
    return mutants


def changed_text(source, m):
    """The file's text with the mistake in it."""
    where = f"{m['module']}.mutants: {m['name']}: {m['file']}"
    try:
        with open(os.path.join(source, m["file"]), encoding="utf-8") as f:
            text = f.read()
    except OSError as e:
        raise Disorder(f"{where}: {e.strerror}") from e
    count = text.count(m["find"])
    if count != 1:
        raise Disorder(f"{where}: stale: found the text {count} times, wanted once: {m['find']}")
    return text.replace(m["find"], m["with"])


def check_all(source, mutants):
    wrong = []
    for m in mutants:
        try:
            changed_text(source, m)
        except Disorder as e:
            wrong.append(str(e))
    if wrong:
        raise Disorder("\n".join(wrong))


def check_page(source):
    """The table of tests/README.md whose second column is "mutants": all exist, and are noticed by
    tests of the third."""
    path, rows = os.path.join(source, "tests", "README.md"), []
    known = {m["name"]: m.get("tests", "").split() for m in read_all(None)}
    with open(path, encoding="utf-8") as f:
        for line in f:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if line.startswith("|") and (rows or cells[1:2] == ["mutants"]):
                rows.append([re.findall("`([^`]+)`", cell) for cell in cells])
            elif rows:
                break
    if len(rows) < 3:
        raise Disorder(f"{path}: found no table of mutants")
    for _, names, tests in rows[2:]:
        for name in names:
            if name not in known:
                raise Disorder(f"{path}: there is no mutant {name}")
            if not set(tests) & set(known[name]):
                raise Disorder(f"{path}: {name}: found the tests {', '.join(tests)}, wanted one of "
                               f"{', '.join(known[name])}")
        wrong = set(tests) - {test for name in names for test in known[name]}
        if wrong or not names:
            raise Disorder(f"{path}: {', '.join(names)}: none of them is noticed by "
                           f"{', '.join(sorted(wrong))}")


def part_of(mutants, part):
    matched = re.fullmatch(r"(\d{1,4})/(\d{1,4})", part)
    k, n = (int(g) for g in matched.groups()) if matched else (0, 0)
    if not 1 <= k <= n:
        raise Disorder(f"--part {part}: wanted K/N, K from 1 to N")
    return mutants[len(mutants) * (k - 1) // n:len(mutants) * k // n]


def changed_since(source, ref):
    done = subprocess.run(["git", "-C", source, "diff", "--name-only", ref], capture_output=True,
                          text=True)
    if done.returncode:
        raise Disorder(f"--since {ref}: {done.stderr.strip()}")
    return set(done.stdout.split("\n"))


# --- a copy -------------------------------------------------------------------------------------

def files_of(source):
    done = subprocess.run(["git", "-C", source, "ls-files", "-zco", "--exclude-standard"],
                          capture_output=True)
    if done.returncode == 0:
        return [n for n in done.stdout.decode().split("\0")
                if n and os.path.isfile(os.path.join(source, n))]
    found = []
    for folder, folders, names in os.walk(source):
        folders[:] = [d for d in folders if d not in ("build", ".git")]
        found += [os.path.relpath(os.path.join(folder, n), source) for n in names]
    return found


def write_if_other(path, data, mode):
    """Keeps the time of a file that is the same, so that nothing is built again for it."""
    try:
        with open(path, "rb") as f:
            if f.read() == data:
                return
    except OSError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    os.chmod(path, mode)


class Copy:
    """A copy of the source and its build."""

    def __init__(self, source, work):
        self.source, self.build = os.path.join(work, "source"), os.path.join(work, "build")
        names = set(files_of(source))
        for folder, _, there in os.walk(self.source):
            for name in there:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.source) not in names:
                    os.remove(path)
        for name in names:
            path = os.path.join(source, name)
            with open(path, "rb") as f:
                write_if_other(os.path.join(self.source, name), f.read(), os.stat(path).st_mode)
        # Below CCACHE_BASEDIR paths are relative to the build, so that a copy finds what another
        # has compiled. -O1 compiles the kernels in half the time, and no bit depends on it.
        os.environ.update(CCACHE_BASEDIR=os.path.dirname(work), CCACHE_NOHASHDIR="1")
        launcher = shutil.which("ccache")
        flags = [f"-DCMAKE_{c}_COMPILER_LAUNCHER={launcher}" for c in ("C", "CXX") if launcher]
        self.call(["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja",
                   "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG",
                   "-DLOCKSTEP_CUDA=OFF", *flags])
        made = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"],
                              capture_output=True, text=True, check=True)
        self.made = {line.split(":")[0] for line in made.stdout.splitlines()}
        self.usual = {}
        self.list_tests()

    def list_tests(self):
        listed = subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"],
                                capture_output=True, text=True, check=True)
        self.tests = {t["name"]: t for t in json.loads(listed.stdout)["tests"]}

    def call(self, command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
        if done.returncode:
            raise Disorder(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-3000:]}")

    def names(self, pattern, also=""):
        """The tests of a mutant in their order: its own by name, then the module's."""
        own = pattern.split()
        for name in own:
            if name not in self.tests:
                raise Disorder(f"there is no test {name}")
        rest = [n for n in self.tests if also and re.fullmatch(also, n) and n not in own]
        return own + sorted(rest, key=lambda n: self.usual.get(n, 0))

    def make(self, names):
        """Builds the programs that these tests call; False: it does not compile."""
        targets = set()
        for name in names:
            for word in self.tests[name]["command"]:
                word = word.split("=")[-1]  # of CMake's -DNAME=VALUE
                relative = os.path.relpath(word, self.build) if os.path.isabs(word) else ""
                if relative in self.made:
                    targets.add(relative)
        done = subprocess.run(["ninja", "-C", self.build, "-j1", *sorted(targets)],
                              capture_output=True, text=True, timeout=BUILD_S)
        self.said = done.stdout[-3000:]
        return done.returncode == 0

    def run(self, name):
        """None: passed; "skipped"; otherwise how it noticed."""
        test = self.tests[name]
        properties = {p["name"]: p["value"] for p in test["properties"]}
        environment = dict(os.environ)
        environment.update(e.split("=", 1) for e in properties.get("ENVIRONMENT", []))
        limit = properties.get("TIMEOUT", 1500)
        if name in self.usual:
            limit = min(limit, PATIENCE_TIMES * self.usual[name] + PATIENCE_S)
        begin = time.monotonic()
        process = subprocess.Popen(test["command"], cwd=properties["WORKING_DIRECTORY"],
                                   env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            self.said = process.communicate(timeout=limit)[0].decode(errors="replace")[-3000:]
        except subprocess.TimeoutExpired:
            return "hung"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        self.took = time.monotonic() - begin
        if process.returncode == 0:
            return None
        if process.returncode == properties.get("SKIP_RETURN_CODE"):
            return "skipped"
        return "failed" if process.returncode > 0 else "crashed"

    def prepare(self, names):
        """Builds what all these tests call, on the unchanged program."""
        # CTest does not know the command of a program that was never built.
        unbuilt = [n for n in names if "command" not in self.tests[n]]
        if unbuilt:
            self.call(["ninja", "-C", self.build, "-j1",
                       *{t for n in unbuilt for t in (n, "test_" + n) if t in self.made}])
            self.list_tests()
        if not self.make(names):
            raise Disorder(f"the unchanged program does not build:\n{self.said}")

    def baseline(self, name):
        """The usual time of a test. It must pass here: one that fails anyway proves nothing."""
        # Up to three times: some measure time, and fail where another program takes it.
        end = self.run(name) and self.run(name) and self.run(name)
        if end not in (None, "skipped"):
            raise Disorder(f"{name} {end} on the unchanged program:\n{self.said}")
        return getattr(self, "took", PATIENCE_S)

    def judge(self, m):
        """What became of the mutant, and which test noticed how."""
        path = os.path.join(self.source, m["file"])
        with open(path, "rb") as f:
            before = f.read()
        changed = changed_text(self.source, m)
        own, every = self.names(m["tests"]), self.names(m["tests"], m["module_tests"])
        try:
            with open(path, "w", encoding="utf-8") as f:
                f.write(changed)
            if not self.make(own):
                return BROKEN, self.said.strip().splitlines()[-1]
            for place, name in enumerate(every):
                if place == len(own) and not self.make(every):
                    return BROKEN, self.said.strip().splitlines()[-1]
                end = self.run(name)
                if end not in (None, "skipped"):
                    return CAUGHT, f"{name} {end}"
            return SURVIVED, " ".join(every)
        finally:
            with open(path, "wb") as f:
                f.write(before)


# --- all of them --------------------------------------------------------------------------------

def each(function, items, pool, free):
    """function(copy, item) for every item in order, by whichever copy is free."""
    def one(item):
        copy = free.get()
        try:
            return function(copy, item)
        finally:
            free.put(copy)
    return pool.map(one, items)


def judge_one(copy, m):
    if "equivalent" in m:
        return m, EQUIVALENT, m["equivalent"], 0
    begin = time.monotonic()
    return m, *copy.judge(m), time.monotonic() - begin


def judge_all(source, mutants, work, jobs):
    run, free, results = [m for m in mutants if "equivalent" not in m], queue.Queue(), []
    copies = [Copy(source, os.path.join(work, f"copy-{i}")) for i in range(min(jobs, len(run)))]
    if not copies:
        return [(m, EQUIVALENT) for m in mutants]
    names = sorted({n for m in run for n in copies[0].names(m["tests"], m["module_tests"])})
    pool = concurrent.futures.ThreadPoolExecutor(len(copies))
    try:
        for _ in pool.map(lambda copy: copy.prepare(names), copies):
            pass
        for copy in copies:
            free.put(copy)
        usual = dict(zip(names, each(Copy.baseline, names, pool, free)))
        for copy in copies:
            copy.usual = usual
        for m, verdict, by, seconds in each(judge_one, mutants, pool, free):
            print(f"{m['module']:<8} {m['name']:<44} {verdict:<10} {seconds:6.1f} s  {by}",
                  flush=True)
            results.append((m, verdict))
    finally:  # also when interrupted: the file at hand is restored, and no other begins
        pool.shutdown(cancel_futures=True)
    return results


def conclude(results, goal):
    for module in sorted({m["module"] for m, _ in results}):
        of = [v for m, v in results if m["module"] == module]
        count = len([v for v in of if v in (CAUGHT, SURVIVED)])
        print(f"{module}: {of.count(CAUGHT)} of {count} caught, {of.count(EQUIVALENT)} equivalent")
    verdicts = [v for _, v in results]
    caught, all_ = verdicts.count(CAUGHT), verdicts.count(CAUGHT) + verdicts.count(SURVIVED)
    percent = 100 * caught / all_ if all_ else 100
    print(f"{caught} of {all_} caught, {percent:.1f}%; goal {goal:g}%")
    if BROKEN in verdicts:
        raise Disorder(f"{verdicts.count(BROKEN)} mutants do not compile: correct them")
    return 0 if percent >= goal else 1


def main():
    parser = argparse.ArgumentParser(prog="mutation", usage=__doc__)
    parser.add_argument("source", nargs="?", default=os.path.join(HERE, "..", ".."))
    parser.add_argument("--module", action="append")
    parser.add_argument("--only", default="")
    parser.add_argument("--since")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--goal", type=float, default=95)
    parser.add_argument("--work")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    o = parser.parse_args()
    source = os.path.abspath(o.source)
    mutants = [m for m in read_all(o.module) if re.search(o.only, m["name"])]
    if o.since:
        changed = changed_since(source, o.since)
        mutants = [m for m in mutants if m["file"] in changed]
    mutants = part_of(mutants, o.part)
    if o.list:
        for m in mutants:
            print(f"{m['module']:<8} {m['name']:<44} {m['file']:<24} {m.get('tests', '-')}")
        return 0
    check_all(source, mutants)
    if o.check:
        check_page(source)
    if o.check or not mutants:
        print(f"{len(mutants)} mutants, each applies once")
        return 0
    work = os.path.abspath(o.work or os.path.join(source, "build", "mutation"))
    return conclude(judge_all(source, mutants, work, max(o.jobs, 1)), o.goal)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except Disorder as e:
        print(f"mutation: {e}", file=sys.stderr)
        sys.exit(2)
