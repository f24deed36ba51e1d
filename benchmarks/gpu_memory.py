#!/usr/bin/env python3
"""The memory of a training step on a GPU: predicted on a machine without one, then measured.

    python benchmarks/gpu_memory.py predict  # anywhere; writes results/gpu_memory_predicted.json
    # with a CUDA GPU; reads it, writes results/gpu_memory.json
    python benchmarks/gpu_memory.py measure [--minutes 7]
    # small steps on the CPU, to see whether it runs
    python benchmarks/gpu_memory.py predict|measure --tiny --device cpu --results DIR

72 configurations: GPTs of 124M and 355M parameters, windows of 512 and 1,024 tokens, fp32 and bf16
autocast, and nine combinations of batch size, optimizer, activation checkpointing and chunked loss. What is
compared is the second training step: the first makes the optimizer's state. `allocated` is
`torch.cuda.max_memory_allocated`, `reserved` is `torch.cuda.max_memory_reserved`; before each configuration
the allocator is emptied, the workspaces of cuBLAS too. Configurations whose allocated bytes were missed by
more than 3 % run once more with a recorded memory history, and the largest blocks at the peak are listed
beside the predicted ones."""

from __future__ import annotations

import argparse, dataclasses, gc, importlib.util, os, statistics, time, traceback, warnings
from dataclasses import asdict

import numpy as np
import psutil, torch

from memory import make_functions
from memtrain.core import format_size, load_result, progress, save_result
from memtrain.allocator import reserve
from memtrain.devices import DEVICES
from memtrain.estimate import Step, simulate
from memtrain.measure import measure_step
from memtrain.model import GPTConfig, count_params, named_config

MISS = 0.03  # of the allocated bytes, above which a configuration is looked into
BLOCKS = 12  # the largest blocks at a peak that are kept
LOOKED_INTO = 8  # configurations at most


# --------------------------------------------------------------------------------------------------
# what is compared

MODELS = {'124M': 'gpt2', '355M': 'gpt2-medium'}
WAYS = [
    dict(batch_size=2),
    dict(batch_size=2, optimizer='adamw8bit'),
    dict(batch_size=2, activation_checkpointing=True),
    dict(batch_size=4, loss_chunk=True),
    dict(batch_size=8),
    dict(batch_size=8, optimizer='adamw8bit'),
    dict(batch_size=8, activation_checkpointing=True, loss_chunk=True),
    dict(batch_size=16, activation_checkpointing=True),
    dict(batch_size=16, optimizer='adamw8bit', activation_checkpointing=True, loss_chunk=True),
]
CHUNK = 1024  # tokens of a chunked loss
TINY = GPTConfig(vocab_size=512, block_size=64, n_layer=2, n_head=2, n_embd=64)


def configurations(tiny=False):
    "{key: (shape, step)} of all 72; with `tiny` 18 of a model that takes no time"
    found = {}
    for label, shape in (
        {'tiny': TINY}.items() if tiny else ((label, named_config(name)) for label, name in MODELS.items())
    ):
        for tokens in (shape.block_size,) if tiny else (512, 1024):
            for half in (False, True):
                for way in WAYS:
                    rest = {k: v for k, v in way.items() if k != 'loss_chunk'}
                    step = Step(
                        seq_len=tokens,
                        use_mixed_precision=half,
                        loss_chunk_size=min(CHUNK, tokens) if 'loss_chunk' in way else None,
                        **rest,
                    )
                    extras = [
                        n
                        for n, on in (
                            ('checkpointing', step.activation_checkpointing),
                            ('chunked', step.loss_chunk_size),
                        )
                        if on
                    ]
                    key = ' '.join(
                        [
                            label,
                            f'T{tokens}',
                            f'B{step.batch_size}',
                            'bf16' if half else 'fp32',
                            step.optimizer,
                            *extras,
                        ]
                    )
                    found[key] = shape, step
    return found


# --------------------------------------------------------------------------------------------------
# predict


def second_step(trace):
    "The event with which the second step begins"
    starts = [at for at, name in trace.phases if name == 'forward']
    return starts[1]


def list_blocks(blocks):
    "The largest of `blocks`, as rows"
    return [{'bytes': b.size, 'op': b.op, 'phase': b.phase, 'category': b.category} for b in blocks[:BLOCKS]]


