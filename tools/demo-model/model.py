"""RWKV-7 in PyTorch: the training model, its recurrence kernel, and a plain fp32 recurrent form.

Parameter names and shapes are those of a BlinkDL checkpoint, so `state_dict()` in bf16 is
the file a server loads. Letters follow the checkpoint: B sequences, T tokens, C channels,
H heads of N = 64.
"""
import ctypes
import math
import os
import subprocess
import tempfile
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

N, CHUNK = 64, 16
DECAY = math.exp(-0.5)  # w = exp(-DECAY * sigmoid(logit)) keeps every decay in (0.545, 1)


@dataclass
class Config:
    vocab: int = 2688
    channels: int = 256
    layers: int = 5
    rank_w: int = 32
    rank_a: int = 32
    rank_v: int = 32
    rank_g: int = 64


# ---- the recurrence ----

_library = None


def library():
    """Compiles wkv7.cu once per process for the present GPU and loads it."""
    global _library
    if _library is None:
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wkv7.cu")
        target = os.path.join(tempfile.mkdtemp(), "wkv7.so")
        major, minor = torch.cuda.get_device_capability()
        subprocess.run(["nvcc", "-O3", "--use_fast_math", "-shared", "-Xcompiler", "-fPIC", f"-arch=sm_{major}{minor}", "-o", target, source], check=True)
        _library = ctypes.CDLL(target)
    return _library


def _call(name, sizes, tensors):
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    code = getattr(library(), name)(*[ctypes.c_int(n) for n in sizes], *[ctypes.c_void_p(t.data_ptr()) for t in tensors], stream)
    if code != 0:
        raise RuntimeError(f"{name} failed with CUDA error {code}")


