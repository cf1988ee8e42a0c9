#!/bin/sh
# same_bits_test - toolchain/same-bits called from another directory: its paths are the caller's,
# and what it does not know is refused before anything is built or run.
#   same_bits_test.sh SAME-BITS WORK
set -u
script=$1 work=$2
rm -rf "$work"
mkdir -p "$work" && cd "$work" || exit 70
failed=0
wrong() { echo "WRONG: $1"; cat out; failed=1; }

# Stands for the program: any run has the same digests.
cat >program <<'END'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/calls"
while [ "$#" -gt 1 ] && [ "$1" != --to ]; do shift; done
[ "$1" != --to ] || : >"$2"
printf 'digest %064d\nstate_hash %064d\n' 1 2
END
chmod +x program
command -v gcc >out || { echo "no gcc"; exit 77; }

"$script" --run odd-shapes --targets x86-64 --program ./program --also more=./program \
          --work here >out 2>&1 || wrong "ended with $?, wanted 0"
grep -q '^more .* yes$' out || wrong "no row of --also"
grep -q '^5 rows, 0 differ$' out || wrong "wanted 5 rows"
[ -f here/run.c ] || wrong "--work is not the caller's"

rm -r here calls
for what in "--targets nowhere" "--run nothing"; do
    code=0
    # shellcheck disable=SC2086
    "$script" $what --program ./program --work here >out 2>&1 || code=$?
    [ $code = 64 ] || wrong "$what ended with $code, wanted 64"
    grep -q 'unknown' out || wrong "$what: no word of it"
    if [ -e calls ] || [ -e here ]; then wrong "$what: refused too late"; fi
done
exit $failed
