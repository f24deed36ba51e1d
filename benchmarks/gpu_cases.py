#!/usr/bin/env python3
"""Training steps and single operations as people write them, for gpu_check.py, which runs them on a card and
simulates them without one.

    python benchmarks/gpu_cases.py NAME [--steps 4]  # runs one; without a card: memtrain simulate …
    python benchmarks/gpu_cases.py --list

A step is a function that builds everything on CUDA and gives a function to call for each step. An operation
is run forward and backward. Plain PyTorch; those of transformers and torchvision are left out where these
aren't installed."""

from __future__ import annotations

import argparse, copy, importlib.util
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

HALF = torch.bfloat16
STEPS: dict[str, Callable] = {}  # name to a function that builds, and gives the function of a step
OPERATIONS: dict[
    str, Callable
] = {}  # name to a function that builds, and gives the function of the operation
NEEDS: dict[str, str] = {}  # the library that a case wants, by its name


def case(name, needs='', **settings):
    "Name a function that builds a step; with `settings` as its arguments"

    def keep(build):
        STEPS[name] = lambda: build(**settings)
        NEEDS[name] = needs
        return build

    return keep


def draw(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape, device='cuda', dtype=dtype, requires_grad=grad)


def ids(high, *shape):
    return torch.randint(high, shape, device='cuda')


# --------------------------------------------------------------------------------------------------
# a language model of plain operations


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads=None):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * self.kv_heads) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, tokens, _ = x.shape
        sizes = [n * self.size for n in (self.heads, self.kv_heads, self.kv_heads)]
        parts = self.qkv(x).split(sizes, -1)
        q, k, v = (t.view(batch, tokens, -1, self.size).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads < self.heads)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Gated(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    "Two of eight experts a token, each fed what chose it"

    def __init__(self, width, inner, count=8, chosen=2):
        super().__init__()
        self.router, self.chosen = nn.Linear(width, count, bias=False), chosen
        self.experts = nn.ModuleList(Gated(width, inner) for _ in range(count))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, index = self.router(flat).softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(index == i)
            out.index_add_(0, token, expert(flat[token]) * weights[token, slot, None])
        return out.view(x.shape)


class Layer(nn.Module):
    def __init__(self, width, heads, kv_heads, mlp, norm):
        super().__init__()
        self.first, self.second = norm(width), norm(width)
        self.attention, self.mlp = Attention(width, heads, kv_heads), mlp

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Decoder(nn.Module):
    def __init__(
        self, width=768, layers=6, heads=12, kv_heads=None, vocab=50304, kind='gelu', recompute=False
    ):
        super().__init__()
        make = {
            'gelu': lambda: nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            ),
            'gated': lambda: Gated(width, 8 * width // 3 // 64 * 64),
            'experts': lambda: Experts(width, width),
        }[kind]
        norm = nn.LayerNorm if kind == 'gelu' else nn.RMSNorm
        self.embed, self.recompute = nn.Embedding(vocab, width), recompute
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, make(), norm) for _ in range(layers))
        self.norm, self.head = norm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(self.norm(x))


OPTIMIZERS = {
    'adamw': lambda p: torch.optim.AdamW(p),
    'adamw fused': lambda p: torch.optim.AdamW(p, fused=True),
    'adamw one by one': lambda p: torch.optim.AdamW(p, foreach=False),
    'amsgrad': lambda p: torch.optim.Adam(p, amsgrad=True),
    'sgd': lambda p: torch.optim.SGD(p, lr=1e-3),
    'momentum': lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True),
    'rmsprop': lambda p: torch.optim.RMSprop(p, lr=1e-4),
    'adafactor': lambda p: torch.optim.Adafactor(p),
    'nadam': lambda p: torch.optim.NAdam(p),
    'lbfgs': lambda p: torch.optim.LBFGS(p, max_iter=2, history_size=3),
}


