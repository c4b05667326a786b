"""Trains small RWKV-7 models on any text, for measurements that random weights cannot give.

    python3 train.py prepare DATA FOLDER...                           a vocabulary and the tokens of the folders' text
    python3 train.py train DATA OUT.pth --channels 256 --layers 6     trains on them, on a CUDA GPU
    python3 train.py copies DATA                                      copying tasks of text that no model was trained on

Four rows in ten are copying tasks: a passage, then the same passage, often with one word replaced. One file in 32 is held out.
"""
import argparse
import hashlib
import html.parser
import itertools
import json
import math
import os
import random
import re
import sys
import time
from collections import Counter

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "demo-model"))
import model as rwkv  # noqa: E402

T = 512          # tokens of a row
ROWS = 4096      # of the embedding: end of text, 256 bytes, and words
KINDS = (".txt", ".md", ".rst", ".html", ".py")
PIECE = re.compile(r" ?[A-Za-z]+|[^\S\n]+|\n\s*| ?[^\sA-Za-z]{1,3}")
WORD = re.compile(r" [A-Za-z]{4,}")


# ---- text ----

class Plain(html.parser.HTMLParser):
    """The text of a page's <main>, or of all of it."""

    def __init__(self):
        super().__init__()
        self.parts, self.hidden, self.main = [], 0, None

    def handle_starttag(self, tag, attrs):
        if tag == "main":
            self.main = len(self.parts)
        self.hidden += tag in ("script", "style", "nav", "button")
        if tag in ("p", "li", "h1", "h2", "h3", "h4", "pre", "tr", "div", "dt", "dd"):
            self.parts.append("\n")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style", "nav", "button") and self.hidden > 0
        if tag == "main" and self.main is not None:
            self.parts, self.main = self.parts[self.main:], 0
            self.hidden = 1 << 30

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data)


def text_of(path):
    with open(path, encoding="utf-8", errors="ignore") as file:
        text = file.read()
    if path.endswith(".html"):
        page = Plain()
        page.feed(text)
        text = "".join(page.parts)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()


def texts(folders):
    """Texts of 1 to 400 KB, none twice."""
    seen = set()
    for folder in folders:
        paths = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(KINDS)]
        for path in sorted(paths):
            if os.path.islink(path) or not 1000 < os.path.getsize(path) < 2_000_000:
                continue
            text = text_of(path)
            key = hashlib.sha256(text.encode()).digest()
            if 1000 < len(text) < 400_000 and key not in seen:
                seen.add(key)
                yield key[0] % 32 == 0, text


# ---- tokens ----

def vocabulary(counts):
    """The pieces, and beginnings of words, that save most tokens."""
    begun = Counter()
    for piece, count in counts.items():
        for end in range(2, min(5, len(piece))):
            begun[piece[:end]] += count // 4
    saved = {p: n * (len(p.encode()) - 1) for p, n in (counts + begun).items() if 1 < len(p.encode()) < 32}
    return sorted(saved, key=lambda piece: (-saved[piece], piece))[:ROWS - 257]


class Tokenizer:
    """Greedy, the longest first, as every RWKV tokenizer; one character is one byte here."""

    def __init__(self, pieces):
        words = [bytes([byte]) for byte in range(256)] + [piece.encode() for piece in pieces]
        self.ids = {word.decode("latin-1"): i + 1 for i, word in enumerate(words)}
        self.texts = {i: word.encode("latin-1").decode("utf-8", "replace") for word, i in self.ids.items()}
        self.longest = max(map(len, self.ids))

    def encode(self, text):
        text, ids, at, out = text.encode().decode("latin-1"), self.ids, 0, []
        while at < len(text):
            end = min(len(text), at + self.longest)
            while text[at:end] not in ids:
                end -= 1
            out.append(ids[text[at:end]])
            at = end
        return out

    def write(self, path):
        with open(path, "w", encoding="utf-8", newline="\n") as out:
            for word, i in self.ids.items():
                raw = word.encode("latin-1")
                try:
                    literal = repr(raw.decode())
                except UnicodeDecodeError:
                    literal = repr(raw)
                out.write(f"{i} {literal} {len(raw)}\n")


