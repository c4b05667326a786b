"""The whole corpus and the whole evaluation: the little world, and tools over it."""
import generate
import tool_chat

TOOLS = 0.15  # share of the documents


def document(rng):
    make = tool_chat.document if rng.random() < TOOLS else generate.document
    return make(rng)


def cases(seed, per_skill):
    return generate.cases(seed, per_skill) + tool_chat.cases(seed, per_skill)
