"""Record the laws of sampling: what a model holds while it reads a text and goes on writing, for any sizes.

A text that `memtrain.sampling` simulates is read by models of two, three and four blocks, each with sizes of
four kinds. A tensor's bytes grow with one product of sizes in all four, which is its name: `2Bkn` is a
bfloat16 tensor of B rows, n tokens and all heads of keys. What the third block adds, and the fourth adds
again, any more add too. Of all moments those are kept that are the highest for some sizes, and each tensor is
rounded by itself, as PyTorch's allocator does, so that a law says the bytes that a simulation says.
`tools/sampling_laws.json` has them, by the kind of model and the type of its weights; the site's calculator
reads it. Models whose attention has a window aren't here, their cache is another; nor are the biases of
Qwen 2.

    python benchmarks/sampling_laws.py [llama qwen3 …]
"""

import argparse, json, random, sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import torch

from laws import OWN, OWN_HEADS, TIES, config_of
from memtrain.memory_trace import WORKSPACE
from memtrain.families import NoLaw
from memtrain.model import GPT, GPTConfig
from memtrain.record_laws import config_folder, open_any
from memtrain.settings import TrainConfig
from memtrain.simulate import kernels_of, simulate
from memtrain.train import apply_settings

# whose heads all have keys and values of their own, and kinds without a window
EACH_HEAD = 'gpt2', 'gpt2_plain', 'gpt_neox'
RECORDED = *(kind for kind in TIES if kind not in ('gemma2', 'gemma3_text')), *OWN
DEST = Path(__file__).resolve().parents[1] / 'tools' / 'sampling_laws.json'
WEIGHTS = 'bfloat16', 'float32'
BLOCKS = 2, 3, 4
# of B rows and T tokens, n of these are read at once, and m are there when the last but one is written;
# h heads of keys, the other letters are those of benchmarks/laws.py
ROWS = '', 'B'
TOKENS = '', 'n', 'm', 'T'
WIDTHS = '', *'dqkufVHhDp', 'HT', 'Hm', 'Hn'
MATRICES = *'Pn', *map(''.join, product('dqkufPp', 'dqkufVp')), 'nn', 'TT'
PRODUCTS = sorted({''.join(o) for o in product(ROWS, WIDTHS, TOKENS)} | {*MATRICES})
# heads, width of a head, heads of keys, width and what is inside the MLP for each head, ids, positions, rows,
# tokens: such that no product of one is the same multiple of another in all of them
DRAWN = (
    (15, 64, 5, 56, 101, 8011, 1021, 3, 397),
    (6, 128, 3, 136, 211, 5003, 2039, 5, 661),
    (22, 32, 11, 24, 67, 9973, 1511, 7, 251),
    (28, 48, 7, 40, 83, 7001, 1777, 2, 883),
)
EXACT = replace(kernels_of('cuda'), round_size=lambda n: n)


def sizes_of(kind: str, drawn: tuple, each: bool) -> dict[str, int]:
    "The letters of such a model; `each` head may have keys and values of its own"
    H, D, keys, width, inner, V, P, B, T = drawn
    keys = H if each else keys
    d = H * width if kind in OWN_HEADS else H * D
    q, k = H * D, keys * D
    p = q // 4 if kind == 'gpt_neox' else q
    return dict(
        H=H, h=keys, D=D, d=d, q=q, k=k, u=q + 2 * k, p=p, f=8 * inner, V=V, P=P, B=B, T=T, n=T - 2, m=T - 1
    )


def own_config(kind: str, s: dict, blocks: int, tied: bool) -> GPTConfig:
    "The shape of our own GPT that has these sizes"
    layers = dict(norm='rms', positions='rotary', mlp='swiglu') if kind == 'memtrain_llama' else {}
    sizes = s['V'], s['P'], blocks, s['H'], s['d']
    return GPTConfig(*sizes, n_kv_head=s['h'], tie_weights=tied, mlp_hidden=s['f'], **layers)


def trace_sampling(make, s: dict):
    "What the model of `make` allocates while it reads a text and writes two tokens, as in memtrain.sampling"
    past, tokens = None, s['n']

    def step_fn(model, _):
        nonlocal past, tokens
        past = past or model.new_past()
        with torch.no_grad():
            idx = torch.randint(
                model.config.vocab_size, (s['B'], tokens), device=next(model.parameters()).device
            )
            model.next_logits(idx, past)
        tokens = 1

    return simulate(lambda: make().eval(), lambda params: [], step_fn, device=EXACT, steps=3)