def prepare(args):
    os.makedirs(args.data, exist_ok=True)
    kept, counts, left = [], Counter(), args.megabytes * 1e6
    for is_held, text in texts(args.folders):
        left -= len(text)
        if left < 0:
            break
        kept.append((is_held, text))
        if not is_held:
            counts.update(PIECE.findall(text))
    pieces = vocabulary(counts)
    tokenizer = Tokenizer(pieces)
    tokenizer.write(os.path.join(args.data, "vocab.txt"))
    with open(os.path.join(args.data, "pieces.json"), "w") as out:
        json.dump(pieces, out)
    for name, held in (("train", False), ("held", True)):
        ids = [i for is_held, text in kept if is_held == held for i in [*tokenizer.encode(text), 0]]
        np.array(ids, np.uint16).tofile(os.path.join(args.data, name + ".bin"))
        print(name, sum(is_held == held for is_held, _ in kept), "texts,", len(ids), "tokens")
    with open(os.path.join(args.data, "held.txt"), "w") as out:
        out.write("\n\n".join(text for is_held, text in kept if is_held))


def open_data(folder):
    with open(os.path.join(folder, "pieces.json")) as file:
        tokenizer = Tokenizer(json.load(file))
    return tokenizer, *(np.fromfile(os.path.join(folder, name + ".bin"), np.uint16) for name in ("train", "held"))


# ---- tasks ----

class Tasks:
    """Rows of text, some of them copying tasks."""

    def __init__(self, tokenizer, tokens, seed, share):
        self.tokenizer, self.tokens, self.share = tokenizer, tokens, share
        self.random = random.Random(seed)
        self.words = {i for i, text in tokenizer.texts.items() if WORD.fullmatch(text)}
        self.others = sorted(self.words)
        self.form = [tokenizer.encode(text) for text in ("Copy this text:\n\n", "Replace", " with", ":\n\n", "\n\nResult:\n\n")]

    def copy(self, length):
        """(prompt, answer) of a passage of so many tokens."""
        verbatim, replace, by, begin, result = self.form
        at = self.random.randrange(len(self.tokens) - length)
        passage = [int(i) for i in self.tokens[at:at + length] if i]
        known = Counter(i for i in passage if i in self.words)
        if not known or self.random.random() < 0.25:
            return verbatim + passage + result, passage
        old = self.random.choice(sorted(known))
        new = self.random.choice(self.others)
        return [*replace, old, *by, new, *begin, *passage, *result], [new if i == old else i for i in passage]

    def row(self):
        if self.random.random() < self.share:
            prompt, answer = self.copy(self.random.randrange(32, 240))
            ids = prompt + answer
        else:
            at = self.random.randrange(len(self.tokens) - T)
            ids = self.tokens[at:at + T + 1].tolist()
        ids = [0, *ids][:T + 1]
        return ids + [0] * (T + 1 - len(ids)), len(ids)

    def batch(self, count):
        rows = [self.row() for _ in range(count)]
        ids = torch.from_numpy(np.array([ids for ids, _ in rows], np.int64))
        starts = torch.zeros(count, T, dtype=torch.bool)
        starts[:, 0] = True
        # The 0 after a task counts: it ends the answer.
        lengths = torch.tensor([length for _, length in rows])
        weights = (torch.arange(1, T + 1) <= lengths[:, None]).float()
        return tuple(t.contiguous() for t in (ids[:, :-1], starts, ids[:, 1:], weights))


class Batches(torch.utils.data.IterableDataset):
    """Rows without end; each process of the loader has its own."""

    def __init__(self, data, seed, rows, copies):
        self.data, self.seed, self.rows, self.copies = data, seed, rows, copies

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        tokenizer, tokens, _ = open_data(self.data)
        tasks = Tasks(tokenizer, tokens, 100 * self.seed + (worker.id if worker else 0), self.copies)
        while True:
            yield tasks.batch(self.rows)


# ---- training ----

