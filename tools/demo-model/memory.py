"""Facts a user tells about themselves, and the questions that ask for them back."""
import skills
import translation
import world as W


def en_zh(pair):
    return {"en": pair[0], "zh": pair[1]}


def person(rng, lang):
    """A name as the user would type it; the answer copies it as it stands."""
    roll = rng.random()
    if lang == "zh":
        if roll < 0.35:
            name = rng.choice(W.NAMES)[1]
        elif roll < 0.85:
            name = skills.chinese_name(rng)
        elif roll < 0.92:
            name = "".join(chr(rng.randrange(0x4E00, 0x9FA6)) for _ in range(rng.randrange(2, 4)))  # rare characters travel as bytes
        else:
            name = rng.choice(W.MORE_NAMES)
    elif roll < 0.25:
        name = rng.choice(W.NAMES)[0]
    elif roll < 0.6:
        name = rng.choice(W.MORE_NAMES)
    else:
        name = skills.made_up(rng)
    if lang == "en" and rng.random() < 0.07:
        name += " " + skills.made_up(rng)
    if lang == "en" and rng.random() < 0.06:
        name = name.lower()
    return skills.both(name)


PET_NAMES = "Rex Bella Max Luna Coco Milo Daisy Rocky Ruby Felix Fluffy Snowy Tiger Shadow Ginger Pepper Oreo Simba Nala Biscuit".split()


def pet_name(rng, lang):
    if lang == "zh" and rng.random() < 0.6:
        return skills.both(rng.choice(["小", "大", "阿"]) + rng.choice("白黑花黄豆米雪球福旺宝虎"))
    return skills.both(rng.choice(PET_NAMES) if rng.random() < 0.5 else skills.made_up(rng))


def city(rng, lang):
    return rng.choice(W.COUNTRIES)["capital"]


def number(rng, lang):
    return skills.both(str(rng.randrange(1, 100)))


