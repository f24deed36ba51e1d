#!/usr/bin/env python3
"""Training steps of nanoGPT's train.py beside memtrain's Trainer: the same shape and tokens, eager and
compiled, in turns.

    git clone https://github.com/karpathy/nanoGPT
    python benchmarks/nanogpt.py --nanogpt nanoGPT

nanoGPT's own files run, unchanged: the body of train.py's loop gets a pause behind each iteration. Both
read batches from disk, set the learning rate, clip, and step AdamW; memtrain's step also takes its
measurements. nanoGPT computes GELU exactly, memtrain by GPT-2's tanh, which takes longer on a CPU: so
memtrain runs with the exact one (`mlp='gelu_exact'`) too. nanoGPT compiles its model as a whole, so does
memtrain, and block by block as well. A round is some iterations of each, in turns; what is told is the
median of the rounds' ratios, in seconds of CPU time and of the clock. Peaks are bytes of tensors as torch's
profiler sees them, each in a fresh process."""

import argparse, ast, contextlib, io, multiprocessing, os, pickle, statistics, sys, tempfile, time
from pathlib import Path

# of nanoGPT's README for a CPU, and its model of Shakespeare by characters with fewer rows a batch;
# iterations in a round
SHAPES = {
    'CPU example': (dict(n_layer=4, n_head=4, n_embd=128, block_size=64, batch_size=12), 30),
    'baby GPT': (dict(n_layer=6, n_head=6, n_embd=384, block_size=256, batch_size=4), 2),
}

WHO = {
    'eager': ('nanoGPT', 'memtrain', 'memtrain, exact GELU'),
    'compiled': ('nanoGPT', 'memtrain', 'memtrain, exact GELU', 'memtrain, block by block'),
}


def prepare_data(folder):
    "Characters of this package's sources, as memtrain and as nanoGPT keep them"
    from memtrain.formats import export_shards
    from memtrain.prepare import prepare
    from memtrain.shards import TokenShards

    prepare([Path(__file__).parent.parent / 'memtrain'], folder / 'shards', tokenization='char')
    export_shards(folder / 'shards', folder / 'data/here')
    (folder / 'data/here/meta.pkl').write_bytes(
        pickle.dumps({'vocab_size': TokenShards(folder / 'shards').vocab_size})
    )


def start_nanogpt(repo, folder, shape, compiled):
    "(what takes an iteration of nanoGPT's train.py, its names)"
    source = ast.parse((repo / 'train.py').read_text())
    at, loop = next((i, node) for i, node in enumerate(source.body) if isinstance(node, ast.While))
    names = sorted({n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)})
    loop.body.append(ast.Expr(ast.Yield()))
    function = ast.parse(f'def iterate():\n    global {", ".join(names)}\n    pass').body[0]
    function.body[1] = loop
    source.body[at:] = [function]
    given = dict(
        dataset='here',
        device='cpu',
        dtype='float32',
        compile=compiled,
        dropout=0.0,
        gradient_accumulation_steps=1,
        eval_interval=10**6,
        eval_iters=1,
        log_interval=10**6,
        warmup_iters=20,
        max_iters=10**6,
        **shape,
    )
    space, before = {'__name__': '__main__', '__file__': str(repo / 'train.py')}, (os.getcwd(), sys.argv[:])
    os.chdir(folder)
    (folder / 'configurator.py').write_bytes((repo / 'configurator.py').read_bytes())
    sys.argv[1:] = [f'--{k}={v}' for k, v in given.items()]
    sys.path.insert(0, str(repo))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(ast.fix_missing_locations(source), str(repo / 'train.py'), 'exec'), space)
            turns = space['iterate']()
            next(turns)  # which evaluates first
    finally:
        os.chdir(before[0])
        sys.argv[:] = before[1]
        sys.path.remove(str(repo))

    def step():
        os.chdir(folder)
        next(turns)
        os.chdir(before[0])

    return step, space


def start_memtrain(folder, shape, compiled, exact, whole):
    """(what takes an iteration of memtrain's Trainer, the trainer); `exact`: with nanoGPT's GELU in the place
    of GPT-2's; `whole`: compiled in one piece"""
    from memtrain.model import GPT, GPTConfig
    from memtrain.shards import TokenShards
    from memtrain.train import TrainConfig, Trainer

    shape = dict(shape)
    config = TrainConfig(
        batch_size=shape.pop('batch_size'),
        compile=compiled,
        compile_whole=compiled and whole,
        max_iters=10**6,
    )
    model = GPT(
        GPTConfig(
            vocab_size=TokenShards(folder / 'shards').vocab_size,
            mlp='gelu_exact' if exact else 'gelu',
            **shape,
        )
    )
    t = Trainer(model, folder / 'shards', config, folder / f"run{exact}{whole}{compiled}{shape['n_embd']}")
    return t.step, t


