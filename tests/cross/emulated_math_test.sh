#!/bin/sh
# emulated_math_test - functions of fp32 on other machines, under qemu-user: a strided sweep must
# have the hash that every other machine has. Where a STRIDE is given, clang's code is swept, too.
#   emulated_math_test.sh SOURCE_DIR WORK_DIR [STRIDE]
set -eu
source=$1 work=$2 stride=${3:-65537}
mkdir -p "$work"
ran=0 differ=0

# sweep NAME TRIPLE EMULATOR COMPILER FLAG..
sweep() {
    name=$1 triple=$2 emulator=$3
    shift 3
    if ! command -v "$emulator" >/dev/null || ! command -v "$1" >/dev/null; then
        echo "$name: $emulator or $1 is not installed: toolchain/packages cross"
        return
    fi
    "$@" -std=c11 -ffp-contract=off -fno-math-errno -I"$source" \
        -c "$source/tests/ops/math_bits.c" -o "$work/math_bits.o"
    "$triple-gcc" -static "$work/math_bits.o" -o "$work/math_bits"
    ran=$((ran + 1))
    "$emulator" "$work/math_bits" "$stride" | sed "s/^/$name: /" | tee "$work/out"
    [ "$(grep -c 'equal$' "$work/out")" = 10 ] || differ=1
}

a=aarch64-linux-gnu r=riscv64-linux-gnu
sweep "aarch64 gcc -O3" $a qemu-aarch64 $a-gcc -O3
sweep "riscv64 gcc -O3" $r qemu-riscv64 $r-gcc -O3
sweep "riscv64 gcc -O2, integer fma" $r qemu-riscv64 $r-gcc -O2 -DLK_USE_SOFT_FMAF
if [ $# = 3 ]; then
    sweep "aarch64 clang -O3" $a qemu-aarch64 clang --target=$a -isystem /usr/$a/include -O3
    sweep "riscv64 clang -O3" $r qemu-riscv64 clang --target=$r -isystem /usr/$r/include -O3
fi
[ $ran != 0 ] || exit 77
exit $differ