# kind -> draw(rng, lang), open (values are names: held out by value), then per language:
# tell = ways to say it, ack = the reply, ask = questions, reply, missing = reply when never told
KINDS = {
    "name": {
        "draw": person, "open": True,
        "en": {"tell": ["My name is {v}.", "I am {v}.", "I'm {v}.", "Hi, I'm {v}.", "Hello, my name is {v}.", "Call me {v}.", "You can call me {v}.", "Hi! My name is {v}.", "my name is {v}", "Please remember my name: {v}.", "My name's {v}."],
               "ack": "Nice to meet you, {v}!",
               "ask": ["What is my name?", "Who am I?", "Do you remember my name?", "What's my name?", "Tell me my name.", "Do you know my name?", "Can you tell me my name?", "What was my name?", "what is my name", "What am I called?", "Do you still know my name?"],
               "reply": "Your name is {v}.", "missing": "You have not told me your name yet."},
        "zh": {"tell": ["我叫{v}。", "我的名字是{v}。", "我是{v}。", "你好，我叫{v}。", "叫我{v}吧。", "我叫{v}", "你可以叫我{v}。", "请记住我的名字：{v}。"],
               "ack": "很高兴认识你，{v}！",
               "ask": ["我叫什么名字？", "我叫什么？", "你记得我的名字吗？", "我是谁？", "我的名字是什么？", "你知道我叫什么吗？", "告诉我我的名字。", "你还记得我叫什么吗？"],
               "reply": "你的名字是{v}。", "missing": "你还没有告诉我你的名字。"}},
    "colour": {
        "draw": lambda rng, lang: en_zh(rng.choice(W.COLOURS)), "open": False,
        "en": {"tell": ["My favourite colour is {v}.", "I like {v} best of all colours.", "{v} is my favourite colour.", "I love the colour {v}.", "I like {v}.", "I love {v}."],
               "ack": "{v} is a nice colour!",
               "ask": ["What is my favourite colour?", "Which colour do I like?", "What colour do I like?", "Do you remember my favourite colour?", "What's my favourite colour?", "Tell me my favourite colour."],
               "reply": "Your favourite colour is {v}.", "missing": "You have not told me your favourite colour yet."},
        "zh": {"tell": ["我最喜欢的颜色是{v}。", "我最喜欢{v}。", "我喜欢{v}。", "我喜欢的颜色是{v}。", "{v}是我最喜欢的颜色。"],
               "ack": "{v}很好看！",
               "ask": ["我最喜欢的颜色是什么？", "我最喜欢什么颜色？", "我喜欢什么颜色？", "你记得我最喜欢的颜色吗？"],
               "reply": "你最喜欢的颜色是{v}。", "missing": "你还没有告诉我你最喜欢的颜色。"}},
    "animal": {
        "draw": lambda rng, lang: en_zh(rng.choice([(a["en"], a["zh"]) for a in W.ANIMALS])), "open": False,
        "en": {"tell": ["My favourite animal is the {v}.", "The {v} is my favourite animal.", "The animal I like best is the {v}.", "I like {p}.", "I love {p}."],
               "ack": "The {v} is a wonderful animal!",
               "ask": ["What is my favourite animal?", "Which animal do I like best?", "What animal do I like?", "Do you remember my favourite animal?", "What's my favourite animal?", "Tell me my favourite animal."],
               "reply": "Your favourite animal is the {v}.", "missing": "You have not told me your favourite animal yet."},
        "zh": {"tell": ["我最喜欢的动物是{v}。", "{v}是我最喜欢的动物。", "我喜欢的动物是{v}。", "我喜欢{v}。"],
               "ack": "{v}真是可爱的动物！",
               "ask": ["我最喜欢的动物是什么？", "我最喜欢什么动物？", "我喜欢什么动物？", "你记得我最喜欢的动物吗？"],
               "reply": "你最喜欢的动物是{v}。", "missing": "你还没有告诉我你最喜欢的动物。"}},
    "food": {
        "draw": lambda rng, lang: en_zh(rng.choice(W.FOODS)), "open": False,
        "en": {"tell": ["My favourite food is {v}.", "I like to eat {v}.", "I love eating {v}.", "The food I like best is {v}."],
               "ack": "Tasty! I will remember that you like {v}.",
               "ask": ["What is my favourite food?", "What do I like to eat?", "Which food do I like?", "Do you remember my favourite food?", "What's my favourite food?", "Tell me my favourite food."],
               "reply": "Your favourite food is {v}.", "missing": "You have not told me your favourite food yet."},
        "zh": {"tell": ["我最喜欢的食物是{v}。", "我最喜欢吃{v}。", "我爱吃{v}。", "我喜欢吃{v}。"],
               "ack": "真好吃！我会记住你喜欢{v}。",
               "ask": ["我最喜欢的食物是什么？", "我最喜欢吃什么？", "我喜欢吃什么？", "你记得我最喜欢的食物吗？"],
               "reply": "你最喜欢的食物是{v}。", "missing": "你还没有告诉我你最喜欢的食物。"}},
    "sport": {
        "draw": lambda rng, lang: en_zh(rng.choice(W.SPORTS)), "open": False,
        "en": {"tell": ["My favourite sport is {v}.", "The sport I like best is {v}."],
               "ack": "Great! I will remember that your sport is {v}.",
               "ask": ["What is my favourite sport?", "Which sport do I like?", "What sport do I like best?", "What's my favourite sport?", "Do you remember my favourite sport?"],
               "reply": "Your favourite sport is {v}.", "missing": "You have not told me your favourite sport yet."},
        "zh": {"tell": ["我最喜欢的运动是{v}。", "{v}是我最喜欢的运动。"],
               "ack": "太好了！我会记住你的运动是{v}。",
               "ask": ["我最喜欢的运动是什么？", "我最喜欢什么运动？", "我喜欢什么运动？", "你记得我最喜欢的运动吗？"],
               "reply": "你最喜欢的运动是{v}。", "missing": "你还没有告诉我你最喜欢的运动。"}},
    "city": {
        "draw": city, "open": False,
        "en": {"tell": ["I live in {v}.", "My home is in {v}.", "I am from {v}.", "I come from {v}.", "I'm from {v}."],
               "ack": "{v} is a beautiful city!",
               "ask": ["Where do I live?", "Which city do I live in?", "Where am I from?", "Do you remember where I live?", "Where is my home?"],
               "reply": "You live in {v}.", "missing": "You have not told me where you live yet."},
        "zh": {"tell": ["我住在{v}。", "我的家在{v}。", "我来自{v}。"],
               "ack": "{v}是一座美丽的城市！",
               "ask": ["我住在哪里？", "我住在哪个城市？", "我的家在哪里？", "你记得我住在哪里吗？", "我来自哪里？"],
               "reply": "你住在{v}。", "missing": "你还没有告诉我你住在哪里。"}},
    "age": {
        "draw": number, "open": False,
        "en": {"tell": ["I am {v} years old.", "I'm {v} years old.", "My age is {v}.", "I am {v}."],
               "ack": "Thank you, I will remember that you are {v} years old.",
               "ask": ["How old am I?", "What is my age?", "Do you remember my age?", "What's my age?", "Do you know how old I am?"],
               "reply": "You are {v} years old.", "missing": "You have not told me your age yet."},
        "zh": {"tell": ["我{v}岁。", "我今年{v}岁。", "我的年龄是{v}岁。", "我{v}岁了。"],
               "ack": "谢谢，我会记住你{v}岁。",
               "ask": ["我多大了？", "我几岁？", "我今年几岁了？", "你记得我的年龄吗？", "我多少岁？"],
               "reply": "你{v}岁。", "missing": "你还没有告诉我你的年龄。"}},
    "number": {
        "draw": number, "open": False,
        "en": {"tell": ["My lucky number is {v}.", "My favourite number is {v}.", "Remember the number {v}.", "Please remember this number: {v}."],
               "ack": "I will remember the number {v}.",
               "ask": ["What is my lucky number?", "What is my favourite number?", "What is my number?", "Which number did I tell you?", "What was the number?"],
               "reply": "Your number is {v}.", "missing": "You have not told me a number yet."},
        "zh": {"tell": ["我的幸运数字是{v}。", "我最喜欢的数字是{v}。", "请记住数字{v}。", "记住这个数字：{v}。"],
               "ack": "我会记住数字{v}。",
               "ask": ["我的幸运数字是什么？", "我最喜欢的数字是几？", "我告诉你的数字是什么？", "我的数字是多少？"],
               "reply": "你的数字是{v}。", "missing": "你还没有告诉我数字。"}},
    "pet": {
        "draw": pet_name, "open": True,
        "en": {"tell": ["My dog is called {v}.", "I have a dog named {v}.", "My dog's name is {v}.", "The name of my dog is {v}."],
               "ack": "{v} is a lovely name for a dog!",
               "ask": ["What is my dog called?", "What is the name of my dog?", "What's my dog's name?", "Do you remember my dog's name?", "What is my dog's name?"],
               "reply": "Your dog is called {v}.", "missing": "You have not told me about your dog yet."},
        "zh": {"tell": ["我的狗叫{v}。", "我有一只狗，叫{v}。", "我的狗的名字是{v}。"],
               "ack": "{v}真是个可爱的狗名！",
               "ask": ["我的狗叫什么？", "我的狗叫什么名字？", "你记得我的狗叫什么吗？", "我的狗的名字是什么？"],
               "reply": "你的狗叫{v}。", "missing": "你还没有告诉我你的狗。"}},
    "cat": {
        "draw": pet_name, "open": True,
        "en": {"tell": ["My cat is called {v}.", "I have a cat named {v}.", "My cat's name is {v}.", "The name of my cat is {v}."],
               "ack": "{v} is a lovely name for a cat!",
               "ask": ["What is my cat called?", "What is the name of my cat?", "What's my cat's name?", "Do you remember my cat's name?", "What is my cat's name?"],
               "reply": "Your cat is called {v}.", "missing": "You have not told me about your cat yet."},
        "zh": {"tell": ["我的猫叫{v}。", "我有一只猫，叫{v}。", "我的猫的名字是{v}。"],
               "ack": "{v}真是个可爱的猫名！",
               "ask": ["我的猫叫什么？", "我的猫叫什么名字？", "你记得我的猫叫什么吗？", "我的猫的名字是什么？"],
               "reply": "你的猫叫{v}。", "missing": "你还没有告诉我你的猫。"}},
    "job": {
        "draw": lambda rng, lang: en_zh(rng.choice(W.JOBS)), "open": False,
        "en": {"tell": ["I am {a}.", "I'm {a}.", "I work as {a}.", "My job is {v}."],
               "ack": "Being a {v} is a good job!",
               "ask": ["What is my job?", "What do I do?", "What's my job?", "Do you remember my job?", "What do I work as?"],
               "reply": "You are a {v}.", "missing": "You have not told me your job yet."},
        "zh": {"tell": ["我是一名{v}。", "我的工作是{v}。", "我的职业是{v}。", "我是{v}。"],
               "ack": "{v}是一份好工作！",
               "ask": ["我的工作是什么？", "我是做什么的？", "你记得我的工作吗？", "我的职业是什么？"],
               "reply": "你是一名{v}。", "missing": "你还没有告诉我你的工作。"}},
    "drink": {
        "draw": lambda rng, lang: en_zh(rng.choice(W.DRINKS)), "open": False,
        "en": {"tell": ["My favourite drink is {v}.", "I like to drink {v}.", "I love to drink {v}."],
               "ack": "I will remember that you drink {v}.",
               "ask": ["What is my favourite drink?", "What do I like to drink?", "What's my favourite drink?", "Do you remember my favourite drink?"],
               "reply": "Your favourite drink is {v}.", "missing": "You have not told me your favourite drink yet."},
        "zh": {"tell": ["我最喜欢的饮料是{v}。", "我最喜欢喝{v}。", "我爱喝{v}。", "我喜欢喝{v}。"],
               "ack": "我会记住你喜欢喝{v}。",
               "ask": ["我最喜欢的饮料是什么？", "我最喜欢喝什么？", "我喜欢喝什么？", "你记得我最喜欢的饮料吗？"],
               "reply": "你最喜欢的饮料是{v}。", "missing": "你还没有告诉我你最喜欢的饮料。"}},
    "friend": {
        "draw": person, "open": True,
        "en": {"tell": ["My friend is called {v}.", "My best friend is {v}.", "My friend's name is {v}.", "I have a friend named {v}."],
               "ack": "It is good to have a friend like {v}!",
               "ask": ["What is my friend called?", "What is the name of my friend?", "Who is my friend?", "Who is my best friend?", "What's my friend's name?"],
               "reply": "Your friend is called {v}.", "missing": "You have not told me about your friend yet."},
        "zh": {"tell": ["我的朋友叫{v}。", "我最好的朋友是{v}。", "我有一个朋友，叫{v}。"],
               "ack": "有{v}这样的朋友真好！",
               "ask": ["我的朋友叫什么？", "我的朋友叫什么名字？", "我的朋友是谁？", "你记得我的朋友叫什么吗？"],
               "reply": "你的朋友叫{v}。", "missing": "你还没有告诉我你的朋友。"}},
}
KIND_NAMES = list(KINDS)
KIND_WEIGHTS = [6 if k == "name" else 3 if k in ("colour", "animal", "food") else 1 for k in KIND_NAMES]
THOUGHT = {"en": {"tell": "The user tells me something. I will remember it.", "ask": "The user asks about something they told me: {v}.", "missing": "The user has not told me this.", "about": "I go through what the user told me."},
           "zh": {"tell": "用户告诉我一件事。我会记住。", "ask": "用户问的是之前告诉我的事：{v}。", "missing": "用户没有告诉过我这个。", "about": "我想想用户告诉过我什么。"}}


