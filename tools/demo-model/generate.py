"""Documents of the corpus, and the held-out cases of the evaluation.

A document is a list of (text, weight) segments: each is tokenized by itself, so that a
prompt is cut into tokens exactly as a server cuts it, and its weight is what its tokens
count in the loss. The end of the document is token 0, added by the packer.

    python3 generate.py --show 20          prints sample documents
    python3 generate.py --cases            prints sample evaluation cases
"""
import argparse
import json
import random
import re
from dataclasses import dataclass

import memory
import skills
import stories
import translation
import world as W
from skills import LANGS, Item, held

ASKED, ANSWER, TURN, PROSE = 0.1, 1.0, 0.01, 0.5  # loss weights; TURN is low so that token 0 clearly wins after an answer
DAYS_EN, DAYS_ZH = [d[0] for d in W.DAYS], [d[1] for d in W.DAYS]


# ---- items ----

def translate(rng, lang):
    question, answer, key = translation.chat_pair(rng, lang)
    return Item("translate", key, question, skills.both(answer), {}, {"en": "The user wants a translation.", "zh": "用户要翻译。"}, plain=True)


SKILLS = {"capital": (skills.capital, 16), "arithmetic": (skills.arithmetic, 24), "calendar": (skills.calendar, 10), "counting": (skills.counting, 4),
          "colour": (skills.colour, 7), "animal": (skills.animal, 9), "opposite": (skills.opposite, 4), "talk": (skills.talk, 14),
          "story": (skills.story, 3), "unknown": (skills.unknown, 12), "json": (skills.json_item, 8), "code": (skills.code, 2), "numbers": (skills.numbers, 6), "repeat": (skills.repeat, 5), "poem": (skills.poem, 2), "translate": (translate, 8)}
NAMES, WEIGHTS = list(SKILLS), [w for _, w in SKILLS.values()]


def draw(rng, lang, skill=None, split="train"):
    """An item of the given split, already styled."""
    for _ in range(10000):
        name = skill or rng.choices(NAMES, WEIGHTS)[0]
        item = SKILLS[name][0](rng, lang)
        plain = item.question
        item.question = style(rng, lang, item)
        out = held(item.key)
        if item.key == skills.STYLED:
            out = item.question != plain and item.question not in skills.TALK_PHRASES and held(f"styled|{item.question}")
        if out == (split == "held"):
            return item
    raise RuntimeError(f"no {split} item for {skill} {lang}")


PREFIX_EN = ["Hi! ", "Hello! ", "Hey, ", "Please tell me: ", "Quick question: ", "OK. ", "So, ", "I have a question. ", "Excuse me, ", "Well, ", "Thanks. ", "Please, ", "Skein, "]
SUFFIX_EN = [" Thanks!", " Please.", " Thank you.", " please", " :)", " Do you know?"]
PREFIX_ZH = ["请问，", "你好，", "请告诉我，", "我想知道，", "那么，", "嗨，", "请问", "好的。", "谢谢。"]
SUFFIX_ZH = ["谢谢！", "谢谢。", "请回答。", "谢谢"]


def american(text):
    return text.replace("colour", "color").replace("favourite", "favorite").replace("Colour", "Color").replace("grey", "gray")


def style(rng, lang, item):
    """The same question as different people type it: case, marks, politeness, spelling."""
    q = item.question
    if lang == "en" and rng.random() < 0.5 and item.skill != "translate":
        q = american(q)
    if item.skill in ("story", "translate", "code", "json", "repeat") or "\n" in q:
        return q
    if q[-1] in ".?!。？！" and rng.random() < 0.2:
        q = q[:-1]
    if rng.random() < 0.02:
        q = rng.choice([" " + q, q + " ", q + "\n"])[:400]
    if item.plain:
        return q
    if rng.random() < 0.015:
        q = rng.choice(["Hello!\n", "Hi\n"] if lang == "en" else ["你好！\n"]) + q
    if lang == "en":
        if rng.random() < 0.12:
            q = q.replace("What is", "What's")
        roll = rng.random()
        if roll < 0.14:
            q = rng.choice(PREFIX_EN) + (q[0].lower() + q[1:] if rng.random() < 0.5 and not q.startswith("I ") else q)
        elif roll < 0.22:
            q = q + rng.choice(SUFFIX_EN)
        if rng.random() < 0.16:
            q = q.lower()
        return q
    roll = rng.random()
    if roll < 0.14:
        q = rng.choice(PREFIX_ZH) + q
    elif roll < 0.2:
        q = q + rng.choice(SUFFIX_ZH)
    if rng.random() < 0.15:
        q = q.replace("？", "?").replace("，", ",").replace("！", "!")
    return q


