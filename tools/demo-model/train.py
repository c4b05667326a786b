"""Trains the demo model.

    python3 train.py --check                      kernel gradients against plain PyTorch, and speed
    python3 train.py --minutes 8 --out DIR        trains, saves DIR/demo.pth and DIR/report.md

Worker processes write packed rows into shared memory without end; the trainer draws random
rows from it, so that no text is stored and almost none is seen twice. The learning rate
follows the share of the time budget that has passed.
"""
import argparse
import math
import multiprocessing as mp
import os
import random
import time

import numpy as np
import torch

import corpus as texts
import evaluate
from model import CHUNK, Config, Model, Recurrence, recurrence_loop
from vocab import Tokenizer

T = 512                # tokens per row
RING = 96 * 1024       # rows kept in shared memory
HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = os.path.join(HERE, "..", "..", "models", "demo.vocab.txt")


# ---- corpus ----

def encode(document, tokenizer, rng):
    """(ids, weights in hundredths): the segments, then token 0; one document in twelve also begins with 0."""
    ids, weights = ([0], [0]) if rng.random() < 0.08 else ([], [])
    for text, weight in document:
        piece = tokenizer.encode(text)
        ids += piece
        weights += [int(100 * weight)] * len(piece)
    ids.append(0)
    weights.append(100)
    weights[0] = 0
    return ids, weights


def rows(seed, tokenizer):
    """Packed rows without end: documents start at multiples of CHUNK; yields (ids, weights, starts) of length T."""
    rng = random.Random(seed)
    waiting = []
    while True:
        ids, weights, starts, at = np.zeros(T, np.uint16), np.zeros(T, np.uint8), np.zeros(T, np.uint8), 0
        while at < T:
            while len(waiting) < 32:
                document = encode(texts.document(rng), tokenizer, rng)
                if len(document[0]) <= T:
                    waiting.append(document)
            fitting = [d for d in waiting if len(d[0]) <= T - at]
            starts[at] = 1
            if not fitting:
                break
            chosen = max(fitting, key=lambda d: len(d[0])) if at else waiting[0]
            waiting.remove(chosen)
            size = len(chosen[0])
            ids[at:at + size], weights[at:at + size] = chosen
            at += -(-size // CHUNK) * CHUNK
        yield ids, weights, starts


def fill(number, workers, seed, shared, filled):
    """A worker: writes its slice of the ring over and over."""
    ids, weights, starts = _views(shared)
    share = RING // workers
    source, at = rows(seed * 1000 + number, Tokenizer(VOCAB)), 0
    while True:
        place = number * share + at % share
        ids[place], weights[place], starts[place] = next(source)
        at += 1
        filled[number] = min(at, share)


def _views(shared):
    return tuple(np.frombuffer(raw, dtype=kind).reshape(RING, T) for raw, kind in zip(shared, (np.uint16, np.uint8, np.uint8)))


class Corpus:
    """The ring and its writers; `batch` copies random filled rows to the GPU."""

    def __init__(self, workers, seed):
        context = mp.get_context("fork")
        self.shared = [context.RawArray("B", RING * T * size) for size in (2, 1, 1)]
        self.filled = context.RawArray("l", workers)
        self.views, self.workers, self.share = _views(self.shared), workers, RING // workers
        self.random = np.random.default_rng(seed)
        self.processes = [context.Process(target=fill, args=(i, workers, seed, self.shared, self.filled), daemon=True) for i in range(workers)]
        for process in self.processes:
            process.start()

    def ready(self, rows):
        while min(self.filled) < rows // self.workers + 1:
            time.sleep(0.1)

    def batch(self, count, device="cuda"):
        """ids, starts, targets, weights of `count` rows."""
        who = self.random.integers(self.workers, size=count)
        place = np.array([w * self.share + self.random.integers(self.filled[w]) for w in who])
        ids, weights, starts = (torch.from_numpy(v[place].astype(kind)).pin_memory().to(device, non_blocking=True)
                                for v, kind in zip(self.views, (np.int64, np.float32, np.bool_)))
        targets = torch.roll(ids, -1, 1)
        weights = torch.roll(weights, -1, 1) / 100
        weights[:, -1] = 0
        return ids, starts, targets, weights

    def close(self):
        for process in self.processes:
            process.terminate()


# ---- training ----

def save(model, path):
    """A BlinkDL checkpoint: a plain dict of contiguous bf16 tensors, each with a storage of its own."""
    tensors = {name: t.detach().to("cpu", torch.bfloat16).contiguous().clone() for name, t in model.state_dict().items()}
    torch.save(tensors, path + ".new")
    os.replace(path + ".new", path)


def optimizer_of(model, rate):
    decayed = [p for n, p in model.named_parameters() if n.endswith(".weight") and p.dim() == 2 and not n.startswith("emb")]
    chosen = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                             lr=rate, betas=(0.9, 0.98), eps=1e-12, fused=True)


