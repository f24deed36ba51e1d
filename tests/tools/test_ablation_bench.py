"""benchmarks/ablation.py: what the table of techniques is measured with, on a tiny model."""

import json, random, sys, tempfile
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from fastcore.test import test_close, test_eq, test_fail

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'benchmarks'))

from ablation import configure, in_fresh_process, measure_settings, run_ablation, time_settings
from memtrain.ablation import (
    COMMON,
    REFERENCE,
    list_techniques,
    load_ablation,
    plot_peaks,
    plot_tradeoff,
    predict_peak,
)
from memtrain.core import MIB, MemtrainError, save_result
from memtrain.model import GPTConfig

from memtrain.prepare import prepare
from memtrain.train import TrainConfig


def test_every_technique_is_a_setting_and_takes_the_same_tokens():
    for n in (4, 32):
        found = list_techniques(n)
        test_eq(found['plain'], {})
        configs = {
            name: configure(dict(batch_size=n, grad_clip=0.0, eval_batches=6), s) for name, s in found.items()
        }
        test_eq({c.batch_size * c.gradient_accumulation_steps for c in configs.values()}, {n})
        test_eq({c.batch_size * c.eval_batches for c in configs.values()}, {6 * n})
        test_eq(len({json.dumps(asdict(c)) for c in configs.values()}), len(found))  # no two are the same


def direct(function, **kwargs):
    "As in a process of its own, in this one"
    return json.loads(json.dumps(run_ablation.__globals__[function](**json.loads(json.dumps(kwargs)))))


def run_small(techniques, data=None, **kwargs):
    "An ablation of a tiny model of bytes, in this process"
    common = dict(
        batch_size=4, max_iters=6, warmup_iters=2, lr=1e-3, grad_clip=0.0, eval_interval=3, eval_batches=2
    )
    with patch.dict(run_ablation.__globals__, {'in_fresh_process': direct}):
        return run_ablation(
            GPTConfig(vocab_size=257, block_size=32, n_layer=2, n_head=2, n_embd=32),
            techniques,
            common,
            data,
            threads=None,
            **kwargs,
        )


def write_bytes(folder):
    "Shards of made-up text"
    (Path(folder) / 'texts').mkdir()
    rng = random.Random(0)
    for i in range(40):
        (Path(folder) / f'texts/{i}.txt').write_text(
            f'{i}: ' + ' '.join(rng.choices('the cat sat on a mat and saw no dog'.split(), k=60))
        )
    return prepare(Path(folder) / 'texts', Path(folder) / 'data', tokenization='bytes', val_fraction=0.2).path


def test_an_ablation_measures_what_it_says():
    four, twice = dict(batch_size=1, gradient_accumulation_steps=4), dict(activation_checkpointing=True)
    with tempfile.TemporaryDirectory() as d:
        a = run_small(
            {
                'plain': {},
                'four': four,
                'twice': twice,
                'half': dict(use_mixed_precision=True),
                'chunks': dict(loss_chunk_size=16),
            },
            write_bytes(d),
            rounds=3,
        )
        assert a.data['train'] > 6 * 4 * 32 and len(a.data['checksum']) == 12
    test_eq([r.name for r in a.rows], ['plain', 'four', 'twice', 'half', 'chunks'])
    for r in a.rows:
        test_eq(
            (len(r.seconds), len(r.losses), [i for i, _ in r.val], r.tokens), (3, 6, [0, 3, 6], 6 * 4 * 32)
        )
        test_eq(sum(r.by_category.values()), r.peak)
        assert abs(r.predicted / r.peak - 1) < 0.01 and r.peak_op and max(r.by_phase.values()) == r.peak, r
    test_eq((a['twice'].losses, a['twice'].val), (a['plain'].losses, a['plain'].val))  # the same computation
    # in another order
    for name in ('four', 'chunks'):
        test_close(a[name].losses, a['plain'].losses, eps=1e-4)
    assert max(abs(x - y) for x, y in zip(a['half'].losses, a['plain'].losses)) > 1e-5  # other numbers
    assert a['four'].peak < 0.6 * a['plain'].peak and a['twice'].peak < a['plain'].peak > a['chunks'].peak
    test_eq((a.speed('plain'), a.loss_difference('plain')), (1.0, 0.0))
    assert 0 < a.speed('four') < 1 and abs(a.other_start - a['plain'].val_loss) > 1e-4


