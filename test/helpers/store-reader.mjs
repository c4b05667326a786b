// Reads a store's database for ever: node store-reader.mjs <database> <milliseconds>. Two transactions of that length take
// turns, so one is always open; with 0 there is one that never ends. Prints "reading" when the first has begun.
import { DatabaseSync } from '@photostructure/sqlite'

const [path, length] = [process.argv[2], Number(process.argv[3])]

function begin() {
  const db = new DatabaseSync(path, { readOnly: true })
  db.exec('BEGIN')
  db.prepare('SELECT count(*) FROM sessions').get()
  return db
}

let open = begin()
process.stdout.write('reading\n')
if (length === 0) setInterval(() => {}, 1000)
else
  setInterval(() => {
    const next = begin()
    setTimeout(() => {
      // A closed connection with an open statement keeps reading until the statement is collected.
      open.exec('COMMIT')
      open.close()
    }, 0)
    setTimeout(() => {
      open = next
    }, 0)
  }, length)
