/** The manifests as kubectl renders them, and what must hold of every pod in them. */
import { execFileSync, spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'

const FOLDER = join(import.meta.dirname, '../../deploy/kubernetes')
const OVERLAYS = ['base', 'overlays/cpu-demo', 'overlays/gpu', 'overlays/autoscaling']
const HAS_KUBECTL = spawnSync('kubectl', ['version', '--client']).status === 0

/** One YAML document each, as text: no parser of YAML is needed to look for lines. */
function render(overlay: string): string[] {
  const options = { encoding: 'utf8', env: { ...process.env, KUBECONFIG: '/dev/null' } } as const
  return execFileSync('kubectl', ['kustomize', join(FOLDER, overlay)], options).split('\n---\n')
}

const kindOf = (document: string) => /^kind: (\w+)$/m.exec(document)?.[1]
const nameOf = (document: string) =>
  /^metadata:(?:\n {2}.*)*?\n {2}name: (\S+)$/m.exec(document)?.[1]

describe.skipIf(!HAS_KUBECTL)('deploy/kubernetes', () => {
  test.each(OVERLAYS)('%s renders, and no pod has more rights than it needs', (overlay) => {
    const pods = render(overlay).filter((document) => document.includes('\n      containers:\n'))
    expect(pods.length).toBeGreaterThan(1)
    for (const pod of pods) {
      for (const line of [
        'runAsNonRoot: true',
        'readOnlyRootFilesystem: true',
        'allowPrivilegeEscalation: false',
        'automountServiceAccountToken: false',
        '- ALL',
      ])
        expect(pod, nameOf(pod)).toContain(line)
    }
  })

  test('nodes and gateways survive drains, and nodes hear members alone', () => {
    const all = render('base')
    const named = (kind: string) => all.filter((document) => kindOf(document) === kind).map(nameOf)
    for (const kind of ['Deployment', 'PodDisruptionBudget', 'NetworkPolicy'])
      expect(named(kind).sort()).toEqual(['skein-gateway', 'skein-node'])
  })

  test('the queue decides how many nodes there are, by a metric that nodes have', () => {
    const scaled = render('overlays/autoscaling').find((one) => kindOf(one) === 'ScaledObject')
    expect(scaled).toContain('skein_num_requests_waiting')
    expect(scaled).toMatch(/scaleTargetRef:\n {4}name: skein-node/)
  })

  test('the GPU overlay asks for one, and runs the image that can use it', () => {
    const node = render('overlays/gpu').find(
      (one) => kindOf(one) === 'Deployment' && nameOf(one) === 'skein-node',
    )
    expect(node).toMatch(/nvidia\.com\/gpu: 1/)
    expect(node).toContain('image: skein-cuda:latest')
    expect(node).toContain('- /models/MODEL.pth')
  })
})
