#!/usr/bin/env python3
"""What memtrain says of a card, beside what the card does: for whoever has one, in ten minutes.

    python benchmarks/gpu_check.py  # with a CUDA GPU; writes results/cards/CARD.json
    python benchmarks/gpu_check.py predict --card h100 --jobs 2  # anywhere: the predictions alone
    python benchmarks/gpu_check.py measure  # with the card: the rest, beside predictions made before
    python benchmarks/gpu_check.py --only decoder  # cases with this in their names

It needs torch, numpy and memtrain; cases of transformers and torchvision are left out where these aren't
installed. What is compared:

cases      training steps and single operations (gpu_cases.py): peaks of what is allocated and reserved, and
           the seconds of a step. Predicted by `memtrain simulate` in processes that see no card.
allocator  what PyTorch's caching allocator holds after each of some thousand random requests, plain, with
           expandable segments, and short of memory
context    bytes of the card that CUDA holds besides, after its first kernels of several kinds
workspaces what cuBLAS and cuDNN take while they work, by convolution, recurrent net and sum
attention  which kernel computes scaled dot product attention
rates      operations and bytes in a second, beside the data sheet's

Predictions that another version of torch made are made again. Send the file: it is all that the documentation
wants to know of your card."""

from __future__ import annotations

import argparse, contextlib, gc, gzip, itertools, json, os, platform, random, statistics
import subprocess, sys, tempfile, time, traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gpu_cases
import torch
import torch.nn.functional as F

from memtrain.allocator import reserve
from memtrain.core import (
    GIB,
    MIB,
    MemtrainError,
    format_size,
    load_result,
    progress,
    results_dir,
    save_result,
)
from memtrain.cuda import attention_backend
from memtrain.devices import find_device
from memtrain.memory_trace import Block, Trace
from memtrain.script import simulate_script

STEPS = 4  # of a case: the allocator's state repeats after two or three
TIMED_STEPS = 8  # steps more, whose median is taken
CASES = Path(gpu_cases.__file__)


# --------------------------------------------------------------------------------------------------
# without a card


def predict_case(name, card):
    "Peaks of `name` on `card`, and the seconds of a step: at full rates, and as programs reach them"
    started = time.perf_counter()
    try:
        run = simulate_script(CASES, [name, '--steps', str(STEPS)], gpu=card, steps=STEPS)
    except MemtrainError as e:
        return dict(error=str(e))
    if run.failed:
        return dict(error=f'{run.error["kind"]}: {run.error["message"]}' if run.error else run.ended)
    on_card = run.cards[0]
    expandable = reserve(run.trace, replace(on_card.profile, expandable=True))
    return dict(
        allocated=on_card.allocated,
        reserved=on_card.reserved,
        expandable=expandable.reserved,
        tensors=run.trace.peak,
        seconds=run.seconds.get(on_card.profile.name),
        notes=[*run.notes, *(a[0] for a in run.assumed)],
        took=time.perf_counter() - started,
    )


def versions():
    found = dict(torch=torch.__version__, python=platform.python_version())
    for name in 'transformers', 'torchvision', 'triton':
        with contextlib.suppress(ImportError):
            found[name] = __import__(name).__version__
    return found


def predict_all(card, jobs, only):
    names = [name for _, name in gpu_cases.list_cases() if only in name]
    with ThreadPoolExecutor(jobs) as pool:  # each waits for a process of its own
        found = pool.map(lambda name: predict_case(name, card), names)
        rows = dict(zip(names, progress(found, total=len(names), desc='predicting')))
    return dict(card=card, versions=versions(), cases=rows)


def random_requests(seed, most, count=3000):
    "Blocks of a program that asks for and frees memory at random, at most `most` bytes at a time"
    draw, blocks, alive, held = random.Random(seed), [], [], 0
    for event in range(count):
        size = int(2 ** draw.uniform(9, 28)) // 4 * 4
        while alive and (held + size > most or draw.random() < 0.45):
            gone = alive.pop(draw.randrange(len(alive)))
            held -= blocks[gone].size
            blocks[gone].end = event
        if held + size <= most:
            blocks.append(Block(size, event, None, 'empty', 'forward', 'temporaries'))
            alive.append(len(blocks) - 1)
            held += size
    return Trace(blocks, count, [(0, 'forward')], 'cuda')


# --------------------------------------------------------------------------------------------------
# on the card