def predict_one(shape, step, profile):
    "What the second step takes on the device `profile`"
    trace = simulate(*make_functions(shape, step, 'cuda' if profile.caching else 'cpu'), device=profile)
    found = reserve(trace, profile)
    allocated = found.timeline[second_step(trace) - 1 :, 0]
    at = second_step(trace) - 1 + int(allocated.argmax())
    op = next((b.op for b in trace.blocks if b.start == at), '')
    return {
        'allocated': int(allocated.max()),
        'reserved': found.reserved,
        'tensors': trace.peak,
        'workspaces': 2 * profile.workspace,
        'reserved_expandable': reserve(trace, dataclasses.replace(profile, expandable=True)).reserved,
        'peak_op': op,
        'by_category': trace.by_category,
        'by_phase': trace.by_phase,
        'blocks': list_blocks(trace.alive(at)),
        'events': trace.events,
        'notes': list(trace.notes),
    }


def run_predict(args):
    "Predict everything, and write it down"
    profile, rows, started = (
        DEVICES['cpu' if args.device == 'cpu' else args.profile],
        {},
        time.perf_counter(),
    )
    todo = configurations(args.tiny)
    for key, (shape, step) in progress(todo.items(), total=len(todo), desc='predicting'):
        if args.only and args.only not in key:
            continue
        before = time.perf_counter()
        rows[key] = {
            'shape': asdict(shape),
            'step': asdict(step),
            'params': count_params(shape),
            **predict_one(shape, step, profile),
            'seconds': time.perf_counter() - before,
        }
    for key, r in rows.items():
        print(
            f"{key:55} allocated {format_size(r['allocated']):>9} reserved {format_size(r['reserved']):>9} "
            f" {r['peak_op']}"
        )
    print(f'predict: {len(rows)} configurations, {time.perf_counter() - started:.0f} s in all')
    if args.only:
        return
    command = f'python benchmarks/gpu_memory.py predict --profile {profile.name}'
    print(
        save_result(
            'gpu_memory_predicted',
            {'profile': asdict(profile), 'configurations': rows},
            command,
            args.results,
        ).stamp
    )


# --------------------------------------------------------------------------------------------------
# measure


class Gpu:
    "The few things that are asked of the device"

    name = 'cuda'

    def present(self):
        return torch.cuda.is_available()

    def title(self):
        return torch.cuda.get_device_name(0)

    def sync(self):
        torch.cuda.synchronize()

    def allocated(self):
        return torch.cuda.memory_allocated()

    def reserved(self):
        return torch.cuda.memory_reserved()

    def peaks(self):
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    def reset(self):
        torch.cuda.reset_peak_memory_stats()

    def used(self):
        free, total = torch.cuda.mem_get_info()
        return total - free

    def total(self):
        return torch.cuda.mem_get_info()[1]

    def retries(self):
        return torch.cuda.memory_stats().get('num_alloc_retries', 0)

    def clear(self):
        "Give back everything that can be given back"
        gc.collect()
        self.sync()
        with_workspaces = getattr(torch._C, '_cuda_clearCublasWorkspaces', None)
        if with_workspaces:
            with_workspaces()
        torch.cuda.empty_cache()

    def record(self):
        torch.cuda.memory._record_memory_history(
            enabled='all', context='alloc', stacks='python', max_entries=1_000_000
        )

    def stop(self):
        torch.cuda.memory._record_memory_history(enabled=None)

    def history(self):
        return torch.cuda.memory._snapshot()['device_traces'][0]

    def settings(self):
        variables = (
            'PYTORCH_CUDA_ALLOC_CONF',
            'PYTORCH_ALLOC_CONF',
            'CUBLAS_WORKSPACE_CONFIG',
            'TORCH_CUBLASLT_UNIFIED_WORKSPACE',
        )
        b, found = torch.backends.cuda, {'torch': torch.__version__, 'cuda': torch.version.cuda}
        questions = {
            'cublas_workspace': lambda: b.cublas_workspace_size(),
            'capability': lambda: list(torch.cuda.get_device_capability(0)),
            'tf32': lambda: b.matmul.allow_tf32,
            'flash': lambda: b.flash_sdp_enabled(),
            'cudnn_attention': lambda: b.cudnn_sdp_enabled(),
        }
        for name, ask in questions.items():
            try:
                found[name] = ask()
            except Exception:
                found[name] = None  # this torch hasn't got it
        return {**found, 'environment': {v: os.environ[v] for v in variables if v in os.environ}}


