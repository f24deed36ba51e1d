#!/usr/bin/env python3
"""Every technique for training in less memory, alone and together, on one small model: bytes, seconds and
losses.

    python benchmarks/ablation.py [--iters 150] [--rounds 15] [--workers 2] [--name ablation]

Prepares the modules of Python's standard library (a vocabulary of 2,048) in a temporary folder, measures
every technique of `memtrain.ablation.list_techniques`, each in a fresh process, prints the table, and
writes `results/NAME.json`. Steps are timed on one thread, and while nothing else of this runs; the runs,
whose time doesn't count, take a thread each and `--workers` of them go side by side."""

from __future__ import annotations

import argparse, json, sys, sysconfig, tempfile, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path

import torch

from memtrain.ablation import COMMON, REFERENCE, Ablation, Row, list_techniques, predict_peak
from memtrain.core import MemtrainError, progress, save_result, seed_everything
from memtrain.measure import measure_command, measure_step
from memtrain.model import GPT, GPTConfig
from memtrain.prepare import prepare
from memtrain.runs import read_metrics
from memtrain.shards import TokenShards
from memtrain.train import TrainConfig, Trainer, gpt_step

SMALL = dict(n_layer=2, n_head=2, n_embd=32, block_size=32)  # of --small


def configure(common, settings):
    "The `TrainConfig` of a technique; evaluated on as many windows, however they are cut"
    c, known = {**common, **settings}, {f.name for f in fields(TrainConfig)}
    if unknown := sorted(c.keys() - known):
        raise MemtrainError(
            f'{unknown[0]} is not a setting of TrainConfig: take one of {", ".join(sorted(known))}'
        )
    if 'eval_batches' in common:
        c['eval_batches'] = common['eval_batches'] * common['batch_size'] // c['batch_size']
    return TrainConfig(**c)


def measure_settings(
    shape: dict,  # fields of a `GPTConfig`
    settings: dict,  # of a `TrainConfig`
    device: str = 'cpu',  # or 'cuda'
) -> dict:  # bytes: `peak`, `by_category` at the peak, `by_phase`, `predicted`; and who says so
    "The true peak of a step with `settings`, and the predicted one"
    model, c = GPTConfig(**shape), TrainConfig(**settings)
    build, optimizer_fn, step_fn = gpt_step(model, c)
    trace = measure_step(lambda: build().to(device), optimizer_fn, step_fn, device=device)
    predicted, predictor = predict_peak(model, c, device.split(':')[0])
    return {
        'peak': trace.peak,
        'peak_op': trace.peak_op,
        'by_category': trace.by_category,
        'by_phase': trace.by_phase,
        'predicted': predicted,
        'predictor': predictor,
    }


def time_settings(
    shape: dict,  # fields of a `GPTConfig`
    techniques: dict[str, dict],  # name: settings of a `TrainConfig`
    rounds: int = 7,  # in each, every technique takes one step
    threads: int | None = 1,  # of torch; one of them is disturbed least by what else runs. None: as it is
    device: str = 'cpu',  # or 'cuda'
) -> dict[str, list[float]]:  # seconds of each step
    """How long steps of `techniques` take, in turns; the first two rounds, in which states are made, don't
    count"""
    if threads:
        torch.set_num_threads(threads)

    def prepare(c):
        build, optimizer_fn, step_fn = gpt_step(GPTConfig(**shape), c)
        model = build().to(device).train()
        optimizer = optimizer_fn([*model.parameters()])
        return lambda: step_fn(model, optimizer)

    work = {name: prepare(TrainConfig(**s)) for name, s in techniques.items()}
    found = [{name: seconds_of(step, device) for name, step in work.items()} for _ in range(rounds + 2)][2:]
    return {name: [r[name] for r in found] for name in work}


def seconds_of(work, device):
    "How long `work` takes, until the device has done it"
    started = time.perf_counter()
    work()
    if device != 'cpu':
        torch.cuda.synchronize()
    return time.perf_counter() - started