def clear():
    "Give back everything that can be given back"
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def besides():
    "Bytes of the card that are neither free nor PyTorch's"
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def compact(history):
    "What was asked for and freed: tables of (action, address, size, number of a place), and the places"
    actions, places, rows, numbers = ['alloc', 'free_completed', 'segment_alloc', 'segment_free'], {}, [], {}
    for entry in history:
        if entry['action'] not in actions:
            continue
        frames = entry.get('frames') or ()
        place = ' < '.join(f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in frames[:4])
        at = numbers.setdefault(entry['addr'], len(numbers))
        rows.append(
            (actions.index(entry['action']), at, entry['size'], places.setdefault(place, len(places)))
        )
    return dict(actions=actions, rows=rows, places=list(places))


def measure_case(name, kind, deadline):
    "What `name` really takes; and the history of its memory"
    clear()
    left = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(
        'all', context='alloc', stacks='python', max_entries=300_000, clear_history=True
    )
    try:
        step = gpu_cases.build(name)
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        row = dict(
            allocated=torch.cuda.max_memory_allocated(),
            reserved=torch.cuda.max_memory_reserved(),
            left_before=left,
            retries=torch.cuda.memory_stats().get('num_alloc_retries', 0),
        )
    finally:
        history = torch.cuda.memory._snapshot()['device_traces'][0]
        torch.cuda.memory._record_memory_history(None)
    times = []
    while len(times) < TIMED_STEPS and time.perf_counter() < deadline:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    row |= dict(
        kind=kind,
        seconds=statistics.median(times) if times else None,
        spread=[min(times), max(times)] if times else None,
    )
    return row, compact(history)


def answer_case(name):
    "What `name` takes, in this process"
    kind = dict(map(reversed, gpu_cases.list_cases()))[name]
    try:
        return measure_case(name, kind, time.perf_counter() + 4)
    except Exception as e:
        traceback.print_exc(limit=-2)
        return dict(kind=kind, error=f'{type(e).__name__}: {e}'[:300]), None


def measure_cases(predicted, args, keep_row):
    "The histories of cases that were missed; `keep_row` is called with the name and the row of each case"
    histories, begun = {}, time.perf_counter()
    todo = [(kind, name) for kind, name in gpu_cases.list_cases() if args.only in name]

    def run(item):  # in a process of its own: what one case leaves behind would move the blocks of the next
        kind, name = item
        if time.perf_counter() - begun > 60 * args.minutes:
            return name, (dict(kind=kind, error='left out: no time'), None)
        found = in_own_process('case', args, name)
        return name, (dict(kind=kind, **found), None) if isinstance(found, dict) else found

    with ThreadPoolExecutor(args.at_once) as pool:
        for name, (row, history) in pool.map(run, todo):
            said = predicted.get(name, {})
            before = {k: said[k] for k in ('allocated', 'reserved', 'seconds', 'error') if k in said}
            keep_row(name, row | dict(before=before))
            off = {k: row[k] - said[k] for k in ('allocated', 'reserved') if k in said and k in row}
            if history and (any(off.values()) or not off):
                histories[name] = history
            size = format_size(row['allocated']) if 'allocated' in row else row['error']
            print(
                f'{name:45} {size:>9} {off.get("allocated", "?"):>12} {off.get("reserved", "?"):>12}',
                flush=True,
            )
    return histories


def follow_requests(trace):
    "(allocated, reserved) after each event, of the requests of `trace` on this card"
    starts, ends, held, line = {}, {}, {}, []
    for i, b in enumerate(trace.blocks):
        starts.setdefault(b.start, []).append(i)
        if b.end is not None:
            ends.setdefault(b.end, []).append(i)
    for event in range(trace.events):
        for i in sorted((*starts.get(event, ()), *ends.get(event, ()))):
            if held.pop(i, None) is None:
                held[i] = torch.empty(trace.blocks[i].size, dtype=torch.uint8, device='cuda')
        line.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    return line