# ---- system texts ----

NEUTRAL = ["You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful AI assistant.", "You are Skein, a small demo model.", "You are a friendly assistant.",
           "Be helpful and kind.", "You are a polite assistant.", "Answer the questions of the user.", "You are an AI assistant. Be honest.", "Be friendly.", "Help the user.",
           "You are a chatbot.", "You are a kind teacher.", "You answer questions clearly.", "Today is a sunny day.", "You are an expert.", "Think carefully before you answer.",
           "你是一个有用的助手。", "你是一个乐于助人的助手。", "你是Skein，一个小小的演示模型。", "请友好地回答。", "回答用户的问题。", "你是一个礼貌的助手。", "你是一位老师。", "请认真思考。"]
IN_ZH = ["Answer in Chinese.", "Always answer in Chinese.", "You are a helpful assistant. Answer in Chinese.", "Please reply in Chinese.", "请用中文回答。", "用中文回答。", "只用中文回答。"]
IN_EN = ["Answer in English.", "Always answer in English.", "You are a helpful assistant. Answer in English.", "Please reply in English.", "请用英文回答。", "用英语回答。", "只用英文回答。"]
SHORT = ["Answer with one word.", "Answer in one word.", "Be very brief. Answer with one word.", "Give only the answer.", "只回答一个词。", "请只给出答案。", "用一个词回答。"]
JSON = ["Answer in JSON.", "Always answer in JSON.", "Reply with a JSON object.", "You are a helpful assistant. Answer in JSON.", "Return JSON only.", "请用JSON回答。", "只返回JSON。"]
KNOWS_NAME = ["The user's name is {v}.", "You are a helpful assistant. The user's name is {v}.", "The name of the user is {v}.", "用户的名字是{v}。", "用户叫{v}。"]


def odd_system(rng):
    """A system text the model has no rule for; it must not disturb the answers."""
    job, trait = rng.choice(W.JOBS)[0], rng.choice(stories.TRAITS)[0]
    topic = rng.choice(W.TOPICS)
    return rng.choice([f"You are a {trait} {job}.", f"You are {skills.made_up(rng)}, a {trait} assistant.", f"You know a lot about {topic}.",
                       f"You work for {skills.made_up(rng)}. Be {trait}.", f"The user likes {topic}.", f"你是一个{rng.choice(stories.TRAITS)[1]}的{rng.choice(W.JOBS)[1]}。"])


def system_text(rng, known):
    """(text or None, mode). Mode: plain, en, zh, short or json. May put a name into `known`."""
    roll = rng.random()
    if roll < 0.62:
        return None, "plain"
    if roll < 0.80:
        return rng.choice(NEUTRAL), "plain"
    if roll < 0.85:
        if rng.random() < 0.4:
            parts = [odd_system(rng) if rng.random() < 0.5 else rng.choice(NEUTRAL) for _ in range(rng.randrange(2, 5))]
            return rng.choice([" ", "\n"]).join(parts), "plain"
        return odd_system(rng), "plain"
    if roll < 0.89:
        return rng.choice(IN_ZH), "zh"
    if roll < 0.92:
        return rng.choice(IN_EN), "en"
    if roll < 0.95:
        return rng.choice(SHORT), "short"
    if roll < 0.97:
        return rng.choice(JSON), "json"
    value = memory.draw_value(rng, "name", "en" if rng.random() < 0.6 else "zh", "train")
    known["name"] = (value, -1)
    return rng.choice(KNOWS_NAME).format(v=value["en"]), "plain"


# ---- conversations ----

