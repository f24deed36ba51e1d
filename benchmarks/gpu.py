#!/usr/bin/env python3
"""Everything that the page on a GPU of your own wants to know of it, in one command.

    # with a CUDA GPU; all parts without PART
    python benchmarks/gpu.py [PART ...] [--card rtx3090] [--minutes 10] [--nanogpt DIR]
    python benchmarks/gpu.py --tiny --device cpu  # small shapes on the CPU, to see whether it runs

memory      peaks of 72 steps, predicted beforehand and measured (benchmarks/gpu_memory.py)
techniques  peak, speed and utilisation of every technique, GPT-2 124M (gpu_training.py ablation)
largest     the largest micro-batch within 24 GB, GPT-2 124M (gpu_training.py largest)
loss        head and loss, in chunks and by fused kernels (gpu_training.py loss)
nanogpt     beside nanoGPT's own loop; needs --nanogpt (gpu_training.py nanogpt)
fits        the largest micro-batch of four sizes of GPT-2 within the memory of --card
copies      what the bus carries, ordinary and page-locked
feeding     what the loader delivers onto the device, against the limit
wpo         the strategies of WPO-SGM in 3,072 dimensions, within the memory of --card

Each part runs in a process of its own and writes `results/gpu_*.json` as it goes. One that fails is told at
the end, the others go on; the exit status is then 1. With --tiny the results are shown and not kept, unless
--results names a folder for them."""

from __future__ import annotations

import argparse, statistics, subprocess, sys, tempfile, time, warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from gpu_tools import (
    PARTS,
    card_rates,
    describe_device,
    describe_failure,
    find_bus,
    fits_memory,
    limit_memory,
    measure_copies,
    measure_feeding,
    measure_strategies,
    search_largest,
    show_recorded,
    time_steps,
)

from memtrain.ablation import list_techniques, predict_peak
from memtrain.core import MIB, MemtrainError, load_result, results_dir, save_result
from memtrain.devices import DEVICES, find_device
from memtrain.model import GPTConfig, named_config
from memtrain.plan import MARGIN, find_largest
from memtrain.shards import ShardWriter, TokenShards
from memtrain.train import TrainConfig
from memtrain.wpo_train import choose_strategy, measure_rates

HERE = Path(__file__).resolve().parent
SIZES = {'124M': 'gpt2', '355M': 'gpt2-medium', '774M': 'gpt2-large', '1.5B': 'gpt2-xl'}
TINY = GPTConfig(vocab_size=512, block_size=64, n_layer=2, n_head=2, n_embd=64)
FITS = ('plain', '8-bit AdamW', 'checkpointing, loss in chunks', 'all together', 'all, optimizer in backward')


# --------------------------------------------------------------------------------------------------
# the parts that are measured here


def budget_of(args):
    "Bytes that tensors may take: those of the card that is asked for, or of this one, if it has less"
    if args.tiny:
        return 8 * MIB
    total = describe_device(args.device)['total']
    return min(find_device(args.card).capacity, total)


def guess_largest(shape, settings, budget, kind):
    """The predicted micro-batch; where the closed form doesn't know a setting, a simulation takes seconds, so
    from two of them along a line"""

    def need(n):
        return predict_peak(shape, TrainConfig(**{'grad_clip': 0.0, **settings, 'batch_size': n}), kind)

    (a, how), (b, _) = need(1), need(2)
    if how == 'closed form':
        return find_largest(lambda n: need(n)[0], budget)
    return max(0, 1 + int((budget - a) / max(1, b - a))) if a <= budget else 0


def measure_fits(args):
    "Predicted and found: the largest micro-batch of each model with each technique"
    budget, kind = budget_of(args), args.device.split(':')[0]
    shapes = {'tiny': TINY} if args.tiny else {label: named_config(name) for label, name in SIZES.items()}
    every, rows = list_techniques(8, 64 if args.tiny else 1024), []
    for label, shape in shapes.items():
        for name in FITS:
            row = {
                'model': label,
                'technique': name,
                'predicted': guess_largest(shape, every[name], int(budget * (1 - MARGIN)), kind),
            }
            rows.append(row)
            if args.left() < 60:
                row['failed'] = 'no time left'
            else:
                row.update(find_largest_here(shape, every[name], row['predicted'], budget, args.device))
            print(row, flush=True)
            args.save({'budget': budget, 'rows': rows})


