/** A metric whose values are read when it is scraped. */
import { Counter, Gauge, type LabelValues, type Registry } from 'prom-client'

interface ReadMetric<Label extends string> {
  /** Without the prefix. One that ends in `_total` is a counter. */
  readonly name: string
  readonly help: string
  readonly labelNames?: readonly Label[]
  /** The value for each set of labels; null or undefined: none. */
  read(): Iterable<Read<Label>> | Promise<Iterable<Read<Label>>>
}

type Read<Label extends string> = readonly [labels: LabelValues<Label>, value: number | null | undefined]

export function addReadMetric<Label extends string>(registry: Registry, metric: ReadMetric<Label>): void {
  const { name, help, labelNames = [], read } = metric
  ;new (name.endsWith('_total') ? Counter : Gauge)<Label>({
    name: `skein_${name}`,
    help,
    labelNames,
    registers: [registry],
    async collect() {
      const values = await read()
      this.reset()
      for (const [labels, value] of values) if (value != null) this.inc(labels, value)
    },
  })
}
