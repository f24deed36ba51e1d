"""What `memtrain.families` says of other people's models, held against the simulation of the step that
`memtrain train` takes with transformers' own code.

python benchmarks/plan_models.py          # writes results/plan_models.json; needs transformers and peft
"""

import argparse, contextlib, random, resource, subprocess, sys, time
from dataclasses import replace

import bitsandbytes  # noqa: F401, not while a GPU is played
import torch

from laws import make_model, pretend_ranks
from memtrain.core import GIB, load_result, local_part, save_result
from memtrain.estimate import Step, simulate
from memtrain.families import KINDS, LIKE, has_law, list_models, predict_step, read_model
from memtrain.optim import step_in_backward
from memtrain.plan import TECHNIQUES, plan
from memtrain.train import TrainConfig, apply_step, model_step


def config_of(name):
    "transformers' config of the model `name`"
    from transformers import AutoConfig

    found = list_models()[name]
    kind = found['model_type']
    # a window that nothing here is as long as makes no difference
    left_out = 'hub', 'model_type', *['sliding_window'] * (not KINDS[LIKE.get(kind, kind)].masked)
    fields = {k: v for k, v in found.items() if k not in left_out}
    return AutoConfig.for_model(
        kind,
        **fields,
        attention_dropout=0.0,
        **({'sliding_window': None} if kind == 'mistral' else {}),
        **({'pad_token_id': 0} if kind == 'phi3' else {}),
    )


def simulated(name, step, card='a100'):
    "The trace of `step` of transformers' own model"
    settings = apply_step(TrainConfig(), step)
    config = config_of(name)
    adapters = ('qlora' if step.load_in_4bit else 'lora') if step.lora else ''

    def make():
        model = make_model(config, adapters, step.lora)
        object.__setattr__(model.config, 'block_size', step.seq_len)
        return model

    shared = pretend_ranks(step.ranks) if step.parallel == 'fsdp' else contextlib.nullcontext()

    # of BF16AdamW, which takes thousands of slices of a large model; that these are no peak there shows in
    # the smaller ones
    def states_alike(params):
        if step.weights == 'float32' or sum(local_part(p).numel() for p in params if p.requires_grad) < 1.5e9:
            return optimizer_fn(params)
        optimizer = torch.optim.AdamW([p for p in params if p.requires_grad], fused=True)
        if step.optimizer_in_backward:
            step_in_backward(optimizer)
        return optimizer

    with shared as ranks:
        model_fn, optimizer_fn, step_fn = model_step(make, settings, ranks=ranks)
        return simulate(model_fn, states_alike, step_fn, device=card)


def draw(rng, lora):
    "A step that `memtrain train` could take"
    half = rng.choice(('autocast', 'bfloat16', 'bfloat16'))
    at_once = rng.random() < 0.3 and not lora
    return Step(
        rng.choice((1, 2, 4)),
        rng.choice((512, 1024, 2048)),
        1 if at_once else rng.choice((1, 2)),
        half == 'autocast',
        rng.choice(('adamw', 'adamw8bit')) if half != 'bfloat16' and not lora else 'adamw',
        rng.random() < 0.5,
        rng.choice((None, None, 256, 1024)),
        'bfloat16' if half == 'bfloat16' else 'float32',
        at_once,
        lora,
        bool(lora) and rng.random() < 0.5,
    )


def fit(name, step):
    "`step` with windows that the model `name` takes"
    return replace(step, seq_len=min(step.seq_len, read_model(name).block_size))


def hold(name, step, kind):
    started = time.process_time()
    trace = simulated(name, step)
    # train converts weights on the host
    truth = max(n for phase, n in trace.by_phase.items() if phase != 'build')
    took, started = time.process_time() - started, time.process_time()
    found = predict_step(read_model(name, step.seq_len), step)
    print(
        f'{name:16} {found.peak / truth - 1:+8.3%} {truth / GIB:7.2f} GiB {took:5.1f} s'
        f' {[v for k, v in vars(step).items() if v != getattr(Step(), k)]} {trace.peak_op}',
        flush=True,
    )
    return dict(
        model=name,
        kind=kind,
        step={k: v for k, v in vars(step).items() if v != getattr(Step(), k)},
        simulated=truth,
        predicted=found.peak,
        simulating=took,
        predicting=time.process_time() - started,
    )


