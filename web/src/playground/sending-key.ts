/** Whether a key press sends the message: Enter without Shift, or Ctrl+Enter, as the user chose. */
import { sending } from '../lib/preferences.ts'

export function isSendingKey(event: KeyboardEvent): boolean {
  const isMeant = sending.value === 'enter' ? !event.shiftKey : event.ctrlKey || event.metaKey
  // Enter also confirms a Chinese character.
  return event.key === 'Enter' && isMeant && !event.isComposing
}