class Cpu(Gpu):
    """What stands in for a GPU, to see whether everything runs: peaks are those of a trace, and nothing is
    kept for later"""

    name = 'cpu'

    def present(self):
        return True

    def title(self):
        return 'cpu'

    def sync(self):
        pass

    def allocated(self):
        return 0

    def reserved(self):
        return 0

    def used(self):
        return 0

    def total(self):
        return psutil.virtual_memory().total

    def clear(self):
        gc.collect()

    def settings(self):
        return {'torch': torch.__version__}


def trace_two_steps(model_fn, optimizer_fn, step_fn):
    "What `run_two_steps` gives, on a CPU"
    trace = measure_step(model_fn, optimizer_fn, step_fn)
    total, second = trace.timeline.sum(1), second_step(trace)
    peak = int(total[second - 1 :].max())
    return {
        'allocated': peak,
        'reserved': peak,
        'first_allocated': int(total[:second].max()),
        'between_steps': int(total[second - 1]),
        'context': 0,
        'retries': 0,
    }


def measure_one(shape, step, gpu, between=None):
    "What the second step really takes; `between` is called before it"
    gpu.clear()
    left, before = gpu.allocated(), gpu.used() - gpu.reserved()
    started = time.perf_counter()
    found = run_two_steps(*make_functions(shape, step, gpu.name), gpu, between)
    gc.collect()
    return {
        **found,
        'left_before': left,
        'workspaces': gpu.allocated(),
        'context_before': before,
        'seconds': time.perf_counter() - started,
    }


def run_two_steps(model_fn, optimizer_fn, step_fn, gpu, between):
    "The peaks of the second step; when this returns the model is gone"
    if gpu.name == 'cpu':
        return trace_two_steps(model_fn, optimizer_fn, step_fn)
    model = model_fn()
    optimizer = optimizer_fn([*model.parameters()])
    gpu.reset()
    step_fn(model, optimizer)
    gpu.sync()
    first, start = gpu.peaks(), gpu.allocated()
    gpu.reset()
    if between:
        between()
    step_fn(model, optimizer)
    gpu.sync()
    allocated, reserved = gpu.peaks()
    return {
        'allocated': allocated,
        'reserved': reserved,
        'first_allocated': first[0],
        'between_steps': start,
        'context': gpu.used() - gpu.reserved(),
        'retries': gpu.retries(),
    }


def replay_history(entries, start=0):
    "(most bytes that a recorded history adds to `start`, the blocks that are live then, largest first)"

    def play(stop):
        live, total, best, at = {}, start, start, -1
        for i, e in enumerate(entries[:stop]):
            if e['action'] == 'alloc':
                live[e['addr']] = e
                total += e['size']
            elif e['action'] == 'free_completed' and e['addr'] in live:
                total -= live.pop(e['addr'])['size']
            # was there before the recording
            elif e['action'] == 'free_requested' and e['addr'] not in live:
                total -= e['size']
            if total > best:
                best, at = total, i
        return live, best, at

    _, best, at = play(len(entries))
    live, _, _ = play(at + 1)
    return best, sorted(live.values(), key=lambda e: -e['size'])


def place_of(entry):
    """Where in the program an entry of the history came from: the innermost frame of the model, and the
    innermost of all"""
    frames = entry.get('frames') or []

    def say(f):
        return f"{os.path.basename(f.get('filename', '?'))}:{f.get('line', 0)} {f.get('name', '?')}"

    ours = next((f for f in frames if f.get('filename', '').endswith(('model.py', 'memory.py'))), None)
    return (
        ' < '.join(dict.fromkeys(say(f) for f in frames[:1] + ([ours] if ours else [])))
        or "autograd's thread"
    )


