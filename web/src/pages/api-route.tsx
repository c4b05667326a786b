/** One route of the server: its description, and a form that sends the example or another request. */
import { useRef, useState } from 'preact/hooks'
import { key, request } from '../lib/api.ts'
import { messageOf } from '../lib/errors.ts'
import { t } from '../lib/i18n.ts'
import { Button, CopyButton, ErrorNote, Field } from '../parts/basics.tsx'

type Examples = Readonly<Record<string, { readonly value: unknown }>>
type Content = Readonly<Record<string, { readonly examples?: Examples }>>

/** The parts of openapi.json that are shown. */
export interface Operation {
  readonly summary: string
  readonly tags: readonly string[]
  readonly parameters?: readonly { readonly name: string }[]
  readonly requestBody?: { readonly content: Content }
  readonly responses: Readonly<Record<string, { readonly content?: Content }>>
}

interface ApiRouteProps {
  readonly path: string
  readonly method: string
  readonly operation: Operation
}

const JSON_TYPE = 'application/json'

export function ApiRoute(props: ApiRouteProps) {
  const { path, method, operation } = props
  const [isOpen, setOpen] = useState(false)
  return (
    <details open={isOpen} onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary>
        <code class="method">{method.toUpperCase()}</code>
        <code class="path">{path}</code>
        <span>{operation.summary}</span>
      </summary>
      {isOpen && <TryIt {...props} />}
    </details>
  )
}

function TryIt({ path, method, operation }: ApiRouteProps) {
  const { parameters = [], requestBody, responses } = operation
  const requests = Object.entries(requestBody?.content[JSON_TYPE]?.examples ?? {})
  const replies = Object.values(responses[200]?.content ?? {}).flatMap((content) =>
    Object.entries(content.examples ?? {}),
  )
  const [example, setExample] = useState(requests[0]?.[0] ?? replies[0]?.[0] ?? '')
  const [body, setBody] = useState(pretty(requests[0]?.[1].value))
  const [values, setValues] = useState<Readonly<Record<string, string>>>({})
  const sending = useSending()
  const shown = replies.find(([title]) => title === example)?.[1].value
  const url = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(values[name] ?? ''))
  const takesJson = requestBody?.content[JSON_TYPE] !== undefined
  const isFile = requestBody !== undefined && !takesJson
  const isComplete = parameters.every(({ name }) => (values[name] ?? '') !== '')
  const choose = (title: string) => {
    setExample(title)
    setBody(pretty(requests.find(([one]) => one === title)?.[1].value))
  }
  return (
    <form
      class="try"
      onSubmit={(event) => {
        event.preventDefault()
        void sending.send(method, url, takesJson && body.trim() !== '' ? body : null)
      }}
    >
      {parameters.map(({ name }) => (
        <Field key={name} label={name}>
          {(ids) => (
            <input
              {...ids}
              value={values[name] ?? ''}
              onInput={({ currentTarget }) => setValues({ ...values, [name]: currentTarget.value })}
            />
          )}
        </Field>
      ))}
      {requests.length > 1 && (
        <Field label={t('Example')}>
          {(ids) => (
            <select {...ids} value={example} onChange={({ currentTarget }) => choose(currentTarget.value)}>
              {requests.map(([title]) => (
                <option key={title}>{title}</option>
              ))}
            </select>
          )}
        </Field>
      )}
      {takesJson && (
        <Field label={t('Request')}>
          {(ids) => (
            <textarea
              {...ids}
              rows={Math.min(16, Math.max(3, body.split('\n').length))}
              spellcheck={false}
              value={body}
              onInput={({ currentTarget }) => setBody(currentTarget.value)}
            />
          )}
        </Field>
      )}
      <div class="row">
        {!isFile && (
          <Button type="submit" kind="primary" isDisabled={sending.isRunning || !isComplete}>
            {t('Send')}
          </Button>
        )}
        {sending.isRunning && <Button onClick={sending.stop}>{t('Stop')}</Button>}
        <CopyButton text={() => curlOf(method, url, takesJson ? body : '', isFile)} label="curl" />
      </div>
      {sending.error !== null && <ErrorNote text={sending.error} />}
      <Reply
        text={sending.reply ?? pretty(shown)}
        title={sending.reply === null ? t('Reply of the example') : t('Reply')}
      />
    </form>
  )
}

function Reply({ text, title }: { readonly text: string; readonly title: string }) {
  if (text === '') return null
  return (
    <figure>
      <figcaption>{title}</figcaption>
      {/* A region that scrolls must be reachable by keyboard. */}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: see above */}
      <pre tabIndex={0}>{text}</pre>
    </figure>
  )
}

const METHODS = { get: 'GET', post: 'POST', delete: 'DELETE' } as const

/** A call whose reply may be a stream; its text is shown as it arrives. */
function useSending() {
  const [reply, setReply] = useState<string | null>(null)
  const [error, setError] = useState<string | null>(null)
  const [isRunning, setRunning] = useState(false)
  const abort = useRef(new AbortController())
  const send = async (method: string, url: string, body: string | null) => {
    abort.current = new AbortController()
    setRunning(true)
    setError(null)
    setReply(null)
    try {
      const response = await request(url, {
        method: METHODS[method as keyof typeof METHODS],
        // The form expects a JSON object; the parser reports anything else.
        body: body === null ? undefined : (JSON.parse(body) as object),
        signal: abort.current.signal,
      })
      await show(response, setReply)
    } catch (thrown) {
      if (!abort.current.signal.aborted) setError(messageOf(thrown))
    } finally {
      setRunning(false)
    }
  }
  return { reply, error, isRunning, send, stop: () => abort.current.abort() }
}

async function show(response: Response, onText: (text: string) => void): Promise<void> {
  const type = response.headers.get('content-type') ?? ''
  if (type.startsWith(JSON_TYPE)) return onText(pretty(await response.json()))
  if (type.startsWith('application/octet-stream')) {
    return onText(t('a file of {n} bytes', { n: (await response.blob()).size }))
  }
  let text = ''
  const decoder = new TextDecoder()
  const reader = response.body?.getReader()
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    text += decoder.decode(part.value, { stream: true })
    onText(text)
  }
}

function pretty(value: unknown): string {
  if (value === undefined) return ''
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2)
}

function curlOf(method: string, url: string, body: string, isFile: boolean): string {
  const auth = key.value === '' ? '' : ' -H "authorization: Bearer $SKEIN_API_KEY"'
  const quoted = body.replaceAll("'", "'\\''")
  const data = isFile
    ? " -H 'content-type: application/octet-stream' --data-binary @FILE"
    : body.trim() === ''
      ? ''
      : ` -H 'content-type: application/json' -d '${quoted}'`
  return `curl -X ${method.toUpperCase()} '${location.origin}${url}'${auth}${data}`
}