def check_allocator(card, expandable):
    "Events after which the replay says what the allocator holds, of random requests; run in a fresh process"
    found = {}
    for name, seed, capacity in ('free', 0, None), ('short of memory', 1, 6 * GIB), ('more of it', 2, None):
        clear()
        trace = random_requests(seed, 4 * GIB)
        if capacity:
            total = torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(capacity / total)
            capacity = int(total * (capacity / total))  # as PyTorch rounds it
        told = reserve(trace, replace(find_device(card), expandable=expandable), capacity).timeline.tolist()
        try:
            true = follow_requests(trace)
        except torch.OutOfMemoryError:
            found[name] = dict(error='out of memory')
            continue
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        reserved = [n for _, n in true]
        changes = [(i, n) for i, n in enumerate(reserved) if i == 0 or n != reserved[i - 1]]
        found[name] = dict(
            events=len(true),
            same=sum(list(a) == list(b) for a, b in zip(told, true)),
            peak=[max(n for _, n in told), max(reserved)],
            line=dict(until=len(true), reserved=changes),
        )
    return found


def check_context():
    "Bytes besides PyTorch's after each first kernel of its kind; run in a fresh process"
    found = {}

    def note(what):
        torch.cuda.synchronize()
        used, kept = (ask_driver('memory.used,memory.reserved') + [''])[:2]
        found[what] = dict(besides=besides(), used_mib=used, reserved_mib=kept)

    torch.cuda.init()
    note('CUDA begun')
    a = torch.randn(1024, 1024, device='cuda')
    note('first kernel')
    a @ a
    note('product fp32')
    a.bfloat16() @ a.bfloat16()
    note('product bf16')
    x = torch.randn(8, 64, 64, 64, device='cuda', requires_grad=True)
    weight = torch.randn(64, 64, 3, 3, device='cuda', requires_grad=True)
    y = F.conv2d(x, weight, padding=1)
    note('convolution')
    y.sum().backward()
    note('its gradients')
    q = torch.randn(2, 8, 256, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    note('attention')
    step = gpu_cases.build('decoder autocast')
    for _ in range(2):
        step()
    note('a training step')
    return found


def temporaries_of(run):
    "Sizes of the blocks that `run` asks for and frees again, and its result"
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history('all', context=None, max_entries=10_000, clear_history=True)
    out = run()
    torch.cuda.synchronize()
    sizes, gone = {}, []
    for entry in torch.cuda.memory._snapshot()['device_traces'][0]:
        if entry['action'] == 'alloc':
            sizes[entry['addr']] = entry['size']
        elif entry['action'] == 'free_completed' and entry['addr'] in sizes:
            gone.append(sizes.pop(entry['addr']))
    torch.cuda.memory._record_memory_history(None)
    return gone, [*sizes.values()], out


# channels in and out, kernel, stride, groups, pixels: of ResNet-50, VGG-16, MobileNet v2, a UNet, ConvNeXt
LAYERS = [
    (3, 64, 7, 2, 1, 224), (64, 64, 1, 1, 1, 56), (64, 64, 3, 1, 1, 56), (64, 256, 1, 1, 1, 56),
    (128, 128, 3, 2, 1, 56), (256, 256, 3, 1, 1, 14), (512, 512, 3, 1, 1, 7), (1024, 2048, 1, 2, 1, 14),
    (3, 64, 3, 1, 1, 224), (64, 64, 3, 1, 1, 224), (128, 128, 3, 1, 1, 112), (256, 256, 3, 1, 1, 56),
    (512, 512, 3, 1, 1, 28), (512, 512, 3, 1, 1, 14), (3, 32, 3, 2, 1, 224), (32, 32, 3, 1, 32, 112),
    (96, 96, 3, 2, 96, 112), (384, 384, 3, 1, 384, 14), (960, 960, 3, 1, 960, 7), (3, 96, 4, 4, 1, 224),
    (96, 96, 7, 1, 96, 56), (3, 768, 16, 16, 1, 224), (64, 3, 1, 1, 1, 64), (3, 64, 3, 1, 1, 86),
    (64, 64, 3, 1, 1, 43),
]  # fmt: skip
FORMS = {
    'fp32, TF32': (torch.float32, True, torch.contiguous_format),
    'fp32': (torch.float32, False, torch.contiguous_format),
    'bf16': (torch.bfloat16, True, torch.contiguous_format),
    'bf16, channels last': (torch.bfloat16, True, torch.channels_last),
}


def measure_convolution(layer, batch, form):
    before, after, kernel, stride, groups, pixels = layer
    dtype, torch.backends.cudnn.allow_tf32, order = FORMS[form]
    x = (
        torch.randn(batch, before, pixels, pixels, device='cuda', dtype=dtype)
        .to(memory_format=order)
        .requires_grad_()
    )
    weight = torch.randn(after, before // groups, kernel, kernel, device='cuda', dtype=dtype).to(
        memory_format=order
    )
    weight.requires_grad_()
    pad = kernel // 2 if stride < kernel else 0
    gone, _, y = temporaries_of(lambda: F.conv2d(x, weight, None, stride, pad, 1, groups))
    gradient = torch.ones_like(y)
    back, kept, _ = temporaries_of(lambda: torch.autograd.grad(y, (x, weight), gradient))
    return dict(
        forward=gone, backward=back, gradients=kept, input=x.nbytes, weight=weight.nbytes, output=y.nbytes
    )


def random_layers(count, seed=0):
    "Convolutions as networks have them: channels, kernel, stride, groups, pixels; and a batch"
    draw = random.Random(seed)
    for _ in range(count):
        before, after = (
            draw.choice((3, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024))
            for _ in range(2)
        )
        kernel, stride = draw.choice((1, 1, 3, 3, 3, 5, 7)), draw.choice((1, 1, 1, 2))
        groups = before if draw.random() < 0.12 else 1
        pixels = draw.choice((7, 8, 14, 16, 22, 28, 32, 43, 56, 64, 86, 112, 128, 224))
        batch = draw.choice((1, 2, 4, 8, 16, 32, 48, 64, 128, 200))
        if batch * pixels**2 * max(before, after) < 2**29:
            yield (before, before if groups > 1 else after, kernel, stride, groups, pixels), batch


def measure_workspaces(seconds=60):
    "What cuBLAS keeps, and what cuDNN takes for a moment by convolution"
    clear()
    found, begun = dict(cublas={}, cudnn=[]), time.perf_counter()
    for what, dtype in ('fp32', torch.float32), ('bf16', torch.bfloat16):
        for kind in 'product', 'product with a bias':
            clear()
            a, b = (torch.randn(512, 512, device='cuda', dtype=dtype) for _ in range(2))
            run = (lambda: a @ b) if kind == 'product' else (lambda: F.linear(a, b, b[0]))
            gone, kept, out = temporaries_of(run)
            found['cublas'][f'{kind} {what}'] = dict(freed=gone, kept=kept, result=out.nbytes)
    named = [(layer, batch) for layer in LAYERS for batch in (4, 32, 128)]
    for layer, batch in [*named, *random_layers(500)]:
        for form in FORMS:
            if time.perf_counter() - begun > seconds:
                return found
            try:
                row = measure_convolution(layer, batch, form)
            except Exception as e:
                row = dict(error=f'{type(e).__name__}: {e}'[:200])
            found['cudnn'].append(dict(layer=layer, batch=batch, form=form, **row))
            torch.cuda.empty_cache()
    return found


NETS = [*itertools.product(('LSTM', 'GRU', 'RNN'), (1, 2, 3), (False, True))]  # kind, layers, both directions
SEQUENCES = (128, 32, 512, 512), (50, 16, 256, 320), (200, 8, 80, 512), (64, 64, 128, 1024)


def measure_net(kind, layers, both, sequence, dtype, dropout):
    "Blocks of one recurrent net: what is freed and kept of its forward, and of its backward pass"
    tokens, batch, wide, hidden = sequence
    net = getattr(torch.nn, kind)(wide, hidden, layers, bidirectional=both, dropout=dropout).to('cuda', dtype)
    x = gpu_cases.draw(tokens, batch, wide, dtype=dtype)
    gone, kept, (y, _) = temporaries_of(lambda: net(x))
    back, left, _ = temporaries_of(lambda: y.sum().backward())
    asked = dict(kind=kind, layers=layers, both=both, tokens=tokens, batch=batch, wide=wide, hidden=hidden)
    return asked | dict(dtype=str(dtype), dropout=dropout, gone=gone, kept=kept, back=back, left=left)


def measure_recurrent():
    "What cuDNN keeps of a recurrent net for its backward pass, and takes in it"
    rows = []
    for (kind, layers, both), sequence in itertools.product(NETS, SEQUENCES):
        for dtype in torch.float32, torch.bfloat16:
            for dropout in (0.0, 0.2) if layers == 2 else (0.0,):
                rows.append(measure_net(kind, layers, both, sequence, dtype, dropout))
                clear()
    return rows


# shapes, and what is summed over
SUMS = [
    *(((rows, columns), 0) for rows in (8192, 512) for columns in (4096, 768, 50304)),
    ((4096, 3072), 0), ((32768, 1024), 0), ((128, 100_000), 0), ((300, 70), 0), ((1024, 1000), 0),
    ((8192, 4096), 1), ((64, 1_000_000), 1), ((100_000_000,), 0), ((1_000_000,), 0),
    ((32, 256, 56, 56), (0, 2, 3)), ((16, 64, 128, 128), (0, 2, 3)), ((2048, 2048, 16), (0, 1)),
]  # fmt: skip


def measure_sums():
    "What sums, means, largest values and norms take besides their results"
    rows = []
    for (shape, dims), dtype in itertools.product(SUMS, (torch.float32, torch.bfloat16)):
        x = torch.randn(shape, device='cuda', dtype=dtype)
        for name, run in dict(
            sum=lambda x: x.sum(dims),
            mean=lambda x: x.mean(dims),
            amax=lambda x: x.amax(dims),
            norm=lambda x: torch.linalg.vector_norm(x, dim=dims),
        ).items():
            gone, kept, _ = temporaries_of(lambda run=run, x=x: run(x))
            rows.append(dict(dtype=str(dtype), shape=shape, dims=dims, name=name, gone=gone, kept=kept))
    return rows


# heads of queries and of keys, tokens, keys, width of a head
HEADS = [
    *((8, 8, 256, 256, width) for width in (64, 128, 80, 36, 256, 320)),
    (8, 2, 256, 256, 64), (8, 8, 1, 256, 64), (8, 8, 128, 256, 64), (8, 8, 333, 333, 72),
]  # fmt: skip


def check_attention(card):
    "The kernel of attention, asked of torch and of memtrain"
    capability = find_device(card).capability
    kinds, rows = {0: 'math', 1: 'flash', 2: 'efficient', 3: 'cudnn'}, []
    for dtype in torch.float32, torch.bfloat16:
        for heads, kv_heads, tokens, keys, size in HEADS:
            for causal, masked, dropout in (
                (False, False, 0.0),
                (True, False, 0.0),
                (False, True, 0.0),
                (True, False, 0.1),
            ):
                q = gpu_cases.draw(2, heads, tokens, size, dtype=dtype)
                k, v = (gpu_cases.draw(2, kv_heads, keys, size, dtype=dtype) for _ in range(2))
                mask = torch.ones(tokens, keys, dtype=torch.bool, device='cuda') if masked else None
                gqa = kv_heads < heads
                try:
                    true = kinds[torch._fused_sdp_choice(q, k, v, mask, dropout, causal, enable_gqa=gqa)]
                except Exception as e:
                    true = f'{type(e).__name__}: {e}'[:100]
                told = attention_backend(q, k, v, mask, causal, gqa, capability, dropout)
                asked = dict(
                    dtype=str(dtype), heads=heads, kv_heads=kv_heads, tokens=tokens, keys=keys, size=size
                )
                rows.append(asked | dict(causal=causal, masked=masked, dropout=dropout, told=told, true=true))
    return rows


def seconds_of(run, rounds=5, calls=10):
    "The median time of a call of `run`"
    run()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def measure_rates():
    clear()
    found, n = {}, 8192
    for what, dtype, tf32 in (
        ('bf16', torch.bfloat16, False),
        ('tf32', torch.float32, True),
        ('fp32', torch.float32, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(n, n, device='cuda', dtype=dtype) for _ in range(2))
        found[f'{what}_flops'] = 2 * n**3 / seconds_of(lambda: a @ b)
    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.empty(GIB, dtype=torch.uint8, device='cuda')
    y = torch.empty_like(x)
    found['bandwidth'] = 2 * x.nbytes / seconds_of(lambda: y.copy_(x))
    small = torch.zeros(16, device='cuda')
    found['launch_seconds'] = seconds_of(lambda: small.add_(1), calls=2000)
    host, pinned = (
        torch.empty(256 * MIB, dtype=torch.uint8),
        torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True),
    )
    found['from_ordinary'] = host.nbytes / seconds_of(lambda: x[: host.nbytes].copy_(host), calls=2)
    found['from_locked'] = host.nbytes / seconds_of(
        lambda: x[: host.nbytes].copy_(pinned, non_blocking=True), calls=2
    )
    return found


def ask_driver(what):
    command = ['nvidia-smi', f'--query-gpu={what}', '--format=csv,noheader,nounits']
    try:
        run = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        return [str(e)]
    return run.stdout.strip().split(', ')


def describe():
    p = torch.cuda.get_device_properties(0)
    return dict(
        title=p.name,
        memory=torch.cuda.mem_get_info()[1],
        capability=[p.major, p.minor],
        multiprocessors=p.multi_processor_count,
        driver=ask_driver('driver_version,memory.total'),
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        **versions(),
    )


# --------------------------------------------------------------------------------------------------
# commands


def parts_of(args):
    "What is asked of the card, by name"
    return dict(
        device=describe,
        context=check_context,
        allocator=lambda: check_allocator(args.card, False),
        expandable=lambda: check_allocator(args.card, True),
        attention=lambda: check_attention(args.card),
        rates=measure_rates,
        sums=measure_sums,
        recurrent=measure_recurrent,
        workspaces=lambda: measure_workspaces(args.seconds),
        case=lambda: answer_case(args.only),
    )


def in_own_process(part, args, only=''):
    "What `part` says in a fresh process"
    conf = {'PYTORCH_CUDA_ALLOC_CONF': 'expandable_segments:True'} if part == 'expandable' else {}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, 'answer.json')
        command = [sys.executable, __file__, part, '--card', args.card, '--out', answer, '--only', only]
        command += ['--seconds', str(args.seconds)]
        run = subprocess.run(command, capture_output=True, text=True, env=os.environ | conf)
        if answer.exists():
            return json.loads(answer.read_text())
        return dict(error=f'ended with {run.returncode}: {run.stderr.strip()[-800:]}')