@case('decoder fp32')
@case('decoder fp32 fused', optimizer='adamw fused')
@case('decoder fp32 one by one', optimizer='adamw one by one')
@case('decoder amsgrad', optimizer='amsgrad')
@case('decoder sgd', optimizer='sgd')
@case('decoder momentum', optimizer='momentum')
@case('decoder rmsprop', optimizer='rmsprop')
@case('decoder adafactor', optimizer='adafactor')
@case('decoder nadam', optimizer='nadam')
@case('decoder autocast', autocast=HALF)
@case('decoder autocast clipped', autocast=HALF, clip=1.0)
@case('decoder autocast 4 x 2', autocast=HALF, batch=2, micro=4)
@case('decoder autocast recomputed', autocast=HALF, recompute=True)
@case('decoder fp16 scaled', autocast=torch.float16, scale=True, clip=1.0)
@case('decoder bf16', dtype=HALF)
@case('decoder bf16 gated, shared keys', dtype=HALF, kind='gated', kv_heads=4)
@case('decoder gated, 4096 tokens', autocast=HALF, kind='gated', batch=2, tokens=4096)
@case('decoder of odd sizes', autocast=HALF, batch=3, tokens=389, vocab=50257)
@case('decoder with experts', autocast=HALF, kind='experts', layers=3)
@case('decoder of 350M', autocast=HALF, width=1024, layers=24, heads=16, batch=4, clip=1.0)
@case('decoder of 1B', dtype=HALF, width=2048, layers=16, heads=32, kv_heads=8, kind='gated', recompute=True)
def decoder(
    batch=8,
    tokens=512,
    optimizer='adamw',
    autocast=None,
    dtype=None,
    clip=None,
    micro=1,
    scale=False,
    **shape,
):
    model = Decoder(**shape).to('cuda', dtype)
    step_with, vocab = OPTIMIZERS[optimizer](model.parameters()), model.embed.num_embeddings
    scaler = torch.amp.GradScaler('cuda', enabled=scale)

    def step():
        for _ in range(micro):
            x, y = ids(vocab, batch, tokens), ids(vocab, batch, tokens)
            with torch.autocast('cuda', autocast or HALF, enabled=autocast is not None):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            scaler.scale(loss / micro).backward()
        if clip:
            scaler.unscale_(step_with)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(step_with)
        scaler.update()
        step_with.zero_grad(set_to_none=True)

    return step


@case('decoder, head and loss in chunks')
def chunked():
    model = Decoder().cuda()
    adam = torch.optim.AdamW(model.parameters())

    def loss_of(x, y):
        return F.cross_entropy(model.head(x), y, reduction='sum')

    def step():
        tokens, labels = ids(50304, 8, 512), ids(50304, 8 * 512)
        with torch.autocast('cuda', HALF):
            x = model.embed(tokens)
            for layer in model.layers:
                x = layer(x)
            pieces = zip(model.norm(x).flatten(0, 1).split(1024), labels.split(1024))
            loss = sum(checkpoint(loss_of, *piece, use_reentrant=False) for piece in pieces) / labels.numel()
        loss.backward()
        adam.step()
        adam.zero_grad()

    return step


@case('adapters on a frozen decoder')
def adapters():
    class Adapted(nn.Module):
        def __init__(self, linear, rank=16):
            super().__init__()
            self.linear = linear
            self.down = nn.Linear(linear.in_features, rank, bias=False)
            self.up = nn.Linear(rank, linear.out_features, bias=False)

        def forward(self, x):
            return self.linear(x) + self.up(self.down(x.float())).to(x.dtype)

    model = Decoder(1024, 12, 16, kind='gated').to('cuda', HALF).requires_grad_(False)
    for layer in model.layers:
        layer.attention.qkv = Adapted(layer.attention.qkv).cuda()
        layer.mlp.down = Adapted(layer.mlp.down).cuda()
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    def step():
        loss = F.cross_entropy(model(ids(50304, 4, 1024)).flatten(0, 1).float(), ids(50304, 4 * 1024))
        loss.backward()
        adam.step()
        adam.zero_grad()

    return step


@case('decoder, each gradient used at once')
def at_once():
    model = Decoder().cuda()
    adams = {p: torch.optim.AdamW([p], foreach=False) for p in model.parameters()}

    def use(p):
        adams[p].step()
        adams[p].zero_grad()

    for p in adams:
        p.register_post_accumulate_grad_hook(use)

    def step():
        with torch.autocast('cuda', HALF):
            loss = F.cross_entropy(model(ids(50304, 8, 512)).flatten(0, 1), ids(50304, 8 * 512))
        loss.backward()

    return step


@case('decoder and its moving average')
def averaged():
    model = Decoder(layers=4).cuda()
    average = copy.deepcopy(model).requires_grad_(False)
    adam = torch.optim.AdamW(model.parameters())

    def step():
        loss = F.cross_entropy(model(ids(50304, 4, 256)).flatten(0, 1), ids(50304, 4 * 256))
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.01)

    return step


