"""Tools, questions for them, and their results: what the model can do with tools a client lists.

An Ask is one question that a tool answers. Its arguments and its answer are copied from the
question and the result, so that tools reach beyond the little world: any numbers, any city.
"""
import json
import re
from dataclasses import dataclass

import skills
import translation
import world as W
from skills import DECLINE, LANGS, cap, combo, held, made_up, made_up_zh, pick


@dataclass
class Tool:
    family: str
    name: str
    description: str
    arguments: dict  # name -> schema
    required: list = None  # None: all are

    def line(self):
        out = {"name": self.name, **({"description": self.description} if self.description else {}), "arguments": self.arguments}
        return compact(out if self.required is None else {**out, "required": self.required})


@dataclass
class Ask:
    family: str
    key: str
    question: str
    values: list  # of the arguments, in the order of the tool
    result: str
    answer: dict  # by language
    tool: Tool = None

    def call(self):
        return compact({"name": self.tool.name, "arguments": arguments(self.tool, self.values)})


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def arguments(tool, values):
    """Given ones in order; one with choices takes the first where it may not be left out."""
    out = dict(zip(tool.arguments, values))
    for name, schema in tool.arguments.items():
        if name not in out and tool.required is None:
            out[name] = schema["enum"][0]
    return out


def block(asks):
    return "\n".join(f"```json\n{ask.call()}\n```" for ask in asks)


def output(asks):
    return "\n".join(f"Function output:\n{ask.result}" for ask in asks)


# ---- tools as clients list them ----

NAMES = {"add": ["add", "add", "add_numbers", "sum", "add_two_numbers", "plus"],
         "capital": ["capital_of", "capital_of", "get_capital", "find_capital", "country_capital"],
         "weather": ["get_weather", "get_weather", "weather", "get_current_weather", "weather_in", "getWeather"],
         "time": ["get_time", "current_time", "get_current_time", "now"]}
ARGUMENTS = {"add": [("a", "b"), ("a", "b"), ("x", "y"), ("first", "second")], "capital": [("country",), ("country",), ("name",)],
             "weather": [("city",), ("city",), ("location",), ("place",)], "time": [()]}
ABOUT = {"add": ["Adds two numbers", "Add two numbers", "Add two numbers.", "Returns the sum of two numbers.", "The sum of a and b", "两个数相加", "计算两个数的和。"],
         "capital": ["The capital of a country", "Returns the capital of a country.", "Get the capital city of a country", "Find the capital of the given country.", "一个国家的首都", "查询国家的首都。"],
         "weather": ["The weather of a city", "Get the weather of a city", "Get the current weather in a given location", "Returns the weather for a city.", "Get current temperature for a given location.", "查询一个城市的天气。", "获取天气"],
         "time": ["The time now", "Get the current time", "Returns the current time.", "现在的时间"]}
EXPLAINED = {"add": ["The first number", "A number", "一个数"], "capital": ["The country", "Name of the country", "国家"], "weather": ["The city", "The name of the city", "City and country e.g. Paris, France", "城市"]}
OTHER_VERBS = "send read open play find search set stop start delete create list buy book show save".split()
OTHER_NOUNS = "email file music book page alarm song door game image note list ticket message news user order".split()
OTHER_ARGUMENTS = "to text name query title id path topic key file message url".split()
OTHER_ABOUT = ["{v}s a {n}", "{v} a {n}", "{v} one {n} for the user.", "Use it to {v} a {n}.", ""]


def make(rng, family):
    if family == "named":
        return named(rng)
    names = rng.choice(ARGUMENTS[family])
    kind = rng.choice(["number", "integer"]) if family == "add" else "string"
    told, titled, bounded = rng.random() < 0.25, rng.random() < 0.12, rng.random() < 0.3
    schemas = {}
    for name in names:
        schema = {"title": cap(name), "type": kind} if titled else {"type": kind}
        if told:
            schema["description"] = rng.choice(EXPLAINED[family])
        if family == "add" and bounded:
            schema.update({"minimum": 0, "maximum": rng.choice([99, 1000, 9999])})
        schemas[name] = schema
    required = None
    if family == "weather" and rng.random() < 0.2:
        schemas["unit"] = {"type": "string", "enum": rng.choice([["celsius", "fahrenheit"], ["C", "F"]])}
        required = None if rng.random() < 0.5 else list(names)
    return Tool(family, rng.choice(NAMES[family]), rng.choice(ABOUT[family]) if rng.random() < 0.9 else "", schemas, required)