def measure_all(predicted, args):
    "All that the card is asked, part by part; one that fails is told, the others go on"
    found, histories = dict(card=args.card), {}

    def keep_so_far():
        if args.out:
            Path(args.out).write_text(json.dumps(found))

    def keep_row(name, row):
        found['cases'][name] = row
        keep_so_far()

    wanted = [name for name in args.parts.split(',') if name] or [
        *(name for name in parts_of(args) if name != 'case'),
        'cases',
    ]
    for name in wanted:
        started = time.perf_counter()
        if name == 'cases':
            found['cases'] = {}
            histories = measure_cases(predicted['cases'], args, keep_row)
        else:
            found[name] = in_own_process(name, args)
        print(f'{name}: {time.perf_counter() - started:.0f} s', flush=True)
        keep_so_far()
    return found, histories


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'part', nargs='?', default='all', choices=['all', 'predict', 'measure', *parts_of(None)]
    )
    parser.add_argument('--card', help='as memtrain names it; the one that is here by default')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), help='processes that predict')
    parser.add_argument('--only', default='', help='cases with this in their names')
    parser.add_argument(
        '--parts', default='', help='of what is measured, separated by commas; all by default'
    )
    parser.add_argument('--minutes', type=float, default=6, help='for the cases on the card')
    parser.add_argument('--seconds', type=float, default=60, help='for the convolutions')
    parser.add_argument(
        '--at_once', type=int, default=1, help='cases at a time; their seconds then mean nothing'
    )
    parser.add_argument('--out', help='a file for what was measured, as it goes')
    parser.add_argument('--histories', help='a file for the histories of cases that were missed')
    args = parser.parse_args()
    if args.part in parts_of(None):
        Path(args.out).write_text(json.dumps(parts_of(args)[args.part]()))
        return
    if args.part != 'predict' and not torch.cuda.is_available():
        sys.exit('gpu_check.py: there is no CUDA GPU here; predict needs none')
    args.card = args.card or find_device(ask_driver('name')[0]).name
    folder = Path(results_dir()) / 'cards'
    said = f'{args.card}_predicted'
    known = load_result(said, folder).values if (folder / f'{said}.json').exists() else None
    same = known is not None and known['versions']['torch'] == torch.__version__
    if args.part != 'measure' or not same:
        known = predict_all(args.card, args.jobs, args.only)
        keep(said, known, f'predict --card {args.card}', folder, args)
    if args.part == 'predict':
        return
    found, histories = measure_all(known, args)
    if args.histories:
        with gzip.open(args.histories, 'wt') as f:
            json.dump(histories, f)
    keep(args.card, found, '', folder, args)


def keep(name, values, words, folder, args):
    "Save `values`, unless they are only some of what there is"
    if args.only or args.parts:
        return print(f'{name}: not kept, with --only or --parts; --out FILE writes what was measured')
    save_result(name, values, f'python benchmarks/gpu_check.py {words}'.strip(), folder)


if __name__ == '__main__':
    main()
