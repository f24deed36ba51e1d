#!/usr/bin/env python3
"""Training GPT-2 124M on a GPU: every technique, beside nanoGPT's own loop, in 24 GB, and the loss in
chunks beside fused kernels.

    python benchmarks/gpu_training.py ablation|largest|nanogpt|loss|all [--nanogpt DIR] [--batch_size 8] \\
      [--rounds 3] [--minutes 8]
    # a tiny shape, to see whether it runs; prints, writes nothing
    python benchmarks/gpu_training.py all --small --device cpu

ablation  every technique of `memtrain.ablation`, and those that only a GPU has: peak (predicted, measured),
          tokens/s, model FLOPs utilisation
largest   the largest micro-batch that trains within 24 GiB, for some of them, and for nanoGPT
nanogpt   `Trainer` and the train.py of a nanoGPT checkout (--nanogpt) on the same model, batch and card, in
          turns, each in a fresh process
loss      head and loss alone, forward and backward: plain, in chunks, in torch's chunks, Liger,
          cut-cross-entropy (where installed)

Each writes `results/gpu_training_<name>.json` as it goes, so that a run that is cut off has lost only the
rest. Matrix products in float32 may use TF32, as nanoGPT lets them. Utilisation is of the card's dense
bfloat16 rate (`memtrain.devices.DEVICES`), whatever the type, by `memtrain.step_time.flops_per_token`:
recomputed operations don't count."""

from __future__ import annotations

import argparse, importlib, importlib.util, json, pickle, re, statistics, sys, tempfile, time, traceback
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from gpu_tools import (
    clear_device,
    describe_device,
    describe_failure,
    fits_memory,
    limit_memory,
    peak_of_steps,
    search_largest,
    time_steps,
    utilisation,
)

from memtrain.ablation import list_techniques, predict_peak
from memtrain.core import MIB, format_size, parse_size, progress, save_result
from memtrain.devices import find_device
from memtrain.loader import TokenLoader
from memtrain.measure import measure_command, measure_peak
from memtrain.model import GPT, GPTConfig, chunked_cross_entropy
from memtrain.tokenization import ByteTokenizer
from memtrain.shards import ShardWriter, TokenShards
from memtrain.train import TrainConfig, Trainer, TrainingData

# 124M, the vocabulary padded as in nanoGPT
GPT2 = GPTConfig(vocab_size=50304, block_size=1024, n_layer=12, n_head=12, n_embd=768)
TINY = GPTConfig(vocab_size=512, block_size=64, n_layer=2, n_head=2, n_embd=64)
COMMON = dict(grad_clip=0.0, max_iters=1000, warmup_iters=10)
LARGEST = (
    'plain',
    'bf16 autocast',
    'checkpointing, loss in chunks',
    'all together',
    'all, optimizer in backward',
)


# --------------------------------------------------------------------------------------------------
# the device


class Device:
    "What is asked of a GPU, or of the CPU that stands in for one in a try"

    def __init__(self, name):
        self.name, self.cuda = name, name.startswith('cuda')
        if self.cuda and not torch.cuda.is_available():
            raise SystemExit('no CUDA GPU here: try --small --device cpu')
        torch.set_float32_matmul_precision('high')
        found = describe_device(name)
        self.title, self.card, self.total = found['device'], found['card'], found['total']

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def clear(self):
        clear_device(self.name)


def tried(fn, *args):
    "(what `fn` gives, None), or (None, its error in a line)"
    try:
        return fn(*args), None
    except Exception as e:
        if not isinstance(e, torch.OutOfMemoryError):
            traceback.print_exc(limit=3)
        return None, describe_failure(e)


# --------------------------------------------------------------------------------------------------
# ablation


def techniques_of(args):
    "Name: `TrainConfig`, at the batch size asked for"
    found = list_techniques(args.batch_size, args.loss_chunk_size)
    found['fp16 autocast, scaled'] = dict(use_mixed_precision=True, autocast_dtype='float16')
    if args.device.cuda:
        found['8-bit AdamW, paged'] = dict(use_8bit_optimizer=True, paged_optimizer=True)
    return {name: TrainConfig(**{**COMMON, 'batch_size': args.batch_size, **s}) for name, s in found.items()}


