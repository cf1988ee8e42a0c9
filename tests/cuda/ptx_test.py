#!/usr/bin/env python3
"""ptx_test - what nvcc makes of the strict kernels holds nothing that changes bits.

   ptx_test.py SOURCE_DIR TABLE OBJECTS FLAG...      FLAGs are those of the build

OBJECTS is the folder of the objects that hold the PTX as a text (ptx/CMakeLists.txt), so that
nothing is compiled twice.

Searched for: results flushed to zero, approximations, division that is not rounded, atomics on
floats, double, fused multiply-adds in files that write none, and loads of the persistent kernel
that other blocks' stores do not reach; and divisions of integers beyond those that divisions.py
lists. Then what ptxas gives the kernels on sm_90 is compared with TABLE (resources_test.py). Exits
77 where there is no nvcc.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import divisions
import resources_test

BANNED = [
    (r"\.ftz\b", "flushes subnormals to zero"),
    (r"\.approx\b", "approximates"),
    (r"\bdiv\.full\b", "divides without rounding"),
    (r"\b(red|atom)\.[\w.]*\.[bf]?(f16|f32|f64|bf16)", "adds floats in no order"),
    (r"\b(wmma|mma|wgmma)\b", "multiplies in less than fp32"),
    (r"\b(add|sub|mul|fma|div|cvt)\.[\w.]*f64\b", "computes in double"),
    (r"\bmad\.[\w.]*f32\b", "multiplies and adds in a way of its own"),
    (r"\b(add|sub|mul|fma|div|sqrt)\.(rz|rm|rp)\.", "rounds otherwise"),
]
# Each is found in a kernel that is wrong on purpose: the search itself can fail.
WRONG = """
__global__ void wrong(float *x, double *y) {
    x[0] = __expf(x[1]);
    x[2] = __fdividef(x[3], x[4]);
    atomicAdd(x + 5, 1.0f);
    y[0] = y[1] + x[6];
    x[7] = __fadd_rz(x[7], 1.0f);
}
__global__ void divided(unsigned *x, unsigned by) { x[0] = x[1] / by + x[2] % by; }
__global__ void contracted(float *x) { x[0] = x[1] * x[2] + x[3]; }
"""


def find_nvcc():
    for name in (os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if name and os.path.exists(name):
            return name
    return None


def sources(folder):
    return sorted(glob.glob(os.path.join(folder, "ops", "cuda", "*.cu")))


def compile_ptx(nvcc, source, folder, flags):
    out = os.path.join(folder, "out.ptx")
    subprocess.run([nvcc, "-std=c++17", "-ptx", *flags, source, "-o", out], check=True)
    with open(out, encoding="utf-8") as f:
        return f.read()


def built_ptx(objects, source):
    """The PTX of sm_90 that a source's object holds."""
    name = os.path.splitext(os.path.basename(source))[0]
    with open(os.path.join(objects, name + ".o"), "rb") as f:
        found = re.findall(rb"\n\.version [^\0]*", f.read())
    if len(found) != 1 or b"\n.target sm_90\n" not in found[0]:
        raise SystemExit(f"{name}.o: found {len(found)} texts of PTX, wanted one, of sm_90")
    return found[0].decode()


def problems(ptx):
    found = [(why, re.search(pattern, ptx)) for pattern, why in BANNED]
    return [f"{why}: {match.group()}" for why, match in found if match]


def main():
    nvcc = find_nvcc()
    if not nvcc:
        print("skipped: no nvcc")
        return 77
    folder, table = sys.argv[1], resources_test.read(sys.argv[2])
    objects, flags = sys.argv[3], sys.argv[4:]
    ptxas, given, divided = resources_test.ptxas_of(nvcc), {}, {}
    flags += ["-I", folder, "-arch=compute_90"]
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        wrong = os.path.join(work, "wrong.cu")
        with open(wrong, "w", encoding="utf-8") as f:
            f.write(WRONG)
        loose = compile_ptx(nvcc, wrong, work, ["--use_fast_math", "-arch=compute_90"])
        found = problems(loose)
        if len(found) < 5 or "fma.rn" not in loose:
            print(f"the search is blind: it finds only {found}")
            failed += 1
        if divisions.counts(loose) != {"divided": 2}:
            print(f"the search is blind: of divisions it finds {divisions.counts(loose)}")
            failed += 1
        if "fma.rn" in compile_ptx(nvcc, wrong, work, flags):
            print(f"{' '.join(flags)} let nvcc contract a product and a sum")
            failed += 1
        for source in sources(folder):
            ptx = built_ptx(objects, source)
            with open(source, encoding="utf-8") as f:
                text = f.read()
            found = problems(ptx)
            writes_fma = re.search(r"lk_fmaf|ops/math\.h|ops/cuda/(sums|dense|conv|elements|"
                                   r"grouped_conv|layer_norm|loss|norm|plain|update)\w*\.h",
                                   text)
            if not writes_fma and re.search(r"\bfma\.", ptx):
                found.append("contracts a product and a sum")
            # Blocks of the persistent kernel read what others wrote in the same launch.
            if os.path.basename(source) == "persistent.cu" and "ld.global.nc" in ptx:
                found.append("reads through the cache that is not coherent")
            of_file = divisions.counts(ptx)
            found += divisions.problems(of_file)
            divided.update({k: max(n, divided.get(k, 0)) for k, n in of_file.items()})
            for line in found:
                print(f"{source}: {line}")
            failed += len(found)
            given.update(resources_test.resources(ptxas, ptx, "90", source))
            print(f"{os.path.basename(source)}: {len(re.findall(r'fma.rn.f32', ptx))} fma, "
                  f"{len(found)} problems")
    version = resources_test.version_of(ptxas)
    found = resources_test.compare(given, table, "90", version)
    found += resources_test.missing(given, table, "90") + divisions.stale(divided)
    print("\n".join(found + [f"sm_90: {len(given)} kernels, {len(found)} problems"]))
    return 1 if failed or found else 0


if __name__ == "__main__":
    sys.exit(main())
