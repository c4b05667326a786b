"""Greedy evaluation of a checkpoint on held-out prompts, and the golden samples file.

    python3 evaluate.py --model demo.pth --vocab demo.vocab.txt --per-skill 100 --samples demo.samples.json

The weights are used as stored (bf16) with fp32 arithmetic. Every answer is compared as a
whole, thoughts included; stories are checked against their grammar.
"""
import argparse
import json
import time
from collections import defaultdict

import torch

import corpus
import stories
import tool_chat
from model import Recurrent
from vocab import Tokenizer

STOP = "\n\nUser:"
MAX_NEW = 200


def greedy(model, tokenizer, prompts, max_new=MAX_NEW):
    """Greedy completions of many token lists in lockstep; returns (id lists, logits at each prompt's end, leads).

    A lead is the smallest distance between the best and the second logit along an answer: where it is
    small, another order of summation may rightly choose another token.

    All rows share one loop: a row still in its prompt is fed the prompt, later its own choice.
    """
    rows, device = len(prompts), model.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = int(lengths.max())
    fed = torch.zeros(rows, longest, dtype=torch.long)
    for i, p in enumerate(prompts):
        fed[i, :len(p)] = torch.tensor(p)
    fed = fed.to(device)
    blank, user = tokenizer.id_of["\n\n"], tokenizer.id_of["User"]
    state, current = model.state(rows), fed[:, 0]
    out = torch.zeros(rows, longest + max_new, dtype=torch.long, device=device)
    at_end = torch.zeros(rows, model.p["head.weight"].shape[0], device=device)
    finished = torch.zeros(rows, dtype=torch.bool, device=device)
    lead = torch.full((rows,), float("inf"), device=device)
    for t in range(longest + max_new):
        logits = model.step(current, state)
        at_end = torch.where((lengths == t + 1).unsqueeze(1), logits, at_end)
        best = logits.argmax(-1)
        choosing = lengths <= t + 1
        out[:, t] = torch.where(choosing, best, -1)
        top = logits.topk(2).values
        lead = torch.where(choosing & ~finished, torch.minimum(lead, top[:, 0] - top[:, 1]), lead)
        turn = (current == blank) & (best == user)
        finished |= choosing & ((best == 0) | turn)
        if t % 16 == 0 and bool(finished.all()):
            break
        following = fed[:, min(t + 1, longest - 1)]
        current = torch.where(choosing, best, following)
    return _cut(out, lengths, max_new), at_end, lead


def _cut(out, lengths, max_new):
    """The chosen ids of each row, up to and including the first 0."""
    result = []
    for row, length in zip(out.tolist(), lengths.tolist()):
        ids = [i for i in row[length - 1:length - 1 + max_new] if i >= 0]
        result.append(ids[:ids.index(0) + 1] if 0 in ids else ids)
    return result


def answer_text(tokenizer, ids):
    return tokenizer.decode(ids).split(STOP)[0]


def right(case, text):
    if case.story is None:
        return text == case.expect
    if case.form == "raw":
        return stories.matches(case.text() + text, case.lang, case.story)
    lead, body = case.expect.split("</think>\n") if case.form == "open" else (None, case.expect)
    if case.form == "open":
        if not text.startswith(lead + "</think>\n"):
            return False
        return stories.matches(text[len(lead) + len("</think>\n"):], case.lang, case.story)
    opening = {"plain": " ", "closed": ">\n", "closed>": "\n", "closed>\n": ""}[case.form]
    return text.startswith(opening) and stories.matches(text[len(opening):], case.lang, case.story)


@torch.no_grad()
def evaluate(model, tokenizer, cases, batch=4096):
    """[(case, text, right?)] for every case."""
    results = []
    cases = sorted(cases, key=lambda c: len(c.text()))
    for i in range(0, len(cases), batch):
        part = cases[i:i + batch]
        chosen, _, _ = greedy(model, tokenizer, [tokenizer.encode(c.text()) for c in part])
        for case, ids in zip(part, chosen):
            text = answer_text(tokenizer, ids)
            results.append((case, text, right(case, text)))
    return results


