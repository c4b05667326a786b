"""Sentence pairs of the little world: each draw gives the same sentence in English and Chinese.

The grammar is one-to-one, so that both directions have exactly one right answer: a
definite English subject is a bare Chinese noun, an indefinite one carries a classifier.
"""
import skills
import world as W

SET_PHRASES = {p[0] for p in W.PHRASES}
COUNT_ZH = ["一", "两", "三", "四", "五", "六", "七", "八", "九", "十"]
COLOUR_ZH = dict(W.COLOURS)


def plural(noun):
    return W.PLURALS.get(noun, noun + "s")


def counted(rng):
    """Some things: 'a red apple' / '一个红色的苹果', 'two cats' / '两只猫'."""
    n = rng.randrange(10) if rng.random() < 0.5 else 0
    if rng.random() < 0.4:
        beast = rng.choice(W.ANIMALS)
        one, many, zh, unit = beast["en"], plural(beast["en"]), beast["zh"], beast["unit"]
    else:
        one, many, zh, unit = rng.choice(W.OBJECTS)
    colour = rng.choice(W.COLOURS)[0] if rng.random() < 0.4 else None
    noun = (colour + " " if colour else "") + (one if n == 0 else many)
    count = ("an" if noun[0] in "aeiou" else "a") if n == 0 else W.NUMBERS[n][0]
    return f"{count} {noun}", f"{COUNT_ZH[n]}{unit}{COLOUR_ZH[colour] + '的' if colour else ''}{zh}"


def in_sentence(en):
    """The subject inside a sentence: 'The cat' -> 'the cat', names and I stay."""
    return en if en == "I" or en in PEOPLE else en[0].lower() + en[1:]


KINDS_OF_ANIMAL = [(plural(a["en"]), a["zh"]) for a in W.ANIMALS if a["en"] not in ("sheep", "deer")]
PEOPLE = {n[0] for n in W.NAMES}


def subject(rng):
    """(English, Chinese, third person?)"""
    roll = rng.random()
    if roll < 0.4:
        return rng.choice(W.PRONOUNS)
    if roll < 0.65:
        name = rng.choice(W.NAMES)
        return name[0], name[1], 1
    if roll < 0.85:
        beast = rng.choice(W.ANIMALS)
        return "The " + beast["en"], beast["zh"], 1
    kin = rng.choice(W.FAMILY)
    return "My " + kin[0], "我的" + kin[1], 1


def be(subject_en, third):
    return "am" if subject_en == "I" else ("is" if third else "are")


def feeling(rng):
    en, zh, third = subject(rng)
    f = rng.choice(W.FEELINGS)
    if rng.random() < 0.3:
        return f"{en} {be(en, third)} not {f[0]}", f"{zh}不{f[1]}"
    if rng.random() < 0.5:
        return f"{en} {be(en, third)} {f[0]}", f"{zh}很{f[1]}"
    return f"{en} {be(en, third)} very {f[0]}", f"{zh}非常{f[1]}"


def action(rng):
    en, zh, third = subject(rng)
    a = rng.choice(W.ACTIONS)
    if rng.random() < 0.3:
        g = rng.choice(W.PLACES)
        if a[1] in ("睡觉", "吃饭", "跑步", "唱歌", "跳舞", "玩", "等", "哭", "笑", "工作"):
            return f"{en} {be(en, third)} {a[0]} in {g[0]}", f"{zh}在{g[1]}{a[1]}"
    return f"{en} {be(en, third)} {a[0]}", f"{zh}正在{a[1]}"


def wanting(rng):
    en, zh, third = subject(rng)
    verb = rng.choice(W.VERBS)
    roll = rng.random()
    if roll < 0.35:
        thing = rng.choice(W.FOODS + W.DRINKS + KINDS_OF_ANIMAL)
    elif roll < 0.5:
        a, b = rng.sample(W.FOODS + W.DRINKS, 2)
        thing = (f"{a[0]} and {b[0]}", f"{a[1]}和{b[1]}")
    else:
        thing = counted(rng)
    if roll < 0.35 and rng.random() < 0.35 and verb[0] != "have":
        return f"{en} {'does' if third else 'do'} not {verb[0]} {thing[0]}", f"{zh}不{verb[2]}{thing[1]}"
    return f"{en} {verb[1] if third else verb[0]} {thing[0]}", f"{zh}{verb[2]}{thing[1]}"


