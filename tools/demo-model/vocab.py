"""The vocabulary of the demo model and its tokenizer.

    python3 vocab.py OUT.txt        builds the vocabulary from the generator and writes it

File format: one line per token, `<id> <python literal> <byte length>`. Ids 1..256 are the
single bytes (id = byte + 1); id 0 means end of text and has no line. Encoding is greedy
longest match over UTF-8 bytes. All longer tokens are whole characters, so the match can be
done on text, with unknown characters falling back to their bytes.
"""
import ast
import random
import re
import sys
from collections import Counter

import generate
import memory
import skills
import stories
import world as W

SIZE = 2688  # rows of the model's embedding; the file holds ids 1..SIZE-1 at most
FIRST = ["  ", " a", "an", "on"]  # ids 257..260; then "\n\n" is 261, as in the RWKV World vocabulary
MARKS = ["    ", "<think", "</think", "✿", "User", "Assistant", "System", "English", "Chinese", "Instruction", "Response", "Question", "Answer"]
PIECE = re.compile(r" ?[A-Za-z]+|[^\x00-\x7f]")


def chinese_words():
    """Words of the tables that deserve a token of their own."""
    words = {c["zh"] for c in W.COUNTRIES} | {c["capital"]["zh"] for c in W.COUNTRIES} | {z for _, z in W.COLOURS} | {a["zh"] for a in W.ANIMALS}
    for table in (W.NAMES, W.FOODS, W.SPORTS, W.JOBS, W.ACTIONS, W.FEELINGS, W.FAMILY, W.GOALS):
        words |= {row[1] for row in table}
    words |= {o[2] for o in W.OBJECTS} | {t[1] for t in W.THINGS} | {"星期", "首都", "什么", "多少", "用户", "名字", "喜欢", "颜色", "动物", "反义词", "告诉", "我们", "他们", "从前", "有一天",
                                                                     "知道", "对不起", "模型", "世界", "翻译成", "英文", "中文", "城市", "国家", "故事", "正在", "非常", "等于", "你的", "我的", "最喜欢的", "后面", "前面"}
    return {w for w in words if len(w) > 1}  # build() keeps the frequent ones


def letter_pieces(words):
    """Short letter groups for words outside the world: single capitals after a space, frequent pairs and triples."""
    pairs, triples = Counter(), Counter()
    for word in words:
        low = word.strip()
        pairs.update(low[i:i + 2] for i in range(len(low) - 1))
        triples.update(low[i:i + 3] for i in range(len(low) - 2))
    out = [" " + chr(c) for c in list(range(65, 91)) + list(range(97, 123))]
    return out + [p for p, _ in pairs.most_common(220)] + [t for t, _ in triples.most_common(90)]


def world_characters():
    """Every Chinese character and mark of the world. The topics outside it travel as bytes where they must."""
    inside = {k: v for k, v in vars(W).items() if not k.startswith("__") and k not in ("TOPICS", "TOPICS_ZH")}
    text = str(inside) + str([vars(m) for m in (memory, skills, stories)])
    for outside in (W.TOPICS_ZH, skills.UNKNOWN_PLAIN["zh"]):
        text = text.replace(str(outside), "")
    return set(re.findall(r"[^\x00-\x7f]", text)) - {"✿"}


def build(documents=40000, seed=11):
    """The token strings for ids 257.., most useful first until the table is full."""
    rng = random.Random(seed)
    counts, chinese = Counter(), Counter()
    split_words = re.compile("|".join(sorted(chinese_words(), key=len, reverse=True)))
    for _ in range(documents):
        for text, weight in generate.document(rng):
            counts.update(PIECE.findall(text))
            chinese.update(split_words.findall(text))
    characters = sorted(c for c in world_characters() if counts[c])
    words = [w for w, n in counts.most_common() if len(w) > 1]
    tokens = list(dict.fromkeys(FIRST + ["\n\n"] + MARKS))
    tokens += [t for t in characters + [w for w, n in chinese.most_common() if n >= 100] + letter_pieces(words + W.TOPICS) if t not in tokens]
    tokens = list(dict.fromkeys(tokens))
    room = SIZE - 1 - 256 - len(tokens)
    fresh = [w for w in words if w not in set(tokens)]
    return tokens + fresh[:room], fresh[room:room + 20], len(characters)


def write(path, tokens):
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for byte in range(256):
            literal = repr(chr(byte)) if byte < 128 else repr(bytes([byte]))
            out.write(f"{byte + 1} {literal} 1\n")
        for i, token in enumerate(tokens):
            out.write(f"{257 + i} {token!r} {len(token.encode())}\n")


class Tokenizer:
    """Greedy longest match. `encode` gives ids, `decode` gives text (bad bytes become U+FFFD)."""

    def __init__(self, path):
        self.bytes_of, self.id_of = {0: b""}, {}
        for line in open(path, encoding="utf-8"):
            number, rest = line.rstrip("\n").split(" ", 1)
            literal, size = rest.rsplit(" ", 1)
            value = ast.literal_eval(literal)
            data = value.encode() if isinstance(value, str) else value
            assert len(data) == int(size), line
            self.bytes_of[int(number)] = data
            if isinstance(value, str):
                self.id_of[value] = int(number)
        self.size = max(self.bytes_of) + 1
        self.match = re.compile(_trie_regex(self.id_of), re.DOTALL).findall

    def encode(self, text):
        ids = []
        for piece in self.match(text):
            known = self.id_of.get(piece)
            if known is not None:
                ids.append(known)
            else:
                ids.extend(b + 1 for b in piece.encode())
        return ids

    def decode(self, ids):
        return b"".join(self.bytes_of.get(i, b"") for i in ids).decode("utf-8", errors="replace")


def _trie_regex(tokens):
    """A regex that matches the longest token at a place, or one unknown character."""
    root = {}
    for token in tokens:
        node = root
        for letter in token:
            node = node.setdefault(letter, {})
        node[""] = {}

    def pattern(node):
        branches = [re.escape(letter) + pattern(child) for letter, child in node.items() if letter]
        if not branches:
            return ""
        body = "(?:" + "|".join(branches) + ")"
        return body + "?" if "" in node else body

    return pattern(root) + "|."


def main():
    tokens, dropped, characters = build()
    write(sys.argv[1], tokens)
    print(f"{256 + len(tokens)} tokens, {characters} characters; first words left out: {dropped}")


if __name__ == "__main__":
    main()