@case('decoder, batches of unequal length')
def unequal():
    model = Decoder().cuda()
    adam, lengths = torch.optim.AdamW(model.parameters()), iter([512, 480, 500, 512, 470, 512] * 100)

    def step():
        tokens = next(lengths)
        with torch.autocast('cuda', HALF):
            loss = F.cross_entropy(model(ids(50304, 8, tokens)).flatten(0, 1), ids(50304, 8 * tokens))
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


@case('encoder with dropout and a mask')
def encoder():
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.Sequential(nn.Embedding(32000, 512), nn.TransformerEncoder(layer, 6)).cuda()
    head, mask = nn.Linear(512, 10).cuda(), torch.arange(256, device='cuda')[None] >= 200
    adam = torch.optim.Adam([*model.parameters(), *head.parameters()])

    def step():
        x = model[1](model[0](ids(32000, 32, 256)), src_key_padding_mask=mask.expand(32, -1))
        loss = F.cross_entropy(head(x.mean(1)), ids(10, 32))
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


@case('translation, nn.Transformer')
def translation():
    model = nn.Transformer(512, 8, 3, 3, 2048, batch_first=True).cuda()
    embed, head = nn.Embedding(16000, 512).cuda(), nn.Linear(512, 16000).cuda()
    adam = torch.optim.AdamW([*model.parameters(), *embed.parameters(), *head.parameters()])
    mask = nn.Transformer.generate_square_subsequent_mask(128, device='cuda')

    def step():
        y = model(embed(ids(16000, 32, 160)), embed(ids(16000, 32, 128)), tgt_mask=mask, tgt_is_causal=True)
        loss = F.cross_entropy(head(y).flatten(0, 1), ids(16000, 32 * 128), label_smoothing=0.1)
        loss.backward()
        adam.step()
        adam.zero_grad()

    return step


@case('lstm language model', kind=nn.LSTM)
@case('gru language model', kind=nn.GRU)
def recurrent(kind):
    embed, head = nn.Embedding(20000, 512).cuda(), nn.Linear(1024, 20000).cuda()
    model = kind(512, 1024, 2, batch_first=True, dropout=0.2).cuda()
    sgd = torch.optim.SGD([*embed.parameters(), *model.parameters(), *head.parameters()], lr=0.1)

    def step():
        y, _ = model(embed(ids(20000, 32, 128)))
        loss = F.cross_entropy(head(y).flatten(0, 1), ids(20000, 32 * 128))
        sgd.zero_grad()
        loss.backward()
        sgd.step()

    return step


# --------------------------------------------------------------------------------------------------
# pictures, sound, and the rest


def block(*channels, stride=1, groups=1, kernel=3):
    return nn.Sequential(
        nn.Conv2d(*channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels[1]),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    def __init__(self, width, stride=1, before=None):
        super().__init__()
        before = before or 4 * width
        layers = (
            block(before, width, kernel=1),
            block(width, width, stride=stride),
            block(width, 4 * width, kernel=1),
        )
        self.body = nn.Sequential(*layers)
        self.short = (
            nn.Identity() if before == 4 * width else block(before, 4 * width, stride=stride, kernel=1)
        )

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def resnet():
    layers, before = [block(3, 64, stride=2, kernel=7), nn.MaxPool2d(3, 2, 1)], 64
    for width, count in (64, 3), (128, 4), (256, 6), (512, 3):
        for i in range(count):
            layers.append(Residual(width, 2 if i == 0 and width > 64 else 1, before))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg():
    layers, before = [], 3
    for width, count in (64, 1), (128, 1), (256, 2), (512, 2), (512, 2):
        for _ in range(count):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True)]
            before = width
        layers.append(nn.MaxPool2d(2))
    rest = nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 1000)
    return nn.Sequential(*layers, *rest)