def draw_value(rng, kind, lang, split):
    """A value for a fact; open values (names) are held out whole, by value."""
    spec = KINDS[kind]
    while True:
        value = spec["draw"](rng, lang)
        if not spec["open"] or skills.held(f"{kind}|{value[lang]}") == (split == "held"):
            return value


def tell(rng, kind, value, lang):
    """The turn in which a fact is told: (question, answer by language)."""
    spec = KINDS[kind]
    named = value[lang]
    text = rng.choice(spec[lang]["tell"]).format(v=named, a=skills.an(named), p=translation.plural(named) if kind == "animal" else "")
    if rng.random() < 0.06:
        text = ("Please remember: " if lang == "en" else "请记住：") + text
    text = text if text.startswith("my ") else skills.cap(text)
    answer = {l: skills.cap(spec[l]["ack"].format(v=value[l])) for l in skills.LANGS}
    return skills.Item("memory", "", text, answer, {}, {l: THOUGHT[l]["tell"] for l in skills.LANGS}, plain=True)


def tell_two(rng, first, second, lang):
    """Two facts in one breath: [(kind, value), (kind, value)]."""
    a, b = tell(rng, *first, lang), tell(rng, *second, lang)
    if lang == "en" and b.question[:2] in ("My", "I ") and a.question[-1] == "." and rng.random() < 0.6:
        joined = a.question[:-1] + " and " + (b.question if b.question.startswith("I ") else "m" + b.question[1:])
        return skills.Item("memory", "", joined, {"en": a.answer["en"] + " " + b.answer["en"], "zh": a.answer["zh"] + b.answer["zh"]}, {}, a.thought, plain=True)
    glue = " " if lang == "en" else ""
    marks = {"en": ".!?", "zh": "。！？"}[lang]
    question = a.question + ("" if a.question[-1] in marks else marks[0]) + glue + b.question
    return skills.Item("memory", "", question, {"en": a.answer["en"] + " " + b.answer["en"], "zh": a.answer["zh"] + b.answer["zh"]}, {}, a.thought, plain=True)


