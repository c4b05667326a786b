/**
 * Records docs/images/cast.svg, or with `tools` docs/images/tools.svg: `node scripts/record-cast.js [tools]` after `npm
 * run build`. Needs tmux.
 *
 * The picture shows what the programs printed: tmux is the terminal, the script reads its screen as it changes, and
 * each line of each screen becomes a line of one animated picture. Only the keys and the waits of more than a second
 * are scripted.
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

const ROOT = join(import.meta.dirname, '..')
const NAME = process.argv[2] ?? 'cast'
const OUT = join(ROOT, `docs/images/${NAME}.svg`)
const [COLUMNS, ROWS] = [76, 17]
const [LEFT, TOP, WIDTH, HEIGHT] = [16, 40, 8.43, 20]
const TYPING_MS = 45
const LONGEST_WAIT_MS = 900
const LAST_SCREEN_MS = 4000

/** Keys, the text on the screen when they are done, and the time to read it. */
const CASTS = {
  cast: {
    title: 'npx skein serve, then npx skein chat, a question, a fork, and back to the first branch',
    scenes: [
      [['npx skein serve', /try /, 1500]],
      [
        ['npx skein chat', /\n> *$/, 400],
        ['What is the capital of France?', /Paris[\s\S]*tokens[\s\S]*\n> *$/, 900],
        ['/fork japan', /japan[\s\S]*\n[^\n]*> *$/, 600],
        ['What is the capital of Japan?', /Tokyo[\s\S]*tokens[\s\S]*\n[^\n]*> *$/, 900],
        ['/branch main', /main[^\n]*\n[\s\S]*> *$/, 600],
        ['What is the capital of Italy?', /Rome[\s\S]*tokens[\s\S]*\n[^\n]*> *$/, 1200],
      ],
    ],
  },
  tools: {
    title: 'npx skein serve, then an agent whose questions the model answers by calling tools',
    scenes: [
      [['npx skein serve', /try /, 800]],
      [
        [agentAsks('What is the weather in the capital of France?'), /weather in Paris:.*\n\$$/, 2000],
        [agentAsks('What is 3478 plus 2589?'), /= 6067\..*\n\$$/, 2000],
        [agentAsks('What colour is the sky?'), /is blue.*\n\$$/, 1500],
      ],
    ],
  },
}
const { title, scenes } = CASTS[NAME]

function agentAsks(question) {
  return `node examples/mcp-agent.mjs '${question}'`
}

const home = mkdtempSync(join(tmpdir(), 'skein-cast-'))
const tmux = (...args) =>
  execFileSync('tmux', ['-L', `cast-${process.pid}`, '-f', '/dev/null', ...args], { encoding: 'utf8' })

function openTerminal(name) {
  const variables = `HOME=${home} XDG_DATA_HOME=${home}/data HF_HUB_OFFLINE=1 npm_config_loglevel=error npm_config_userconfig=${homedir()}/.npmrc npm_config_cache=${homedir()}/.npm TERM=tmux-256color`
  const shell = `cd ${ROOT} && env -u SKEIN_API_KEY ${variables} "PS1=$ " bash --norc --noprofile`
  tmux('new-session', '-d', '-x', String(COLUMNS), '-y', String(ROWS), '-s', name, shell)
}

/** The changing screens of a terminal, each with the milliseconds since the previous one. */
async function record(scene, screens) {
  const name = `scene-${screens.length}`
  openTerminal(name)
  let shown
  let at = performance.now()
  const look = () => {
    // npx shows a spinner while it looks for the program.
    const screen = tmux('capture-pane', '-e', '-p', '-t', name).replace(/[\u2800-\u28ff]/g, ' ')
    if (screen === shown) return
    const waited = Math.min(performance.now() - at, LONGEST_WAIT_MS)
    screens.push({ screen, waited: Math.round(waited) })
    shown = screen
    at = performance.now()
  }
  const until = async (pattern) => {
    const deadline = performance.now() + 300_000
    for (;;) {
      look()
      if (pattern.test(tmux('capture-pane', '-p', '-t', name).trimEnd())) return
      if (performance.now() > deadline) throw new Error(`${pattern} did not come:\n${shown}`)
      await delay(30)
    }
  }
  await until(/\$$/)
  for (const [keys, pattern, pause] of scene) {
    for (const key of keys) {
      tmux('send-keys', '-t', name, '-l', key)
      await delay(TYPING_MS)
      look()
      screens.at(-1).waited = TYPING_MS
    }
    tmux('send-keys', '-t', name, 'Enter')
    await until(pattern)
    screens.push({ screen: shown, waited: pause })
    at = performance.now()
  }
}

