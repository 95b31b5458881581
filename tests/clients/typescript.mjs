// The public TypeScript client against the server at SEALOG_URL: reads, live reads, closing, producers, forks, and a
// server that is killed and comes back (asked for by making the file SEALOG_RESTART).

import { existsSync, writeFileSync } from "node:fs"
import { DurableStream, IdempotentProducer, StaleEpochError, stream } from "@durable-streams/client"
import { check, equal, pause, refused, scenarios, within } from "./checks.mjs"

const base = `${process.env.SEALOG_URL}/v1/stream/clients/ts-${process.pid}-${Date.now()}`
const JSON_TYPE = "application/json"
const numbers = (from, to) => Array.from({ length: to - from }, (_, i) => from + i)
const put = (handle, n) => handle.append(JSON.stringify({ n }))
const status = (wanted) => (error) => error.status === wanted

async function all(url, offset = "-1") {
  const read = await stream({ url, offset, live: false })
  return (await within(20, `a read of ${url}`, read.json())).map((item) => item.n)
}

// `fetch` for producers, which try nothing again by themselves: it does where no answer comes.
const patient = (inner) => async (...request) => {
  for (let tries = 0; ; tries += 1) {
    try {
      return await inner(...request)
    } catch (error) {
      if (tries === 50) throw error
      await pause(100)
    }
  }
}

// A live reader: `got` grows, `until(n)` waits for as many, `ended` resolves when a batch says closed, and the client
// that it is over (which it does before it hands that batch on).
async function reader(url, live, offset = "-1") {
  const stop = new AbortController()
  const session = await within(10, `${live} begins`, stream({ url, live, offset, signal: stop.signal }))
  const me = { got: [], batches: [], session, stop: () => stop.abort() }
  let wake = () => {}
  const last = new Promise((done) => {
    session.subscribeJson((batch) => {
      me.got.push(...batch.items.map((item) => item.n))
      me.batches.push(batch)
      wake()
      if (batch.streamClosed) done()
    })
  })
  session.closed.catch(() => {})
  me.ended = last.then(() => session.closed)
  me.until = (count, seconds = 15) =>
    within(seconds, `${live} reader with ${count} messages (has ${me.got.length})`, new Promise((done) => {
      wake = () => me.got.length >= count && done()
      wake()
    }))
  return me
}

// A reader that begins anew where it was whenever the client gives up: it does when a stream of events breaks off.
async function following(url, live) {
  const me = { got: [], stop: () => (me.over = true) }
  const follow = async () => {
    for (let offset = "-1"; !me.over; ) {
      try {
        const one = await reader(url, live, offset)
        const seen = me.got.length
        const ended = one.session.closed.catch(() => {}).then(() => (one.over = true))
        while (!me.over && !one.over) {
          await Promise.race([ended, pause(20)])
          me.got.splice(seen, Infinity, ...one.got)
        }
        offset = one.batches.at(-1)?.offset ?? offset
        one.stop()
      } catch {
        await pause(100)
      }
    }
  }
  follow()
  me.until = async (count, seconds) => {
    for (const late = Date.now() + seconds * 1000; me.got.length < count && Date.now() < late; ) await pause(20)
  }
  return me
}

// Live reads and a producer while the server is stopped by a signal and started anew.
async function across(signal, begin) {
  const url = `${base}/across-${signal}`
  const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
  const readers = { "long-poll": await begin(url, "long-poll"), sse: await begin(url, "sse") }
  const errors = []
  const producer = new IdempotentProducer(handle, "patient", {
    lingerMs: 1, fetch: patient(fetch), onError: (error) => errors.push(error.message),
  })
  for (const n of numbers(0, 300)) {
    producer.append(JSON.stringify({ n }))
    if (n === 100) writeFileSync(process.env.SEALOG_RESTART, signal)
    if (n % 4 === 0) await pause(10)
  }
  await within(40, `a flush across SIG${signal}`, producer.flush())
  check("it was stopped", !existsSync(process.env.SEALOG_RESTART))
  equal("no error reaches the producer", errors, [])
  equal("none lost, none doubled", await all(url), numbers(0, 300))
  for (const [live, one] of Object.entries(readers)) {
    await one.until(300, 30)
    equal(`a ${live} reader across SIG${signal}`, one.got, numbers(0, 300))
    one.stop()
  }
}