def ask(rng, kind, value, lang, index=None):
    """The question for a told fact, or for one never told (value None)."""
    spec = KINDS[kind]
    asks = spec[lang]["ask"]
    question = asks[index] if index is not None else rng.choice(asks)
    if value is None:
        return skills.Item("memory", "", question, {l: spec[l]["missing"] for l in skills.LANGS}, {}, {l: THOUGHT[l]["missing"] for l in skills.LANGS})
    return skills.Item("memory", "", question, {l: spec[l]["reply"].format(v=value[l]) for l in skills.LANGS},
                       {l: skills.cap(value[l]) for l in skills.LANGS}, {l: THOUGHT[l]["ask"].format(v=value[l]) for l in skills.LANGS})


ABOUT_ME = {"en": ["What do you know about me?", "What did I tell you about myself?", "What do you remember about me?", "Tell me what you know about me."],
            "zh": ["你知道我的什么？", "我告诉过你什么？", "你记得关于我的什么？", "说说你对我的了解。"]}
NOTHING = {"en": "You have not told me anything about yourself yet.", "zh": "你还没有告诉我关于你的事。"}


def about_me(rng, known, lang):
    """Everything told so far, in the order it was told. `known`: kind -> (value, turn)."""
    answer = {}
    for l, glue in (("en", " "), ("zh", "")):
        answer[l] = glue.join(KINDS[kind][l]["reply"].format(v=value[l]) for kind, (value, _) in known.items()) or NOTHING[l]
    return skills.Item("memory", "", rng.choice(ABOUT_ME[lang]), answer, {}, {l: THOUGHT[l]["about" if known else "missing"] for l in skills.LANGS})
