/** What an answer must be, as OpenAI, vLLM and llama.cpp have it said: one field at most. */

import { invalid } from '../../../errors.ts'
import { parsedJson } from '../../../files/bytes.ts'
import { type Static, Type } from '../../../files/schema-types.ts'
import { checkConstraint, fromGbnf } from '../../../grammar/check.ts'
import { ANY_OBJECT, type Constraint, type JsonSchema, oneOf } from '../../../grammar/constraint.ts'
import { Maybe } from '../../schema.ts'
import { present } from '../sampling.ts'

/** Fields of a body that say so. */
export function formatFields() {
  return {
    response_format: Maybe(
      Type.Object({
        type: Type.String(),
        json_schema: Maybe(Type.Object({ schema: Maybe(Type.Unknown()) })),
        schema: Maybe(Type.Unknown()),
      }),
    ),
    guided_json: Maybe(Type.Unknown()),
    guided_regex: Maybe(Type.String()),
    guided_choice: Maybe(Type.Array(Type.String())),
    guided_grammar: Maybe(Type.String()),
    structured_outputs: Maybe(
      Type.Object({
        json: Maybe(Type.Unknown()),
        json_object: Maybe(Type.Boolean()),
        regex: Maybe(Type.String()),
        choice: Maybe(Type.Array(Type.String())),
        grammar: Maybe(Type.String()),
      }),
    ),
    grammar: Maybe(Type.String()),
    json_schema: Maybe(Type.Unknown()),
  }
}

export type FormatFields = Static<ReturnType<typeof Type.Object<ReturnType<typeof formatFields>>>>

interface Said {
  readonly field: string
  readonly constraint: Constraint
}

/** Null: anything. Throws for what answers cannot be held to. */
export function constraintOf(body: FormatFields): Constraint | null {
  const structured = body.structured_outputs ?? {}
  const said = [
    ofResponseFormat(body.response_format),
    ofSchema('guided_json', body.guided_json),
    ofSchema('json_schema', body.json_schema),
    ofSchema('structured_outputs.json', structured.json),
    ofRegex('guided_regex', body.guided_regex),
    ofRegex('structured_outputs.regex', structured.regex),
    ofChoice('guided_choice', body.guided_choice),
    ofChoice('structured_outputs.choice', structured.choice),
    ofGrammar('guided_grammar', body.guided_grammar),
    ofGrammar('grammar', body.grammar),
    ofGrammar('structured_outputs.grammar', structured.grammar),
    structured.json_object === true ? { field: 'structured_outputs.json_object', constraint: ANY_OBJECT } : null,
  ].filter((one) => one !== null)
  const [first, second] = said
  if (first === undefined) return null
  if (second !== undefined) throw invalid(second.field, `an answer is held to one thing; ${first.field} says another`)
  checkConstraint(first.constraint, first.field)
  return first.constraint
}

function ofResponseFormat(format: FormatFields['response_format']): Said | null {
  if (!present(format) || format.type === 'text') return null
  const field = 'response_format'
  if (format.type === 'json_object') {
    // llama.cpp takes a schema here.
    return ofSchema(`${field}.schema`, format.schema) ?? { field, constraint: ANY_OBJECT }
  }
  if (format.type !== 'json_schema') {
    const got = JSON.stringify(format.type.slice(0, 40))
    throw invalid(field, `got the type ${got}; expected text, json_object or json_schema`)
  }
  const said = ofSchema(`${field}.json_schema.schema`, format.json_schema?.schema ?? format.schema)
  if (said === null) throw invalid(`${field}.json_schema`, '`schema` is missing')
  return said
}

/** Some clients send it as text. */
function ofSchema(field: string, given: unknown): Said | null {
  if (!present(given) || given === '') return null
  const schema = typeof given === 'string' ? parsedJson(given) : given
  if (schema === undefined) throw invalid(field, 'it is a string that is no JSON; expected a JSON Schema')
  return { field, constraint: { type: 'schema', schema: schema as JsonSchema } } // checked with all
}

function ofRegex(field: string, pattern: string | null | undefined): Said | null {
  return pattern ? { field, constraint: { type: 'regex', pattern } } : null
}

function ofChoice(field: string, choices: readonly string[] | null | undefined): Said | null {
  if (!present(choices) || choices.length === 0) return null
  if (choices.includes('')) throw invalid(field, 'an empty choice leaves nothing to say')
  return { field, constraint: oneOf(choices) }
}

function ofGrammar(field: string, grammar: string | null | undefined): Said | null {
  return grammar ? { field, constraint: { type: 'grammar', ebnf: fromGbnf(grammar) } } : null
}