def depthwise():
    layers, before = [block(3, 32, stride=2)], 32
    for width, stride in (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1):
        layers += [block(before, before, stride=stride, groups=before), block(before, width, kernel=1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


@case('resnet fp32', build=resnet)
@case('resnet autocast', build=resnet, autocast=True)
@case('resnet autocast, channels last', build=resnet, autocast=True, last=True)
@case('resnet small pictures', build=resnet, batch=128, pixels=86)
@case('vgg fp32', build=vgg)
@case('vgg autocast', build=vgg, autocast=True)
@case('depthwise fp32', build=depthwise)
@case('depthwise autocast, channels last', build=depthwise, autocast=True, last=True)
def pictures(build, batch=32, pixels=224, autocast=False, last=False):
    form = torch.channels_last if last else torch.contiguous_format
    model = build().cuda().to(memory_format=form)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step():
        x = torch.randn(batch, 3, pixels, pixels, device='cuda').to(memory_format=form)
        with torch.autocast('cuda', HALF, enabled=autocast):
            loss = F.cross_entropy(model(x), ids(1000, batch))
        sgd.zero_grad()
        loss.backward()
        sgd.step()

    return step


@case('diffusion of pictures')
def diffusion():
    class Double(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.one, self.two = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
            self.norms = nn.ModuleList((nn.GroupNorm(8, b), nn.GroupNorm(8, b)))

        def forward(self, x):
            return F.silu(self.norms[1](self.two(F.silu(self.norms[0](self.one(x))))))

    class UNet(nn.Module):
        def __init__(self, widths=(64, 128, 256)):
            super().__init__()
            pairs = [*zip((3, *widths), widths)]
            self.down = nn.ModuleList(Double(a, b) for a, b in pairs)
            self.middle = nn.MultiheadAttention(widths[-1], 4, batch_first=True)
            self.grow = nn.ModuleList(nn.ConvTranspose2d(b, b, 2, 2) for b in widths[::-1])
            self.up = nn.ModuleList(Double(2 * b, max(a, 64)) for a, b in pairs[::-1])
            self.out = nn.Conv2d(64, 3, 1)

        def forward(self, x):
            kept = []
            for layer in self.down:
                kept.append(layer(x))
                x = F.avg_pool2d(kept[-1], 2)
            flat = x.flatten(2).transpose(1, 2)
            x = x + self.middle(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(x)
            for grow, layer in zip(self.grow, self.up):
                x = layer(torch.cat([grow(x), kept.pop()], 1))
            return self.out(x)

    model = UNet().cuda()
    adam = torch.optim.AdamW(model.parameters())

    def step():
        x, noise = (torch.randn(32, 3, 64, 64, device='cuda') for _ in range(2))
        t = torch.rand(32, 1, 1, 1, device='cuda')
        loss = F.mse_loss(model(x * (1 - t) + noise * t), noise)
        loss.backward()
        adam.step()
        adam.zero_grad()

    return step


@case('a generator against a critic, with a penalty')
def adversarial():
    sizes = 512, 256, 128, 64
    grow = [
        nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in zip(sizes, sizes[1:])
    ]
    generator = nn.Sequential(
        nn.ConvTranspose2d(100, 512, 4), *grow, nn.ConvTranspose2d(64, 3, 4, 2, 1)
    ).cuda()
    shrink = [
        nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2))
        for a, b in zip((3, 64, 128), (64, 128, 256))
    ]
    critic = nn.Sequential(*shrink, nn.Flatten(), nn.Linear(256 * 64, 1)).cuda()
    adams = [torch.optim.Adam(m.parameters(), 1e-4, (0.5, 0.9)) for m in (critic, generator)]

    def step():
        true, noise = torch.randn(64, 3, 64, 64, device='cuda'), torch.randn(64, 100, 1, 1, device='cuda')
        made = generator(noise).detach()
        between = torch.lerp(true, made, torch.rand(64, 1, 1, 1, device='cuda')).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
        loss = (
            critic(made).mean() - critic(true).mean() + 10 * ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
        )
        adams[0].zero_grad()
        loss.backward()
        adams[0].step()
        adams[1].zero_grad()
        (-critic(generator(noise)).mean()).backward()
        adams[1].step()

    return step


@case('pictures beside words')
def contrastive():
    patches, words = nn.Conv2d(3, 384, 16, 16), nn.Embedding(30000, 384)
    towers = [
        nn.TransformerEncoder(nn.TransformerEncoderLayer(384, 6, 1536, 0.0, batch_first=True), 4)
        for _ in range(2)
    ]
    model = nn.ModuleList([patches, words, *towers]).cuda()
    adam = torch.optim.AdamW(model.parameters())

    def step():
        with torch.autocast('cuda', HALF):
            a = towers[0](patches(torch.randn(64, 3, 224, 224, device='cuda')).flatten(2).transpose(1, 2))
            b = towers[1](words(ids(30000, 64, 64)))
            a, b = (F.normalize(t.mean(1), dim=-1) for t in (a, b))
            scores = a @ b.T / 0.07
            pairs = torch.arange(64, device='cuda')
            loss = (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.T, pairs)) / 2
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


@case('ratings, with sparse gradients')
def ratings():
    people, things = (nn.EmbeddingBag(n, 128, mode='mean', sparse=True).cuda() for n in (500_000, 100_000))
    dense = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    sparse = torch.optim.SparseAdam([*people.parameters(), *things.parameters()])
    adam = torch.optim.Adam(dense.parameters())

    def step():
        x = torch.cat([people(ids(500_000, 8192, 4)), things(ids(100_000, 8192, 20))], 1)
        loss = F.binary_cross_entropy_with_logits(dense(x)[:, 0], torch.rand(8192, device='cuda'))
        loss.backward()
        for o in (sparse, adam):
            o.step()
            o.zero_grad()

    return step


@case('speech, with CTC')
def speech():
    waves = nn.Sequential(
        nn.Conv1d(80, 256, 3, 2, 1), nn.GELU(), nn.Conv1d(256, 256, 3, 2, 1), nn.GELU()
    ).cuda()
    model, head = (
        nn.LSTM(256, 512, 3, batch_first=True, bidirectional=True).cuda(),
        nn.Linear(1024, 40).cuda(),
    )
    adam = torch.optim.Adam([*waves.parameters(), *model.parameters(), *head.parameters()])

    def step():
        y, _ = model(waves(torch.randn(16, 80, 1600, device='cuda')).transpose(1, 2))
        told, length = head(y).log_softmax(-1).transpose(0, 1), torch.full((16,), 400)
        loss = F.ctc_loss(told, ids(39, 16, 60) + 1, length, torch.full((16,), 60))
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


@case('films, in three dimensions')
def films():
    layers = [
        nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.BatchNorm3d(b), nn.ReLU(), nn.MaxPool3d(2))
        for a, b in ((3, 32), (32, 64), (64, 128))
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(128, 400)).cuda()
    adam = torch.optim.Adam(model.parameters())

    def step():
        loss = F.cross_entropy(model(torch.randn(4, 3, 16, 112, 112, device='cuda')), ids(400, 4))
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


