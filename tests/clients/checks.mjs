// What the scripts of the TypeScript client share: checks that are counted, and deadlines.

let passed = 0
let failed = 0

export function check(name, good, detail = "") {
  if (good) passed += 1
  else {
    failed += 1
    console.log(`failed: ${name} ${detail}`)
  }
}

export function equal(name, got, wanted) {
  const [left, right] = [JSON.stringify(got), JSON.stringify(wanted)]
  check(name, left === right, `got ${left?.slice(0, 300)}, wanted ${right?.slice(0, 300)}`)
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms))

// The promise's value; an error that names what was late, after as many seconds.
export async function within(seconds, name, promise) {
  let timer
  const late = new Promise((_, no) => {
    timer = setTimeout(() => no(new Error(`${name}: not in ${seconds} s`)), seconds * 1000)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

// Checks that what is called fails, with an error that fits.
export async function refused(name, call, fits) {
  try {
    await within(10, name, call())
    check(name, false, "was taken")
  } catch (error) {
    check(name, fits(error), `${error.name}: ${error.message} (${error.code ?? error.status})`)
  }
}

// Runs the scenarios one after the other; one that throws has failed, and the next one runs.
export async function scenarios(client, all) {
  for (const [name, scenario] of Object.entries(all)) {
    try {
      await within(90, name, scenario())
    } catch (error) {
      check(name, false, error.stack)
    }
  }
  console.log(failed ? `clients: ${client} ${failed} checks FAILED, ${passed} passed` : `clients: ${client} ${passed} checks passed`)
  process.exit(failed ? 1 : 0)
}