def trace_text(kind: str, s: dict, blocks: int, tied: bool, weights: str):
    "A simulated text of such a model, with sizes as they are asked for"
    settings = TrainConfig(weights=weights)
    if kind in OWN:
        config = own_config(kind, s, blocks, tied)
        return trace_sampling(lambda: apply_settings(GPT(config), settings), s)
    # windows that are longer than all texts
    fields = config_of(kind, s | dict(T=s['P']), blocks, tied).to_diff_dict() | dict(pad_token_id=0)
    with config_folder(fields) as folder:
        return trace_sampling(lambda: open_any(folder, s['T'], weights=weights)[0], s)


def name_block(sizes: list[int], drawn: list[dict], op: str) -> tuple[str, Fraction]:
    "The product that the bytes of a tensor are the same multiple of in all models that were `drawn`"
    if op == WORKSPACE:
        return 'W', Fraction(1)
    found = []
    for letters in PRODUCTS:
        times = {Fraction(size, prod(s[a] for a in letters)) for size, s in zip(sizes, drawn)}
        if len(times) == 1:
            found.append((letters, times.pop()))
    if not found:
        raise NoLaw(f'{op}: {sizes} bytes are no product of the sizes', 'look at it')
    # where a width is a multiple of another, the plain one: 2 bytes of d rather than 2/3 of 3d
    return min(found, key=lambda o: (o[1].denominator, len(o[0]), o[1], o[0]))


def name_blocks(traces: list, drawn: list[dict]) -> list[tuple[str, Fraction]]:
    "The name of each block of the first of `traces`, of models that differ in their sizes alone"
    if len({tuple(b.op for b in t.blocks) for t in traces}) > 1:
        raise NoLaw('other sizes take other operations', 'look at them')
    return [
        name_block([b.size for b in same], drawn, same[0].op) for same in zip(*(t.blocks for t in traces))
    ]


def list_moments(trace, names: list, begin: int, end: float) -> list[tuple[tuple, Counter]]:
    "For each allocation from event `begin` until `end` its name, and what is held then besides the model"
    first = begins_of(trace)[0]
    events = [(b.start, 1, b, name) for b, name in zip(trace.blocks, names) if b.start >= first]
    events += [(b.end, -1, b, name) for _, _, b, name in events if b.end is not None]
    held, found = Counter(), []
    for at, sign, b, name in sorted(events, key=lambda event: event[0]):
        held[name] += sign
        if sign > 0 and begin <= at < end:
            found.append(((b.op, name), Counter({k: n for k, n in held.items() if n})))
    return found


def begins_of(trace) -> list[int]:
    "The events at which the three parts of the text begin"
    return [b.start for b in trace.blocks if b.op == 'aten::randint']


def extend(same: list[Counter]) -> dict | None:
    "{name: (how many, how many more for each block)} of what models of `BLOCKS` hold; None where it isn't so"
    law = {}
    for name in {name for held in same for name in held}:
        a, b, c = (held[name] for held in same)
        if b - a != c - b:
            return None
        law[name] = a - BLOCKS[0] * (b - a), b - a
    return law


def extend_moments(parts: list[list]) -> list[dict]:
    "Laws of the moments that `parts` of models of `BLOCKS` share, from the beginning or from the end"
    laws = []
    for ways in (parts, [part[::-1] for part in parts]):
        for same in zip(*ways):
            if len({name for name, _ in same}) > 1:
                break
            if law := extend([held for _, held in same]):
                laws.append(law)
    return [dict(o) for o in sorted({tuple(sorted(law.items())) for law in laws})]


def evaluate(law: dict, drawn: dict[str, np.ndarray]) -> np.ndarray:
    "Bytes for all sizes that were `drawn`, each tensor rounded by itself, as the allocator does"
    held = np.zeros(len(drawn['L']))
    for (letters, times), (once, more) in law.items():
        size = np.floor(float(times) * np.prod([drawn[a] for a in letters], axis=0))
        held += (once + more * drawn['L']) * 512 * np.ceil(size / 512)
    return held


def is_below(law: dict, other: dict) -> bool:
    "Whether `other` has all that `law` has, and more"
    least = (0, 0)
    return law != other and all(
        n <= m for name in law | other for n, m in zip(law.get(name, least), other.get(name, least))
    )


