/** A formula as MathML, which browsers draw themselves; its source until that has come, and where it is no formula. */
import { useEffect, useRef } from 'preact/hooks'

interface MathsProps {
  readonly text: string
  readonly raw: string
  readonly isBlock: boolean
}

export function Maths({ text, raw, isBlock }: MathsProps) {
  const place = useRef<HTMLSpanElement>(null)
  useEffect(() => {
    let isGone = false
    place.current!.textContent = raw
    import('temml').then(
      ({ default: temml }) => {
        if (isGone || place.current === null) return
        try {
          // `trust: false` is the default: no links, no classes, nothing loaded.
          temml.render(text, place.current, { displayMode: isBlock, throwOnError: true })
        } catch {
          place.current.textContent = raw
        }
      },
      () => {},
    )
    return () => {
      isGone = true
    }
  }, [text, isBlock])
  // Its content is written above, once it is there; a text of the page's own would be taken away by nobody.
  return <span ref={place} class={isBlock ? 'maths block' : 'maths'} />
}
