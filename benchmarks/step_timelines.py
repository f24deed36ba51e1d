#!/usr/bin/env python3
"""What a training step of GPT-2 small holds from event to event, with every choice of four techniques:
predicted for an A100, on a machine without one.

    # writes results/step_timelines.json, which the interactive timeline of the site shows
    python benchmarks/step_timelines.py

124M parameters, 8 windows of 1,024 tokens, the second step. A timeline has some thousand events; each is
cut into at most 160 stretches of as many events, and of each stretch the event that holds most is kept, so
no peak is lost."""

import itertools

import numpy as np

from memory import make_functions
from memtrain.core import format_size, progress, save_result
from memtrain.estimate import Step, simulate
from memtrain.core import CATEGORIES
from memtrain.model import named_config

MODEL, CARD, STRETCHES = 'gpt2', 'a100', 160
CHOICES = dict(
    use_mixed_precision=True, optimizer='adamw8bit', activation_checkpointing=True, loss_chunk_size=1024
)


def thin(trace) -> dict:
    """The timeline of `trace` with at most `STRETCHES` points: the event, bytes by category, and the numbers
    of its operation's and module's name among `words` (no operation: something was freed)."""
    total, ops = trace.timeline.sum(1), {b.start: (b.op, b.module) for b in trace.blocks}
    first = [start for name, start, _ in trace.spans if name == 'forward'][-1]  # of the second step
    cuts = np.linspace(first, trace.events, min(STRETCHES, trace.events - first) + 1).astype(int)
    at = [int(a + total[a:b].argmax()) for a, b in itertools.pairwise(cuts) if b > a]
    words: list[str] = []

    def number(word):
        if word not in words:
            words.append(word)
        return words.index(word)

    points = [
        ' '.join(map(str, [e - first, *trace.timeline[e].tolist(), *map(number, ops.get(e, ('', '')))]))
        for e in at
    ]
    phases = [(name, start - first, end - first) for name, start, end in trace.spans if start >= first]
    return dict(
        events=trace.events - first, peak=int(total[first:].max()), phases=phases, words=words, points=points
    )


def main():
    shape, found = named_config(MODEL), {}
    for on in progress(list(itertools.product((False, True), repeat=len(CHOICES))), desc='steps'):
        given = {k: v for (k, v), o in zip(CHOICES.items(), on) if o}
        trace = simulate(
            *make_functions(shape, Step(seq_len=1024, batch_size=8, **given), 'cuda'), device=CARD
        )
        found[''.join('01'[o] for o in on)] = thin(trace)
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
