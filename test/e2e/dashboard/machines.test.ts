/** The page Machines: GPUs with their workers; at a front gateway the nodes, and actions on their workers. */
import { expect, test } from 'vitest'
import type { ClusterInfo } from '../../../src/gateway/contract.ts'
import { FakeServer, fakeWorker, SYSTEM } from '../../web/fake-server.ts'
import { describeInBrowser, fakeOpener } from './kit.ts'

const CLUSTER: ClusterInfo = {
  requests: { forwarded: 1200, retried: 3, misdirected: 7, lost: 0 },
  nodes: [
    {
      node: 'one:8000',
      url: 'http://one:8000',
      is_passed_by: false,
      workers: [
        {
          ...{ id: 'w1', model: 'demo', slots: 64, in_flight: 5, sessions: 40 },
          ...{ lease_left_ms: 8500, device: 'cuda:1 NVIDIA H200', version: '0.1.0' },
        },
      ],
    },
    { node: 'two:8000', url: 'http://two:8000', is_passed_by: true, workers: [] },
  ],
  moves: {
    count: 31,
    latest: [
      {
        ...{ at: Date.now() - 5000, session: 'a long talk', is_direct: true, ms: 40 },
        from: { node: 'two:8000', worker: 'w2' },
        to: { node: 'one:8000', worker: 'w1' },
      },
    ],
  },
}

describeInBrowser('machines in the dashboard', (browser) => {
  const open = fakeOpener(browser)

  test('a GPU shows its use, its temperature and its workers', async () => {
    const onGpu = fakeWorker({ model: 'large' })
    const info = { ...onGpu.info!, device: 'cuda:0 NVIDIA H200 (9.0, 132 SMs, 140 GiB)' }
    const small = fakeWorker({ worker_id: 'wkr-cpu', model: 'small' })
    const workers = [
      { ...onGpu, info },
      { ...small, info: { ...small.info!, device: 'cpu (avx2)' } },
    ]
    const server = new FakeServer({ workers, load: () => ({}) })
    const { page, faults, url } = await open(server)
    await page.goto(`${url}/#/machines`)
    const gpu = page.locator('.machine', { has: page.getByRole('heading', { name: 'GPU 0' }) })
    await gpu.getByText('°C').waitFor()
    await gpu.getByRole('link', { name: 'large' }).waitFor()
    expect(await gpu.getByRole('progressbar').count()).toBe(2)
    expect(await gpu.getByText('small').count()).toBe(0)
    await page.locator('.machine').first().getByRole('link', { name: 'small' }).waitFor()
    expect(faults).toEqual([])
    await page.context().close()
  })

  test('a front gateway shows its nodes; an opened node shows its machine, its workers and their logs', async () => {
    const server = new FakeServer({ refuse: 404, passes: /^\/api\/cluster/ })
    const asked: string[] = []
    const node = '/api/cluster/nodes/:node/proxy/api'
    const worker = fakeWorker()
    server.app.get('/api/cluster', () => CLUSTER)
    server.app.get(`${node}/system`, () => SYSTEM)
    server.app.get(`${node}/workers`, () => [worker])
    server.app.get(`${node}/workers/:id/logs`, () => ({ lines: ['the last words'] }))
    server.app.post<{ Params: { node: string; id: string } }>(`${node}/workers/:id/restart`, ({ params }) => {
      asked.push(`${params.node} ${params.id}`)
      return worker
    })
    const { page, faults, url } = await open(server)
    await page.goto(`${url}/#/machines`)
    await page.getByText('1,200 requests forwarded, 7 after a session moved').waitFor()
    const card = page.locator('.nodes > li').first()
    await card.getByText('40 sessions').waitFor()
    await card.getByText('8.5 s').waitFor()
    await card.getByText('cuda:1 NVIDIA H200').waitFor()
    await page.getByText('31 sessions have moved').waitFor()
    await page.getByText('two:8000 → one:8000').waitFor()
    await page.locator('.nodes > li').nth(1).getByText('skipped').waitFor()
    await card.getByRole('button', { name: 'Details' }).click()
    await card.getByRole('heading', { name: 'GPU 0' }).waitFor()
    await card.getByRole('button', { name: 'Log' }).click()
    await page.getByRole('dialog').getByText('the last words').waitFor()
    await page.keyboard.press('Escape')
    await card.getByRole('button', { name: 'Restart' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Restart' }).click()
    await expect.poll(() => asked, { timeout: 20_000 }).toEqual(['one:8000 wkr-0123456789'])
    expect(faults).toEqual([])
    await page.context().close()
  })
})
