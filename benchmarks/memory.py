#!/usr/bin/env python3
"""The memory of a training step: what memtrain and four other tools predict, against the true peak on this
CPU.

    python benchmarks/memory.py grid|random|families [--small] [--seed 0] [--n 100]

Each subcommand prints a table and writes `results/memory_<name>.json`; with --small a few configurations
are looked at and nothing is written. The truth is `memtrain.measure.measure_step`: allocations and frees of
the real training step, summed up, from before the model is built to the end of the second step."""

from __future__ import annotations

import argparse, random, statistics, time, warnings
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from memtrain.core import format_count, format_size, progress, save_result
from memtrain.estimate import Step, estimate, simulate
from memtrain.measure import measure_step
from memtrain.model import GPT, GPTConfig, count_params
from memtrain.optim import make_8bit

# --------------------------------------------------------------------------------------------------
# the step that is measured

OPTIMIZERS = ('adamw', 'adamw8bit', 'sgd')


def make_optimizer(name, params):
    "The optimizer `name` of `params`, as a `Step` means it"
    if name == 'adamw':
        return torch.optim.AdamW(params, fused=True)
    if name == 'sgd':
        return torch.optim.SGD(params, lr=1e-3)
    return make_8bit('adamw', params, 1e-3, (0.9, 0.999))


def make_functions(shape, step, device='cpu', before=lambda: None, read=True):
    """Model, optimizer and step function of a GPT of `shape`; `before` is called before each micro-batch,
    `read` fetches the loss"""
    size = step.batch_size, step.seq_len or shape.block_size

    def model_fn():
        with torch.device(device):
            model = GPT(shape)
        model.checkpointing, model.loss_chunk_size = step.activation_checkpointing, step.loss_chunk_size
        return model

    def ids():
        return torch.randint(shape.vocab_size, size, device=device)

    def step_fn(model, optimizer):
        batches = [(ids(), ids()) for _ in range(step.gradient_accumulation_steps)]
        optimizer.zero_grad()
        for x, y in batches:
            before()
            with torch.autocast(device.split(':')[0], torch.bfloat16, enabled=step.use_mixed_precision):
                loss = model.loss(x, y) * (1 / step.gradient_accumulation_steps)
            loss.backward()
            if read:
                loss.item()
            del loss
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return model_fn, lambda params: make_optimizer(step.optimizer, params), step_fn


# --------------------------------------------------------------------------------------------------
# the other tools


@dataclass(frozen=True)
class Peer:
    "Another tool: what it is called, where its formula stands, and what it says that it covers"

    name: str
    source: str  # version or date
    url: str
    covers: str
    reading: str  # how it is asked here


PEERS = {
    'accelerate': Peer(
        'Hugging Face accelerate, `accelerate estimate-memory`',
        'version 1.15.0',
        'https://huggingface.co/docs/accelerate/usage_guides/model_size_estimator',
        'weights, gradients and Adam states, batch size 1; no activations',
        "the column 'Training using Adam': 4 x the bytes of the weights in float32, and for float16 2 x these"
        " (the largest of weights, gradients, states and step); the docs call it a rough estimate",
    ),
    'deepspeed_zero2': Peer(
        'DeepSpeed, estimate_zero2_model_states_mem_needs',
        'version 0.19.8',
        'https://deepspeed.readthedocs.io/en/latest/memory.html',
        '16-bit training with Adam: weights, gradients and states; no activations, no buffers',
        'one GPU, no offload: 2 + 18 bytes per parameter',
    ),
    'deepspeed_zero3': Peer(
        'DeepSpeed, estimate_zero3_model_states_mem_needs',
        'version 0.19.8',
        'https://deepspeed.readthedocs.io/en/latest/memory.html',
        '16-bit training with Adam: weights, gradients and states; no activations, no buffers',
        'one GPU, no offload: 18 bytes per parameter and 4 per parameter of the largest layer',
    ),
    'eleuther': Peer(
        'EleutherAI cookbook, calc/calc_transformer_mem.py, and the article Transformer Math 101',
        'commit c2af7dbe; article of April 2023',
        'https://github.com/EleutherAI/cookbook/blob/main/calc/calc_transformer_mem.py',
        'weights, gradients, optimizer and activations of a Megatron-like transformer with biases, untied'
        ' embeddings and attention that stores its scores; no logits, no loss',
        'one GPU; --disable-mixed-precision in fp32, --checkpoint-activations as the step; bytes per'
        ' parameter of the optimizer as its comment tells for Adam (12) and 8-bit Adam (6), and for SGD'
        ' without momentum the fp32 copy alone (4). Of the possible readings this is the best for it: 12'
        ' bytes for every optimizer, or activations of 4 bytes in fp32, are farther off',
    ),
    'memtracker': Peer(
        'torch.distributed._tools.mem_tracker.MemTracker',
        'torch ' + torch.__version__.split('+')[0],
        'https://github.com/pytorch/pytorch/blob/main/torch/distributed/_tools/mem_tracker.py',
        'all tensors that operations return, by module; not what a kernel holds while it runs',
        'model and optimizer registered with track_external, two steps of the same functions under'
        ' FakeTensorMode, reset_mod_stats before each micro-batch; the total of its peak snapshot',
    ),
}