def run_ablation(args):
    "Peaks one after another, then rounds in which every technique takes some steps"
    device, shape, techniques = args.device, args.shape, techniques_of(args)
    rows, values = {}, start_values(args, techniques=sorted(techniques))
    values['rows'] = rows
    for name, c in progress(techniques.items(), total=len(techniques), desc='peaks'):
        row = rows[name] = {'config': asdict(c), 'seconds': []}
        (found, failed), predicted = (
            tried(peak_of_steps, shape, c, device.name),
            tried(predict_peak, shape, c, 'cuda' if device.cuda else 'cpu')[0],
        )
        if found:
            row['peak'], row['reserved'] = found
        if failed:
            row['failed'] = failed
        if predicted:
            row['predicted'], row['predictor'] = predicted
        args.write('ablation', values)
    for i in range(args.rounds):
        for name, c in progress(techniques.items(), total=len(techniques), desc=f'round {i + 1}'):
            if 'failed' in rows[name]:
                continue
            if args.left() < 30:
                break
            seconds, failed = tried(time_steps, shape, c, device.name, args.steps)
            if failed:
                rows[name]['failed'] = failed
            else:
                rows[name]['seconds'].append(statistics.median(seconds))
            args.write('ablation', values)
    finish_speeds(rows, shape, args.batch_size, device)
    args.write('ablation', values)
    print_rows(rows)


def finish_speeds(rows, shape, batch_size, device):
    "Tokens a second and utilisation of each row, from the medians of its rounds"
    for row in rows.values():
        if not row.get('seconds'):
            continue
        row['tokens_per_second'] = batch_size * shape.block_size / statistics.median(row['seconds'])
        row['mfu'] = utilisation(shape, row['tokens_per_second'], device.card)


def print_rows(rows):
    "The table"
    base = next(iter(rows.values()))
    print(
        f"{'':34}{'predicted':>12}{'measured':>12}{'of first':>10}{'tokens/s':>12}{'of first':>10}{'MFU':>8}"
    )
    for name, r in rows.items():
        if 'failed' in r:
            print(f"{name:34} failed: {r['failed']}")
            continue

        def cell(key, text, width):
            return f"{text(r[key]) if r.get(key) is not None else '-':>{width}}"

        speed = (
            r['tokens_per_second'] / base['tokens_per_second']
            if 'tokens_per_second' in r and 'tokens_per_second' in base
            else None
        )
        share = f"{r['peak'] / base['peak']:.0%}" if r.get('peak') and base.get('peak') else '-'
        print(
            f"{name:34}{cell('predicted', format_size, 12)}{cell('peak', format_size, 12)}{share:>10}"
            f"{cell('tokens_per_second', '{:,.0f}'.format, 12)}"
            f"{f'{speed:.2f}' if speed else '-':>10}{cell('mfu', '{:.1%}'.format, 8)}"
        )


# --------------------------------------------------------------------------------------------------
# largest


def guess_largest(shape, settings, device, budget):
    "What the prediction says: from two sizes, along a line"

    def need(n):
        return predict_peak(
            shape, TrainConfig(**{**COMMON, **settings, 'batch_size': n}), 'cuda' if device.cuda else 'cpu'
        )[0]

    a, b = need(4), need(8)
    return max(1, int(4 + 4 * (budget * 0.97 - a) / max(1, b - a)))


