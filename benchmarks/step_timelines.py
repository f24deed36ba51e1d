#!/usr/bin/env python3
"""What a training step of GPT-2 small holds from event to event, with every choice of four techniques:
predicted for an A100, on a machine without one.

    # writes results/step_timelines.json, which the interactive timeline of the site shows
    python benchmarks/step_timelines.py

124M parameters, 8 windows of 1,024 tokens, the second step, of whose events the highest are kept."""

import itertools

from memory import make_functions
from memtrain.core import format_size, progress, save_result
from memtrain.estimate import Step, simulate
from memtrain.core import CATEGORIES
from memtrain.model import named_config
from memtrain.report import pack_timeline

MODEL, CARD = 'gpt2', 'a100'
CHOICES = dict(
    use_mixed_precision=True, optimizer='adamw8bit', activation_checkpointing=True, loss_chunk_size=1024
)


def main():
    shape, found = named_config(MODEL), {}
    for on in progress(list(itertools.product((False, True), repeat=len(CHOICES))), desc='steps'):
        given = {k: v for (k, v), o in zip(CHOICES.items(), on) if o}
        trace = simulate(
            *make_functions(shape, Step(seq_len=1024, batch_size=8, **given), 'cuda'), device=CARD
        )
        found[''.join('01'[o] for o in on)] = pack_timeline(trace)
        print(f"{', '.join(given) or 'nothing'}: {format_size(trace.peak)}", flush=True)
    save_result(
        'step_timelines',
        dict(
            model=MODEL,
            card=CARD,
            batch_size=8,
            seq_len=1024,
            choices=CHOICES,
            categories=CATEGORIES,
            steps=found,
        ),
        'python benchmarks/step_timelines.py',
    )


if __name__ == '__main__':
    main()
