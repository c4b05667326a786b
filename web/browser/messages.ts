/** The messages between the page and its worker. */

export type Asked =
  | { readonly type: 'load'; readonly url: string }
  | { readonly type: 'ask'; readonly content: string }
  | { readonly type: 'stop' }
  | { readonly type: 'clear' }
  | { readonly type: 'forget' }

export type Told =
  | {
      readonly type: 'progress'
      readonly stage: 'download' | 'weights'
      readonly done: number
      readonly total: number | null
    }
  | { readonly type: 'ready'; readonly device: string; readonly parameters: number }
  | { readonly type: 'piece'; readonly text: string }
  /** The answer is complete. */
  | { readonly type: 'over'; readonly tokens: number; readonly seconds: number }
  | { readonly type: 'forgotten' }
  | { readonly type: 'failed'; readonly message: string }
