/**
 * Generates docs/reference.md from openapi.json and the examples: a chapter for each system whose API it is, a request
 * and its reply for each route, and a list of all routes.
 */
import stringify from 'json-stringify-pretty-compact'
import type { ApiExample } from '../../../src/gateway/http/openapi.ts'

const HEAD = `# API reference by example

Each request was sent to a server with the demo model (\`skein serve demo\`), and each reply is what it answered; a test sends them all again on every change. Ids, times and
keys are replaced. [api.md](api.md), [dialects.md](dialects.md) and [management.md](management.md) say what each field means, and \`/docs\` on a running server lets you try every route. On a server with keys add
\`-H "authorization: Bearer $SKEIN_API_KEY"\`.
`

/** From openapi.json. */
export interface Routes {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
}

interface Operation {
  readonly summary: string
  readonly tags: readonly string[]
  readonly security?: readonly { readonly key: readonly string[] }[]
}

export function pageOf(
  chapters: readonly (readonly [string, readonly ApiExample[]])[],
  without: Readonly<Record<string, string>>,
  routes: Routes,
): string {
  const parts = chapters.map(([chapter, examples]) => `## ${chapter}\n\n${examples.map(section).join('\n')}`)
  const rest = Object.entries(without).map(([route, why]) => `| \`${route}\` | ${why} |`)
  const end = `## Without an example\n\n| route | |\n|---|---|\n${rest.join('\n')}\n`
  return [HEAD, ...parts, end, tableOf(routes)].join('\n')
}

function tableOf({ paths }: Routes): string {
  const rows = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { summary, tags, security }]) => {
      const role = security?.[0]?.key[0] ?? 'user'
      return `| \`${method.toUpperCase()} ${path}\` | ${role} | ${tags.join(', ')} | ${summary} |`
    }),
  )
  return `## All routes

The role is the least that a key must have; [security.md](security.md) says what each may do.

| route | role | API | what it does |
|---|---|---|---|
${rows.join('\n')}
`
}

function section({ route, title, url, request, sendsFile, form, status, reply }: ApiExample): string {
  const method = route.split(' ')[0]!
  const verb = method === 'GET' || request || sendsFile || form ? '' : `-X ${method} `
  const at = url.includes('?') ? `'http://127.0.0.1:8000${url}'` : `http://127.0.0.1:8000${url}`
  const body = request
    ? ` -H 'content-type: application/json' -d '${json(request)}'`
    : sendsFile
      ? ` -H 'content-type: application/octet-stream' --data-binary @state`
      : form
        ? ' -F purpose=batch -F file=@requests.jsonl'
        : reply === 'a file'
          ? ' -o state'
          : ''
  const isText = typeof reply === 'string'
  const answer = isText ? reply.trimEnd() : json(reply)
  const sent = form ? `with requests.jsonl:\n\n\`\`\`json\n${form.trimEnd()}\n\`\`\`\n\n` : ''
  const other = status === 200 ? '' : `Status ${status}:\n\n`
  return `### ${title}: \`${route}\`

\`\`\`sh
curl ${verb}${at}${body}
\`\`\`

${sent}${other}\`\`\`${isText ? 'text' : 'json'}
${answer}
\`\`\`
`
}

function json(value: unknown): string {
  return stringify(value, { maxLength: 100 })
}
