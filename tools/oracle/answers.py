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
from rwkv7 import channel_mixing, layer_norm, time_mixing

ROWS = 25


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
    x = layer_norm(z["emb.weight"][tokens], z, "blocks.0.ln0")
    first = None
    for i in range(layers):
        block = f"blocks.{i}."
        h = layer_norm(x, z, block + "ln1")
        added, first = time_mixing(z, block + "att.", h, before(h), first, recurrence)
        x = x + added
        h = layer_norm(x, z, block + "ln2")
        x = x + channel_mixing(z, block + "ffn.", h, before(h))
    return layer_norm(x, z, "ln_out")


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
    # Many rows at once are what one token after another is.
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
