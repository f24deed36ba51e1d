"""Record the laws of memory of other people's models: what a training step of one of them holds, for any
sizes.

Steps of one, two and three blocks (of two to four, beside adapters) are simulated, as `memtrain train`
takes them, with sizes that share no prime, so that the bytes of every tensor say which product of sizes
they are: `2·N·f` is a bfloat16 tensor as wide as the MLP. What the second block adds, and the third adds
again, any more add too. Of all moments of the step those are kept that are the highest for some sizes.
`memtrain/laws.json` has them, by the kind of model (`model_type` of its config.json) and the way it is
trained; `memtrain.families` reads it, and needs no transformers.

    python benchmarks/laws.py [llama qwen3 …] [--tied 0] [--adapters lora] [--shared fsdp]
"""

import argparse, contextlib, itertools, json, random, sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import bitsandbytes as bnb
import numpy as np
import torch
import torch.nn.functional as F

from memtrain.cuda import CUDA_TEMPORARIES
from memtrain.devices import find_device
from memtrain.families import KINDS
from memtrain.model import GPT, GPTConfig
from memtrain.ranks import Ranks, spread_model
from memtrain.record_laws import align, keep_highest, list_moments, list_standing, trace_micro_batches
from memtrain.simulate import Tracer
from memtrain.train import TrainConfig, apply_settings
from memtrain.weights import OwnModel

DEST = Path(__file__).resolve().parents[1] / 'memtrain' / 'laws.json'
# N tokens in windows of T, d width, q and k of all heads' queries and of their keys, p of the queries'
# quarter that GPT-NeoX rotates, u of both and values, f of the MLP, V ids, H heads, D of a head,
# r of an adapter, c tokens of a chunk, L blocks, S of these with a mask, P positions that have an embedding,
# E sums that the gradient of a table is made of: one for every tenth of the tokens and for each different id,
# of which there are as many as tokens here
B, SIZES = (
    3,
    dict(
        T=7 * 128 * 37,
        N=3 * 7 * 128 * 37,
        d=15 * 8 * 19,
        q=15 * 64,
        k=5 * 64,
        u=25 * 64,
        f=8 * 151,
        V=64 * 2017,
        H=15,
        D=64,
        r=11,
        c=3 * 128 * 37,
        P=32 * 2029,
        E=3 * 7 * 128 * 37 // 10 + 3 * 7 * 128 * 37,
    ),
)
PRODUCTS = [
    'N',
    'c',
    'T',
    *'dqkufVr',
    *('N' + a for a in 'dqkufVHDr'),
    *('c' + a for a in 'dV'),
    'dd',
    *('d' + a for a in 'qkufVPT'),
    *('r' + a for a in 'dqkufV'),
    'NTH',
    'NT',
    'TT',
    'TD',
    'Td',
]
# and whether they tie weights; mistral and qwen2 have Llama's layers, but for biases; gpt2 has dropout, as it
# was published, gpt2_plain none
TIES = dict(
    llama=(False, True),
    qwen3=(False, True),
    gpt2=(True,),
    gpt2_plain=(True,),
    gemma=(True,),
    gpt_neox=(False,),
    phi3=(False,),
    gemma2=(True,),
    gemma3_text=(True,),
    granite=(True,),
    olmo2=(False,),
    smollm3=(True,),
)
OWN = dict(memtrain=(True, False), memtrain_llama=(False, True))
# whose heads may be wider or narrower than the model's width divided by their number
OWN_HEADS = 'llama', 'qwen3', 'gemma', 'gemma2', 'gemma3_text', 'granite', 'olmo2', 'smollm3'
LATER = 'gemma2', 'gemma3_text'  # whose first block isn't like the others
EACH_HEAD = 'gpt2', 'gpt2_plain', 'gpt_neox', 'memtrain'  # have keys and values of its own
WEIGHTS, ADAPTERS = ('float32', 'autocast', 'bfloat16'), ('', 'lora', 'qlora')
RANKS = 8  # that share a model by FSDP: a part of a tensor is an eighth of it, and divides every size
# a model by no ranks; by several, their parts on the card or in RAM; by one whose weights are in RAM
SHARED = '', 'fsdp', 'fsdp offload', 'offload'
WHOLE = {
    'g': 'numbers in the weights of a block, which are gathered together',
    'R': 'numbers in all others',
    'a': "numbers in a block's adapters",
}
# bytes a number that an update of bfloat16 weights holds, and numbers that it takes at a time
UPDATE, SLICE = 34, 2**22
CARD = replace(find_device('a100'), workspace=0)
EXACT = SimpleNamespace(name='cuda', round_size=lambda n: n, temporaries=CUDA_TEMPORARIES, card=CARD)