def there_is(rng):
    thing, place = counted(rng), rng.choice(W.PLACES)
    single = thing[0].split()[0] in ("a", "an")
    return f"There {'is' if single else 'are'} {thing[0]} in {place[0]}", f"{place[1]}有{thing[1]}"


def whereabouts(rng):
    en, zh, third = subject(rng)
    place = rng.choice(W.PLACES)
    return f"{en} {be(en, third)} in {place[0]}", f"{zh}在{place[1]}"


def going(rng):
    en, zh, third = subject(rng)
    goal = rng.choice(W.GOALS)
    to = goal[0]
    when = rng.choice([("Today", "今天"), ("Tomorrow", "明天")] + [("On " + d[0], d[1]) for d in W.DAYS])
    en = in_sentence(en)
    return f"{when[0]} {en} will go to {to}", f"{when[1]}{zh}会去{goal[1]}"


def statement(rng):
    roll = rng.randrange(6)
    if roll == 0:
        d = rng.choice(W.DAYS)
        w = rng.choice([("Today", "今天"), ("Tomorrow", "明天")])
        return f"{w[0]} is {d[0]}", f"{w[1]}是{d[1]}"
    if roll == 1:
        w = rng.choice(W.WEATHER)
        d = rng.choice([("Today", "今天")] + W.DAYS)
        return f"{d[0]} is {w[0]}", f"{d[1]}是{w[1]}"
    if roll == 2:
        c = rng.choice(W.COUNTRIES)
        return f"The capital of {c['en']} is {c['capital']['en']}", f"{c['zh']}的首都是{c['capital']['zh']}"
    if roll == 3:
        c, t = rng.choice(W.COLOURS), rng.choice(W.OBJECTS)
        return f"The {t[0]} is {c[0]}", f"{t[2]}是{c[1]}的"
    if roll == 4:
        en, zh, third = rng.choice(W.PRONOUNS[:4] + [(n[0], n[1], 1) for n in W.NAMES])
        j = rng.choice(W.JOBS)
        return f"{en} {be(en, third)} {'an' if j[0][0] in 'aeiou' else 'a'} {j[0]}", f"{zh}是一名{j[1]}"
    n = rng.choice(W.NAMES)
    return f"My name is {n[0]}", f"我的名字是{n[1]}"


def life(rng):
    """Where someone lives or comes from, what they can do or want to do, and pointing at things."""
    en, zh, third = subject(rng)
    roll, s = rng.randrange(6), "s" if third else ""
    country = rng.choice(W.COUNTRIES)
    if roll == 0:
        return f"{en} live{s} in {country['capital']['en']}", f"{zh}住在{country['capital']['zh']}"
    if roll == 1:
        return f"{en} {be(en, third)} from {country['en']}", f"{zh}来自{country['zh']}"
    if roll == 2:
        g = rng.choice(W.GOALS)
        return f"{en} want{s} to go to {g[0]}", f"{zh}想去{g[1]}"
    if roll == 3:
        a = rng.choice([("swim", "游泳"), ("sing", "唱歌"), ("dance", "跳舞"), ("cook", "做饭"), ("read", "看书"), ("speak Chinese", "说中文"), ("speak English", "说英语")])
        can = rng.random() < 0.6
        return f"{en} {'can' if can else 'cannot'} {a[0]}", f"{zh}{'会' if can else '不会'}{a[1]}"
    thing = counted(rng)
    while thing[0].split()[0] not in ("a", "an"):
        thing = counted(rng)
    this = rng.choice([("This", "这"), ("That", "那")])
    return f"{this[0]} is {thing[0]}", f"{this[1]}是{thing[1]}"


def query(rng):
    """A yes-or-no question."""
    en, zh, third = subject(rng)
    verb = rng.choice(W.VERBS)
    thing = rng.choice(W.FOODS + W.DRINKS + KINDS_OF_ANIMAL) if rng.random() < 0.6 else counted(rng)
    if rng.random() < 0.3:
        f = rng.choice(W.FEELINGS)
        return f"{skills.cap(be(en, third))} {in_sentence(en)} {f[0]}?", f"{zh}{f[1]}吗？"
    return f"{'Does' if third else 'Do'} {in_sentence(en)} {verb[0]} {thing[0]}?", f"{zh}{verb[2]}{thing[1]}吗？"


