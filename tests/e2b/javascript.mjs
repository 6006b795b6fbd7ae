// Drives E2B's JavaScript clients against the server; prints one line for each thing that held.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

const require = createRequire(process.env.CLIENTS + '/package.json')
const { Sandbox, NotFoundError, TimeoutError, CommandExitError, AuthenticationError } = require('e2b')
const { Sandbox: Interpreter } = require('@e2b/code-interpreter')

const held = (name) => console.log(`held: ${name}`)
const until = async (condition) => {
  for (let i = 0; i < 200 && !condition(); i++) await new Promise((wake) => setTimeout(wake, 25))
  assert.ok(condition())
}

const sandbox = await Sandbox.create({ envs: { GIVEN: 'x' }, metadata: { js: 'é 1' }, timeoutMs: 120_000 })
try {
  const result = await sandbox.commands.run('echo out $GIVEN; echo err >&2')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out x\n', 'err\n', 0])
  await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  held('commands')

  await assert.rejects(sandbox.commands.run('sleep 30', { timeoutMs: 500 }), TimeoutError)
  held('timeout')

  const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(cat.pid, 'given\n')
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'given\n')
  const sleeper = await sandbox.commands.run('sleep 60', { background: true })
  assert.ok((await sandbox.commands.list()).some((each) => each.pid === sleeper.pid))
  assert.equal(await sandbox.commands.kill(sleeper.pid), true)
  assert.equal(await sandbox.commands.kill(999999), false)
  held('processes')

  let said = ''
  const terminal = await sandbox.pty.create({ cols: 90, rows: 20, onData: (data) => (said += Buffer.from(data)) })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size\n'))
  await until(() => said.includes('20 90'))
  await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 30 })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size; exit\n'))
  await until(() => said.includes('30 100'))
  held('terminal')

  await sandbox.files.write('one.txt', 'ünïcode')
  assert.equal(await sandbox.files.read('one.txt'), 'ünïcode')
  await sandbox.files.write('empty', '')
  assert.equal(await sandbox.files.read('empty'), '')
  await sandbox.files.write([{ path: 'dir/a', data: 'a' }, { path: '/home/user/dir/b', data: 'b' }])
  const names = (await sandbox.files.list('dir')).map((each) => each.name)
  assert.deepEqual(names, ['a', 'b'])
  assert.equal((await sandbox.files.getInfo('dir/a')).size, 1)
  await sandbox.files.rename('dir/a', 'dir/c')
  assert.equal(await sandbox.files.exists('dir/a'), false)
  await sandbox.files.remove('dir')
  await assert.rejects(sandbox.files.read('dir/b'), NotFoundError)
  assert.equal(await sandbox.files.makeDir('made'), true)
  assert.equal(await sandbox.files.makeDir('made'), false)
  held('files')

  const events = []
  const watch = await sandbox.files.watchDir('/home/user/made', (event) => events.push(event))
  await sandbox.files.write('made/new', '1')
  await until(() => events.length >= 3)
  assert.deepEqual(events.map((each) => each.type), ['create', 'chmod', 'write'])
  await watch.stop()
  held('watch')

  const url = await sandbox.downloadUrl('one.txt', { useSignatureExpiration: 60_000 })
  assert.equal(await (await fetch(url)).text(), 'ünïcode')
  const late = await sandbox.downloadUrl('one.txt', { useSignatureExpiration: -60_000 })
  assert.equal((await fetch(late)).status, 401)
  held('signed url')

  const listed = await Sandbox.list({ query: { metadata: { js: 'é 1' } } }).nextItems()
  assert.deepEqual(listed.map((each) => each.sandboxId), [sandbox.sandboxId])
  assert.equal((await sandbox.getInfo()).templateId, 'base')
  await sandbox.setTimeout(60_000)
  assert.ok((await sandbox.getMetrics())[0].memUsed > 0)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId, { apiKey: process.env.OTHER_KEY }), NotFoundError)
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(52) }), AuthenticationError)
  held('control')

  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.isRunning(), false)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(await again.files.read('one.txt'), 'ünïcode')
  held('pause')

  const snapshot = await sandbox.createSnapshot()
  const other = await Sandbox.create(snapshot.snapshotId)
  assert.equal(await other.files.read('one.txt'), 'ünïcode')
  await other.kill()
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  held('snapshot')
} finally {
  assert.equal(await sandbox.kill(), true)
}
assert.equal(await sandbox.isRunning(), false)
assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
held('kill')

if (process.env.HAS_KERNEL === '1') {
  const box = await Interpreter.create({ timeoutMs: 60_000 })
  try {
    const run = await box.runCode("x = 2\nprint('hi')\nx * 21")
    assert.deepEqual([run.text, run.logs.stdout], ['42', ['hi\n']])
    assert.equal((await box.runCode('1/0')).error.name, 'ZeroDivisionError')
    const session = await box.createCodeContext({ cwd: '/tmp' })
    assert.equal((await box.runCode('import os; os.getcwd()', { context: session })).text, '/tmp')
    await box.removeCodeContext(session)
    await assert.rejects(box.runCode('import time; time.sleep(60)', { timeoutMs: 500 }))
    assert.equal((await box.runCode('x')).text, '2')
    assert.equal((await box.runCode('[1, 2].map((n) => n * 2)', { language: 'js' })).results[0].json.length, 2)
    held('code')
  } finally {
    await box.kill()
  }
}
process.exit(0)
