/**
 * The manifests as kubectl renders them: valid by the schemas of Kubernetes and KEDA, and with the rules for every pod.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'

const FOLDER = join(import.meta.dirname, '../../deploy/kubernetes')
const OVERLAYS = ['base', 'overlays/cpu-demo', 'overlays/gpu', 'overlays/autoscaling']
/**
 * Imported by name, because the types of this package and of `kubernetes-models` are larger than all of ours. Null
 * before `npm ci`.
 */
const yaml = 'yaml'
const parse = ((await import(yaml).catch(() => null)) as { parse(text: string): unknown } | null)?.parse
const HAS_KUBECTL = spawnSync('kubectl', ['version', '--client']).status === 0

/** One YAML document each, as text: finding lines needs no YAML parser. */
function render(overlay: string): string[] {
  const options = { encoding: 'utf8', env: { ...process.env, KUBECONFIG: '/dev/null' } } as const
  return execFileSync('kubectl', ['kustomize', join(FOLDER, overlay)], options).split('\n---\n')
}

interface Manifest {
  readonly apiVersion: string
  readonly kind: string
}

/** A class of `kubernetes-models`. */
interface Model {
  readonly prototype: { validate(this: object): void }
}

async function modelOf({ apiVersion, kind }: Manifest): Promise<Model> {
  const folder = apiVersion.startsWith('keda.sh/') ? '@kubernetes-models/keda' : 'kubernetes-models'
  const path = `${folder}/${apiVersion}/${kind}`
  return ((await import(path)) as Record<string, Model>)[kind]!
}

/** Throws for a wrong value; returns the paths of unknown fields, which its validator did not visit. */
async function unknownFieldsOf(manifest: Manifest): Promise<string[]> {
  const unseen = new Set<string>()
  const watched = (value: unknown, path: string): unknown => {
    if (typeof value !== 'object' || value === null) return value
    const all = Object.entries(value).map(([name, part]) => {
      if (!Array.isArray(value)) unseen.add(`${path}.${name}`)
      return [name, watched(part, `${path}.${name}`)] as const
    })
    if (Array.isArray(value)) return all.map(([, part]) => part)
    return new Proxy(Object.fromEntries(all), {
      get(target, name) {
        unseen.delete(`${path}.${String(name)}`)
        return Reflect.get(target, name)
      },
    })
  }
  const { prototype } = await modelOf(manifest)
  // Its constructor would make a copy and visit all fields.
  prototype.validate.call(watched(manifest, '') as object)
  return [...unseen]
}

const kindOf = (document: string) => /^kind: (\w+)$/m.exec(document)?.[1]
const nameOf = (document: string) => /^metadata:(?:\n {2}.*)*?\n {2}name: (\S+)$/m.exec(document)?.[1]

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

  test.skipIf(!parse).each(OVERLAYS)('%s is valid by the schemas of Kubernetes and KEDA', async (overlay) => {
    for (const document of render(overlay)) {
      const manifest = parse!(document) as Manifest
      expect([manifest.kind, await unknownFieldsOf(manifest)]).toEqual([manifest.kind, []])
    }
  })

  test.skipIf(!parse)('a wrong value and an unknown field are found', async () => {
    const document = render('base').find((one) => kindOf(one) === 'Deployment')!
    const changed = (from: string, to: string) => {
      expect(document).toContain(from)
      return unknownFieldsOf(parse!(document.replace(from, to)) as Manifest)
    }
    await expect(changed('replicas: 2', 'replicas: two')).rejects.toThrow('replicas')
    expect(await changed('replicas: 2', 'replicaz: 2')).toEqual(['.spec.replicaz'])
    expect(await changed('runAsNonRoot:', 'runAsNonRoott:')).toEqual([
      '.spec.template.spec.securityContext.runAsNonRoott',
    ])
  })

  test('nodes and gateways survive drains, and nodes accept members only', () => {
    const all = render('base')
    const named = (kind: string) => all.filter((document) => kindOf(document) === kind).map(nameOf)
    for (const kind of ['Deployment', 'PodDisruptionBudget', 'NetworkPolicy'])
      expect(named(kind).sort()).toEqual(['skein-gateway', 'skein-node'])
  })

  test('the queue decides the number of nodes, by a metric that nodes have', () => {
    const scaled = render('overlays/autoscaling').find((one) => kindOf(one) === 'ScaledObject')
    expect(scaled).toContain('skein_num_requests_waiting')
    expect(scaled).toMatch(/scaleTargetRef:\n {4}name: skein-node/)
  })

  test('the GPU overlay asks for one, and runs the image that can use it', () => {
    const node = render('overlays/gpu').find((one) => kindOf(one) === 'Deployment' && nameOf(one) === 'skein-node')
    expect(node).toMatch(/nvidia\.com\/gpu: 1/)
    expect(node).toContain('image: skein-cuda:latest')
    expect(node).toContain('- /models/MODEL.pth')
  })
})
