/** A list that grows and scrolls: its end stays in view until its reader goes up, and again when they are back there. */
import { useState } from 'preact/hooks'

/** Pixels from the end that still count as being there. */
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
  /** Where it was scrolled to when last looked at. */
  #top = 0

  /** A `ref`. */
  readonly attach = (element: Scrolled | null): void => {
    this.#element = element
  }

  /**
   * The event comes after the scroll, and the list may have grown in between: that the end is far says nothing. Only who
   * goes up leaves it.
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

  /** Wherever the reader is: what they have just made stands there. */
  return(): void {
    this.#isFollowed = true
    this.update()
  }
}

export function useFollowedEnd(): FollowedEnd {
  return useState(() => new FollowedEnd())[0]
}