def run_largest(args):
    "Where the budget ends, for each of `LARGEST` and for nanoGPT"
    device, shape, budget = args.device, args.shape, args.budget
    every, rows = list_techniques(args.batch_size, args.loss_chunk_size), {}
    values = start_values(args, budget=budget)
    values['rows'] = rows
    for name in progress(LARGEST, desc='largest'):
        if args.left() < 30:
            break
        settings = every[name]
        start = guess_largest(shape, settings, device, budget)
        found, failed = tried(
            search_largest,
            lambda n: fits_memory(
                shape, TrainConfig(**{**COMMON, **settings, 'batch_size': n}), budget, device.name
            ),
            start,
        )
        rows[name] = {'guess': start, 'largest': found} if not failed else {'failed': failed}
        if found:
            with limit_memory(budget, device.name):
                seconds = time_steps(
                    shape, TrainConfig(**{**COMMON, **settings, 'batch_size': found}), device.name, args.steps
                )
            rows[name]['tokens_per_second'] = found * shape.block_size / statistics.median(seconds)
        args.write('largest', values)
    if args.nanogpt:
        with tempfile.TemporaryDirectory() as d:
            folder = prepare_nanogpt(args, Path(d))

            def trains(n):
                return not run_nanogpt(args, folder, n, iters=2, compiled=False, budget=budget)[1]

            guess = rows.get('bf16 autocast', {}).get('largest') or args.batch_size
            found, failed = tried(search_largest, trains, guess)
            rows['nanoGPT'] = {'guess': guess, 'largest': found} if not failed else {'failed': failed}
            args.write('largest', values)
    print(f'largest micro-batch of {shape.block_size} tokens within {format_size(budget)}')
    for name, r in rows.items():
        print(
            f"  {name:34} {r.get('largest', r.get('failed'))}"
            + (f", {r['tokens_per_second']:,.0f} tokens/s" if 'tokens_per_second' in r else '')
        )


# --------------------------------------------------------------------------------------------------
# nanoGPT

WRAPPER = '''
import json, runpy, sys, torch
script, folder, budget = sys.argv[1], sys.argv[2], float(sys.argv[3])
if budget and torch.cuda.is_available():
    share = budget / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, share))
sys.argv, sys.path[0] = [script, *sys.argv[4:]], folder
runpy.run_path(script, run_name='__main__')
cuda = torch.cuda if torch.cuda.is_available() else None
peak, reserved = cuda and cuda.max_memory_allocated(), cuda and cuda.max_memory_reserved()
print(json.dumps({'peak': peak, 'reserved': reserved}))
'''


def prepare_nanogpt(args, folder):
    "A folder to run nanoGPT's train.py in, with random ids as its data; nothing is written into its own"
    data, ids = (
        folder / 'data' / 'bench',
        np.random.default_rng(0).integers(
            0, args.shape.vocab_size, 200 * (args.shape.block_size + 1) * 8, dtype=np.uint16
        ),
    )
    data.mkdir(parents=True)
    for split in ('train', 'val'):
        ids.tofile(data / f'{split}.bin')
    (data / 'meta.pkl').write_bytes(pickle.dumps({'vocab_size': args.shape.vocab_size}))
    # read from the current folder
    if (configurator := args.nanogpt / 'configurator.py').exists():
        (folder / 'configurator.py').symlink_to(configurator)
    return folder


def run_nanogpt(args, folder, batch_size, iters, compiled, budget=0):
    "(what nanoGPT's train.py prints of itself, None) or (None, why not)"
    s = args.shape
    flags = dict(
        dataset='bench',
        batch_size=batch_size,
        block_size=s.block_size,
        n_layer=s.n_layer,
        n_head=s.n_head,
        n_embd=s.n_embd,
        dropout=0.0,
        bias=False,
        gradient_accumulation_steps=1,
        max_iters=iters,
        log_interval=1,
        eval_interval=10**6,
        eval_iters=1,
        device=args.device.name,
        dtype='bfloat16',
        compile=compiled,
        wandb_log=False,
        out_dir='out',
    )
    argv = [
        sys.executable,
        '-c',
        WRAPPER,
        args.nanogpt / 'train.py',
        args.nanogpt,
        str(budget),
        *(f'--{k}={v}' for k, v in flags.items()),
    ]
    run = measure_command(argv, interval=0.2, timeout=max(60, args.left()), cwd=folder)
    if run.returncode:
        return None, (run.stderr.strip() or 'killed').splitlines()[-1][:300]
    ms = [float(x) for x in re.findall(r'^iter \d+: .*?time ([\d.]+)ms', run.stdout, re.M)]
    return {'seconds': [x / 1000 for x in ms], **json.loads(run.stdout.strip().splitlines()[-1])}, None


