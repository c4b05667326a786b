"""Documents and held-out cases with tools: the prompt as the server writes it for a client's tools.

    python3 tool_chat.py --show 20          prints sample documents
    python3 tool_chat.py --cases            prints sample evaluation cases
"""
import random
import re

import generate
import tools as T
from generate import ANSWER, ASKED, TURN, Case
from skills import LANGS

LISTED = 0.01  # what a list of tools and a tool's result count in the loss: they are not the model's to write
FREE = "Return only a JSON function call, or answer where no function is needed."
MUST = "Return only a JSON function call."
FAMILIES = list(T.ARGUMENTS)
# Questions of the world that a listed tool answers.
TAKEN = {"add": re.compile(r"\+|加|plus|sum|[Aa]dd |and [0-9]+ make|apples|苹果|又得到"), "capital": re.compile(r"[Cc]apital|首都"), "weather": re.compile(r"weather|天气|rain|下雨"), "time": re.compile(r"time is it|几点")}


def system_text(tools, lead, order=FREE):
    listed = ",\n".join(tool.line() for tool in tools)
    return (lead + "\n" if lead else "") + f"Tools:\n[\n{listed}\n]\n{order}"


def lead_text(rng):
    """(what a client's own system text says, the language it asks for)."""
    roll = rng.random()
    if roll < 0.6:
        return "", None
    if roll < 0.9:
        return rng.choice(generate.NEUTRAL) if rng.random() < 0.7 else generate.odd_system(rng), None
    return (rng.choice(generate.IN_ZH), "zh") if roll < 0.95 else (rng.choice(generate.IN_EN), "en")


def offer(rng, needed, banned=()):
    """The list a client sends: the tools needed, and others of other names."""
    out, families = list(needed), {tool.family for tool in needed} | set(banned)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3])):
        other = T.make(rng, rng.choice([f for f in FAMILIES + ["named"] * 3 if f == "named" or f not in families]))
        if other.name not in {tool.name for tool in out}:
            out.append(other)
            families.add(other.family)
    rng.shuffle(out)
    return out


def plain_step(rng, lang, tools, split="train", skill=None):
    """A question of the world for which no tool is listed."""
    families = {tool.family for tool in tools}
    while True:
        item = generate.draw(rng, lang, skill, split)
        if not any(f in families and pattern.search(item.question) for f, pattern in TAKEN.items()):
            return T.Step(item.question, item.answer, {l: generate.Turn(item, l).thought() for l in LANGS})


def exchange(rng, lang, split="train"):
    """(tools needed, families that must be missing, steps)."""
    roll = rng.random()
    if roll < 0.5:
        needed, steps = T.single(rng, lang, split)
    elif roll < 0.64:
        needed, steps = T.several(rng, lang, split)
    elif roll < 0.78:
        needed, steps = T.chain(rng, lang, split)
    elif roll < 0.86:
        banned, step = T.without_tool(rng, lang)
        return [], banned, [step]
    else:
        return [], set(), None  # a question of the world: drawn when the list is known
    return needed, set(), steps


class Said:
    """What generate.tail asks of a turn."""

    def __init__(self, step, lang):
        self.step, self.lang = step, lang

    def reply(self):
        return self.step.said[self.lang]

    def thought(self, lang=None):
        return self.step.thoughts[lang or self.lang]


def ending(rng, step, lang, form):
    """(prompt tail, completion)."""
    if form == "required":
        return "Assistant: ```json", step.said[lang][len("```json"):]
    return generate.tail(rng, Said(step, lang), form)


def render(rng, system, steps, lang, form, again=None):
    """(segments, completion) of a chat that ends with its last step. `again`: the step before which the system text comes once more, as in a session."""
    segments = [(f"System: {system}", LISTED), ("\n\n", 0)] if system else []
    opening = "User:"
    for at, step in enumerate(steps):
        if at == again:
            segments += [(f"System: {system}", LISTED), ("\n\n", 0)]
        last = at == len(steps) - 1
        hint = rng.choice(generate.THINK_HINTS) if last and form == "open" else ""
        segments += [(opening, ANSWER if at and at != again else 0), (f" {step.user}{hint}\n\nAssistant:", LISTED if step.user.startswith("Function output:") else ASKED)]
        if not last:
            segments += [(" " + step.said[lang], ANSWER), ("\n\n", TURN)]
    prompt_tail, completion = ending(rng, steps[-1], lang, form)
    return segments + [(prompt_tail[len("Assistant:"):], 0)], completion


