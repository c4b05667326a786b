/** Reports at the end of a run, besides passed and failed: what did not run or ran twice, and where the time went. */
import type { Reporter, TestCase, TestModule } from 'vitest/node'

const NUM_SLOWEST = 15
/** A budget for a whole run: machines differ, so it is only reported. */
const BUDGET_MINUTES = 8
const WHOLE_RUN = 200

export class RunReporter implements Reporter {
  #since = performance.now()

  onTestRunStart(): void {
    this.#since = performance.now()
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    const minutes = (performance.now() - this.#since) / 60_000
    const lines = [...atNight(modules), ...secondTries(modules), ...slowest(modules), ...overBudget(modules, minutes)]
    for (const line of lines) console.log(line)
  }
}

function testsOf(modules: readonly TestModule[]): TestCase[] {
  return modules.flatMap((module) => [...module.children.allTests()])
}

function atNight(modules: readonly TestModule[]): string[] {
  const left = testsOf(modules).filter((test) => test.tags.includes('night') && test.result().state === 'skipped')
  return left.length === 0 ? [] : [`${left.length} tests run at night: SKEIN_SLOW=1 runs them now`]
}

function secondTries(modules: readonly TestModule[]): string[] {
  return testsOf(modules)
    .filter((test) => test.diagnostic()?.flaky)
    .map((test) => {
      const why = test.result().errors?.[0]?.message.split('\n')[0]
      return `needed a second try: ${test.module.relativeModuleId} > ${test.fullName} (${why})`
    })
}

function overBudget({ length }: readonly TestModule[], minutes: number): string[] {
  if (length < WHOLE_RUN || minutes <= BUDGET_MINUTES) return []
  const took = `${minutes.toFixed(1)} minutes, more than ${BUDGET_MINUTES}`
  return [`the tests took ${took}: see docs/dev/loop.md, "A budget of eight minutes"`]
}

/** The longest files of a run of many, in seconds. */
function slowest(modules: readonly TestModule[]): string[] {
  if (modules.length <= NUM_SLOWEST) return []
  const timed = modules.map((module) => [module.diagnostic().duration, module] as const)
  const longest = timed.toSorted(([a], [b]) => b - a).slice(0, NUM_SLOWEST)
  return [
    'slowest files:',
    ...longest.map(([ms, module]) => `${(ms / 1000).toFixed(1).padStart(7)} s  ${module.relativeModuleId}`),
  ]
}
