"""Makes a bucket in a store that may still be starting: make-bucket.py HOST:PORT NAME"""
import datetime
import hashlib
import hmac
import os
import sys
import time
import urllib.error
import urllib.request

host, bucket = sys.argv[1:3]
region = os.environ["AWS_REGION"]
empty = hashlib.sha256(b"").hexdigest()


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def request():
    now = datetime.datetime.now(datetime.timezone.utc)
    day, stamp = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
    signed = "host;x-amz-content-sha256;x-amz-date"
    heads = f"host:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{stamp}\n"
    canonical = f"PUT\n/{bucket}\n\n{heads}\n{signed}\n{empty}"
    scope = f"{day}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
    for word in (day, region, "s3", "aws4_request"):
        key = mac(key, word)
    signature = mac(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}").hex()
    credential = f"{os.environ['AWS_ACCESS_KEY_ID']}/{scope}"
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={signed}, Signature={signature}"
    )
    headers = {
        "x-amz-date": stamp,
        "x-amz-content-sha256": empty,
        "Authorization": authorization,
    }
    return urllib.request.Request(f"http://{host}/{bucket}", method="PUT", headers=headers)


until = time.monotonic() + 60
while True:
    try:
        urllib.request.urlopen(request(), timeout=10).close()
        break
    except (urllib.error.URLError, OSError) as error:
        if time.monotonic() > until:
            sys.exit(f"{host}: {error}")
        time.sleep(0.25)