def count_layers(model):
    "(parameters of `model`, shared ones once; parameters of the layer that has most)"
    largest = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())
    return sum(p.numel() for p in model.parameters()), largest


def say_accelerate(n, largest, half):
    return 2 * 4 * n if half else 4 * 4 * n


def say_deepspeed_zero2(n, largest, half):
    return 20 * n


def say_deepspeed_zero3(n, largest, half):
    return 18 * n + 4 * largest


BY_PARAMETERS = {
    'accelerate': say_accelerate,
    'deepspeed_zero2': say_deepspeed_zero2,
    'deepspeed_zero3': say_deepspeed_zero3,
}


def say_eleuther(shape, step):
    "What the calculator of the cookbook adds up for one GPU"
    V, h, L, a = shape.vocab_size, shape.n_embd, shape.n_layer, shape.n_head
    s, b = step.seq_len or shape.block_size, step.batch_size
    n = 2 * V * h + h * s + 8 * h * L + 2 * h + 4 * L * h * h + 8 * L * h * h
    weights = 2 if step.use_mixed_precision else 4
    optimizer = {'adamw': 12, 'adamw8bit': 6, 'sgd': 4}[step.optimizer]
    scores = 0 if step.activation_checkpointing else (2 * 2 + 1) * a * s / h
    return int(n * (weights + 4 + optimizer) + s * b * h * L * (16 * 2 + 2 + scores))


def say_memtracker(make):
    "The peak that MemTracker sees; `make(before, read)` gives model, optimizer and step function"
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    model_fn, optimizer_fn, step_fn = make(tracker.reset_mod_stats, False)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        model = model_fn()
    optimizer = optimizer_fn([*model.parameters()])  # bitsandbytes can't make its tables from fakes
    with mode:
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):
                step_fn(model, optimizer)
    return sum(snapshot['Total'] for snapshot in tracker.get_tracker_snapshot('peak').values())


def predict(name, shape, step):
    "Bytes that the tool `name`, a key of `PEERS`, predicts for a training step of a GPT"
    if name == 'eleuther':
        return say_eleuther(shape, step)
    if name == 'memtracker':
        return say_memtracker(lambda before, read: make_functions(shape, step, 'cpu', before, read))
    with torch.device('meta'):
        n, largest = count_layers(GPT(shape))
    return BY_PARAMETERS[name](n, largest, step.use_mixed_precision)


# --------------------------------------------------------------------------------------------------
# what is compared


def timed(fn, *args):
    "(what `fn` gives, seconds), or (None, its error) where it fails"
    started = time.perf_counter()
    try:
        return fn(*args), time.perf_counter() - started
    except Exception as e:
        return None, f'{type(e).__name__}: {e}'.split('\n')[0][:200]


def look_at(shape, step):
    "The truth of one configuration, and what everybody says"
    truth = measure_step(*make_functions(shape, step))
    ways = {
        'simulate': lambda: simulate(*make_functions(shape, step)).peak,
        'estimate': lambda: estimate(shape, step).peak,
        **{name: lambda name=name: predict(name, shape, step) for name in PEERS},
    }
    return {
        'shape': asdict(shape),
        'step': asdict(step),
        'params': count_params(shape),
        **compare(truth, ways),
    }