def train_here(shape, config, device, data, iters, compiled):
    """What `Trainer` takes for `iters` steps: seconds from the end of one to the end of the next, and its
    peak; runs in a process of its own"""
    device, shape, config = Device(device), GPTConfig(**shape), TrainConfig(**config)
    shards = TokenShards(data)
    loaders = [TokenLoader(shards, config.batch_size, shape.block_size, seed=0) for _ in range(2)]
    held = TrainingData(*loaders, ByteTokenizer(), 'random ids', '', {})
    with tempfile.TemporaryDirectory() as d:
        with torch.device(device.name):
            model = GPT(shape)
        trainer = Trainer(model, held, config, Path(d) / 'run', device.name)
        if compiled:
            model.loss = torch.compile(model.loss)
        trainer.memory.take = lambda: 0  # which would begin a new peak with each step
        device.clear()
        seconds = []
        for _ in range(iters + 1):
            started = time.perf_counter()
            trainer.step()
            seconds.append(time.perf_counter() - started)
    peaks = (
        (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if device.cuda else (None, None)
    )
    return {'seconds': seconds, 'peak': peaks[0], 'reserved': peaks[1]}


def run_ours(args, data, config, iters, compiled):
    "`train_here` in a fresh process"
    code = (
        'import json, sys; sys.path.insert(0, sys.argv[1]); import gpu_training as g;'
        ' print(json.dumps(g.train_here(**json.loads(sys.argv[2]))))'
    )
    given = dict(
        shape=asdict(args.shape),
        config=asdict(config),
        device=args.device.name,
        data=str(data),
        iters=iters,
        compiled=compiled,
    )
    run = measure_command(
        [sys.executable, '-c', code, Path(__file__).resolve().parent, json.dumps(given)],
        interval=0.2,
        timeout=max(60, args.left()),
    )
    if run.returncode:
        return None, (run.stderr.strip() or 'killed').splitlines()[-1][:300]
    return json.loads(run.stdout.strip().splitlines()[-1]), None


def run_beside_nanogpt(args):
    """`Trainer` and nanoGPT's loop in turns, plain autocast, with and without torch.compile; and ours with
    the techniques"""
    if not args.nanogpt:
        raise SystemExit('nanogpt: give --nanogpt, the folder of a checkout of github.com/karpathy/nanoGPT')
    # nanoGPT clips too
    every, base = (
        list_techniques(args.batch_size, args.loss_chunk_size),
        {**COMMON, 'grad_clip': 1.0, 'batch_size': args.batch_size},
    )
    skip, iters = 5, 5 + 2 * args.steps
    rows, values = {}, start_values(args, iters=iters, skipped=skip)
    values['rows'] = rows
    with tempfile.TemporaryDirectory() as d:
        folder, shards = prepare_nanogpt(args, Path(d) / 'theirs'), Path(d) / 'ours'
        with ShardWriter(shards, vocab_size=args.shape.vocab_size) as w:
            w.write(np.fromfile(folder / 'data/bench/train.bin', np.uint16))

        def ours(name, compiled=False):
            return lambda: run_ours(args, shards, TrainConfig(**{**base, **every[name]}), iters, compiled)

        ways = {
            'nanoGPT': lambda: run_nanogpt(args, folder, args.batch_size, iters, False),
            'memtrain, bf16 autocast': ours('bf16 autocast'),
            'memtrain, autocast and loss in chunks': lambda: run_ours(
                args,
                shards,
                TrainConfig(**{**base, **every['bf16 autocast'], **every['loss in chunks']}),
                iters,
                False,
            ),
            'memtrain, all together': ours('all together'),
        }
        if args.compile:
            ways |= {
                'nanoGPT, compiled': lambda: run_nanogpt(args, folder, args.batch_size, iters, True),
                'memtrain, bf16 autocast, compiled': ours('bf16 autocast', True),
            }
        for i in range(args.rounds):
            for name, run in progress(ways.items(), total=len(ways), desc=f'round {i + 1}'):
                row = rows.setdefault(name, {'seconds': []})
                if 'failed' in row or args.left() < 30:
                    continue
                found, failed = run()
                if failed:
                    row['failed'] = failed
                else:
                    row.update(
                        seconds=[*row['seconds'], statistics.median(found['seconds'][skip:])],
                        peak=found['peak'],
                        reserved=found['reserved'],
                    )
                args.write('nanogpt', values)
    finish_speeds(rows, args.shape, args.batch_size, args.device)
    args.write('nanogpt', values)
    print_rows(rows)


# --------------------------------------------------------------------------------------------------
# loss


def plain_loss(hidden, weight, targets):
    return F.cross_entropy((hidden @ weight.t()).float(), targets)


def peers_of_loss(args):
    "Name: function of (hidden, weight, targets), and why others aren't there"
    ways = {'plain': plain_loss}
    ways |= {
        f'memtrain, {n} tokens at a time': lambda h, w, t, n=n: chunked_cross_entropy(h, w, t, n)
        for n in (args.loss_chunk_size, 4 * args.loss_chunk_size)
    }
    missing = {}
    if hasattr(torch.nn, 'LinearCrossEntropyOptions'):  # from torch 2.13 on
        options = torch.nn.LinearCrossEntropyOptions()
        ways['torch, its own chunks'] = lambda h, w, t: F.linear_cross_entropy(h, w, t, options=options)
    try:
        liger = importlib.import_module('liger_kernel.transformers').LigerFusedLinearCrossEntropyLoss()
        ways['Liger'] = lambda h, w, t: liger(w, h, t)
    except Exception as e:
        missing['Liger'] = f'{type(e).__name__}: {e}'.splitlines()[0]
    try:
        cut = importlib.import_module('cut_cross_entropy').linear_cross_entropy
        ways['cut-cross-entropy'] = lambda h, w, t: cut(h, w, t)
    except Exception as e:
        missing['cut-cross-entropy'] = f'{type(e).__name__}: {e}'.splitlines()[0]
    return ways, missing


def run_loss(args):
    "Head and loss alone, in bfloat16, forward and backward, in turns"
    device, shape, N = args.device, args.shape, args.batch_size * args.shape.block_size
    torch.manual_seed(0)
    hidden = torch.randn(N, shape.n_embd, device=device.name, dtype=torch.bfloat16).requires_grad_()
    weight = (
        torch.randn(shape.vocab_size, shape.n_embd, device=device.name, dtype=torch.bfloat16) * 0.02
    ).requires_grad_()
    targets = torch.randint(shape.vocab_size, (N,), device=device.name)
    (ways, missing), rows = peers_of_loss(args), {}
    values = start_values(args, tokens=N, missing=missing)
    values['rows'] = rows
    exact = loss_and_slopes(
        plain_loss,
        hidden.detach().float().requires_grad_(),
        weight.detach().float().requires_grad_(),
        targets,
    )
    for name, fn in ways.items():

        def work(fn=fn):
            return loss_and_slopes(fn, hidden, weight, targets)

        found, failed = tried(work)
        rows[name] = {'seconds': []}
        if failed:
            rows[name]['failed'] = failed
            continue
        rows[name]['errors'] = [float((a.float() - b).norm() / b.norm()) for a, b in zip(found, exact)]
        del found
        device.clear()
        rows[name]['peak'] = measure_peak(work, 'cuda' if device.cuda else 'cpu')
        args.write('loss', values)
    for _ in range(max(5, args.rounds)):
        for name, fn in ways.items():
            if 'failed' in rows[name]:
                continue
            device.sync()
            started = time.perf_counter()
            loss_and_slopes(fn, hidden, weight, targets)
            device.sync()
            rows[name]['seconds'].append(time.perf_counter() - started)
    args.write('loss', values)
    print(f"{'':34}{'peak':>12}{'ms':>10}   relative errors of loss and both gradients, against float32")
    for name, r in rows.items():
        if 'failed' in r:
            print(f"{name:34} failed: {r['failed']}")
            continue
        print(
            f"{name:34}{format_size(r['peak']):>12}{1000 * statistics.median(r['seconds'][1:]):10.2f}   "
            + ', '.join(f'{e:.1e}' for e in r['errors'])
        )
    for name, why in missing.items():
        print(f'{name:34} not here: {why}')


def loss_and_slopes(fn, hidden, weight, targets):
    "Loss, and its gradients of features and weight"
    loss = fn(hidden, weight, targets)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


# --------------------------------------------------------------------------------------------------
# main

COMMANDS = {'ablation': run_ablation, 'largest': run_largest, 'nanogpt': run_beside_nanogpt, 'loss': run_loss}


def start_values(args, **more):
    "What every result begins with"
    return {
        'device': args.device.title,
        'card': args.device.card,
        'shape': asdict(args.shape),
        'batch_size': args.batch_size,
        'steps': args.steps,
        'rounds': args.rounds,
        'torch': torch.__version__,
        'cuda': torch.version.cuda,
        **more,
    }


def parse_args(argv=None):
    p = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument('command', choices=(*COMMANDS, 'all'))
    p.add_argument('--device', default='cuda', help='cuda, or cpu to try it')
    p.add_argument('--nanogpt', type=Path, help="folder of a nanoGPT checkout; it isn't written to")
    p.add_argument('--batch_size', type=int, help='windows of a micro-batch; 8, and 4 with --small')
    p.add_argument(
        '--loss_chunk_size', type=int, help='tokens whose logits exist at a time; 1024, and 64 with --small'
    )
    p.add_argument(
        '--budget', help='memory of `largest`, such as 24GiB; what a card of 24 GB has for tensors'
    )
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('--steps', type=int, help='timed steps of a round; 8, and 2 with --small')
    p.add_argument(
        '--minutes', type=float, default=8, help='after which what is left is skipped; for each command'
    )
    p.add_argument('--compile', action='store_true', help='nanogpt: both loops with torch.compile too')
    p.add_argument(
        '--small', action='store_true', help='a tiny shape; writes nothing unless --results is given'
    )
    p.add_argument('--results', help='folder of the results; by default `results` of the checkout')
    args = p.parse_args(argv)
    args.shape, args.device, tiny = TINY if args.small else GPT2, Device(args.device), args.small
    args.batch_size, args.loss_chunk_size, args.steps = (
        args.batch_size or (4 if tiny else 8),
        args.loss_chunk_size or (64 if tiny else 1024),
        args.steps or (2 if tiny else 8),
    )
    args.budget = (
        parse_size(args.budget) if args.budget else 12 * MIB if tiny else find_device('24gb').capacity
    )
    args.budget = min(args.budget, args.device.total or args.budget)  # a card of 24 GB has a little less
    if args.nanogpt:
        args.nanogpt = args.nanogpt.resolve()
    return args


def run_one(args, name):
    "One command, with its own time"
    started = time.perf_counter()
    args.left = lambda: 60 * args.minutes - (time.perf_counter() - started)
    command = (
        f'python benchmarks/gpu_training.py {name}'
        + (f' --batch_size {args.batch_size}' if args.batch_size != 8 else '')
        + (' --nanogpt DIR' if args.nanogpt else '')
    )

    def write(which, values):
        if not args.small or args.results:
            save_result(f'gpu_training_{which}', values, command, args.results)

    args.write = write
    print(f'\n{name}: {args.device.title}, {args.shape}, micro-batch {args.batch_size}', flush=True)
    COMMANDS[name](args)
    print(f'{name}: {time.perf_counter() - started:.0f} s', flush=True)


def main(argv=None):
    warnings.filterwarnings('ignore')
    args = parse_args(argv)
    for name in COMMANDS if args.command == 'all' else (args.command,):
        if name == 'nanogpt' and args.command == 'all' and not args.nanogpt:
            print('\nnanogpt: left out, no --nanogpt')
            continue
        run_one(args, name)


if __name__ == '__main__':
    main()