def stepper(model, optimizer, batch, is_recorded):
    """A step of training on `batch`, whose tensors stay the same. Recorded once and replayed, since launching takes longer than computing."""
    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=batch[0].is_cuda, cache_enabled=False):
            loss = model.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    def plain():
        optimizer.zero_grad(set_to_none=True)
        return step()

    if not is_recorded:
        return plain
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            plain()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss
    return replay


def train(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        rwkv.Recurrence.apply = rwkv.recurrence_loop
    else:
        rwkv.library()
    tokenizer, _, held = open_data(args.data)
    ranks = (16, 16, 16, 32) if args.channels <= 64 else (32, 32, 32, 64)
    model = rwkv.Model(rwkv.Config(ROWS, args.channels, args.layers, *ranks)).to(device)
    if args.resume:
        model.load_state_dict({n: t.float() for n, t in torch.load(args.resume, weights_only=True).items()})
    decayed = [p for n, p in model.named_parameters() if n.endswith(".weight") and p.dim() == 2 and not n.startswith("emb")]
    chosen = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in chosen]
    is_cuda = device == "cuda"
    rate = torch.tensor(1e-5, device=device)
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                                  lr=rate, betas=(0.9, 0.98), eps=1e-12, fused=True, capturable=is_cuda)
    loader = torch.utils.data.DataLoader(Batches(args.data, args.seed, args.rows, args.copies), batch_size=None, num_workers=3 * is_cuda, pin_memory=is_cuda)
    batches = iter(loader)
    batch = [t.to(device) for t in next(batches)]
    step_of = stepper(model, optimizer, batch, is_cuda and not args.eager)
    began, losses = time.time(), []
    for step in itertools.count():
        passed = (time.time() - began) / args.seconds
        if passed >= 1:
            break
        rate.fill_(args.rate * min(1, (step + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * passed))))
        for there, new in zip(batch, next(batches)):
            there.copy_(new, non_blocking=True)
        losses.append(step_of().clone())
        if is_cuda and step % 25 == 0:
            torch.cuda.synchronize()
        if len(losses) == 200:
            print(f"{args.out}: step {step + 1}, {time.time() - began:.0f} s, loss {torch.stack(losses).mean().item():.3f}", flush=True)
            losses = []
    tensors = {name: t.detach().to("cpu", torch.bfloat16).contiguous().clone() for name, t in model.state_dict().items()}
    torch.save(tensors, args.out)
    with torch.no_grad():
        means = []
        for share in (0.0, 1.0):
            unseen = Tasks(tokenizer, held, 0, share)
            means.append(torch.stack([model.loss(*(t.to(device) for t in unseen.batch(8))) for _ in range(8)]).mean().item())
    count = sum(p.numel() for p in model.parameters())
    print(f"{args.out}: {count} parameters, {step} steps of {args.rows} x {T} tokens, held-out loss {means[0]:.3f}, of copying tasks {means[1]:.3f}")


def copies(args):
    tokenizer, _, held = open_data(args.data)
    tasks = Tasks(tokenizer, held, 7, 1)
    spell = lambda ids: b"".join(next(w for w, n in tokenizer.ids.items() if n == i).encode("latin-1") for i in ids).decode("utf-8", "replace")
    print(json.dumps([dict(zip(("prompt", "answer"), map(spell, tasks.copy(160)))) for _ in range(args.count)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for function, options in (
        (prepare, [("folders", dict(nargs="+")), ("--megabytes", dict(type=float, default=24))]),
        (train, [("out", {}), ("--channels", dict(type=int, default=256)), ("--layers", dict(type=int, default=6)),
                 ("--seed", dict(type=int, default=1)), ("--seconds", dict(type=float, default=60)),
                 ("--rows", dict(type=int, default=64)), ("--rate", dict(type=float, default=2e-3)), ("--eager", dict(action="store_true")),
                 ("--copies", dict(type=float, default=0.4)), ("--resume", {})]),
        (copies, [("--count", dict(type=int, default=32))]),
    ):
        command = commands.add_parser(function.__name__)
        command.add_argument("data")
        for name, how in options:
            command.add_argument(name, **how)
        command.set_defaults(run=function)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
