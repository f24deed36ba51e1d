#!/usr/bin/env python3
"""Training runs that others measured on GPUs, and published with the answers of other predictors.

    python benchmarks/gpu_runs.py ROWS.jsonl [--only cnn|transformer] [--limit N]
    # writes results/gpu_runs.json

The runs are those of xMem (Stone-ResearchLife/xMem on GitHub; arXiv 2510.21048, Middleware 2025): one JSON a
run under plot/data, with the peak that NVML saw on an RTX 3060 or an RTX 4060, and what xMem, DNNMem,
SchedTune and LLMem had said. A line of ROWS has the facts of one of them: its path there, model, optimizer,
batch, card, `measured` bytes, `real_oom`, each predictor's bytes and verdict. What is built here follows that
repository's description of its runs, and nothing is taken from the measured values: float32, 4 steps, batches
of CIFAR-10 at 86 x 86 or of 128 tokens, `zero_grad` at the beginning of an iteration where a run doesn't say
otherwise, torch's optimizers with their defaults (several tensors at a time, not fused), dropout on. They ran
with transformers 4.51.3: install that one beside this package, since the library's version is part of a run
(see `versions` in the result). torchvision builds the CNNs."""

from __future__ import annotations

import argparse, json, sys, time
from pathlib import Path

import torch
from torch import nn

from memtrain.allocator import reserve
from memtrain.core import MemtrainError, load_result, progress, results_dir, save_result
from memtrain.devices import find_device
from memtrain.simulate import simulate
from memtrain.stage import complete_torchvision
from memtrain.stand_ins import known_config

TOKENS = 128
STEPS = 4
PREDICTORS = 'xMem', 'DNNMem', 'SchedTune', 'LLMem'


# --------------------------------------------------------------------------------------------------
# models


def load_torchvision():
    "torchvision's models; its own kernels, which a torch built for CPUs can't load, aren't needed"
    complete_torchvision()
    import torchvision

    return torchvision.models


# their names to torchvision's; those with their own classes of MobileNetV3 and MNASNet have ten classes
CNNS = {
    'VGG16': ('vgg16', {}),
    'VGG19': ('vgg19', {}),
    'ResNet101': ('resnet101', {}),
    'ResNet152': ('resnet152', {}),
    'MobileNetV2': ('mobilenet_v2', {}),
    'MobeNetV3Small': ('mobilenet_v3_small', dict(num_classes=10)),
    'MobeNetV3Large': ('mobilenet_v3_large', dict(num_classes=10)),
    'MnasNet': ('mnasnet1_0', dict(num_classes=10)),
    'ConvNeXtTiny': ('convnext_tiny', {}),
    'ConvNeXtBase': ('convnext_base', {}),
    'RegNetX400MF': ('regnet_x_400mf', {}),
    'RegNetY400MF': ('regnet_y_400mf', {}),
}
# public configurations: the class's defaults but for what is said
TRANSFORMERS = {
    'distilbert/distilgpt2': ('gpt2', dict(n_layer=6)),
    'openai-community/gpt2': ('gpt2', {}),
    'cerebras/Cerebras-GPT-111M': (
        'gpt2',
        dict(
            n_embd=768,
            n_layer=10,
            n_head=12,
            n_inner=3072,
            n_positions=2048,
            activation_function='gelu',
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        ),
    ),
    'EleutherAI/gpt-neo-125M': (
        'gpt_neo',
        dict(
            hidden_size=768,
            num_layers=12,
            num_heads=12,
            attention_types=[[['global', 'local'], 6]],
            max_position_embeddings=2048,
        ),
    ),
    'facebook/opt-125m': known_config('facebook/opt-125m'),
    'facebook/opt-350m': known_config('facebook/opt-350m'),
    'T5-small': ('t5', dict(decoder_start_token_id=0)),
    't5-base': ('t5', dict(d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)),
}


def build_cnn(name):
    models = load_torchvision()
    make, options = CNNS[name]
    return getattr(models, make)(**options)


