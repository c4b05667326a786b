#!/usr/bin/env python3
"""Judges greedy answers by the arithmetic of rwkv7.py: numpy, no code of Skein.

  node scripts/greedy-answers.mjs models/demo.pth cpu cpu.json
  python3 tools/oracle/answers.py models/demo.pth cpu.json ... [--single] [--prompts 20]

Every token of an answer is compared with the best token of the oracle after the same tokens: if all agree, the oracle's
own greedy answer is the same. Where one differs it says how far the two were apart (of the largest logit), so that a tie
can be told from an error. `--single` computes in float32 as numpy does, which is twice as fast.
"""
import argparse
import gzip
import json

import numpy as np

import rwkv7
from rwkv7 import sigmoid

ROWS = 25


def norm(x, z, name, eps=1e-5):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * z[name + ".weight"] + z[name + ".bias"]


def before(h):
    """What the token before each had: [B, T, C]."""
    return np.concatenate([np.zeros_like(h[:, :1]), h[:, :-1]], 1)


def recurrence(r, w, k, v, kk, lr):
    """[B, T, H, N] each. State [B, H, N, N], row = value channel."""
    rows, length, heads, size = r.shape
    state = np.zeros((rows, heads, size, size), r.dtype)
    y = np.empty_like(r)
    for t in range(length):
        removed = np.matmul(state, kk[:, t, :, :, None])
        state *= w[:, t, :, None, :]
        state -= removed * (kk[:, t] * lr[:, t])[:, :, None, :]
        state += v[:, t, :, :, None] * k[:, t, :, None, :]
        y[:, t] = np.matmul(state, r[:, t, :, :, None])[..., 0]
    return y


def hidden(z, tokens):
    """The state of the residual stream before the head, for rows of equal length: [B, T, C]."""
    layers = 1 + max(int(n.split(".")[1]) for n in z if n.startswith("blocks."))
    heads, size = z["blocks.0.att.r_k"].shape
    by_head = lambda t: t.reshape(*t.shape[:2], heads, size)
    x = norm(z["emb.weight"][tokens], z, "blocks.0.ln0")
    first = None
    for i in range(layers):
        b, a = f"blocks.{i}.", f"blocks.{i}.att."
        h = norm(x, z, b + "ln1")
        shift = before(h) - h
        mix = {c: h + shift * z[a + "x_" + c] for c in "rwkvag"}
        r, k, v = (mix[c] @ z[a + n + ".weight"].T for c, n in (("r", "receptance"), ("k", "key"), ("v", "value")))
        w = np.exp(-np.exp(-0.5) * sigmoid(z[a + "w0"] + np.tanh(mix["w"] @ z[a + "w1"]) @ z[a + "w2"]))
        lr = sigmoid(z[a + "a0"] + mix["a"] @ z[a + "a1"] @ z[a + "a2"])
        gate = sigmoid(mix["g"] @ z[a + "g1"]) @ z[a + "g2"]
        if i == 0:
            first = v
        else:
            v = v + (first - v) * sigmoid(z[a + "v0"] + mix["v"] @ z[a + "v1"] @ z[a + "v2"])
        kk = by_head(k * z[a + "k_k"])
        kk = kk / np.maximum(np.linalg.norm(kk, axis=-1, keepdims=True), 1e-12)
        k = k * (1 + (lr - 1) * z[a + "k_a"])
        r, k, v, w, lr = (by_head(t) for t in (r, k, v, w, lr))
        y = recurrence(r, w, k, v, kk, lr)
        y = y - y.mean(-1, keepdims=True)
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + 64e-5)
        y = y.reshape(x.shape) * z[a + "ln_x.weight"] + z[a + "ln_x.bias"]
        y = y + ((r * k * z[a + "r_k"]).sum(-1, keepdims=True) * v).reshape(x.shape)
        x = x + (y * gate) @ z[a + "output.weight"].T
        h = norm(x, z, b + "ln2")
        mixed = h + (before(h) - h) * z[b + "ffn.x_k"]
        x = x + np.maximum(mixed @ z[b + "ffn.key.weight"].T, 0) ** 2 @ z[b + "ffn.value.weight"].T
    return norm(x, z, "ln_out")


def judge(z, prompts, answers, logprobs, report):
    texts = [p + a[:-1] for p, a in zip(prompts, answers)]
    tokens = np.zeros((len(texts), max(map(len, texts))), int)
    for row, text in zip(tokens, texts):
        row[: len(text)] = text  # What follows a shorter one changes nothing before it.
    x = hidden(z, tokens)
    for b, (prompt, answer) in enumerate(zip(prompts, answers)):
        logits = x[b, len(prompt) - 1 : len(prompt) - 1 + len(answer)] @ z["head.weight"].T
        best = logits.max(1)
        drawn = logits[np.arange(len(answer)), answer]
        largest = np.abs(logits).max(1)
        expected = drawn - best - np.log(np.exp(logits - best[:, None]).sum(1))
        report["gaps"] += list(((best - drawn) / largest)[best > drawn])
        report["whole"] += int((best == drawn).all())
        report["tokens"] += len(answer)
        report["logprobs"] += list(np.array(logprobs[b]) - expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("answers", nargs="+")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--prompts", type=int, default=10**9)
    args = parser.parse_args()
    kind = np.float32 if args.single else np.float64
    plain = {name: values.squeeze() for name, values in rwkv7.load(args.model).items()}
    z = {name: values.astype(kind) for name, values in plain.items()}
    # The arithmetic of many rows at once is that of rwkv7.py, one token after another.
    some = [3, 1, 4, 1, 5, 9, 2, 6]
    off = np.abs(hidden(z, np.array([some, some[::-1]]))[0] @ z["head.weight"].T - rwkv7.forward(plain, some)).max()
    assert off < (1e-3 if args.single else 1e-9), off
    for path in args.answers:
        with (gzip.open if path.endswith(".gz") else open)(path) as file:
            given = json.load(file)
        report = {"gaps": [], "whole": 0, "tokens": 0, "logprobs": []}
        for at in range(0, min(args.prompts, len(given["prompts"])), ROWS):
            part = slice(at, min(at + ROWS, args.prompts))
            judge(z, given["prompts"][part], given["answers"][part], given["logprobs"][part], report)
        errors = np.abs(report["logprobs"])
        gaps = report["gaps"]
        rows = min(args.prompts, len(given["prompts"]))
        print(
            f'{path}: {given["device"]}, {given["weightType"]}, {given["rows"]} rows: {report["whole"]} of {rows} answers whole, '
            f'{len(gaps)} of {report["tokens"]} tokens differ (at most {max(gaps, default=0):.1e} of the largest logit apart); '
            f"log-probabilities off by {errors.max():.1e} at most, perplexity by {100 * abs(np.mean(report['logprobs'])):.1e} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