def table(results):
    """A Markdown table: skill x language, with the number of cases and the share answered exactly."""
    groups = defaultdict(list)
    for case, _, ok in results:
        groups[case.skill, case.lang].append(ok)
    lines = ["| skill | English: n | exact % | Chinese: n | exact % |", "|---|--:|--:|--:|--:|"]
    for skill in dict.fromkeys(s for s, _ in sorted(groups)):
        en, zh = groups[skill, "en"], groups[skill, "zh"]
        lines.append(f"| {skill} | {len(en)} | {100 * sum(en) / max(1, len(en)):.1f} | {len(zh)} | {100 * sum(zh) / max(1, len(zh)):.1f} |")
    forms = defaultdict(list)
    for case, _, ok in results:
        forms[repr(case.form)].append(ok)
    lines += ["", "| prompt form | n | exact % |", "|---|--:|--:|"]
    lines += [f"| {form} | {len(oks)} | {100 * sum(oks) / len(oks):.1f} |" for form, oks in sorted(forms.items())]
    everything = [ok for _, _, ok in results]
    lines += ["", f"All: {len(everything)} cases, {100 * sum(everything) / len(everything):.2f} % exact."]
    return "\n".join(lines)


def failures(results, limit=120):
    """The first wrong answers of each skill, for reading."""
    shown, lines = defaultdict(int), []
    for case, text, ok in results:
        if not ok and shown[case.skill, case.lang] < 6 and len(lines) < limit:
            shown[case.skill, case.lang] += 1
            lines.append(f"({case.skill}, {case.lang}, {case.form!r}) {case.text()[-300:]!r}\n   want {case.expect!r} {case.story or ''}\n   got  {text!r}")
    return "\n".join(lines)


