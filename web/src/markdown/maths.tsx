/** A formula as MathML, which browsers draw. Shows the source until the code is loaded, and if it is not a formula. */
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
  // The effect above writes the content. Preact must not render any, since nothing would remove it.
  return <span ref={place} class={isBlock ? 'maths block' : 'maths'} />
}
