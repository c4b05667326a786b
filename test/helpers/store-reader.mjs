// Reads a store's database for ever: node store-reader.mjs <database> <milliseconds>. Of two transactions, each so long, one is
// open at any time; with 0 one is, which never ends. Says "reading" when the first has begun.
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
      // A connection that is closed with a statement goes on reading until that is collected.
      open.exec('COMMIT')
      open.close()
    }, 0)
    setTimeout(() => {
      open = next
    }, 0)
  }, length)
