// The size of the source: lines and files of every folder of src/, changes since a commit, and the longest files.
//   node scripts/size.js [COMMIT]          default: the previous commit
//   node scripts/size.js --by capability   what came after ea8ed63, and the rest: the system as it was
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

/** Capability since ea8ed63 → the folders and files that only it needs. Shared files count as the rest. */
const CAPABILITIES = {
  'WebGPU backend': 'backend/webgpu/',
  'a model in a page': 'browser/',
  'several machines: cluster, shared states, leases, front gateways':
    'cluster/ gateway/cluster/ state/shared/ state/model-key.ts gateway/access/caller-seal.ts gateway/access/keys-shared.ts host/membership.ts host/front.ts cli/cluster-check.ts cli/gateway.ts settings/network.ts engine/sessions/imports.ts gateway/routing/turn-origin.ts',
  'agents: Anthropic, Responses, tools, thinking, transcripts':
    'api/anthropic/ api/responses/ api/chat/conversation.ts api/chat/markdown-tools.ts api/chat/told.ts api/chat/tool-format.ts api/chat/tool-splitter.ts api/chat/tool-text.ts api/openai/asks/thinking.ts api/openai/asks/tools.ts api/sessions/transcript.ts',
  'structured output: grammars, masks of tokens': 'grammar/ api/openai/asks/formats.ts',
  'dialects of Ollama, llama.cpp, ai00': 'api/ollama/ api/llama/ api/ai00/',
  batches: 'batches/ api/batches/ gateway/http/batch-rows.ts',
  'embeddings and reranking':
    'api/embeddings/ engine/answer/embedding-sum.ts engine/answer/ranking.ts model/run/reranker.ts',
  'drafts, lookup and predictions':
    'engine/speculation/ model/run/speculate-choice.ts backend/host-guessing.ts backend/cuda/state-log.ts backend/cuda/ops/take-draws.ts bench/guessed.ts',
  'GGUF blocks as they are, small blocks': 'model/formats/gguf/packed-source.ts',
  'states that move beside the steps, shared prefixes':
    'backend/flight.ts backend/state-shape.ts backend/cuda/state-lanes.ts backend/cuda/device/downloads.ts engine/state-transfers.ts engine/kept/late-store.ts engine/kept/prefix-sharing.ts',
  'fairness, urgency, preemption': 'engine/fairness/preemption.ts engine/prefill-budget.ts gateway/access/urgency.ts',
  'a front that hostile clients cannot stop':
    'threads/ gateway/body/json-scan.ts gateway/body/read-body.ts host/watchdog.ts host/watchdog-thread.ts',
  'kernels compiled ahead, cards told apart':
    'backend/cuda/kernel/ahead.ts backend/cuda/kinds/compile-thread.ts backend/cuda/kernel/seal.ts backend/cuda/kinds/absent.ts backend/cuda/driver/cards.ts',
  'chat in the terminal, launch, completion, servers by name':
    'cli/chat/conversation.ts cli/chat/markdown.ts cli/chat/prompt.ts cli/chat/slash.ts cli/chat/talk.ts cli/launch/ cli/completion.ts cli/remote.ts cli/models/fetch.ts',
  'models found, fetched and quantised by the dashboard':
    'hub/search.ts hub/released.ts host/checkpoints/model-jobs.ts host/checkpoints/quantise-file.ts host/checkpoints/quantise-process.ts model/formats/fingerprint.ts',
  'files read by several threads': 'files/parallel-read.ts files/parallel-read-thread.ts files/digest.ts',
  'translations that stream': 'api/translate/prepare.ts',
}

/** [capability, files, lines]; the rest of src/ last. */
function byCapability(lines) {
  const left = new Map(lines)
  const take = (place) => {
    const found = [...left].filter(([file]) =>
      place.endsWith('/') ? file.startsWith(`src/${place}`) : file === `src/${place}`,
    )
    if (found.length === 0) console.log(`no file: src/${place}`)
    for (const [file] of found) left.delete(file)
    return found
  }
  const rows = Object.entries(CAPABILITIES).map(([name, places]) => [name, places.split(' ').flatMap(take)])
  return [...rows, ['the rest: the system as it was, and what is shared', [...left]]].map(([name, files]) => [
    name,
    files.length,
    files.reduce((sum, [, count]) => sum + count, 0),
  ])
}

if (process.argv[2] === '--by') {
  const print = (name, files, count) =>
    console.log(name.padEnd(68) + String(files).padStart(6) + String(count).padStart(8))
  print('capability', 'files', 'lines')
  for (const row of byCapability(linesAt('HEAD'))) print(...row)
  process.exit()
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