@case('a small net, line by line', optimizer='lbfgs')
def closure(optimizer):
    model = nn.Sequential(nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 1024)).cuda()
    lbfgs, x, y = (
        OPTIMIZERS[optimizer](model.parameters()),
        draw(4096, 1024, grad=False),
        draw(4096, 1024, grad=False),
    )

    def loss_of():
        lbfgs.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    return lambda: lbfgs.step(loss_of)


# --------------------------------------------------------------------------------------------------
# models of libraries, from their configuration

HF = 'transformers'
SMALL = dict(hidden_size=768, num_hidden_layers=4, num_attention_heads=12, intermediate_size=2048)


def of_transformers(
    kind, config, inputs, autocast=False, dtype=None, settings=None, recompute=False, batch=4
):
    import transformers

    # a configuration of its own, with the library's defaults for what isn't said
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings or {})).to('cuda', dtype)
    if recompute:
        model.gradient_checkpointing_enable()
    model.train()
    adam = torch.optim.AdamW(model.parameters())

    def step():
        given = inputs(batch)
        with torch.autocast('cuda', HALF, enabled=autocast):
            loss = model(**given).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()

    return step


def text(tokens=512, vocab=30000, **more):
    def inputs(batch):
        x = ids(vocab, batch, tokens)
        return dict(input_ids=x, labels=x, attention_mask=torch.ones_like(x)) | more

    return inputs


def named_pictures(batch):
    return dict(pixel_values=torch.randn(batch, 3, 224, 224, device='cuda'), labels=ids(2, batch))


def heard(batch):
    return dict(input_features=torch.randn(batch, 80, 3000, device='cuda'), labels=ids(50000, batch, 200))


GQA = dict(SMALL, num_key_value_heads=4, vocab_size=32000)
MOE = dict(GQA, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=512)
for _name, _settings in {
    'gpt2': dict(kind='GPT2LMHeadModel', config='GPT2Config', inputs=text(), autocast=True),
    'gpt2 fp32': dict(kind='GPT2LMHeadModel', config='GPT2Config', inputs=text()),
    'llama bf16': dict(
        kind='LlamaForCausalLM', config='LlamaConfig', inputs=text(1024), dtype=HALF, settings=GQA
    ),
    'llama recomputed': dict(
        kind='LlamaForCausalLM',
        config='LlamaConfig',
        inputs=text(1024),
        autocast=True,
        settings=GQA,
        recompute=True,
    ),
    'qwen3 moe': dict(
        kind='Qwen3MoeForCausalLM', config='Qwen3MoeConfig', inputs=text(), dtype=HALF, settings=MOE
    ),
    'gemma3': dict(
        kind='Gemma3ForCausalLM',
        config='Gemma3TextConfig',
        inputs=text(),
        dtype=HALF,
        settings=dict(GQA, head_dim=64),
    ),
    'bert': dict(kind='BertForMaskedLM', config='BertConfig', inputs=text(), autocast=True),
    't5': dict(
        kind='T5ForConditionalGeneration',
        config='T5Config',
        inputs=text(),
        settings=dict(decoder_start_token_id=0),
    ),
    'vit': dict(
        kind='ViTForImageClassification', config='ViTConfig', inputs=named_pictures, batch=16, autocast=True
    ),
    'whisper': dict(
        kind='WhisperForConditionalGeneration', config='WhisperConfig', inputs=heard, autocast=True
    ),
}.items():
    case(f'transformers {_name}', needs=HF, **_settings)(of_transformers)


