#!/bin/sh
# The edge profile under a 64 MiB memory limit: data directory on a 1 GiB disk, bucket on another.
# Needs root, loop devices, and SEALOG_EDGE_BUCKET_GIB (30) GiB free in the work folder.
#
# usage: bench/edge.sh SEALOG_BENCH_BINARY WORK_FOLDER [MIB_TO_APPEND]
set -eu

binary=$(readlink -f "$1")
work=$2
mib=${3:-20480}
bucket_gib=${SEALOG_EDGE_BUCKET_GIB:-30}
limit_mib=${SEALOG_EDGE_LIMIT_MIB:-64}

[ "$(id -u)" = 0 ] || { echo "edge.sh: needs root" >&2; exit 2; }
mkdir -p "$work/data" "$work/bucket"
work=$(readlink -f "$work")
name=sealog-edge-$$
group=

cleanup() {
    chattr -R -i "$work/bucket/objects" 2>/dev/null || true
    umount "$work/data" 2>/dev/null || true
    umount "$work/bucket" 2>/dev/null || true
    rm -f "$work/data.img" "$work/bucket.img"
    rmdir "$work/data" "$work/bucket" 2>/dev/null || true
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
}
trap cleanup EXIT INT TERM

disk() { # name, size
    truncate -s "$2" "$work/$1.img"
    mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0,lazy_journal_init=0 "$work/$1.img"
    mount -o loop "$work/$1.img" "$work/$1"
}
disk data 1G
disk bucket "${bucket_gib}G"
mkdir "$work/data/sealog" "$work/bucket/objects"

# Version 2 where it controls memory, else version 1, else systemd, else no limit but the peak is checked.
inside=
if grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null && mkdir "/sys/fs/cgroup/$name" 2>/dev/null; then
    group=/sys/fs/cgroup/$name
    echo +memory > /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    echo "${limit_mib}M" > "$group/memory.max"
    echo 0 > "$group/memory.swap.max" 2>/dev/null || true
    inside=$group/cgroup.procs
elif mkdir "/sys/fs/cgroup/memory/$name" 2>/dev/null; then
    group=/sys/fs/cgroup/memory/$name
    echo "${limit_mib}M" > "$group/memory.limit_in_bytes"
    inside=$group/cgroup.procs
fi

run() {
    if [ -n "$inside" ]; then
        sh -c 'echo $$ > "$0"; exec "$@"' "$inside" "$@"
    elif command -v systemd-run >/dev/null; then
        systemd-run --scope --quiet -p "MemoryMax=${limit_mib}M" -p MemorySwapMax=0 "$@"
    else
        echo "edge.sh: no memory limit can be set here; only the peak is checked" >&2
        "$@"
    fi
}

echo "edge.sh: memory limit ${limit_mib} MiB by ${group:-systemd-run or none}, ${mib} MiB to append"
# The C library's per-thread arenas keep what is freed: one arena and a fixed threshold for mappings halve the peak.
export MALLOC_ARENA_MAX="${MALLOC_ARENA_MAX:-1}" MALLOC_MMAP_THRESHOLD_="${MALLOC_MMAP_THRESHOLD_:-131072}"

# Immutable directories refuse new objects but let reads go on, for root too.
status=0
run "$binary" edge --data-dir "$work/data/sealog" --bucket-dir "$work/bucket/objects" --mib "$mib" \
    --forbid "chattr -R +i $work/bucket/objects" --allow "chattr -R -i $work/bucket/objects" || status=$?

for counter in memory.events memory.failcnt memory.max_usage_in_bytes memory.peak; do
    [ -z "$group" ] || [ ! -f "$group/$counter" ] || { echo "$counter:"; cat "$group/$counter"; }
done
df -h "$work/data" "$work/bucket"
exit "$status"