class Linear4bit(bnb.nn.Linear4bit):
    """bitsandbytes' layer as a tensor of 4 bits a weight and one of a number for 64 of them: its own can't be
    made of tensors without data"""

    def __init__(self, linear):
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias, self.compute_dtype = (
            linear.in_features,
            linear.out_features,
            linear.bias,
            torch.bfloat16,
        )
        n = self.in_features * self.out_features
        self.weight = torch.nn.Parameter(torch.empty(n // 2, 1, dtype=torch.uint8), requires_grad=False)
        self.weight.compress_statistics, self.weight.quant_type, self.weight.quant_state = False, 'nf4', None
        self.register_buffer('scales', torch.empty(n // 64), persistent=False)  # whole on every rank

    def forward(self, x):
        y = _Product.apply(x.to(self.compute_dtype), self.weight, self.out_features)
        return (y if self.bias is None else y + self.bias.to(self.compute_dtype)).to(x.dtype)

    def _apply(self, fn, recurse=True):
        scales = self._buffers.pop('scales')  # they stay float32
        super()._apply(fn, recurse)
        self.register_buffer('scales', scales.to(self.weight.device), persistent=False)
        return self


class _Product(torch.autograd.Function):
    "With the weight made bfloat16 for as long as the product takes, forward and backward"

    @staticmethod
    def forward(ctx, x, weight, out_features):
        ctx.save_for_backward(weight)
        return F.linear(x, x.new_empty(out_features, x.shape[-1]))

    @staticmethod
    def backward(ctx, grad):
        return (
            grad @ grad.new_empty(grad.shape[-1], 2 * ctx.saved_tensors[0].numel() // grad.shape[-1]),
            None,
            None,
        )


def sizes_of(kind):
    if kind in OWN_HEADS:
        # one head of keys is shared without being copied, so more have another law
        return SIZES | (dict(k=64, u=17 * 64) if kind == 'gemma3_text' else {})
    same = dict(d=15 * 64, k=15 * 64, u=45 * 64) if kind in EACH_HEAD else dict(d=15 * 64)
    return (
        SIZES
        | same
        | (dict(f=4 * 15 * 64) if kind == 'memtrain' else dict(p=15 * 16) if kind == 'gpt_neox' else {})
    )


def of_product(name, sizes):
    """What the letters of `name` make; behind a w comes what is divided among so many ranks, of which the
    first has no less than the others"""
    n, (before, w, parted) = 1, name.partition('w')
    for a in before + parted[1:]:
        n *= sizes[a]
    return n * -(-sizes[parted[0]] // sizes['w']) if w else n


def name_size(size, op, sizes):
    "The product of which `size` is a small multiple, and what times; w of it is the part of a rank"
    if op == 'aten::embedding_dense_backward':  # its sums, of rows of 32 numbers
        for p, times, rows in (('Ed', 4, sizes['E']), ('Td', 4.4, sizes['T'] // 10 + sizes['T'])):
            if size == 4 * rows * -(-sizes['d'] // 32) * 32:
                return p, times
            if size == 8 * rows:
                return '', size
    parts = bool(sizes.get('g')) and sizes.get('w', 1) > 1
    found = [
        (16 * size // v / 16, p)
        for p in [*PRODUCTS, *[a for a in WHOLE if sizes.get(a)], *['Np'] * ('p' in sizes)]
        if 16 * size % (v := of_product(p, sizes)) == 0
        and (
            size // v <= 64
            if size % v == 0
            else (p in PARTS if parts else p in FOUR_BITS) and 16 * size // v < 16
        )
    ]
    if found:
        # where one is a multiple of another, as 4·d is of d, no part
        times, p = min(found, key=lambda tp: (parts and tp[0] < 1, tp))
        return (
            ('w' + p, RANKS * times)
            if parts and times < 1 and not (sizes.get('packed') and p in FOUR_BITS)
            else (p, times)
        )
    if size < 2**15:
        return '', size
    for p in 'NT':
        # a few more than there are tokens
        if abs(size - (times := round(size / sizes[p])) * sizes[p]) < 100 * times:
            return p, times
    assert size < 2**19, f'{op}: {size} bytes are no product of the sizes'
    return '', size


FOUR_BITS = 'dd', 'dq', 'dk', 'du', 'df'
PARTS = *FOUR_BITS, *WHOLE, 'dV', 'dP', *('r' + a for a in 'dqkuf'), *'dqkuf'  # what is divided among ranks
FEW = '', 'N', 'T', 'd'  # of activations and temporaries; all of them together aren't a thousandth


def config_of(kind, sizes, blocks, tied):
    from transformers import AutoConfig

    s = sizes
    kind, plain = kind.removesuffix('_plain'), kind.endswith('_plain')
    kw = (
        dict(
            n_embd=s['d'],
            n_layer=blocks,
            n_head=s['H'],
            n_positions=s['P'],
            n_inner=s['f'],
            **dict.fromkeys(('resid_pdrop', 'embd_pdrop', 'attn_pdrop'), 0.0 if plain else 0.1),
        )
        if kind == 'gpt2'
        else dict(
            hidden_size=s['d'],
            intermediate_size=s['f'],
            num_hidden_layers=blocks,
            num_attention_heads=s['H'],
            max_position_embeddings=s['P'],
            attention_dropout=0.0,
        )
    )
    if kind not in ('gpt2', 'gpt_neox'):
        kw |= dict(num_key_value_heads=s['k'] // s['D'])
    if kind in OWN_HEADS:
        kw |= dict(head_dim=s['D'])
    if kind == 'phi3':
        kw |= dict(pad_token_id=0)
    if kind == 'gemma2':
        kw |= dict(sliding_window=2 * s['T'])  # of steps of longer windows nothing is recorded
    # of layers that take turns, those that are most
    if kind == 'gemma3_text':
        kw |= dict(layer_types=['sliding_attention'] * blocks)
    if kind == 'smollm3':
        kw |= dict(no_rope_layers=[1] * blocks)
    kw |= KINDS[kind].fields
    return AutoConfig.for_model(kind, vocab_size=s['V'], tie_word_embeddings=tied, **kw)


def make_model(config, adapters, rank):
    "What `open_model` makes of a folder with that config.json"
    import peft
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if adapters == 'qlora':
        head = model.get_output_embeddings()
        for parent in [*model.modules()]:
            for name, m in [*parent.named_children()]:
                if m is not head and (isinstance(m, torch.nn.Linear) or type(m).__name__ == 'Conv1D'):
                    setattr(
                        parent,
                        name,
                        Linear4bit(m if isinstance(m, torch.nn.Linear) else torch.nn.Linear(*m.weight.shape)),
                    )
        model.is_loaded_in_4bit = True
    if adapters:
        model.requires_grad_(False)
        model = peft.get_peft_model(
            model,
            peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules='all-linear', task_type='CAUSAL_LM'),
        )
    return OwnModel(model, vocab_size=config.vocab_size, block_size=config.max_position_embeddings)


@contextlib.contextmanager
def pretend_ranks(n):
    "A group of `n` ranks that say nothing, of which this process is the first"
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group('fake', store=FakeStore(), rank=0, world_size=n)
    try:
        yield Ranks(0, n, torch.device('cuda'))
    finally:
        torch.distributed.destroy_process_group()


def name_shape(shape, sizes):
    "The letters of a weight of that `shape`, and what times, as what ranks divide by its rows"
    # of 4 bits
    if shape[-1] == 1:
        return 'w' + next(p for p in FOUR_BITS if of_product(p, sizes) == 2 * shape[0]), 1 / 2
    letters, times = 'w', 1
    for n in shape:
        a, more = next((a, n // sizes[a]) for a in 'dfuqkVrPD' if n in (sizes[a], 2 * sizes[a]))
        letters, times = letters + a, times * more
    return letters, times


def trace_step(
    kind,
    sizes,
    blocks,
    tied,
    adapters,
    weights,
    checkpointing,
    chunked,
    shared='',
    ranks=None,
    kind_of_tracer=Tracer,
):
    """What a micro-batch allocates, simulated, whose gradients are used and dropped at once; where ranks
    share the model, what two of a step do"""
    whole, shapes = {}, Counter()
    c = TrainConfig(
        weights=weights if weights == 'bfloat16' else 'float32',
        activation_checkpointing=checkpointing,
        loss_chunk_size=sizes['c'] * chunked,
    )

    def model_fn():
        if kind in OWN:
            layers = (
                dict(norm='rms', positions='rotary', mlp='swiglu', mlp_hidden=sizes['f'], n_kv_head=5)
                if kind == 'memtrain_llama'
                else {}
            )
            model = GPT(
                GPTConfig(sizes['V'], sizes['P'], blocks, sizes['H'], sizes['d'], tie_weights=tied, **layers)
            )
        else:
            model = make_model(config_of(kind, sizes, blocks, tied), adapters, sizes['r'])
        model = apply_settings(model, c).to('cuda')
        if not ranks:
            return model
        block, everything = [*model.blocks[0].parameters()], [*model.parameters()]

        # as many as take so many bytes, which travel together
        def numbers(params):
            return sum(p.numel() * p.element_size() for p in params) // (2 if weights == 'bfloat16' else 4)

        whole['g'], trained = numbers(block), numbers(p for p in block if p.requires_grad)
        whole.update(
            {
                'w': ranks.world_size,
                'packed': adapters == 'qlora',
                'R': numbers(everything) - len(model.blocks) * whole['g'],
                **({'a': trained} if trained < whole['g'] else {}),
            }
        )
        shapes.clear()
        for p in everything:
            letters, times = name_shape(p.shape, sizes)
            shapes[letters] += times * p.element_size()
        for b in model.buffers():  # are whole on every rank
            product, times = (
                name_shape((64 * b.numel() // 2, 1), sizes)
                if whole['packed'] and b.numel() > 2**10
                else ('', 32 * b.numel())
            )
            shapes[product.strip('w')] += times * b.element_size() / 32
        return spread_model(model, 'fsdp', ranks, offload='offload' in shared).model

    how = dict(
        autocast=weights == 'autocast',
        updates=weights == 'bfloat16',
        at_once=not ranks,
        device=EXACT,
        kind=kind_of_tracer,
    )
    return trace_micro_batches(model_fn, B, sizes['T'], **how), whole, shapes


def extend(one, two, three, first=1):
    """What is held in a model of L blocks, of models of `first` blocks and one and two more: by category and
    product, how many times; None if blocks don't add the same"""
    law = {}
    for category, product in one.keys() | two.keys() | three.keys():
        a, b, c = (held[category, product] for held in (one, two, three))
        if abs(a - 2 * b + c) > 0.01 * abs(b):
            return None  # these moments only look alike
        if product in FEW and category not in ('weights', 'gradients'):
            continue
        for letters, n in ((product, a - first * (b - a)), ('L' + product, b - a)):
            if n:
                law.setdefault(category, {})[letters] = int(n) if n == int(n) else round(n, 4)
    return law


def highest(laws, kind, weights, number):
    """Those of `laws` that are the highest for some sizes; of `weights` that ranks share, `number` bytes
    each, it is known what they are parts of"""
    rng = random.Random(0)
    drawn = [draw(rng, kind) for _ in range(2000)]
    for s in drawn if weights else ():
        s['w'] = rng.choice((2, 4, 8, 16, 64))

        def of(inside, adapters=False):
            return (
                s['w']
                * sum(
                    n * of_product(p, s | dict(L=1))
                    for p, n in weights.items()
                    if 'w' in p and ('L' in p) == inside and ('r' in p or not adapters)
                )
                / number
            )

        s |= {'g': of(True), 'R': of(False), 'a': of(True, True)}
    columns = sorted({p for law in laws for products in law.values() for p in products})
    values = {p: np.array([of_product(p, s) for s in drawn], float) for p in columns}

    def bytes_of(category, p, n):
        return UPDATE * np.minimum(SLICE, n * values[p]) if category == 'update' else n * values[p]

    held = np.array(
        [
            sum(
                (bytes_of(category, p, n) for category, products in law.items() for p, n in products.items()),
                np.zeros(len(drawn)),
            )
            for law in laws
        ]
    )
    return keep_highest(laws, held)


def draw(rng, kind):
    "Sizes that a model may have"
    width, D, N = (
        rng.choice((512, 768, 1024, 2048, 4096, 8192, 16384)),
        rng.choice((64, 80, 128, 256)),
        int(2 ** rng.uniform(8, 18)),
    )
    H = max(1, width // D)
    k = D * H if kind in EACH_HEAD else D * max(1, H // rng.choice((1, 1, 4, 8)))
    V = rng.choice((8192, 32000, 50257, 128256, 256000))
    return dict(
        d=width,
        D=D,
        H=H,
        E=(N // 10 + min(N, V)) * (N > 3072),
        V=V,
        p=H * D // 4,
        q=H * D,
        k=k,
        u=H * D + 2 * k,
        f=int(width * rng.choice((2.7, 3.5, 4, 8))),
        N=N,
        T=N // rng.choice((1, 1, 4)),
        L=rng.choice((6, 12, 24, 32, 48, 80)),
        P=2048,
        r=rng.choice((8, 16, 64)),
        c=rng.choice((256, 1024, 4096)),
    )


def record(kind, tied, adapters, weights, checkpointing, chunked, shared=''):
    "The law of such steps"
    n = 1 if shared == 'offload' else RANKS
    # beside adapters the first block is unlike the others: nothing before it is trained; under FSDP the first
    # and the last are, which have a neighbour less; of some the first drops rotations before others do
    sizes, first = (
        sizes_of(kind) | (dict(r=RANKS * SIZES['r']) if shared else {}),
        3 + (kind in LATER) if shared else 2 if adapters or kind in LATER else 1,
    )
    with pretend_ranks(n) if shared else contextlib.nullcontext() as ranks:
        traces = [
            trace_step(
                kind, sizes, first + more, tied, adapters, weights, checkpointing, chunked, shared, ranks
            )
            for more in range(3)
        ]

    def namer(whole):
        def name(b):
            product, times = name_size(b.size, b.op, sizes | whole)
            return {product: times}

        return name

    standing = [
        list_standing(trace, namer(whole)) | ({'weights': shapes} if shapes else {})
        for trace, whole, shapes in traces
    ]

    def constant(counters):
        return extend(
            *(Counter({('weights', p): n for p, n in counter.items()}) for counter in counters), first
        ).get('weights', {})

    divided = constant([shapes for _, _, shapes in traces]) if shared else {}

    def law_of(micro):
        passes = [*zip(*(list_moments(trace, namer(whole), micro) for trace, whole, _ in traces))]
        laws = [extend(*moment, first) for steps in passes for moment in align(steps)]
        # some are found from both ends
        found, least = [law for law in laws if law is not None], sum(len(steps[0]) for steps in passes)
        assert len(found) >= 0.95 * least, (
            f'{len(found)} of {len(laws)} moments have a law, and a step of {first} blocks has {least}'
        )
        return highest(found, kind, divided, 2 if weights == 'bfloat16' else 4)

    law = {
        'weights': constant([s['weights'] for s in standing]),
        'gradients': constant([s['gradients'] for s in standing]),
        'first': law_of('first'),
        'more': law_of('more'),
    }
    if 'offload' in shared:
        law['weights'] = {p: n for p, n in law['weights'].items() if 'w' not in p}
    if not adapters and not shared:
        law['at_once'] = law_of('at_once')
    law = {
        name: part
        for name, part in law.items()
        if name not in ('more', 'at_once') or part != law['first' if name == 'more' else 'more']
    }
    # each block that was recorded keeps a mask of its own; of a whole model's, S do
    return json.loads(json.dumps(law).replace('"LNT"', '"SNT"'))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('kinds', nargs='*', default=[*TIES, *OWN])
    parser.add_argument('--tied', type=int, choices=(0, 1), help='these alone')
    parser.add_argument('--adapters', choices=ADAPTERS, help='these alone')
    parser.add_argument('--shared', choices=SHARED, help='these alone')
    args = parser.parse_args()
    sys.modules.setdefault('torchvision', None)  # nothing here looks at pictures
    import transformers.models.auto, peft  # noqa: F401

    def only(given, every):
        return every if given is None else (given,)

    for kind in args.kinds:
        found, laws = json.loads(DEST.read_text()) if DEST.exists() else {}, {}
        for shared, tied, adapters, weights, checkpointing, chunked in itertools.product(
            only(args.shared, SHARED),
            only(args.tied, (TIES | OWN)[kind]),
            only(args.adapters, ADAPTERS[:1] if kind in OWN else ADAPTERS),
            WEIGHTS,
            (False, True),
            (False, True),
        ):
            # nobody's way
            if adapters and weights == 'float32' or adapters == 'qlora' and 'offload' in shared:
                continue
            # who has no room for weights saves what costs less before
            if 'offload' in shared and (weights == 'float32' or not checkpointing or not chunked):
                continue
            way = ' '.join(
                [
                    weights,
                    *[adapters] * bool(adapters),
                    *[shared] * bool(shared),
                    *['checkpointing'] * checkpointing,
                    *['chunks'] * chunked,
                    *['tied'] * tied,
                ]
            )
            # frozen, both tables as one: the same but for the second
            if adapters and tied and not shared and False in (TIES | OWN)[kind]:
                law = (found.get(kind, {}) | laws)[way.removesuffix(' tied')]
                laws[way] = law | {'weights': law['weights'] | {'dV': law['weights']['dV'] // 2}}
            else:
                laws[way] = record(kind, bool(tied), adapters, weights, checkpointing, chunked, shared)
        found = json.loads(DEST.read_text()) if DEST.exists() else {}
        found[kind] = found.get(kind, {}) | laws
        DEST.write_text(
            '{'
            + ',\n'.join(
                f'{json.dumps(k)}:{{'
                + ',\n'.join(
                    f'{json.dumps(way)}:{json.dumps(law, separators=(",", ":"), sort_keys=True)}'
                    for way, law in sorted(v.items())
                )
                + '}'
                for k, v in sorted(found.items())
            )
            + '}\n'
        )
        print(kind, len(laws), DEST.stat().st_size, flush=True)


if __name__ == '__main__':
    main()