def draw_text(rng: random.Random, kind: str) -> dict[str, int]:
    "Sizes that a model and its text may have"
    D, H = rng.choice((8, 32, 64, 80, 128, 256)), rng.choice((2, 4, 8, 9, 14, 16, 20, 32, 40, 64, 96))
    shared = rng.choice([n for n in range(1, H + 1) if H % n == 0])
    keys = rng.choice((1, shared)) if kind not in EACH_HEAD else 1
    wide = rng.choice((0.5, 1, 1, 2)) if kind in OWN_HEADS else 1  # some have wider heads than the model
    d, inner = int(H * D * wide), rng.uniform(0.25, 8)
    B, T = rng.choice((1, 1, 2, 3, 8, 32)), int(2 ** rng.uniform(3, 17))
    drawn = (H, D, H // keys, d // H, 1, int(2 ** rng.uniform(8, 18)), 2048, B, T)
    more = dict(f=int(d * inner), L=rng.choice((1, 2, 4, 12, 24, 32, 80)), W=rng.choice((2**23, 2**25)))
    return sizes_of(kind, drawn, keys == 1) | more


def keep_highest(laws: list[dict], kind: str) -> list[dict]:
    "Those of `laws` that are the highest for some sizes"
    laws = [law for law in laws if not any(is_below(law, other) for other in laws)]
    rng = random.Random(0)
    rows = [draw_text(rng, kind) for _ in range(40_000)]
    drawn = {letter: np.array([s[letter] for s in rows], float) for letter in rows[0]}
    held = np.array([evaluate(law, drawn) for law in laws])
    kept, left = [], np.full(len(rows), True)
    while left.any():  # the one that is the highest most often, until each size has one
        highest = held == held.max(0)
        kept.append(int((highest & left).sum(1).argmax()))
        left &= ~highest[kept[-1]]
    return [laws[i] for i in sorted(kept)]


def written(law: dict) -> dict:
    "`law` as JSON has it: {letters, a space, bytes a number: [how many, how many more for each block]}"
    return {f'{letters} {float(times):g}': list(n) for (letters, times), n in sorted(law.items()) if any(n)}


def record(kind: str, tied: bool, weights: str, each: bool) -> dict:
    "The law of such a text"
    drawn = [sizes_of(kind, o, each) for o in DRAWN]
    models, cache, before, moments = [], [], [], ([], [])
    for blocks in BLOCKS:
        traces = [trace_text(kind, s, blocks, tied, weights) for s in drawn]
        trace, names = traces[0], name_blocks(traces, drawn)
        first, second, third = begins_of(trace)

        def kept(begin, until, trace=trace, names=names):
            "Blocks from `begin` on that are there at the event `until`"
            those = (o for o in zip(trace.blocks, names) if begin <= o[0].start < until)
            return Counter(
                name for b, name in those if b.op != WORKSPACE and (b.end is None or b.end >= until)
            )

        models.append(kept(0, first))
        before.append(kept(first, third))
        cache.append(kept(first, trace.events))
        moments[0].append(list_moments(trace, names, first, second))
        moments[1].append(list_moments(trace, names, second, float('inf')))
    law = {'weights': extend(models), 'cache': extend(cache), 'before': extend(before)}
    if None in law.values():
        raise NoLaw('blocks are not alike', 'look at them')
    found = {name: written(o) for name, o in law.items()}
    for name, parts in zip(('reading', 'writing'), moments):
        found[name] = [written(o) for o in keep_highest(extend_moments(parts), kind)]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('kinds', nargs='*', default=RECORDED)
    args = parser.parse_args()
    sys.modules.setdefault('torchvision', None)  # nothing here looks at pictures
    found = json.loads(DEST.read_text()) if DEST.exists() else {}
    for kind in args.kinds:
        laws = {}
        for tied, weights in product((TIES | OWN)[kind], WEIGHTS):
            way = weights + ' tied' * tied
            laws[way] = record(kind, tied, weights, each=kind in EACH_HEAD)
            # scores are written out where heads share keys and no kernel knows that
            alone = record(kind, tied, weights, each=True) if kind not in EACH_HEAD else laws[way]
            if alone != laws[way]:
                laws[f'{way} each'] = alone
        found[kind] = laws
        lines = (f'{json.dumps(k)}:{json.dumps(v, separators=(",", ":"))}' for k, v in sorted(found.items()))
        DEST.write_text('{' + ',\n'.join(lines) + '}\n')
        print(
            kind, {way: [len(law['reading']), len(law['writing'])] for way, law in laws.items()}, flush=True
        )


if __name__ == '__main__':
    main()
