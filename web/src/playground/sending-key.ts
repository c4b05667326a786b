/** Whether a key sends what is being written: Enter, but with Shift, or Ctrl+Enter, as the visitor chose. */
import { sending } from '../lib/preferences.ts'

export function isSendingKey(event: KeyboardEvent): boolean {
  const isMeant = sending.value === 'enter' ? !event.shiftKey : event.ctrlKey || event.metaKey
  // Enter also ends the choice of a Chinese character.
  return event.key === 'Enter' && isMeant && !event.isComposing
}