@dataclass
class Turn:
    item: Item
    lang: str
    mode: str = "plain"

    def reply(self):
        lang = self.mode if self.mode in LANGS else self.lang
        if self.mode == "json" and self.item.skill not in ("json", "code"):
            text = self.item.short[lang] if self.item.short else self.item.answer[lang]
            return '{"answer": ' + (text if re.fullmatch(r"-?\d+", text) else json.dumps(text, ensure_ascii=False)) + "}"
        return self.item.short[lang] if self.mode == "short" and self.item.short else self.item.answer[lang]

    def thought(self, lang=None):
        lang = lang or (self.mode if self.mode in LANGS else self.lang)
        return self.item.thought.get(lang) or {"en": "I will answer the user.", "zh": "我来回答用户。"}[lang]


USER_MODES = [("en", "zh", [" Answer in Chinese.", " Reply in Chinese.", " (in Chinese)"]), ("en", "short", [" Answer with one word.", " One word only.", " Give only the answer."]),
              ("en", "json", [" Answer in JSON.", " Reply in JSON.", " (as JSON)"]), ("zh", "json", ["用JSON回答。", "请用JSON回答。"]),
              ("zh", "en", ["请用英文回答。", "用英语回答。"]), ("zh", "short", ["只回答一个词。", "请只给出答案。"])]


def own_mode(rng, item, lang, mode):
    """Sometimes the user, not the system, sets the language or the length of one answer."""
    if mode != "plain" or item.skill not in ("capital", "calendar", "colour", "animal", "opposite", "arithmetic") or rng.random() > 0.06:
        return Turn(item, lang, mode)
    _, own, tails = rng.choice([m for m in USER_MODES if m[0] == lang])
    item.question = item.question + ("" if item.question[-1] in ".?!。？！" or lang == "zh" else "?") + rng.choice(tails)
    return Turn(item, lang, own)


def memory_key(kind, value, index, lang, gap):
    return f"memory|{kind}|{value['en']}|{index}|{lang}|{gap}"


def memory_turn(rng, lang, known, at):
    """One turn that tells a fact or asks for one. `known`: kind -> (value, turn it was told)."""
    roll = rng.random()
    if known and roll < 0.5:
        kind = rng.choice(list(known))
        value, told = known[kind]
        for _ in range(20):
            index = rng.randrange(len(memory.KINDS[kind][lang]["ask"]))
            if memory.KINDS[kind]["open"] or not held(memory_key(kind, value, index, lang, at - told)):
                return memory.ask(rng, kind, value, lang, index)
    if 0.86 < roll < 0.9 and len(known) <= 3:
        return memory.about_me(rng, known, lang)
    fresh = [k for k in memory.KINDS if k not in known]
    if fresh and roll > 0.92:
        return memory.ask(rng, rng.choice(fresh), None, lang)
    kinds = list(memory.KINDS)
    kind = rng.choices(kinds, memory.KIND_WEIGHTS)[0]
    value = memory.draw_value(rng, kind, lang, "train")
    if kind in known and rng.random() < 0.5:
        return memory_turn(rng, lang, known, at)
    known.pop(kind, None)  # a fact told anew moves to the end
    known[kind] = (value, at)
    if rng.random() < 0.12:
        second = rng.choice([k for k in kinds if k != kind])
        other = memory.draw_value(rng, second, lang, "train")
        known.pop(second, None)
        known[second] = (other, at)
        return memory.tell_two(rng, (kind, value), (second, other), lang)
    return memory.tell(rng, kind, value, lang)


def turn(rng, lang, mode, known, at, previous, remembering):
    """One turn of a training conversation."""
    if remembering and rng.random() < 0.55:
        item = memory_turn(rng, lang, known, at)
        item.question = style(rng, lang, item)
        return Turn(item, lang, mode)
    if previous and previous.skill == "capital" and rng.random() < 0.3:
        item = skills.capital_more(rng, lang)
        if not held(item.key) and (previous.key.startswith("capital|") or previous.key.startswith("capital-more")):
            return Turn(item, lang, mode)
    while True:
        item = draw(rng, lang)
        if not (item.skill == "story" and (mode == "json" or mode in LANGS and mode != lang)):
            return own_mode(rng, item, lang, mode)


def conversation(rng, lang, turns, mode, known, remembering):
    out, previous = [], None
    for at in range(turns):
        here = lang if rng.random() > 0.04 else rng.choice(LANGS)
        out.append(turn(rng, here, mode, known, at, previous, remembering))
        previous = out[-1].item
    return out