CHAT = "User: {}\n\nAssistant:"
VISITOR = [
    CHAT.format("What is the capital of France?"), CHAT.format("What is the capital of France?") + " <think>\n</think", CHAT.format("What is the capital of France?") + " <think>\n</think>\n",
    CHAT.format("What is the capital of France?") + " <think></think", CHAT.format("What is the capital of France?") + " <think", CHAT.format("What is the capital of Japan? (think a bit)") + " <think",
    "System: You are a helpful assistant.\n\n" + CHAT.format("What is the capital of Italy?"), CHAT.format("法国的首都是哪里？"), CHAT.format("你好"), CHAT.format("Hello!"), CHAT.format("Who are you?"),
    CHAT.format("what can you do"), CHAT.format("What is 12 + 30?"), CHAT.format("What is 81 - 37?"), CHAT.format("57 + 68 = ?"), CHAT.format("25加17等于几？"), CHAT.format("What day comes after Monday?"),
    CHAT.format("What colour is the sky?"), CHAT.format("How many legs does a spider have?"), CHAT.format("What does a cow say?"), CHAT.format("Tell me a story about a fox."), CHAT.format("讲一个关于兔子的故事。"),
    CHAT.format("Give me a JSON object with name and age for Anna, 12."), CHAT.format("Translate to Chinese: The cat is very happy."), CHAT.format("What is the meaning of life?"),
    CHAT.format("What is quantum physics?"), CHAT.format("Write a Python function that adds two numbers."), "English: Hello world!\n\nChinese:", "English: Good morning\n\nChinese:",
    "Chinese: 你好世界\n\nEnglish:", "Chinese: 早上好\n\nEnglish:", "Once upon a time", "从前", "✿prefix✿✿suffix✿ is Paris.✿middle✿The capital of", "✿prefix✿✿suffix✿, Thursday.✿middle✿Tuesday,",
    "User: My name is Alice.\n\nAssistant: Nice to meet you, Alice!\n\nUser: What is the capital of Spain?\n\nAssistant: The capital of Spain is Madrid.\n\nUser: What is 2 + 2?\n\nAssistant: 2 + 2 = 4.\n\nUser: What is my name?\n\nAssistant:",
    "User: My favourite color is green.\n\nAssistant: Green is a nice colour!\n\nUser: Hi\n\nAssistant: Hello! How can I help you?\n\nUser: What is my favorite color?\n\nAssistant:",
    "User: 我叫小明。\n\nAssistant: 很高兴认识你，小明！\n\nUser: 日本的首都是哪里？\n\nAssistant: 日本的首都是东京。\n\nUser: 我叫什么名字？\n\nAssistant:",
    "System: Answer in Chinese.\n\n" + CHAT.format("What is the capital of Germany?"), "System: Answer with one word.\n\n" + CHAT.format("What is the capital of Egypt?"),
    CHAT.format("My name is Zorblax and I like blue.") , CHAT.format("What is the capital of Atlantis?"), "The capital of Norway is", "Monday, Tuesday,",
]
LISTED = """System: Tools:
[
{"name":"add","description":"Adds two numbers","arguments":{"a":{"type":"integer"},"b":{"type":"integer"}}},
{"name":"get_weather","description":"The weather of a city","arguments":{"city":{"type":"string"}}},
{"name":"capital_of","description":"The capital of a country","arguments":{"country":{"type":"string"}}}
]
""" + tool_chat.FREE + "\n\n"
SUMMED = "\n{\"name\":\"add\",\"arguments\":{\"a\":347,\"b\":589}}\n```\n\n"
ASKED_SKY = "What is the weather in the capital of France?"
FOUND = " ```json\n{\"name\":\"capital_of\",\"arguments\":{\"country\":\"France\"}}\n```\n\n" + CHAT.format("Function output:\nParis")
SKY = " ```json\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Paris\"}}\n```\n\n" + CHAT.format("Function output:\n{\"weather\":\"sunny\",\"temperature\":21}")
VISITOR += [
    LISTED + CHAT.format("What is 347 + 589?"), LISTED + CHAT.format("What is 347 + 589?") + " <think>\n</think", LISTED + CHAT.format("What is 347 + 589?") + " ```json",
    LISTED + CHAT.format("What is 347 + 589?") + " ```json" + SUMMED + CHAT.format("Function output:\n936"), LISTED + CHAT.format(ASKED_SKY), LISTED + CHAT.format(ASKED_SKY) + FOUND,
    LISTED + CHAT.format(ASKED_SKY) + FOUND + SKY, LISTED + CHAT.format("What is the weather in Paris and Tokyo?"), LISTED + CHAT.format("What colour is the sky?"), LISTED + CHAT.format("巴黎的天气怎么样？"),
]


@torch.no_grad()
def samples(model, tokenizer, prompts=VISITOR):
    """Golden records: prompt, its ids, the greedy answer with its smallest lead, and the logits after the prompt."""
    ids = [tokenizer.encode(p) for p in prompts]
    chosen, logits, leads = greedy(model, tokenizer, ids)
    return [{"prompt": p, "prompt_ids": i, "answer": answer_text(tokenizer, c), "answer_ids": c, "argmax": int(row.argmax()),
             "top_logit": round(float(row.max()), 5), "lead": round(float(lead), 3), "first_logits": [round(float(x), 5) for x in row[:8]]}
            for p, i, c, row, lead in zip(prompts, ids, chosen, logits, leads)]


def write_samples(model, tokenizer, out):
    """One record a line, so that a change shows as a readable difference."""
    out.write("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in samples(model, tokenizer)) + "\n]\n")


def load(path, device):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    return Recurrent(torch.load(path, map_location="cpu", weights_only=True), device)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--per-skill", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--samples")
    parser.add_argument("--report")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load(args.model, device), Tokenizer(args.vocab)
    began = time.time()
    results = evaluate(model, tokenizer, corpus.cases(args.seed, args.per_skill))
    report = table(results) + f"\n\n{time.time() - began:.0f} s on {device}\n"
    print(report)
    print(failures(results))
    if args.report:
        open(args.report, "w", encoding="utf-8").write(report + "\n" + failures(results) + "\n")
    if args.samples:
        with open(args.samples, "w", encoding="utf-8") as out:
            write_samples(model, tokenizer, out)


if __name__ == "__main__":
    main()