def of_torchvision(model, batch, autocast=False):
    import torchvision

    return pictures(lambda: getattr(torchvision.models, model)(), batch, autocast=autocast)


for _name, _batch in dict(
    resnet50=32, vgg16_bn=32, mobilenet_v2=64, efficientnet_b0=32, convnext_tiny=32, swin_t=32
).items():
    case(f'torchvision {_name}', needs='torchvision', model=_name, batch=_batch)(of_torchvision)
case('torchvision densenet121 autocast', needs='torchvision', model='densenet121', batch=32, autocast=True)(
    of_torchvision
)


# --------------------------------------------------------------------------------------------------
# single operations


def operation(name, make, run=None):
    "Keep an operation: `make` gives its inputs, `run` a result of them, which is summed if it has a gradient"

    def build():
        inputs = make()

        def once():
            out = run(*inputs)
            parts = [t for t in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(t)]
            kept = [t for t in parts if t.requires_grad]
            for t in inputs:
                if torch.is_tensor(t):
                    t.grad = None
                elif isinstance(t, nn.Module):
                    t.zero_grad()
            if kept:
                torch.autograd.backward(kept, [torch.ones_like(t) for t in kept])

        return once

    OPERATIONS[name] = build


def layer(make, *shape, dtype=torch.float32):
    return lambda: (make().to('cuda', dtype), draw(*shape, dtype=dtype))


def call(module, *inputs):
    return module(*inputs)


def attention(batch, heads, tokens, size, dtype, kv_heads=None, masked=False, **how):
    def make():
        q, *rest = (
            draw(batch, n, tokens, size, dtype=dtype) for n in (heads, kv_heads or heads, kv_heads or heads)
        )
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device='cuda').tril() if masked else None
        return q, *rest, mask

    return make, lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, **how)