class Recurrence(torch.autograd.Function):
    """y from r, w, k, v, a, b: all f32 [B,T,H,64]; T a multiple of 16. See wkv7.cu for the formula."""

    @staticmethod
    def forward(ctx, *inputs):
        inputs = [t.contiguous() for t in inputs]
        B, T, H, _ = inputs[0].shape
        assert T % CHUNK == 0 and all(t.dtype == torch.float32 for t in inputs)
        y, sa = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
        states = inputs[0].new_empty(B, H, T // CHUNK, N, N)
        _call("wkv7_forward", (B, T, H), (*inputs, y, sa, states))
        ctx.save_for_backward(*inputs, sa, states)
        return y

    @staticmethod
    def backward(ctx, dy):
        *inputs, sa, states = ctx.saved_tensors
        B, T, H, _ = inputs[0].shape
        grads = [torch.empty_like(inputs[0]) for _ in range(6)]
        _call("wkv7_backward", (B, T, H), (*inputs, dy.contiguous().float(), sa, states, *grads))
        return tuple(grads)


def recurrence_loop(r, w, k, v, a, b):
    """The same as Recurrence, one token at a time in plain PyTorch: the reference for its gradients."""
    S = r.new_zeros(r.shape[0], r.shape[2], N, N)
    out = []
    for t in range(r.shape[1]):
        sa = (S * a[:, t, :, None, :]).sum(-1)
        S = S * w[:, t, :, None, :] + sa[..., None] * b[:, t, :, None, :] + v[:, t, :, :, None] * k[:, t, :, None, :]
        out.append((S * r[:, t, :, None, :]).sum(-1))
    return torch.stack(out, 1)


# ---- layers ----

def shifted(x, keep):
    """The previous token's x [B,T,C], zero where a document begins (keep [B,T,1] = 0)."""
    return F.pad(x, (0, 0, 1, -1)) * keep


class TimeMix(nn.Module):
    def __init__(self, c: Config, layer):
        super().__init__()
        C, H = c.channels, c.channels // N
        self.layer, self.heads = layer, H
        depth, rest = layer / max(1, c.layers - 1), 1 - layer / c.layers
        ramp = torch.arange(C) / C
        for name, power in (("r", 0.2), ("w", 0.9), ("k", 0.7), ("v", 0.7), ("a", 0.9), ("g", 0.2)):
            setattr(self, f"x_{name}", nn.Parameter((1 - ramp ** (power * rest)).view(1, 1, C)))
        across = torch.arange(C) / (C - 1)
        self.w0 = nn.Parameter((-6.5 + 5.5 * across ** (0.85 + depth ** 0.5)).view(1, 1, C))
        self.a0 = nn.Parameter(torch.zeros(1, 1, C))
        self._low_rank("w", C, c.rank_w)
        self._low_rank("a", C, c.rank_a)
        self._low_rank("g", C, c.rank_g)
        if layer:
            self.v0 = nn.Parameter(torch.ones(1, 1, C))
            self._low_rank("v", C, c.rank_v)
        self.k_k = nn.Parameter(torch.full((1, 1, C), 0.85))
        self.k_a = nn.Parameter(torch.ones(1, 1, C))
        self.r_k = nn.Parameter(torch.zeros(H, N))
        for name, gain in (("receptance", 0.5), ("key", 0.1), ("value", 0.5), ("output", 0.0)):
            linear = nn.Linear(C, C, bias=False)
            nn.init.uniform_(linear.weight, -gain / C ** 0.5, gain / C ** 0.5)
            setattr(self, name, linear)
        self.ln_x = nn.GroupNorm(H, C, eps=64e-5)
        nn.init.constant_(self.ln_x.weight, ((1 + layer) / c.layers) ** 0.7)

    def _low_rank(self, name, C, rank):
        setattr(self, name + "1", nn.Parameter(torch.zeros(C, rank)))
        setattr(self, name + "2", nn.Parameter(nn.init.orthogonal_(torch.empty(rank, C), gain=0.1 * max(1.0, (rank / C) ** 0.5))))
        if name == "g":  # sigmoid(0) = 0.5 already lets a signal through
            nn.init.orthogonal_(self.g2, gain=1.0)


class ChannelMix(nn.Module):
    def __init__(self, c: Config, layer):
        super().__init__()
        C = c.channels
        self.x_k = nn.Parameter((1 - (torch.arange(C) / C) ** ((1 - layer / c.layers) ** 4)).view(1, 1, C))
        self.key, self.value = nn.Linear(C, 4 * C, bias=False), nn.Linear(4 * C, C, bias=False)
        nn.init.orthogonal_(self.key.weight, gain=1.0)
        nn.init.zeros_(self.value.weight)


class Block(nn.Module):
    def __init__(self, c: Config, layer):
        super().__init__()
        if layer == 0:
            self.ln0 = nn.LayerNorm(c.channels)
        self.ln1, self.ln2 = nn.LayerNorm(c.channels), nn.LayerNorm(c.channels)
        self.att, self.ffn = TimeMix(c, layer), ChannelMix(c, layer)


# Both halves of a block are pure functions of a dict of its parameters, so that all blocks share one compiled form.

def norm(x, p, name):
    return F.layer_norm(x, (x.shape[-1],), p[name + ".weight"], p[name + ".bias"], 1e-5)


def first_half(p, x, keep, v_first):
    """x f32 [B,T,C] -> r w k v a b of the recurrence, f32 [B,T,H,64], and the gate g [B,T,C].

    v_first is the first layer's v [B,T,H,64]; None there.
    """
    x = norm(x, p, "ln1")
    shape = (*x.shape[:2], -1, N)
    d = shifted(x, keep) - x
    xr, xw, xk, xv, xa, xg = (x + d * p["att.x_" + n] for n in "rwkvag")
    r, k, v = (F.linear(m, p[f"att.{n}.weight"]).float() for m, n in ((xr, "receptance"), (xk, "key"), (xv, "value")))
    logit = p["att.w0"] + (torch.tanh(xw @ p["att.w1"]) @ p["att.w2"]).float()
    w = torch.exp(-DECAY * torch.sigmoid(logit)) * keep
    a = torch.sigmoid(p["att.a0"] + ((xa @ p["att.a1"]) @ p["att.a2"]).float())
    g = torch.sigmoid(xg @ p["att.g1"]) @ p["att.g2"]
    v = v.view(shape)
    if v_first is not None:
        v = v + (v_first - v) * torch.sigmoid(p["att.v0"] + ((xv @ p["att.v1"]) @ p["att.v2"]).float()).view(shape)
    kk = F.normalize((k * p["att.k_k"]).view(shape), dim=-1, eps=1e-12)
    k = k * (1 + (a - 1) * p["att.k_a"])
    return r.view(shape), w.view(shape), k.view(shape), v, -kk * keep[..., None], kk * a.view(shape), g


def second_half(p, x, keep, y, r, k, v, g):
    """Group norm, bonus, gate and output projection, then the channel mix; y is the recurrence's output."""
    B, T, C = x.shape
    y = F.group_norm(y.reshape(B * T, C), C // N, p["att.ln_x.weight"], p["att.ln_x.bias"], 64e-5).view(B, T, C)
    y = y + ((r * k * p["att.r_k"]).sum(-1, keepdim=True) * v).view(B, T, C)
    x = x + F.linear(y * g, p["att.output.weight"])
    h = norm(x, p, "ln2")
    d = shifted(h, keep) - h
    return x + F.linear(torch.relu(F.linear(h + d * p["ffn.x_k"], p["ffn.key.weight"])) ** 2, p["ffn.value.weight"])


class Model(nn.Module):
    """Training form: whole rows of packed documents at once."""

    def __init__(self, c: Config, compiled=False):
        super().__init__()
        self.config = c
        self.emb = nn.Embedding(c.vocab, c.channels)
        nn.init.uniform_(self.emb.weight, -1e-2, 1e-2)
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.layers))
        self.ln_out = nn.LayerNorm(c.channels)
        self.head = nn.Linear(c.channels, c.vocab, bias=False)
        nn.init.orthogonal_(self.head.weight, gain=0.5)
        wrap = torch.compile if compiled else (lambda f: f)
        self._first, self._second, self._loss = wrap(first_half), wrap(second_half), wrap(_loss)

    def forward(self, ids, starts):
        """ids int64 [B,T], starts bool [B,T] -> x f32 [B,T,C] before ln_out."""
        keep = 1 - starts.float().unsqueeze(-1)
        x = self.blocks[0].ln0(self.emb(ids))
        v_first = None
        for block in self.blocks:
            # [1,1,C] goes in as [C]: the compiled backward of PyTorch 2.11 returns [C] gradients for either
            p = {name: t.view(-1) if t.dim() == 3 else t for name, t in block.named_parameters()}
            r, w, k, v, a, b, g = self._first(p, x, keep, v_first)
            v_first = v if v_first is None else v_first
            y = Recurrence.apply(r, w, k, v, a, b)
            x = self._second(p, x, keep, y, r, k, v, g)
        return x

    def loss(self, ids, starts, targets, weights):
        """Weighted mean cross entropy; targets and weights are already moved one token to the left."""
        p = {"ln_out.weight": self.ln_out.weight, "ln_out.bias": self.ln_out.bias}
        return self._loss(p, self.head.weight, self(ids, starts), targets, weights)


