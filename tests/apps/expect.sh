# expect.sh - sourced by the tests of the program's commands: run one, judge exit code and words.
#
# A test is called as: sh NAME_test.sh PROGRAM EMPTY_DIRECTORY. Needs a POSIX shell, nothing else.

program=$1
work=$2
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
export LC_ALL=C
export HOME="$work/home" XDG_CACHE_HOME="$work/cache"
unset LOCKSTEP_DATA LOCKSTEP_CONFIGS
checks=0
failures=0

complain() {
    failures=$((failures + 1))
    echo "FAILED: $*"
    sed 's/^/  out| /' out
    sed 's/^/  err| /' err
}

# expect CODE PATTERN ARGUMENT..: the program ends with CODE; PATTERN (basic regular expression, ""
# for none) is in a line of its output or its error; an error is exactly one line, success is silent
# there.
expect() {
    code=$1
    pattern=$2
    shift 2
    checks=$((checks + 1))
    "$program" "$@" >out 2>err </dev/null
    found=$?
    lines=$(wc -l <err)
    if [ "$found" -ne "$code" ]; then
        complain "lockstep $*: exit code $found, wanted $code"
    elif [ -n "$pattern" ] && ! cat out err | grep -q -e "$pattern"; then
        complain "lockstep $*: no line with: $pattern"
    elif [ "$code" -gt 1 ] && [ "$lines" -ne 1 ]; then
        complain "lockstep $*: $lines lines of error, wanted one"
    elif [ "$code" -le 1 ] && [ "$lines" -ne 0 ]; then
        complain "lockstep $*: an error message with exit code $code"
    fi
}

# require WHAT COMMAND..: something that must hold beside the program's own words.
require() {
    what=$1
    shift
    checks=$((checks + 1))
    "$@" >/dev/null 2>&1 || complain "$what"
}

# Replaces the byte at OFFSET of FILE by one that it is not.
flip_byte() {
    byte=$(dd if="$1" bs=1 skip="$2" count=1 2>/dev/null | od -An -tu1 | tr -d ' ')
    printf "\\$(printf %03o $(((byte + 1) % 256)))" |
        dd of="$1" bs=1 seek="$2" count=1 conv=notrunc 2>/dev/null
}

finish() {
    echo "$checks checks, $failures failed"
    [ "$checks" -gt 0 ] && [ "$failures" -eq 0 ]
    exit
}