def named(rng):
    """A tool the model knows nothing of, but its name."""
    verb, noun = rng.choice(OTHER_VERBS), rng.choice(OTHER_NOUNS)
    if rng.random() < 0.2:
        verb, noun = made_up(rng).lower(), made_up(rng).lower()
    name = rng.choice([f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}{cap(noun)}", f"{verb}-{noun}", verb])
    kinds = [(a, {"type": "integer" if rng.random() < 0.2 else "string"}) for a in rng.sample(OTHER_ARGUMENTS, rng.choice([1, 1, 1, 2]))]
    return Tool("named", name, cap(rng.choice(OTHER_ABOUT).format(v=verb, n=noun)), dict(kinds))


# ---- questions ----

WEATHER_ASK = {"en": ["What is the weather in {c}?", "How is the weather in {c}?", "What's the weather like in {c}?", "Weather in {c}?", "Tell me the weather in {c}.", "What is the weather like in {c} today?", "Is it sunny in {c}?",
                      "What is the temperature in {c}?", "How warm is it in {c}?"],
               "zh": ["{c}的天气怎么样？", "{c}天气如何？", "{c}今天天气怎么样？", "告诉我{c}的天气。", "{c}现在几度？", "{c}的天气好吗？"]}
TIME_ASK = {"en": ["What time is it?", "What time is it now?", "Tell me the time.", "What is the time?", "Do you know what time it is?"], "zh": ["现在几点了？", "现在几点？", "告诉我现在的时间。", "几点了？"]}
CHAIN_ASK = {"en": ["What is the weather in the capital of {c}?", "How is the weather in the capital of {c}?", "What is the weather like in {c}'s capital?", "Weather in the capital of {c}?"],
             "zh": ["{c}首都的天气怎么样？", "{c}的首都天气如何？", "告诉我{c}首都的天气。"]}
BOTH_ASK = {"weather": {"en": ["What is the weather in {c} and {d}?", "What is the weather in {c} and in {d}?", "Weather in {c} and {d}?"], "zh": ["{c}和{d}的天气怎么样？", "{c}和{d}今天天气如何？"]},
            "capital": {"en": ["What are the capitals of {c} and {d}?", "Tell me the capitals of {c} and {d}."], "zh": ["{c}和{d}的首都是哪里？", "{c}和{d}的首都是什么？"]}}
NAMED_ASK = {"en": ["Call {t} with {p}.", "Use {t} with {p}.", "Use the tool {t} with {p}.", "Please call {t}: {p}.", "Run {t} with {p}"], "zh": ["调用{t}，{p}。", "请用{t}，{p}。", "用工具{t}：{p}。"]}
SUMS = {lang: [q for q in skills.SUM_ASK["+"][lang] if lang == "en" or re.search(r"[^\x00-\x7f]", q)] for lang in LANGS}  # bare sums are answered in English
SKIES = {"en": [w for w, _ in W.WEATHER] + ["clear", "foggy", "stormy", "warm", "cold", "hot", "light rain", "partly cloudy"], "zh": [w for _, w in W.WEATHER] + ["多云", "下雨", "晴", "小雨"]}
FAILURES = ["not found", "timeout", "access denied", "network error", "no such city", "try again later", "unknown name"]


def add(rng, lang, a=None, b=None, key=None):
    top = rng.choice([13, 100, 100, 1000, 10000])
    a, b = rng.randrange(top) if a is None else a, rng.randrange(top) if b is None else b
    n = a + b
    result = rng.choice([str(n), str(n), compact({"result": n}), compact({"sum": n}), f"The sum of {a} and {b} is {n}."])
    return Ask("add", key or skills.sum_key(a, "+", b), rng.choice(SUMS[lang]).format(a=a, b=b), [a, b], result, skills.both(f"{a} + {b} = {n}."))


def country_and_capital(rng, lang):
    """(country as typed, its capital, None or the entry): three in ten exist nowhere, so that results get copied."""
    if rng.random() < 0.3:
        make_up = made_up if lang == "en" else made_up_zh
        return make_up(rng), make_up(rng), None
    country = rng.choice(W.COUNTRIES)
    return skills.country_name(rng, country, lang), country["capital"][lang if rng.random() < 0.85 else "en"], country


def capital(rng, lang):
    name, town, country = country_and_capital(rng, lang)
    i, phrase = pick(rng, skills.CAPITAL_ASK[lang])
    key = combo(f"capital|{lang}|{i}|{country['en']}", i) if country else f"tool|capital|{name}"
    result = rng.choice([town, town, compact({"capital": town}), compact({"result": town}), compact({"country": name, "capital": town})])
    return Ask("capital", key, cap(phrase.format(c=name)), [name], result, capital_answer(name, town))


def capital_answer(name, town):
    return {"en": f"The capital of {name} is {town}.", "zh": f"{name}的首都是{town}。"}


def report(rng, lang, city):
    """(result, what the answer says of it) of a weather service."""
    sky, degrees = rng.choice(SKIES[lang if rng.random() < 0.75 else "en"]), rng.randrange(-9, 40)
    roll = rng.random()
    if roll < 0.5:
        text = rng.choice([sky, f"{sky}, {degrees} degrees", f"{degrees}°C, {sky}", f"{sky} and {degrees} degrees", f"{degrees}", f"{degrees} °C", cap(sky)])
        return (text + "." if rng.random() < 0.1 else text), {l: text for l in LANGS}
    measured = f"{degrees}°C" if rng.random() < 0.2 else degrees
    pairs = [(rng.choice(["weather", "condition", "sky"]), sky), (rng.choice(["temperature", "temp", "degrees"]), measured)]
    if rng.random() < 0.15:
        pairs = pairs[1:]
    spoken = {l: f"{degrees}°C" if isinstance(measured, str) else f"{degrees} degrees" if l == "en" else f"{degrees}度" for l in LANGS}
    said = {l: spoken[l] if len(pairs) == 1 else f"{sky}, {spoken[l]}" if l == "en" else f"{sky}，{spoken[l]}" for l in LANGS}
    rng.shuffle(pairs)
    return compact(dict(([("city", city)] if rng.random() < 0.3 else []) + pairs)), said


def weather(rng, lang, city=None):
    known = city is None and rng.random() < 0.65
    if city is None:
        city = rng.choice(W.COUNTRIES)["capital"][lang] if known else made_up(rng) if lang == "en" else made_up_zh(rng)
    i, phrase = pick(rng, WEATHER_ASK[lang])
    result, said = report(rng, lang, city)
    return Ask("weather", f"tool|weather|{city}" if not known else combo(f"tool|weather|{lang}|{i}|{city}", i), phrase.format(c=city), [city], result,
               {"en": f"The weather in {city}: {said['en']}.", "zh": f"{city}的天气：{said['zh']}。"})


def time(rng, lang):
    now = f"{rng.randrange(24)}:{rng.randrange(60):02}"
    if rng.random() < 0.1:
        now += f":{rng.randrange(60):02}"
    result = rng.choice([now, now, compact({"time": now}), compact({"result": now})])
    return Ask("time", f"tool|time|{now}", rng.choice(TIME_ASK[lang]), [], result, {"en": f"It is {now}.", "zh": f"现在是{now}。"})


def by_name(rng, lang):
    tool = named(rng)
    values = [value(rng, schema["type"]) for schema in tool.arguments.values()]
    given = [rng.choice([f"{n} = {v}", f"{n}={v}", f"{n} {v}", f'{n} "{v}"'] if lang == "en" else [f"{n}是{v}", f"{n} = {v}"]) for n, v in zip(tool.arguments, values)]
    question = rng.choice(NAMED_ASK[lang]).format(t=tool.name, p=(" and " if lang == "en" else "，").join(given))
    result = rng.choice([translation.passage(rng)[0 if rng.random() < 0.6 else 1], made_up(rng), "ok", str(rng.randrange(1000)), compact({rng.choice(["result", "id", "text", "status"]): rng.choice([made_up(rng), rng.randrange(1000)])})])
    return Ask("named", f"tool|named|{tool.name}|{values}", question, values, result, {"en": f"The tool says: {result}", "zh": f"工具说：{result}"}, tool)


def value(rng, kind):
    if kind == "integer":
        return rng.randrange(1000)
    words = [rng.choice([made_up(rng), rng.choice(W.NAMES)[0], rng.choice(W.FOODS)[0], rng.choice(W.FOODS)[1], rng.choice(skills.COMMON)]) for _ in range(rng.choice([1, 1, 2, 3]))]
    return " ".join(words)


ASKS, ASK_WEIGHTS = {"add": add, "capital": capital, "weather": weather, "time": time, "named": by_name}, [26, 22, 26, 8, 18]
PREFIX = {"en": ["Hi! ", "Please, ", "Hello! ", "Quick question: ", "Please tell me: "], "zh": ["请问，", "你好，", "请告诉我，"]}
SUFFIX = {"en": [" Thanks!", " Please.", " Use the tool.", " please"], "zh": ["谢谢！", "请用工具。"]}


def ask(rng, lang, split="train", family=None):
    """A question of the given split, as people type it, with the tool that answers it."""
    while True:
        chosen = family or rng.choices(list(ASKS), ASK_WEIGHTS)[0]
        out = ASKS[chosen](rng, lang)
        if held(out.key) == (split == "held"):
            break
    out.tool = out.tool or make(rng, out.family)
    known = out.family in ("add", "time") or out.family in ("capital", "weather") and not out.key.startswith(("tool|capital", "tool|weather|" + str(out.values[0])))
    out.question = typed(rng, lang, out.question, known)
    if rng.random() < 0.05:
        failed(rng, out)
    return out


def typed(rng, lang, question, known):
    """Names the model does not know keep their capitals: it copies them."""
    if question[-1] in ".?。？" and rng.random() < 0.2:
        question = question[:-1]
    if known and lang == "en" and rng.random() < 0.15:
        return question.lower()
    roll = rng.random()
    return rng.choice(PREFIX[lang]) + question if roll < 0.08 else question + rng.choice(SUFFIX[lang]) if roll < 0.14 else question


def failed(rng, out):
    why = rng.choice(FAILURES)
    out.result = rng.choice([f"Error: {why}", f"error: {why}", compact({"error": why})])
    out.answer = {"en": f"Sorry, the tool failed: {why}.", "zh": f"对不起，工具出错了：{why}。"}


# ---- exchanges: what the user asks, and the steps to the answer ----

THOUGHTS = {"call": {"en": "I need the tool {t}.", "zh": "我需要用{t}。"}, "answer": {"en": "The tool gave me the answer.", "zh": "工具给了我答案。"}}


@dataclass
class Step:
    """A turn of the user, or results, and what the model says to it."""
    user: str
    said: dict  # by language
    thoughts: dict
    calls: bool = False
    is_part: bool = False  # the model would say more at once: it stands in histories only


def calling(user, asks):
    return Step(user, skills.both(block(asks)), {l: THOUGHTS["call"][l].format(t=asks[0].tool.name) for l in LANGS}, True)


def single(rng, lang, split="train", family=None):
    """(tools needed, steps) of one call."""
    one = ask(rng, lang, split, family)
    return [one.tool], [calling(one.question, [one]), Step(output([one]), one.answer, THOUGHTS["answer"])]


def several(rng, lang, split="train"):
    """Two questions at once: both calls in one answer, or one after the other."""
    first, second = ask(rng, lang, split), ask(rng, lang)
    if second.family == first.family:
        second.tool, same = first.tool, second.family != "named" and len(second.values) > 0
        if not same:
            return several(rng, lang, split)
    elif second.tool.name == first.tool.name:
        return several(rng, lang, split)
    if first.question[-1] not in ".?!。？！":
        first.question += "?" if lang == "en" else "？"
    question = first.question + (" " if lang == "en" else "") + second.question
    if second.family == first.family and first.family in BOTH_ASK and rng.random() < 0.6:
        question = rng.choice(BOTH_ASK[first.family][lang]).format(c=first.values[0], d=second.values[0])
    last = Step(output([second]), {l: first.answer[l] + ("" if first.answer[l].endswith("。") else " ") + second.answer[l] for l in LANGS}, THOUGHTS["answer"])
    tools = [first.tool] if second.tool is first.tool else [first.tool, second.tool]
    if rng.random() < 0.6:
        last.user = output([first, second])
        return tools, [calling(question, [first, second]), last]
    opening = calling(question, [first])
    opening.is_part = True
    return tools, [opening, calling(output([first]), [second]), last]


def chain(rng, lang, split="train"):
    """The second call needs the first one's result."""
    if rng.random() < 0.3:
        a, b, c = (rng.randrange(rng.choice([10, 100, 1000])) for _ in range(3))
        tool = make(rng, "add")
        first, second = add(rng, lang, a, b), add(rng, lang, a + b, c)
        question, key = {"en": f"What is {a} + {b} + {c}?", "zh": f"{a}+{b}+{c}等于多少？"}[lang], f"tool|chain|{a}|{b}|{c}"
        first.tool = second.tool = tool
        last, tools, bad = skills.both(f"{a} + {b} + {c} = {a + b + c}."), [tool], held(first.key) or held(second.key)
    else:
        name, town, country = country_and_capital(rng, lang)
        i, phrase = pick(rng, CHAIN_ASK[lang])
        first, second = capital(rng, lang), weather(rng, lang, town)
        first.values, first.result = [name], rng.choice([town, town, compact({"capital": town}), compact({"result": town})])
        first.tool, second.tool = make(rng, "capital"), make(rng, "weather")
        question, key = phrase.format(c=name), combo(f"tool|chain|{lang}|{i}|{name}", i if country else 1)
        last, tools, bad = second.answer, [first.tool, second.tool], False
    if bad and split == "train" or held(key) != (split == "held"):
        return chain(rng, lang, split)
    return tools, [calling(question, [first]), calling(output([first]), [second]), Step(output([second]), last, THOUGHTS["answer"])]


def without_tool(rng, lang):
    """(families that must not be listed, step): a question for a tool that is not there."""
    one = ask(rng, lang, "train", rng.choice(["weather", "weather", "time", "named", "named", "named"]))
    return {one.family}, Step(one.question, DECLINE, skills.UNKNOWN_THOUGHT)
