import { expect, test } from 'vitest'
import { FollowedEnd } from '../../web/src/parts/followed-end.ts'

/** 100 pixels of it are visible. */
class List {
  readonly clientHeight = 100
  scrollHeight = 100
  #top = 0

  get scrollTop(): number {
    return this.#top
  }

  set scrollTop(wanted: number) {
    this.#top = Math.min(wanted, this.scrollHeight - this.clientHeight)
  }
}

function followed() {
  const [list, end] = [new List(), new FollowedEnd()]
  end.attach(list)
  const grow = (pixels: number) => {
    list.scrollHeight += pixels
    end.update()
  }
  const scrollTo = (top: number) => {
    list.scrollTop = top
    end.onScroll()
  }
  return { list, end, grow, scrollTo }
}

test('the late event of its own scroll does not stop the following, although the list has grown', () => {
  const { list, end, grow } = followed()
  grow(500)
  list.scrollHeight += 62
  end.onScroll()
  end.update()
  expect(list.scrollTop).toBe(562)
})

test('a user who scrolls up stays there, until back at the end or after sending something', () => {
  const { list, end, grow, scrollTo } = followed()
  grow(500)
  scrollTo(300)
  grow(50)
  scrollTo(310)
  grow(50)
  expect(list.scrollTop).toBe(310)
  scrollTo(580)
  grow(50)
  expect(list.scrollTop).toBe(650)
  scrollTo(0)
  end.return()
  expect(list.scrollTop).toBe(650)
})
