#!/usr/bin/env python3
"""Makes the golden vectors of test/fixtures: tiny random checkpoints, and their logits by the numpy oracles.

  python3 tools/oracle/make-golden.py

Nothing of Skein takes part, so its tests cannot share a mistake with it. The files are written as torch.save writes
them, without torch; needs numpy only. The same numpy gives the same files.
"""
import io
import json
import os
import pickle
import sys
import types
import zipfile

import numpy as np

import rwkv6
import rwkv7

FIXTURES = os.path.join(os.path.dirname(__file__), "../../test/fixtures")
LAYERS, CHANNELS, VOCAB, NUM_TOKENS = 2, 64, 128, 40


def to_bf16(values):
    """The nearest bf16, as its 16 bits."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def torch_names():
    """Modules that only have names: pickle looks them up to write them."""
    names = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for module in names:
        sys.modules[module.__name__] = module
    for kind in ("BFloat16Storage", "FloatStorage"):
        setattr(names[0], kind, type(kind, (), {"__module__": "torch"}))
    rebuild = lambda *_: None
    rebuild.__name__ = rebuild.__qualname__ = "_rebuild_tensor_v2"
    rebuild.__module__ = "torch._utils"
    names[1]._rebuild_tensor_v2 = rebuild
    return names[0], rebuild


TORCH, REBUILD = torch_names()


class Tensor:
    """A tensor on its way into a checkpoint."""

    def __init__(self, key, values, kind):
        self.key, self.values, self.kind = key, values, kind

    def __reduce__(self):
        shape = self.values.shape
        strides = tuple(int(np.prod(shape[i + 1:])) for i in range(len(shape)))
        return REBUILD, (Reference(self), 0, shape, strides, False, {})


class Reference:
    def __init__(self, tensor):
        self.tensor = tensor


class Writer(pickle.Pickler):
    def persistent_id(self, item):
        if not isinstance(item, Reference):
            return None
        t = item.tensor
        return "storage", getattr(TORCH, t.kind), t.key, "cpu", t.values.size


def save(name, tensors, kind):
    """Writes name → array; returns the arrays as a reader of the file will see them."""
    entries = {n: Tensor(str(i), v, kind) for i, (n, v) in enumerate(tensors.items())}
    pickled = io.BytesIO()
    Writer(pickled, 2).dump(entries)
    path = os.path.join(FIXTURES, name)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        # A fixed date, so that the same numbers make the same file.
        add = lambda entry, raw: archive.writestr(zipfile.ZipInfo(f"golden/{entry}"), raw)
        add("data.pkl", pickled.getvalue())
        add("byteorder", "little")
        for t in entries.values():
            add(f"data/{t.key}", (to_bf16(t.values) if kind == "BFloat16Storage" else t.values.astype("<f4")).tobytes())
        add("version", "3\n")
    return rwkv7.load(path)


def common_weights(rng, ffn):
    """What both architectures have, spread so that activations stay of order one."""
    C = CHANNELS
    normal = lambda *shape, scale=1.0, mean=0.0: mean + scale * rng.standard_normal(shape)
    norm = lambda name: {f"{name}.weight": normal(C, scale=0.1, mean=1), f"{name}.bias": normal(C, scale=0.1)}
    yield {"emb.weight": normal(VOCAB, C, scale=0.5), **norm("blocks.0.ln0")}
    for i in range(LAYERS):
        b = f"blocks.{i}."
        yield {**norm(b + "ln1"), **norm(b + "ln2"), **norm(b + "att.ln_x")}
        for name in ("receptance", "key", "value", "output"):
            yield {f"{b}att.{name}.weight": normal(C, C, scale=0.7 / C**0.5)}
        yield {f"{b}ffn.key.weight": normal(ffn, C, scale=1 / C**0.5)}
        yield {f"{b}ffn.value.weight": normal(C, ffn, scale=0.5 / ffn**0.5)}
    yield {**norm("ln_out"), "head.weight": normal(VOCAB, C, scale=1 / C**0.5)}


def rwkv7_weights(rng, heads):
    C, rank = CHANNELS, 8
    normal = lambda *shape, scale=1.0, mean=0.0: mean + scale * rng.standard_normal(shape)
    for part in common_weights(rng, 3 * C):
        yield part
    for i in range(LAYERS):
        a = f"blocks.{i}.att."
        for letter in "rwkvag":
            yield {f"{a}x_{letter}": rng.random((1, 1, C))}
        for letter, mean in (("w", -2), ("a", 0), ("v", 0.5)) if i > 0 else (("w", -2), ("a", 0)):
            yield {f"{a}{letter}0": normal(1, 1, C, mean=mean)}
        for letter in "wavg" if i > 0 else "wag":
            yield {f"{a}{letter}1": normal(C, rank, scale=1 / C**0.5)}
            yield {f"{a}{letter}2": normal(rank, C, scale=1 / rank**0.5)}
        yield {f"{a}k_k": normal(1, 1, C, scale=0.1, mean=0.85), f"{a}k_a": normal(1, 1, C, scale=0.1, mean=1)}
        yield {f"{a}r_k": normal(heads, C // heads, scale=0.3), f"blocks.{i}.ffn.x_k": rng.random((1, 1, C))}


def rwkv7a_weights(rng, heads):
    C, F, S = CHANNELS, 3 * CHANNELS, 16
    normal = lambda *shape, scale=1.0, mean=0.0: mean + scale * rng.standard_normal(shape)
    for part in rwkv7_weights(rng, heads):
        yield part
    for i in range(LAYERS):
        f = f"blocks.{i}.ffn."
        yield {f"{f}s_emb.weight": normal(VOCAB, S * S, scale=0.5), f"{f}s_emb_x.weight": normal(S * S, C, scale=0.5 / C**0.5)}
        yield {f"{f}s0": normal(1, 1, F, scale=0.2, mean=1), f"{f}s1": normal(C, S, scale=1 / C**0.5)}
        yield {f"{f}s2": normal(S, F, scale=0.3 / S**0.5)}


def rwkv6_weights(rng, heads):
    C, mix, decay = CHANNELS, 8, 12
    normal = lambda *shape, scale=1.0, mean=0.0: mean + scale * rng.standard_normal(shape)
    for part in common_weights(rng, 7 * C // 2):
        yield part
    for i in range(LAYERS):
        a, f = f"blocks.{i}.att.", f"blocks.{i}.ffn."
        for letter in "xwkvrg":
            yield {f"{a}time_maa_{letter}": rng.random((1, 1, C))}
        yield {f"{a}time_maa_w1": normal(C, 5 * mix, scale=1 / C**0.5)}
        yield {f"{a}time_maa_w2": normal(5, mix, C, scale=0.5 / mix**0.5)}
        yield {f"{a}time_decay": normal(1, 1, C, scale=2, mean=-2)}
        yield {f"{a}time_decay_w1": normal(C, decay, scale=1 / C**0.5)}
        yield {f"{a}time_decay_w2": normal(decay, C, scale=1 / decay**0.5)}
        # Both names that files in the wild use.
        yield {f"{a}{'time_faaaa' if i == 0 else 'time_first'}": normal(heads, C // heads, scale=0.7)}
        yield {f"{a}gate.weight": normal(C, C, scale=1 / C**0.5)}
        yield {f"{f}time_maa_k": rng.random((1, 1, C)), f"{f}time_maa_r": rng.random((1, 1, C))}
        yield {f"{f}receptance.weight": normal(C, C, scale=1 / C**0.5)}


def golden(name, weights, forward, seed, heads=2):
    rng = np.random.default_rng(seed)
    merged = {n: v for part in weights(rng, heads) for n, v in part.items()}
    model = save(f"{name}.pth", merged, "BFloat16Storage")
    states = {f"blocks.{i}.att.time_state": rng.standard_normal((heads, CHANNELS // heads, CHANNELS // heads)) for i in range(LAYERS)}
    start = rwkv7.start_state(save(f"{name}-state.pth", states, "FloatStorage"))
    tokens = rng.integers(0, VOCAB, NUM_TOKENS)
    for suffix, state in (("", None), ("-state", start)):
        forward(model, tokens, state).astype("<f8").tofile(os.path.join(FIXTURES, f"{name}{suffix}.f64"))
    return {"name": name, "vocabSize": VOCAB, "tokens": tokens.tolist()}


if __name__ == "__main__":
    os.makedirs(FIXTURES, exist_ok=True)
    cases = [
        golden("golden-rwkv7", rwkv7_weights, rwkv7.forward, 7),
        # CUDA's kernels are for heads of 64 channels.
        golden("golden-rwkv7a", rwkv7a_weights, rwkv7.forward, 71, heads=1),
        golden("golden-rwkv6", rwkv6_weights, rwkv6.forward, 6),
    ]
    with open(os.path.join(FIXTURES, "golden.json"), "w") as f:
        f.write("[\n" + ",\n".join("  " + json.dumps(case) for case in cases) + "\n]\n")
