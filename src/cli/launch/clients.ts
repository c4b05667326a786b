/**
 * How other programs are connected to a server: the file or the lines for each. The shapes follow the programs' own
 * documentation; docs/clients/ says what works with each.
 */

interface Connection {
  /** "http://127.0.0.1:8000" */
  readonly url: string
  readonly model: string
  /** Any text if the server needs no key. */
  readonly key: string
}

export interface ClientSetup {
  readonly about: string
  /** Where the text belongs: from the home folder with ~/, else from the current folder. Absent: lines to paste. */
  readonly file?: string
  /** Next step, printed below the text. */
  readonly next?: string
  text(connection: Connection): string
}

const json = (value: unknown) => `${JSON.stringify(value, null, 2)}\n`
/** Double-quoted as JSON, which YAML, TOML, JavaScript and Python read too. */
const quoted = (text: string) => JSON.stringify(text)
const shellQuoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`
const exports = (variables: Readonly<Record<string, string>>) =>
  Object.entries(variables)
    .map(([name, value]) => `export ${name}=${shellQuoted(value)}\n`)
    .join('')

export const CLIENTS: Readonly<Record<string, ClientSetup>> = {
  env: {
    about: 'environment variables that many programs read',
    text: ({ url, model, key }) => exports({ OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: key, OPENAI_MODEL: model }),
  },
  'openai-js': {
    about: 'the openai package for JavaScript',
    text: ({ url, model, key }) => `import OpenAI from 'openai'

const client = new OpenAI({ baseURL: ${quoted(`${url}/v1`)}, apiKey: ${quoted(key)} })
const answer = await client.chat.completions.create({
  model: ${quoted(model)},
  messages: [{ role: 'user', content: 'Hello.' }],
})
console.log(answer.choices[0].message.content)
`,
  },
  'openai-python': {
    about: 'the openai package for Python',
    text: ({ url, model, key }) => `from openai import OpenAI

client = OpenAI(base_url=${quoted(`${url}/v1`)}, api_key=${quoted(key)})
answer = client.chat.completions.create(
    model=${quoted(model)},
    messages=[{"role": "user", "content": "Hello."}],
)
print(answer.choices[0].message.content)
`,
  },
  'ai-sdk': {
    about: "Vercel's AI SDK",
    text: ({ url, model, key }) => `import { createOpenAI } from '@ai-sdk/openai'
import { generateText } from 'ai'

const skein = createOpenAI({ baseURL: ${quoted(`${url}/v1`)}, apiKey: ${quoted(key)} })
const { text } = await generateText({ model: skein(${quoted(model)}), prompt: 'Hello.' })
console.log(text)
`,
  },
  langchain: {
    about: 'LangChain for Python',
    next: 'pip install langchain-openai',
    text: ({ url, model, key }) => `from langchain_openai import ChatOpenAI

llm = ChatOpenAI(base_url=${quoted(`${url}/v1`)}, api_key=${quoted(key)}, model=${quoted(model)})
print(llm.invoke("Hello.").content)
`,
  },
  'open-webui': {
    about: 'Open WebUI in a container',
    next: 'then open http://127.0.0.1:3000',
    text: ({ url, key }) => {
      const seen = url.replace(/\/\/(127\.0\.0\.1|localhost|\[::1\])/, '//host.docker.internal')
      const isOwn = seen !== url
      return `${isOwn ? '# To the server, the container is another machine: skein serve --host 0.0.0.0\n' : ''}docker run -d --name open-webui -p 3000:8080 \\
  --add-host host.docker.internal:host-gateway -v open-webui:/app/backend/data \\
  -e OPENAI_API_BASE_URL=${shellQuoted(`${seen}/v1`)} -e OPENAI_API_KEY=${shellQuoted(key)} \\
  ghcr.io/open-webui/open-webui:main
`
    },
  },
  claude: {
    about: 'Claude Code, in this folder',
    file: '.claude/settings.json',
    next: 'then start claude here',
    text: ({ url, model, key }) =>
      json({
        env: {
          ANTHROPIC_BASE_URL: url,
          ANTHROPIC_AUTH_TOKEN: key,
          ANTHROPIC_MODEL: model,
          ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
        },
      }),
  },
  codex: {
    about: 'Codex',
    file: '~/.codex/config.toml',
    next: `then: export SKEIN_API_KEY=KEY, with any text where the server wants none`,
    // If these are on, both programs send tools that are no functions, which Skein refuses.
    text: ({ url, model }) => `model = ${quoted(model)}
model_provider = "skein"
web_search = "disabled"

[model_providers.skein]
name = "Skein"
base_url = ${quoted(`${url}/v1`)}
env_key = "SKEIN_API_KEY"
wire_api = "responses"

[agents]
enabled = false
`,
  },
  continue: {
    about: 'Continue',
    file: '~/.continue/config.yaml',
    text: ({ url, model, key }) => `name: Skein
version: 1.0.0
schema: v1
models:
  - name: Skein
    provider: openai
    model: ${quoted(model)}
    apiBase: ${quoted(`${url}/v1`)}
    apiKey: ${quoted(key)}
    roles: [chat, edit, apply]
`,
  },
  cline: {
    about: 'Cline: values for its settings',
    text: ({ url, model, key }) => `API Provider  OpenAI Compatible
Base URL      ${url}/v1
API Key       ${key}
Model ID      ${model}
`,
  },
  zed: {
    about: 'Zed',
    file: '~/.config/zed/settings.json',
    next: 'then: export SKEIN_API_KEY=KEY before zed, with any text where the server wants none',
    text: ({ url, model }) =>
      json({
        language_models: {
          openai_compatible: {
            Skein: {
              api_url: `${url}/v1`,
              available_models: [{ name: model, display_name: model, max_tokens: 32_768 }],
            },
          },
        },
      }),
  },
  aider: {
    about: 'Aider, in this folder',
    file: '.aider.conf.yml',
    text: ({ url, model, key }) => `model: ${quoted(`openai/${model}`)}
openai-api-base: ${quoted(`${url}/v1`)}
openai-api-key: ${quoted(key)}
`,
  },
  opencode: {
    about: 'OpenCode, in this folder',
    file: 'opencode.json',
    text: ({ url, model, key }) =>
      json({
        $schema: 'https://opencode.ai/config.json',
        model: `skein/${model}`,
        provider: {
          skein: {
            npm: '@ai-sdk/openai-compatible',
            name: 'Skein',
            options: { baseURL: `${url}/v1`, apiKey: key },
            models: { [model]: { name: model } },
          },
        },
      }),
  },
  ollama: { about: 'programs made for Ollama', text: ({ url }) => exports({ OLLAMA_HOST: url }) },
}
