#!/usr/bin/env python3
"""What memtrain says of training well-known models on a card, beside what the card does.

    python benchmarks/gpu_plans.py predict [--card h100] [--jobs 2]  # anywhere
    python benchmarks/gpu_plans.py measure [--minutes 5]  # with the card, afterwards

Models by their published sizes, with random weights, trained as `memtrain train` trains them: whole, with
adapters, and with adapters on 4 bits. `predict` simulates each and writes the peaks of what is allocated and
reserved to results/gpu_plans_predicted.json. `measure` takes the same steps on the card, one model after
another, and writes results/gpu_plans.json. It needs transformers, peft and bitsandbytes.
"""

from __future__ import annotations

import argparse, gc, json, statistics, sys, time, traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_tools import clear_device, describe_device, describe_failure, time_work

from memtrain.allocator import reserve
from memtrain.core import MemtrainError, progress, results_dir, save_result
from memtrain.estimate import Step, simulate
from memtrain.families import list_models
from memtrain.record_laws import config_folder, open_any
from memtrain.settings import TrainConfig, apply_step
from memtrain.train import model_step

CONFIGS = json.loads(Path(__file__).with_name('configs.json').read_text())
WARM, TIMED = 3, 5  # steps that aren't timed, and that are

AUTOCAST = dict(use_mixed_precision=True)
HALF = dict(weights='bfloat16')
TWICE = dict(activation_checkpointing=True)
CHUNKS = dict(loss_chunk_size=1024)
AT_ONCE = dict(optimizer_in_backward=True)
LORA = HALF | dict(lora=16)
QLORA = LORA | dict(load_in_4bit=True)

ROWS = [  # model, windows of a micro-batch, tokens of a window, how it is trained
    ('gpt2', 8, 1024, AUTOCAST),
    ('llama-3.2-1b', 2, 2048, AUTOCAST),
    ('llama-3-8b', 1, 4096, HALF | TWICE | CHUNKS | AT_ONCE),
    ('llama-3-8b', 2, 2048, QLORA | TWICE),
    ('qwen3-0.6b', 8, 1024, AUTOCAST | TWICE),
    ('gemma-2-2b', 1, 2048, HALF | TWICE),
    ('gpt2-xl', 4, 1024, AUTOCAST | TWICE),
    ('llama-3.2-3b', 2, 4096, HALF | TWICE | CHUNKS | AT_ONCE),
    ('llama-3.2-3b', 2, 2048, QLORA),
    ('bert-base', 32, 512, AUTOCAST),
    ('pythia-1.4b', 2, 2048, AUTOCAST | TWICE),
    ('qwen2.5-7b', 2, 2048, LORA | TWICE | CHUNKS),
    ('llama-3-8b', 2, 2048, LORA | TWICE),
    ('olmoe-1b-7b', 2, 1024, LORA | TWICE),
    ('tinyllama-1.1b', 2, 2048, AUTOCAST | dict(optimizer='adamw8bit')),
    ('smollm2-360m', 8, 1024, AUTOCAST),
    ('vit-large', 32, 1, AUTOCAST),
    ('gemma-3-1b', 2, 2048, AUTOCAST | TWICE | CHUNKS),
    ('mistral-7b', 1, 4096, QLORA | TWICE),
    ('llama-3.2-1b', 4, 2048, LORA),
    ('gpt2-medium', 8, 1024, AUTOCAST | dict(optimizer='adamw8bit')),
    ('qwen3-1.7b', 2, 2048, HALF | CHUNKS),
    ('whisper-small', 8, 448, AUTOCAST),
    ('phi-3-mini', 1, 2047, LORA | TWICE),
    ('qwen3-8b', 2, 1024, QLORA | TWICE | CHUNKS),
    ('gpt2-large', 8, 1024, AUTOCAST | TWICE | CHUNKS),
    ('t5-base', 16, 512, AUTOCAST),
    ('llama-3.2-1b', 2, 2048, dict(gradient_accumulation_steps=4) | AUTOCAST),
    ('smollm3-3b', 1, 4096, LORA | TWICE),
    ('pythia-410m', 4, 1024, {}),
    ('gemma-2b', 1, 2048, AUTOCAST | TWICE),
    ('olmo-2-7b', 1, 2048, QLORA | TWICE),
    ('lfm2-1.2b', 2, 2048, HALF | TWICE),
    ('qwen2.5-0.5b', 4, 2048, AUTOCAST | CHUNKS),
    ('llama-3.1-8b', 1, 8192, QLORA | TWICE | CHUNKS),
    ('smollm2-1.7b', 2, 2048, HALF | TWICE | CHUNKS | AT_ONCE),
    ('pythia-2.8b', 2, 2048, HALF | TWICE),
    ('bloom-1b7', 2, 1024, HALF | TWICE | CHUNKS),
    ('qwen3-4b', 1, 2048, LORA | TWICE),
    ('modernbert-base', 16, 512, AUTOCAST),
]


