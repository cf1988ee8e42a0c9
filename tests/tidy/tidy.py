#!/usr/bin/env python3
"""tidy - the house rules that a machine can check. Prints file:line: rule; exits 1 if any is.

   tests/tidy/tidy.py [ROOT]        every file that git knows, or all files where there is no git
"""
import os
import re
import subprocess
import sys

COLUMNS_MAX = 100
DOCUMENT_COLUMNS_MAX = 400  # of a table's row
README_LINES_MAX = 200      # of the root's: a quick start; the rest stands in the folders'
FUNCTION_LINES_MAX = 70
FOLDERS = {"arena", "ops", "comm", "io", "apps", "tests", "toolchain"}
# Which folders a folder may include from.
MAY_INCLUDE = {
    "arena": {"arena"},
    "ops": {"arena", "ops"},
    "comm": {"arena", "ops", "comm"},
    "io": {"arena", "io"},
    "apps": {"arena", "ops", "comm", "io", "apps"},
}
# Which folders of comm a folder of it may include from: nothing points back.
COMM = ("step", "threads", "cluster", "mpi", "cuda")
MAY_INCLUDE_IN_COMM = {name: set(COMM[:i + 1]) for i, name in enumerate(COMM)}
# Which folders of apps a folder of it may include from: a run knows no command line.
MAY_INCLUDE_IN_APPS = {"run": {"run"}, "cli": {"run", "cli"}, "baremetal": {"baremetal", "run"}}
# An op or a layer is known by its descriptor alone (ops/op.h).
KINDS = re.compile(r"\bcase LK_(OP|LAYER|OPTIMIZER)_")
# What GLOSSARY.md calls by another word now, and that word.
RETIRED = [(re.compile(rf"(?<![A-Za-z0-9_])(?:{old})(?![A-Za-z0-9_])"), new) for old, new in [
    (r"(?!wave_examples\b)\w*_?waves?(_\w+)?", "microbatch"),
    (r"lk_parts?(_\w+)?|LK_PARTS?_\w+|lk_exchange_parts", "bucket"),
    (r"lk_slice(_of)?|lk_part_slice", "partition"),
    (r"lk_turn|LK_TURN_\w+|LK_NO_TURN|lk_mpi_turn", "round"),
    (r"lk_notes?|lk_cuda_note(_\w+)?|LK_(ACT|MPI|TURN|CUDA)_NOTES?", "report"),
    (r"lk_world(_\w+)?", "group, which is one worker's replicas"),
    (r"(lk_mpi_)?is_near|far_count|lk_mpi\.far", "in_window, remote"),
    (r"(\w+_)?foreign_bytes", "external"),
]]
# Freestanding files: the core. They include only each other and the compiler's own headers.
CORE = """arena/arena.c arena/base.c arena/plan.c arena/sha256.c ops/optimizer.c ops/rate.c
          ops/initializer.c
          ops/reference.c ops/graph/build.c ops/graph/check.c ops/graph/execute.c
          ops/graph/augment.c ops/graph/average.c ops/graph/graph.c ops/graph/identity.c
          ops/graph/mixed.c ops/graph/spectral.c
          ops/graph/scale.c ops/graph/model.c ops/graph/program.c
          ops/layers/activation.c ops/layers/add.c
          ops/layers/conv2d.c ops/layers/conv2d_transpose.c ops/layers/decode.c
          ops/layers/dense.c ops/layers/dropout.c ops/layers/gan.c ops/layers/loss.c
          ops/layers/noise.c
          ops/layers/grouped_conv2d.c ops/layers/layer_norm.c ops/layers/norm.c
          ops/layers/place.c ops/layers/pool.c ops/layers/recurrent.c
          ops/layers/shape.c ops/layers/transducer.c ops/layers/words.c
          comm/cluster/cluster.c
          comm/step/driver.c comm/step/exchange.c comm/step/hash.c comm/step/lanes.c
          comm/step/norms.c
          comm/step/reduce.c comm/step/step.c io/decimal.c io/idx.c io/made_up.c
          io/shuffle.c""".split()
FREESTANDING_HEADERS = {"stdbool.h", "stddef.h", "stdint.h", "stdarg.h"}
# Heap calls in the library are for start-up, and each place has a reason that stands beside it.
HEAP = re.compile(r"\b(malloc|calloc|realloc|aligned_alloc|strdup|posix_memalign)\s*\(")
HEAP_ALLOWED = {"apps"}
BANNED = [
    (re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"), "a thing left for later"),
    (re.compile(r"/(work|farm)/|/root/\."), "a path of one machine"),
    (re.compile(r"^[^/#\"]*(-ffast-math\b|-Ofast\b|-march=native)"), "a flag that changes bits"),
    (re.compile(r"#pragma\s+omp"), "OpenMP hides the order of sums"),
    (re.compile(r"(?<!json_)\b(strcpy|strcat|sprintf|gets|strtok)\s*\("),
     "a function without a bound"),
]
BANNED_ELSEWHERE_ALLOWED = {"tests/tidy/tidy.py"}

problems = []




def report(path, line, rule):
    problems.append(f"{path}:{line}: {rule}")


def files(root):
    try:
        out = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True,
                             check=True).stdout.split("\n")
        return [f for f in out if f and os.path.isfile(os.path.join(root, f))]
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if not f.startswith((".git", "build"))]
            found += [os.path.relpath(os.path.join(folder, n), root) for n in names]
        return found


