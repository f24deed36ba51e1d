#!/usr/bin/env python3
"""What simulating a step of eight billion parameters costs: CPU seconds and memory, each way in a process
of its own.

    python benchmarks/simulate_large.py [--layers 32]

Our GPT in the shape of Llama 3 8B, one window of 2,048 tokens, blocks checkpointed, with `device='cuda'`.
The table goes to results/simulate_large.json, unless `--layers` is given.
"""

from __future__ import annotations

import argparse, json, resource, subprocess, sys, time

from memtrain.core import format_size, progress, save_result

SHAPE = dict(
    vocab_size=128256,
    block_size=2048,
    n_layer=32,
    n_head=32,
    n_kv_head=8,
    n_embd=4096,
    mlp_hidden=14336,
    norm='rms',
    positions='rotary',
    mlp='swiglu',
    tie_weights=False,
)
IN_BACKWARD = dict(optimizer_in_backward=True, grad_clip=0)
WAYS = {
    'float32': {},
    'autocast': dict(use_mixed_precision=True),
    'autocast, 8-bit states': dict(use_mixed_precision=True, use_8bit_optimizer=True),
    'autocast, updates in the backward pass': dict(use_mixed_precision=True, **IN_BACKWARD),
    'bfloat16 weights': dict(weights='bfloat16'),
    'bfloat16 weights, updates in the backward pass': dict(weights='bfloat16', **IN_BACKWARD),
}


def simulate_one(way, layers):
    "What one process finds"
    from memtrain.estimate import simulate
    from memtrain.model import GPTConfig, count_params
    from memtrain.train import TrainConfig, gpt_step

    shape, ready, wall = GPTConfig(**{**SHAPE, 'n_layer': layers}), time.process_time(), time.perf_counter()
    trace = simulate(
        *gpt_step(shape, TrainConfig(batch_size=1, activation_checkpointing=True, **WAYS[way])), device='cuda'
    )
    return dict(
        way=way,
        params=count_params(shape),
        peak=trace.peak,
        events=trace.events,
        cpu_seconds=time.process_time() - ready,
        wall_seconds=time.perf_counter() - wall,
        process_cpu_seconds=time.process_time(),
        rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def main():
    p = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument('--layers', type=int, help='blocks; all 32 by default')
    p.add_argument('--way', choices=WAYS, help=argparse.SUPPRESS)
    args = p.parse_args()
    layers, rows = args.layers or SHAPE['n_layer'], []
    if args.way:
        print(json.dumps(simulate_one(args.way, layers)))
        return
    for way in progress(list(WAYS), desc='ways'):
        rows.append(
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, '--way', way, '--layers', str(layers)],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                ).stdout
            )
        )
        print(
            f"{way:48s} {format_size(rows[-1]['peak']):>9s} {rows[-1]['cpu_seconds']:6.1f} CPU s"
            f" {format_size(rows[-1]['rss']):>9s} of RAM"
        )
    if not args.layers:
        save_result('simulate_large', dict(rows=rows), 'python benchmarks/simulate_large.py')


if __name__ == '__main__':
    main()
