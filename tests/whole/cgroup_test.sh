#!/bin/sh
# cgroup_test.sh LOCKSTEP WORK_DIR - memory that a group of processes may not take is not there, and
# that its cached files take is. Skips (77) where no such group can be made.
set -eu
lockstep=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
group=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
limit=memory.limit_in_bytes
if [ ! -e "$group/$limit" ]; then
    group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
    limit=memory.max
fi
group=${group%/}/lockstep-test-$$
if ! mkdir "$group" 2>"$work/why"; then
    echo "skipped: no group of processes can be made here: $(cat "$work/why")"
    exit 77
fi
trap 'rmdir "$group"' EXIT
# A folder that the kernel has not filled is no group, and a controller may be switched off.
if [ ! -e "$group/$limit" ] || ! { echo 100663296 >"$group/$limit"; } 2>"$work/why"; then
    echo "skipped: a group's memory cannot be limited here: $(cat "$work/why")"
    exit 77
fi
inside() { sh -c "echo \$\$ >'$group/cgroup.procs' && exec \"\$@\"" inside "$@"; }

# 96 MiB, and next to all of it filled with pages of a file.
inside dd if=/dev/zero "of=$work/file" bs=1M count=120 2>"$work/dd"
inside cat "$work/file" >/dev/null
echo "the group's files: $(grep -E '^(total_)?(in)?active_file' "$group/memory.stat" | tr '\n' ' ')"
inside "$lockstep" train made-up-cnn --set steps=1 --run-dir "$work/run" >"$work/out" 2>&1 || {
    echo "with $limit of 96 MiB, full of cached files, a plan of 12 MiB was refused:"
    cat "$work/out"
    exit 1
}
code=0
inside "$lockstep" train made-up-cnn --set steps=1 --run-dir "$work/large" --set global_batch=4096 \
    --set layout.wave_examples=4096 >"$work/out" 2>&1 || code=$?
if [ $code != 69 ] || ! grep -q "the cgroup's $limit leaves" "$work/out"; then
    echo "with $limit of 96 MiB a plan of more: found exit code $code, wanted 69 and its name:"
    cat "$work/out"
    exit 1
fi
tail -n 1 "$work/out"
