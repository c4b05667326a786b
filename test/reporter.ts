/** What the end of a run says besides passed and failed: tests that needed their second try, and where the time went. */
import type { Reporter, TestModule } from 'vitest/node'

const NUM_SLOWEST = 15
/** Of a whole run: machines differ, so it is told and no more. */
const BUDGET_MINUTES = 10
const WHOLE_RUN = 200

export class RunReporter implements Reporter {
  #since = performance.now()

  onTestRunStart(): void {
    this.#since = performance.now()
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    const minutes = (performance.now() - this.#since) / 60_000
    const lines = [...secondTries(modules), ...slowest(modules), ...overBudget(modules, minutes)]
    for (const line of lines) console.log(line)
  }
}

function secondTries(modules: readonly TestModule[]): string[] {
  return modules.flatMap((module) =>
    [...module.children.allTests()]
      .filter((test) => test.diagnostic()?.flaky)
      .map((test) => `needed a second try: ${module.relativeModuleId} > ${test.fullName}`),
  )
}

function overBudget({ length }: readonly TestModule[], minutes: number): string[] {
  if (length < WHOLE_RUN || minutes <= BUDGET_MINUTES) return []
  const took = `${minutes.toFixed(1)} minutes, more than ${BUDGET_MINUTES}`
  return [`the tests took ${took}: see docs/dev/house.md, "Tests that stay quick"`]
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
