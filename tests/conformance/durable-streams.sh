#!/usr/bin/env bash
# Runs the public conformance suite of Durable Streams (npm, pinned) against a server started here on loopback and
# stopped at the end.
#   tests/conformance/durable-streams.sh [SEALOG]      default: the debug build, which it makes
# All of it, three times in a row: after the first the server is started anew, after a kill. A line a run: how many
# passed. Exit status 1 if any failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=${SEALOG_CONFORMANCE_HOME:-$here/../../target/conformance}
suite=0.3.6
runs=${SEALOG_CONFORMANCE_RUNS:-3}

sealog=${1:-}
if [ -z "$sealog" ]; then
    cargo build --quiet -p sealog --manifest-path "$here/../../Cargo.toml"
    sealog=${CARGO_TARGET_DIR:-$here/../../target}/debug/sealog
fi
sealog=$(realpath "$sealog")

mkdir -p "$home"
cd "$home"
if [ ! -e "installed-$suite" ]; then
    echo '{"name":"conformance","private":true,"type":"module"}' >package.json
    npm install --no-audit --no-fund --loglevel=error "@durable-streams/server-conformance-tests@$suite" >&2
    touch "installed-$suite"
fi
cat >suite.test.mjs <<'JS'
import { runConformanceTests } from "@durable-streams/server-conformance-tests"
runConformanceTests({ baseUrl: process.env.SEALOG_URL, subscriptions: true, longPollTimeoutMs: 20000 })
JS
cat >vitest.config.mjs <<'JS'
export default {
  test: { include: ["suite.test.mjs"], testTimeout: 30000, hookTimeout: 30000, fileParallelism: false },
}
JS

work=$(mktemp -d "$home/run.XXXXXX")
start() {
    "$sealog" serve --data-dir "$work/data" --listen 127.0.0.1:0 --shard-port 0 --http-listen 127.0.0.1:0 \
        --admin-listen none 2>"$work/log" &
    server=$!
    for _ in $(seq 100); do
        grep -q 'listening on' "$work/log" && break
        sleep 0.1
    done
    url=$(sed -n 's|.*streams over HTTP at \(http://[^/]*\)/.*|\1|p' "$work/log")
    [ -n "$url" ] || { cat "$work/log" >&2; exit 1; }
}
stop() {
    kill "$1" "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
}
trap 'stop -TERM; rm -rf "$work"' EXIT

run() {
    SEALOG_URL=$url ./node_modules/.bin/vitest run --reporter=json --outputFile="$work/report.json" \
        >"$work/out" 2>&1 || true
    [ -s "$work/report.json" ] || { tail -30 "$work/out" >&2; exit 1; }
    node -e '
const report = JSON.parse(require("fs").readFileSync(process.argv[1], "utf8"))
const all = report.testResults.flatMap((file) => file.assertionResults)
const of = (status) => all.filter((test) => test.status === status)
for (const test of of("failed").slice(0, 20)) console.log(`failed: ${test.fullName}: ${(test.failureMessages[0] ?? "").split("\n")[0]}`)
console.log(`Durable Streams: ${of("passed").length} passed, ${of("failed").length} failed, ` +
  `${all.length - of("passed").length - of("failed").length} not run`)
process.exit(of("passed").length === all.length && all.length ? 0 : 1)
' "$work/report.json"
    rm -f "$work/report.json"
}

start
for number in $(seq "$runs"); do
    run
    if [ "$number" = 1 ] && [ "$runs" -gt 1 ]; then
        stop -KILL
        start
    fi
done