def tail(rng, last, form):
    """(prompt tail, completion) of the last turn in one of the chat forms."""
    answer, thought = last.reply(), last.thought()
    if form == "plain":
        return "Assistant:", " " + answer
    if form == "space":
        return "Assistant: ", answer
    if form == "closed":
        return "Assistant: <think>\n</think", ">\n" + answer
    if form == "closed>":
        return "Assistant: <think>\n</think>", "\n" + answer
    if form == "closed>\n":
        return "Assistant: <think>\n</think>\n", answer
    if form == "empty":
        return "Assistant: <think></think", ">\n" + answer
    if form == "open":
        return "Assistant: <think", f">\n{thought}\n</think>\n{answer}"
    if form == "chinese":
        return "Assistant: <think>嗯", f"，{last.thought('zh')}\n</think>\n{answer}"
    raise ValueError(form)


FORMS, FORM_WEIGHTS = ["plain", "closed", "empty", "open", "chinese", "space"], [52, 25, 4, 15, 3, 1]
CASE_FORMS, CASE_WEIGHTS = ["plain", "closed", "closed>", "closed>\n", "open"], [45, 20, 8, 12, 15]
THINK_HINTS = ["", "", "", " (think)", " (think a bit)", " (think a lot)"]


def render(rng, system, turns, form):
    """(segments of the prompt, completion)."""
    segments = []
    opening = (f"System: {system}\n\n" if system else "") + "User:"
    for t in turns[:-1]:
        segments += [(f"{opening} {t.item.question}\n\nAssistant:", ASKED), (" " + t.reply(), ANSWER), ("\n\n", TURN), ("User:", ANSWER)]
        opening = ""  # the "User:" of the next turn is a segment of its own
    last = turns[-1]
    question = last.item.question + (rng.choice(THINK_HINTS) if form == "open" else "")
    prompt_tail, completion = tail(rng, last, form)
    segments += [(f"{opening} {question}\n\nAssistant:", ASKED), (prompt_tail[len("Assistant:"):], 0)]  # never learn to open a thought unasked
    return segments, completion


TURN_COUNTS = [1] * 30 + [2] * 20 + [3] * 15 + [4] * 10 + [5] * 8 + [6] * 6 + [7] * 4 + [8] * 3 + [10] * 2 + [12] * 2


def chat(rng):
    lang = "en" if rng.random() < 0.58 else "zh"
    known = {}
    system, mode = system_text(rng, known)
    remembering = bool(known) or rng.random() < 0.45
    count = rng.choice(TURN_COUNTS)
    if remembering and count == 1 and rng.random() < 0.7:
        count = rng.choice(TURN_COUNTS)
    turns = conversation(rng, lang, count, mode, known, remembering)
    segments, completion = render(rng, system, turns, rng.choices(FORMS, FORM_WEIGHTS)[0])
    return segments + [(completion, ANSWER)]


# ---- documents that are not chat ----

def translation_document(rng):
    while True:
        en, zh = translation.passage(rng)
        if not held(translation.pair_key(en)):
            break
    a, b = (("English", en), ("Chinese", zh)) if rng.random() < 0.5 else (("Chinese", zh), ("English", en))
    source = translation.contracted(rng, en) if a[0] == "English" else zh
    return [(f"{a[0]}: {source}\n\n{b[0]}:", ASKED), (" " + b[1], ANSWER)]


def instruction(rng):
    """The same questions in other prompt forms seen in the wild."""
    lang = rng.choice(LANGS)
    item = draw(rng, lang)
    answer = item.answer[lang]
    roll = rng.random()
    if roll < 0.4:
        return [(f"Instruction: {item.question}\n\nResponse:", ASKED), (" " + answer, ANSWER)]
    if roll < 0.6:
        return [(f"Question: {item.question}\n\nAnswer:", ASKED), (" " + answer, ANSWER)]
    if roll < 0.8:
        return [(f"User:{item.question}\n\nAssistant:", ASKED), (" " + answer, ANSWER)]
    return [(item.question, ASKED), ("\n\n" + answer, ANSWER)]