def compare(truth, ways):
    "Bytes of `truth` and of each of `ways`, relative errors and seconds"
    found = {name: timed(fn) for name, fn in ways.items()}
    said = {name: n for name, (n, _) in found.items() if n is not None}
    return {
        'peak': truth.peak,
        'peak_op': truth.peak_op,
        'by_category': truth.by_category,
        'predicted': said,
        'errors': {name: n / truth.peak - 1 for name, n in said.items()},
        'seconds': {name: s for name, (n, s) in found.items() if n is not None},
        'failed': {name: s for name, (n, s) in found.items() if n is None},
    }


def summarize(rows):
    "Mean, median and worst of the absolute relative errors of each predictor, and the sign that prevails"
    names = dict.fromkeys(name for r in rows for name in (*r['predicted'], *r['failed']))
    summary = {}
    for name in names:
        errors = [r['errors'][name] for r in rows if name in r['errors']]
        if not errors:
            continue
        size = [abs(e) for e in errors]
        summary[name] = {
            'mean': statistics.mean(size),
            'median': statistics.median(size),
            'worst': max(size),
            'too_low': sum(e < 0 for e in errors),
            'n': len(errors),
            'failed': len(rows) - len(errors),
            'seconds': statistics.median(r['seconds'][name] for r in rows if name in r['seconds']),
        }
    return summary


def print_summary(title, rows):
    "The summary as a table, and where the peaks were"
    summary = summarize(rows)
    print(
        f'\n{title}\n  {"":16} {"mean":>9} {"median":>9} {"worst":>9} {"too low":>8} {"of":>5} {"failed":>7}'
        f' {"seconds":>9}'
    )
    for name, s in summary.items():
        print(
            f"  {name:16} {s['mean']:9.3%} {s['median']:9.3%} {s['worst']:9.3%} {s['too_low']:8} {s['n']:5}"
            f" {s['failed']:7} {s['seconds']:9.2g}"
        )
    places = {}
    for r in rows:
        places[r['peak_op']] = places.get(r['peak_op'], 0) + 1
    print(
        '  peaks made by: ' + ', '.join(f'{op} {n}' for op, n in sorted(places.items(), key=lambda p: -p[1]))
    )
    for r in rows:
        for name, why in r['failed'].items():
            print(f'  {name} failed: {why}')
    return summary, places


# --------------------------------------------------------------------------------------------------
# grid

# parameters of the blocks
SIZES = {'0.4M': dict(n_layer=2, n_head=4, n_embd=128), '3.1M': dict(n_layer=4, n_head=8, n_embd=256)}
SHAPES = {  # (windows per micro-batch, the rest of the shape)
    'short windows': (16, dict(block_size=64, vocab_size=512)),
    'large vocabulary': (8, dict(block_size=128, vocab_size=4096, bias=True)),
    'long windows': (2, dict(block_size=512, vocab_size=2048, tie_weights=False)),
}


def grid():
    "The 144 configurations"
    for size in SIZES.values():
        for batch, rest in SHAPES.values():
            shape = GPTConfig(**size, **rest)
            for half in (False, True):
                for optimizer in OPTIMIZERS:
                    for checkpointing in (False, True):
                        for accumulation in (1, 4):
                            yield shape, Step(batch, None, accumulation, half, optimizer, checkpointing)


def run_grid(args):
    """Two sizes, three shapes, two precisions, three optimizers, checkpointing or not, one or four
    micro-batches"""
    todo = list(grid())
    assert len(todo) == 144
    if args.small:
        todo = todo[::37]
    return look_at_all(todo, f'grid: {len(todo)} configurations, error of the predicted peak')


# --------------------------------------------------------------------------------------------------
# random


