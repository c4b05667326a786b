/**
 * Blobs as objects of a bucket, of any server that speaks S3. Nothing is asked of it but to put, get, list and delete whole
 * objects: conditions on them are not to be had everywhere. The only file that knows the client.
 */
import { AwsClient } from 'aws4fetch'
import { SkeinError } from '../../errors.ts'
import { joinBytes } from '../../files/bytes.ts'
import type { BlobInfo, Blobs } from './blobs.ts'

/** For an object of some tens of megabytes. */
const TIMEOUT_MS = 30_000
/** Tries after the first when the server is busy. After that the writer of states tries again. */
const RETRIES = 2
const REGION = 'us-east-1'

export class S3Blobs implements Blobs {
  readonly #client: AwsClient
  /** URL of the bucket, without a slash at the end. */
  readonly #bucket: string
  /** Empty, or ends with a slash. */
  readonly #prefix: string

  private constructor(client: AwsClient, bucket: string, prefix: string) {
    this.#client = client
    this.#bucket = bucket
    this.#prefix = prefix
  }

  /** Server and keys are those of the usual variables. Throws invalid_request without keys. */
  static at(bucket: string, path: string, environment: NodeJS.ProcessEnv): S3Blobs {
    const { AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN } = environment
    if (!AWS_ACCESS_KEY_ID || !AWS_SECRET_ACCESS_KEY) {
      throw new SkeinError(
        'invalid_request',
        `s3://${bucket} needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_REGION, AWS_ENDPOINT_URL where it is not Amazon's)`,
      )
    }
    const region = environment.AWS_REGION ?? environment.AWS_DEFAULT_REGION ?? REGION
    const server = environment.AWS_ENDPOINT_URL_S3 ?? environment.AWS_ENDPOINT_URL
    const client = new AwsClient({
      accessKeyId: AWS_ACCESS_KEY_ID,
      secretAccessKey: AWS_SECRET_ACCESS_KEY,
      ...(AWS_SESSION_TOKEN ? { sessionToken: AWS_SESSION_TOKEN } : {}),
      service: 's3',
      region,
      retries: RETRIES,
    })
    const url = server ? `${server.replace(/\/$/, '')}/${bucket}` : `https://${bucket}.s3.${region}.amazonaws.com`
    const prefix = path.replace(/^\/|\/$/g, '')
    return new S3Blobs(client, url, prefix === '' ? '' : `${prefix}/`)
  }

  async put(name: string, parts: readonly Uint8Array[]): Promise<void> {
    await this.#ask(this.#url(name), { method: 'PUT', body: joinBytes(parts) })
  }

  async get(name: string): Promise<Uint8Array> {
    const answer = await this.#ask(this.#url(name), { method: 'GET' })
    return new Uint8Array(await answer.arrayBuffer())
  }

  async remove(name: string): Promise<void> {
    await this.#ask(this.#url(name), { method: 'DELETE' }, [404])
  }

  async *list(): AsyncIterable<BlobInfo> {
    let token: string | null = null
    do {
      const query: URLSearchParams = new URLSearchParams({
        'list-type': '2',
        prefix: this.#prefix,
        ...(token === null ? {} : { 'continuation-token': token }),
      })
      const page = await (await this.#ask(`${this.#bucket}?${query}`, { method: 'GET' })).text()
      for (const entry of page.split('<Contents>').slice(1)) {
        const key = textOf(entry, 'Key') ?? ''
        const changedAt = Date.parse(textOf(entry, 'LastModified') ?? '')
        const name = key.slice(this.#prefix.length)
        if (key.startsWith(this.#prefix) && /^[\w-]+$/.test(name) && changedAt > 0) yield { name, changedAt }
      }
      token = textOf(page, 'NextContinuationToken')
    } while (token !== null)
  }

  async #ask(
    url: string,
    request: { method: string; body?: Uint8Array<ArrayBuffer> },
    fine: readonly number[] = [],
  ): Promise<Response> {
    const signal = AbortSignal.timeout(TIMEOUT_MS)
    const answer = await this.#client.fetch(url, { ...request, signal })
    if (answer.ok || fine.includes(answer.status)) return answer
    const reason = textOf(await answer.text(), 'Code') ?? answer.statusText
    if (answer.status === 413 || reason === 'EntityTooLarge')
      throw new SkeinError('state_refused', `the storage of states takes none of that size (${reason})`)
    throw new Error(`the storage of states answered ${answer.status} (${reason})`)
  }

  #url(name: string): string {
    return `${this.#bucket}/${this.#prefix}${name}`
  }
}

/** Text of the first such element. Names and times need no more XML than that. */
function textOf(xml: string, element: string): string | null {
  const [, after] = xml.split(`<${element}>`, 2)
  const text = after?.split('<', 1)[0]
  return text === undefined ? null : text.replaceAll('&quot;', '"').replaceAll('&amp;', '&')
}