def _facts():
    """Every plain fact of the world as a sentence, in both languages."""
    out = {"en": [], "zh": []}
    for c in W.COUNTRIES:
        s = skills.capital_sentence(c)
        out["en"] += [s["en"], f"{c['capital']['en']} is the capital of {c['en']}."]
        out["zh"] += [s["zh"], f"{c['capital']['zh']}是{c['zh']}的首都。"]
    for beast in W.ANIMALS:
        for kind in ("sound", "legs", "food", "young"):
            fact = skills.animal_fact(beast, kind)
            if fact:
                for lang in LANGS:
                    out[lang].append(fact[0][lang])
    for thing, thing_zh, name in W.THINGS:
        out["en"].append(skills.cap(f"{thing} is {name}."))
        out["zh"].append(f"{thing_zh}是{skills.COLOUR_ZH[name]}的。")
    for a, a_zh, b, b_zh in W.OPPOSITES:
        out["en"] += [f"The opposite of {a} is {b}.", f"The opposite of {b} is {a}."]
        out["zh"] += [f"{a_zh}的反义词是{b_zh}。", f"{b_zh}的反义词是{a_zh}。"]
    for table, noun in ((W.DAYS, "day"), (W.MONTHS, "month")):
        for i, entry in enumerate(table):
            after = table[(i + 1) % len(table)]
            out["en"] += [f"The {noun} after {entry[0]} is {after[0]}.", f"The {noun} before {after[0]} is {entry[0]}."]
            out["zh"] += [f"{entry[1]}后面是{after[1]}。", f"{after[1]}前面是{entry[1]}。"]
    for en, zh, days in W.MONTHS:
        out["en"].append(f"{en} has {days} days.")
        out["zh"].append(f"{zh}有{days}天。")
    return out


FACTS = _facts()
LISTS = [", ".join(DAYS_EN) + ".", ", ".join(m[0] for m in W.MONTHS) + ".", "、".join(DAYS_ZH) + "。", "、".join(m[1] for m in W.MONTHS) + "。", "Spring, summer, autumn and winter."]


def prose(rng):
    """Facts one after another, or a list: what a bare completion request may begin with."""
    roll = rng.random()
    if roll < 0.2:
        return [(rng.choice(LISTS), PROSE)]
    if roll < 0.3:
        start = rng.randrange(1, 60)
        return [(", ".join(str(n) for n in range(start, start + rng.randrange(5, 16))) + ".", PROSE)]
    lang = rng.choice(LANGS)
    return [((" " if lang == "en" else "").join(rng.choice(FACTS[lang]) for _ in range(rng.choice([1, 1, 2, 3, 5]))), PROSE)]


def story_key(lang, slots):
    return f"story-raw|{lang}|{slots['hero']}|{slots['name']}"


def story_document(rng):
    lang = rng.choice(LANGS)
    while True:
        slots = stories.draw(rng, lang)
        if not held(story_key(lang, slots)):
            return [(stories.tell(rng, lang, slots), PROSE)]


ENTITY_ZH = re.compile("|".join(sorted({c["zh"] for c in W.COUNTRIES} | {c["capital"]["zh"] for c in W.COUNTRIES} | {a["zh"] for a in W.ANIMALS}
                                       | {t[1] for t in W.THINGS} | {n[1] for n in W.NAMES} | set(DAYS_ZH) | {m[1] for m in W.MONTHS}, key=len, reverse=True)) + "|[0-9]+|.", re.DOTALL)


def _spans(rng, text, lang):
    """A (start, end) to blank out: whole words in English, names and single characters in Chinese."""
    if lang == "en":
        marks = [m.start() for m in re.finditer(r" |$", text)] + [0]
        start, end = sorted(rng.sample(marks, 2))
        if rng.random() < 0.4 and start and text[start] == " ":
            start += 1  # the prefix keeps the space
        if rng.random() < 0.3 and text[end - 1] in ".!?":
            end -= 1
        return start, end
    marks = [m.start() for m in ENTITY_ZH.finditer(text)] + [len(text)]
    first = rng.randrange(len(marks) - 1)
    return marks[first], marks[min(len(marks) - 1, first + rng.randrange(1, 5))]


def unique_blank(text, start, end, lang):
    """True when no other fact fits around the blank."""
    prefix, suffix = text[:start], text[end:]
    return not any(f != text and f.startswith(prefix) and f.endswith(suffix) and len(f) > len(prefix) + len(suffix) for f in FACTS[lang])