def look_into(shape, step, gpu):
    """The largest blocks at the true peak: from a recorded history of the second step, and by operation from
    the profiler"""
    found = {}
    try:
        state = {}

        def between():
            state['start'] = gpu.allocated()
            gpu.record()

        try:
            measure_one(shape, step, gpu, between)
        finally:
            state['entries'] = gpu.history() if 'start' in state else []
            gpu.stop()
        peak, live = replay_history(state['entries'], state['start'])
        found['history'] = {
            'peak': peak,
            'before': state['start'],
            'entries': len(state['entries']),
            'blocks': [{'bytes': e['size'], 'place': place_of(e)} for e in live[:BLOCKS]],
        }
    except Exception:
        found['history_failed'] = traceback.format_exc(limit=3)
    try:
        gpu.clear()
        trace = measure_step(
            *make_functions(shape, step, gpu.name), device='cuda:0' if gpu.name == 'cuda' else gpu.name
        )
        total = trace.timeline.sum(1)
        at = second_step(trace) - 1 + int(np.argmax(total[second_step(trace) - 1 :]))
        op = next((b.op for b in trace.blocks if b.start == at), '')
        found['profiler'] = {
            'peak': int(total[at]),
            'op': op,
            'blocks': list_blocks(trace.alive(at)),
            'by_category': trace.by_category,
        }
    except Exception:
        found['profiler_failed'] = traceback.format_exc(limit=3)
    gpu.clear()
    return found


def error_of(row, what='allocated'):
    "Relative error of the predicted `what`"
    return row['predicted'][what] / row['measured'][what] - 1


def summarize(rows):
    "Median, mean and worst of the absolute errors"
    found = {}
    for what in ('allocated', 'reserved'):
        sizes = [abs(error_of(r, what)) for r in rows.values() if 'measured' in r]
        if sizes:
            found[what] = {
                'median': statistics.median(sizes),
                'mean': statistics.mean(sizes),
                'worst': max(sizes),
                'n': len(sizes),
                'over_3_percent': sum(e > MISS for e in sizes),
            }
    return found


def run_measure(args, gpu=None):
    "Measure every configuration that was predicted, in the time there is"
    gpu = gpu or (Cpu() if args.device == 'cpu' else Gpu())
    if not gpu.present():
        raise SystemExit('measure: no CUDA GPU here; `predict` works without one')
    predicted = load_result('gpu_memory_predicted', args.results)
    started, rows, todo = time.perf_counter(), {}, configurations(args.tiny)

    def left():
        return args.minutes * 60 - (time.perf_counter() - started)

    eight_bit = importlib.util.find_spec('bitsandbytes') is not None
    torch.zeros(1, device=gpu.name)
    gpu.sync()
    bare = gpu.used() - gpu.reserved()
    values = {
        'device': gpu.title(),
        'total': gpu.total(),
        'context_bare': bare,
        'settings': gpu.settings(),
        'predicted': {'command': predicted.command, 'date': predicted.date, 'commit': predicted.commit},
        'configurations': rows,
    }
    print(
        f"{values['device']}: {format_size(gpu.total())}, bare context {format_size(bare)},"
        f" {values['settings']}",
        flush=True,
    )
    order = sorted(
        predicted.values['configurations'], key=lambda k: predicted.values['configurations'][k]['reserved']
    )
    for key in order:
        if args.only and args.only not in key:
            continue
        guess = predicted.values['configurations'][key]
        row = rows[key] = {
            'predicted': {k: guess[k] for k in ('allocated', 'reserved', 'reserved_expandable', 'peak_op')}
        }
        shape, step = todo[key]
        if step.optimizer == 'adamw8bit' and not eight_bit:
            row['skipped'] = 'bitsandbytes is not installed'
        elif guess['reserved'] > 0.97 * (gpu.total() - bare):
            row['skipped'] = 'predicted not to fit'
        elif left() < 75:
            row['skipped'] = 'no time left'
        else:
            try:
                row['measured'] = measure_one(shape, step, gpu)
            except Exception as e:
                row['failed'] = f'{type(e).__name__}: {e}'.split('\n')[0][:300]
            m = row.get('measured')
            if m:
                print(
                    f"{key:55} allocated {format_size(m['allocated']):>9} {error_of(row):+.2%}, reserved "
                    f"{format_size(m['reserved']):>9} {error_of(row, 'reserved'):+.2%}, {m['seconds']:.1f} s",
                    flush=True,
                )
            else:
                print(f"{key:55} failed: {row['failed']}", flush=True)
        write(args, values)
    off = {k: abs(error_of(r)) for k, r in rows.items() if 'measured' in r}
    misses = sorted((k for k, e in off.items() if e > MISS), key=lambda k: -off[k])
    for key in misses[:LOOKED_INTO]:
        if left() < 20:
            break
        rows[key]['miss'] = {
            **look_into(*todo[key], gpu),
            'predicted_blocks': predicted.values['configurations'][key]['blocks'],
        }
        print_miss(key, rows[key])
        write(args, values)
    print_table(values, misses)
    print(f'measure: {time.perf_counter() - started:.0f} s in all')


