// Serves the page PAGE on an origin of its own, opens it in headless CHROMIUM, and prints what the page reports: the
// page reads and writes the server at SEALOG_URL across origins. The page also loads the public client from here.

import { spawn } from "node:child_process"
import { readFileSync } from "node:fs"
import { createServer } from "node:http"
import { join } from "node:path"

const modules = join(import.meta.dirname, "node_modules")
const sse = "@microsoft/fetch-event-source/lib/esm"
const files = {
  "/": [process.env.PAGE, "text/html"],
  "/client.js": [join(modules, "@durable-streams/client/dist/index.js"), "text/javascript"],
  "/sse/index.js": [join(modules, sse, "index.js"), "text/javascript"],
  "/sse/fetch": [join(modules, sse, "fetch.js"), "text/javascript"],
  "/sse/parse": [join(modules, sse, "parse.js"), "text/javascript"],
}

let ended
const early = new Promise((_, no) => (ended = (why) => no(new Error(`the browser ended: ${why}`))))
early.catch(() => {})
const report = new Promise((done) => {
  const server = createServer((request, answer) => {
    const { pathname } = new URL(request.url, "http://page")
    if (request.method === "POST") {
      let body = ""
      request.on("data", (part) => (body += part))
      request.on("end", () => {
        answer.end()
        done(JSON.parse(body))
      })
      return
    }
    const [file, type] = files[pathname] ?? []
    if (!file) return answer.writeHead(404).end()
    answer.writeHead(200, { "Content-Type": type }).end(readFileSync(file))
  })
  server.listen(0, "127.0.0.1", () => open(server.address().port))
})

let log = ""
let child
function open(port) {
  const page = `http://127.0.0.1:${port}/?server=${encodeURIComponent(process.env.SEALOG_URL)}`
  child = spawn(process.env.CHROMIUM, [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
    `--user-data-dir=${join(process.env.SEALOG_WORK, "browser")}`, "--remote-debugging-port=0", page,
  ], { stdio: ["ignore", "ignore", "pipe"] })
  child.stderr.on("data", (part) => (log += part))
  child.on("error", ended)
  child.on("exit", ended)
}

const late = new Promise((_, no) => setTimeout(() => no(new Error("the page reported nothing in 90 s")), 90_000))
let status = 1
try {
  const { passed, failed } = await Promise.race([report, late, early])
  for (const line of failed) console.log(`failed: ${line}`)
  status = failed.length || !passed ? 1 : 0
  if (status) console.log(log.slice(-3000))
  console.log(status ? `clients: browser ${failed.length} checks FAILED, ${passed} passed` : `clients: browser ${passed} checks passed`)
} catch (error) {
  console.log(`${log.slice(-3000)}\nclients: browser FAILED: ${error.message}`)
}
const gone = new Promise((done) => child.on("exit", done))
if (child.exitCode !== null || !child.kill()) process.exit(status)
await Promise.race([gone, new Promise((done) => setTimeout(done, 5000))])
child.kill("SIGKILL")
process.exit(status)
