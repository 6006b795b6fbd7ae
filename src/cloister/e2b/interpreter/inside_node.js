// Runs inside a sandbox: one session of JavaScript or TypeScript, spoken to over a loopback connection.
// A frame is a length of four bytes, big-endian, and that many bytes of JSON.
'use strict'
const net = require('net')
const repl = require('repl')
const util = require('util')
const { PassThrough } = require('stream')

const output = new PassThrough()
output.resume()
const session = repl.start({ input: new PassThrough(), output, prompt: '', terminal: false, useGlobal: true })
// Where the session sends what a cell throws, instead of to its callback.
session._domain.removeAllListeners('error')
session._domain.on('error', (error) => fail && fail(error))
let socket = null
let fail = null
let count = 0
let stop = null

const say = (message) => {
  if (socket === null) return
  const body = Buffer.from(JSON.stringify(message))
  const length = Buffer.alloc(4)
  length.writeUInt32BE(body.length)
  socket.write(Buffer.concat([length, body]))
}

for (const name of ['stdout', 'stderr']) {
  process[name].write = (chunk, encoding, callback) => {
    say({ type: name, text: chunk.toString(), at: Date.now() / 1000 })
    const done = typeof encoding === 'function' ? encoding : callback
    if (done) done()
    return true
  }
}

// Static imports are for modules, and a session is none: they become dynamic ones.
const asDynamic = (code) =>
  code
    .replace(/^\s*import\s+\*\s+as\s+(\w+)\s+from\s+(['"][^'"]+['"]);?/gm, 'const $1 = await import($2);')
    .replace(/^\s*import\s+\{([^}]*)\}\s+from\s+(['"][^'"]+['"]);?/gm, (_, names, from) =>
      `const {${names.replace(/\sas\s/g, ': ')}} = await import(${from});`)
    .replace(/^\s*import\s+(\w+)\s+from\s+(['"][^'"]+['"]);?/gm, 'const { default: $1 } = await import($2);')
    .replace(/^\s*import\s+(['"][^'"]+['"]);?/gm, 'await import($1);')

// What takes the types out of TypeScript: node itself, or the compiler where the image has one.
const findStripper = () => {
  const { stripTypeScriptTypes } = require('module')
  if (stripTypeScriptTypes) return (code) => stripTypeScriptTypes(code, { mode: 'transform' })
  const fs = require('fs')
  const path = require('path')
  const places = [process.cwd(), '/usr/local/lib/node_modules', '/usr/lib/node_modules', '/usr/share/nodejs']
  for (const directory of (process.env.PATH || '').split(':')) {
    try {
      places.push(path.dirname(path.dirname(fs.realpathSync(path.join(directory, 'tsc')))) + '/..')
    } catch {
      continue
    }
  }
  for (const place of places) {
    try {
      const typescript = require(require.resolve('typescript', { paths: [place, `${place}/node_modules`] }))
      const compilerOptions = { module: 'esnext', target: 'esnext', verbatimModuleSyntax: true }
      return (code) => typescript.transpileModule(code, { compilerOptions }).outputText
    } catch {
      continue
    }
  }
  return null
}
const strip = process.env.CLOISTER_SESSION === 'typescript' ? findStripper() : null
delete process.env.CLOISTER_SESSION

const evaluate = (code) =>
  new Promise((resolve, reject) => {
    fail = reject
    stop = () => reject(Object.assign(new Error('Interrupted'), { name: 'KeyboardInterrupt' }))
    session.eval(code, session.context, 'cell', (error, value) => (error ? reject(error) : resolve(value)))
  })

const show = (value) => {
  if (value === undefined) return
  const data = { 'text/plain': typeof value === 'string' ? value : util.inspect(value) }
  if (value !== null && typeof value === 'object' && !(value instanceof Error)) {
    try {
      const plain = JSON.stringify(value)
      if (plain !== undefined) data['application/json'] = JSON.parse(plain)
    } catch {
      delete data['application/json']
    }
  }
  say({ type: 'result', is_main: true, data })
}

const execute = async (request) => {
  const before = { ...process.env }
  Object.assign(process.env, request.env_vars || {})
  if (request.cwd) {
    try {
      process.chdir(request.cwd)
    } catch (error) {
      say({ type: 'stderr', text: `${error.message}\n`, at: Date.now() / 1000 })
    }
  }
  say({ type: 'number_of_executions', execution_count: ++count })
  try {
    const code = strip === null ? request.code : strip(request.code)
    show(await evaluate(asDynamic(code) + '\n'))
  } catch (thrown) {
    const error = thrown instanceof repl.Recoverable ? thrown.err : thrown
    const known = error !== null && typeof error === 'object'
    say({
      type: 'error',
      name: String(known && error.name ? error.name : 'Error'),
      value: String(known && 'message' in error ? error.message : error),
      traceback: String(known && error.stack ? error.stack : error),
    })
  }
  stop = fail = null
  for (const name of Object.keys(request.env_vars || {})) {
    if (name in before) process.env[name] = before[name]
    else delete process.env[name]
  }
  say({ type: 'end_of_execution' })
}

process.on('SIGINT', () => stop && stop())
for (const event of ['uncaughtException', 'unhandledRejection']) {
  process.on(event, (error) => {
    say({ type: 'stderr', text: `${(error && error.stack) || error}\n`, at: Date.now() / 1000 })
  })
}

const server = net.createServer((connection) => {
  server.close()
  connection.setNoDelay(true)
  socket = connection
  let held = Buffer.alloc(0)
  let turn = Promise.resolve()
  connection.on('data', (chunk) => {
    held = Buffer.concat([held, chunk])
    while (held.length >= 4 && held.length >= 4 + held.readUInt32BE(0)) {
      const end = 4 + held.readUInt32BE(0)
      const request = JSON.parse(held.subarray(4, end).toString())
      held = held.subarray(end)
      turn = turn.then(() => execute(request))
    }
  })
  connection.on('close', () => process.exit(0))
  connection.on('error', () => process.exit(0))
  say({ type: 'ready', pid: process.pid, strips_types: strip !== null })
})
server.listen(0, '127.0.0.1', () => {
  require('fs').writeSync(1, JSON.stringify({ port: server.address().port }) + '\n')
})
