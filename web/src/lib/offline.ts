/** Lets the browser cache the page's files, where it allows that: https, or this machine. */

interface TrustedTypes {
  createPolicy(
    name: string,
    rules: { readonly createScriptURL: (url: string) => string },
  ): { createScriptURL(url: string): string }
}

const WORKER = '/sw.js'

export function keepForOffline(): void {
  if (!('serviceWorker' in navigator)) return
  // Not every browser has it, and not every library of types.
  const { trustedTypes } = globalThis as { readonly trustedTypes?: TrustedTypes }
  // The only script address that the page's policy (CSP) allows.
  const rules = { createScriptURL: () => WORKER }
  const url = trustedTypes?.createPolicy('skein-worker', rules).createScriptURL(WORKER) ?? WORKER
  // A browser that refuses still shows the page.
  navigator.serviceWorker.register(url).catch(() => {})
}