def document(rng):
    lang = "en" if rng.random() < 0.58 else "zh"
    needed, banned, steps = exchange(rng, lang)
    listed = offer(rng, needed, banned)
    steps = steps or [plain_step(rng, lang, listed)]
    before = []
    for _ in range(rng.choice([0, 0, 0, 0, 0, 1, 1, 2])):
        before.append(plain_step(rng, lang, listed))
    if rng.random() < 0.12 and needed and needed[0].family != "named":  # the same tool was called before
        one = T.ask(rng, lang, "train", needed[0].family)
        one.tool = needed[0]
        before += [T.calling(one.question, [one]), T.Step(T.output([one]), one.answer, T.THOUGHTS["answer"])]
    shown = before + steps[:rng.randrange(1 + steps[0].is_part, len(steps) + 1)]
    lead, spoken = lead_text(rng)
    last, form = shown[-1], rng.choices(generate.FORMS, generate.FORM_WEIGHTS)[0]
    must = last.calls and rng.random() < 0.12
    if must and form in ("plain", "space"):
        form = "required"
    system = system_text(listed, lead, MUST if must else FREE) if listed else lead or None
    again = None
    if last.user.startswith("Function output:"):
        again = len(shown) - 1 if listed and rng.random() < 0.15 else None
        if not last.calls and rng.random() < 0.06:
            system, again = lead or None, None  # the list is left out once no more calls are wanted
    segments, completion = render(rng, system, shown, spoken or lang, form, again)
    return [(text, weight) for text, weight in segments + [(completion, ANSWER)] if text]


# ---- evaluation cases ----

def _case(rng, skill, lang, listed, steps):
    lead, spoken = lead_text(rng)
    form = rng.choices(generate.CASE_FORMS, generate.CASE_WEIGHTS)[0]
    must = steps[-1].calls and rng.random() < 0.15
    if must and form == "plain":
        form = "required"
    system = system_text(listed, lead, MUST if must else FREE)
    segments, completion = render(rng, system, steps, spoken or lang, form)
    return Case(skill, lang, form, ["".join(text for text, _ in segments)], completion)


def call_case(rng, lang):
    needed, steps = T.single(rng, lang, "held")
    return _case(rng, "tool call", lang, offer(rng, needed), steps[:1])


def answer_case(rng, lang):
    needed, steps = T.single(rng, lang, "held")
    return _case(rng, "tool answer", lang, offer(rng, needed), steps)


def steps_case(rng, lang):
    """Two calls at once, one after the other, or one that needs the other's result."""
    needed, steps = rng.choice([T.several, T.chain])(rng, lang, "held")
    listed = offer(rng, needed)
    return _case(rng, "tool steps", lang, listed, steps[:rng.randrange(1 + steps[0].is_part, len(steps) + 1)])


def no_tool_case(rng, lang):
    """A question that no listed tool is for."""
    if rng.random() < 0.2:
        banned, step = T.without_tool(rng, lang)
        return _case(rng, "tool not needed", lang, offer(rng, [T.named(rng)], banned), [step])
    listed = offer(rng, [T.make(rng, rng.choice(FAMILIES + ["named"]))])
    return _case(rng, "tool not needed", lang, listed, [plain_step(rng, lang, listed, "held", rng.choice([s for s in generate.NAMES if s != "story"]))])


CASES = [call_case, answer_case, steps_case, no_tool_case]


def cases(seed, per_skill):
    rng = random.Random(f"tools {seed}")
    return [make(rng, lang) for lang in LANGS for make in CASES for _ in range(per_skill)]


if __name__ == "__main__":
    generate.show(__doc__, document, cases)
