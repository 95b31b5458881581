#!/usr/bin/env bash
# Runs real clients of Durable Streams against a server started here on loopback and stopped at the end: the public
# TypeScript client (npm, pinned), the public Python client (PyPI, pinned), and a page of another origin in headless
# Chromium (the system's, or from apt where root can install it).
#   tests/clients/run.sh [SEALOG]      default: the debug build, which it makes
# While the TypeScript client reads and writes, the server is drained and killed and started anew. A line a client at
# the end: how many checks passed. Exit status 1 if any failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=${SEALOG_CLIENTS_HOME:-$here/../../target/clients}
typescript=0.2.7
python=0.1.0

sealog=${1:-}
if [ -z "$sealog" ]; then
    cargo build --quiet -p sealog --manifest-path "$here/../../Cargo.toml"
    sealog=${CARGO_TARGET_DIR:-$here/../../target}/debug/sealog
fi
sealog=$(realpath "$sealog")

mkdir -p "$home"
home=$(cd "$home" && pwd)
cd "$home"
if [ ! -e "installed-typescript-$typescript" ]; then
    echo '{"name":"clients","private":true,"type":"module"}' >package.json
    npm install --no-audit --no-fund --loglevel=error "@durable-streams/client@$typescript" >&2
    touch "installed-typescript-$typescript"
fi
if [ ! -e "installed-python-$python" ]; then
    rm -rf python
    python3 -m venv python
    python/bin/pip install --quiet --disable-pip-version-check "durable-streams==$python"
    touch "installed-python-$python"
fi

# A browser: the system's, or one that apt installs; none only where there is no apt, or no root to run it.
browser() { command -v chromium || command -v chromium-browser || command -v google-chrome || true; }
chromium=${SEALOG_CHROMIUM:-$(browser)}
if [ -z "$chromium" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >"$home/apt.log" 2>&1 || {
        tail -n 20 "$home/apt.log" >&2
        echo "clients: apt could not install chromium" >&2
        exit 1
    }
    chromium=$(browser)
fi

work=$(mktemp -d "$home/run.XXXXXX")
port=0
start() {
    : >"$work/log"
    "$sealog" serve --data-dir "$work/data" --listen 127.0.0.1:0 --shard-port 0 --http-listen "127.0.0.1:$port" \
        --admin-listen none 2>"$work/log" &
    server=$!
    for _ in $(seq 100); do
        grep -q 'listening on' "$work/log" && break
        sleep 0.1
    done
    url=$(sed -n 's|.*streams over HTTP at \(http://[^/]*\)/.*|\1|p' "$work/log")
    [ -n "$url" ] || { cat "$work/log" >&2; exit 1; }
    port=${url##*:}
}
stop() {
    kill "$1" "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
}
client=
trap '[ -z "$client" ] || kill "$client" 2>/dev/null || true; stop -TERM; rm -rf "$work"' EXIT

# Runs a client, and starts the server anew whenever the client asks for that by a file that names the signal.
failed=0
lines=()
run() {
    local name=$1 status=0
    shift
    NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 SEALOG_URL=$url SEALOG_WORK=$work SEALOG_RESTART=$work/restart \
        "$@" >"$work/out" 2>&1 &
    client=$!
    while kill -0 "$client" 2>/dev/null; do
        if [ -s "$work/restart" ]; then
            stop "-$(cat "$work/restart")"
            start
            rm "$work/restart"
        fi
        sleep 0.1
    done
    wait "$client" || status=$?
    client=
    if [ "$status" != 0 ]; then
        failed=1
        cat "$work/out" >&2
        kill -0 "$server" 2>/dev/null || echo "clients: the server has ended" >&2
        tail -n 20 "$work/log" >&2
        lines+=("clients: $name failed, status $status")
    else
        lines+=("$(tail -n 1 "$work/out")")
    fi
}

start
cp "$here"/*.mjs "$home"
run TypeScript node "$home/typescript.mjs"
run Python "$home/python/bin/python" "$here/python_client.py"
if [ -n "$chromium" ]; then
    run "browser" env CHROMIUM="$chromium" PAGE="$here/page.html" node "$home/browser.mjs"
else
    lines+=("clients: browser SKIPPED: there is no chromium here, and no apt as root to install it")
fi
printf '%s\n' "${lines[@]}"
exit "$failed"
