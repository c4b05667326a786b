/** An empty conversation: suggestions to start with. */
import { language, t } from '../lib/i18n.ts'
import { models } from '../lib/live.ts'
import { hashOf } from '../lib/router.ts'
import { Goose } from '../parts/icons.tsx'
import type { Pane } from './pane.ts'
import { rootOf } from './targets.ts'

interface Starter {
  readonly title: string
  readonly prompt: string
}

type Starters = Readonly<Record<'en' | 'zh', readonly Starter[]>>

/** In the page's language, since a model answers in the language of the question. */
const STARTERS: Starters = {
  en: [
    { title: 'Ask a fact', prompt: 'What is the capital of France?' },
    { title: 'Explain', prompt: 'Explain in three short points how a recurrent network differs from a transformer.' },
    {
      title: 'Write code',
      prompt: 'Write a Python function that returns the n-th Fibonacci number, with a short test.',
    },
    { title: 'Tell a story', prompt: 'Tell me a story about a goose that leads its flock home through the fog.' },
  ],
  zh: [
    { title: '问一个事实', prompt: '法国的首都是哪里？' },
    { title: '解释', prompt: '用三点简要说明循环神经网络与 Transformer 的区别。' },
    { title: '写代码', prompt: '写一个返回第 n 个斐波那契数的 Python 函数，并附一个小测试。' },
    { title: '讲故事', prompt: '讲一个大雁带领雁群穿过大雾回家的故事。' },
  ],
}

/** Questions that the demo model can answer. */
const DEMO_STARTERS: Starters = {
  en: [
    { title: 'Get to know it', prompt: 'What can you do?' },
    { title: 'Ask a fact', prompt: 'What is the capital of France?' },
    { title: 'Translate', prompt: 'Translate to Chinese: The cat is very happy.' },
    { title: 'Tell a story', prompt: 'Tell me a story about a fox.' },
  ],
  zh: [
    { title: '认识一下', prompt: '你会做什么？' },
    { title: '问一个事实', prompt: '法国的首都是哪里？' },
    { title: '翻译', prompt: '翻译成英语：猫非常高兴。' },
    { title: '讲故事', prompt: '讲一个关于兔子的故事。' },
  ],
}

export function Starters({ pane }: { readonly pane: Pane }) {
  if (models.value?.length === 0) {
    return (
      <div class="starters">
        <Goose />
        <h2>{t('No model is running')}</h2>
        <p class="muted">{t('Load one, and talk to it here.')}</p>
        <a class="button primary" href={hashOf('models')}>
          {t('Choose a model')}
        </a>
      </div>
    )
  }
  const { value: choice } = pane.choice
  const canSend = choice !== null && !pane.isBusy.value
  const isDemo = choice !== null && rootOf(choice.model) === 'demo'
  const starters = isDemo ? DEMO_STARTERS : STARTERS
  return (
    <div class="starters">
      <Goose />
      <h2>{t('What shall we talk about?')}</h2>
      <ul>
        {starters[language.value].map(({ title, prompt }) => (
          <li key={prompt}>
            <button type="button" disabled={!canSend} onClick={() => void pane.send(prompt)}>
              <b>{title}</b>
              <span>{prompt}</span>
            </button>
          </li>
        ))}
      </ul>
    </div>
  )
}
