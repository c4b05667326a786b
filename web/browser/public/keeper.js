/**
 * The service worker of the page: its files from the network where there is one, else as they were kept. The model is not its
 * business: src/browser/stored-file.ts keeps that.
 */
const CACHE = 'skein-page'

addEventListener('install', () => skipWaiting())
addEventListener('activate', (event) => event.waitUntil(clients.claim()))
addEventListener('fetch', (event) => {
  const { request } = event
  const { origin, pathname } = new URL(request.url)
  const isPage = pathname.startsWith('/browser/') || pathname.startsWith('/assets/')
  const isModel = /\.(pth|txt)$/.test(pathname)
  if (request.method !== 'GET' || origin !== location.origin || !isPage || isModel) return
  event.respondWith(fetchOrKept(request))
})

async function fetchOrKept(request) {
  const cache = await caches.open(CACHE)
  try {
    const reply = await fetch(request)
    if (reply.ok) await cache.put(request, reply.clone())
    return reply
  } catch (error) {
    const kept = await cache.match(request)
    if (kept) return kept
    throw error
  }
}