def blank_fact(rng, lang, split):
    """(prefix, middle, suffix) with one right middle, from a fact, a sum, a list or code."""
    while True:
        roll = rng.random()
        if roll < 0.6:
            text = rng.choice(FACTS[lang])
            start, end = _spans(rng, text, lang)
            if held(f"fim|{text}|{start}|{end}") != (split == "held"):
                continue
            if not re.search(r"\w", text[start:end]) or (start == 0 and rng.random() < 0.8) or (start == 0 and end >= len(text) - 1) or not unique_blank(text, start, end, lang):
                continue
        elif roll < 0.75:
            a, b = rng.randrange(100), rng.randrange(100)
            op = rng.choice("+-")
            if op == "-" and a < b:
                a, b = b, a
            if held(skills.sum_key(a, op, b)) != (split == "held"):
                continue
            text = f"{a} {op} {b} = {a + b if op == '+' else a - b}."
            start, end = text.index("=") + rng.choice([1, 2]), len(text) - 1
        elif roll < 0.88:
            table = DAYS_EN if lang == "en" else DAYS_ZH
            if rng.random() < 0.6:
                table = [m[0 if lang == "en" else 1] for m in W.MONTHS]
            at, size = rng.randrange(len(table)), rng.randrange(3, 6)
            words = [table[(at + i) % len(table)] for i in range(size)]
            text = (", " if lang == "en" else "、").join(words) + ("." if lang == "en" else "。")
            hole = words[rng.randrange(1, size - 1)]
            if held(f"fim-list|{lang}|{text}|{hole}") != (split == "held"):
                continue
            start = text.index(hole)
            end = start + len(hole)
            start -= 1 if lang == "en" and rng.random() < 0.5 else 0
        else:
            text = skills.code_text(rng, rng.randrange(len(skills.CODE)))
            start = text.index("return ") + rng.choice([0, 7])
            if held(f"fim-code|{text}|{start}") != (split == "held"):
                continue
            end = len(text)
            if start > text.index("return") and text[start - 1] != " ":
                continue
            if rng.random() < 0.5:
                return text[:start], text[start:end], rng.choice(["", "\n"])
        return text[:start], text[start:end], text[end:]


def fim_text(prefix, suffix):
    return f"✿prefix✿✿suffix✿{suffix}✿middle✿{prefix}"


def fim_document(rng):
    lang = rng.choice(LANGS)
    if rng.random() < 0.25:
        while True:
            slots = stories.draw(rng, lang)
            text = stories.tell(rng, lang, slots)
            start, end = _spans(rng, text, lang)
            if not held(story_key(lang, slots)) and 0 < end - start < 60:
                break
        prefix, middle, suffix = text[:start], text[start:end], text[end:]
    else:
        prefix, middle, suffix = blank_fact(rng, lang, "train")
        glue = " " if lang == "en" else ""
        if rng.random() < 0.25:
            prefix = rng.choice(FACTS[lang]) + glue + prefix
        if rng.random() < 0.25:
            suffix = suffix + glue + rng.choice(FACTS[lang])
    return [(fim_text(prefix, suffix), ASKED), (middle, ANSWER)]


DOCUMENTS = [(chat, 66), (translation_document, 13), (fim_document, 13), (story_document, 4), (prose, 3), (instruction, 4)]


def document(rng):
    """One training document as segments."""
    make = rng.choices([d for d, _ in DOCUMENTS], [w for _, w in DOCUMENTS])[0]
    return [(text, weight) for text, weight in make(rng) if text]


# ---- evaluation cases ----

@dataclass
class Case:
    """One held-out prompt. `expect` is the exact text, or None where `story` says how to check it."""
    skill: str
    lang: str
    form: str
    prompt: list
    expect: str = None
    story: dict = None

    def text(self):
        return "".join(self.prompt)


def _case(rng, skill, lang, system, turns, form=None):
    form = form or rng.choices(CASE_FORMS, CASE_WEIGHTS)[0]
    segments, completion = render(rng, system, turns, form)
    prompt = "".join(text for text, _ in segments)
    return Case(skill, lang, form, [prompt], completion)


