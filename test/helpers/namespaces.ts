/**
 * A test network: places in network namespaces, each with a wire (veth) to a router in one more namespace. The router
 * can drop the packets from one place to another, in one direction and silently, like a broken network: connections
 * stay open and hear nothing. This process has a wire, too.
 */
import { execFileSync, spawnSync } from 'node:child_process'

/** Why namespaces cannot be made; null if they can. */
export const NO_NAMESPACES: string | null = (() => {
  if (process.platform !== 'linux') return 'network namespaces are of Linux'
  if (process.getuid?.() !== 0) return 'network namespaces need root'
  const made = spawnSync('ip', ['netns', 'add', `skein-try-${process.pid}`], { encoding: 'utf8' })
  if (made.status !== 0) return `no network namespaces can be made: ${made.error?.message ?? made.stderr.trim()}`
  execFileSync('ip', ['netns', 'del', `skein-try-${process.pid}`])
  return null
})()

if (NO_NAMESPACES !== null) process.stderr.write(`partitions are not tested: ${NO_NAMESPACES}\n`)

export interface Place {
  readonly address: string
  /** The command prefix that runs a command there. */
  readonly within: readonly string[]
}

export interface Network {
  /** The subnet of all addresses. */
  readonly subnet: string
  /** The address of this process. */
  readonly here: Place
  place(): Place
  /** Drops packets from one place to another until `heal`. */
  cut(from: Place, to: Place): void
  cutBoth(one: Place, other: Place): void
  heal(): void
  remove(): void
}

export function makeNetwork(): Network {
  // From the addresses reserved for network tests; another run uses others.
  const prefix = `198.${18 + ((process.pid >> 8) & 1)}.${process.pid & 255}`
  const name = `skein${process.pid}`
  const router = `${name}-router`
  const namespaces: string[] = []
  const rules: string[] = []
  const ip = (line: string) => execFileSync('ip', line.split(' '), { stdio: ['ignore', 'pipe', 'pipe'] })
  const inRouter = (line: string) => ip(`-n ${router} ${line}`)
  const addNamespace = (one: string) => {
    ip(`netns add ${one}`)
    namespaces.push(one)
  }

  let numPlaces = 0
  /** Four addresses each; the middle two are the router's and the place's. */
  const wire = () => {
    const at = 4 * numPlaces++
    return { outer: `${prefix}.${at + 1}`, inner: `${prefix}.${at + 2}`, link: `w${at}` }
  }

  addNamespace(router)
  inRouter('link set lo up')
  execFileSync('ip', ['netns', 'exec', router, 'sh', '-c', 'echo 1 > /proc/sys/net/ipv4/ip_forward'])

  const { outer, inner, link } = wire()
  ip(`link add ${name} type veth peer name ${link} netns ${router}`)
  inRouter(`addr add ${outer}/30 dev ${link}`)
  inRouter(`link set ${link} up`)
  ip(`addr add ${inner}/30 dev ${name}`)
  ip(`link set ${name} up`)
  ip(`route add ${prefix}.0/24 via ${outer}`)

  return {
    subnet: `${prefix}.0/24`,
    here: { address: inner, within: [] },
    place() {
      const { outer, inner, link } = wire()
      const own = `${name}-${link}`
      addNamespace(own)
      inRouter(`link add ${link} type veth peer name eth0 netns ${own}`)
      inRouter(`addr add ${outer}/30 dev ${link}`)
      inRouter(`link set ${link} up`)
      for (const line of ['link set lo up', `addr add ${inner}/30 dev eth0`, 'link set eth0 up'])
        ip(`-n ${own} ${line}`)
      ip(`-n ${own} route add default via ${outer}`)
      return { address: inner, within: ['ip', 'netns', 'exec', own] }
    },
    cut(from, to) {
      const rule = `from ${from.address} to ${to.address} blackhole`
      inRouter(`rule add ${rule}`)
      rules.push(rule)
    },
    cutBoth(one, other) {
      this.cut(one, other)
      this.cut(other, one)
    },
    heal() {
      for (const rule of rules.splice(0)) inRouter(`rule del ${rule}`)
    },
    remove() {
      for (const one of namespaces.reverse()) ip(`netns del ${one}`)
      // Its wire is gone with the router's end once the last process there has ended.
      spawnSync('ip', ['link', 'del', name])
    },
  }
}
