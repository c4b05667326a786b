#!/usr/bin/env python3
"""RWKV-7 and RWKV-7a in numpy float64, sharing no code with Skein: an outside oracle for `skein logits`.

  python3 tools/oracle/rwkv7.py MODEL.pth --tokens 1,2,3 --out oracle.f64      # [tokens, V] little-endian float64
  python3 tools/oracle/rwkv7.py MODEL.pth --tokens 1,2,3 --compare skein.f32   # prints the largest error / largest logit
  python3 tools/oracle/rwkv7.py MODEL.pth --state STATE.pth ...                # from a tuned start state

Reads a zip .pth with bf16, fp16 or fp32 tensors; needs numpy only.
"""
import argparse
import pickle
import zipfile
from collections import OrderedDict

import numpy as np


class Storage:
    def __init__(self, kind, key):
        self.kind, self.key = kind, key


def load(path):
    """name -> float64 array."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        root = next(n for n in names if n.endswith("/data.pkl"))[: -len("data.pkl")]

        def tensor(storage, offset, size, stride, *_):
            raw = archive.read(f"{root}data/{storage.key}")
            if storage.kind == "BFloat16Storage":
                flat = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                flat = np.frombuffer(raw, {"HalfStorage": "<f2", "FloatStorage": "<f4"}[storage.kind])
            strides = [s * flat.itemsize for s in stride]
            view = np.lib.stride_tricks.as_strided(flat[offset:], size, strides)
            return view.astype(np.float64)

        class Reader(pickle.Unpickler):
            def find_class(self, module, name):
                if (module, name) == ("collections", "OrderedDict"):
                    return OrderedDict
                if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
                    return tensor
                if module == "torch" and name.endswith("Storage"):
                    return name
                raise pickle.UnpicklingError(f"{module}.{name}")

            def persistent_load(self, pid):
                return Storage(pid[1], pid[2])

        with archive.open(root + "data.pkl") as f:
            return dict(Reader(f).load())


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, z, name, eps=1e-5):
    """[..., C]"""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + eps) * z[name + ".weight"] + z[name + ".bias"]


def start_state(z):
    """Per layer [H, N, N], row = value channel, of a state file or of a model that carries one; None without."""
    name = "blocks.{}.att.time_state"
    if name.format(0) not in z:
        return None
    return [z[name.format(i)] for i in range(sum(n.endswith(".att.time_state") for n in z))]


def deep_embed(z, ffn, token, h):
    """RWKV-7a: a factor for each channel, by a matrix of the token's own."""
    embedding = layer_norm(z["emb.weight"][token], z, "blocks.0.ln0")
    own = z[ffn + "s_emb.weight"][token] + embedding @ z[ffn + "s_emb_x.weight"].T
    low = h @ z[ffn + "s1"]
    return (low @ own.reshape(len(low), len(low))) @ z[ffn + "s2"] + z[ffn + "s0"]


def time_mixing(z, att, h, before, first, recurrence):
    """What a layer adds, and v of layer 0. h and those of the tokens before: [..., C]; recurrence takes [..., H, N] each."""
    heads, size = np.atleast_2d(z[att + "r_k"]).shape
    by_head = lambda t: t.reshape(*t.shape[:-1], heads, size)
    mix = {c: h + (before - h) * z[att + "x_" + c] for c in "rwkvag"}
    r, k, v = (mix[c] @ z[att + n + ".weight"].T for c, n in (("r", "receptance"), ("k", "key"), ("v", "value")))
    w = np.exp(-np.exp(-0.5) * sigmoid(z[att + "w0"] + np.tanh(mix["w"] @ z[att + "w1"]) @ z[att + "w2"]))
    lr = sigmoid(z[att + "a0"] + mix["a"] @ z[att + "a1"] @ z[att + "a2"])
    gate = sigmoid(mix["g"] @ z[att + "g1"]) @ z[att + "g2"]
    if first is None:
        first = v
    else:
        v = v + (first - v) * sigmoid(z[att + "v0"] + mix["v"] @ z[att + "v1"] @ z[att + "v2"])
    kk = by_head(k * z[att + "k_k"])
    kk = kk / np.maximum(np.linalg.norm(kk, axis=-1, keepdims=True), 1e-12)
    k = k * (1 + (lr - 1) * z[att + "k_a"])
    r, k, v, w, lr = (by_head(t) for t in (r, k, v, w, lr))
    y = recurrence(r, w, k, v, kk, lr)
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 64e-5)
    y = y.reshape(h.shape) * z[att + "ln_x.weight"] + z[att + "ln_x.bias"]
    y = y + ((r * k * z[att + "r_k"]).sum(-1, keepdims=True) * v).reshape(h.shape)
    return (y * gate) @ z[att + "output.weight"].T, first


def channel_mixing(z, ffn, h, before, factor=1):
    mixed = h + (before - h) * z[ffn + "x_k"]
    return np.maximum(mixed @ z[ffn + "key.weight"].T, 0) ** 2 * factor @ z[ffn + "value.weight"].T


def forward(z, tokens, start=None):
    """One token after another."""
    heads, size = z["blocks.0.att.r_k"].shape
    z = {name: values.squeeze() for name, values in z.items()}
    layers = 1 + max(int(n.split(".")[1]) for n in z if n.startswith("blocks."))
    shift = np.zeros((layers, 2, heads * size))
    state = np.zeros((layers, heads, size, size))
    if start is not None:
        state[:] = np.stack(start)

    def recurrence(s):
        def step(r, w, k, v, kk, lr):
            y = np.empty((heads, size))
            for n in range(heads):
                s[n] = s[n] * w[n] - np.outer(s[n] @ kk[n], kk[n] * lr[n]) + np.outer(v[n], k[n])
                y[n] = s[n] @ r[n]
            return y

        return step

    rows = []
    for token in tokens:
        x = layer_norm(z["emb.weight"][token], z, "blocks.0.ln0")
        first = None
        for i in range(layers):
            block, ffn = f"blocks.{i}.", f"blocks.{i}.ffn."
            h = layer_norm(x, z, block + "ln1")
            added, first = time_mixing(z, block + "att.", h, shift[i, 0], first, recurrence(state[i]))
            x = x + added
            shift[i, 0] = h
            h = layer_norm(x, z, block + "ln2")
            factor = deep_embed(z, ffn, token, h) if ffn + "s_emb.weight" in z else 1
            x = x + channel_mixing(z, ffn, h, shift[i, 1], factor)
            shift[i, 1] = h
        rows.append(z["head.weight"] @ layer_norm(x, z, "ln_out"))
    return np.stack(rows)


def main(forward, doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--state", help="tuned start state; one in the model itself is the default")
    parser.add_argument("--out")
    parser.add_argument("--compare", help="float32 [tokens, V] or [V] written by `skein logits`")
    args = parser.parse_args()
    z = load(args.model)
    start = start_state(load(args.state) if args.state else z)
    logits = forward(z, [int(t) for t in args.tokens.split(",")], start)
    if args.out:
        logits.astype("<f8").tofile(args.out)
    if args.compare:
        given = np.fromfile(args.compare, "<f4").astype(np.float64).reshape(-1, logits.shape[1])
        wanted = logits[-len(given):]
        error = np.abs(given - wanted).max() / np.abs(wanted).max()
        agree = (given.argmax(1) == wanted.argmax(1)).mean()
        print(f"largest error / largest logit {error:.3e}; best token agrees in {agree:.1%}")


if __name__ == "__main__":
    main(forward, __doc__)
