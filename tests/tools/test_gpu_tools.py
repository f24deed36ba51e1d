"""benchmarks/gpu_tools.py: what the benchmarks ask of a GPU, on a CPU and, marked, on CUDA."""

import math, sys, tempfile, time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from fastcore.test import test_eq, test_fail
from hypothesis import given, settings, strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'benchmarks'))

from gpu_tools import *
from gpumemnet import command_of, fields_of
from litgpt_memory import unpack_as_then


from memtrain.ablation import predict_peak
from memtrain.core import GIB, MIB, MemtrainError, save_result
from memtrain.loader import TokenLoader
from memtrain.measure import measure_step
from memtrain.model import GPTConfig, named_config
from memtrain.devices import DEVICES
from memtrain.step_time import flops_per_token
from memtrain.shards import TokenShards
from memtrain.train import TrainConfig, gpt_step
from memtrain.wpo_train import choose_strategy


def test_a_part_shows_its_table_or_says_that_there_is_none():
    def shown(folder):
        with patch('builtins.print') as p:
            show_recorded('a test', folder)
        return '\n'.join(str(a) for call in p.call_args_list for a in call.args)

    with tempfile.TemporaryDirectory() as d, patch.dict(PARTS):
        PARTS['a test'] = Part(
            'is there anything?',
            'gpu_test',
            lambda values: (['what', 'bytes'], [[k, v] for k, v in values['rows'].items()]),
        )
        assert 'not measured yet' in shown(d) and 'gpu.py a test' in shown(d)
        stamp = save_result('gpu_test', {'device': 'a card', 'rows': {'weights': 12}}, 'python x.py', d).stamp
        for text in ('a card', 'weights     12', stamp, 'python x.py'):
            assert text in shown(d), (text, shown(d))
        (Path(d) / 'gpu_test.json').write_text('{')
        test_fail(lambda: show_recorded('a test', d), exc=MemtrainError, contains='not a stamped result')
    test_fail(lambda: show_recorded('a test'), exc=MemtrainError, contains='is not a part')


class StandIn:
    "What `limit_memory` asks of CUDA, without a GPU"

    total_memory, fractions = 80 * GIB, [0.5]

    def __enter__(self):
        fake = dict(
            is_available=lambda: True,
            current_device=lambda: 0,
            get_device_properties=lambda d: self,
            empty_cache=lambda: None,
            get_per_process_memory_fraction=lambda d: self.fractions[-1],
            set_per_process_memory_fraction=lambda f, d: self.fractions.append(f),
        )
        self.patch = patch.multiple(torch.cuda, **fake)
        self.patch.start()
        self.fractions = [0.5]
        return self

    def __exit__(self, *_):
        self.patch.stop()


def test_the_limit_is_taken_back_also_after_an_error():
    with StandIn() as cuda:
        with limit_memory(20 * GIB):
            test_eq(cuda.fractions, [0.5, 0.25])
        test_eq(cuda.fractions, [0.5, 0.25, 0.5])
        try:
            with limit_memory(8 * GIB, 'cuda:0'):
                raise torch.OutOfMemoryError('CUDA out of memory')
        except torch.OutOfMemoryError:
            pass
        test_eq(cuda.fractions[-2:], [0.1, 0.5])
        test_fail(
            lambda: limit_memory(81 * GIB).__enter__(),
            exc=MemtrainError,
            contains='can only play a smaller card',
        )
        test_eq(len(cuda.fractions), 5)
    with limit_memory(1, 'cpu'):
        torch.zeros(1000)