await scenarios("TypeScript", {
  async "create, append, catch up"() {
    const url = `${base}/plain`
    const handle = await DurableStream.create({ url, contentType: "text/plain" })
    const head = await handle.head()
    equal("HEAD of a new stream", [head.exists, head.contentType, head.streamClosed], [true, "text/plain", false])
    await handle.append("one\n")
    await handle.append("two: ü, 漢, 🦀\r\n")
    const read = await stream({ url, offset: "-1", live: false })
    equal("text", await read.text(), "one\ntwo: ü, 漢, 🦀\r\n")
    check("up to date", read.upToDate && !read.streamClosed)
    equal("the tail is where HEAD says", read.offset, (await handle.head()).offset)
    const middle = read.offset
    await handle.append("three")
    equal("only what is new", await (await stream({ url, offset: middle, live: false })).text(), "three")
    await DurableStream.create({ url, contentType: "text/plain" })
    equal("made again, it keeps its content", await (await stream({ url, live: false, offset: middle })).text(), "three")
    await refused("another content type", () => DurableStream.create({ url, contentType: JSON_TYPE }), status(409))
    await handle.append("a", { seq: "b" })
    await refused("a lower Stream-Seq", () => handle.append("b", { seq: "a" }), status(409))
  },

  async "bytes, as they are"() {
    const url = `${base}/bytes`
    const handle = await DurableStream.create({ url, contentType: "application/octet-stream" })
    const bytes = new Uint8Array(700_000).map((_, i) => (i * 31 + (i >> 8)) & 255)
    for (let at = 0; at < bytes.length; at += 100_000) await handle.append(bytes.slice(at, at + 100_000))
    const read = await stream({ url, offset: "-1", live: false })
    check("all bytes", Buffer.compare(Buffer.from(await read.body()), Buffer.from(bytes)) === 0)
    for (const live of ["long-poll", "sse"]) {
      const stop = new AbortController()
      const session = await stream({ url, offset: "-1", live, signal: stop.signal })
      const parts = []
      let size = 0
      await within(20, `${live} of bytes`, new Promise((done) => {
        session.subscribeBytes(({ data }) => {
          parts.push(data)
          size += data.length
          if (size >= bytes.length) done()
        })
      }))
      stop.abort()
      check(`all bytes by ${live}`, Buffer.compare(Buffer.concat(parts), Buffer.from(bytes)) === 0)
    }
    const piped = `${base}/piped`
    const target = await DurableStream.create({ url: piped, contentType: "application/octet-stream" })
    await within(20, "a pipe", new Blob([bytes]).stream().pipeTo(target.writable()))
    const copy = await (await stream({ url: piped, offset: "-1", live: false })).body()
    check("a pipe's bytes", Buffer.compare(Buffer.from(copy), Buffer.from(bytes)) === 0)
    check("a pipe's end closes the stream", (await target.head()).streamClosed)
  },

  async "JSON: one message a value"() {
    const url = `${base}/json`
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    await handle.append(JSON.stringify([1, 2]))
    await Promise.all(numbers(0, 50).map((i) => handle.append(JSON.stringify({ i, text: "é\n\"" }))))
    const items = await (await stream({ url, offset: "-1", live: false })).json()
    equal("an array of an append is one message in the client's batch", items[0], [1, 2])
    equal("values and their order", items.slice(1), numbers(0, 50).map((i) => ({ i, text: "é\n\"" })))
    await refused("what is no JSON", () => handle.append("{no"), status(400))
  },

  async "live reads while another appends"() {
    const url = `${base}/live`
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    for (const n of numbers(0, 20)) await put(handle, n)
    const readers = []
    for (const live of ["long-poll", "sse"]) {
      readers.push([`${live} from the start`, 0, await reader(url, live)])
      readers.push([`${live} from now`, 20, await reader(url, live, "now")])
    }
    const other = await DurableStream.connect({ url })
    for (const n of numbers(20, 120)) {
      await put(other, n)
      if (n % 10 === 0) await pause(20)
    }
    for (const [name, first, one] of readers) {
      await one.until(120 - first)
      equal(name, one.got, numbers(first, 120))
      one.stop()
    }
    const last = readers[0][2].batches.at(-1)
    check("the last batch is up to date", last.upToDate && !last.streamClosed)
    await put(handle, 120)
    equal("its offset is where to go on", await all(url, last.offset), [120])
  },

  async "text by server-sent events: every kind of line end"() {
    const url = `${base}/lines`
    const text = "a\nb\r\nc\rd\n\n event: control\ndata: x\n"
    const handle = await DurableStream.create({ url, contentType: "text/plain" })
    const session = await stream({ url, offset: "-1", live: "sse" })
    let got = ""
    const over = new Promise((done) => {
      session.subscribeText((chunk) => {
        got += chunk.text
        if (chunk.streamClosed) done()
      })
    })
    await handle.append(text)
    await handle.close({ body: "end" })
    await within(10, "the end of text", over)
    equal("text by events", got.replaceAll("\r\n", "\n").replaceAll("\r", "\n"), `${text}end`.replaceAll("\r\n", "\n").replaceAll("\r", "\n"))
  },

  async "live readers see the close"() {
    const url = `${base}/closed`
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    const readers = [await reader(url, "long-poll"), await reader(url, "sse"), await reader(url, "long-poll", "now"), await reader(url, "sse", "now")]
    await put(handle, 0)
    for (const one of readers) await one.until(1)
    const { finalOffset } = await handle.close({ body: JSON.stringify({ n: 1 }) })
    for (const one of readers) {
      await within(10, `the end of a ${one.session.live} reader`, one.ended)
      equal(`${one.session.live}: the last message comes before the end`, one.got, [0, 1])
      const last = one.batches.at(-1)
      equal(`${one.session.live}: says closed, and where`, [last.streamClosed, last.offset], [true, finalOffset])
    }
    const quiet = `${base}/closed-quietly`
    const other = await DurableStream.create({ url: quiet, contentType: JSON_TYPE })
    const waiting = [await reader(quiet, "long-poll"), await reader(quiet, "sse")]
    await pause(300)
    await other.close()
    for (const one of waiting) await within(10, `the end of an idle ${one.session.live} reader`, one.ended)
    check("HEAD says closed", (await handle.head()).streamClosed)
    await refused("an append to a closed stream", () => put(handle, 2), status(409))
    equal("closing again", (await handle.close()).finalOffset, finalOffset)
    const late = await reader(url, "sse")
    await within(10, "a late reader's end", late.ended)
    equal("a late reader", late.got, [0, 1])
  },

  async "a producer whose answers are lost"() {
    const url = `${base}/producer`
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    let requests = 0
    const lossy = async (...request) => {
      const answer = await fetch(...request)
      requests += 1
      if (requests % 3 !== 0) return answer
      await answer.arrayBuffer()
      throw new TypeError("the answer was lost")
    }
    const errors = []
    const producer = new IdempotentProducer(handle, "lossy", {
      lingerMs: 1, maxInFlight: 4, maxBatchBytes: 100, fetch: patient(lossy), onError: (error) => errors.push(error.message),
    })
    for (const n of numbers(0, 400)) {
      producer.append(JSON.stringify({ n }))
      if (n % 40 === 0) await pause(5)
    }
    await within(60, "a flush with lost answers", producer.flush())
    equal("no error reaches the producer", errors, [])
    check("answers were lost", requests > 30, `${requests} requests`)
    const got = await all(url)
    equal("none lost, none doubled", got.toSorted((a, b) => a - b), numbers(0, 400))
    equal("in order", got, numbers(0, 400))
    await producer.close(JSON.stringify({ n: 400 }))
    equal("closed with a last message", [(await handle.head()).streamClosed, (await all(url)).length], [true, 401])
  },

  async "a second producer takes over"() {
    const url = `${base}/takeover`
    const handle = await DurableStream.create({ url, contentType: JSON_TYPE })
    const errors = []
    const first = new IdempotentProducer(handle, "writer", { epoch: 3, lingerMs: 1, onError: (error) => errors.push(error) })
    for (const n of numbers(0, 50)) first.append(JSON.stringify({ n }))
    await first.flush()
    const live = await reader(url, "sse")
    const second = new IdempotentProducer(handle, "writer", { epoch: 0, autoClaim: true, lingerMs: 1, maxBatchBytes: 100 })
    for (const n of numbers(50, 150)) second.append(JSON.stringify({ n }))
    await within(20, "the second producer", second.flush())
    equal("the epoch is raised", second.epoch, 4)
    first.append(JSON.stringify({ n: -1 }))
    await first.flush().catch(() => {})
    check("the first one is fenced", errors.length === 1 && errors[0] instanceof StaleEpochError && errors[0].currentEpoch === 4, String(errors))
    const third = new IdempotentProducer(handle, "writer", { autoClaim: true, lingerMs: 1 })
    third.append(JSON.stringify({ n: 150 }))
    await third.flush()
    second.append(JSON.stringify({ n: 151 }))
    await second.flush()
    equal("both claim in turn", [third.epoch, second.epoch], [5, 6])
    equal("none lost, none doubled, none of the fenced one", await all(url), numbers(0, 152))
    await live.until(152)
    equal("and so a live reader saw it", live.got, numbers(0, 152))
    live.stop()
  },

  // The client has no call for forks: it sends the headers that it is given.
  async "a fork"() {
    const url = `${base}/source`
    const source = await DurableStream.create({ url, contentType: JSON_TYPE })
    for (const n of numbers(0, 10)) await put(source, n)
    const from = (await source.head()).offset
    await put(source, 99)
    await DurableStream.create({
      url: `${base}/fork`, contentType: JSON_TYPE,
      headers: { "Stream-Forked-From": new URL(url).pathname, "Stream-Fork-Offset": from },
    })
    const fork = await DurableStream.connect({ url: `${base}/fork` })
    const readers = [await reader(fork.url, "long-poll"), await reader(fork.url, "sse")]
    await put(fork, 10)
    await put(source, 98)
    await fork.close({ body: JSON.stringify({ n: 11 }) })
    for (const one of readers) {
      await within(10, "a fork's reader", one.ended)
      equal(`a fork by ${one.session.live}`, one.got, numbers(0, 12))
    }
    equal("the source goes on apart", await all(url), [...numbers(0, 10), 99, 98])
  },

  async "the server drains and comes back"() {
    await across("TERM", (url, live) => reader(url, live))
  },

  async "the server is killed and comes back"() {
    await across("KILL", following)
  },

  async "delete"() {
    const url = `${base}/deleted`
    const handle = await DurableStream.create({ url, contentType: "text/plain", ttlSeconds: 3600, body: "first" })
    equal("made with content", await (await stream({ url, live: false })).text(), "first")
    await handle.delete()
    equal("gone", await handle.head(), { exists: false })
    await refused("a read of what is gone", () => stream({ url, live: false }), status(404))
    await DurableStream.create({ url, contentType: "text/plain" })
    equal("made anew, it is empty", await (await stream({ url, live: false })).text(), "")
  },
})
