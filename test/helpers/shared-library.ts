/** Reads the target and exports of a compiled library from its own tables: ELF, Mach-O and PE, 64-bit little-endian. */

export interface SharedLibrary {
  /** As in the names of kernels/build: "linux-x64". */
  readonly platform: string
  readonly exports: readonly string[]
  /** Names and versions of system libraries that it needs: "GLIBC_2.17", "KERNEL32.dll", "/usr/lib/libSystem.B.dylib". */
  readonly needs: readonly string[]
}

export function readSharedLibrary(file: Buffer): SharedLibrary {
  if (file.readUInt32BE(0) === 0x7f454c46) return readElf(file)
  if (file.readUInt32LE(0) === 0xfeedfacf) return readMachO(file)
  if (file.toString('latin1', 0, 2) === 'MZ') return readPe(file)
  throw new Error('neither ELF nor Mach-O nor PE')
}

const ARCHITECTURES: Readonly<Record<number, string>> = {
  62: 'x64', // ELF
  183: 'arm64',
  16777223: 'x64', // Mach-O
  16777228: 'arm64',
  34404: 'x64', // PE
  43620: 'arm64',
}

function textAt(file: Buffer, start: number): string {
  return file.toString('latin1', start, file.indexOf(0, start))
}

function times<T>(count: number, make: (i: number) => T): T[] {
  return Array.from({ length: count }, (_, i) => make(i))
}

function readElf(file: Buffer): SharedLibrary {
  const at = Number(file.readBigUInt64LE(0x28))
  const sections = times(file.readUInt16LE(0x3c), (i) => {
    const header = at + i * file.readUInt16LE(0x3a)
    const [offset, size] = [header + 0x18, header + 0x20].map((n) => Number(file.readBigUInt64LE(n)))
    const [type, link] = [header + 4, header + 0x28].map((n) => file.readUInt32LE(n))
    return { type, link, offset: offset!, size: size! }
  })
  const symbols = sections.find(({ type }) => type === 11)!
  const strings = sections[symbols.link!]!
  const names = times(symbols.size / 24, (i) => {
    const symbol = symbols.offset + 24 * i
    const isDefined = file.readUInt16LE(symbol + 6) !== 0
    return isDefined ? textAt(file, strings.offset + file.readUInt32LE(symbol)) : ''
  })
  const words = file.toString('latin1', strings.offset, strings.offset + strings.size).split('\0')
  return {
    platform: `linux-${ARCHITECTURES[file.readUInt16LE(0x12)]}`,
    exports: names.filter((name) => name !== ''),
    needs: words.filter((word) => /^GLIBC|\.so/.test(word)),
  }
}

function readMachO(file: Buffer): SharedLibrary {
  const [exports, needs]: string[][] = [[], []]
  let command = 32
  for (let left = file.readUInt32LE(16); left > 0; left--) {
    const [kind, size] = [file.readUInt32LE(command), file.readUInt32LE(command + 4)]
    // LC_SYMTAB: external names that have a section.
    if (kind === 2) {
      const [symbols, count, strings] = [8, 12, 16].map((n) => file.readUInt32LE(command + n))
      for (let i = 0; i < count!; i++) {
        const symbol = symbols! + 16 * i
        if ((file[symbol + 4]! & 0x0f) !== 0x0f) continue
        exports!.push(textAt(file, strings! + file.readUInt32LE(symbol)).replace(/^_/, ''))
      }
    }
    // LC_LOAD_DYLIB, and the signature that Apple processors require.
    if (kind === 0xc) needs!.push(textAt(file, command + file.readUInt32LE(command + 8)))
    if (kind === 0x1d) needs!.push('signature')
    command += size
  }
  return { platform: `darwin-${ARCHITECTURES[file.readUInt32LE(4)]}`, exports: exports!, needs: needs! }
}

function readPe(file: Buffer): SharedLibrary {
  const header = file.readUInt32LE(0x3c)
  const optional = header + 24
  const sections = optional + file.readUInt16LE(header + 20)
  const offsetOf = (address: number): number => {
    for (let i = 0; i < file.readUInt16LE(header + 6); i++) {
      const [size, start, , offset] = [8, 12, 16, 20].map((n) => file.readUInt32LE(sections + 40 * i + n))
      if (address >= start! && address < start! + size!) return address - start! + offset!
    }
    throw new Error(`no section has address ${address}`)
  }
  const table = offsetOf(file.readUInt32LE(optional + 112))
  const names = offsetOf(file.readUInt32LE(table + 32))
  const exports = times(file.readUInt32LE(table + 24), (i) => textAt(file, offsetOf(file.readUInt32LE(names + 4 * i))))
  const needs: string[] = []
  let entry = offsetOf(file.readUInt32LE(optional + 120))
  for (; file.readUInt32LE(entry + 12) !== 0; entry += 20)
    needs.push(textAt(file, offsetOf(file.readUInt32LE(entry + 12))))
  return { platform: `win32-${ARCHITECTURES[file.readUInt16LE(header + 4)]}`, exports, needs }
}