def start(who, *args):
    repo, folder, shape, compiled, threads = args
    import torch

    torch.set_num_threads(threads)
    return (
        start_nanogpt(repo, folder, shape, compiled)
        if who == 'nanoGPT'
        else start_memtrain(folder, shape, compiled, 'exact' in who, 'block' not in who)
    )


def peak(who, *args):
    "Bytes at the peak of an iteration: weights, optimizer state, and what it makes"
    from memtrain.core import nbytes
    from memtrain.measure import measure_peak, state_tensors

    step, made = start(who, *args)
    model, optimizer = (
        (made['raw_model'], made['optimizer']) if who == 'nanoGPT' else (made.model, made.optimizer)
    )
    step()
    optimizer.zero_grad(set_to_none=True)
    return nbytes([*model.parameters(), *state_tensors(optimizer)]) + measure_peak(step)


def race(args, everybody, iterations, rounds):
    "Seconds an iteration in each round: {who: [(of CPU time, of the clock)]}"
    steps = {who: start(who, *args)[0] for who in everybody}
    for step in steps.values():
        step()
        step()
    found = {who: [] for who in steps}
    for _ in range(rounds):
        spent = {who: [0.0, 0.0] for who in steps}
        for i in range(iterations):
            for who in everybody[:: (-1) ** i]:
                cpu, wall = time.process_time(), time.perf_counter()
                steps[who]()
                spent[who] = [
                    spent[who][0] + time.process_time() - cpu,
                    spent[who][1] + time.perf_counter() - wall,
                ]
        for who, s in spent.items():
            found[who].append([t / iterations for t in s])
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--nanogpt', type=Path, required=True, help='a clone of nanoGPT')
    p.add_argument('--shapes', nargs='*', default=[*SHAPES])
    p.add_argument('--modes', nargs='*', default=['eager', 'compiled'])
    p.add_argument('--rounds', type=int, default=9)
    p.add_argument('--threads', type=int, default=1, help='of torch')
    p.add_argument('--save', action='store_true', help='record in results/nanogpt.json')
    a = p.parse_args()
    from memtrain.core import save_result

    context, rows = multiprocessing.get_context('spawn'), {}
    with tempfile.TemporaryDirectory() as d:
        d = Path(d)
        prepare_data(d)
        for name in a.shapes:
            shape, iterations = SHAPES[name]
            for mode in a.modes:
                args, found = (a.nanogpt.resolve(), d, shape, mode == 'compiled', a.threads), {}
                for who in WHO[mode]:
                    with context.Pool(1) as pool:
                        found[who] = {'peak': pool.apply(peak, (who, *args))}
                with context.Pool(1) as pool:
                    seconds = pool.apply(race, (args, WHO[mode], iterations, a.rounds))
                for who, s in seconds.items():
                    found[who] |= {'cpu': [c for c, _ in s], 'wall': [w for _, w in s]}
                for f in found.values():
                    f['ratio'] = {
                        k: statistics.median(n / m for n, m in zip(found['nanoGPT'][k], f[k]))
                        for k in ('cpu', 'wall')
                    } | {'peak': f['peak'] / found['nanoGPT']['peak']}
                rows[f'{name}, {mode}'] = found
                for who, f in found.items():
                    print(
                        f"{name}, {mode}, {who}: {statistics.median(f['cpu']) * 1e3:.1f} ms of CPU time,"
                        f" {statistics.median(f['wall']) * 1e3:.1f} of the clock, {f['peak'] / 2**20:.2f}"
                        f" MiB; rate of nanoGPT's {f['ratio']['cpu']:.3f} and {f['ratio']['wall']:.3f}, peak"
                        f" {f['ratio']['peak']:.3f}",
                        flush=True,
                    )
                if a.save:
                    save_result(
                        'nanogpt',
                        {
                            'rows': rows,
                            'shapes': {k: SHAPES[k][0] for k in a.shapes},
                            'threads': a.threads,
                            'rounds': a.rounds,
                        },
                        'python benchmarks/nanogpt.py --nanogpt nanoGPT --save',
                    )


if __name__ == '__main__':
    main()