def draw(rng):
    "A random shape and step, of a size that this takes about a second to measure"
    while True:
        heads = rng.choice((1, 2, 3, 4, 6, 8))
        width = heads * rng.choice((4, 8, 16, 20, 32, 48, 64))
        if not 16 <= width <= 512:
            continue
        vocab, seq = round(2 ** rng.uniform(6, 15)), round(2 ** rng.uniform(4, 8))
        batch = rng.choice((1, 2, 3, 4, 8, 16, 32))
        shape = GPTConfig(
            vocab,
            seq,
            rng.randint(1, 6),
            heads,
            width,
            bias=rng.random() < 0.5,
            tie_weights=rng.random() < 0.5,
        )
        if not (
            batch * seq * vocab <= 16 * 2**20
            and 32 <= batch * seq <= 2048
            and count_params(shape) <= 8_000_000
        ):
            continue
        step = Step(
            batch,
            None,
            rng.randint(1, 4),
            rng.random() < 0.5,
            rng.choice(OPTIMIZERS),
            rng.random() < 0.5,
            rng.choice((None, None, None, max(1, batch * seq // rng.choice((2, 3, 8))))),
        )
        return shape, step


def run_random(args):
    "Configurations drawn at random"
    rng = random.Random(args.seed)
    todo = [draw(rng) for _ in range(5 if args.small else args.n)]
    return {
        'seed': args.seed,
        **look_at_all(
            todo, f'random: {len(todo)} configurations of seed {args.seed}, error of the predicted peak'
        ),
    }


def look_at_all(todo, title):
    "Everything about the configurations `todo`, and the summary"
    rows = [look_at(shape, step) for shape, step in progress(todo, desc='configurations')]
    summary, places = print_summary(title, rows)
    worst = {
        name: max((r for r in rows if name in r['errors']), key=lambda r: abs(r['errors'][name]))
        for name in ('simulate', 'estimate')
        if any(name in r['errors'] for r in rows)
    }
    for name, r in worst.items():
        print(f"  worst of {name}: {r['errors'][name]:+.3%} of {format_size(r['peak'])}: {say_settings(r)}")
    return {
        'summary': summary,
        'peaks': places,
        'peers': {name: asdict(p) for name, p in PEERS.items()},
        'threads': torch.get_num_threads(),
        'configurations': rows,
    }


def say_settings(row):
    "The settings of a configuration in one line, those that are off or not given left out"
    return ', '.join(f'{k}={v}' for k, v in {**row['shape'], **row['step']}.items() if v)


# --------------------------------------------------------------------------------------------------
# other families


class ConvNet(nn.Module):
    "Residual blocks of convolution, batch norm and ReLU, in three widths"

    def __init__(self, width=32, classes=100):
        super().__init__()

        def conv(i, o, stride=1):
            return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o))

        widths = (width, 2 * width, 4 * width)
        self.stem = conv(3, width)
        self.down = nn.ModuleList(conv(i, o, 2) for i, o in zip((width, *widths), widths))
        self.same = nn.ModuleList(conv(o, o) for o in widths)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for down, same in zip(self.down, self.same):
            x = F.relu(down(x))
            x = F.relu(x + same(x))
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    "torch's own TransformerEncoder behind an embedding"

    def __init__(self, vocab=1000, width=128, layers=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)))


class LlamaBlock(nn.Module):
    "RMS norms, rotary positions, grouped queries and a SwiGLU, without biases"

    def __init__(self, width=128, heads=8, groups=2, hidden=344):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        h = self.norm1(x)
        q = self.rotate(self.q(h).view(B, T, self.heads, self.size).transpose(1, 2), cos, sin)
        k, v = self.kv(h).view(B, T, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        k = self.rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(
            q, *(z.repeat_interleave(self.heads // self.groups, 1) for z in (k, v)), is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    "A decoder of such blocks"

    def __init__(self, vocab=2000, block=128, width=128, layers=4):
        super().__init__()
        self.embed, self.blocks = (
            nn.Embedding(vocab, width),
            nn.ModuleList(LlamaBlock(width) for _ in range(layers)),
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        angles = torch.arange(block)[:, None] * 10000 ** (-torch.arange(0, 8) / 8)
        self.register_buffer('cos', angles.cos())
        self.register_buffer('sin', angles.sin())

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, self.cos, self.sin)
        return self.head(self.norm(h))


class FactorNet(nn.Module):
    """A small network gives each center the Cholesky factor of a precision; the loss is implicit score
    matching of that Gaussian mixture"""

    def __init__(self, dim=48, centers=64, hidden=64):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(centers, dim))
        self.net = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, dim * dim),
        )

    def forward(self, x):
        d = x.shape[1]
        L = torch.tril(self.net(self.centers).view(-1, d, d)) + torch.eye(d)
        P = L @ L.transpose(1, 2)
        pull = torch.einsum('kde,bke->bkd', P, self.centers - x[:, None])
        logs = L.diagonal(dim1=1, dim2=2).abs().log().sum(1) - 0.5 * (pull * (self.centers - x[:, None])).sum(
            -1
        )
        w = logs.softmax(1)
        score = torch.einsum('bk,bkd->bd', w, pull)
        divergence = (w * (pull.square().sum(-1) - P.diagonal(dim1=1, dim2=2).sum(1))).sum(
            1
        ) - score.square().sum(1)
        return (0.5 * score.square().sum(1) + divergence).mean()


FAMILIES = {  # (model, batch of inputs and targets, loss)
    'conv net': (ConvNet, lambda: (torch.randn(32, 3, 64, 64), torch.randint(100, (32,))), F.cross_entropy),
    'TransformerEncoder': (
        Encoder,
        lambda: (torch.randint(1000, (8, 128)), torch.randint(1000, (8 * 128,))),
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y),
    ),
    'Llama-style, GQA, SwiGLU': (
        Llama,
        lambda: (torch.randint(2000, (8, 128)), torch.randint(2000, (8 * 128,))),
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y),
    ),
    'WPO factor net': (FactorNet, lambda: (torch.randn(32, 48), torch.zeros(())), lambda out, y: out),
}


