#!/usr/bin/env python3
"""Other people's ways to tell the memory of a training step beforehand, on the same steps as memtrain's.

    python benchmarks/memory_peers.py          # transformers and accelerate have to be installed

The first steps run on this CPU, where every byte is known from a real step; the last are those that others
measured on GPUs (gpu_published.py). Each tool gets what it asks for: torch's
MemTracker the step itself (real on the CPU, on fake tensors for a GPU), accelerate's estimate the model,
DeepSpeed's formula for ZeRO-2 on one GPU the number of parameters, the formula of EleutherAI's cookbook
the transformer's shape, precision and batch. What a tool says of something it wasn't made for isn't
counted: the answer is then a refusal. Seconds are the process's CPU time.
"""

import contextlib, statistics, time, warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate.utils import calculate_maximum_sizes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from gpu_published import book_step, plain_step
from memtrain.allocator import reserve
from memtrain.core import progress, save_result
from memtrain.estimate import simulate
from memtrain.measure import measure_step
from memtrain.model import GPT, GPTConfig

# --- the steps -----------------------------------------------------------------------------------


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-4)


def step_of(loss):
    def step(model, optimizer):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def language(build, vocab, batch, tokens):
    def loss(model):
        ids = torch.randint(vocab, (batch, tokens))
        return model(input_ids=ids, labels=ids).loss

    return build, adamw, step_of(loss)


def pictures(build, batch):
    return (
        build,
        adamw,
        step_of(
            lambda model: (
                model(pixel_values=torch.randn(batch, 3, 224, 224), labels=torch.randint(10, (batch,))).loss
            )
        ),
    )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.cell, self.head = (
            nn.Embedding(2000, 256),
            nn.GRU(256, 256, 2, batch_first=True),
            nn.Linear(256, 2000),
        )

    def forward(self, ids):
        return self.head(self.cell(self.tokens(ids))[0])


def recurrent_loss(model):
    ids = torch.randint(2000, (8, 64))
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def gpt_loss(model):
    return model.loss(*torch.randint(4096, (2, 4, 256)))