def strip(text):
    """Comments, strings and characters blanked, line breaks kept."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def check_functions(path, code):
    """A body starts at a line that ends in '{' at the outermost level and has a ')' before it."""
    depth, start, name = 0, 0, ""
    for number, line in enumerate(code.split("\n"), 1):
        if line.lstrip().startswith("#"):
            continue
        if depth == 0 and line.rstrip().endswith("{") and ")" in line:
            start, name = number, line.strip()
        depth += line.count("{") - line.count("}")
        if re.match(r'\s*extern\s+"?\s*"?\s*\{', line) or 'extern "C"' in line:
            depth = 0
        if depth == 0 and start and "}" in line:
            if number - start + 1 > FUNCTION_LINES_MAX:
                report(path, start, f"a function of {number - start + 1} lines: {name[:60]}")
            start = 0
        depth = max(depth, 0)


def check_includes(path, text):
    folder = path.split("/")[0]
    for number, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if not m:
            continue
        quoted, target = m.group(1) == '"', m.group(2)
        if quoted and folder in MAY_INCLUDE and target.split("/")[0] not in MAY_INCLUDE[folder]:
            report(path, number, f"{folder} may not include {target}")
        parts, wanted = path.split("/"), target.split("/")
        if quoted and folder == "comm" and wanted[0] == "comm" and len(parts) > 2 and \
                wanted[1] not in MAY_INCLUDE_IN_COMM[parts[1]]:
            report(path, number, f"comm/{parts[1]} may not include {target}")
        if quoted and folder == "apps" and wanted[0] == "apps" and len(parts) > 2 and \
                wanted[1] not in MAY_INCLUDE_IN_APPS[parts[1]]:
            report(path, number, f"apps/{parts[1]} may not include {target}")
        if not quoted and path in CORE and target not in FREESTANDING_HEADERS:
            report(path, number, f"the core is freestanding and may not include <{target}>")


# What arena/base.h's own formatter does not know, and gcc does: it would print the digits.
OUR_FORMAT = re.compile(r"\blk_(?:fail|format)\s*\([^;]*?%[-0-9]*\.[0-9]")


def check_formats(path, text):
    for found in OUR_FORMAT.finditer(text):
        report(path, text.count("\n", 0, found.end()) + 1,
               "a precision as digits, which lk_fail and lk_format do not know: write %.*s")


def check_source(path, text):
    first = text.lstrip("\n").split("\n", 1)[0]
    if not first.startswith("//"):
        report(path, 1, "no banner: the first line says what the file is for")
    code = strip(text)
    check_functions(path, code)
    check_includes(path, text)
    check_formats(path, text)
    for number, line in enumerate(code.split("\n"), 1):
        folder = path.split("/")[0]
        if HEAP.search(line) and folder in MAY_INCLUDE and folder not in HEAP_ALLOWED:
            report(path, number, "the library takes no heap")
        if KINDS.search(line) and folder in MAY_INCLUDE and not path.startswith("ops/layers/"):
            report(path, number, "a case over kinds of ops: ask the descriptor (ops/op.h)")
        for pattern, new in RETIRED:
            if pattern.search(line):
                report(path, number, f"a word that GLOSSARY.md retired: {new}")
        if re.search(r"\bdouble\b", line) and path in CORE:
            report(path, number, "no double in the core")


def check_file(root, path):
    with open(os.path.join(root, path), "rb") as f:
        data = f.read()
    if "/corpus/" in path:
        return
    if b"\0" in data:
        if not path.startswith("tests/golden/"):
            report(path, 1, "no text; such files live in tests/fuzz/corpus and tests/golden alone")
        return
    text = data.decode("utf-8", "replace")
    columns = DOCUMENT_COLUMNS_MAX if path.endswith(".md") else COLUMNS_MAX
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > columns and not path.endswith((".json", ".jsonl")):
            report(path, number, f"{len(line)} columns, at most {columns}")
        if line != line.rstrip():
            report(path, number, "space at the end of the line")
        if "\t" in line:
            report(path, number, "a tab")
        for pattern, rule in BANNED:
            if pattern.search(line) and path not in BANNED_ELSEWHERE_ALLOWED:
                report(path, number, rule)
    if text and not text.endswith("\n"):
        report(path, text.count("\n") + 1, "no newline at the end")
    if path.endswith((".c", ".h", ".cpp", ".cu")):
        check_source(path, text)


def check_documents(root, names):
    """Every folder explains itself, the root's README is short, and no link leads nowhere."""
    for folder in sorted(FOLDERS):
        if f"{folder}/README.md" not in names:
            report(folder, 1, "no README.md: what lives here, the way of the data, how to add")
    for path in (n for n in names if n.endswith(".md")):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            text = f.read()
        lines = text.count("\n")
        if path == "README.md" and lines > README_LINES_MAX:
            report(path, lines, f"{lines} lines, at most {README_LINES_MAX}")
        for number, line in enumerate(text.split("\n"), 1):
            for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", line):
                there = os.path.normpath(os.path.join(os.path.dirname(path), target))
                if target and there not in names:
                    report(path, number, f"a link to {target}, which is not there")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../..")
    names = files(root)
    for path in names:
        top = path.split("/")[0]
        if "/" in path and top not in FOLDERS and not top.startswith("."):
            report(path, 1, f"top-level folder {top}")
        if path != "LICENSE":
            check_file(root, path)
    check_documents(root, set(names))
    for line in problems:
        print(line)
    print(f"tidy: {len(names)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
