/**
 * How well the tiles of an algorithm of cuBLASLt cover a product. For a number of tokens the library offers some 24
 * algorithms, but often not the one whose tiles fit: of 576 tokens it offers tiles of 160, which compute 640, though it has
 * tiles of 144 (docs/dev/kernels-log.md 73). Those are found among what it offers for other products.
 */
/** Rows of W and of x. */
type Tile = readonly [rows: number, tokens: number]

/** Values of cublasLtMatmulTile_t (cublasLt.h of 12.6 and later) that fast kernels of capability 9 have. */
const TILES: ReadonlyMap<number, Tile> = new Map([
  ...([
    [17, [64, 128]],
    [18, [128, 64]],
    [19, [64, 256]],
    [20, [128, 128]],
    [21, [256, 64]],
    [23, [128, 256]],
    [24, [256, 128]],
    [29, [128, 160]],
    [31, [192, 128]],
    [32, [128, 192]],
    [33, [128, 96]],
  ] as const),
  // The others are in order, every eighth number of tokens but those that had a number before.
  ...tilesFrom(312, 64, [16, 504], [32, 64, 96, 128, 192, 256, 320, 384, 448]),
  ...tilesFrom(399, 128, [72, 512], [96, 128, 160, 192, 256, 320, 384]),
  ...tilesFrom(448, 192, [8, 336], [64, 128, 192, 256]),
  ...tilesFrom(486, 256, [8, 256], [32, 64, 128, 192]),
])

function* tilesFrom(
  first: number,
  rows: number,
  [from, to]: readonly [number, number],
  others: readonly number[],
): Generator<[number, Tile]> {
  let id = first
  for (let tokens = from; tokens <= to; tokens += 8) if (!others.includes(tokens)) yield [id++, [rows, tokens]]
}

/** By the library's number. */
export function tileOf(id: number): Tile | undefined {
  return TILES.get(id)
}

/** How an algorithm cuts a product. */
export interface Cut {
  /** As the library numbers them. */
  readonly tile: number
  /** Blocks that share the columns of a tile. */
  readonly splits: number
}

/** Outputs of a tile that would take as long as what it does beside them, and what adding the sums of one more share leaves. */
const BESIDE = 2000
const SPLIT = 0.85

/** The share of the time of all multiprocessors that goes into outputs which are wanted; 0 for tiles that are not known. */
export function fitOf(
  { tile, splits }: Cut,
  { m, n, batch }: Readonly<Record<'m' | 'n' | 'batch', number>>,
  numSms: number,
): number {
  const known = tileOf(tile)
  if (known === undefined) return 0
  const [rows, tokens] = known
  const blocks = splits * batch * Math.ceil(m / rows) * Math.ceil(n / tokens)
  const places = numSms * Math.ceil(blocks / numSms)
  const wanted = (splits * batch * m * n) / (places * rows * tokens)
  return wanted * (1 - BESIDE / (rows * tokens)) * SPLIT ** (splits - 1)
}