def find_largest_here(shape, settings, guess, budget, device):
    "The largest micro-batch that trains within `budget`, and its speed"

    def config(n):
        return TrainConfig(**{'grad_clip': 0.0, **settings, 'batch_size': n})

    try:
        found = {'largest': search_largest(lambda n: fits_memory(shape, config(n), budget, device), guess)}
        if found['largest']:
            with limit_memory(budget, device):
                seconds = time_steps(shape, config(found['largest']), device, steps=3, warm=2)
            found['tokens_per_second'] = found['largest'] * shape.block_size / statistics.median(seconds)
        return found
    except Exception as e:
        return {'failed': describe_failure(e)}


def measure_bus(args):
    "Copies of many sizes"
    rows, bus = [], find_bus(args.device) if args.device != 'cpu' else None
    for power in (12, 16) if args.tiny else range(12, 30, 2):
        rows.append(
            {'size': 2**power, 'rates': measure_copies(2**power, args.device, 5 if args.tiny else 15)}
        )
        args.save({'bus': bus, 'rows': rows})


def measure_loader(args):
    "Ids on disk, through the loader, onto the device"
    batch_size, block_size, batches = (4, 64, 20) if args.tiny else (16, 1024, 400)
    with tempfile.TemporaryDirectory() as d:
        with ShardWriter(d, vocab_size=50257) as w:
            ids = np.random.default_rng(0).integers(0, 50257, (batches + 8) * batch_size * block_size + 1)
            w.write(ids.astype(np.uint16))
        rates = measure_feeding(TokenShards(d), batch_size, block_size, args.device, batches, args.rounds)
    args.save({'batch_size': batch_size, 'block_size': block_size, 'batches': batches, 'rates': rates})


def measure_wpo(args):
    "Every strategy that fits, for few, many and very many centers"
    budget, rates, rows = (
        budget_of(args),
        card_rates('cpu') if args.device == 'cpu' else measure_rates(args.device),
        [],
    )
    dim, batch_size = (48, 8) if args.tiny else (3072, 64)
    for centers in (30, 100) if args.tiny else (64, 1000, 50_000):
        choice = choose_strategy(dim, centers, batch_size, int(budget * (1 - MARGIN)), rates=rates)
        # each with a network of its own: what fails leaves nothing behind
        for row in (r for r in choice.rows if r['fits']):
            if 5 * row['seconds'] > args.left():
                continue
            one, tries = replace(choice, rows=[row]), 1 if row['seconds'] > 10 else 3
            with limit_memory(budget, args.device):
                found = measure_strategies(one, dim, centers, batch_size, device=args.device, tries=tries)
            rows += [{'centers': centers, **r} for r in found]
            print(rows[-1], flush=True)
            args.save(
                {'dim': dim, 'batch_size': batch_size, 'budget': budget, 'rates': vars(rates), 'rows': rows}
            )


INSIDE = {'fits': measure_fits, 'copies': measure_bus, 'feeding': measure_loader, 'wpo': measure_wpo}


# --------------------------------------------------------------------------------------------------
# one after another


def profile_here(device):
    "The key of `DEVICES` whose workspaces this GPU has"
    card = describe_device(device)['card']
    return card if card in DEVICES else 'h100' if torch.cuda.get_device_capability(device)[0] == 9 else 'a100'


def memory_commands(args):
    "Predict, unless it was done for such a card, and measure"
    common = ['--results', args.results] + (
        ['--tiny', '--device', 'cpu'] if args.device == 'cpu' else ['--tiny'] if args.tiny else []
    )
    measure = [HERE / 'gpu_memory.py', 'measure', '--minutes', args.minutes, *common]
    if args.device == 'cpu':
        return [[HERE / 'gpu_memory.py', 'predict', *common], measure]
    profile = profile_here(args.device)
    try:
        made_for = load_result('gpu_memory_predicted', args.results).values['profile']
    except MemtrainError:
        made_for = {}
    if made_for.get('workspace') == DEVICES[profile].workspace and not args.tiny:
        return [measure]
    return [[HERE / 'gpu_memory.py', 'predict', '--profile', profile, *common], measure]


