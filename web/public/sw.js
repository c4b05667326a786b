/**
 * Keeps the dashboard's own files, so that it opens where the server does not answer: the page as it was last, everything else
 * by its name, which has a hash of its content. Calls of the API are never touched.
 */
const CACHE = 'skein-files'

addEventListener('install', (event) => {
  skipWaiting()
  event.waitUntil(keepPage())
})
addEventListener('activate', (event) => event.waitUntil(clients.claim()))
addEventListener('fetch', (event) => {
  const { method, url } = event.request
  const { origin, pathname } = new URL(url)
  if (method !== 'GET' || origin !== location.origin) return
  if (pathname === '/') event.respondWith(page())
  else if (pathname.startsWith('/assets/') || pathname === '/favicon.ico') event.respondWith(file(event.request))
})

/** The newest; without a server the last one. */
async function page() {
  try {
    const response = await keepPage()
    return response
  } catch (error) {
    const kept = await caches.match('/')
    if (kept === undefined) throw error
    return kept
  }
}

/** The page and the files that it names. Those of an older one go. */
async function keepPage() {
  const response = await fetch('/')
  if (!response.ok) return response
  const [before, text] = [await caches.match('/'), await response.clone().text()]
  if ((await before?.text()) === text) return response
  await caches.delete(CACHE)
  const cache = await caches.open(CACHE)
  const files = [...text.matchAll(/(?:src|href)="(\/assets\/[^"]+)"/g)].map(([, path]) => path)
  await cache.addAll([...new Set(files)])
  await cache.put('/', response.clone())
  return response
}

/** A name with a hash has one content for ever; the others are asked for. */
async function file(request) {
  const isFixed = /-[\w-]{8}\.(js|css)$/.test(new URL(request.url).pathname)
  const kept = await caches.match(request)
  if (isFixed && kept !== undefined) return kept
  try {
    const response = await fetch(request)
    if (response.ok) await (await caches.open(CACHE)).put(request, response.clone())
    return response
  } catch (error) {
    if (kept === undefined) throw error
    return kept
  }
}