for _kind, _dtype in (('fp32', torch.float32), ('bf16', HALF)):
    for _what, _make in {
        'linear': layer(lambda: nn.Linear(2048, 4096), 8192, 2048, dtype=_dtype),
        'layer norm': layer(lambda: nn.LayerNorm(4096), 8192, 4096, dtype=_dtype),
        'rms norm': layer(lambda: nn.RMSNorm(4096), 8192, 4096, dtype=_dtype),
        'group norm': layer(lambda: nn.GroupNorm(32, 256), 16, 256, 64, 64, dtype=_dtype),
        'batch norm': layer(lambda: nn.BatchNorm2d(256), 32, 256, 56, 56, dtype=_dtype),
        'instance norm': layer(lambda: nn.InstanceNorm2d(64, affine=True), 16, 64, 128, 128, dtype=_dtype),
        'convolution 3 x 3': layer(lambda: nn.Conv2d(256, 256, 3, padding=1), 32, 256, 56, 56, dtype=_dtype),
        'convolution 1 x 1': layer(lambda: nn.Conv2d(256, 1024, 1), 32, 256, 28, 28, dtype=_dtype),
        'convolution 7 x 7, stride 2': layer(
            lambda: nn.Conv2d(3, 64, 7, 2, 3), 32, 3, 224, 224, dtype=_dtype
        ),
        'convolution, depthwise': layer(
            lambda: nn.Conv2d(256, 256, 7, padding=3, groups=256), 16, 256, 56, 56, dtype=_dtype
        ),
        'convolution, transposed': layer(
            lambda: nn.ConvTranspose2d(256, 128, 4, 2, 1), 16, 256, 32, 32, dtype=_dtype
        ),
        'convolution of sound': layer(lambda: nn.Conv1d(80, 512, 3, padding=1), 16, 80, 3000, dtype=_dtype),
        'convolution of films': layer(
            lambda: nn.Conv3d(32, 64, 3, padding=1), 4, 32, 16, 56, 56, dtype=_dtype
        ),
        'lstm': layer(lambda: nn.LSTM(512, 512, 2), 128, 32, 512, dtype=_dtype),
        'gru': layer(lambda: nn.GRU(512, 512, 2), 128, 32, 512, dtype=_dtype),
        'multi-head attention': layer(
            lambda: nn.TransformerEncoderLayer(512, 8, batch_first=True), 16, 512, 512, dtype=_dtype
        ),
    }.items():
        operation(f'{_what} {_kind}', _make, call)
    for _what, (_make, _run) in {
        'attention': attention(4, 16, 1024, 64, _dtype),
        'attention, causal': attention(4, 16, 1024, 64, _dtype, is_causal=True),
        'attention, masked': attention(4, 16, 1024, 64, _dtype, masked=True),
        'attention, heads of 128': attention(4, 16, 1024, 128, _dtype, is_causal=True),
        'attention, heads of 80': attention(4, 16, 1000, 80, _dtype, is_causal=True),
        'attention, heads of 256': attention(2, 8, 1024, 256, _dtype, is_causal=True),
        'attention, shared keys': attention(
            4, 16, 1024, 64, _dtype, kv_heads=4, is_causal=True, enable_gqa=True
        ),
        'attention with dropout': attention(4, 16, 1024, 64, _dtype, dropout_p=0.1),
        'cross entropy': (lambda d=_dtype: (draw(8192, 32000, dtype=d), ids(32000, 8192)), F.cross_entropy),
        'cross entropy, smoothed': (
            lambda d=_dtype: (draw(4096, 32000, dtype=d), ids(32000, 4096)),
            lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        ),
        'softmax': (lambda d=_dtype: (draw(8192, 8192, dtype=d),), lambda x: x.softmax(-1)),
        'gelu': (lambda d=_dtype: (draw(8192, 8192, dtype=d),), F.gelu),
        'dropout': (lambda d=_dtype: (draw(8192, 8192, dtype=d),), lambda x: F.dropout(x, 0.1)),
        'sort': (lambda d=_dtype: (draw(1024, 16384, dtype=d),), lambda x: x.sort(-1)[0]),
        'topk': (lambda d=_dtype: (draw(8192, 4096, dtype=d),), lambda x: x.topk(50, -1)[0]),
        'cumulative sum': (lambda d=_dtype: (draw(4096, 8192, dtype=d),), lambda x: x.cumsum(-1)),
        'batched products': (
            lambda d=_dtype: (draw(64, 512, 512, dtype=d), draw(64, 512, 512, dtype=d)),
            lambda a, b: (a @ b).sum(),
        ),
        'einsum': (
            lambda d=_dtype: (draw(16, 512, 8, 64, dtype=d), draw(16, 512, 8, 64, dtype=d)),
            lambda a, b: torch.einsum('bqhd,bkhd->bhqk', a, b),
        ),
        'max pool': (lambda d=_dtype: (draw(32, 64, 112, 112, dtype=d),), lambda x: F.max_pool2d(x, 3, 2, 1)),
        'upsampling': (
            lambda d=_dtype: (draw(16, 64, 64, 64, dtype=d),),
            lambda x: F.interpolate(x, scale_factor=2, mode='bilinear'),
        ),
        'sum in fp32': (lambda d=_dtype: (draw(8192, 8192, dtype=d),), lambda x: x.float().pow(2).mean(-1)),
    }.items():
        operation(f'{_what} {_kind}', _make, _run)

