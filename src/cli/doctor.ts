/** `skein doctor`: reports what this machine can run, what is missing, and how to get it. */
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { cpus, freemem, totalmem } from 'node:os'
import { cpuReport } from '../backend/cpu/cpu.ts'
import { type CudaReport, cudaReport } from '../backend/cuda/report.ts'
import { type WebgpuReport, webgpuReport } from '../backend/webgpu/adapter.ts'
import { SkeinError } from '../errors.ts'
import { DEMO_MODEL } from '../host/checkpoints/model-path.ts'
import { vocabularyPath } from '../host/checkpoints/open-model.ts'
import { toggle } from '../settings/flags.ts'
import { settingsCalled } from '../settings/table.ts'
import { checkCluster, type Finding } from './cluster-check.ts'
import { defineCommand } from './terminal/command.ts'
import { formatBytes, printJson, printTable } from './terminal/output.ts'

export const doctor = defineCommand({
  examples: [
    ['skein doctor', 'what runs here, what is missing, what to do'],
    ['skein doctor --cluster postgres://HOST/skein', 'the database, the clocks, the connection to each node'],
  ],
  flags: { json: toggle('One JSON object'), ...settingsCalled('cluster', 'blobs') },
  async run({ args }) {
    const { cluster = process.env.SKEIN_CLUSTER, blobs = process.env.SKEIN_BLOBS } = args
    if (cluster) {
      printFindings(await checkCluster(cluster, blobs || undefined), args.json)
      return
    }
    const cuda = cudaReport()
    const webgpu = await quietWebgpuReport()
    const findings = [
      ...[node(), processor(), memory(), compiler(), kernels()],
      ...[gpu(cuda), cudaCompiler(cuda), cublasLt(cuda), adapters(webgpu)],
      ...[demo(), vocabulary()],
    ]
    printFindings(findings, args.json, { cpu: cpuReport(), cuda, webgpu })
  },
})

/** Asks in a separate process: drivers write warnings to standard error, and a broken driver ends the process. */
async function quietWebgpuReport(): Promise<WebgpuReport> {
  const adapter = new URL('../backend/webgpu/adapter.js', import.meta.url)
  if (!existsSync(adapter)) return webgpuReport()
  const code = `import(${JSON.stringify(adapter)}).then(async ({ webgpuReport }) => {
    process.stdout.write(JSON.stringify(await webgpuReport()), () => process.exit(0))
  })`
  try {
    const printed = execFileSync(process.execPath, ['-e', code], {
      stdio: ['ignore', 'pipe', 'ignore'],
      timeout: 60_000,
    })
    // The process prints a WebgpuReport.
    return JSON.parse(String(printed)) as WebgpuReport
  } catch {
    const problem = 'a graphics driver crashed when asked for its adapters; update or remove it'
    return { adapters: [], problem }
  }
}

function printFindings(findings: readonly Finding[], asJson: boolean, more: object = {}): void {
  const isUsable = findings.every(({ fix, isOptional }) => fix === null || isOptional)
  if (asJson) {
    printJson({ isUsable, findings, ...more })
    return
  }
  printTable(findings.map((finding) => [markOf(finding), finding.what, finding.found]))
  for (const { what, fix } of findings) if (fix) process.stdout.write(`\n${what}: ${fix}\n`)
}

function markOf({ fix, isOptional }: Finding): string {
  if (isOptional) return '--'
  return fix === null ? 'ok' : '!!'
}

function node(): Finding {
  // An older one would not have come here (main.ts).
  return { what: 'node', found: `${process.version} on ${process.platform} ${process.arch}`, fix: null }
}

function processor(): Finding {
  const { machine, threads } = cpuReport()
  const model = cpus()[0]?.model.trim() ?? 'unknown'
  const level = machine === null ? '' : `, best instruction set ${machine}`
  return { what: 'processor', found: `${model}, ${threads} threads${level}`, fix: null }
}

function memory(): Finding {
  return { what: 'memory', found: `${formatBytes(freemem())} free of ${formatBytes(totalmem())}`, fix: null }
}

