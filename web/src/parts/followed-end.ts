/** Keeps the end of a growing list in view until the user scrolls up, and again when they are back at the end. */
import { useState } from 'preact/hooks'

/** Pixels from the end that still count as the end. */
const NEAR = 40

/** Of an element. */
interface Scrolled {
  scrollTop: number
  readonly scrollHeight: number
  readonly clientHeight: number
}

export class FollowedEnd {
  #element: Scrolled | null = null
  #isFollowed = true
  /** The last known scroll position. */
  #top = 0

  /** A `ref`. */
  readonly attach = (element: Scrolled | null): void => {
    this.#element = element
  }

  /**
   * The event comes after the scroll, and the list may have grown in between, so a distant end says nothing. Only
   * scrolling up leaves the end.
   */
  readonly onScroll = (): void => {
    if (this.#element === null) return
    const { scrollTop, scrollHeight, clientHeight } = this.#element
    if (scrollHeight - scrollTop - clientHeight < NEAR) this.#isFollowed = true
    else if (scrollTop < this.#top) this.#isFollowed = false
    this.#top = scrollTop
  }

  /** After the list has changed. */
  update(): void {
    if (this.#element === null || !this.#isFollowed) return
    this.#element.scrollTop = this.#element.scrollHeight
    this.#top = this.#element.scrollTop
  }

  /** Scrolls to the end from anywhere, to show what the user has just added. */
  return(): void {
    this.#isFollowed = true
    this.update()
  }
}

export function useFollowedEnd(): FollowedEnd {
  return useState(() => new FollowedEnd())[0]
}
