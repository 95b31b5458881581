#!/usr/bin/env node
// Serves Durable Streams from a folder by the project's own package for Node, until SIGTERM.
// bench/peers.sh puts this beside the package: it can't be run from here.
//
// usage: durable-streams-node PORT FOLDER      or: durable-streams-node --version
import { createRequire } from "node:module"
import { DurableStreamTestServer } from "@durable-streams/server"

const [first, dataDir] = process.argv.slice(2)
if (first === "--version") {
  const { name, version } = createRequire(import.meta.url)("@durable-streams/server/package.json")
  console.log(`${name} ${version} on Node ${process.version}`)
} else {
  // Nobody who measures asks for compressed answers; none are made unasked either.
  const server = new DurableStreamTestServer({
    port: Number(first),
    host: "127.0.0.1",
    dataDir,
    compression: false,
  })
  process.once("SIGTERM", () => server.stop().finally(() => process.exit(0)))
  console.log(await server.start())
}
