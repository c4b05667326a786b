/** Which key sends what is being written: Enter; with Shift it begins a line. */
export function isSendingKey(event: KeyboardEvent): boolean {
  // Enter also ends the choice of a Chinese character.
  return event.key === 'Enter' && !event.shiftKey && !event.isComposing
}