function compiler(): Finding {
  const tried = [process.env.CXX, 'g++', 'clang++', 'c++'].filter((name) => name !== undefined)
  for (const name of tried) {
    const version = versionOf(name)
    if (version !== null) return { what: 'compiler', found: version, fix: null }
  }
  // Without a compiler, kernels that are already built keep working.
  const fix = cpuReport().chosen === null ? 'apt-get install g++, or the Xcode command line tools' : null
  return { what: 'compiler', found: 'no C++ compiler', fix, isOptional: fix === null }
}

function versionOf(program: string): string | null {
  try {
    const out = execFileSync(program, ['--version'], { stdio: ['ignore', 'pipe', 'ignore'] })
    return out.toString().split('\n')[0] ?? program
  } catch {
    return null
  }
}

function kernels(): Finding {
  const { levels, chosen, problem } = cpuReport()
  const built = levels.filter(({ isBuilt }) => isBuilt).map(({ level }) => level)
  const found = chosen === null ? 'none usable' : `${chosen} chosen; built: ${built.join(', ')}`
  return { what: 'cpu kernels', found, fix: problem }
}

/** Having no NVIDIA card is fine; a card without a driver is a problem. */
function gpu({ devices, hasCard, problems }: CudaReport): Finding {
  const list = devices.map(({ ordinal, name, computeCapability, totalBytes }) => {
    const capability = computeCapability.join('.')
    return `cuda:${ordinal} ${name} (${capability}, ${formatBytes(totalBytes)})`
  })
  const [first] = devices
  const driver = first && `driver ${first.driverRelease} (CUDA ${first.driverVersion / 1000})`
  const missing = hasCard ? 'an NVIDIA card that cannot be used' : 'none'
  return {
    what: 'gpu',
    found: first ? `${list.join(', ')}; ${driver}` : missing,
    fix: hasCard ? fixOf(problems, 'driver') : null,
    isOptional: !first && !hasCard,
  }
}

function cudaCompiler({ nvrtc, nvcc, problems }: CudaReport): Finding {
  const found = [nvrtc === null ? 'no NVRTC' : `NVRTC ${nvrtc}`, nvcc === null ? 'no nvcc' : `nvcc ${nvcc}`]
  const fix = fixOf(problems, 'compiler')
  return { what: 'cuda compiler', found: found.join(', '), fix, isOptional: fix === null && nvrtc === null }
}

function cublasLt({ cublasLt, problems }: CudaReport): Finding {
  const fix = fixOf(problems, 'cublasLt')
  return { what: 'cublasLt', found: cublasLt ?? 'none', fix, isOptional: fix === null && cublasLt === null }
}

/** Adapters are optional: cuda and cpu work without them. */
function adapters({ adapters, problem }: WebgpuReport): Finding {
  const list = adapters.map(({ name, isSoftware, features, maxBindingBytes }, index) => {
    const own = [`bindings of ${formatBytes(maxBindingBytes)}`, ...features].join(', ')
    const kind = isSoftware ? 'software, for tests' : own
    return `webgpu:${index} ${name} (${kind})`
  })
  return { what: 'webgpu', found: problem ?? list.join(', '), fix: null, isOptional: problem !== null }
}

function fixOf(problems: CudaReport['problems'], part: string): string | null {
  return problems.find((problem) => problem.part === part)?.message ?? null
}

function demo(): Finding {
  const isThere = existsSync(DEMO_MODEL)
  const fix = isThere ? null : 'models/demo.pth is missing from this installation; reinstall it'
  return { what: 'demo model', found: isThere ? DEMO_MODEL : 'missing', fix }
}

/** For models without a vocabulary file; the demo model has its own. */
function vocabulary(): Finding {
  try {
    return { what: 'vocabulary', found: vocabularyPath({ model: 'MODEL.pth' }), fix: null }
  } catch (error) {
    const { message } = SkeinError.from(error)
    return {
      what: 'vocabulary',
      found: 'World vocabulary not installed (released models need it, the demo model does not)',
      fix: message,
      isOptional: true,
    }
  }
}
