#!/usr/bin/env python3
"""What a card that holds some of the experts waits for: the choices of a trained mixture through caches.

    python benchmarks/expert_cache.py [--steps 800] [--samples 400]

Trains the mixture of `routing.py` (6 layers of 16 experts, two a token, Python's standard library) for STEPS
steps, collects traces of SAMPLES windows that it hasn't learnt from, trains an MLP on seven tenths of them to
name the experts of the next layer, and replays the choices of the held-out fifth: through a cache for each
layer that gives up what was used longest ago, the same with the MLP's two guesses fetched ahead, and the best
that any cache could do. Then the bytes and tokens that this would mean for two published shapes on cards of
`devices`, if their gates were as steady. Writes results/expert_cache.json."""

from __future__ import annotations

import argparse, sysconfig, tempfile
from pathlib import Path

from routing import EXCLUDE, train_model

from memtrain.collect import collect_run
from memtrain.core import save_result
from memtrain.devices import find_device
from memtrain.expert_cache import (
    ExpertSizes,
    ExpertTraffic,
    compare_caches,
    count_room,
    guess_choices,
    read_choices,
    serve_tokens,
)
from memtrain.prepare import prepare
from memtrain.routing import load_predictor, train_predictor
from memtrain.trace_files import split_samples

# by their config.json, in bfloat16: an expert has three matrices, the rest is attention and the two tables
SHAPES = {
    'Mixtral 8x7B': (ExpertSizes(3 * 4096 * 14336 * 2, 32, 8, 3_211_272_192), 2),
    'Qwen1.5-MoE-A2.7B': (ExpertSizes(3 * 2048 * 1408 * 2, 24, 60, 3_717_402_624), 4),
}
CARDS = {'Mixtral 8x7B': ('rtx3090', 'a100'), 'Qwen1.5-MoE-A2.7B': ('rtx3060', 'rtx3090')}


def measure(work, a):
    "The replays of one model"
    prepare([sysconfig.get_paths()['stdlib']], work / 'data', vocab_size=2048, exclude=EXCLUDE)
    summary = train_model(work, 0, a)
    collect_run(work / 'run0', work / 'traces', samples=a.samples, device='cpu')
    how = dict(window=1, epochs=8, batch_size=16, gradient_accumulation_steps=1, device='cpu')
    trained = train_predictor(work / 'traces', work / 'mlp', 'mlp', **how)
    choices = read_choices(work / 'traces', split_samples(work / 'traces')['test'])
    guesses = guess_choices(work / 'traces', load_predictor(work / 'mlp'), choices)

    sizes, served, every = [], [], 6 * 16
    for eighths in range(1, 8):
        found = compare_caches(choices, every * eighths // 8, guesses)
        rates = {name: traffic.hit_rate for name, traffic in found.items()}
        sizes.append(
            {'share': eighths / 8, **rates, 'ahead': found['guessed'].ahead / found['guessed'].needed}
        )
    for name, (shape, k) in SHAPES.items():
        for card in CARDS[name]:
            device, needed = find_device(card), k * shape.layers
            room = count_room(shape, device)
            share = room / (shape.layers * shape.experts)
            row = {'model': name, 'card': card, 'room': room, 'share': share}
            for way, traffic in compare_caches(choices, max(1, round(share * every)), guesses).items():
                waited = needed * (1 - traffic.hit_rate)
                ahead = needed * traffic.ahead / traffic.needed
                row[way] = serve_tokens(ExpertTraffic(1, needed, waited, ahead), shape, device)
            served.append(row)
    about = {'steps': a.steps, 'val_loss': summary['val_loss'], 'recall': trained['recall']}
    return {**about, 'tokens': sum(map(len, choices.values())), 'sizes': sizes, 'served': served}


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--steps', type=int, default=800)
    parser.add_argument('--samples', type=int, default=400)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as d:
        save_result('expert_cache', measure(Path(d), args), 'python benchmarks/expert_cache.py')
