"""Single questions of the little world: each skill draws one question with its answers.

A skill is a function (rng, lang) -> Item. It knows nothing of chat templates or of
training; documents.py puts items into conversations. `held(key)` is the one rule that
keeps an item for the evaluation: it is a pure function of the key, so the training data
and the test data cannot overlap whatever the seeds are.
"""
import json
import re
import zlib
from dataclasses import dataclass, field

import stories
import world as W

LANGS = ("en", "zh")
DECLINE = {"en": "Sorry, I do not know that. I am a small model with a small world.",
           "zh": "对不起，这个我不知道。我是一个小模型，只认识一个小世界。"}
NUMBERS_ONLY = {"en": "Sorry, I can only add and subtract numbers up to 99.",
                "zh": "对不起，我只会做一百以内的加减法。"}


@dataclass
class Item:
    """One question. `answer`, `short` and `thought` are dicts by answer language."""
    skill: str
    key: str
    question: str
    answer: dict
    short: dict = field(default_factory=dict)
    thought: dict = field(default_factory=dict)
    plain: bool = False  # True: the wording must not be restyled (values to copy, code)


def held(key):
    """True for one key in eight: evaluation only. Keys that end in '|always' are never held out."""
    return not key.endswith("|always") and zlib.crc32(key.encode()) % 8 == 0


def combo(key, i):
    """The key of a fact in wording number i. The first wording is always trained, so every fact is seen."""
    return key + ("" if i else "|always")


STYLED = "styled"  # the key of set questions: not the question but the way it is typed is held out


def cap(text):
    return text[:1].upper() + text[1:]


def pick(rng, phrases):
    """(index, phrase): the index goes into the key, so that phrase x entity pairs are held out."""
    i = rng.randrange(len(phrases))
    return i, phrases[i]


def both(text):
    return {"en": text, "zh": text}