const COLOURS = ['#3b4048', '#e06c75', '#98c379', '#e5c07b', '#61afef', '#c678dd', '#56b6c2', '#d7dae0']
/** Colour escape codes, as `tmux capture-pane -e` writes them. */
const STYLE = new RegExp(`(${String.fromCharCode(27)}\\[[\\d;]*m)`)
const ESCAPES = { '&': '&amp;', '<': '&lt;', '>': '&gt;' }
const escaped = (text) => text.replace(/[&<>]/g, (sign) => ESCAPES[sign])

/** A line with the terminal's colours as spans of SVG. */
function spansOf(line) {
  let style = { colour: '', bold: false, dim: false }
  return line
    .split(STYLE)
    .map((part) => {
      const codes = STYLE.test(part) ? part.slice(2, -1) : undefined
      if (codes === undefined) {
        const { colour, bold, dim } = style
        const marks = [colour && ` fill="${colour}"`, bold && ' font-weight="700"', dim && ' opacity=".6"'].filter(
          Boolean,
        )
        return part === '' || marks.length === 0 ? escaped(part) : `<tspan${marks.join('')}>${escaped(part)}</tspan>`
      }
      for (const code of codes.split(';').map(Number)) style = styled(style, code)
      return ''
    })
    .join('')
}

function styled(style, code) {
  if (code === 0) return { colour: '', bold: false, dim: false }
  if (code === 1) return { ...style, bold: true }
  if (code === 2) return { ...style, dim: true }
  if (code === 22) return { ...style, bold: false, dim: false }
  if (code === 39) return { ...style, colour: '' }
  if (code === 90) return { ...style, colour: '#7f848e' }
  const base = code >= 90 ? 90 : 30
  return code >= base && code < base + 8 ? { ...style, colour: COLOURS[code - base] } : style
}

/** Every line with its start and end time. */
function linesOf(screens) {
  const lines = []
  const open = new Map()
  let now = 0
  for (const { screen, waited } of screens) {
    now += waited
    const rows = screen.split('\n').slice(0, ROWS)
    for (let row = 0; row < ROWS; row++) {
      const text = (rows[row] ?? '').trimEnd()
      const last = open.get(row)
      if (last?.text === text) continue
      if (last !== undefined) last.end = now
      const line = { row, text, start: now, end: Number.POSITIVE_INFINITY }
      open.set(row, line)
      lines.push(line)
    }
  }
  const total = now + LAST_SCREEN_MS
  const seen = lines.filter(({ text, start, end }) => text !== '' && end > start)
  return { total, lines: seen.map((line) => ({ ...line, end: Math.min(line.end, total) })) }
}

/** CSS alone shows the lines; with reduced motion only the last screen is visible. */
function svgOf({ lines, total }) {
  const width = 2 * LEFT + COLUMNS * WIDTH
  const height = TOP + ROWS * HEIGHT + 12
  const share = (time) => `${((100 * time) / total).toFixed(2)}%`
  const rules = lines.map(({ start, end }, i) => {
    const before = start > 0 ? `0%{opacity:0}` : ''
    const after = end < total ? `${share(end)}{opacity:0}` : ''
    return `@keyframes k${i}{${before}${share(start)}{opacity:1}${after}}#l${i}{animation-name:k${i}}`
  })
  const texts = lines.map(({ row, text, end }, i) => {
    const y = TOP + (row + 0.8) * HEIGHT
    const mark = end === total ? ' class="last"' : ''
    return `<text id="l${i}"${mark} x="${LEFT}" y="${y}" xml:space="preserve">${spansOf(text)}</text>`
  })
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width.toFixed(0)} ${height}" role="img">
<title>A terminal: ${title}</title>
<style>
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dae0;opacity:0;animation:${(total / 1000).toFixed(2)}s step-end infinite}
${rules.join('\n')}
@media (prefers-reduced-motion:reduce){text{animation:none!important}.last{opacity:1}}
</style>
<rect width="100%" height="100%" rx="10" fill="#17191e"/>
<circle cx="22" cy="20" r="6" fill="#ff5f57"/><circle cx="42" cy="20" r="6" fill="#febc2e"/><circle cx="62" cy="20" r="6" fill="#28c840"/>
${texts.join('\n')}
</svg>
`
}

const screens = []
try {
  for (const scene of scenes) await record(scene, screens)
} finally {
  tmux('kill-server')
}
const svg = svgOf(linesOf(screens))
writeFileSync(OUT, svg)
console.log(`${OUT}: ${screens.length} screens, ${Math.round(svg.length / 1000)} KB`)
