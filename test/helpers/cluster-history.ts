/** Checks from all session rows ever written that a cluster under faults never broke its rules. */
import { expect } from 'vitest'
import type { Database } from '../../src/cluster/database.ts'

/** Records every published row, in order. */
const HISTORY = `
  create table history (n bigserial, id text, owner text, fence bigint, version bigint, turns jsonb);
  create function tell() returns trigger language plpgsql as $$ begin
    insert into history (id, owner, fence, version, turns) values (new.id, new.owner, new.fence,
      (new.record->>'version')::bigint, new.record->'turns');
    return new;
  end $$;
  create trigger tell after insert or update on session for each row execute function tell();
`

export async function keepHistory(database: Database): Promise<void> {
  await database.query(HISTORY)
}

interface Row {
  readonly id: string
  readonly owner: string | null
  readonly fence: number
  readonly version: number | null
  readonly turns: readonly { turn: number; key: string }[] | null
}

/** Checks: one owner per fence, fences and versions only grow, and a turn number means one turn for ever. */
export async function checkHistory(database: Database): Promise<{ readonly rows: number; readonly fences: number }> {
  const { rows } = await database.query<Row>('select id, owner, fence, version, turns from history order by n')
  const owners = new Map<string, string>()
  const published = new Map<string, string>()
  const last = new Map<string, { fence: number; version: number }>()
  for (const { id, owner, fence, version, turns } of rows) {
    if (owner !== null) {
      expect([id, fence, owners.get(`${id} ${fence}`) ?? owner]).toEqual([id, fence, owner])
      owners.set(`${id} ${fence}`, owner)
    }
    const before = last.get(id) ?? { fence: 0, version: 0 }
    expect(fence).toBeGreaterThanOrEqual(before.fence)
    expect(version ?? before.version).toBeGreaterThanOrEqual(before.version)
    for (const { turn, key } of turns ?? []) {
      expect([id, turn, published.get(`${id} ${turn}`) ?? key]).toEqual([id, turn, key])
      published.set(`${id} ${turn}`, key)
    }
    last.set(id, { fence, version: version ?? before.version })
  }
  return { rows: rows.length, fences: owners.size }
}

/** How long a clock stays at each of several offsets. */
const JUMP_MS = 1500

/**
 * An argument of Node's `--import` that shifts the clock of a process and its threads by `ms`. With several offsets the clock
 * jumps from one to the next.
 */
export function shiftedClock(...ms: readonly number[]): string {
  const step = `Math.floor((performance.timeOrigin + performance.now()) / ${JUMP_MS})`
  const now = `D.now() + ${JSON.stringify(ms)}[${step} % ${ms.length}]`
  const script = `const D = Date; globalThis.Date = class extends D {
    constructor(...given) { given.length > 0 ? super(...given) : super(${now}) }
    static now() { return ${now} }
  }`
  return `data:text/javascript,${encodeURIComponent(script)}`
}

/** Retries while the database may be away. */
export async function retried<T>(work: () => Promise<T>): Promise<T> {
  for (let i = 0; ; i++) {
    try {
      return await work()
    } catch (error) {
      if (i === 100) throw error
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }
}
