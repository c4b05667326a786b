/** What the end of a run says besides passed and failed: tests that needed their second try, and where the time went. */
import type { Reporter, TestModule } from 'vitest/node'

const NUM_SLOWEST = 15

export class RunReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    for (const line of [...secondTries(modules), ...slowest(modules)]) console.log(line)
  }
}

function secondTries(modules: readonly TestModule[]): string[] {
  return modules.flatMap((module) =>
    [...module.children.allTests()]
      .filter((test) => test.diagnostic()?.flaky)
      .map((test) => `needed a second try: ${module.relativeModuleId} > ${test.fullName}`),
  )
}

/** The longest files of a run of many, in seconds. */
function slowest(modules: readonly TestModule[]): string[] {
  if (modules.length <= NUM_SLOWEST) return []
  const timed = modules.map((module) => [module.diagnostic().duration, module] as const)
  const longest = timed.toSorted(([a], [b]) => b - a).slice(0, NUM_SLOWEST)
  return [
    'slowest files:',
    ...longest.map(
      ([ms, module]) => `${(ms / 1000).toFixed(1).padStart(7)} s  ${module.relativeModuleId}`,
    ),
  ]
}