@pytest.mark.cuda
def test_a_limited_gpu_refuses_what_goes_beyond():
    budget = 256 * MIB
    clear_device('cuda')
    with limit_memory(torch.cuda.memory_reserved() + budget):
        half = torch.empty(budget // 2, dtype=torch.uint8, device='cuda')
        test_fail(lambda: torch.empty(budget, dtype=torch.uint8, device='cuda'), exc=torch.OutOfMemoryError)
    del half
    assert torch.empty(budget, dtype=torch.uint8, device='cuda').is_cuda


def test_a_right_prediction_takes_two_tries():
    asked = []
    test_eq(search_largest(lambda n: asked.append(n) or n <= 12, 12), 12)
    test_eq(asked, [12, 13])


def test_a_step_fits_its_peak_and_no_less():
    shape, config = (
        GPTConfig(vocab_size=97, block_size=16, n_layer=1, n_head=2, n_embd=16),
        TrainConfig(batch_size=2, grad_clip=0.0),
    )
    peak, reserved = peak_of_steps(shape, config)
    test_eq((peak, reserved), (measure_step(*gpt_step(shape, config)).peak, None))
    test_eq([fits_memory(shape, config, n) for n in (peak - 1, peak)], [False, True])

    def failing(error):
        return patch.dict(fits_memory.__globals__, peak_of_steps=Mock(side_effect=error))

    with failing(torch.OutOfMemoryError('CUDA out of memory.')):
        assert not fits_memory(shape, config, peak)
    with failing(ValueError('no')):
        test_fail(lambda: fits_memory(shape, config, peak), exc=ValueError)


@pytest.mark.cuda
def test_a_step_on_a_gpu_fits_a_limit_above_its_peak_and_not_below():
    shape, config = (
        GPTConfig(vocab_size=4096, block_size=256, n_layer=4, n_head=4, n_embd=256),
        TrainConfig(batch_size=16, grad_clip=0.0),
    )
    peak, reserved = peak_of_steps(shape, config, 'cuda')
    assert 0 < peak <= reserved
    assert fits_memory(shape, config, 2 * reserved, 'cuda') and not fits_memory(
        shape, config, peak // 2, 'cuda'
    )
    predicted, _ = predict_peak(shape, config, 'cuda')
    assert 0.7 < peak / predicted < 1.4, (peak, predicted)


def test_work_is_timed_as_often_as_asked():
    calls = []
    seconds = time_work(lambda: calls.append(time.sleep(0.002)), tries=3, warm=2)
    test_eq((len(calls), len(seconds)), (5, 3))
    assert min(seconds) >= 0.002
    shape = GPTConfig(vocab_size=97, block_size=16, n_layer=1, n_head=2, n_embd=16)
    found = time_steps(shape, TrainConfig(batch_size=2), steps=2, warm=0)
    assert len(found) == 2 and min(found) > 0


def test_utilisation_is_of_the_data_sheet():
    shape = named_config('gpt2')
    test_eq(utilisation(shape, DEVICES['a100'].bf16 / flops_per_token(shape), 'a100'), 1.0)
    test_eq(utilisation(shape, 1.0, None), None)


@pytest.mark.cuda
def test_a_gpu_is_waited_for():
    a = torch.randn(4096, 4096, device='cuda')
    few, many = (min(time_work(lambda: [a @ a for _ in range(n)], 3, 2, 'cuda')) for n in (2, 40))
    assert many > 5 * few, (few, many)  # handing over takes microseconds either way


def test_the_bus_is_that_of_the_standard():
    test_eq([round(bus_rate(g) / 1e9, 2) for g in (3, 4, 5)], [15.75, 31.51, 63.02])
    test_eq(bus_rate(4, 8), bus_rate(3, 16))
    test_fail(lambda: bus_rate(9), exc=MemtrainError, contains='take one of 3, 4, 5')

    def told(text):
        with StandIn(), patch('subprocess.run', return_value=Mock(stdout=text)):
            return find_bus()

    test_eq(
        [told(t) for t in ('4, 16\n', '[N/A], 16', '', 'no such device')],
        [{'generation': 4, 'lanes': 16}, None, None, None],
    )


def test_copies_have_rates():
    for size in (1, 2**20):
        found = measure_copies(size, tries=3)
        assert found.keys() == {'ordinary'} and 0 < found['ordinary'] < math.inf


@pytest.mark.cuda
def test_copies_to_a_gpu_stay_below_its_bus():
    found = measure_copies(2**26, 'cuda')
    assert (
        found['on the device'] > 2 * found['page-locked'] and found['page-locked'] > 0.7 * found['ordinary']
    ), found
    # cards that hang on PCI Express, and not on another bus
    bus, card = find_bus(), describe_device('cuda')['card']
    if bus and card and bus['generation'] in (3, 4, 5):
        assert found['page-locked'] < 1.1 * bus_rate(**bus), (found, bus)


def test_every_feed_delivers_the_same_batches():
    shards = TokenShards.from_array(np.arange(9_000), 9_000)
    plain = [*TokenLoader(shards, 4, 64, seed=0, drop_last=True)]
    ways = list_feeds(shards, 4, 64)
    test_eq(len(ways), 4)
    for name, start in ways.items():
        for (x, y), (x2, y2) in zip(start(), plain, strict=True):
            assert x.dtype == y.dtype == torch.int64 and torch.equal(x, x2) and torch.equal(y, y2), name
    found = measure_feeding(shards, 4, 64, batches=20, rounds=2)
    assert found.keys() == {'limit', *ways} and all(len(r) == 2 and min(r) > 0 for r in found.values())
    test_fail(
        lambda: measure_feeding(shards, 4, 64, batches=40),
        exc=MemtrainError,
        contains='35 batches of 4 × 64, 42 are needed',
    )


@pytest.mark.cuda
def test_every_feed_delivers_the_same_batches_to_a_gpu():
    shards = TokenShards.from_array(np.arange(9_000), 9_000)
    plain, ways = [*TokenLoader(shards, 4, 64, seed=0, drop_last=True)], list_feeds(shards, 4, 64, 'cuda')
    test_eq(len(ways), 6)
    for name, start in ways.items():
        for (x, y), (x2, y2) in zip(start(), plain, strict=True):
            assert x.is_cuda and torch.equal(x.cpu(), x2) and torch.equal(y.cpu(), y2), name
    assert min(min(r) for r in measure_feeding(shards, 4, 64, 'cuda', batches=20, rounds=1).values()) > 0


def test_all_strategies_that_fit_are_run_and_agree():
    shape = dict(dim=24, centers=60, batch_size=8)
    choice = choose_strategy(**shape, budget=2**30, rates=card_rates('rtx3090'))
    found = measure_strategies(choice, **shape, tries=2)
    test_eq([r['strategy'] for r in found], ['single_gpu', 'gradient_accumulation', 'chunked', 'matrix_free'])
    for r in found:
        assert (
            abs(r['loss'] / found[0]['loss'] - 1) < 1e-3
            and 0.5 < r['peak'] / r['predicted'] < 2
            and len(r['seconds']) == 2
        ), r
    rows = [{**r, 'fits': r['strategy'] == 'chunked'} for r in choice.rows]
    test_eq(
        [r['strategy'] for r in measure_strategies(replace(choice, rows=rows), **shape, tries=1)], ['chunked']
    )


def test_a_strategy_that_fails_is_told():
    shape = dict(dim=24, centers=60, batch_size=8)
    choice = choose_strategy(**shape, budget=2**30, rates=card_rates('rtx3090'))
    peaks = Mock(side_effect=[torch.OutOfMemoryError('CUDA out of memory. Tried'), 1000, 1000, 1000])
    with patch.dict(measure_strategies.__globals__, measure_peak=peaks):
        found = measure_strategies(choice, **shape, tries=1)
    test_eq(['failed' in r for r in found], [True, False, False, False])
    assert 'CUDA out of memory' in found[0]['failed']


def test_rates_come_from_the_data_sheet():
    a, b = card_rates('rtx3090'), card_rates('h100')
    assert b.multiply_adds > a.multiply_adds and b.numbers_large > a.numbers_large
    test_eq(a.multiply_adds, 35.6e12 / 4)
    test_fail(lambda: card_rates('gtx'), exc=MemtrainError, contains='take one of')
    test_fail(lambda: card_rates('24gb'), exc=MemtrainError, contains='has no data sheet')


def test_every_table_takes_what_its_part_saves():
    made = {
        'fits': {
            'rows': [
                {
                    'model': '124M',
                    'technique': 'plain',
                    'predicted': 16,
                    'largest': 15,
                    'tokens_per_second': 1e4,
                },
                {'model': '1.5B', 'technique': 'plain', 'predicted': 0, 'failed': 'out of memory'},
            ]
        },
        'memory': {
            'summary': {
                'allocated': {'n': 72, 'median': 0.01, 'mean': 0.02, 'worst': 0.04, 'over_3_percent': 2}
            }
        },
        'techniques': {
            'rows': {
                'plain': {
                    'predicted': 2**30,
                    'peak': 2**30,
                    'reserved': 2**31,
                    'tokens_per_second': 2e4,
                    'mfu': 0.31,
                },
                'fp8': {'failed': 'no'},
                'on a CPU': {'peak': 5, 'reserved': None},
            }
        },
        'loss': {
            'rows': {
                'plain': {'peak': 2**30, 'seconds': [3.0, 0.001, 0.002, 0.003]},
                'Liger': {'failed': 'no'},
            }
        },
        'largest': {
            'rows': {
                'plain': {'guess': 16, 'largest': 15, 'tokens_per_second': 2e4},
                'nanoGPT': {'failed': 'no'},
            }
        },
        'copies': {
            'bus': {'generation': 4, 'lanes': 16},
            'rows': [{'size': 2**20, 'rates': {'ordinary': 5e9, 'page-locked': bus_rate(4) / 2}}],
        },
        'feeding': {'rates': {'limit': [2e9, 4e9, 3e9], 'as on disk': [3e8, 3e8, 3e8]}},
        'wpo': {
            'rows': [
                {
                    'centers': 64,
                    'strategy': 'chunked',
                    'chunk_size': None,
                    'accumulation_steps': 1,
                    'predicted': 2**30,
                    'predicted_seconds': 1.0,
                    'peak': 2**30,
                    'seconds': [1.0, 3.0, 2.0],
                }
            ]
        },
    }
    made['nanogpt'] = made['techniques']
    test_eq(set(made), set(PARTS))
    tables = {name: PARTS[name].table(values) for name, values in made.items()}
    for name, (head, rows) in tables.items():
        assert rows and all(len(row) == len(head) for row in rows), name
    test_eq(tables['loss'][1], [['plain', '1.00 GiB', '2.00'], ['Liger', 'failed', '–']])
    test_eq(
        (tables['copies'][1][0][-1], tables['feeding'][1][1][-1], tables['wpo'][1][0][-1]),
        ('50%', '0.1', '2'),
    )


# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: python3
#     language: python
#     name: python3
# ---


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.integers(-3, 500), st.integers(1, 300))
def check_search(largest, start, most):
    asked = []

    def fits(n):
        asked.append(n)
        return n <= largest

    test_eq(search_largest(fits, start, most), min(largest, most))
    assert len(asked) == len(set(asked)) <= 22 and all(1 <= n <= most for n in asked), asked