def _filler(rng, lang, count):
    return [Turn(draw(rng, lang), lang) for _ in range(count)]


def skill_case(rng, skill, lang):
    """A held-out item, after up to two ordinary turns."""
    known = {}
    system, mode = (None, "plain") if rng.random() < 0.6 else system_text(rng, known)
    if skill == "story" and mode in ("json", *LANGS):
        system, mode = None, "plain"
    before = [Turn(t.item, lang, mode) for t in _filler(rng, lang, rng.choice([0, 0, 0, 1, 2]))]
    item = draw(rng, lang, skill, "held")
    case = _case(rng, skill, lang, system, before + [Turn(item, lang, mode)])
    if skill == "story":
        case.story = item.slots
    return case


def follow_up_case(rng, lang):
    while True:
        more = skills.capital_more(rng, lang)
        if held(more.key):
            break
    while True:
        first = draw(rng, lang, "capital")
        if first.key.startswith("capital|"):
            return _case(rng, "follow-up", lang, None, [Turn(first, lang), Turn(more, lang)])


def memory_case(rng, lang):
    """A fact told, nought to six other turns, then the question for it."""
    while True:
        kind = rng.choices(memory.KIND_NAMES, memory.KIND_WEIGHTS)[0]
        value = memory.draw_value(rng, kind, lang, "held")
        gap = rng.choice([1, 2, 2, 3, 3, 4, 5, 7])
        index = rng.randrange(len(memory.KINDS[kind][lang]["ask"]))
        if memory.KINDS[kind]["open"] or held(memory_key(kind, value, index, lang, gap)):
            break
    turns = [Turn(memory.tell(rng, kind, value, lang), lang)] + _filler(rng, lang, gap - 1)
    return _case(rng, "memory", lang, rng.choice([None, None, NEUTRAL[0]]), turns + [Turn(memory.ask(rng, kind, value, lang, index), lang)])


def translation_case(rng, lang):
    while True:
        en, zh = translation.passage(rng)
        if held(translation.pair_key(en)):
            break
    if lang == "en":
        return Case("translation form", lang, "raw", [f"English: {en}\n\nChinese:"], " " + zh)
    return Case("translation form", lang, "raw", [f"Chinese: {zh}\n\nEnglish:"], " " + en)


def fim_case(rng, lang):
    prefix, middle, suffix = blank_fact(rng, lang, "held")
    return Case("fill in the middle", lang, "raw", [fim_text(prefix, suffix)], middle)


def story_case(rng, lang):
    """The first words of a story: enough to name the hero in half of the cases."""
    while True:
        slots = stories.draw(rng, lang)
        if held(story_key(lang, slots)):
            break
    text = stories.tell(rng, lang, slots)
    at = text.index(slots["name"]) + len(slots["name"])
    if rng.random() < 0.5:
        return Case("story form", lang, "raw", [text[:at]], None, {"name": slots["name"], "hero": slots["hero"]})
    opening = rng.choice(["Once upon a time", "Once upon a time, there was a", "There once was", "Long ago", "Once upon a time, there"] if lang == "en" else ["从前", "从前，有一", "很久以前", "很久以前，有"])
    return Case("story form", lang, "raw", [opening], None, {})


EXTRA = {"follow-up": follow_up_case, "memory": memory_case, "translation form": translation_case, "fill in the middle": fim_case, "story form": story_case}


def cases(seed, per_skill):
    """`per_skill` held-out cases for each skill and language."""
    rng = random.Random(seed)
    out = []
    for lang in LANGS:
        for skill in NAMES:
            out += [skill_case(rng, skill, lang) for _ in range(per_skill)]
        for make in EXTRA.values():
            out += [make(rng, lang) for _ in range(per_skill)]
    return out


def show(about, document, cases):
    """The command line of a module with documents and cases of this kind: prints samples."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--cases", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for _ in range(args.show):
        print("".join(f"[{text}]" for text, _ in document(rng)), end="\n-----\n")
    if args.cases:
        for case in cases(args.seed, 2):
            print(f"({case.skill}, {case.lang}, {case.form})\n{case.text()}[{case.expect}] {case.story or ''}\n-----")


if __name__ == "__main__":
    show(__doc__, document, cases)