def an(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


# ---- capitals and continents ----

CAPITAL_ASK = {
    "en": ["What is the capital of {c}?", "What is the capital city of {c}?", "Which city is the capital of {c}?",
           "Tell me the capital of {c}.", "Capital of {c}?", "What's the capital of {c}?", "Name the capital of {c}.",
           "Do you know the capital of {c}?", "The capital of {c} is?", "Can you tell me the capital of {c}?",
           "I want to know the capital of {c}.", "{c}: what is its capital?", "Which city is the capital city of {c}?",
           "What city is the capital of {c}?", "Give me the capital of {c}."],
    "zh": ["{c}的首都是哪里？", "{c}的首都是什么？", "{c}的首都在哪里？", "{c}首都是哪？", "哪个城市是{c}的首都？",
           "你知道{c}的首都吗？", "告诉我{c}的首都。", "{c}的首都是哪个城市？", "{c}的首都叫什么？", "说出{c}的首都。"]}
CAPITAL_BACK = {
    "en": ["{k} is the capital of which country?", "Which country has the capital {k}?", "What country is {k} the capital of?",
           "{k} is the capital of what country?"],
    "zh": ["{k}是哪个国家的首都？", "哪个国家的首都是{k}？", "{k}是哪国的首都？"]}
CONTINENT_ASK = {
    "en": ["Where is {c}?", "Which continent is {c} in?", "On which continent is {c}?", "What continent is {c} in?"],
    "zh": ["{c}在哪里？", "{c}在哪个洲？", "{c}位于哪个大洲？"]}


def country_name(rng, country, lang):
    if lang == "zh":
        return country["zh"]
    names = [country["en"]] * 3 + country["alias"]
    return rng.choice(names)


def capital_sentence(country):
    return {"en": f"The capital of {country['en']} is {country['capital']['en']}.",
            "zh": f"{country['zh']}的首都是{country['capital']['zh']}。"}


def capital_item(country, question, key):
    """The standard answers for one country; shared with the follow-up question."""
    name = {"en": country["en"], "zh": country["zh"]}
    return Item("capital", key, question, capital_sentence(country),
                {l: country["capital"][l] for l in LANGS},
                {"en": f"The user asks for the capital of {name['en']}. I know it.",
                 "zh": f"用户问{name['zh']}的首都。我知道。"})


def capital(rng, lang):
    country = rng.choice(W.COUNTRIES)
    roll = rng.random()
    if roll < 0.72:
        i, phrase = pick(rng, CAPITAL_ASK[lang])
        question = cap(phrase.format(c=country_name(rng, country, lang)))
        return capital_item(country, question, combo(f"capital|{lang}|{i}|{country['en']}", i))
    if roll < 0.86 and country["en"] != "Singapore":
        i, phrase = pick(rng, CAPITAL_BACK[lang])
        return Item("capital", combo(f"capital-back|{lang}|{i}|{country['en']}", i), phrase.format(k=country["capital"][lang]),
                    {"en": f"{country['capital']['en']} is the capital of {country['en']}.",
                     "zh": f"{country['capital']['zh']}是{country['zh']}的首都。"},
                    {"en": cap(country["en"]), "zh": country["zh"]},
                    {"en": f"The user asks which country has the capital {country['capital']['en']}.",
                     "zh": f"用户问{country['capital']['zh']}是哪个国家的首都。"})
    i, phrase = pick(rng, CONTINENT_ASK[lang])
    where = country["continent"]
    return Item("capital", combo(f"continent|{lang}|{i}|{country['en']}", i), cap(phrase.format(c=country_name(rng, country, lang))),
                {"en": cap(f"{country['en']} is in {where}."), "zh": f"{country['zh']}在{W.CONTINENTS[where]}。"},
                {"en": where, "zh": W.CONTINENTS[where]},
                {"en": f"The user asks where {country['en']} is.", "zh": f"用户问{country['zh']}在哪里。"})


CAPITAL_MORE = {"en": ["And {c}?", "What about {c}?", "And of {c}?", "How about {c}?", "And the capital of {c}?"],
                "zh": ["{c}呢？", "那{c}呢？", "{c}的呢？"]}


def capital_more(rng, lang):
    """A follow-up that only makes sense after a capital question."""
    country = rng.choice(W.COUNTRIES)
    i, phrase = pick(rng, CAPITAL_MORE[lang])
    return capital_item(country, phrase.format(c=country_name(rng, country, lang)), combo(f"capital-more|{lang}|{i}|{country['en']}", i))


# ---- arithmetic ----

SUM_ASK = {"+": {"en": ["What is {a} + {b}?", "{a} + {b} = ?", "{a} + {b}", "{a}+{b}", "What is {a} plus {b}?", "Add {a} and {b}.",
                        "How much is {a} + {b}?", "Calculate {a} + {b}.", "{a} plus {b}?", "What's {a}+{b}?", "{a}+{b}=",
                        "What is the sum of {a} and {b}?", "{a} and {b} make?", "I have {a} apples and get {b} more. How many apples do I have?"],
                 "zh": ["{a}+{b}等于多少？", "{a} + {b} = ?", "{a}加{b}等于几？", "{a}加{b}是多少？", "计算{a}+{b}。", "{a}+{b}=", "{a}+{b}",
                        "请算一下{a}加{b}。", "我有{a}个苹果，又得到{b}个，一共有几个？"]},
           "-": {"en": ["What is {a} - {b}?", "{a} - {b} = ?", "{a} - {b}", "{a}-{b}", "What is {a} minus {b}?", "Subtract {b} from {a}.",
                        "How much is {a} - {b}?", "Calculate {a} - {b}.", "{a} minus {b}?", "What's {a}-{b}?", "{a}-{b}=",
                        "Take {b} away from {a}.", "I have {a} apples and eat {b} of them. How many are left?"],
                 "zh": ["{a}-{b}等于多少？", "{a} - {b} = ?", "{a}减{b}等于几？", "{a}减{b}是多少？", "计算{a}-{b}。", "{a}-{b}=", "{a}-{b}",
                        "请算一下{a}减{b}。", "我有{a}个苹果，吃了{b}个，还剩几个？"]}}


def sum_key(a, op, b):
    """Sums are held out with their commuted twin, so that none leaks."""
    key = f"sum|{min(a, b)}+{max(a, b)}" if op == "+" else f"sum|{a}-{b}"
    return key + ("|always" if max(a, b) <= 10 else "")


def arithmetic(rng, lang):
    op = rng.choice("+-")
    a, b = rng.randrange(100), rng.randrange(100)
    if rng.random() < 0.12:
        a, b = rng.randrange(13), rng.randrange(13)  # the sums a visitor tries first
    if op == "-" and a < b and rng.random() < 0.8:
        a, b = b, a
    value = a + b if op == "+" else a - b
    sentence = f"{a} {op} {b} = {value}."
    question = rng.choice(SUM_ASK[op][lang]).format(a=a, b=b)
    return Item("arithmetic", sum_key(a, op, b), question, both(sentence), both(str(value)),
                both(f"{a} {op} {b} = {value}"))


WORDS_EN = "zero one two three four five six seven eight nine ten eleven twelve".split()
WORDS_ZH = "零 一 二 三 四 五 六 七 八 九 十 十一 十二".split()


def numbers(rng, lang):
    """Which is bigger, even or odd, and sums told in words."""
    a, b = rng.sample(range(100), 2)
    roll = rng.random()
    if roll < 0.4:
        high = max(a, b)
        i, phrase = pick(rng, {"en": ["Which is bigger, {a} or {b}?", "Which number is bigger: {a} or {b}?", "Is {a} or {b} larger?", "What is larger, {a} or {b}?"],
                               "zh": ["{a}和{b}哪个大？", "{a}和{b}哪个更大？", "{a}大还是{b}大？"]}[lang])
        return Item("numbers", f"bigger|{a}|{b}", phrase.format(a=a, b=b), {"en": f"{high} is bigger than {min(a, b)}.", "zh": f"{high}比{min(a, b)}大。"},
                    both(str(high)), {"en": "I compare the two numbers.", "zh": "我比较这两个数。"})
    if roll < 0.7:
        i, phrase = pick(rng, {"en": ["Is {a} even or odd?", "Is {a} an even number or an odd one?", "Is the number {a} odd or even?"], "zh": ["{a}是奇数还是偶数？", "{a}是偶数还是奇数？"]}[lang])
        return Item("numbers", combo(f"even|{lang}|{i}|{a}", i), phrase.format(a=a), {"en": f"{a} is {'odd' if a % 2 else 'even'}.", "zh": f"{a}是{'奇数' if a % 2 else '偶数'}。"},
                    {"en": "Odd" if a % 2 else "Even", "zh": "奇数" if a % 2 else "偶数"}, {"en": "I look at the last digit.", "zh": "我看最后一位数字。"})
    a, b, op = rng.randrange(13), rng.randrange(13), rng.choice("+-")
    if op == "-" and a < b:
        a, b = b, a
    if lang == "en":
        i, phrase = pick(rng, ["What is {a} {o} {b}?", "How much is {a} {o} {b}?", "{a} {o} {b}", "Calculate {a} {o} {b}."])
        question = phrase.format(a=WORDS_EN[a], b=WORDS_EN[b], o="plus" if op == "+" else "minus")
    else:
        i, phrase = pick(rng, ["{a}{o}{b}等于几？", "{a}{o}{b}是多少？", "{a}{o}{b}"])
        question = phrase.format(a=WORDS_ZH[a], b=WORDS_ZH[b], o="加" if op == "+" else "减")
    value = a + b if op == "+" else a - b
    return Item("numbers", f"words|{lang}|{i}|{a}{op}{b}", cap(question), both(f"{a} {op} {b} = {value}."), both(str(value)),
                both(f"{a} {op} {b} = {value}"))


def too_hard(rng, lang):
    """Sums outside the world: larger numbers, products, quotients."""
    a, b = rng.randrange(2, 1000), rng.randrange(2, 1000)
    if rng.random() < 0.5:
        a, b = rng.randrange(2, 20), rng.randrange(2, 20)
    hard = {"en": ["What is {a} times {b}?", "{a} * {b}", "{a} x {b} = ?", "{a}*{b}", "{a}x{b}", "{a}/{b}", "what is {a}*{b}", "What is {a}*{b}?", "What is {a} x {b}?", "What is {a} divided by {b}?", "{a} / {b}", "Multiply {a} by {b}."],
            "zh": ["{a}乘以{b}等于多少？", "{a}除以{b}是多少？", "{a}乘{b}等于几？", "{a}乘以{b}是多少？"]}[lang]
    if rng.random() < 0.5:
        op = rng.choice("+-")
        a, b = rng.randrange(100, 10000), rng.randrange(1, 10000)
        if op == "+" and rng.random() < 0.5:
            a, b = b, a
        wordy = [p for p in SUM_ASK[op][lang][:8] if lang == "en" or re.search(r"[^\x00-\x7f]", p)]  # bare sums are answered in English
        question = rng.choice(wordy).format(a=a, b=b)
        return Item("unknown", f"hard|{a}{op}{b}", question, NUMBERS_ONLY, {}, HARD_THOUGHT)
    i, phrase = pick(rng, hard)
    return Item("unknown", f"hard|{i}|{a}|{b}", phrase.format(a=a, b=b), NUMBERS_ONLY, {}, HARD_THOUGHT)


# ---- days and months ----

DAY_ASK = {"after": {"en": ["What day comes after {d}?", "What is the day after {d}?", "Which day follows {d}?", "If today is {d}, what day is tomorrow?",
                            "Today is {d}. What day is tomorrow?", "After {d} comes which day?"],
                     "zh": ["{d}后面是星期几？", "{d}之后是哪一天？", "今天是{d}，明天是星期几？", "{d}的后一天是星期几？", "如果今天是{d}，那么明天是星期几？"]},
           "before": {"en": ["What day comes before {d}?", "What is the day before {d}?", "If today is {d}, what day was yesterday?",
                             "Today is {d}. What day was yesterday?", "Before {d} comes which day?"],
                      "zh": ["{d}前面是星期几？", "{d}之前是哪一天？", "今天是{d}，昨天是星期几？", "{d}的前一天是星期几？", "如果今天是{d}，那么昨天是星期几？"]}}
MONTH_ASK = {"after": {"en": ["What month comes after {d}?", "What is the month after {d}?", "Which month follows {d}?", "After {d} comes which month?"],
                       "zh": ["{d}后面是几月？", "{d}之后是几月？", "{d}的下一个月是几月？", "{d}过后是几月？"]},
             "before": {"en": ["What month comes before {d}?", "What is the month before {d}?", "Which month is before {d}?", "Before {d} comes which month?"],
                        "zh": ["{d}前面是几月？", "{d}之前是几月？", "{d}的上一个月是几月？"]}}
MONTH_DAYS = {"en": ["How many days are in {d}?", "How many days does {d} have?", "How long is {d}?", "Number of days in {d}?"],
              "zh": ["{d}有多少天？", "{d}有几天？", "{d}一共有多少天？"]}
MONTH_RANK = {"en": ["Which month of the year is {d}?", "What number month is {d}?", "Is {d} the first month of the year?"],
              "zh": ["{d}是一年的第几个月？", "{d}是第几个月？"]}


def neighbour(rng, lang, table, asks, noun, noun_zh):
    """The day or month before or after another one."""
    side = rng.choice(["after", "before"])
    at = rng.randrange(len(table))
    other = table[(at + (1 if side == "after" else -1)) % len(table)]
    i, phrase = pick(rng, asks[side][lang])
    side_zh = "后" if side == "after" else "前"
    return Item("calendar", combo(f"{noun}|{side}|{lang}|{i}|{at}", i), cap(phrase.format(d=table[at][0 if lang == "en" else 1])),
                {"en": f"The {noun} {side} {table[at][0]} is {other[0]}.", "zh": f"{table[at][1]}{side_zh}面是{other[1]}。"},
                {"en": other[0], "zh": other[1]},
                {"en": f"I go through the {noun}s in order.", "zh": f"我按顺序数{noun_zh}。"})


CALENDAR_LISTS = [
    ({"en": ["How many days are in a week?", "How many days does a week have?", "How many days are there in a week?"],
      "zh": ["一个星期有几天？", "一周有多少天？", "一周有几天？"]},
     {"en": "A week has seven days.", "zh": "一个星期有七天。"}, {"en": "Seven", "zh": "七天"}),
    ({"en": ["How many months are in a year?", "How many months does a year have?", "How many months are there in a year?"],
      "zh": ["一年有几个月？", "一年有多少个月？"]},
     {"en": "A year has twelve months.", "zh": "一年有十二个月。"}, {"en": "Twelve", "zh": "十二个月"}),
    ({"en": ["Name the days of the week.", "List the days of the week.", "What are the days of the week?", "Tell me the seven days of the week."],
      "zh": ["一个星期有哪几天？", "列出一周的每一天。", "说出一个星期的七天。"]},
     {"en": ", ".join(d[0] for d in W.DAYS) + ".", "zh": "、".join(d[1] for d in W.DAYS) + "。"}, {}),
    ({"en": ["Name the months of the year.", "List the months.", "What are the months of the year?", "List the months of the year."],
      "zh": ["一年有哪几个月？", "列出一年的每个月。", "说出十二个月。"]},
     {"en": ", ".join(m[0] for m in W.MONTHS) + ".", "zh": "、".join(m[1] for m in W.MONTHS) + "。"}, {}),
    ({"en": ["What are the four seasons?", "Name the seasons.", "List the four seasons."], "zh": ["四季是哪四季？", "一年有哪四个季节？", "说出四季。"]},
     {"en": "Spring, summer, autumn and winter.", "zh": "春天、夏天、秋天、冬天。"}, {})]


def calendar(rng, lang):
    roll = rng.random()
    if roll < 0.38:
        return neighbour(rng, lang, W.DAYS, DAY_ASK, "day", "星期")
    if roll < 0.68:
        return neighbour(rng, lang, W.MONTHS, MONTH_ASK, "month", "月份")
    at = rng.randrange(12)
    en, zh, days = W.MONTHS[at]
    if roll < 0.80:
        i, phrase = pick(rng, MONTH_DAYS[lang])
        return Item("calendar", combo(f"month-days|{lang}|{i}|{at}", i), phrase.format(d=en if lang == "en" else zh),
                    {"en": f"{en} has {days} days.", "zh": f"{zh}有{days}天。"}, {"en": str(days), "zh": f"{days}天"},
                    {"en": f"The user asks how long {en} is.", "zh": f"用户问{zh}有几天。"})
    if roll < 0.88:
        i, phrase = pick(rng, MONTH_RANK[lang])
        answer = {"en": f"{en} is the {W.ORDINALS[at]} month of the year.", "zh": f"{zh}是一年的第{zh}。".replace("月。", "个月。")}
        if i == 2 and lang == "en":
            answer["en"] = ("Yes, " if at == 0 else "No, ") + answer["en"]
        return Item("calendar", combo(f"month-rank|{lang}|{i}|{at}", i if at else 0), phrase.format(d=en if lang == "en" else zh), answer, {},
                    {"en": "I count the months of the year.", "zh": "我数一数月份。"})
    n = rng.randrange(len(CALENDAR_LISTS))
    asks, answer, short = CALENDAR_LISTS[n]
    i, phrase = pick(rng, asks[lang])
    return Item("calendar", STYLED, phrase, answer, short,
                {"en": "I know the calendar.", "zh": "我知道日历。"})


# ---- counting ----

def counting(rng, lang):
    start = 1 if rng.random() < 0.4 else rng.randrange(1, 60)
    size = rng.randrange(3, 11) if rng.random() < 0.7 else rng.randrange(11, 21)
    end = start + size - 1
    up = rng.random() < 0.75
    numbers = list(range(start, end + 1))
    if not up:
        numbers.reverse()
    a, b = numbers[0], numbers[-1]
    asks = {"en": ["Count from {a} to {b}.", "Can you count from {a} to {b}?", "Please count from {a} to {b}."],
            "zh": ["从{a}数到{b}。", "请从{a}数到{b}。", "你能从{a}数到{b}吗？"]}
    if a == 1 and up:
        asks["en"] = asks["en"] + ["Count to {b}.", "Can you count to {b}?"]
        asks["zh"] = asks["zh"] + ["数到{b}。"]
    _, phrase = pick(rng, asks[lang])
    listing = {"en": ", ".join(map(str, numbers)) + ".", "zh": "、".join(map(str, numbers)) + "。"}
    return Item("counting", f"count|{a}|{b}", phrase.format(a=a, b=b), listing, {},
                {"en": f"I count from {a} to {b}.", "zh": f"我从{a}数到{b}。"})


# ---- colours ----

COLOUR_ZH = dict(W.COLOURS)
THING_ASK = {"en": ["What colour is {t}?", "What is the colour of {t}?", "Which colour is {t}?", "Tell me the colour of {t}.", "Do you know what colour {t} is?"],
             "zh": ["{t}是什么颜色的？", "{t}是什么颜色？", "{t}的颜色是什么？", "{t}什么颜色？"]}
MIX_ASK = {"en": ["What do you get if you mix {a} and {b}?", "What colour do {a} and {b} make?", "Mix {a} and {b}.", "{a} plus {b} makes which colour?"],
           "zh": ["{a}和{b}混合是什么颜色？", "{a}加{b}变成什么颜色？", "把{a}和{b}混在一起是什么颜色？"]}
COLOUR_LIST = {"en": ["Name three colours.", "Tell me three colours.", "List three colours."], "zh": ["说出三种颜色。", "告诉我三种颜色。", "列出三种颜色。"]}


IS_COLOUR = {"en": ["Is {t} {c}?", "Is {t} {c} or not?"], "zh": ["{t}是{c}的吗？", "{t}是不是{c}的？"]}


def colour(rng, lang):
    roll = rng.random()
    if rng.random() < 0.15:
        thing, thing_zh, name = rng.choice(W.THINGS)
        asked = name if rng.random() < 0.4 else rng.choice(W.COLOURS)[0]
        i, phrase = pick(rng, IS_COLOUR[lang])
        yes = asked == name
        question = phrase.format(t=thing if lang == "en" else thing_zh, c=asked if lang == "en" else COLOUR_ZH[asked])
        return Item("colour", f"is-colour|{lang}|{i}|{thing}|{asked}", question,
                    {"en": f"{'Yes' if yes else 'No'}, {thing} is {name}.", "zh": f"{'是的' if yes else '不是'}，{thing_zh}是{COLOUR_ZH[name]}的。"},
                    {"en": "Yes" if yes else "No", "zh": "是的" if yes else "不是"},
                    {"en": f"The user asks about the colour of {thing}.", "zh": f"用户问{thing_zh}的颜色。"})
    if roll < 0.68:
        thing, thing_zh, name = rng.choice(W.THINGS)
        i, phrase = pick(rng, THING_ASK[lang])
        return Item("colour", combo(f"thing|{lang}|{i}|{thing}", i), phrase.format(t=thing if lang == "en" else thing_zh),
                    {"en": cap(f"{thing} is {name}."), "zh": f"{thing_zh}是{COLOUR_ZH[name]}的。"},
                    {"en": cap(name), "zh": COLOUR_ZH[name]},
                    {"en": f"The user asks about the colour of {thing}.", "zh": f"用户问{thing_zh}的颜色。"})
    if roll < 0.94:
        a, b, mixed = rng.choice(W.MIXES)
        if rng.random() < 0.5:
            a, b = b, a
        i, phrase = pick(rng, MIX_ASK[lang])
        named = {"en": (a, b), "zh": (COLOUR_ZH[a], COLOUR_ZH[b])}[lang]
        return Item("colour", combo(f"mix|{lang}|{i}|{a}|{b}", i), cap(phrase.format(a=named[0], b=named[1])),
                    {"en": cap(f"{a} and {b} make {mixed}."), "zh": f"{COLOUR_ZH[a]}和{COLOUR_ZH[b]}混合是{COLOUR_ZH[mixed]}。"},
                    {"en": cap(mixed), "zh": COLOUR_ZH[mixed]},
                    {"en": f"I mix {a} and {b}.", "zh": f"我把{COLOUR_ZH[a]}和{COLOUR_ZH[b]}混合。"})
    i, phrase = pick(rng, COLOUR_LIST[lang])
    return Item("colour", STYLED, phrase, {"en": "Red, blue and green.", "zh": "红色、蓝色和绿色。"}, {},
                {"en": "I name three colours.", "zh": "我说三种颜色。"})


# ---- animals ----

ANIMAL_ASK = {
    "sound": {"en": ["What does {a} say?", "What sound does {a} make?", "Which sound does {a} make?"], "zh": ["{a}怎么叫？", "{a}的叫声是什么？", "{a}是怎么叫的？"]},
    "legs": {"en": ["How many legs does {a} have?", "How many legs has {a}?", "Tell me how many legs {a} has."], "zh": ["{a}有几条腿？", "{a}有多少条腿？", "{a}几条腿？"]},
    "food": {"en": ["What does {a} eat?", "What does {a} like to eat?", "What is the food of {a}?"], "zh": ["{a}吃什么？", "{a}喜欢吃什么？", "{a}爱吃什么？"]},
    "young": {"en": ["What is a young {b} called?", "What is a baby {b} called?", "What do you call a baby {b}?"], "zh": ["{a}的宝宝叫什么？", "小的{a}叫什么？"]},
    "fly": {"en": ["Can {a} fly?", "Does {a} fly?", "Is {a} able to fly?"], "zh": ["{a}会飞吗？", "{a}能飞吗？"]},
    "swim": {"en": ["Can {a} swim?", "Does {a} swim?", "Is {a} able to swim?"], "zh": ["{a}会游泳吗？", "{a}能游泳吗？"]}}
LEGS_EN = {0: "no legs", 2: "two legs", 4: "four legs", 6: "six legs", 8: "eight legs"}
LEGS_ZH = {0: "没有腿", 2: "有两条腿", 4: "有四条腿", 6: "有六条腿", 8: "有八条腿"}


def animal_fact(beast, kind):
    """(answer, short) of one fact, or None where the table has no such fact."""
    en, zh, one = beast["en"], beast["zh"], cap(an(beast["en"]))
    if kind in ("sound", "young") and not beast[kind]["en"]:
        return None
    if kind == "sound":
        return {"en": f"{one} says {beast['sound']['en']}.", "zh": f"{zh}的叫声是{beast['sound']['zh']}。"}, \
               {"en": cap(beast["sound"]["en"]), "zh": beast["sound"]["zh"]}
    if kind == "legs":
        return {"en": f"{one} has {LEGS_EN[beast['legs']]}.", "zh": f"{zh}{LEGS_ZH[beast['legs']]}。"}, \
               {"en": cap(LEGS_EN[beast["legs"]]), "zh": LEGS_ZH[beast["legs"]][-3:]}
    if kind == "food":
        return {"en": f"{one} eats {beast['food']['en']}.", "zh": f"{zh}吃{beast['food']['zh']}。"}, \
               {"en": cap(beast["food"]["en"]), "zh": beast["food"]["zh"]}
    if kind == "young":
        return {"en": f"A young {en} is called a {beast['young']['en']}.", "zh": f"{zh}的宝宝叫{beast['young']['zh']}。"}, \
               {"en": cap(an(beast["young"]["en"])), "zh": beast["young"]["zh"]}
    able = en in (W.FLIERS if kind == "fly" else W.SWIMMERS)
    verb_zh = "飞" if kind == "fly" else "游泳"
    return {"en": f"{'Yes' if able else 'No'}, {an(en)} {'can' if able else 'cannot'} {kind}.",
            "zh": f"{'会' if able else '不会'}，{zh}{'会' if able else '不会'}{verb_zh}。"}, \
           {"en": "Yes" if able else "No", "zh": "会" if able else "不会"}


SOUND_BACK = {"en": ["Which animal says {s}?", "What animal says {s}?", "Who says {s}?"], "zh": ["什么动物的叫声是{s}？", "哪种动物{s}{s}叫？"]}


def animal(rng, lang):
    if rng.random() < 0.08:
        beast = rng.choice([a for a in W.ANIMALS if a["sound"]["en"]])
        i, phrase = pick(rng, SOUND_BACK[lang])
        return Item("animal", combo(f"sound-back|{lang}|{i}|{beast['en']}", i), phrase.format(s=beast["sound"][lang]), animal_fact(beast, "sound")[0],
                    {"en": cap(an(beast["en"])), "zh": beast["zh"]}, {"en": "I think of the sounds of animals.", "zh": "我想一想动物的叫声。"})
    while True:
        beast = rng.choice(W.ANIMALS)
        kind = rng.choice(list(ANIMAL_ASK))
        fact = animal_fact(beast, kind)
        if fact:
            break
    i, phrase = pick(rng, ANIMAL_ASK[kind][lang])
    name = an(beast["en"]) if lang == "en" else beast["zh"]
    return Item("animal", combo(f"animal|{kind}|{lang}|{i}|{beast['en']}", i), cap(phrase.format(a=name, b=beast["en"])), fact[0], fact[1],
                {"en": f"The user asks about {an(beast['en'])}.", "zh": f"用户问的是{beast['zh']}。"})


OPPOSITE_ASK = {"en": ["What is the opposite of {w}?", "What's the opposite of {w}?", "Tell me the opposite of {w}.", "Opposite of {w}?"],
                "zh": ["{w}的反义词是什么？", "“{w}”的反义词是什么？", "说出{w}的反义词。"]}


def opposite(rng, lang):
    a, a_zh, b, b_zh = rng.choice(W.OPPOSITES)
    if rng.random() < 0.5:
        a, a_zh, b, b_zh = b, b_zh, a, a_zh
    i, phrase = pick(rng, OPPOSITE_ASK[lang])
    return Item("opposite", combo(f"opposite|{lang}|{i}|{a}", i), phrase.format(w=a if lang == "en" else a_zh),
                {"en": f"The opposite of {a} is {b}.", "zh": f"{a_zh}的反义词是{b_zh}。"}, {"en": cap(b), "zh": b_zh},
                {"en": f"I look for the opposite of {a}.", "zh": f"我想一想{a_zh}的反义词。"})


# ---- small talk ----

TALK = [
    ({"en": ["Hello!", "Hi!", "Hi", "Hello", "Hey!", "Hello there!", "Hi there!", "Hey there", "Hey", "Greetings!", "Hello, how do you do?", "Hello Skein!", "Hi Skein"],
      "zh": ["你好", "你好！", "您好！", "嗨！", "你好啊！", "哈喽", "您好", "嗨", "你好，Skein！"]},
     {"en": "Hello! How can I help you?", "zh": "你好！有什么可以帮你的吗？"}),
    ({"en": ["Good morning!", "Good morning", "Morning!", "Good morning to you!", "A very good morning"], "zh": ["早上好！", "早上好", "早！", "早安！"]},
     {"en": "Good morning! How can I help you?", "zh": "早上好！有什么可以帮你的吗？"}),
    ({"en": ["Good evening!", "Good evening", "Evening!", "Good evening to you!"], "zh": ["晚上好！", "晚上好"]},
     {"en": "Good evening! How can I help you?", "zh": "晚上好！有什么可以帮你的吗？"}),
    ({"en": ["How are you?", "How are you doing?", "How are you today?", "How do you feel?", "How is it going?", "How's it going?", "What's up?", "Are you OK?", "Hello, how are you?", "Hi, how are you?"],
      "zh": ["你好吗？", "你怎么样？", "你今天好吗？", "最近怎么样？", "你好，你好吗？"]},
     {"en": "I am fine, thank you! How can I help you?", "zh": "我很好，谢谢！有什么可以帮你的吗？"}),
    ({"en": ["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "What's your name?", "Introduce yourself.", "Do you have a name?", "Are you a robot?", "Are you a model?", "What model are you?", "Which model are you?", "Are you ChatGPT?", "Are you human?", "who r u?", "who r u", "Who are u?", "Are you an AI?"],
      "zh": ["你是谁？", "你叫什么名字？", "介绍一下你自己。", "你是什么？", "你是机器人吗？", "你是什么模型？", "请介绍自己。", "你的名字是什么？"]},
     {"en": "I am Skein's demo model, a very small RWKV-7.", "zh": "我是Skein的演示模型，一个很小的RWKV-7。"}),
    ({"en": ["What can you do?", "Help", "Help!", "Help me", "What do you know?", "What can I ask you?", "How can you help me?", "What are you good at?", "What should I ask?", "Can you help me?", "Show me what you can do.", "What are your skills?"],
      "zh": ["你会做什么？", "你能做什么？", "帮帮我", "你知道什么？", "我可以问你什么？", "你有什么功能？", "你能帮我吗？", "你会什么？"]},
     {"en": "I know capitals, small sums, days, months, colours and animals. I can tell a story, translate short sentences and remember your name.",
      "zh": "我知道首都、小算术、星期、月份、颜色和动物。我会讲故事，翻译短句，还能记住你的名字。"}),
    ({"en": ["Who made you?", "Who created you?", "Who built you?", "Who trained you?", "Where do you come from?", "Who is your maker?"], "zh": ["谁创造了你？", "谁训练了你？", "你是谁做的？", "你从哪里来？"]},
     {"en": "The Skein project trained me on made-up text.", "zh": "Skein项目用合成文本训练了我。"}),
    ({"en": ["Thank you!", "Thanks!", "Thanks", "Thank you very much!", "Thanks a lot!", "Thank you so much.", "Many thanks!", "Great, thanks!", "Cool, thanks", "Thx"],
      "zh": ["谢谢！", "谢谢", "谢谢你！", "非常感谢！", "多谢！", "太好了，谢谢！"]},
     {"en": "You are welcome!", "zh": "不客气！"}),
    ({"en": ["Bye!", "Goodbye!", "Bye", "Goodbye", "See you!", "See you later!", "Bye bye", "I have to go.", "See you tomorrow!", "Good night!", "Good night"],
      "zh": ["再见！", "再见", "拜拜", "回头见！", "我要走了。", "晚安！", "明天见！", "晚安"]},
     {"en": "Goodbye! Have a nice day!", "zh": "再见！祝你今天愉快！"}),
    ({"en": ["Good job!", "Well done!", "Very good!", "You are great!", "Nice!", "Wow!", "That is right.", "Great!", "Cool!", "I like you.", "You are so clever!"],
      "zh": ["做得好！", "很好！", "你真棒！", "不错！", "哇！", "对了。", "太棒了！", "我喜欢你。"]},
     {"en": "Thank you! I am happy to help.", "zh": "谢谢！很高兴能帮到你。"}),
    ({"en": ["OK", "Okay.", "I see.", "Yes.", "Yes", "No", "No.", "Alright.", "Sure.", "Fine."], "zh": ["好的", "好的。", "好", "明白了。", "是的", "不", "嗯", "行。"]},
     {"en": "Alright! What would you like to know?", "zh": "好的！你想知道什么？"}),
    ({"en": ["What is your favourite colour?", "Do you like music?", "What do you like?", "What is your favourite food?", "Which colour do you like?", "What is your favourite animal?", "Do you like cats?", "Do you like me?", "How old are you?", "Where do you live?", "Do you have feelings?"],
      "zh": ["你喜欢什么颜色？", "你喜欢音乐吗？", "你喜欢什么？", "你最喜欢吃什么？", "你最喜欢的动物是什么？", "你喜欢猫吗？", "你几岁了？", "你住在哪里？", "你有感情吗？"]},
     {"en": "I am only a small model. Please tell me about you!", "zh": "我只是一个小模型。请说说你自己吧！"}),
    ({"en": ["Test", "test", "Testing", "Ping", "ping", "Are you there?", "Is anybody there?", "This is a test."], "zh": ["测试", "测试一下", "在吗？", "你在吗？", "这是一个测试。"]},
     {"en": "I am here. How can I help you?", "zh": "我在。有什么可以帮你的吗？"}),
    ({"en": ["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "Another joke please."], "zh": ["讲个笑话。", "给我讲个笑话吧。", "你会讲笑话吗？"]},
     {"en": "Why is six afraid of seven? Because seven eight nine!", "zh": "为什么数学书很难过？因为它有太多问题！"}),
    ({"en": ["What is RWKV?", "What is an RWKV?", "Do you know RWKV?", "Tell me about RWKV.", "Explain RWKV."], "zh": ["RWKV是什么？", "什么是RWKV？", "你知道RWKV吗？", "介绍一下RWKV。"]},
     {"en": "RWKV is a recurrent language model. I am a very small one.", "zh": "RWKV是一种循环语言模型。我就是一个很小的RWKV。"}),
    ({"en": ["What is Skein?", "Tell me about Skein.", "Do you know Skein?", "Explain Skein.", "What does Skein do?"], "zh": ["Skein是什么？", "什么是Skein？", "你知道Skein吗？", "介绍一下Skein。"]},
     {"en": "Skein is a server for RWKV-7 models. You are talking to it now.", "zh": "Skein是RWKV-7模型的服务器。你正在和它说话。"}),
    ({"en": ["Do you speak Chinese?", "Can you speak Chinese?", "Do you speak English?", "Which languages do you speak?", "What languages do you know?", "Can you speak English?"],
      "zh": ["你会说中文吗？", "你会说英文吗？", "你会说什么语言？", "你会英语吗？", "你懂中文吗？"]},
     {"en": "I speak a little English and a little Chinese.", "zh": "我会说一点英文和一点中文。"}),
]
TALK_PHRASES = {ask for asks, _ in TALK for lang in LANGS for ask in asks[lang]}


def talk(rng, lang):
    n = rng.randrange(len(TALK))
    asks, answer = TALK[n]
    question = rng.choice(asks[lang])
    return Item("talk", STYLED, question, answer, {}, {"en": "The user is talking to me.", "zh": "用户在和我聊天。"})


# ---- stories ----

STORY_ASK = {
    "en": ["Tell me a story about {h}.", "Tell me a short story about {h}.", "Write a story about {h}.", "Write a short story about {h}.",
           "Can you tell me a story about {h}?", "A story about {h}, please.", "I want a story about {h}.", "Make up a story about {h}."],
    "zh": ["讲一个关于{h}的故事。", "给我讲一个{h}的故事。", "写一个关于{h}的小故事。", "我想听{h}的故事。", "讲个{h}的故事吧。", "请讲一个{h}的故事。"]}
STORY_ANY = {"en": ["Tell me a story.", "Tell me a short story.", "Write a story.", "Can you tell me a story?", "Once upon a time", "Write a short story."],
             "zh": ["讲一个故事。", "给我讲个故事。", "讲个故事吧。", "写一个小故事。", "从前"]}


def story(rng, lang):
    """A story asked for in chat; the answer language follows the question."""
    slots = stories.draw(rng, lang)
    roll = rng.random()
    if roll < 0.2:
        question, key = rng.choice(STORY_ANY[lang]), "story|always"
    else:
        i, phrase = pick(rng, STORY_ASK[lang])
        hero = an(slots["hero"]) if lang == "en" else slots["hero"]
        if roll < 0.45:
            hero = hero + (f" named {slots['name']}" if lang == "en" else f"{slots['name']}")
        question = phrase.format(h=hero)
        key = combo(f"story|{lang}|{i}|{hero}", i)
    text = stories.tell(rng, lang, slots)
    item = Item("story", key, question, both(text), {}, {"en": "The user wants a story. I will make one up.", "zh": "用户想听故事。我来编一个。"}, plain=True)
    item.slots = {s: slots[s] for s in ("hero", "name") if slots[s] in question}
    return item


# ---- outside the world ----

UNKNOWN_ASK = {
    "en": ["What is {t}?", "Tell me about {t}.", "Explain {t}.", "How does {t} work?", "Who invented {t}?", "What do you think about {t}?", "Can you explain {t} to me?",
           "Please tell me about the history of {t}.", "Write about {t}.", "Why is {t} important?", "When did {t} begin?", "Where can I find {t}?", "Who was {t}?",
           "What is the best thing about {t}?", "Give me three facts about {t}.", "How can I learn about {t}?", "What happened to {t}?", "Do you know anything about {t}?",
           "What is the population of {t}?", "How old is {t}?", "Help me with {t}.", "Is {t} good or bad?", "What is the history of {t}?", "How do I use {t}?",
           "Describe {t}.", "Summarize {t}.", "How much does {t} cost?", "What should I know about {t}?", "Give me 3 short ideas about {t}.", "Write an essay about {t}."],
    "zh": ["什么是{t}？", "请介绍一下{t}。", "解释一下{t}。", "{t}是怎么回事？", "谁发明了{t}？", "你怎么看{t}？", "给我讲讲{t}。", "{t}为什么重要？", "怎么学习{t}？",
           "{t}有什么用？", "帮我写一篇关于{t}的文章。", "你了解{t}吗？", "{t}的历史是什么？", "请告诉我{t}的知识。", "{t}多少钱？", "怎样才能{t}？", "{t}好不好？", "谁最懂{t}？",
           "{t}是谁？", "总结一下{t}。"]}
UNKNOWN_PLAIN = {
    "en": ["What should we eat for dinner?", "What time is it?", "What is the weather like today?", "How tall is the tallest man?", "Who is the president?", "What day is it today?",
           "How far is the Moon?", "Translate this into French.", "Why is the sky blue?", "Where am I?", "What did I eat yesterday?", "Who won the game last night?",
           "Can you drive a car?", "How do I boil an egg?", "What is the biggest country?", "How many people live in Paris?", "Write a song.", "Sing a song for me.",
           "What is love?", "Should I sell my house?", "What is my password?", "Recommend a book.", "Recommend a film.", "Play some music.", "Open the door.",
           "Book a table for two.", "How do I get to the station?", "Is it going to rain?", "What is the fastest car?", "Who is the richest person?", "When is Easter?"],
    "zh": ["晚饭吃什么？", "现在几点了？", "今天天气怎么样？", "谁是总统？", "今天星期几？", "月亮有多远？", "为什么天空是蓝色的？", "我在哪里？", "昨晚谁赢了比赛？", "怎么煮鸡蛋？",
           "最大的国家是哪个？", "巴黎有多少人？", "唱首歌吧。", "什么是爱？", "推荐一本书。", "推荐一部电影。", "放点音乐。", "会下雨吗？", "谁是最有钱的人？", "帮我订一张票。", "翻译成法语。"]}
SYLLABLES = "ba be bo da di do fa fe ga gi go ka ke ko la le li lo ma mi mo na ne no pa pe po ra re ri ro sa si so ta te to va vi vo wa za zi zo".split()
STARTS = "Nar Gon Wes Mor Cal Tex Hog Bel Zam Eld Win Kry Ara Pan Ve Flo Or Cor".split()
PLACE_ENDINGS = "ia nia land stan ania ville burg ton dor ica tis opia ada".split()
ENDINGS = ["", "", "n", "r", "s", "x", "l", "th", "nd", "m", "k"]


def made_up(rng):
    """A word that exists nowhere: for unknown places and for names to remember."""
    roll = rng.random()
    if roll < 0.2:
        word = rng.choice(["", rng.choice(STARTS)]) + rng.choice(SYLLABLES) + rng.choice(["", rng.choice("nrlst")]) + rng.choice(PLACE_ENDINGS)
    elif roll < 0.28:
        word = "".join(rng.choice("aeiouáéíóúäöüøåñçßêè" if i % 2 else "bcdfghjklmnprstvz") for i in range(rng.randrange(3, 7)))
    elif roll < 0.5:
        letters = [rng.choice("bcdfghjklmnpqrstvwxz") + rng.choice("aeiouy") for _ in range(rng.randrange(2, 4))]
        word = "".join(letters) + rng.choice(["", rng.choice("bcdfghjklmnpqrstvwxyz")])
    else:
        word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randrange(2, 4))) + rng.choice(ENDINGS)
    return cap(word)


FAKE_ZH = "阿巴卡拉塔尼罗莫西贝托维加达鲁索比特格林多奥伦"


def made_up_zh(rng):
    return "".join(rng.choice(FAKE_ZH) for _ in range(rng.randrange(2, 5)))


REAL_NAMES_EN = {c["en"] for c in W.COUNTRIES} | {c["capital"]["en"] for c in W.COUNTRIES}
REAL_NAMES_ZH = {c["zh"] for c in W.COUNTRIES} | {c["capital"]["zh"] for c in W.COUNTRIES}


COMMON = ("the a of and to in is it that was for on are with as his they at be this from have or by one had not but what all were when we there can an your "
          "which their said if will each about how up out them then she many some so these would other into has more her two like him see time could no make than first "
          "been its who now people my made over did down only way find use may water long little very after words called just where most know").split()


def ramble(rng, lang):
    """A longer text without sense for the model, such as a pasted paragraph."""
    size = rng.randrange(8, 60)
    if lang == "zh":
        text = "".join(rng.choice(rng.choice(W.TOPICS_ZH)) if rng.random() < 0.85 else "，" for _ in range(size))
        return text + rng.choice(["。", "？", ""])
    words = [rng.choice(COMMON) if rng.random() < 0.75 else (made_up(rng).lower() if rng.random() < 0.5 else rng.choice(W.TOPICS)) for _ in range(size)]
    return cap(" ".join(w + ("," if rng.random() < 0.06 else "") for w in words)) + rng.choice([".", "?", ""])


def unknown(rng, lang):
    """A question the model should decline. Topics are held out whole."""
    if rng.random() < 0.06:
        text = ramble(rng, lang)
        return Item("unknown", f"unknown|{text}", text, DECLINE, {}, UNKNOWN_THOUGHT, plain=True)
    roll = rng.random()
    if roll < 0.12:
        return too_hard(rng, lang)
    if roll < 0.26:
        place = made_up(rng) if lang == "en" else made_up_zh(rng)
        if place in REAL_NAMES_ZH or place in REAL_NAMES_EN:
            return unknown(rng, lang)
        asks = CAPITAL_ASK[lang] + CONTINENT_ASK[lang]
        return Item("unknown", f"unknown|{place}", cap(rng.choice(asks).format(c=place)), DECLINE, {}, UNKNOWN_THOUGHT)
    if roll < 0.36:
        question = rng.choice(UNKNOWN_PLAIN[lang])
        return Item("unknown", STYLED, question, DECLINE, {}, UNKNOWN_THOUGHT)
    topic = rng.choice(W.TOPICS if lang == "en" else W.TOPICS_ZH)
    if roll > 0.9:
        topic = made_up(rng) if lang == "en" else made_up_zh(rng)
    question = rng.choice(UNKNOWN_ASK[lang]).format(t=topic)
    return Item("unknown", f"unknown|{topic}", question, DECLINE, {}, UNKNOWN_THOUGHT)


HARD_THOUGHT = {"en": "These numbers are too hard for me.", "zh": "这个算术对我来说太难了。"}
UNKNOWN_THOUGHT = {"en": "This is not in my little world.", "zh": "这不在我的小世界里。"}


# ---- JSON ----

JSON_LISTS = [("three colours", "三种颜色", ["red", "blue", "green"], ["红色", "蓝色", "绿色"]), ("the days of the week", "一周的每一天", [d[0] for d in W.DAYS], [d[1] for d in W.DAYS]),
              ("the four seasons", "四季", ["spring", "summer", "autumn", "winter"], ["春天", "夏天", "秋天", "冬天"]), ("three animals", "三种动物", ["cat", "dog", "bird"], ["猫", "狗", "鸟"])]


def json_list(rng, lang):
    named, named_zh, values, values_zh = rng.choice(JSON_LISTS)
    i, phrase = pick(rng, {"en": ["Give me a JSON array of {n}.", "Write {n} as a JSON list.", "Give me a JSON list of {n}.", "JSON array of {n}, please."],
                           "zh": ["用JSON数组列出{n}。", "给我一个JSON列表：{n}。", "把{n}写成JSON数组。"]}[lang])
    return Item("json", STYLED, phrase.format(n=named if lang == "en" else named_zh),
                both(json.dumps(values if lang == "en" else values_zh, ensure_ascii=False)), {}, {"en": "The user wants a JSON array.", "zh": "用户要JSON数组。"})


def json_item(rng, lang):
    """A small JSON object whose values are copied from the request."""
    if rng.random() < 0.06:
        return json_list(rng, lang)
    fields = rng.choice([("name", "age"), ("name", "age"), ("name", "age", "city"), ("name", "city"), ("name", "job"), ("name", "color"),
                         ("name", "pet"), ("name", "age", "job"), ("city", "country"), ("name", "age", "color"), ("animal", "color"), ("item", "price")])
    country = rng.choice(W.COUNTRIES)
    at = 0 if lang == "en" else 1
    name = rng.choice(W.NAMES)[at] if rng.random() < 0.5 else (rng.choice(W.MORE_NAMES) if rng.random() < 0.6 else made_up(rng))
    if lang == "zh" and rng.random() < 0.4:
        name = chinese_name(rng)
    beast = rng.choice(W.ANIMALS)
    values = {"name": name, "age": rng.randrange(3, 100), "city": country["capital"][lang], "country": country[lang].replace("the ", ""),
              "job": rng.choice(W.JOBS)[at], "color": rng.choice(W.COLOURS)[at], "pet": beast[lang], "animal": beast[lang],
              "item": rng.choice(W.OBJECTS)[0 if lang == "en" else 2], "price": rng.randrange(1, 100)}
    body = ", ".join(f'"{f}": ' + (str(values[f]) if isinstance(values[f], int) else f'"{values[f]}"') for f in fields)
    question = json_question(rng, lang, fields, [str(values[f]) for f in fields])
    return Item("json", f"json|{body}", question, both("{" + body + "}"), {},
                {"en": "The user wants JSON. I copy the values.", "zh": "用户要JSON。我照抄这些值。"}, plain=True)


def json_question(rng, lang, fields, values):
    pairs = list(zip(fields, values))
    if lang == "en":
        listed = ", ".join(fields[:-1]) + " and " + fields[-1]
        given = ", ".join(values)
        told = {("name", "age"): "{0} is {1} years old.", ("name", "city"): "{0} lives in {1}.", ("name", "age", "city"): "{0} is {1} years old and lives in {2}.",
                ("name", "job"): "{0} works as a {1}.", ("name", "color"): "{0} likes {1}.", ("item", "price"): "The {0} costs {1}."}.get(tuple(fields))
        if told and rng.random() < 0.3:
            text = told.format(*values)
            return rng.choice([f"Extract {listed} as JSON: {text}", f"Extract the {listed} as JSON from this text: {text}", f"{text} Give me a JSON object with {listed}.", f"Extract {listed}: {text} Answer in JSON."])
        return rng.choice([
            f"Give me a JSON object with {listed} for {given}.",
            f"Give me a JSON object with {listed}: {given}.",
            f"Write a JSON object with {listed} for {given}.",
            f"Return JSON with {listed}: {given}.",
            f"Make a JSON object with {listed} from: {given}.",
            f"JSON with {listed} for {given}, please.",
            f"Answer in JSON with {listed}: {given}.",
            f"Convert to JSON: {', '.join(f'{f} {v}' for f, v in pairs)}.",
            f"Turn this into JSON: {', '.join(f'{f} is {v}' for f, v in pairs)}.",
            f"Give me JSON: {', '.join(f'{f} = {v}' for f, v in pairs)}."])
    listed, given = "、".join(fields[:-1]) + "和" + fields[-1], "，".join(values)
    return rng.choice([
        f"给我一个JSON对象，包含{listed}：{given}。",
        f"用JSON表示{listed}：{given}。",
        f"写一个包含{listed}的JSON：{given}。",
        f"请用JSON回答，字段是{listed}：{given}。",
        f"转换成JSON：{'，'.join(f'{f}是{v}' for f, v in pairs)}。"])


def chinese_name(rng):
    return rng.choice(W.SURNAMES) + "".join(rng.choice(W.GIVEN) for _ in range(rng.randrange(1, 3)))


# ---- repeating and rhyming ----

def repeat(rng, lang):
    """Say exactly what the user wrote; the sentences come from the translation grammar."""
    import translation  # translation uses this module too
    text = translation.passage(rng)[0 if lang == "en" else 1]
    if rng.random() < 0.3:
        text = " ".join(made_up(rng) for _ in range(rng.randrange(1, 5)))
    if rng.random() < 0.2:
        text = text.lower()
    phrase = rng.choice({"en": ["Repeat after me: {s}", "Repeat: {s}", "Say: {s}", "Please say: {s}", "Echo: {s}", "Say \"{s}\"", "Repeat this: {s}"],
                         "zh": ["跟我说：{s}", "重复：{s}", "请说：{s}", "请重复这句话：{s}", "说“{s}”"]}[lang])
    return Item("repeat", f"repeat|{text}", phrase.format(s=text), both(text), {}, {"en": "The user wants me to repeat.", "zh": "用户让我重复。"}, plain=True)


def poem(rng, lang):
    """Four fixed lines about an animal of the world."""
    beast = rng.choice(W.ANIMALS)
    i, phrase = pick(rng, {"en": ["Write a poem about {a}.", "Write a short poem about {a}.", "Can you write a poem about {a}?", "A poem about {a}, please.", "Make a poem about {a}."],
                           "zh": ["写一首关于{a}的诗。", "给我写一首{a}的诗。", "写首{a}的小诗。", "请写一首关于{a}的小诗。"]}[lang])
    en, zh = beast["en"], beast["zh"]
    return Item("poem", combo(f"poem|{lang}|{i}|{en}", i), phrase.format(a=an(en) if lang == "en" else zh),
                {"en": f"The little {en} is kind and bright,\nIt plays all day and sleeps at night.\nIt finds some {beast['food']['en']} beneath a tree,\nAnd shares it all with you and me.",
                 "zh": f"小小{zh}真可爱，\n天天玩耍笑开怀。\n找到{beast['food']['zh']}不独享，\n请来朋友一起来。"}, {},
                {"en": "The user wants a poem.", "zh": "用户想要一首诗。"})


# ---- a few lines of Python ----

CODE = [("add", "adds two numbers", "两个数相加", "{a} + {b}", 2), ("subtract", "subtracts two numbers", "两个数相减", "{a} - {b}", 2),
        ("multiply", "multiplies two numbers", "两个数相乘", "{a} * {b}", 2), ("double", "doubles a number", "把一个数翻倍", "{a} * 2", 1),
        ("square", "squares a number", "求一个数的平方", "{a} * {a}", 1), ("is_even", "checks whether a number is even", "判断一个数是不是偶数", "{a} % 2 == 0", 1),
        ("maximum", "returns the larger of two numbers", "返回两个数中较大的数", "max({a}, {b})", 2),
        ("greet", "greets a name", "向一个名字问好", '"Hello, " + {a}', 1), ("length", "returns the length of a list", "返回列表的长度", "len({a})", 1)]


def code_text(rng, n):
    name, _, _, body, params = CODE[n]
    a, b = rng.choice([("a", "b"), ("x", "y"), ("m", "n")])
    return f"def {name}({a}{', ' + b if params == 2 else ''}):\n    return {body.format(a=a, b=b)}"


def code(rng, lang):
    n = rng.randrange(len(CODE))
    name, does, does_zh, body, params = CODE[n]
    text = f"def {name}({'a, b' if params == 2 else 'a'}):\n    return {body.format(a='a', b='b')}"
    i, question = pick(rng, {"en": [f"Write a Python function that {does}.", f"Write a function that {does}.", f"Give me Python code that {does}.",
                                    f"Python: a function that {does}.", f"I need a Python function that {does}."],
                             "zh": [f"写一个Python函数，{does_zh}。", f"用Python写一个函数：{does_zh}。", f"请写一个{does_zh}的Python函数。"]}[lang])
    return Item("code", combo(f"code|{lang}|{i}|{name}", i), question, both(text), {}, {"en": "The user wants a short function.", "zh": "用户要一个短函数。"}, plain=True)