def family_functions(family, optimizer, half, before=lambda: None, read=True):
    "Model, optimizer and step function of the model `family`"
    model_fn, batch_fn, loss_fn = FAMILIES[family]

    def step_fn(model, opt):
        x, y = batch_fn()
        opt.zero_grad()
        before()
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            loss = loss_fn(model(x), y)
        loss.backward()
        if read:
            loss.item()
        del loss
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    return model_fn, lambda params: make_optimizer(optimizer, params), step_fn


def look_at_family(family, optimizer, half):
    "The truth of one model that isn't a GPT, and what can be said of it"
    truth = measure_step(*family_functions(family, optimizer, half))
    n, largest = count_layers(FAMILIES[family][0]())
    ways = {
        'simulate': lambda: simulate(*family_functions(family, optimizer, half)).peak,
        **{name: lambda name=name: BY_PARAMETERS[name](n, largest, half) for name in BY_PARAMETERS},
        'memtracker': lambda: say_memtracker(
            lambda before, read: family_functions(family, optimizer, half, before, read)
        ),
    }
    return {
        'family': family,
        'optimizer': optimizer,
        'use_mixed_precision': half,
        'params': n,
        **compare(truth, ways),
    }


def run_families(args):
    "Models that aren't GPTs"
    todo = [(f, o, half) for f in FAMILIES for half in (False, True) for o in OPTIMIZERS]
    if args.small:
        todo = todo[::4]
    rows = [look_at_family(*t) for t in progress(todo, desc='models')]
    summary, places = print_summary(f'families: {len(rows)} steps, error of the predicted peak', rows)
    print(
        f'\n  {"":26} {"params":>7} {"optimizer":10} {"bf16":5} {"true peak":>10} {"simulate":>9}'
        f' {"memtracker":>11}'
    )

    def say(r, name):
        return f"{r['errors'][name]:+.3%}" if name in r['errors'] else 'failed'

    for r in rows:
        print(
            f"  {r['family']:26} {format_count(r['params']):>7} {r['optimizer']:10}"
            f" {r['use_mixed_precision']!s:5} {format_size(r['peak']):>10} {say(r, 'simulate'):>9}"
            f" {say(r, 'memtracker'):>11}"
        )
    return {
        'summary': summary,
        'peaks': places,
        'peers': {name: asdict(p) for name, p in PEERS.items() if name != 'eleuther'},
        'threads': torch.get_num_threads(),
        'models': rows,
    }


# --------------------------------------------------------------------------------------------------
# main

COMMANDS = {'grid': run_grid, 'random': run_random, 'families': run_families}


def parse_args(argv):
    p = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument('command', choices=COMMANDS)
    p.add_argument('--small', action='store_true', help='a few configurations, and nothing is written')
    p.add_argument('--seed', type=int, default=0, help='of random')
    p.add_argument('--n', type=int, default=100, help='configurations of random')
    p.add_argument('--results', help='folder for the results; by default `results` of the checkout')
    return p.parse_args(argv)


def main(argv=None):
    warnings.filterwarnings('ignore')
    args = parse_args(argv)
    started = time.perf_counter()
    values = COMMANDS[args.command](args)
    print(f'{args.command}: {time.perf_counter() - started:.0f} s in all')
    if args.small:
        return
    given = f' --seed {args.seed} --n {args.n}' if args.command == 'random' else ''
    result = save_result(
        f'memory_{args.command}', values, f'python benchmarks/memory.py {args.command}{given}', args.results
    )
    print(result.stamp)


if __name__ == '__main__':
    main()
