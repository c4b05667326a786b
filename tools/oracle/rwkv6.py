#!/usr/bin/env python3
"""RWKV-6 in numpy float64, sharing no code with Skein: an outside oracle for `skein logits`.

  python3 tools/oracle/rwkv6.py MODEL.pth --tokens 1,2,3 --out oracle.f64      # [tokens, V] little-endian float64
  python3 tools/oracle/rwkv6.py MODEL.pth --tokens 1,2,3 --compare skein.f32   # prints the largest error / largest logit
  python3 tools/oracle/rwkv6.py MODEL.pth --state STATE.pth ...                # from a tuned start state

Reads a zip .pth with bf16, fp16 or fp32 tensors; needs numpy only.
"""
import numpy as np

from rwkv7 import layer_norm, main, sigmoid

MIXES = "wkvrg"  # the order within time_maa_w1 and time_maa_w2


def mix_by_data(z, att, h, previous):
    """The five inputs of time mixing: how much of the previous token each takes depends on both tokens."""
    d = previous - h
    low = np.tanh((h + d * z[att + "time_maa_x"]) @ z[att + "time_maa_w1"]).reshape(len(MIXES), -1)
    return {
        c: h + d * (z[att + "time_maa_" + c] + low[i] @ z[att + "time_maa_w2"][i])
        for i, c in enumerate(MIXES)
    }


def time_mixing(z, att, h, previous, state):
    """One token. state [H, N, N]: row = key channel, column = value channel, as the paper writes it."""
    bonus = z[att + ("time_faaaa" if att + "time_faaaa" in z else "time_first")]
    heads, size = bonus.shape
    mixed = mix_by_data(z, att, h, previous)
    r = (z[att + "receptance.weight"] @ mixed["r"]).reshape(heads, size)
    k = (z[att + "key.weight"] @ mixed["k"]).reshape(heads, size)
    v = (z[att + "value.weight"] @ mixed["v"]).reshape(heads, size)
    g = z[att + "gate.weight"] @ mixed["g"]
    logit = z[att + "time_decay"] + np.tanh(mixed["w"] @ z[att + "time_decay_w1"]) @ z[att + "time_decay_w2"]
    w = np.exp(-np.exp(logit)).reshape(heads, size)
    kv = k[:, :, None] * v[:, None, :]
    y = np.einsum("hk,hkv->hv", r, bonus[:, :, None] * kv + state)
    state[:] = w[:, :, None] * state + kv
    y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 64e-5)
    y = y.reshape(-1) * z[att + "ln_x.weight"] + z[att + "ln_x.bias"]
    return z[att + "output.weight"] @ (y * g * sigmoid(g))


def channel_mixing(z, ffn, h, previous):
    d = previous - h
    k = np.maximum(z[ffn + "key.weight"] @ (h + d * z[ffn + "time_maa_k"]), 0) ** 2
    r = sigmoid(z[ffn + "receptance.weight"] @ (h + d * z[ffn + "time_maa_r"]))
    return r * (z[ffn + "value.weight"] @ k)


def forward(z, tokens, start=None):
    """Logits [tokens, V]. start: per layer [H, N, N] as in a state file, row = value channel."""
    z = {name: values.squeeze() for name, values in z.items()}
    layers = 1 + max(int(n.split(".")[1]) for n in z if n.startswith("blocks."))
    channels = z["ln_out.weight"].shape[0]
    heads, size = z.get("blocks.0.att.time_faaaa", z.get("blocks.0.att.time_first")).shape
    shift = np.zeros((layers, 2, channels))
    state = np.zeros((layers, heads, size, size))
    if start is not None:
        state[:] = np.swapaxes(np.stack(start), 2, 3)
    rows = []
    for token in tokens:
        x = layer_norm(z["emb.weight"][token], z, "blocks.0.ln0")
        for i in range(layers):
            block = f"blocks.{i}."
            h = layer_norm(x, z, block + "ln1")
            x = x + time_mixing(z, block + "att.", h, shift[i, 0], state[i])
            shift[i, 0] = h
            h = layer_norm(x, z, block + "ln2")
            x = x + channel_mixing(z, block + "ffn.", h, shift[i, 1])
            shift[i, 1] = h
        rows.append(z["head.weight"] @ layer_norm(x, z, "ln_out"))
    return np.stack(rows)


if __name__ == "__main__":
    main(forward, __doc__)