def rate_at(step, progress, peak):
    """Linear warm-up over 300 steps, then a cosine over the time budget to 1 % of the peak."""
    return peak * min(1, (step + 1) / 300) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1, progress))))


def train_step(model, optimizer, batch):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model.loss(*batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def report(path, model_path, tokenizer, per_skill, seed, header):
    results = evaluate.evaluate(evaluate.load(model_path, "cuda"), tokenizer, texts.cases(seed, per_skill))
    text = header + "\n\n" + evaluate.table(results)
    print(text, flush=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text + "\n\n" + evaluate.failures(results) + "\n")


def train(args):
    torch.manual_seed(args.seed)
    torch._dynamo.config.cache_size_limit = 64
    corpus = Corpus(args.workers, args.seed)
    tokenizer = Tokenizer(VOCAB)
    model = Model(Config(), compiled=True).cuda()
    if args.resume:
        model.load_state_dict({n: t.float() for n, t in torch.load(args.resume, weights_only=True).items()})
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    torch.set_float32_matmul_precision("high")
    optimizer = optimizer_of(model, args.rate)
    corpus.ready(args.rows)
    path = os.path.join(args.out, "demo.pth")
    began = None
    step, saved, checked, losses, budget = 0, 0.0, 0, [], args.minutes * 60
    while True:
        passed = time.time() - began if began else 0.0
        if passed >= budget:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, passed / budget, args.rate)
        losses.append(train_step(model, optimizer, corpus.batch(args.rows)))
        step += 1
        if step == 5:  # compilation is over
            torch.cuda.synchronize()
            began = time.time()
        if step % 200 == 0:
            mean = torch.stack(losses).mean().item()
            seen = step * args.rows * T
            print(f"step {step} loss {mean:.4f} {seen / 1e6:.0f} M tokens {passed:.0f} s {seen / max(1, passed) / 1e6:.2f} M tok/s ring {sum(corpus.filled)} rate {optimizer.param_groups[0]['lr']:.2e}", flush=True)
            losses = []
        if passed - saved > 60:
            save(model, path)
            saved = passed
        if args.peeks and checked < args.peeks and passed > budget * (checked + 1) / (args.peeks + 1):
            checked += 1
            save(model, path)
            report(os.path.join(args.out, "peek.md"), path, tokenizer, 12, 3, f"step {step}, {passed:.0f} s")
            torch.set_float32_matmul_precision("high")
            began = time.time() - passed  # evaluation does not count
    corpus.close()
    save(model, path)
    header = f"{step} steps of {args.rows} x {T} tokens ({step * args.rows * T / 1e6:.0f} M) in {passed:.0f} s on {torch.cuda.get_device_name()}"
    report(os.path.join(args.out, "report.md"), path, tokenizer, args.per_skill, 2, header)
    with open(os.path.join(args.out, "demo.samples.json"), "w", encoding="utf-8") as out:
        evaluate.write_samples(evaluate.load(path, "cuda"), tokenizer, out)


# ---- check ----

def check(args):
    """Gradients of the kernel against autograd through the plain loop, one document boundary included."""
    torch.manual_seed(0)
    B, length, H = 3, 64, 2
    make = lambda: torch.randn(B, length, H, 64, device="cuda", dtype=torch.float32)
    keep = torch.ones(B, length, 1, 1, device="cuda")
    keep[:, 0] = 0
    keep[1, 32] = 0
    kk = torch.nn.functional.normalize(make(), dim=-1)
    inputs = [make(), torch.exp(-0.6065 * torch.sigmoid(make() * 2)) * keep, make(), make(), -kk * keep, kk * torch.sigmoid(make())]
    dy = make()
    got, want = [], []
    for function, out, kind in ((Recurrence.apply, got, torch.float32), (recurrence_loop, want, torch.float64)):
        leaves = [t.detach().to(kind).requires_grad_() for t in inputs]
        y = function(*leaves)
        y.backward(dy.to(kind))
        mask = [1, keep, 1, 1, keep, 1]  # w and a are constants where a document begins
        out += [y.detach()] + [l.grad * m for l, m in zip(leaves, mask)]
    for name, g, w in zip("y r w k v a b".split(), got, want):
        error = ((g.double() - w).norm() / w.norm()).item()
        print(f"{name}: relative error {error:.1e}")
        assert error < 1e-3, name


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--out", default=".")
    parser.add_argument("--resume")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) * 3 // 8))
    parser.add_argument("--peeks", type=int, default=1)
    parser.add_argument("--per-skill", type=int, default=100)
    args = parser.parse_args()
    if args.check:
        check(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
