/** Docs: the pages of docs/ that came with the server, in Chinese where there is a translation. Links between them stay here. */
import { useEffect, useRef } from 'preact/hooks'
import { anchorOf, withWholeLinks } from '../lib/anchors.ts'
import { request } from '../lib/api.ts'
import { language, t } from '../lib/i18n.ts'
import { hashOf, route } from '../lib/router.ts'
import { ErrorNote, Loading } from '../parts/basics.tsx'
import { useResource } from '../parts/resource.ts'
import { loadMarkdown, RichText } from '../parts/rich-text.tsx'

const NAMES = [
  ...['getting-started', 'models', 'sessions', 'clients', 'migration', 'faq', 'troubleshooting'],
  ...['dashboard', 'cli', 'api', 'dialects', 'management', 'reference', 'library', 'browser', 'immersive-translate'],
  ...['configuration', 'deploy', 'operations', 'security', 'states', 'cluster', 'devices', 'speculation'],
  ...['benchmark', 'performance', 'numerics'],
]
const IN_CHINESE = ['getting-started', 'faq', 'troubleshooting', 'immersive-translate']

export function DocsPage() {
  const { argument, rest, anchor } = route.value
  const [chapter, ...parts] = argument === null ? [NAMES[0]!] : [argument, ...rest]
  const name = [chapter, ...parts].map(encodeURIComponent).join('/')
  const isChinese = language.value === 'zh' && IN_CHINESE.includes(name)
  const place = useRef<HTMLDivElement>(null)
  const page = useResource(
    async (signal) => {
      const path = `/docs/${isChinese ? 'zh/' : ''}${name}.md`
      const [reply] = await Promise.all([request(path, { signal }), loadMarkdown()])
      return prepared(await reply.text(), path)
    },
    [name, isChinese],
  )
  const showAnchor = () => {
    const headings = [...(place.current?.querySelectorAll('[class^=level-]') ?? [])]
    headings.find(({ textContent }) => anchorOf(textContent ?? '') === anchor)?.scrollIntoView()
  }
  useEffect(() => scrollTo(0, 0), [name])
  useEffect(showAnchor, [page.value, anchor])
  useEffect(() => {
    const stay = (event: Event) => {
      const link = event.target instanceof Element ? event.target.closest('a') : null
      if (!link?.href.startsWith(`${location.origin}/${hashOf('docs')}/`)) return
      event.preventDefault()
      // The same address causes no event, but the reader may have scrolled away.
      if (location.hash === link.hash) showAnchor()
      else location.hash = link.hash
    }
    const { current } = place
    current?.addEventListener('click', stay)
    return () => current?.removeEventListener('click', stay)
  }, [anchor])
  return (
    <>
      <div class="page-head">
        <h1>{t('Docs')}</h1>
      </div>
      <div class="doc-pages">
        <nav aria-label={t('Docs')}>
          {NAMES.map((one) => (
            <a key={one} href={hashOf('docs', one)} aria-current={one === chapter ? 'page' : undefined}>
              {titleOf(one)}
            </a>
          ))}
        </nav>
        <div ref={place} class="prose" lang={isChinese ? 'zh-CN' : 'en'}>
          {page.error !== null && <ErrorNote text={page.error} onRetry={page.refresh} />}
          {page.error === null && page.value === null && <Loading />}
          {page.value !== null && <RichText key={name} text={page.value} isWrapped />}
        </div>
      </div>
    </>
  )
}

const CAPITALS: Readonly<Record<string, string>> = { api: 'API', cli: 'CLI', dialects: 'Other APIs', faq: 'FAQ' }

function titleOf(name: string): string {
  return CAPITALS[name] ?? `${name[0]!.toUpperCase()}${name.slice(1).replaceAll('-', ' ')}`
}

/** Leaves out pictures (they show this dashboard) and makes links whole: Markdown shows a relative link as plain text. */
function prepared(text: string, path: string): string {
  return withWholeLinks(text.replace(/<img [^>]*>|!\[[^\]]*\]\([^)]*\)/g, ''), (to) => {
    const { pathname, hash } = new URL(to, `${location.origin}${path}`)
    const [, name] = /^\/docs\/(?:zh\/)?((?:clients\/)?[\w-]+)\.md$/.exec(pathname) ?? []
    return name === undefined ? null : `${location.origin}/${hashOf('docs', ...name.split('/'))}${hash}`
  })
}