def greeting(rng):
    hello, name = rng.choice(W.PHRASES[:1] + W.PHRASES[3:8] + W.PHRASES[10:12]), rng.choice(W.NAMES)
    mark = rng.choice([("!", "！"), (".", "。")])
    return f"{hello[0]}, {name[0]}{mark[0]}", f"{hello[1]}，{name[1]}{mark[1]}"


def contracted(rng, en):
    """English as people type it; only ever a source, never an answer."""
    if rng.random() < 0.06:
        return en.lower()
    if rng.random() < 0.7:
        return en
    for full, short in (("I am ", "I'm "), ("do not ", "don't "), ("does not ", "doesn't "), ("He is ", "He's "), ("She is ", "She's "), ("cannot ", "can't "), ("They are ", "They're "), ("We are ", "We're ")):
        en = en.replace(full, short)
    return en


FORMS = [life, life, feeling, action, wanting, wanting, there_is, whereabouts, going, statement]


def sentence(rng):
    """One pair with its marks; one in six is a set phrase or a question."""
    roll = rng.random()
    if roll < 0.13:
        en, zh = rng.choice(W.PHRASES)
        mark = rng.choice([("!", "！"), (".", "。"), ("", "")])
        return en + mark[0], zh + mark[1]
    if roll < 0.18:
        return rng.choice(W.QUESTIONS)
    if roll < 0.25:
        en, zh, third = subject(rng)
        return f"Where {be(en, third)} {in_sentence(en)}?", f"{zh}在哪里？"
    if roll < 0.29:
        return query(rng)
    if roll < 0.32:
        return greeting(rng)
    en, zh = rng.choice(FORMS)(rng)
    if roll > 0.96:
        return en, zh
    return en + ".", zh + "。"


def passage(rng):
    """One sentence, sometimes two or three."""
    pairs = [sentence(rng) for _ in range(rng.choice([1, 1, 1, 1, 1, 2, 2, 3]))]
    while any(p[0][-1] not in ".!?" for p in pairs) and len(pairs) > 1:
        pairs = [sentence(rng) for _ in pairs]
    return " ".join(p[0] for p in pairs), "".join(p[1] for p in pairs)


_WORDS = [(a["en"], a["zh"]) for a in W.ANIMALS] + W.COLOURS + [(o[0], o[2]) for o in W.OBJECTS] + W.FOODS + W.DRINKS + W.JOBS
WORDS = list({zh: (en, zh) for en, zh in reversed(_WORDS)}.values())  # one English word for each Chinese one

TO_ZH = ["Translate to Chinese: {s}", "Translate into Chinese: {s}", "Translate this into Chinese: {s}", "How do you say \"{s}\" in Chinese?",
         "Please translate to Chinese: {s}", "What is \"{s}\" in Chinese?", "Translate '{s}' to Chinese.", "Translate \"{s}\" into Chinese.", "Translate {s} to Chinese", "Can you say \"{s}\" in Chinese?", "翻译成中文：{s}", "请把下面的句子翻译成中文：{s}", "“{s}”用中文怎么说？", "把“{s}”翻译成中文。"]
TO_EN = ["Translate to English: {s}", "Translate into English: {s}", "Translate this into English: {s}", "How do you say \"{s}\" in English?",
         "Please translate to English: {s}", "What is \"{s}\" in English?", "Translate '{s}' to English.", "Translate \"{s}\" into English.", "Translate {s} to English", "Can you say \"{s}\" in English?", "翻译成英文：{s}", "请把下面的句子翻译成英文：{s}", "“{s}”用英语怎么说？", "把“{s}”翻译成英文。"]


def pair_key(en):
    """Sentence pairs are held out whole, in every form they are asked in; the set phrases never are."""
    return f"pair|{en}" + ("|always" if en.rstrip(".!") in SET_PHRASES else "")


def chat_pair(rng, lang):
    """(question, answer, key): one translation asked for in chat, wording in `lang`."""
    word = rng.random() < 0.25
    en, zh = rng.choice(WORDS) if word else passage(rng)
    to_zh = rng.random() < 0.5
    asks = (TO_ZH if to_zh else TO_EN)[0 if lang == "en" else 10:10 if lang == "en" else 14]
    i, phrase = skills.pick(rng, asks)
    key = skills.combo(f"word|{lang}|{i}|{to_zh}|{en}", i) if word else pair_key(en)
    return phrase.format(s=contracted(rng, en) if to_zh else zh), zh if to_zh else en, key
