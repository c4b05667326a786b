/** The same request in three languages, for a server and a model. */

export interface SnippetOptions {
  readonly origin: string
  readonly model: string
  /** The snippet reads the key from the environment. */
  readonly needsKey: boolean
}

export const SNIPPETS = ['curl', 'Python', 'JavaScript'] as const
export type SnippetName = (typeof SNIPPETS)[number]

export function snippet(name: SnippetName, options: SnippetOptions): string {
  switch (name) {
    case 'curl':
      return curl(options)
    case 'Python':
      return python(options)
    case 'JavaScript':
      return javaScript(options)
  }
}

function curl({ origin, model, needsKey }: SnippetOptions): string {
  const body = { model, messages: [{ role: 'user', content: 'What is the capital of France?' }], stream: true }
  const lines = [
    `curl -N ${shellQuoted(`${origin}/v1/chat/completions`)}`,
    "-H 'content-type: application/json'",
    ...(needsKey ? ['-H "authorization: Bearer $SKEIN_API_KEY"'] : []),
    `-d ${shellQuoted(JSON.stringify(body))}`,
  ]
  return lines.join(' \\\n  ')
}

/** For each single quote: end the string, add an escaped quote, start the string again. */
function shellQuoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`
}

function python({ origin, model, needsKey }: SnippetOptions): string {
  return `${needsKey ? 'import os\n\n' : ''}from openai import OpenAI

client = OpenAI(base_url=${quoted(`${origin}/v1`)}, api_key=${needsKey ? 'os.environ["SKEIN_API_KEY"]' : '"unused"'})
stream = client.chat.completions.create(
    model=${quoted(model)},
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
`
}

function javaScript({ origin, model, needsKey }: SnippetOptions): string {
  return `import OpenAI from "openai";

const client = new OpenAI({
  baseURL: ${quoted(`${origin}/v1`)},
  apiKey: ${needsKey ? 'process.env.SKEIN_API_KEY' : '"unused"'},
});
const stream = await client.chat.completions.create({
  model: ${quoted(model)},
  messages: [{ role: "user", content: "What is the capital of France?" }],
  stream: true,
});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
`
}

/** JSON strings are valid strings of both languages. */
function quoted(text: string): string {
  return JSON.stringify(text)
}
