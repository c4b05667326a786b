"""The grammar of the little stories, and the check that a text follows it.

A story is five sentences, each drawn from a few patterns that share slots (hero, name,
place, ...). `matches` accepts a text when it can be read as one pattern after another
with the same value for a slot wherever it recurs.
"""
import re

import world as W

HEROES = [(a["en"], a["zh"], a["unit"]) for a in W.ANIMALS if a["en"] in
          "cat dog rabbit fox bear mouse panda frog duck bird lion turtle monkey owl pig horse elephant squirrel".split()]
TRAITS = [("brave", "勇敢"), ("little", "小小"), ("kind", "善良"), ("clever", "聪明"), ("lonely", "孤独"), ("happy", "快乐"), ("curious", "好奇"), ("shy", "害羞")]
HOMES = [("a small house", "一座小房子里"), ("the forest", "森林里"), ("a big tree", "一棵大树里"), ("the mountains", "山里"), ("a quiet village", "一个安静的村子里"), ("a garden", "花园里")]
SPOTS = [("the river", "河边"), ("the market", "市场"), ("the beach", "海边"), ("the hill", "山上"), ("the lake", "湖边"), ("the old bridge", "老桥边")]
FINDS = [("red ball", "一个红色的球"), ("golden key", "一把金色的钥匙"), ("small boat", "一条小船"), ("big cake", "一个大蛋糕"), ("blue hat", "一顶蓝色的帽子"), ("warm blanket", "一条温暖的毯子"), ("magic stone", "一块神奇的石头")]
MOODS = [("sad", "难过"), ("hungry", "饿"), ("cold", "冷"), ("tired", "累"), ("lost", "迷路")]

PATTERNS = {
    "en": [["Once upon a time, there was a {trait} {hero} named {name}.", "Once upon a time, a {trait} {hero} named {name} lived in {home}.",
            "There once was a {trait} {hero} named {name}.", "Long ago, a {trait} {hero} named {name} lived in {home}.",
            "A {trait} {hero} named {name} lived in {home}."],
           [" {name} lived in {home}.", " Every day, {name} played in the sun.", " {name} liked to sing and dance.", " {name} wanted to see the world."],
           [" One day, {name} went to {spot} and found a {find}.", " One morning, {name} found a {find} near {spot}.", " One day, {name} walked to {spot} with a {find}."],
           [" There {name} met a {friend} who was {mood}.", " Then a {mood} {friend} came to {name}.", " A {friend} sat there and was very {mood}."],
           [" {name} gave the {find} to the {friend}.", " {name} shared the {find} with the {friend}.", " {name} said, \"Take the {find}, my friend!\""],
           [" From that day on, {name} and the {friend} were best friends.", " The {friend} was happy, and they played together until night.",
            " They went home together and were happy ever after."]],
    "zh": [["从前，有一{unit}{trait}的{hero}，名叫{name}。", "从前，一{unit}{trait}的{hero}住在{home}，名叫{name}。", "很久以前，有一{unit}{trait}的{hero}，名叫{name}。",
            "有一{unit}{trait}的{hero}，名叫{name}，住在{home}。"],
           ["{name}每天都在阳光下玩耍。", "{name}喜欢唱歌和跳舞。", "{name}想去看看世界。", "{name}每天都很早起床。"],
           ["有一天，{name}去了{spot}，找到了{find}。", "一天早上，{name}在{spot}发现了{find}。", "有一天，{name}带着{find}走到了{spot}。"],
           ["在那里，{name}遇见了一{unit2}{friend}，它{mood}了。", "这时来了一{unit2}{friend}，它{mood}了。"],
           ["{name}把它送给了{friend}。", "{name}和{friend}一起分享了它。", "{name}说：“这个给你吧，我的朋友！”"],
           ["从那天起，{name}和{friend}成了最好的朋友。", "{friend}很高兴，它们一起玩到了晚上。", "它们一起回家，从此过着幸福的生活。"]]}


def draw(rng, lang):
    """Fills every slot of a story."""
    at = 0 if lang == "en" else 1
    hero, friend = rng.sample(HEROES, 2)
    return {"hero": hero[at], "unit": hero[2], "friend": friend[at], "unit2": friend[2], "name": rng.choice(W.NAMES)[at],
            "trait": rng.choice(TRAITS)[at], "home": rng.choice(HOMES)[at], "spot": rng.choice(SPOTS)[at],
            "find": rng.choice(FINDS)[at], "mood": rng.choice(MOODS)[at]}


def tell(rng, lang, slots, opening=None):
    """A whole story; the second sentence never repeats the home of the first."""
    first = opening if opening is not None else rng.choice(PATTERNS[lang][0])
    text = first
    for step, patterns in enumerate(PATTERNS[lang][1:], 1):
        usable = [p for p in patterns if not (step == 1 and "{home}" in p and "{home}" in first)]
        text += rng.choice(usable)
    out = text.format(**slots)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", out) if lang == "en" else out


def _slot_values(lang):
    at = 0 if lang == "en" else 1
    units = {h[2] for h in HEROES}
    return {"hero": {h[at] for h in HEROES}, "friend": {h[at] for h in HEROES}, "unit": units, "unit2": units,
            "name": None, "trait": {t[at] for t in TRAITS}, "home": {h[at] for h in HOMES}, "spot": {s[at] for s in SPOTS},
            "find": {f[at] for f in FINDS}, "mood": {m[at] for m in MOODS}}


VALUES = {lang: _slot_values(lang) for lang in ("en", "zh")}


def _pattern_regex(pattern, lang, bound):
    """A regex for one sentence; bound slots are literal, others are alternatives in named groups."""
    out, seen = "", set()
    for literal, slot in re.findall(r"([^{]*)(?:\{(\w+)\})?", pattern):
        literal = re.escape(literal)
        out += re.sub(r"\b([Aa])\\ $", r"\1n?\\ ", literal) if lang == "en" else literal
        if not slot:
            continue
        if slot in bound:
            out += re.escape(bound[slot])
        elif slot in seen:
            out += f"(?P={slot})"
        else:
            seen.add(slot)
            values = VALUES[lang][slot]
            choice = "|".join(sorted(map(re.escape, values), key=len, reverse=True)) if values else (r"[A-Z]\w+" if lang == "en" else r"[^，。：]{1,8}?")
            out += f"(?P<{slot}>{choice})"
    return out


def matches(text, lang, bound=None, step=0):
    """True when `text` is a story of the grammar with the given slots (e.g. hero and name)."""
    if step == len(PATTERNS[lang]):
        return text == ""
    for pattern in PATTERNS[lang][step]:
        found = re.match(_pattern_regex(pattern, lang, bound or {}), text)
        if found and matches(text[found.end():], lang, {**(bound or {}), **found.groupdict()}, step + 1):
            return True
    return False
