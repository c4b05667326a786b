/** Questions for the demo model, by number. */
import { seededRandom } from '../dist/bench/serve/random.js'

const WORDS = 'once upon a time there was a goose that could write all night about rivers'.split(' ')

/** A request with one right answer. */
export function question(number) {
  const random = seededRandom(number)
  const prompt = Array.from({ length: 5 + (number % 60) }, () => WORDS[Math.floor(random() * 15)])
  const max_tokens = 5 + Math.floor(random() * 40)
  return { prompt: prompt.join(' '), max_tokens, seed: number, temperature: 1, ignore_eos: true }
}
