import { describe, expect, test } from 'vitest'
import { errorOf } from '../../web/src/lib/errors.ts'
import { groupsOf, paragraphsOf } from '../../web/src/lib/paragraphs.ts'
import { snippet } from '../../web/src/lib/snippets.ts'
import { bodyOf, DEFAULTS, partOf, splitThought } from '../../web/src/lib/wire.ts'
import { EMPTY_FORM, specOf } from '../../web/src/lib/worker-spec.ts'

describe('a request', () => {
  test('has no field that was not chosen', () => {
    expect(bodyOf(DEFAULTS)).toEqual({})
  })

  test('has every field that was', () => {
    const settings = {
      ...DEFAULTS,
      temperature: 0,
      top_k: -1,
      seed: 7,
      stop: '\\n\\nUser:\nEND\n',
      banned_tokens: '261, 5',
      logit_bias: '11: -5\n12=2.5',
      ignore_eos: true,
    }
    expect(bodyOf(settings)).toEqual({
      temperature: 0,
      top_k: -1,
      seed: 7,
      stop: ['\n\nUser:', 'END'],
      banned_tokens: [261, 5],
      logit_bias: { 11: -5, 12: 2.5 },
      ignore_eos: true,
    })
  })
})

describe('a chunk', () => {
  const chunk = (choice: object, rest = {}) => partOf({ choices: [{ finish_reason: null, ...choice }], ...rest })

  test('of text, thought, end and usage', () => {
    expect(chunk({ delta: { content: 'Paris' } })).toEqual({ content: 'Paris' })
    expect(chunk({ delta: { reasoning_content: 'Hm' } })).toEqual({ reasoning: 'Hm' })
    expect(chunk({ delta: {}, finish_reason: 'stop' }, { session: { turn: 3 } })).toEqual({ finish: 'stop', turn: 3 })
    const usage = { prompt_tokens: 9, completion_tokens: 2 }
    expect(partOf({ choices: [], usage })).toEqual({ usage: { prompt: 9, completion: 2, cached: 0 } })
  })

  test('of tokens, in either shape, best first', () => {
    const top = [{ token: 'Paris', logprob: -0.1 }]
    const token = { token: 'Paris', logprob: -0.1, top_logprobs: top }
    expect(chunk({ delta: {}, logprobs: { content: [token] } }).tokens).toEqual([
      { token: 'Paris', logprob: -0.1, top },
    ])
    const text = { tokens: ['a'], token_logprobs: [-2], top_logprobs: [{ a: -2, b: -0.2 }] }
    expect(chunk({ text: 'a', logprobs: text }).tokens![0]!.top.map(({ token }) => token)).toEqual(['b', 'a'])
  })
})

test('a thought at the start is separated from the answer', () => {
  expect(splitThought('Paris <think>')).toEqual({ thought: '', isThinking: false, answer: 'Paris <think>' })
  expect(splitThought('<think>\nHm')).toEqual({ thought: 'Hm', isThinking: true, answer: '' })
  expect(splitThought(' <think>Hm\n</think>\n\nParis')).toEqual({ thought: 'Hm', isThinking: false, answer: 'Paris' })
})

describe('an error', () => {
  const facts = (text: string) => {
    const { message, code, field } = errorOf(422, text)
    return [message, code, field]
  }

  test('of each dialect has a message', () => {
    const openAi = { error: { message: 'no', code: 'not_found', param: 'model' } }
    expect(facts(JSON.stringify(openAi))).toEqual(['no', 'not_found', 'model'])
    expect(facts('{"error":"no"}')).toEqual(['no', '', null])
    expect(facts('{"detail":"no","code":"c","field":"port"}')).toEqual(['no', 'c', 'port'])
  })

  test('that is not JSON, or in no known format, has one too', () => {
    expect(facts('<h1>Bad gateway</h1>')).toEqual(['<h1>Bad gateway</h1>', '', null])
    expect(facts('')).toEqual(['HTTP 422', '', null])
    expect(facts('null')).toEqual(['null', '', null])
    expect(facts('{"detail":[1]}')).toEqual(['{"detail":[1]}', '', null])
  })
})

test('the form of a worker sends what was filled in, and leaves checks to the server', () => {
  expect(specOf({ ...EMPTY_FORM, model_path: 'demo.pth' })).toEqual({ model_path: 'demo.pth' })
  const form = {
    ...EMPTY_FORM,
    model_path: ' demo.pth ',
    max_batch_size: '64',
    port: 'many',
    aliases: 'a, b',
    pp_devices: '0,1',
    states: 'cat=states/cat.pth\nno name',
    use_cuda_graph: 'false',
    tool_template: 'vllm-rwkv',
    speculate: 'lookup',
    draft_path: ' small.pth ',
  }
  expect(specOf(form)).toEqual({
    model_path: 'demo.pth',
    max_batch_size: 64,
    port: 'many',
    aliases: ['a', 'b'],
    pp_devices: [0, 1],
    states: [
      { name: 'cat', path: 'states/cat.pth' },
      { name: '', path: 'no name' },
    ],
    use_cuda_graph: false,
    tool_template: 'vllm-rwkv',
    speculate: 'lookup',
    draft_path: 'small.pth',
  })
})

test('paragraphs are separated by blank lines, or by lines if there are none', () => {
  expect(paragraphsOf('a\nb\n \n\nc\n')).toEqual(['a\nb', 'c'])
  expect(paragraphsOf(' a\nb\n')).toEqual(['a', 'b'])
  expect(paragraphsOf(' \n')).toEqual([])
  expect(groupsOf(['a', 'b', 'c'], 2)).toEqual([
    { at: 0, items: ['a', 'b'] },
    { at: 2, items: ['c'] },
  ])
})

test('a name with quotes cannot break out of a snippet', () => {
  const options = { origin: 'http://h', model: `a'"; rm -rf / #`, needsKey: true }
  expect(snippet('curl', options)).toContain(`"model":"a'\\''\\"; rm -rf / #"`)
  expect(snippet('Python', options)).toContain(`model="a'\\"; rm -rf / #"`)
  expect(snippet('JavaScript', options)).toContain(`model: "a'\\"; rm -rf / #"`)
})
