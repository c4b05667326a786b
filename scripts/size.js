// The size of the source: lines and files of every folder of src/, changes since a commit, and the longest files.
//   node scripts/size.js [COMMIT]   default: the previous commit
import { execFileSync } from 'node:child_process'

const git = (...words) => execFileSync('git', words, { encoding: 'utf8', maxBuffer: 2 ** 28 })

/** file of src/ → number of lines in a commit. */
function linesAt(commit) {
  const counted = git('grep', '-c', '', commit, '--', 'src/*.ts').trim().split('\n')
  return new Map(
    counted.map((line) => {
      const [, file, count] = line.split(':')
      return [file, Number(count)]
    }),
  )
}

function byFolder(lines) {
  const folders = new Map()
  for (const [file, count] of lines) {
    const folder = file.slice(0, file.lastIndexOf('/'))
    const sum = folders.get(folder) ?? { files: 0, lines: 0 }
    folders.set(folder, { files: sum.files + 1, lines: sum.lines + count })
  }
  return folders
}

function hasCommit(name) {
  try {
    git('rev-parse', '--verify', '--quiet', `${name}^{commit}`)
    return true
  } catch {
    return false // a clone of one commit
  }
}

const before = process.argv[2] ?? 'HEAD~1'
const now = linesAt('HEAD')
const folders = byFolder(now)
const was = hasCommit(before) ? byFolder(linesAt(before)) : folders
const names = [...new Set([...folders.keys(), ...was.keys()])].sort()
const none = { files: 0, lines: 0 }
const rows = names.map((name) => {
  const { files, lines } = folders.get(name) ?? none
  return { name, files, lines, more: lines - (was.get(name) ?? none).lines }
})
const sum = (of) => rows.reduce((total, row) => total + row[of], 0)
rows.push({ name: 'all', files: sum('files'), lines: sum('lines'), more: sum('more') })
console.log(`${'folder'.padEnd(34)}${'files'.padStart(6)}${'lines'.padStart(8)}${'change'.padStart(8)}`)
for (const { name, files, lines, more } of rows)
  console.log(
    `${name.padEnd(34)}${String(files).padStart(6)}${String(lines).padStart(8)}${(more > 0 ? `+${more}` : String(more || '')).padStart(8)}`,
  )
const longest = [...now].sort(([, a], [, b]) => b - a).slice(0, 5)
console.log(`longest: ${longest.map(([file, lines]) => `${file} ${lines}`).join(', ')}`)
