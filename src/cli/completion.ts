/**
 * `skein completion`: prints a completion script for a shell, generated from the commands, so that it has every flag.
 */
import type { Command } from 'commander'
import { SkeinError } from '../errors.ts'
import { defineCommand } from './terminal/command.ts'

const SHELLS = ['bash', 'zsh', 'fish'] as const
type Shell = (typeof SHELLS)[number]

export function completionOf(program: () => Promise<Command>) {
  return defineCommand({
    examples: [
      ['skein completion bash >> ~/.bashrc', 'bash'],
      ['skein completion zsh >> ~/.zshrc', 'zsh, after compinit'],
      ['skein completion fish > ~/.config/fish/completions/skein.fish', 'fish'],
    ],
    words: { shell: { description: SHELLS.join(', '), isRequired: true } },
    async run({ args }) {
      const shell = SHELLS.find((one) => one === args.shell)
      if (shell === undefined)
        throw new SkeinError('invalid_request', `"${args.shell}" is none of ${SHELLS.join(', ')}`)
      process.stdout.write(scriptFor(shell, await program()))
    },
  })
}

export function scriptFor(shell: Shell, program: Command): string {
  return shell === 'fish' ? fishScript(program) : bashScript(program, shell)
}

interface Case {
  /** "keys add" */
  readonly path: string
  readonly completions: readonly { readonly word: string; readonly about: string }[]
}

function casesOf(command: Command, path: readonly string[] = []): Case[] {
  const options = command.createHelp().visibleOptions(command)
  const flags = options.map(({ long, description }) => ({ word: long!, about: description }))
  const names = command.commands.flatMap((child) =>
    [child.name(), ...child.aliases()].map((word) => ({ word, about: child.description() })),
  )
  const own = { path: path.join(' '), completions: [...names, ...flags] }
  const below = command.commands.flatMap((child) =>
    [child.name(), ...child.aliases()].flatMap((name) => casesOf(child, [...path, name])),
  )
  return [own, ...below]
}

/** The bash script also serves zsh, through bashcompinit. */
function bashScript(program: Command, shell: 'bash' | 'zsh'): string {
  const cases = casesOf(program)
  const arms = cases.map(
    ({ path, completions }) => `    '${path}') words='${completions.map(({ word }) => word).join(' ')}' ;;`,
  )
  const deep = cases.filter(({ path }) => path.includes(' ')).map(({ path }) => `'${path}'`)
  return `${shell === 'zsh' ? 'autoload -U +X bashcompinit && bashcompinit\n' : ''}_skein() {
  local current=\${COMP_WORDS[COMP_CWORD]} path='' words=''
  [ "$COMP_CWORD" -gt 1 ] && path=\${COMP_WORDS[1]}
  if [ "$COMP_CWORD" -gt 2 ]; then
    case "$path \${COMP_WORDS[2]}" in ${deep.join('|')}) path="$path \${COMP_WORDS[2]}" ;; esac
  fi
  case "$path" in
${arms.join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ "\${current#-}" = "$current" ] && COMPREPLY+=($(compgen -f -- "$current"))
}
complete -o filenames -F _skein skein
`
}

function fishScript(program: Command): string {
  const lines = casesOf(program).flatMap(({ path, completions }) => {
    const words = path.split(' ').filter((word) => word !== '')
    const when =
      words.length === 0
        ? '__fish_use_subcommand'
        : words.map((word) => `__fish_seen_subcommand_from ${word}`).join('; and ')
    return completions.map(({ word, about }) => {
      const what = word.startsWith('--') ? `-l ${word.slice(2)}` : `-a ${word}`
      return `complete -c skein -n '${when}' ${what} -d '${about.replaceAll("'", '’')}'`
    })
  })
  return `${lines.join('\n')}\n`
}