@dataclass
class Case:
    "A row of the table, as what trains and what predicts want it"

    name: str
    step: Step

    def __str__(self):
        said = [f'{k}={v}' for k, v in vars(self.step).items() if v != getattr(Step(), k)]
        return f'{self.name} {" ".join(said)}'

    @property
    def config(self):
        "The fields of the model's config.json"
        known = CONFIGS.get(self.name) or list_models()[self.name]
        return {k: v for k, v in known.items() if k != 'hub'} | dict(attention_dropout=0.0)

    def train(self, values=False):
        "What `simulate` takes; the model is made where tensors are made, in 4 bits with or without `values`"
        step, settings = self.step, apply_step(TrainConfig(), self.step)

        def make():
            with config_folder(self.config) as folder:
                how = dict(lora=step.lora, load_in_4bit=step.load_in_4bit, weights=step.weights)
                model = open_any(folder, step.seq_len, **how)[0]
            if values and step.load_in_4bit:
                give_values(model)
            return model

        return model_step(make, settings)


def list_cases():
    return [Case(name, Step(batch, tokens, **how)) for name, batch, tokens, how in ROWS]


def predict_case(case, card):
    "What the card's allocator would hand out and reserve, by a simulation of the whole"
    started = time.process_time()
    row = dict(model=case.name, step={k: v for k, v in vars(case.step).items() if v != getattr(Step(), k)})
    try:
        trace = simulate(*case.train(), device=card, steps=3)
    except MemtrainError as e:
        return row | dict(error=str(e))
    held = reserve(trace, card)
    row |= dict(tensors=trace.peak, allocated=held.allocated, reserved=held.reserved)
    return row | dict(took=time.process_time() - started)


def give_values(model):
    "Numbers for a model in 4 bits, which is made without any: what is packed is 0, its loss finite"
    for t in [*model.parameters(), *model.buffers()]:
        t.data.normal_(std=0.02) if t.is_floating_point() else t.data.zero_()
    for module in model.modules():
        if state := getattr(getattr(module, 'weight', None), 'quant_state', None):
            state.absmax.zero_()
            state.code.zero_()


def measure_case(case, device='cuda'):
    "The same steps, on the card"
    clear_device(device)
    left = torch.cuda.memory_allocated() if device == 'cuda' else 0
    started = time.perf_counter()
    torch.manual_seed(0)
    model_fn, optimizer_fn, step_fn = case.train(values=True)
    with torch.device(device):
        model = model_fn()
    model.to(device)
    optimizer = optimizer_fn([p for p in model.parameters() if p.requires_grad])
    built = time.perf_counter() - started
    row = dict(left=left, built=built)
    if device == 'cuda':
        row['weights'] = torch.cuda.memory_allocated() - left
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM):
        step_fn(model, optimizer)
    if device == 'cuda':
        torch.cuda.synchronize()
        row |= dict(
            allocated=torch.cuda.max_memory_allocated() - left, reserved=torch.cuda.max_memory_reserved()
        )
    times = time_work(lambda: step_fn(model, optimizer), TIMED, 0, device)
    return row | dict(seconds=statistics.median(times), spread=[min(times), max(times)])


def keep(which, values, args, command):
    if not args.only:
        save_result(which, values, f'python benchmarks/gpu_plans.py {command}', args.results)


def predict_all(args):
    cases = [c for c in list_cases() if args.only in str(c)]
    with ProcessPoolExecutor(args.jobs) as pool:
        waiting = [pool.submit(predict_case, c, args.card) for c in cases]
        rows = {}
        for case, row in zip(cases, progress(waiting, total=len(waiting), desc='predicting')):
            rows[str(case)] = row.result()
            print(case, rows[str(case)], flush=True)
    versions = dict(torch=torch.__version__, transformers=__import__('transformers').__version__)
    values = dict(card=args.card, versions=versions, rows=rows)
    keep('gpu_plans_predicted', values, args, f'predict --card {args.card}')
    return values


def measure_all(args):
    begun = time.perf_counter()
    versions = dict(transformers=__import__('transformers').__version__)
    values = dict(describe_device(args.device), versions=versions, rows={})
    for case in list_cases():
        if args.only not in str(case):
            continue
        row = dict(error='left out: no time')
        if time.perf_counter() - begun < 60 * args.minutes:
            try:
                row = measure_case(case, args.device)
            except Exception as e:
                traceback.print_exc(limit=-3)
                row = dict(error=describe_failure(e))
            gc.collect()
        values['rows'][str(case)] = row
        print(f'{time.perf_counter() - begun:5.0f} {case} {row}', flush=True)
        keep('gpu_plans', values, args, 'measure')
    return values


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('part', choices=['predict', 'measure'])
    parser.add_argument('--card', default='h100', help='as memtrain names it')
    parser.add_argument('--device', default='cuda', help='cpu, to see whether it runs')
    parser.add_argument('--jobs', type=int, default=2, help='processes that predict')
    parser.add_argument('--minutes', type=float, default=5, help='after which nothing new is measured')
    parser.add_argument('--only', default='', help='rows with this in their text; shown, not kept')
    parser.add_argument('--results', default=str(results_dir()), help='folder of the results')
    args = parser.parse_args()
    sys.modules.setdefault('torchvision', None)  # nothing here looks at pictures from a file
    (predict_all if args.part == 'predict' else measure_all)(args)


if __name__ == '__main__':
    main()