for _what, (_make, _run) in {
    'embedding, 8,192 ids': (lambda: (draw(50304, 1024), ids(50304, 8192)), lambda w, i: F.embedding(i, w)),
    'embedding, 2,048 ids': (lambda: (draw(50304, 1024), ids(50304, 2048)), lambda w, i: F.embedding(i, w)),
    'embedding bag': (lambda: (draw(50304, 256), ids(50304, 8192, 16)), lambda w, i: F.embedding_bag(i, w)),
    'gather': (lambda: (draw(8192, 8192), ids(8192, 8192, 64)), lambda x, i: x.gather(1, i)),
    'index select': (lambda: (draw(65536, 512), ids(65536, 131072)), lambda x, i: x[i]),
    'scatter add': (
        lambda: (draw(65536, 512), ids(1024, 65536)),
        lambda x, i: x.new_zeros(1024, 512).index_add(0, i, x),
    ),
    'index put': (
        lambda: (draw(1024, 512), ids(1024, 65536), draw(65536, 512)),
        lambda x, i, y: x.clone().index_put_((i,), y, accumulate=True),
    ),
    'one hot': (lambda: (ids(1000, 65536),), lambda i: F.one_hot(i, 1000)),
    'unique': (lambda: (ids(1000, 1_000_000),), lambda i: i.unique()),
    'nonzero': (lambda: (draw(4096, 4096, grad=False),), lambda x: (x > 0).nonzero()),
    'masked select': (lambda: (draw(4096, 4096),), lambda x: x[x > 0]),
    'multinomial': (lambda: (torch.rand(512, 50000, device='cuda'),), lambda x: x.multinomial(1)),
    'permutation': (lambda: (), lambda: torch.randperm(10_000_000, device='cuda')),
    'histogram': (lambda: (ids(1000, 10_000_000),), lambda i: i.bincount(minlength=1000)),
    'fourier transform': (lambda: (draw(256, 16384),), lambda x: torch.fft.rfft(x).abs()),
    'distances': (lambda: (draw(4096, 256), draw(4096, 256)), torch.cdist),
    'svd': (lambda: (draw(8, 256, 256),), torch.linalg.svdvals),
    'cholesky': (
        lambda: (draw(8, 512, 512),),
        lambda x: torch.linalg.cholesky(x @ x.mT + 512 * torch.eye(512, device='cuda')),
    ),
    'solve': (lambda: (draw(8, 512, 512), draw(8, 512, 64)), torch.linalg.solve),
    'qr': (lambda: (draw(8, 512, 256),), torch.linalg.qr),
    'norm of many': (
        lambda: ([draw(1024, 1024, grad=False) for _ in range(50)],),
        lambda many: torch.stack(torch._foreach_norm(many)).norm(),
    ),
    'kl divergence': (
        lambda: (draw(4096, 16384), draw(4096, 16384, grad=False)),
        lambda a, b: F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction='batchmean'),
    ),
    'grid sample': (
        lambda: (draw(16, 32, 64, 64), torch.rand(16, 64, 64, 2, device='cuda') * 2 - 1),
        lambda x, g: F.grid_sample(x, g, align_corners=False),
    ),
    'matrix and vector': (lambda: (draw(8192, 8192), draw(8192)), lambda a, x: a @ x),
    'median': (lambda: (draw(4096, 4096, grad=False),), lambda x: x.median(-1)[0]),
    'variance': (lambda: (draw(4096, 4096),), lambda x: x.var(-1)),
    'log sum exp': (lambda: (draw(8192, 8192),), lambda x: x.logsumexp(-1)),
    'convolution 3 x 3, channels last bf16': (
        lambda: (
            nn.Conv2d(256, 256, 3, padding=1).to('cuda', HALF, memory_format=torch.channels_last),
            draw(32, 256, 56, 56, dtype=HALF, grad=False)
            .to(memory_format=torch.channels_last)
            .requires_grad_(),
        ),
        call,
    ),
    'convolution of 3 channels, few out bf16': (
        layer(lambda: nn.Conv2d(3, 5, 3, padding=1), 16, 3, 256, 256, dtype=HALF),
        call,
    ),
    'convolution, dilated fp32': (
        layer(lambda: nn.Conv2d(128, 128, 3, padding=4, dilation=4), 16, 128, 64, 64),
        call,
    ),
    'convolution, groups of 8 fp32': (
        layer(lambda: nn.Conv2d(256, 256, 3, padding=1, groups=32), 16, 256, 56, 56),
        call,
    ),
}.items():
    operation(_what, _make, _run)


# --------------------------------------------------------------------------------------------------
# running one


def build(name):
    "The function that runs the case `name` once, all of it on CUDA"
    return (STEPS.get(name) or OPERATIONS[name])()


def list_cases():
    "(kind, name) of all that can run here"
    installed = {lib for lib in {*NEEDS.values()} - {''} if importlib.util.find_spec(lib)}
    steps = [('step', name) for name in STEPS if NEEDS[name] in {'', *installed}]
    return steps + [('operation', name) for name in OPERATIONS]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('name', nargs='?')
    parser.add_argument('--steps', type=int, default=4)
    parser.add_argument('--list', action='store_true')
    args = parser.parse_args()
    if args.list or not args.name:
        print(*(f'{kind:10} {name}' for kind, name in list_cases()), sep='\n')
        return
    torch.manual_seed(0)
    step = build(args.name)
    for _ in range(args.steps):
        step()


if __name__ == '__main__':
    main()
