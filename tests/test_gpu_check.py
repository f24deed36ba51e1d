"""benchmarks/gpu_check.py on a card that is simulated, and the rules of memtrain against what a real one did:
results/cards/, measured on an H100 and an H200 with PyTorch 2.11. The rules were made from the first."""

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from memtrain.allocator import reserve
from memtrain.core import GIB, load_result
from memtrain.cuda import attention_backend, card_temporaries
from memtrain.devices import find_device
from memtrain.script import simulate_script

HERE = Path(__file__).parent.parent
CARDS = 'h100', 'h200'
LAYERS = {'h100': 80, 'h200': 60}  # more convolutions of a form than that were measured
PROGRAMS = {'free': None, 'short of memory': 6 * GIB, 'more of it': None}  # bytes that may be taken


@cache
def measured(card):
    return load_result(card, HERE / 'results' / 'cards').values


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE / 'benchmarks'))
    import gpu_check

    yield gpu_check
    for name in 'gpu_check', 'gpu_cases':
        sys.modules.pop(name)


@pytest.mark.parametrize('card', CARDS)
def test_segments_lie_where_the_driver_put_them(gpu_check, card):
    "Reserved bytes after each event of random programs, one of them short of memory"
    for seed, (name, capacity) in enumerate(PROGRAMS.items()):
        line = measured(card)['allocator'][name]['line']
        requests = gpu_check.random_requests(seed, 4 * GIB)
        told = reserve(requests, find_device(card), capacity).timeline[:, 1].tolist()
        changes = dict(line['reserved'])
        true = [changes.setdefault(0, 0)]
        for event in range(1, line['until']):
            true.append(changes.get(event, true[-1]))
        assert told[: line['until']] == true, name
        assert len(changes) > 40


@pytest.mark.parametrize('card', CARDS)
def test_expandable_segments_grow_as_the_drivers_did(gpu_check, card):
    profile = replace(find_device(card), expandable=True)
    for seed, (name, capacity) in enumerate(PROGRAMS.items()):
        row = measured(card)['expandable'][name]
        assert row['same'] == row['events']  # what the card said beside this replay
        requests = gpu_check.random_requests(seed, 4 * GIB)
        assert reserve(requests, profile, capacity).reserved == row['peak'][1]


@pytest.mark.parametrize('card', CARDS)
def test_sums_are_split_as_the_card_split_them(card):
    ops = dict(
        sum=torch.ops.aten.sum.dim_IntList,
        mean=torch.ops.aten.mean.dim,
        amax=torch.ops.aten.amax.default,
        norm=torch.ops.aten.linalg_vector_norm.default,
    )
    rules = card_temporaries(find_device(card))
    for row in measured(card)['sums']:
        x = torch.empty(row['shape'], dtype=getattr(torch, row['dtype'][6:]), device='meta')
        dims = row['dims'] if isinstance(row['dims'], list) else [row['dims']]
        func = ops[row['name']]
        args = (x, 2, dims) if row['name'] == 'norm' else (x, dims)
        told = rules[func._schema.name](func, args, {}, None)
        assert sorted(told) == sorted(row['gone']), row


