"""Record what steps of other people's models allocate and free, event by event, for any sizes: the films that
the site's calculator plays.

Steps of a few blocks, with one more and with three more, are simulated with the sizes of benchmarks/laws.py,
so that the bytes of every tensor say which product of sizes they are. What the one more block adds is put in
between, in the forward pass and in the backward pass, and is what every further block adds: three more blocks
have to be the same film, moment by moment, or none is kept. `nbs/assets/films/` has them, a file a kind of
model (`model_type` of its config.json); steps that several cards share have none.

    python benchmarks/films.py [llama qwen3 …]
"""

import argparse, contextlib, json, re, sys, warnings
from collections import Counter
from itertools import product, takewhile
from pathlib import Path

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from laws import ADAPTERS, LATER, OWN, TIES, WEIGHTS, name_size, sizes_of, trace_step
from memtrain.simulate import Tracer

DEST = Path(__file__).resolve().parents[1] / 'nbs' / 'assets' / 'films'


@contextlib.contextmanager
def noting_modules():
    "The class of a tracer that notes for which module of a block, or else of the model, each tensor is made"
    inside, names = [], {}

    def enter(module, *_):
        if module not in names:
            names.update((m, name) for name, m in module.named_modules() if m not in names)
        inside.append(module)

    def leave(*_):
        inside.pop()

    class Noting(Tracer):
        def alloc(self, *told):
            self.module = re.sub(r'.*\.\d+(\.|$)', '', names[inside[-1]]) if inside else ''
            super().alloc(*told)

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        yield Noting
    finally:
        for hook in hooks:
            hook.remove()


def list_moments(kind, tied, adapters, weights, checkpointing, chunked, blocks):
    "Of each pass what each tensor is that is made, and how many of what are freed before the next"
    sizes = sizes_of(kind)
    with noting_modules() as tracer:
        trace, _, _ = trace_step(
            kind, sizes, blocks, tied, adapters, weights, checkpointing, chunked, kind_of_tracer=tracer
        )
    middle = next(start for name, start, _ in trace.spans if name == 'backward')
    events = []
    for b in trace.blocks:
        letters, times = name_size(b.size, b.op, sizes) if b.phase != 'build' else ('', 0)
        if not times:
            continue
        if times == 1 and 'f' in letters and sizes['f'] == 4 * sizes['d']:
            letters, times = letters.replace('f', 'd'), 4  # float32 of the stream, and no bytes of the MLP
        # of an update the numbers are counted; a gradient that is dropped here may stay in a step
        category = 'update' if b.category == 'optimizer state' else b.category
        tensor = category, b.phase, b.op.split('::')[-1], b.module, letters, times
        events += [(b.start, True, tensor)] + [(b.end, False, tensor)] * (b.end is not None)
    passes = [[(None, Counter())], [(None, Counter())]]  # what is freed before anything is made
    for at, made, tensor in sorted(events, key=lambda event: event[0]):
        moments = passes[at >= middle]
        if made:
            moments.append((tensor, Counter()))
        else:
            moments[-1][1][tensor] += 1
    return passes


def cut(few, more):
    """The `few` moments in two, with what is freed besides for each further block, and those that `more` have
    in between; None if there are others"""
    added = len(more) - len(few)
    same = sum(1 for _ in takewhile(lambda both: both[0][0] == both[1][0], zip(few, more)))
    found = []
    # where the new ones begin can be told in several ways: take that in which the others are most alike
    for at in range(same, 0, -1):
        rest = more[:at] + more[at + added :]
        if any(a[0] != b[0] for a, b in zip(few, rest)):
            continue
        further = [b[1] - a[1] for a, b in zip(few, rest)]
        if all(a[1] + new == b[1] for a, b, new in zip(few, rest, further)):
            outer = [(*moment, new) for moment, new in zip(few, further)]
            block = [(*moment, Counter()) for moment in more[at : at + added]]
            found.append((sum(map(len, further)), -at, (outer[:at], block, outer[at:])))
    return min(found, key=lambda way: way[:2])[2] if found else None


def play(parts, further):
    "The moments of a pass with so many `further` blocks"
    before, block, after = parts
    for tensor, freed, new in before + further * block + after:
        yield tensor, freed + Counter({t: further * n for t, n in new.items()})


def record(*how):
    "How many blocks the film of such a step has at least, and three parts of each pass; None if none is one"
    _, _, adapters, *_ = how
    first = 3 if how[0] in LATER or adapters else 2
    few, more, longest = (list_moments(*how, first + blocks) for blocks in (0, 1, 3))
    film = [cut(*both) for both in zip(few, more)]
    if None in film or any([*play(parts, 3)] != whole for parts, whole in zip(film, longest)):
        return None
    return first, film


def write(part, tensors):
    """The moments of a `part` by the numbers of their `tensors`: 5-3-3+2 makes 5 and frees two of 3, and one
    of 2 for each further block; nothing is made where the first number is missing"""

    def number(tensor):
        return tensors.setdefault(tensor, len(tensors))

    return ' '.join(
        ''.join(
            [
                *([] if made is None else [str(number(made))]),
                *(f'-{number(t)}' for t in sorted(freed.elements())),
                *(f'+{number(t)}' for t in sorted(new.elements())),
            ]
        )
        for made, freed, new in part
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('kinds', nargs='*', default=[*TIES, *OWN])
    args = parser.parse_args()
    sys.modules.setdefault('torchvision', None)  # nothing here looks at pictures
    warnings.filterwarnings('ignore', module='transformers|peft')
    import transformers.models.auto, peft  # noqa: F401

    DEST.mkdir(exist_ok=True)
    for kind in args.kinds:
        tensors, parts, films, without = {}, {}, {}, []
        for tied, adapters, weights, checkpointing, chunked in product(
            (TIES | OWN)[kind],
            ADAPTERS[:1] if kind in OWN else ADAPTERS,
            WEIGHTS,
            (False, True),
            (False, True),
        ):
            if adapters and weights == 'float32':
                continue
            words = ['checkpointing'] * checkpointing + ['chunks'] * chunked + ['tied'] * tied
            way = ' '.join([weights, *[adapters] * bool(adapters), *words])
            found = record(kind, bool(tied), adapters, weights, checkpointing, chunked)
            if not found:
                without.append(way)
                continue
            first, film = found
            passes = [
                [parts.setdefault(write(part, tensors), len(parts)) for part in three] for three in film
            ]
            films[way] = dict(blocks=first, passes=passes)
        kept = dict(tensors=[*tensors], parts=[*parts], films=films)
        dest = DEST / f'{kind}.json'
        dest.write_text(json.dumps(kept, separators=(',', ':')) + '\n', encoding='utf-8')
        print(kind, len(films), dest.stat().st_size, *[f'without {way}' for way in without], flush=True)


if __name__ == '__main__':
    main()
