/**
 * The grammar engine: @mlc-ai/web-xgrammar, C++ compiled to WebAssembly. Only what is used has types here. Its package
 * is marked as an ES module but is none, so its source is run as a script. All uses go to its binding, whose calls are
 * synchronous.
 */
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname } from 'node:path'

/** A C++ object, which must be deleted. */
export interface Handle {
  delete(): void
}

export interface MatcherHandle extends Handle {
  AcceptToken(token: number, verbose: boolean): boolean
  GetNextTokenBitmask(vocabSize: number): Handle
  FindJumpForwardString(): string
  IsTerminated(): boolean
}

/** A compiled grammar; printed, it has one rule per line. */
export interface GrammarHandle extends Handle {
  GetGrammar(): Handle & { ToString(): string }
}

export interface CompilerHandle extends Handle {
  CompileStructuralTag(json: string): GrammarHandle
}

/** The parts of the module that are used. */
interface Module {
  readonly HEAP8: Int8Array
  readonly JSONFormat: { readonly kJSON: unknown }
  readonly TokenizerInfo: new (
    vocabulary: Handle,
    type: 'BYTE_LEVEL',
    vocabSize: number,
    stopTokens: Handle,
    prependsSpace: boolean,
  ) => Handle
  readonly GrammarCompiler: new (tokenizer: Handle, maxThreads: number, isCached: boolean) => CompilerHandle
  readonly GrammarMatcher: new (
    grammar: Handle,
    stopTokens: undefined,
    endsWithoutStop: boolean,
    maxRollback: number,
  ) => MatcherHandle
  vecStringFromJSArray(strings: readonly string[]): Handle
  vecIntFromJSArray(numbers: readonly number[]): Handle
  vecIntToView(vector: Handle): Int32Array
  _JSONSchemaToEBNF(
    schema: string,
    anyWhitespace: boolean,
    indent: undefined,
    separators: undefined,
    strict: boolean,
    maxWhitespace: undefined,
    format: unknown,
  ): string
}

export interface Binding extends Module {
  /** The last reason that it gave up, which it prints but does not throw; null before that. */
  lastComplaint(): string | null
}

const NAME = '@mlc-ai/web-xgrammar'
/** Its printed output: reasons for giving up, and "Aborted()", which is also thrown. */
interface Hooks {
  print(text: string): void
  printErr(text: string): void
}

/** The end of its source, where it exports, and its import of something that it is given anyway. */
const EXPORTED = 'exports.Testings = Testings;'
const WITH_BINDING = `${EXPORTED} exports.open = (hooks) => Module(hooks);`
const IMPORT = "await import('module')"
/** The message after the source location. */
const COMPLAINT = /^\[FATAL\] .*?\.\w+:\d+: (.*)$/s

export async function openXgrammar(): Promise<Binding> {
  const require = createRequire(import.meta.url)
  const path = require.resolve(NAME)
  const text = readFileSync(path, 'utf8')
    .replace(EXPORTED, () => WITH_BINDING)
    .replace(IMPORT, () => "require('module')")
  const module: { exports: { open?: (hooks: Hooks) => Promise<Module> } } = { exports: {} }
  const run = new Function('exports', 'module', 'require', '__filename', '__dirname', text)
  run(module.exports, module, require, path, dirname(path))
  if (module.exports.open === undefined) throw new Error(`${NAME} is of another version`)
  let complaint: string | null = null
  const printErr = (text: string) => {
    complaint = COMPLAINT.exec(text)?.[1]?.trim() ?? complaint
  }
  const binding = await module.exports.open({ print: () => {}, printErr })
  return Object.assign(binding, { lastComplaint: () => complaint })
}