def cpu_steps():
    """(name, functions, shape of a transformer or None): shape as vocabulary, layers, heads, width, tokens,
    batch"""
    small = dict(vocab_size=4096, n_layer=4, n_head=4, n_embd=256)
    rest = dict(
        vocab_size=4096, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    shape = dict(vocab=4096, layers=4, heads=4, width=256, tokens=256, batch=4)
    yield (
        'a GPT of this book',
        (lambda: GPT(GPTConfig(block_size=256, **small)), adamw, step_of(gpt_loss)),
        shape,
    )
    yield (
        'GPT-2, transformers',
        language(lambda: GPT2LMHeadModel(GPT2Config(n_positions=256, **small)), 4096, 4, 256),
        shape,
    )
    yield 'Llama, transformers', language(lambda: LlamaForCausalLM(LlamaConfig(**rest)), 4096, 4, 256), shape
    yield (
        'Llama, attention by hand',
        language(lambda: LlamaForCausalLM(LlamaConfig(attn_implementation='eager', **rest)), 4096, 4, 256),
        shape,
    )
    yield 'BERT, transformers', language(lambda: BertForMaskedLM(BertConfig(**rest)), 4096, 4, 256), shape
    yield (
        'ViT, transformers',
        pictures(
            lambda: ViTForImageClassification(
                ViTConfig(num_labels=10, **{k: v for k, v in rest.items() if k != 'vocab_size'})
            ),
            4,
        ),
        None,
    )
    yield (
        'ResNet, transformers',
        pictures(
            lambda: ResNetForImageClassification(
                ResNetConfig(
                    num_labels=10, depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type='basic'
                )
            ),
            4,
        ),
        None,
    )
    yield 'GRU', (Recurrent, adamw, step_of(recurrent_loss)), None


def gpu_steps():
    "(name, bytes that were measured, kind, functions, steps, shape, bytes of a number)"
    wed = dict(vocab=10000, layers=24, heads=16, width=1024, batch=4)
    yield (
        '423M, fp32, T = 128 (GPU)',
        7026606592,
        'allocated',
        plain_step(128, False),
        2,
        wed | dict(tokens=128),
        4,
    )
    yield (
        '423M, bf16 autocast, T = 512 (GPU)',
        12434494464,
        'allocated',
        plain_step(512, True),
        2,
        wed | dict(tokens=512),
        2,
    )
    book = dict(vocab=50257, layers=12, heads=12, width=768, tokens=1024, batch=8)
    yield '163M by hand, fp32 (GPU)', 28198285659, 'reserved', book_step('kept mask'), 3, book, 4
    yield (
        '163M, flash attention, bf16 (GPU)',
        6335506258,
        'reserved',
        book_step('fused', True, True, True),
        3,
        book,
        2,
    )


# --- the tools -----------------------------------------------------------------------------------------


def memtrain(fns, steps=2, device='cpu', kind='allocated', **_):
    trace = simulate(*fns, device=device, steps=steps)
    return trace.peak if device == 'cpu' else getattr(reserve(trace, device), kind)


def mem_tracker(fns, steps=2, device='cpu', **_):
    build, optimizer_fn, step = fns
    with contextlib.nullcontext() if device == 'cpu' else FakeTensorMode():
        model = build()
        optimizer, tracker = optimizer_fn([*model.parameters()]), MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(steps):
                step(model, optimizer)
                tracker.reset_mod_stats()
    return max(s['Total'] for s in tracker.get_tracker_snapshot('peak').values())


# model, gradients and Adam's two moments: its `step`
def accelerate(fns, model, **_):
    return 4 * calculate_maximum_sizes(model)[0]


# 4 and 16 bytes for each
def deepspeed(fns, model, **_):
    return 20 * sum(p.numel() for p in model.parameters())


def eleuther(fns, shape=None, size=4, **_):
    if shape is None:
        raise ValueError('not a transformer of text')
    v, n, a, h, s, b = (shape[k] for k in ('vocab', 'layers', 'heads', 'width', 'tokens', 'batch'))
    params = 2 * v * h + h * s + 8 * h * n + 2 * h + 4 * n * h * h + 8 * n * h * h
    return params * (size + 4 + 12) + s * b * h * n * ((16 * size + 2) + (2 * size + 1) * a * s / h)


TOOLS = {
    'memtrain': memtrain,
    'MemTracker (torch)': mem_tracker,
    'accelerate estimate': accelerate,
    'DeepSpeed ZeRO-2 formula': deepspeed,
    'EleutherAI cookbook': eleuther,
}


def try_tools(truth, fns, **kwargs):
    "What each tool says of a step that takes `truth` bytes, and how long that takes"
    found, kept = {}, []

    def build():
        kept.append(fns[0]())
        return kept[-1]

    # a model without data, for those who only count
    simulate(build, fns[1], lambda *_: None, device=kwargs.get('device', 'cpu'))
    for name, tool in TOOLS.items():
        started = time.process_time()
        try:
            found[name] = dict(bytes=int(tool(fns, model=kept[-1], **kwargs)))
        except Exception as e:
            found[name] = dict(refused=f'{type(e).__name__}: {e}'.splitlines()[0][:120])
        found[name]['seconds'] = time.process_time() - started
        if 'bytes' in found[name]:
            found[name]['error'] = found[name]['bytes'] / truth - 1
    return found


def main():
    warnings.filterwarnings('ignore')
    rows = []
    for name, fns, shape in progress([*cpu_steps()], desc='CPU'):
        truth = measure_step(*fns).peak
        rows.append(dict(what=name, device='cpu', truth=truth, tools=try_tools(truth, fns, shape=shape)))
    for name, truth, kind, fns, steps, shape, size in progress([*gpu_steps()], desc='GPU'):
        rows.append(
            dict(
                what=name,
                device='cuda',
                truth=truth,
                tools=try_tools(truth, fns, shape=shape, size=size, steps=steps, device='a100', kind=kind),
            )
        )
    for r in rows:
        print(
            f"{r['what']:36s} {r['truth']:14,d}",
            *(f"{t['error']:+9.2%}" if 'error' in t else '  refused' for t in r['tools'].values()),
        )
    for name in TOOLS:
        errors = [abs(r['tools'][name]['error']) for r in rows if 'error' in r['tools'][name]]
        print(
            f"{name:26s} median {statistics.median(errors):.2%}, worst {max(errors):.2%},"
            f" {len(rows) - len(errors)} refused"
            if errors
            else f'{name:26s} refused all'
        )
    save_result('memory_peers', dict(rows=rows), 'python benchmarks/memory_peers.py')


if __name__ == '__main__':
    main()