def test_the_search_finds_the_largest_from_anywhere():
    check_search()


def test_what_a_file_name_records_is_what_its_script_is_given():
    def flags_of(filename):
        script, words = command_of(fields_of(filename))
        return script.rpartition("/")[2], " ".join(words)

    script, words = flags_of(
        "input:2346_output:197_depth:2_arch:pyramid_batch:996_act:leaky_relu_dropout:0.34_dropout:True_batchnorm:False.out"
    )
    assert (script, words.count("--")) == ("mlp_next.py", 9)
    # an epoch of 4,096 is four batches and one of 112; two and that one have the same shapes
    assert (
        "--activation leaky_relu --dropout_rate 0.34 --batch_size 996 --num_samples 2104 --use_dropout"
        in words
    )
    script, words = flags_of(
        "input_channels:3_num_classes:453_depth:22_arch:reverse_pyramid_base_filters:98_batch:62_input_size:174_act:gelu"
        "_dropout:0.5_dropout:False_batchnorm:True.out"
    )
    assert script == "cnn_with_model_summary.py" and "--architecture reverse_pyramid" in words
    assert words.endswith("--batch_size 62 --num_samples 128 --input_size 174 174 --use_batch_norm"), words
    script, words = flags_of(
        "num_classes:86_embedding_size:512_num_layers:5_num_heads:8_ff_hidden_size:1270_dropout_rate:0.35_seq_length:512"
        "_input_size:476691_num_samples:75_batch_size:32.out"
    )
    assert script == "transformer.py" and words.endswith(
        "--output_size 86 --batch_size 32 --num_samples 75"
    ), words


def test_a_product_as_it_was_keeps_its_input_and_makes_the_weight_twice(monkeypatch):
    bitsandbytes = pytest.importorskip('bitsandbytes')
    kind = bitsandbytes.nn.Linear4bit
    monkeypatch.setattr(kind, 'forward', kind.forward)  # put back afterwards
    layer = kind(64, 128, quant_type='nf4', compute_dtype=torch.bfloat16).to('cpu')
    x = torch.randn(3, 64, dtype=torch.bfloat16, requires_grad=True)
    today = layer(x)
    unpack_as_then()
    made, then = [], torch.Tensor.to
    with monkeypatch.context() as m:
        m.setattr(torch.Tensor, 'to', lambda t, *how, **more: made.append(t.dtype) or then(t, *how, **more))
        was = layer(x)
    assert torch.allclose(was, today, atol=0.1), (was, today)
    assert made[-1] == torch.float16, made
    assert was.grad_fn.kept[0] is x
    was.sum().backward()
    assert x.grad.shape == x.shape