def _loss(p, head, x, targets, weights):
    logits = F.linear(norm(x, p, "ln_out"), head).float()
    each = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), reduction="none")
    return (each * weights.view(-1)).sum() / weights.sum()


# ---- inference form ----

class Recurrent:
    """One token at a time, fp32, from a checkpoint's tensors; the form every server must agree with."""

    def __init__(self, tensors, device="cpu"):
        self.p = {name: t.to(device=device, dtype=torch.float32) for name, t in tensors.items()}
        self.layers = 1 + max(int(n.split(".")[1]) for n in self.p if n.startswith("blocks."))
        self.heads = self.p["blocks.0.att.r_k"].shape[0]
        self.channels, self.device = self.heads * N, device
        self.emb = self._norm(self.p["emb.weight"], "blocks.0.ln0")

    def _norm(self, x, name):
        return F.layer_norm(x, (x.shape[-1],), self.p[name + ".weight"], self.p[name + ".bias"], 1e-5)

    def state(self, rows):
        """Zero state: shift vectors [layers, rows, C] twice and S [layers, rows, H, 64 value, 64 key]."""
        zeros = lambda *shape: torch.zeros(*shape, device=self.device)
        return [zeros(self.layers, rows, self.channels), zeros(self.layers, rows, self.channels), zeros(self.layers, rows, self.heads, N, N)]

    def step(self, ids, state):
        """ids int64 [rows] -> logits [rows, vocab]; the state is updated in place."""
        x, v_first = self.emb[ids], None
        for i in range(self.layers):
            h = self._norm(x, f"blocks.{i}.ln1")
            out, v_first = self._time_mix(i, h, state, v_first)
            x = x + out
            h = self._norm(x, f"blocks.{i}.ln2")
            p = f"blocks.{i}.ffn."
            mixed = h + (state[1][i] - h) * self.p[p + "x_k"].view(-1)
            state[1][i] = h
            x = x + torch.relu(mixed @ self.p[p + "key.weight"].T) ** 2 @ self.p[p + "value.weight"].T
        return self._norm(x, "ln_out") @ self.p["head.weight"].T

    def _time_mix(self, i, h, state, v_first):
        p = lambda name: self.p[f"blocks.{i}.att.{name}"]
        rows, heads = h.shape[0], (h.shape[0], self.heads, N)
        d = state[0][i] - h
        state[0][i] = h
        xr, xw, xk, xv, xa, xg = (h + d * p("x_" + n).view(-1) for n in "rwkvag")
        r, k, v = xr @ p("receptance.weight").T, xk @ p("key.weight").T, xv @ p("value.weight").T
        w = torch.exp(-DECAY * torch.sigmoid(p("w0").view(-1) + torch.tanh(xw @ p("w1")) @ p("w2")))
        a = torch.sigmoid(p("a0").view(-1) + xa @ p("a1") @ p("a2"))
        g = torch.sigmoid(xg @ p("g1")) @ p("g2")
        if i == 0:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(p("v0").view(-1) + xv @ p("v1") @ p("v2"))
        kk = F.normalize((k * p("k_k").view(-1)).view(heads), dim=-1, eps=1e-12)
        k = (k * (1 + (a - 1) * p("k_a").view(-1))).view(heads)
        r, v, w, a = r.view(heads), v.view(heads), w.view(heads), a.view(heads)
        S = state[2][i]
        sa = torch.einsum("bhvk,bhk->bhv", S, -kk)
        S = S * w.unsqueeze(2) + sa.unsqueeze(3) * (kk * a).unsqueeze(2) + v.unsqueeze(3) * k.unsqueeze(2)
        state[2][i] = S
        y = torch.einsum("bhvk,bhk->bhv", S, r)
        y = F.group_norm(y.reshape(rows, -1), self.heads, p("ln_x.weight"), p("ln_x.bias"), 64e-5)
        y = y + ((r * k * p("r_k")).sum(-1, keepdim=True) * v).view(rows, -1)
        return (y * g) @ p("output.weight").T, v_first