def rows_of(name, seq_len, card, rows, **how):
    "The first rows of a plan, and of plans that leave out what it uses: `rows` with different techniques"
    found, shape = [], read_model(name, seq_len)
    for without in ((), ('loss_chunks',), ('bf16_weights',), ('activation_checkpointing',)):
        options = plan(
            shape,
            card,
            global_batch=32 if 'x' in card else 8,
            allow=tuple(t for t in TECHNIQUES if t not in without),
            **how,
        ).options
        found += [
            o
            for o in options
            if o.techniques not in [k.techniques for k in found]
            and ('x' not in card or o.step.parallel == 'fsdp')
        ]
    # a third micro-batch is as the second
    return [
        replace(o.step, gradient_accumulation_steps=min(2, o.step.gradient_accumulation_steps))
        for o in found[:rows]
    ]


def time_plan(name, seq_len, card, lora=0, load_in_4bit=False):
    "CPU seconds of the command"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = ['--lora', str(lora)] * bool(lora) + ['--load_in_4bit'] * load_in_4bit
    subprocess.run(
        [
            sys.executable,
            '-m',
            'memtrain',
            'plan',
            '--model',
            name,
            '--seq_len',
            str(seq_len),
            '--gpu',
            card,
            *own,
        ],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return dict(
        model=name,
        card=card,
        lora=lora,
        load_in_4bit=load_in_4bit,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--models',
        nargs='*',
        default=[
            'gpt2',
            'pythia-410m',
            'gemma-2b',
            'phi-3-mini',
            'qwen2.5-0.5b',
            'qwen3-0.6b',
            'smollm2-360m',
            'tinyllama-1.1b',
        ],
    )
    parser.add_argument('--steps', type=int, default=2, help='of each, drawn')
    parser.add_argument('--rows', type=int, default=3, help='of each plan')
    parser.add_argument('--print', action='store_true', dest='only')
    parser.add_argument('--add', action='store_true', help='these models alone, to what is recorded')
    args, rng, rows, plans = parser.parse_args(), random.Random(0), [], []
    if args.add:
        recorded = load_result('plan_models').values
        rows = [r for r in recorded['rows'] if r['model'] not in args.models]
        plans = recorded['plans']
    sys.modules.setdefault('torchvision', None)
    import transformers.models.auto, peft  # noqa: F401

    def keep(name, step, kind):  # a long run that is stopped leaves what it has found
        if not has_law(read_model(name, step.seq_len), step):
            return
        rows.append(hold(name, step, kind))
        if not args.only:
            save_result(
                'plan_models',
                dict(rows=rows, plans=plans),
                ' '.join(['python benchmarks/plan_models.py', *sys.argv[1:]]),
            )

    asked = [
        ('llama-3-8b', 4096, card, how)
        for card in ('24gb', '48gb', '80gb')
        for how in (dict(), dict(lora=16), dict(lora=16, load_in_4bit=True))
    ]
    asked += [
        ('llama-3-8b', 2048, '4x24gb', {}),
        ('llama-3-70b', 4096, '8x80gb', {}),
        ('llama-3-70b', 4096, '8x80gb', dict(lora=16)),
    ]
    for name, seq_len, card, how in [] if args.add else asked:
        plans.append(time_plan(name, seq_len, card, **how))
    for p in plans:
        print(p, flush=True)
    for name in args.models:
        for lora in (0, 16, 0)[: args.steps]:
            keep(name, fit(name, draw(rng, lora)), 'drawn')
        # over ranks that say nothing
        for ranks in (2, 8):
            keep(
                name,
                fit(
                    name,
                    replace(
                        draw(rng, 0),
                        optimizer='adamw',
                        optimizer_in_backward=False,
                        ranks=ranks,
                        parallel='fsdp',
                    ),
                ),
                'drawn',
            )
    if args.add:
        return
    small, saved = 'qwen2.5-0.5b', dict(activation_checkpointing=True, loss_chunk_size=256)
    keep(
        small,
        Step(2, 2048, weights='bfloat16', optimizer_in_backward=True, **saved),
        'updates in the backward pass',
    )
    keep(
        small,
        Step(1, 512, use_mixed_precision=True, activation_checkpointing=True, ranks=6, parallel='fsdp'),
        'no multiple of the ranks',
    )
    for ranks in (1, 8):
        keep(
            small,
            Step(2, 512, weights='bfloat16', ranks=ranks, parallel='fsdp', offload_to_cpu=True, **saved),
            'offload',
        )
    keep(
        small,
        Step(
            2,
            512,
            weights='bfloat16',
            lora=16,
            load_in_4bit=True,
            ranks=4,
            parallel='fsdp',
            **saved | {'loss_chunk_size': None},
        ),
        'QLoRA over ranks',
    )
    for turn in range(args.rows):  # of each plan the first row, then the second
        for name, seq_len, card, how in asked:
            for step in rows_of(name, seq_len, card, args.rows, **how)[turn : turn + 1]:
                keep(name, step, f'plan {card}')


if __name__ == '__main__':
    main()