def training_command(args, which):
    "A command of `gpu_training.py`"
    command = [
        HERE / 'gpu_training.py',
        which,
        '--device',
        args.device,
        '--minutes',
        args.minutes,
        '--rounds',
        args.rounds,
        '--results',
        args.results,
    ]
    return (
        command
        + (['--small'] if args.tiny else [])
        + (['--nanogpt', args.nanogpt] if which == 'nanogpt' else [])
    )


def commands_of(args, part):
    "What is run for `part`: lists of a script and its arguments"
    if part == 'memory':
        return memory_commands(args)
    if part in INSIDE:
        given = [
            HERE / 'gpu.py',
            part,
            '--in_process',
            '--device',
            args.device,
            '--card',
            args.card,
            '--minutes',
            args.minutes,
            '--rounds',
            args.rounds,
            '--results',
            args.results,
        ]
        return [given + ['--tiny'] * args.tiny]
    return [training_command(args, {'techniques': 'ablation'}.get(part, part))]


def run_parts(args):
    "Every part in a process of its own; gives those that failed"
    failed = {}
    for part in args.parts:
        print(f'\n=== {part}: {PARTS[part].question}', flush=True)
        for command in commands_of(args, part):
            code = subprocess.run([sys.executable, *map(str, command)]).returncode
            if code:
                failed[part] = f'exit status {code}'
                break
    for part in args.parts:
        print(f'\n=== {part}: {PARTS[part].question}')
        try:
            show_recorded(part, args.results)
        # what was saved of it isn't enough for a table
        except Exception as e:
            failed.setdefault(part, f'{type(e).__name__}: {e}')
    for part, why in failed.items():
        print(f'\nfailed: {part}, {why}')
    return failed


def run_inside(args):
    "One part, here"
    part, started = args.parts[0], time.perf_counter()
    args.left = lambda: 60 * args.minutes - (time.perf_counter() - started)
    about = describe_device(args.device)
    command = f'python benchmarks/gpu.py {part}' + (f' --card {args.card}' if part in ('fits', 'wpo') else '')
    args.save = lambda values: save_result(PARTS[part].result, {**about, **values}, command, args.results)
    INSIDE[part](args)


def parse_args(argv=None):
    p = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument(
        'parts',
        nargs='*',
        metavar='PART',
        help=f"of {', '.join(PARTS)}; by default all, nanogpt only with --nanogpt",
    )
    p.add_argument('--device', default='cuda', help='cuda, or cpu with --tiny')
    p.add_argument(
        '--card',
        default='rtx3090',
        help=(
            'whose memory `fits` and `wpo` stay within, if this one has more: a key of DEVICES, or a size'
            ' such as 24gb'
        ),
    )
    p.add_argument(
        '--minutes', type=float, default=10, help='of each part, after which what is left of it is skipped'
    )
    p.add_argument('--rounds', type=int, default=3)
    p.add_argument('--nanogpt', type=Path, help='folder of a nanoGPT checkout')
    p.add_argument('--tiny', action='store_true', help='small shapes; kept only where --results is given')
    p.add_argument('--results', help='folder of the results; by default `results` of the checkout')
    p.add_argument('--in_process', action='store_true', help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    if unknown := [name for name in args.parts if name not in PARTS]:
        p.error(f"{unknown[0]} is not a part: take of {', '.join(PARTS)}")
    if args.device == 'cpu' and not args.tiny:
        p.error('--device cpu is for --tiny')
    if args.device != 'cpu' and not torch.cuda.is_available():
        p.error('no CUDA GPU here: try --tiny --device cpu')
    if 'nanogpt' in args.parts and not args.nanogpt:
        p.error('nanogpt needs --nanogpt, the folder of a checkout of github.com/karpathy/nanoGPT')
    args.parts = args.parts or [name for name in PARTS if name != 'nanogpt' or args.nanogpt]
    return args


def main(argv=None):
    warnings.filterwarnings('ignore')
    args = parse_args(argv)
    if args.in_process:
        return run_inside(args)
    with tempfile.TemporaryDirectory() as d:
        args.results = args.results or (d if args.tiny else str(results_dir()))
        Path(args.results).mkdir(parents=True, exist_ok=True)
        if run_parts(args):
            sys.exit(1)


if __name__ == '__main__':
    main()
