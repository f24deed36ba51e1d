#!/usr/bin/env python3
"""Every technique for training in less memory, alone and together, on one small model: bytes, seconds and
losses.

    python benchmarks/ablation.py [--iters 150] [--rounds 15] [--workers 2] [--name ablation]

Prepares the modules of Python's standard library (a vocabulary of 2,048) in a temporary folder, measures
every technique of `memtrain.ablation.list_techniques`, each in a fresh process, prints the table, and
writes `results/NAME.json`. Steps are timed on one thread, and while nothing else of this runs; the runs,
whose time doesn't count, take a thread each and `--workers` of them go side by side."""

from __future__ import annotations

import argparse, sysconfig, tempfile, time
from dataclasses import replace
from pathlib import Path

from memtrain.ablation import COMMON, REFERENCE, list_techniques, run_ablation
from memtrain.core import MemtrainError
from memtrain.prepare import prepare

SMALL = dict(n_layer=2, n_head=2, n_embd=32, block_size=32)  # of --small


def parse_args(argv=None):
    p = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument('--iters', type=int, default=150, help='steps of each run; 0 for none')
    p.add_argument('--rounds', type=int, default=15, help='in which steps are timed')
    p.add_argument('--threads', type=int, default=1, help='of a step that is timed, and of a run')
    p.add_argument('--workers', type=int, default=2, help='runs side by side')
    p.add_argument(
        '--grad_clip',
        type=float,
        default=COMMON['grad_clip'],
        help='largest norm of the gradient in the runs; 0 for any',
    )
    p.add_argument(
        '--only',
        action='append',
        help='techniques whose name contains this, besides the plain step; may be given again',
    )
    p.add_argument(
        '--data',
        help=(
            "a data set to train on, prepared with a vocabulary of 2,048; by default Python's standard"
            " library"
        ),
    )
    p.add_argument(
        '--small',
        action='store_true',
        help='a tiny model on little data, to see whether it runs; writes nothing unless --name is given',
    )
    p.add_argument('--name', help='of the result; `ablation` by default')
    p.add_argument('--results', help='folder of the results; by default `results` of the checkout')
    return p.parse_args(argv)


def prepare_stdlib(folder, vocab_size, pattern='*.py'):
    "Python's standard library as token shards"
    return prepare(f"{sysconfig.get_paths()['stdlib']}/{pattern}", folder, vocab_size=vocab_size)


def command_of(args):
    "What to run to measure it again"
    given = [
        f'--{k} {getattr(args, k)}'
        for k, default in (
            ('iters', 150),
            ('rounds', 15),
            ('threads', 1),
            ('workers', 2),
            ('grad_clip', COMMON['grad_clip']),
        )
        if getattr(args, k) != default
    ]
    given += (
        [f"--only '{x}'" for x in args.only or ()]
        + ['--small'] * args.small
        + ([f'--name {args.name}'] if args.name else [])
    )
    return ' '.join(['python benchmarks/ablation.py', *given])


def main(argv=None):
    args = parse_args(argv)
    shape, batch, pattern = REFERENCE, COMMON['batch_size'], '*.py'
    if args.small:
        shape, batch, pattern = replace(REFERENCE, vocab_size=512, **SMALL), 8, '[a-d]*.py'
    common = {
        **COMMON,
        'batch_size': batch,
        'max_iters': max(1, args.iters),
        'warmup_iters': args.iters // 10,
        'checkpoint_interval': max(1, args.iters),
        'grad_clip': args.grad_clip,
    }
    techniques = list_techniques(batch, 64 if args.small else 256)
    # which knows no norm
    if args.grad_clip:
        techniques = {n: s for n, s in techniques.items() if not s.get('optimizer_in_backward')}
    if args.only:
        techniques = {n: s for n, s in techniques.items() if not s or any(x in n for x in args.only)}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        data = (
            args.data or args.iters and prepare_stdlib(Path(folder) / 'data', shape.vocab_size, pattern).path
        )
        found = run_ablation(shape, techniques, common, data or None, args.rounds, args.threads, args.workers)
    print(found)
    if found.rows[0].val:
        print(
            f'plain from another start: {found.other_start:.4f},'
            f' {found.other_start / found.rows[0].val_loss - 1:+.2%}'
        )
    print(f'{time.perf_counter() - started:.0f} s in all')
    if args.name or not args.small:
        print(found.save(args.name or 'ablation', command_of(args), args.results).stamp)


if __name__ == '__main__':
    try:
        main()
    except MemtrainError as e:
        raise SystemExit(f'error: {e}')
