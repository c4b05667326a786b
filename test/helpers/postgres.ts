/**
 * A PostgreSQL server for tests, in a temporary folder: Debian's programs, run as its user if this process is root.
 * Without an installation the tests that need it say so and are skipped.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import {
  appendFileSync,
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir, userInfo } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { Place } from './namespaces.ts'

const VERSIONS = '/usr/lib/postgresql'

/** The newest version's programs; null: none. */
const PROGRAMS = ((): string | null => {
  if (!existsSync(VERSIONS)) return null
  const found = readdirSync(VERSIONS)
    .sort((a, b) => Number(b) - Number(a))
    .map((version) => join(VERSIONS, version, 'bin'))
    .find((folder) => existsSync(join(folder, 'initdb')))
  return found ?? null
})()

/** The server refuses to run as root. */
const ACCOUNT = ((): { uid: number; gid: number } | null | undefined => {
  if (process.getuid?.() !== 0) return undefined
  const ids = ['-u', '-g'].map((flag) => spawnSync('id', [flag, 'postgres'], { encoding: 'utf8' }))
  if (ids.some(({ status }) => status !== 0)) return null
  const [uid, gid] = ids.map(({ stdout }) => Number(stdout)) as [number, number]
  return { uid, gid }
})()

/** The result of `initdb` for the first server of a run; copying it takes a tenth of the time. */
const TEMPLATE = join(tmpdir(), 'skein-postgres-template')
const copy = (from: string, to: string) => execFileSync('cp', ['-a', from, to])

/** Why there is no server, for the names of skipped tests. */
export const NO_POSTGRES: string | null =
  PROGRAMS === null
    ? 'no PostgreSQL is installed (Debian: postgresql)'
    : ACCOUNT === null
      ? 'PostgreSQL does not run as root, and there is no user postgres'
      : null

if (NO_POSTGRES !== null) process.stderr.write(`tests of clusters are skipped: ${NO_POSTGRES}\n`)

export interface Postgres {
  /** URL of a new empty database. */
  newDatabase(): string
  /** Crashes it: nothing is flushed first. */
  crash(): void
  start(): void
  /** Where it listens now. */
  readonly port: number
  /** With a standby: crashes the server; its synchronous standby takes over and gets a new standby. */
  failOver(): Promise<void>
  /** With an archive: makes the base backup for `restore`. */
  backUp(): void
  /** Marks this moment, and waits until the log up to it is archived. */
  markMoment(name: string): Promise<void>
  /** Crashes the server, deletes its folder, and restores that moment from base and log. */
  restore(name: string): Promise<void>
  /** Ends it and removes its folder. */
  remove(): void
}

interface PostgresOptions {
  /** Commits wait for a second server, which streams what the first one writes. */
  readonly hasStandby?: boolean
  /** Archives its log, to restore any moment. */
  readonly isArchived?: boolean
  /** Runs and listens there instead of beside this process; trusts the subnet. */
  readonly place?: Place & { readonly subnet: string }
}