def write(args, values):
    "Save what there is so far: a run that is cut off has lost only the rest"
    values['summary'] = summarize(values['configurations'])
    contexts = [r['measured']['context'] for r in values['configurations'].values() if 'measured' in r]
    values['context'] = max(contexts, default=values['context_bare'])
    if not args.only:
        save_result('gpu_memory', values, 'python benchmarks/gpu_memory.py measure', args.out or args.results)


def print_miss(key, row):
    "The largest blocks of a miss, measured beside predicted"
    real, guess = row['miss'].get('profiler', {}).get('blocks', []), row['miss']['predicted_blocks']
    print(f"\n{key}: {error_of(row):+.2%}\n  {'measured':>12} {'operation':44} {'predicted':>12} operation")
    for i in range(max(len(real), len(guess))):
        a, b = (x[i] if i < len(x) else None for x in (real, guess))
        print(
            '  '
            + (f"{format_size(a['bytes']):>12} {a['op'] + ', ' + a['phase']:44}" if a else ' ' * 57)
            + (f" {format_size(b['bytes']):>12} {b['op']}, {b['phase']}" if b else '')
        )
    for b in row['miss'].get('history', {}).get('blocks', [])[:6]:
        print(f"  history: {format_size(b['bytes']):>12} {b['place']}")
    for kind in ('history_failed', 'profiler_failed'):
        if kind in row['miss']:
            print(f"  {kind}: {row['miss'][kind].strip().splitlines()[-1]}")


def print_table(values, misses):
    "What it comes to"
    rows = values['configurations']
    done = sum('measured' in r for r in rows.values())
    print(f"\n{values['device']}, torch {torch.__version__}: {done} of {len(rows)} configurations measured")
    for what, s in values['summary'].items():
        print(
            f"  {what:10} median {s['median']:.2%}, mean {s['mean']:.2%}, worst {s['worst']:.2%}, "
            f"over 3 %: {s['over_3_percent']} of {s['n']}"
        )
    print(
        f"  context: {format_size(values['context_bare'])} bare, up to {format_size(values['context'])} after"
        " the steps"
    )
    why = {}
    for r in rows.values():
        for kind in ('skipped', 'failed'):
            if kind in r:
                why[r[kind]] = why.get(r[kind], 0) + 1
    for text, n in why.items():
        print(f'  not measured, {n}: {text}')
    if misses:
        print('  missed by more than 3 %: ' + '; '.join(misses))


# --------------------------------------------------------------------------------------------------
# main


def parse_args(argv=None):
    p = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument('command', choices=('predict', 'measure'))
    p.add_argument('--device', default='cuda', choices=('cuda', 'cpu'), help='cpu: with --tiny, to try it')
    p.add_argument(
        '--tiny',
        action='store_true',
        help='18 steps of a tiny model; needs --results, so that nothing recorded is lost',
    )
    p.add_argument(
        '--profile',
        default='h100',
        choices=[n for n, q in DEVICES.items() if q.caching],
        help='device of predict',
    )
    p.add_argument('--minutes', type=float, default=7, help='of measure, after which what is left is skipped')
    p.add_argument('--only', help='configurations whose name contains this; then nothing is written')
    p.add_argument('--results', help='folder of the results; by default `results` of the checkout')
    p.add_argument('--out', help='folder that measure writes to; by default the same')
    args = p.parse_args(argv)
    if args.device == 'cpu' and not args.tiny:
        p.error('--device cpu is for --tiny')
    if args.tiny and not args.results:
        p.error('--tiny needs --results')
    return args


def main(argv=None):
    warnings.filterwarnings('ignore')
    args = parse_args(argv)
    if args.command == 'predict':
        run_predict(args)
    else:
        run_measure(args)


if __name__ == '__main__':
    main()
