/**
 * The site of docs/: `npm install --prefix docs/.site && npm run build --prefix docs/.site`. A link that leads nowhere fails
 * the build.
 */
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const page = (text: string, link: string) => ({ text, link })

const GUIDE = [
  {
    text: 'Begin',
    items: [
      page('Getting started', '/getting-started'),
      page('Models', '/models'),
      page('Devices', '/devices'),
      page('In a browser tab', '/browser'),
      page('FAQ', '/faq'),
      page('Troubleshooting', '/troubleshooting'),
    ],
  },
  {
    text: 'Use',
    items: [
      page('Sessions', '/sessions'),
      page('Clients', '/clients'),
      page('API by example', '/reference'),
      page('API in full', '/api'),
      page('Other APIs', '/dialects'),
      page('Management over HTTP', '/management'),
      page('In Node', '/library'),
      page('Dashboard', '/dashboard'),
      page('Commands', '/cli'),
      page('Immersive Translate', '/immersive-translate'),
      page('Migration', '/migration'),
    ],
  },
  {
    text: 'Clients',
    collapsed: true,
    items: [
      page('OpenAI', '/clients/openai'),
      page('AI SDK', '/clients/ai-sdk'),
      page('LangChain', '/clients/langchain'),
      page('Anthropic', '/clients/anthropic'),
      page('Claude Code', '/clients/claude-code'),
      page('Codex', '/clients/codex'),
      page('OpenCode, Aider', '/clients/opencode'),
      page('Ollama', '/clients/ollama'),
      page('Open WebUI', '/clients/open-webui'),
      page('Continue', '/clients/continue'),
      page('Zed', '/clients/zed'),
      page('Cline', '/clients/cline'),
      page('llama.vim, llama.vscode', '/clients/llama-vim'),
      page('SillyTavern', '/clients/sillytavern'),
      page('RWKV-Runner, ai00', '/clients/rwkv-runner'),
      page('MCP servers', '/clients/mcp'),
    ],
  },
  {
    text: 'Run',
    items: [
      page('Deploy', '/deploy'),
      page('Operations', '/operations'),
      page('Cluster', '/cluster'),
      page('Speculative decoding', '/speculation'),
      page('Measuring a server', '/benchmark'),
      page('Security', '/security'),
      page('Settings', '/configuration'),
    ],
  },
  {
    text: 'Understand',
    collapsed: true,
    items: [
      page('Architecture', '/architecture'),
      page('States', '/states'),
      page('Numerics', '/numerics'),
      page('Performance', '/performance'),
      page('Adding things', '/dev/adding'),
      page('Kernels', '/dev/kernels'),
      page('Measurements', '/dev/measurements'),
      page('Reliability', '/dev/reliability'),
      page('States: mechanism', '/dev/states'),
      page('Numerics: measurements', '/dev/numerics'),
    ],
  },
]

const CHINESE = [
  {
    text: '开始',
    items: [
      page('入门', '/zh/getting-started'),
      page('常见问题', '/zh/faq'),
      page('排错', '/zh/troubleshooting'),
      page('沉浸式翻译', '/zh/immersive-translate'),
    ],
  },
  { text: '英文文档', items: [page('模型', '/models'), page('API 示例', '/reference')] },
]

/** What a page links to beside docs/, or that is no page, is not part of the site: its words stay, without a link. */
function unlinkOutside({ tokens, env }: { tokens: Token[]; env: { relativePath: string } }): void {
  const depth = env.relativePath.split('/').length
  for (const { children } of tokens) {
    let isOutside = false
    for (const token of children ?? []) {
      if (token.type === 'link_open') isOutside = isNoPage(token.attrGet('href') ?? '', depth)
      if (!isOutside || !token.type.startsWith('link_')) continue
      token.tag = 'span'
      token.attrs = null
    }
  }
}

function isNoPage(href: string, depth: number): boolean {
  return href.startsWith('../'.repeat(depth)) || (!/^[a-z]+:/.test(href) && href.endsWith('.json'))
}

interface Token {
  type: string
  tag: string
  attrs: unknown
  children: Token[] | null
  attrGet(name: string): string | null
}

/** Pages are outside this folder, where nobody finds its packages. */
const own = (path: string) => fileURLToPath(new URL(`../node_modules/${path}`, import.meta.url))

export default defineConfig({
  srcDir: '..',
  srcExclude: ['.site/**'],
  title: 'Skein',
  description: 'Serve RWKV to thousands of conversations at once.',
  cleanUrls: true,
  // What stands in <> or {{}} in a page is its text, never a tag or an expression.
  markdown: { html: false, config: (md) => void md.core.ruler.push('links-out-of-docs', unlinkOutside) },
  vite: {
    resolve: {
      alias: [
        { find: /^vue\/server-renderer$/, replacement: own('@vue/server-renderer/dist/server-renderer.esm-bundler.js') },
        { find: /^vue$/, replacement: own('vue/dist/vue.runtime.esm-bundler.js') },
      ],
    },
  },
  locales: {
    root: { label: 'English', lang: 'en', themeConfig: { sidebar: GUIDE } },
    zh: { label: '中文', lang: 'zh-CN', themeConfig: { sidebar: CHINESE } },
  },
  // Most pages are in English alone, so the other language of a page is its home.
  themeConfig: { i18nRouting: false, search: { provider: 'local' }, outline: [2, 3] },
})
