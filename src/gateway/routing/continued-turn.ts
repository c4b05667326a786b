/** The header that says which turn of its session an answer continues: known before its first text, whatever the dialect. */
import type { Observer } from './observed.ts'

const CONTINUED_HEADER = 'x-session-continued'

interface HeadedReply {
  readonly sent: boolean
  header(name: string, value: string): unknown
}

export function tellingContinued(reply: HeadedReply): Observer {
  return {
    begin: () => ({
      event(event) {
        if (event.type !== 'prompt' || event.session === undefined || reply.sent) return
        reply.header(CONTINUED_HEADER, String(event.session.turn))
      },
      end() {},
    }),
  }
}
