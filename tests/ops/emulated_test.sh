#!/bin/sh
# emulated_test - every kernel of AArch64's variants (neon, portable) against the reference, bit for
# bit, under qemu-user: kernels, conv_kernels and half_kernels, compiled for that processor.
#   emulated_test.sh SOURCE_DIR WORK_DIR [full]
# Without `full`: gcc, as released, and few random shapes. With it: all shapes, gcc and clang, and
# once more under the sanitizers.
set -eu
source=$1 work=$2 full=${3:-}
triple=aarch64-linux-gnu
flags="-std=c11 -ffp-contract=off -fno-fast-math -fno-math-errno -Wall -Wextra -Werror
       -I$source/tests/ops/emulated -I$source"
kernels="ops/cpu/neon ops/cpu/portable ops/reference ops/variant ops/optimizer ops/rate
         ops/initializer ops/layers/activation ops/layers/conv2d ops/layers/dense ops/layers/loss
         ops/layers/conv2d_transpose ops/layers/grouped_conv2d ops/layers/norm ops/layers/layer_norm
         ops/layers/gan ops/layers/noise
         ops/layers/place ops/layers/pool ops/layers/recurrent ops/layers/shape
         ops/layers/dropout ops/layers/decode ops/layers/transducer ops/layers/words
         ops/layers/add ops/graph/average ops/graph/build ops/graph/spectral arena/plan arena/base"
export ASAN_OPTIONS=detect_leaks=0  # a guest cannot stop its own threads to look at them

for tool in qemu-aarch64 $triple-gcc; do
    command -v $tool >/dev/null || {
        echo "emulated_test: $tool is not installed: toolchain/packages cross"
        exit 77
    }
done

# check NAME ROUNDS LINK_FLAGS COMPILER FLAG..
check() {
    name=$1 rounds=$2 link=$3
    shift 3
    echo "== $name"
    mkdir -p "$work/$name"
    cd "$work/$name"
    rm -f ./*.o
    # shellcheck disable=SC2086
    printf '%s\n' $kernels tests/ops/kernels_test tests/ops/conv_kernels_test \
           tests/ops/half_kernels_test |
        xargs -P 2 -I{} "$@" $flags -c "$source/{}.c"
    objects=$(ls ./*.o | grep -v _test.o)
    for test in kernels conv_kernels half_kernels; do
        # shellcheck disable=SC2086
        $triple-gcc $link -o $test ${test}_test.o $objects
    done
    qemu-aarch64 -L /usr/$triple ./kernels "$rounds" >kernels.out 2>&1 &
    other=$!
    qemu-aarch64 -L /usr/$triple ./conv_kernels "$rounds" || exit 1
    qemu-aarch64 -L /usr/$triple ./half_kernels "$rounds" || exit 1
    wait $other || { cat kernels.out; exit 1; }
    cat kernels.out
}

release="-O3 -DNDEBUG"
if [ -z "$full" ]; then
    # shellcheck disable=SC2086
    check gcc 10 -static $triple-gcc $release -fno-schedule-insns
    exit 0
fi
# shellcheck disable=SC2086
check gcc 200 -static $triple-gcc $release -fno-schedule-insns
sanitize="-fsanitize=address,undefined -fno-sanitize-recover=all"
# shellcheck disable=SC2086
check sanitizers 60 "$sanitize" $triple-gcc -O1 -g $sanitize
if command -v clang >/dev/null; then
    # shellcheck disable=SC2086
    check clang 200 -static clang --target=$triple -isystem /usr/$triple/include $release
fi
