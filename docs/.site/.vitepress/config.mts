/**
 * The site of docs/: `npm install --prefix docs/.site && npm run build --prefix docs/.site`. A link that leads nowhere fails
 * the build; those out of docs/ are checked by test/unit/docs-links.test.ts.
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
      page('In Node', '/library'),
      page('Dashboard', '/dashboard'),
      page('Commands', '/cli'),
      page('Immersive Translate', '/immersive-translate'),
      page('Migration', '/migration'),
    ],
  },
  {
    text: 'Run',
    items: [
      page('Deploy', '/deploy'),
      page('Operations', '/operations'),
      page('Cluster', '/cluster'),
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
    ],
  },
]

const CHINESE = [
  {
    text: '开始',
    items: [page('入门', '/zh/getting-started'), page('常见问题', '/zh/faq')],
  },
  { text: '英文文档', items: [page('模型', '/models'), page('API 示例', '/reference')] },
]

/** Pages are outside this folder, where nobody finds its packages. */
const own = (path: string) => fileURLToPath(new URL(`../node_modules/${path}`, import.meta.url))

export default defineConfig({
  srcDir: '..',
  srcExclude: ['.site/**'],
  title: 'Skein',
  description: 'Serve RWKV to thousands of conversations at once.',
  cleanUrls: true,
  ignoreDeadLinks: [/^(\.\/)?(\.\.\/)+(README|README_zh|CHANGELOG|CONTRIBUTING|LICENSE|tools|src|test|deploy|examples|kernels|scripts|web|models)\b/],
  // What stands in <> or {{}} in a page is its text, never a tag or an expression.
  markdown: { html: false },
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
  themeConfig: { search: { provider: 'local' }, outline: [2, 3] },
})
