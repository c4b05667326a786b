/** Docs: the pages of docs/ that came with the server, in the language of the page where there is one; links between them stay here. */
import { useEffect, useRef } from 'preact/hooks'
import { request } from '../lib/api.ts'
import { language, t } from '../lib/i18n.ts'
import { goTo, hashOf, route } from '../lib/router.ts'
import { ErrorNote, Loading } from '../parts/basics.tsx'
import { useResource } from '../parts/resource.ts'
import { RichText } from '../parts/rich-text.tsx'

const NAMES = [
  ...['getting-started', 'models', 'sessions', 'clients', 'migration', 'faq', 'troubleshooting'],
  ...['dashboard', 'cli', 'api', 'dialects', 'management', 'reference', 'library', 'browser', 'immersive-translate'],
  ...['configuration', 'deploy', 'operations', 'security', 'states', 'cluster', 'devices', 'speculation'],
  ...['benchmark', 'performance', 'numerics'],
]
const IN_CHINESE = ['getting-started', 'faq', 'troubleshooting', 'immersive-translate']

export function DocsPage() {
  const { argument, rest } = route.value
  const [chapter, ...parts] = argument === null ? [NAMES[0]!] : [argument, ...rest]
  const name = [chapter, ...parts].map(encodeURIComponent).join('/')
  const isChinese = language.value === 'zh' && IN_CHINESE.includes(name)
  const place = useRef<HTMLDivElement>(null)
  const page = useResource(
    async (signal) => {
      const path = `/docs/${isChinese ? 'zh/' : ''}${name}.md`
      return prepared(await (await request(path, { signal })).text(), path)
    },
    [name, isChinese],
  )
  useEffect(() => scrollTo(0, 0), [name])
  useEffect(() => {
    const stay = (event: Event) => {
      const link = event.target instanceof Element ? event.target.closest('a') : null
      const own = link?.href.split(`${location.origin}/${hashOf('docs')}/`)[1]
      if (own === undefined) return
      event.preventDefault()
      goTo('docs', ...own.split('/'))
    }
    place.current?.addEventListener('click', stay)
  }, [])
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

/** Without pictures, which are of this dashboard; with whole addresses, since an answer's links may lead nowhere else. */
function prepared(text: string, path: string): string {
  return text
    .replace(/<img [^>]*>|!\[[^\]]*\]\([^)]*\)/g, '')
    .replace(/\]\(([\w./-]+\.md)(?:#[^)]*)?\)/g, (link, to: string) => {
      const { pathname } = new URL(to, `${location.origin}${path}`)
      const [, name] = /^\/docs\/(?:zh\/)?((?:clients\/)?[\w-]+)\.md$/.exec(pathname) ?? []
      return name === undefined ? link : `](${location.origin}/${hashOf('docs', ...name.split('/'))})`
    })
}
