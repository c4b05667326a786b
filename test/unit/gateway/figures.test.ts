/** The sources of the samples in the event stream. */
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { RecentValues } from '../../../src/gateway/figures/metrics.ts'
import { GpuWatch, parseGpus } from '../../../src/gateway/management/nvidia-smi.ts'

const LINE = '0, GPU-1a2b, NVIDIA H200, 143771, 1024, 37, 41, 120.55'

test('GPUs are read from the output of nvidia-smi', () => {
  expect(parseGpus(`${LINE}\n1, [N/A], Tesla X, [N/A], 5, [Not Supported], 30, [N/A]\n`)).toEqual([
    {
      index: 0,
      uuid: 'GPU-1a2b',
      name: 'NVIDIA H200',
      memory_total_mb: 143_771,
      memory_used_mb: 1024,
      utilisation: 37,
      temperature_c: 41,
      power_w: 120.55,
    },
    {
      index: 1,
      uuid: null,
      name: 'Tesla X',
      memory_total_mb: 0,
      memory_used_mb: 5,
      utilisation: null,
      temperature_c: 30,
      power_w: null,
    },
  ])
})

test('concurrent callers share one run of the command; an old answer is renewed', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-smi-'))
  const command = join(folder, 'nvidia-smi')
  const script = `#!/bin/sh\necho x >> ${folder}/runs\necho "${LINE}"\n`
  writeFileSync(command, script, { mode: 0o755 })
  const runs = () => readFileSync(`${folder}/runs`, 'utf8').trim().split('\n').length
  const watch = new GpuWatch(command)
  const all = await Promise.all([watch.read(1000), watch.read(1000), watch.read(1000)])
  expect(all.map((gpus) => gpus[0]?.name)).toEqual(Array(3).fill('NVIDIA H200'))
  expect(watch.latest).toHaveLength(1)
  expect(runs()).toBe(1)
  await watch.read(-1)
  expect(runs()).toBe(2)
})

test('a machine without the command has no GPUs, and is not asked again', async () => {
  const watch = new GpuWatch('/nowhere/nvidia-smi')
  expect(await watch.read(1000)).toEqual([])
  expect(await watch.read(-1)).toEqual([])
})

test('GPUs are read again when the process that reads them was killed', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-smi-'))
  const command = join(folder, 'nvidia-smi')
  writeFileSync(command, `#!/bin/sh\necho $PPID > ${folder}/shell\necho "${LINE}"\n`, { mode: 0o755 })
  const watch = new GpuWatch(command)
  expect(await watch.read(1000)).toHaveLength(1)
  const shell = Number(readFileSync(`${folder}/shell`, 'utf8'))
  process.kill(shell, 'SIGKILL')
  await expect.poll(() => existsSync(`/proc/${shell}`)).toBe(false)
  await watch.read(-1)
  expect(await watch.read(-1)).toHaveLength(1)
})

test('percentiles cover the last ten seconds', () => {
  const recent = new RecentValues()
  expect(recent.percentiles(0)).toEqual({ p50: null, p90: null, p99: null })
  for (let i = 1; i <= 100; i++) recent.add(i, 5000)
  expect(recent.percentiles(5000)).toEqual({ p50: 50, p90: 90, p99: 99 })
  recent.add(1000, 14_000)
  expect(recent.percentiles(14_000).p99).toBe(100)
  expect(recent.percentiles(16_500)).toEqual({ p50: 1000, p90: 1000, p99: 1000 })
  expect(recent.percentiles(60_000).p50).toBeNull()
})

test('of very many values a sample is kept', () => {
  const recent = new RecentValues()
  for (let i = 0; i < 100_000; i++) recent.add(i % 1000, 1000)
  const { p50 } = recent.percentiles(1000)
  expect(p50).toBeGreaterThan(400)
  expect(p50).toBeLessThan(600)
})