def build_transformer(name):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind, fields = TRANSFORMERS[name]
    config = AutoConfig.for_model(kind, **fields)
    return (AutoModelForSeq2SeqLM if kind == 't5' else AutoModelForCausalLM).from_config(config)


# --------------------------------------------------------------------------------------------------
# a run


def run_of(row):
    "(model_fn, optimizer_fn, step_fn) of a published run"
    is_cnn = row['kind'] == 'cnn'
    build = build_cnn if is_cnn else build_transformer
    held = {}  # what a loop's variables still hold while the next iteration begins

    def model_fn():
        held.clear()
        return build(row['model']).train().to('cuda')

    def optimizer_fn(params):
        return getattr(torch.optim, row['optimizer'])(params, lr=0.001, foreach=True)

    def batch():
        if is_cnn:
            return dict(x=torch.randn(row['batch'], 3, 86, 86), y=torch.randint(10, (row['batch'],)))
        ids = torch.zeros(row['batch'], TOKENS, dtype=torch.long)
        return dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=torch.zeros_like(ids))

    def step_fn(model, optimizer):
        when = row['zero_grad_mode'] or 0
        if when == 0:
            optimizer.zero_grad()
        for name, tensor in batch().items():
            held[name] = tensor.to('cuda')
        if is_cnn:
            held['out'] = model(held['x'])
            held['loss'] = nn.functional.cross_entropy(held['out'], held['y'])
        else:
            held['out'] = model(**{k: held[k] for k in ('input_ids', 'attention_mask', 'labels')})
            held['loss'] = held['out'].loss
        if when == 1:
            optimizer.zero_grad()
        held['loss'].backward()
        optimizer.step()
        if is_cnn:
            held['best'] = held['out'].max(1)
        if when == 2:
            optimizer.zero_grad()

    return model_fn, optimizer_fn, step_fn


CARDS = {'NVIDIA GeForce RTX 3060': 'rtx3060', 'NVIDIA GeForce RTX 4060': 'rtx4060'}


def predict(row):
    "Bytes and verdict for the run `row`, and what they cost"
    card = find_device(CARDS.get(row['gpu'], row['gpu']))
    start = time.process_time()
    trace = simulate(*run_of(row), device=card, steps=STEPS)
    held = reserve(trace, card, card.capacity)
    return dict(
        predicted=held.reserved,
        allocated=held.allocated,
        oom=not held.fits,
        cpu_s=round(time.process_time() - start, 2),
        notes=[note.split(':')[0][:60] for note in trace.notes],
    )


def key_of(row):
    "What makes two runs the same; some were repeated"
    return tuple(row[k] for k in ('model', 'optimizer', 'batch', 'gpu', 'zero_grad_mode'))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('rows', type=Path, help='one JSON a line')
    parser.add_argument('--only', choices=['cnn', 'transformer'])
    parser.add_argument('--group', help='rows whose group begins so')
    parser.add_argument('--limit', type=int, help='at most so many rows')
    parser.add_argument('--name', default='gpu_runs', help='of the result')
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()]
    rows = [r for r in rows if args.only in (None, r['kind']) and r['group'].startswith(args.group or '')]
    rows = rows[: args.limit]
    path, known, versions = results_dir() / f'{args.name}.json', {}, {}
    if path.exists():  # a run that was interrupted goes on
        before = load_result(args.name).values
        known, versions = {key_of(r): r['ours'] for r in before['rows'] if 'ours' in r}, before['versions']
    for row in progress(rows, desc='runs'):
        if (key := key_of(row)) not in known:
            try:
                known[key] = predict(row)
            except MemtrainError as e:
                known[key] = dict(predicted=None, error=str(e))
        row['ours'] = known[key]
    found = [name for name in ('torch', 'torchvision', 'transformers') if name in sys.modules]
    versions |= {name: sys.modules[name].__version__ for name in found}
    save_result(args.name, dict(rows=rows, versions=versions), 'python benchmarks/gpu_runs.py ROWS.jsonl')


if __name__ == '__main__':
    main()
