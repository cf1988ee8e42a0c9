# portable_test.sh - the folder that the target `portable` made, as another machine would see it.
#   sh portable_test.sh FOLDER WORK_DIR HAS_CUDA
#
# It is copied elsewhere and started with an empty environment. Nothing but the C library may be
# loaded; where there is no GPU, --kernels cuda says so in one line and everything else works.
set -eu
folder=$1 work=$2 has_cuda=$3
rm -rf "$work"
mkdir -p "$work"
cp -r "$folder" "$work/elsewhere"
cd "$work"
lockstep="env -i HOME=$work elsewhere/lockstep"

for file in elsewhere/* elsewhere/gpu/*; do
    objects=$(ldd "$file" 2>/dev/null | awk '{ print $1 }') || continue
    for object in $objects; do
        case "$object" in
        linux-vdso.so.* | libc.so.6 | libm.so.6 | libdl.so.2 | librt.so.1 | libpthread.so.0 | \
            /lib*/ld-linux*) ;;
        libcmocka.so.0)
            ldd "$file" | grep -q 'libcmocka.so.0 => .*elsewhere/gpu' || {
                echo "portable: $file does not take the libcmocka.so.0 beside it" && exit 1
            }
            ;;
        not | statically) ;;
        *) echo "portable: $file loads $object, which other machines may lack" && exit 1 ;;
        esac
    done
done

$lockstep train made-up-cnn --set steps=5 --run-dir run --kernels portable >trained
grep -q '^digest ' trained
$lockstep doctor >doctor || true
if [ "$has_cuda" = 1 ] && ! grep -q 'use it with --kernels cuda' doctor; then
    code=0
    $lockstep train made-up-cnn --kernels cuda --run-dir gpu >out 2>error || code=$?
    [ "$code" = 69 ] && [ "$(wc -l <error)" = 1 ] && grep -q 'no GPU can be used here' error || {
        echo "portable: --kernels cuda without a GPU: exit $code, wanted 69 and one line"
        cat error
        exit 1
    }
    code=0
    python3 elsewhere/gpu-check >out 2>error || code=$?
    [ "$code" = 69 ] && [ "$(cat out error | wc -l)" = 1 ] || {
        echo "portable: gpu-check without a GPU: exit $code, wanted 69 and one line"
        cat out error
        exit 1
    }
fi
$lockstep plan made-up-cnn --kernels portable >plan
grep -q '^arena ' plan
echo "portable: $(find elsewhere -type f | wc -l) files, $(du -sh elsewhere | cut -f1)"