def convolutions(card, form):
    "(bytes told, bytes measured, bytes of the tensors) of the largest block in each forward pass"
    half, last = 'bf16' in form, 'last' in form
    order = torch.channels_last if last else torch.contiguous_format
    rule = card_temporaries(find_device(card))['aten::convolution']
    func = torch.ops.aten.convolution.default
    for row in measured(card)['workspaces']['cudnn']:
        if row['form'] != form or 'error' in row:
            continue
        before, after, kernel, stride, groups, pixels = row['layer']
        dtype = torch.bfloat16 if half else torch.float32
        pad = kernel // 2 if stride < kernel else 0
        out = (pixels + 2 * pad - kernel) // stride + 1

        def make(*shape):
            return torch.empty(shape, dtype=dtype, device='meta').to(memory_format=order)

        x, weight = make(row['batch'], before, pixels, pixels), make(after, before // groups, kernel, kernel)
        y = make(row['batch'], after, out, out)
        args = x, weight, None, [stride] * 2, [pad] * 2, [1] * 2, False, [0] * 2, groups
        told = rule(func, args, {}, y)
        tensors = x.nbytes + weight.nbytes + y.nbytes
        assert tensors == row['input'] + row['weight'] + row['output']
        yield sum(told), max(row['forward'], default=0), tensors


@pytest.mark.parametrize('form, exact', [('fp32, TF32', 0.9), ('bf16', 0.92), ('bf16, channels last', 0.85)])
@pytest.mark.parametrize('card', CARDS)
def test_most_convolutions_work_on_copies_of_the_size_that_we_say(card, form, exact):
    rows = [*convolutions(card, form)]
    assert len(rows) > LAYERS[card]
    # what is beside the copies takes less than a KiB
    assert sum(abs(told - true) < 1024 for told, true, _ in rows) >= exact * len(rows)
    assert sum(true > 0 for _, true, _ in rows) > 10


@pytest.mark.skipif(torch.__version__ < '2.11', reason="cuDNN's attention comes first since 2.11")
@pytest.mark.parametrize('card', CARDS)
def test_attention_goes_to_the_kernel_that_the_card_took(card):
    for row in measured(card)['attention']:
        dtype = getattr(torch, row['dtype'][6:])
        q = torch.empty(2, row['heads'], row['tokens'], row['size'], dtype=dtype, device='meta')
        k = torch.empty(2, row['kv_heads'], row['keys'], row['size'], dtype=dtype, device='meta')
        mask = q.new_empty(row['tokens'], row['keys'], dtype=torch.bool) if row['masked'] else None
        gqa = row['kv_heads'] < row['heads']
        how = mask, row['causal'], gqa, find_device(card).capability, row['dropout']
        assert attention_backend(q, k, k, *how) == row['true'], row


_FAKE = """
import json, sys
sys.path.insert(0, {benchmarks!r})
import torch
# what a simulated card has no history of
torch.cuda.memory._snapshot = lambda: dict(device_traces=[[
    dict(action='alloc', addr=1, size=512, frames=[]), dict(action='free_completed', addr=1, size=512),
]])
torch._C._cuda_clearCublasWorkspaces = lambda: None
import gpu_check
from types import SimpleNamespace
gpu_check.LAYERS, gpu_check.random_layers = gpu_check.LAYERS[:1], lambda count: ()
gpu_check.TIMED_STEPS = 1
parts = gpu_check.parts_of(SimpleNamespace(card='h100', seconds=60, only='linear bf16'))
found = {{name: parts[name]() for name in {names!r}}}
row, history = found['case']
assert row['kind'] == 'operation' and row['reserved'] >= row['allocated'] > 0, row
assert history['rows'] == [(0, 0, 512, 0), (1, 0, 512, 0)], history
assert found['context']['CUDA begun']['besides'] > 2**28
assert len(found['attention']) == 80 and len(found['sums']) > 100
if torch.__version__ >= '2.11':
    assert {{'cudnn', 'math', 'efficient'}} <= {{row['told'] for row in found['attention']}}  # of an H100
assert [row['form'] for row in found['workspaces']['cudnn'][:4]] == list(gpu_check.FORMS)
assert found['device']['capability'] == [9, 0]
json.dumps(found)
torch.zeros(256, device='cuda')
"""


def test_everything_is_asked_of_a_card(tmp_path):
    "On a simulated one, which answers as far as it can"
    names = 'device context case attention sums workspaces'.split()
    text = _FAKE.format(benchmarks=str(HERE / 'benchmarks'), names=names)
    (tmp_path / 'card.py').write_text(text)
    run = simulate_script(tmp_path / 'card.py', gpu='h100', steps=1000)
    assert run.error is None and run.status == 0, (run.error, run.said)


@pytest.mark.parametrize('card', CARDS)
def test_what_a_card_took_is_what_was_said(gpu_check, card):
    "Two steps that take seconds to simulate, without biases, whose workspace differs by version of PyTorch"
    for name in ('decoder bf16 gated, shared keys', 'adapters on a frozen decoder'):
        told, true = gpu_check.predict_case(name, card), measured(card)['cases'][name]
        assert (told['allocated'], told['reserved']) == (true['allocated'], true['reserved'])


def test_cases_are_kept_as_they_come(gpu_check, monkeypatch, tmp_path):
    "A card whose time ends leaves the cases that were done"
    rows = iter([[dict(allocated=8, reserved=16), None], KeyboardInterrupt])

    def answer(part, args, name):
        row = next(rows)
        if row is KeyboardInterrupt:
            raise row
        return row

    monkeypatch.setattr(gpu_check, 'in_own_process', answer)
    args = SimpleNamespace(
        card='h100', parts='cases', only='decoder bf16', minutes=1, at_once=1, out=tmp_path / 'found.json'
    )
    with pytest.raises(KeyboardInterrupt):
        gpu_check.measure_all(dict(cases={}), args)
    assert [row['allocated'] for row in json.loads(args.out.read_text())['cases'].values()] == [8]
