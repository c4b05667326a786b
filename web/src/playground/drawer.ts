/** What is open at the right: the settings or tree of one conversation. */
import { signal } from '@preact/signals'
import type { Pane } from './pane.ts'

export interface Drawer {
  readonly pane: Pane
  readonly part: 'settings' | 'tree'
}

export const drawer = signal<Drawer | null>(null)

export function toggleDrawer(pane: Pane, part: Drawer['part']): void {
  const { value: now } = drawer
  drawer.value = now?.pane === pane && now.part === part ? null : { pane, part }
}

export function closeDrawer(): void {
  drawer.value = null
}
