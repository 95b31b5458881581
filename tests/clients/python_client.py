"""The public Python client against the server at SEALOG_URL: appends, reads, live reads in both modes, and what it can
only do by headers that it is given (closing, an idempotent producer)."""

import asyncio
import itertools
import os
import sys
import threading
import time
import traceback

import durable_streams
from durable_streams import DurableStream, SeqConflictError, StreamExistsError, StreamNotFoundError, astream, stream

BASE = f"{os.environ['SEALOG_URL']}/v1/stream/clients/py-{os.getpid()}-{time.time_ns()}"
JSON = "application/json"
passed = failed = 0


def check(name, good, detail=""):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print(f"failed: {name} {detail}", flush=True)


def equal(name, got, wanted):
    check(name, got == wanted, f"got {str(got)[:300]}, wanted {str(wanted)[:300]}")


def refused(name, error, call):
    try:
        call()
        check(name, False, "was taken")
    except error:
        check(name, True)


class Task:
    """A call on a thread of its own, whose value must be there in time."""

    def __init__(self, call):
        def run():
            try:
                self.value = call()
            except BaseException as error:
                self.error = error

        self.error = None
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def within(self, seconds, name):
        self.thread.join(seconds)
        if self.thread.is_alive():
            raise TimeoutError(f"{name}: not in {seconds} s")
        if self.error is not None:
            raise self.error
        return self.value


def numbers(url, offset="-1"):
    with stream(url, offset=offset, live=False) as read:
        return [item["n"] for item in read.read_json()]


def catch_up():
    with DurableStream.create(f"{BASE}/plain", content_type="text/plain") as handle:
        handle.append("one\n")
        middle = handle.append("two: ü, 漢, 🦀\r\n").next_offset
        with stream(handle.url, offset="-1", live=False) as read:
            equal("text", read.read_text(), "one\ntwo: ü, 漢, 🦀\r\n")
            check("up to date", read.up_to_date)
        handle.append("three")
        with stream(handle.url, offset=middle, live=False) as read:
            equal("only what is new", read.read_text(), "three")
        head = handle.head()
        equal("HEAD", (head.exists, head.content_type), (True, "text/plain"))
        handle.append("a", seq="b")
        refused("a lower Stream-Seq", SeqConflictError, lambda: handle.append("b", seq="a"))
        refused("another content type", StreamExistsError, lambda: DurableStream.create(handle.url, content_type=JSON))
        handle.delete()
        refused("HEAD of what is gone", StreamNotFoundError, handle.head)
        refused("a read of what is gone", StreamNotFoundError, lambda: stream(handle.url, live=False))


def bytes_as_they_are():
    data = bytes((i * 31 + (i >> 8)) & 255 for i in range(300_000))
    with DurableStream.create(f"{BASE}/bytes", content_type="application/octet-stream") as handle:
        for at in range(0, len(data), 50_000):
            handle.append(data[at : at + 50_000])
        with stream(handle.url, offset="-1", live=False) as read:
            check("all bytes", read.read_bytes() == data)


def many_threads():
    with DurableStream.create(f"{BASE}/threads", content_type=JSON) as handle:
        def write(first):
            for n in range(first, first + 25):
                handle.append({"n": n})

        for task in [Task(lambda first=first: write(first)) for first in range(0, 200, 25)]:
            task.within(30, "appends of a thread")
        got = numbers(handle.url)
        equal("appends of 8 threads, each once", sorted(got), list(range(200)))
        own = [[n for n in got if n // 25 == thread] for thread in range(8)]
        check("each thread's in its order", all(one == sorted(one) for one in own))


def live_reads():
    with DurableStream.create(f"{BASE}/live", content_type=JSON) as handle:
        for n in range(20):
            handle.append({"n": n})

        def follow(mode, offset, count):
            with stream(handle.url, offset=offset, live=mode) as read:
                return [item["n"] for item in itertools.islice(read.iter_json(), count)]

        def events():
            with stream(handle.url, offset="-1", live="sse") as read:
                got, last = 0, None
                for event in read.iter_events("json"):
                    got += len(event.data)
                    last = event.next_offset
                    if got >= 120:
                        return last

        async def follow_async(mode):
            async with astream(handle.url, offset="-1", live=mode) as read:
                got = []
                async for item in read.iter_json():
                    got.append(item["n"])
                    if len(got) >= 120:
                        return got

        tasks = [(f"{mode} from the start", range(120), Task(lambda mode=mode: follow(mode, "-1", 120)))
                 for mode in ("long-poll", "sse", "auto")]
        tasks += [(f"{mode}, async", range(120), Task(lambda mode=mode: asyncio.run(follow_async(mode))))
                  for mode in ("long-poll", "sse")]
        tail = handle.head().offset
        tasks += [(f"{mode} from the tail", range(20, 120), Task(lambda mode=mode: follow(mode, tail, 100)))
                  for mode in ("long-poll", "sse")]
        last = Task(events)
        with DurableStream.connect(handle.url) as other:
            for n in range(20, 120):
                other.append({"n": n})
                if n % 10 == 0:
                    time.sleep(0.02)
        for name, wanted, task in tasks:
            equal(name, task.within(20, name), list(wanted))
        offset = last.within(20, "events with offsets")
        handle.append({"n": 120})
        equal("an event's offset is where to go on", numbers(handle.url, offset), [120])


def closing():
    with DurableStream.create(f"{BASE}/closed", content_type="text/plain") as handle:
        def follow():
            with stream(handle.url, offset="-1", live="sse") as read:
                return "".join(read.iter_text())

        task = Task(follow)
        handle.append("a\nb")
        with DurableStream(handle.url, content_type="text/plain", headers={"Stream-Closed": "true"}) as closer:
            closer.append("\nend")
        equal("a live reader gets all, then the end", task.within(10, "the end"), "a\nb\nend")
        refused("an append to a closed stream", SeqConflictError, lambda: handle.append("late"))


def producer():
    with DurableStream.create(f"{BASE}/producer", content_type=JSON) as plain:
        sequence = itertools.count()
        twice = [str(n) for n in range(50) for _ in (0, 1)]
        repeated = iter(twice)
        headers = {"Producer-Id": "py", "Producer-Epoch": "0", "Producer-Seq": lambda: next(repeated)}
        with DurableStream(plain.url, content_type=JSON, headers=headers) as handle:
            for n in range(50):
                first = handle.append({"n": n})
                again = handle.append({"n": n})
                if first.next_offset != again.next_offset:
                    check("a duplicate's offset", False, f"{first}, {again}")
        equal("each append sent twice is there once", numbers(plain.url), list(range(50)))
        newer = {"Producer-Id": "py", "Producer-Epoch": "1", "Producer-Seq": lambda: str(next(sequence))}
        with DurableStream(plain.url, content_type=JSON, headers=newer) as handle:
            handle.append({"n": 50})
        stale = {"Producer-Id": "py", "Producer-Epoch": "0", "Producer-Seq": "50"}
        with DurableStream(plain.url, content_type=JSON, headers=stale) as handle:
            refused("a stale epoch", durable_streams.DurableStreamError, lambda: handle.append({"n": -1}))
        equal("nothing of the fenced one", numbers(plain.url), list(range(51)))


for scenario in (catch_up, bytes_as_they_are, many_threads, live_reads, closing, producer):
    try:
        Task(scenario).within(90, scenario.__name__)
    except Exception:
        check(scenario.__name__, False, traceback.format_exc())
print(f"clients: Python {failed} checks FAILED, {passed} passed" if failed else f"clients: Python {passed} checks passed")
sys.stdout.flush()
os._exit(1 if failed else 0)
