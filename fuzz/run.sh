#!/usr/bin/env bash
# Builds the fuzz targets on the stable toolchain and runs each for a while.
#
#   fuzz/run.sh [seconds] [target...]      default: 30 seconds, every file in fuzz/src/bin
#
# A target starts from what earlier runs found (fuzz/corpus/<target>), from its own seeds (fuzz/seeds/<target>) and from the
# golden files of its format: those in tests/golden/<format>, where the target's name begins with the format's ("-" read as
# "_"). Exit status 1 and the input in fuzz/artifacts/<target> on a finding.
#
#   FUZZ_BUG=ack_before_sync fuzz/run.sh 120 engine_model
#
# plants that bug of engine/src/bugs.rs, in a build and with a corpus of its own: a finding is what should come of it.
set -euo pipefail
cd "$(dirname "$0")"

seconds=30
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    seconds=$1
    shift
fi
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
    for file in src/bin/*.rs; do
        targets+=("$(basename "$file" .rs)")
    done
fi

# --target keeps the instrumentation out of build scripts, which have no fuzzer to link against.
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${FUZZ_TARGET_DIR:-$PWD/target}
export RUSTFLAGS="-Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares \
--cfg fuzzing -Ccodegen-units=1"
found=.
if [[ -n ${FUZZ_BUG:-} ]]; then
    export RUSTFLAGS="$RUSTFLAGS --cfg sealog_bugs" CARGO_TARGET_DIR="$CARGO_TARGET_DIR/bugs"
    found=artifacts/bugs/$FUZZ_BUG
fi
bins=()
for target in "${targets[@]}"; do
    bins+=(--bin "$target")
done
cargo build --release --target "$host" "${bins[@]}"

# Buffers of the simulated disk would be handed back to the system and zeroed by it again and again: half of the time.
export MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=268435456
findings=()
for target in "${targets[@]}"; do
    corpus=$found/corpus/$target artifacts=$found/artifacts/$target
    mkdir -p "$corpus" "$artifacts"
    seeds=()
    if [[ -d seeds/$target ]]; then
        seeds+=("seeds/$target")
    fi
    for folder in ../tests/golden/*/v*/; do
        format=$(basename "$(dirname "$folder")")
        if [[ $target == "${format//-/_}"* ]]; then
            seeds+=("$folder")
        fi
    done
    echo "== $target: ${seconds}s, seeds: $corpus ${seeds[*]:-}"
    log=$artifacts/log
    if "$CARGO_TARGET_DIR/$host/release/$target" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -close_fd_mask=1 -artifact_prefix="$artifacts/" "$corpus" ${seeds[@]+"${seeds[@]}"} >"$log" 2>&1; then
        # The last progress line has coverage, corpus size and speed.
        grep 'DONE' "$log" || tail -n 3 "$log"
    else
        tail -n 60 "$log"
        findings+=("$target")
    fi
done

if [[ ${#findings[@]} -gt 0 ]]; then
    echo "findings in: ${findings[*]} (inputs in fuzz/artifacts)" >&2
    exit 1
fi
echo "no findings in: ${targets[*]}"