def test_warm_up_rounds_are_not_counted():
    n, nothing = (
        iter(range(100)),
        lambda shape, config: (lambda: torch.nn.Linear(1, 1), lambda params: None, None),
    )
    with patch.dict(time_settings.__globals__, seconds_of=lambda *a: next(n), gpt_step=nothing):
        found = time_settings(
            dict(vocab_size=9, block_size=4, n_layer=1, n_head=1, n_embd=4),
            {'plain': {}},
            rounds=3,
            threads=None,
        )
    test_eq(found, {'plain': [2, 3, 4]})


def test_an_ablation_is_kept_whole_and_shown():
    with tempfile.TemporaryDirectory() as d:
        a = run_small({'plain': {}, 'half': dict(use_mixed_precision=True)}, rounds=2)
        a.rows[1].losses, a.rows[0].losses, a.rows[0].val, a.rows[1].val = (
            [3.0, 2.2, 1.1],
            [3.0, 2.0, 1.0],
            [(3, 1.0)],
            [(3, 1.1)],
        )
        values = {k: v for k, v in asdict(a).items() if k != 'stamp'}
        result = save_result('x', values, 'run it', d)
        b = load_ablation('x', d)
        test_eq(b.stamp, result.stamp)
        test_eq(
            json.loads(json.dumps(asdict(replace(b, stamp='')), default=str)),
            json.loads(json.dumps(asdict(a), default=str)),
        )
        test_eq(b.speed('half'), a.speed('half'))
        Path(d, 'y.json').write_text(json.dumps({**asdict(result), 'values': {'rows': [{'name': 'plain'}]}}))
        test_fail(lambda: load_ablation('y', d), exc=MemtrainError, contains='y.json holds no ablation')
    lines = str(a).splitlines()
    test_eq([line.split()[0] for line in lines[1:]], ['plain', 'half'])
    assert '100%' in lines[1] and '+10.00%' in lines[2] and f'{a["half"].peak / MIB:.1f} MiB' in lines[2]
    test_eq(len({len(line) for line in lines}), 1)  # columns
    test_eq([len(ax.lines) for ax in a.plot().axes], [2, 2])
    assert a._repr_markdown_().count('\n') == 3 and '| half |' in a._repr_markdown_()
    table = a.compare('half', 'plain').splitlines()
    assert (
        table[0] == '| at the peak, MiB | half | plain |'
        and table[-1] == '| loss on val | 1.1000 | 1.0000 |'
        and f'**{a["half"].peak / MIB:.1f}**' in a.compare('half')
    )
    # a row in which all agree is left out, but for the peak's
    assert '| predicted' not in '\n'.join(table) and a.compare('half', 'half').count('\n') == 2 < a.compare(
        'half'
    ).count('\n')
    a.rows.append(replace(a['plain'], name='worse', peak=30 * MIB, seconds=[2.0, 2.0]))
    a.rows[0].seconds, a.rows[1].seconds, a.rows[0].peak, a.rows[1].peak = (
        [1.0, 1.0],
        [1.5, 1.5],
        20 * MIB,
        10 * MIB,
    )
    # less memory, more speed; the third has neither
    test_eq([t.get_text() for t in plot_tradeoff(a).axes[0].texts], ['half', 'plain'])
    test_eq([t.get_text() for t in plot_peaks(a).axes[0].texts], [f'{r.peak / MIB:.0f}' for r in a.rows])


def test_what_can_not_be_compared_is_refused():
    test_fail(
        lambda: run_small({'plain': {}, 'more': dict(batch_size=8)}),
        exc=MemtrainError,
        contains="a step of 'more' takes 8 windows, one of 'plain' 4",
    )
    test_fail(
        lambda: run_small({'plain': {}, 'odd': dict(speed=2)}),
        exc=MemtrainError,
        contains='speed is not a setting of TrainConfig',
    )
    test_fail(lambda: list_techniques(6), exc=MemtrainError, contains="batch_size 6 isn't a multiple of 4")
    test_fail(
        lambda: in_fresh_process('measure_settings', shape={}, settings={}),
        exc=MemtrainError,
        contains='measure_settings failed with 1: TypeError',
    )


def test_all_together_needs_a_quarter_at_most_here_and_now():
    # a sixth where oneDNN multiplies bf16 as it lies; with AVX-512, but without its bf16, 8 MiB more
    settings = {name: {**COMMON, **s} for name, s in list_techniques().items()}
    every = measure_settings(asdict(REFERENCE), settings['all together'])
    plain = predict_peak(REFERENCE, TrainConfig(**settings['plain']))[0]
    assert every['peak'] <= plain / 4 and abs(every['predicted'] / every['peak'] - 1) < 0.01, (plain, every)