export async function startPostgres({
  hasStandby = false,
  isArchived = false,
  place,
}: PostgresOptions = {}): Promise<Postgres> {
  // Not below the run's folder, which only root may enter.
  const folder = mkdtempSync(join(realTmp(), 'skein-postgres-'))
  let data = join(folder, 'data')
  if (ACCOUNT) chownSync(folder, ACCOUNT.uid, ACCOUNT.gid)
  chmodSync(folder, 0o700)
  const address = place?.address ?? '127.0.0.1'
  const run = (program: string, ...args: string[]) => {
    const words = [join(PROGRAMS!, program), ...args]
    // Only root enters a namespace, and then becomes the server's user.
    if (place !== undefined) {
      const { uid, gid } = ACCOUNT!
      words.unshift(...place.within, 'setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--clear-groups')
    }
    return execFileSync(words[0]!, words.slice(1), {
      cwd: folder,
      stdio: ['ignore', program === 'psql' ? 'pipe' : 'ignore', 'pipe'],
      ...(place === undefined ? (ACCOUNT ?? {}) : {}),
    })
  }
  let port = await freePort()
  if (existsSync(TEMPLATE)) copy(TEMPLATE, data)
  else {
    run('initdb', '-D', data, '-U', 'skein', '-A', 'trust', '-E', 'UTF8', '--no-locale', '-N')
    const own = mkdtempSync(TEMPLATE)
    copy(data, join(own, 'data'))
    try {
      renameSync(join(own, 'data'), TEMPLATE)
    } catch {
      // Another process was first.
    }
  }
  if (place !== undefined) appendFileSync(join(data, 'pg_hba.conf'), `host all all ${place.subnet} trust\n`)
  const archive = join(folder, 'log-archive')
  const more = isArchived ? `-c archive_mode=on -c archive_command='cp %p ${archive}/%f'` : ''
  const settings = `-k ${folder} -c listen_addresses=${address} -c max_connections=200 -c log_min_messages=fatal ${more}`
  const start = (of = data, at = port) => {
    const options = `-p ${at} ${settings}${hasStandby ? ' -c synchronous_standby_names=*' : ''}`
    run('pg_ctl', 'start', '-D', of, '-w', '-t', '60', '-o', options, '-l', join(folder, 'log'))
  }
  const stop = (mode: string, of = data) => run('pg_ctl', 'stop', '-D', of, '-m', mode, '-w', '-t', '60')
  const at = () => ['-h', address, '-p', String(port), '-U', 'skein']
  const ask = (sql: string) => String(run('psql', ...at(), '-d', 'postgres', '-Atc', sql)).trim()
  if (isArchived) {
    mkdirSync(archive)
    if (ACCOUNT) chownSync(archive, ACCOUNT.uid, ACCOUNT.gid)
  }
  let numDatabases = 0
  let isRunning = true
  let standby: { readonly data: string; readonly port: number } | null = null
  let numStandbys = 0
  const addStandby = async () => {
    numStandbys++
    const own = { data: join(folder, `standby${numStandbys}`), port: await freePort() }
    run('pg_basebackup', ...at(), '-D', own.data, '-R', '-N', '-c', 'fast')
    start(own.data, own.port)
    standby = own
  }
  start()
  if (hasStandby) await addStandby()
  return {
    get port() {
      return port
    },
    backUp() {
      run('pg_basebackup', ...at(), '-D', join(folder, 'base'), '-N', '-c', 'fast', '-X', 'none')
    },
    async markMoment(name) {
      const file = ask(`select pg_walfile_name(pg_create_restore_point('${name}'))`)
      ask('select pg_switch_wal()')
      while (!existsSync(join(archive, file))) await delay(20)
    },
    async restore(name) {
      stop('immediate')
      rmSync(data, { recursive: true, force: true })
      renameSync(join(folder, 'base'), data)
      const settings = `restore_command = 'cp ${archive}/%f %p'\nrecovery_target_name = '${name}'\nrecovery_target_action = 'promote'\n`
      appendFileSync(join(data, 'postgresql.auto.conf'), settings)
      writeFileSync(join(data, 'recovery.signal'), '')
      start()
      // It accepts connections before it has replayed the whole log.
      while (ask('select pg_is_in_recovery()') !== 'f') await delay(50)
    },
    async failOver() {
      if (standby === null) throw new Error('it has no standby')
      stop('immediate')
      rmSync(data, { recursive: true, force: true })
      run('pg_ctl', 'promote', '-D', standby.data, '-w', '-t', '60')
      ;({ data, port } = standby)
      await addStandby()
    },
    newDatabase() {
      numDatabases++
      const name = `test${numDatabases}`
      run('createdb', '-h', address, '-p', String(port), '-U', 'skein', name)
      return `postgres://skein@${address}:${port}/${name}`
    },
    crash() {
      stop('immediate')
      isRunning = false
    },
    start() {
      start()
      isRunning = true
    },
    remove() {
      if (standby !== null) stop('immediate', standby.data)
      if (isRunning) stop('immediate')
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

/** The system's temporary folder, whatever the run has set TMPDIR to. */
function realTmp(): string {
  return userInfo().uid === 0 && existsSync('/tmp') ? '/tmp' : tmpdir()
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.on('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const address = server.address()
      server.close(() => resolve(typeof address === 'object' ? address!.port : 0))
    })
  })
}
