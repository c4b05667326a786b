/**
 * The environment that workers are started in. glibc can ask the kernel for pages of 2 MB for large allocations; a state
 * of tens of megabytes is then copied in a fifth of the time, most of which went into faults of small pages. Other C
 * libraries, and kernels without such pages, ignore it.
 */
const TUNABLE = 'glibc.malloc.hugetlb'

export function withLargePages(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const { GLIBC_TUNABLES: given = '' } = env
  if (given.includes(TUNABLE)) return env
  return { ...env, GLIBC_TUNABLES: [given, `${TUNABLE}=1`].filter(Boolean).join(':') }
}