def train_settings(
    shape: dict,  # fields of a `GPTConfig`
    settings: dict,  # of a `TrainConfig`
    data: str,  # folder of a data set with splits 'train' and 'val'
    seed: int = 0,  # of the weights that the model begins with
    threads: int | None = 1,  # of torch; None: as it is
    device: str = 'cpu',  # or 'cuda'
) -> dict:  # `losses` of each step; `val`: (iteration, loss); `tokens` learnt from
    "What a run with `settings` learns from `data`"
    if threads:
        torch.set_num_threads(threads)
    seed_everything(seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(GPT(GPTConfig(**shape)), data, TrainConfig(**settings), Path(folder) / 'run', device)
        tokens, metrics = run.run()['tokens'], read_metrics(run.out / 'metrics.jsonl')
    return {
        'losses': [round(m['loss'], 6) for m in metrics if 'loss' in m],
        'val': [(m['iter'], m['val_loss']) for m in metrics if 'val_loss' in m],
        'tokens': tokens,
    }


def in_fresh_process(function, **kwargs):
    "What the function of this module called `function` gives for `kwargs`, in a process of its own"
    code = (
        'import json, sys; sys.path.insert(0, sys.argv[1]); import ablation; '
        'print(json.dumps(getattr(ablation, sys.argv[2])(**json.loads(sys.argv[3]))))'
    )
    folder = str(Path(__file__).parent)
    # looking more often takes a part of a core
    run = measure_command([sys.executable, '-c', code, folder, function, json.dumps(kwargs)], interval=0.2)
    if run.returncode:
        raise MemtrainError(
            f"{function} failed with {run.returncode}: "
            f"{(run.stderr.strip() or 'it was killed').splitlines()[-1]}"
        )
    return json.loads(run.stdout.splitlines()[-1])


def run_ablation(
    shape: GPTConfig = REFERENCE,  # of the model
    # name: settings of `TrainConfig`; `list_techniques` by default. The first is what the others are compared
    # with
    techniques: dict[str, dict] | None = None,
    common: dict | None = None,  # settings of all of them; `COMMON` by default
    data: str | Path | None = None,  # folder of a data set to train on; None: only memory and speed
    rounds: int = 7,  # in which steps are timed; 0: not at all
    threads: int | None = 1,  # of torch, where steps are timed and runs are made
    workers: int = 1,  # runs at a time; their losses don't depend on it
    device: str = 'cpu',  # or 'cuda'
) -> Ablation:
    "Measure `techniques` on a GPT of `shape`, one at a time: bytes, then seconds, then, on `data`, losses"
    common = COMMON if common is None else common
    techniques = list_techniques(common['batch_size']) if techniques is None else techniques
    configs = {name: asdict(configure(common, s)) for name, s in techniques.items()}
    windows = {name: c['batch_size'] * c['gradient_accumulation_steps'] for name, c in configs.items()}
    first = next(iter(windows))
    for name, n in windows.items():
        if n != windows[first]:
            raise MemtrainError(
                f'a step of {name!r} takes {n} windows, one of {first!r} {windows[first]}: '
                'only the same work can be compared'
            )
    with (
        progress(total=len(configs) * (2 if data else 1) + bool(rounds) + bool(data), desc='ablation') as bar,
        ThreadPoolExecutor(workers) as pool,
    ):

        def measure(function, **kwargs):
            found = in_fresh_process(function, shape=asdict(shape), device=device, **kwargs)
            bar.update()
            return found

        a = Ablation(
            asdict(shape),
            common,
            [
                Row(name, techniques[name], **measure('measure_settings', settings=c))
                for name, c in configs.items()
            ],
            rounds,
        )
        seconds = (
            measure('time_settings', techniques=configs, rounds=rounds, threads=threads) if rounds else {}
        )
        for row in a.rows:
            row.seconds = seconds.get(row.name, [])
        if not data:
            return a

        def train(**kw):
            return pool.submit(measure, 'train_settings', data=str(data), threads=threads, **kw)

        runs, other = (
            [train(settings=configs[row.name]) for row in a.rows],
            train(settings=configs[first], seed=1),
        )
        try:
            for row, run in zip(a.rows, runs):
                row.losses, row.val, row.tokens = (run.result()[k] for k in ('losses', 'val', 'tokens'))
            a.other_start = other.result()['val'][-1][1]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    splits = {s: TokenShards(data, s) for s in ('train', 'val')}
    a.data = {**{s: len(x) for s, x in splits.items()}, 'checksum': splits['train'].manifest['checksum'][:12]}
    return a


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
        values = asdict(found)
        del values['stamp']  # a result has one of its own
        print(save_result(args.name or 'ablation', values, command_of(args), args.results).stamp)


if __name__ == '__main__':
    try:
        main()
    except MemtrainError as e:
        raise SystemExit(f'error: {e}')
