/** The page's files are kept by the browser, where it lets pages of this address do that: https, or this machine. */

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
  // The one address of code that the page's policy lets through.
  const rules = { createScriptURL: () => WORKER }
  const url = trustedTypes?.createPolicy('skein-worker', rules).createScriptURL(WORKER) ?? WORKER
  // A browser that refuses shows the page all the same.
  navigator.serviceWorker.register(url).catch(() => {})
}
