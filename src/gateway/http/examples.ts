/**
 * A request and its reply for each route, for the OpenAPI page. They come from a server with the demo model; `npx
 * vitest run test/e2e/reference -u` regenerates them.
 */
import { readFileSync } from 'node:fs'

export interface ApiExample {
  /** "POST /v1/sessions/{id}/fork" */
  readonly route: string
  readonly title: string
  /** Path and query of the request. */
  readonly url: string
  /** JSON; absent if there was no body, or a file. */
  readonly request?: object
  readonly sendsFile?: true
  /** The text of the form's file. */
  readonly form?: string
  readonly status: number
  /** JSON, the text of a stream, or a description of a file. */
  readonly reply: unknown
}

function readExamples(): readonly ApiExample[] {
  // The build copies it beside the compiled module. The test that writes it ensures its type.
  return JSON.parse(readFileSync(new URL('./examples.json', import.meta.url), 'utf8')) as ApiExample[]
}

interface Content {
  examples?: object
}

interface Documented {
  readonly requestBody?: { readonly content: Readonly<Record<string, Content>> }
  readonly responses: Readonly<Record<number, { readonly content: Readonly<Record<string, Content>> }>>
}

/** Adds the examples to the routes of an OpenAPI page, by path and method. */
export function addExamples(paths: Readonly<Record<string, Readonly<Record<string, Documented>>>>): void {
  const byRoute = new Map<string, ApiExample[]>()
  for (const example of readExamples()) {
    byRoute.set(example.route, [...(byRoute.get(example.route) ?? []), example])
  }
  for (const [route, examples] of byRoute) {
    const [method, path] = route.split(' ') as [string, string]
    const { requestBody, responses } = paths[path]?.[method.toLowerCase()] ?? {}
    put(requestBody?.content[JSON_TYPE], examples, ({ request }) => request)
    const replies = examples.filter(({ status }) => status < 300)
    for (const [type, content] of Object.entries(responses?.[200]?.content ?? {})) {
      const isText = type !== JSON_TYPE
      put(content, replies, ({ reply }) => ((typeof reply === 'string') === isText ? reply : undefined))
    }
  }
}

const JSON_TYPE = 'application/json'

/** OpenAPI's form of several examples, by title. */
function put(
  content: Content | undefined,
  examples: readonly ApiExample[],
  pick: (example: ApiExample) => unknown,
): void {
  const entries = examples
    .map((example) => [example.title, { value: pick(example) }] as const)
    .filter(([, { value }]) => value !== undefined)
  if (content !== undefined && entries.length > 0) content.examples = Object.fromEntries(entries)
}
