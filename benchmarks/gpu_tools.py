"""What the benchmarks ask of a GPU: which card it is, a limit on its memory, the largest size that fits,
clocks, copies, feeds and strategies.

Used by gpu.py and gpu_training.py. On a CPU every function goes the same way with what a CPU has, so that
small shapes show whether it works. Peaks on CUDA are the allocator's own count, on a CPU a trace; seconds
on CUDA are between two events in the stream."""

from __future__ import annotations

import contextlib, gc, math, re, statistics, subprocess, time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from memtrain.bench import format_number, format_table
from memtrain.core import MemtrainError, format_size, is_out_of_memory, load_result, results_dir
from memtrain.devices import find_device
from memtrain.loader import TokenLoader
from memtrain.measure import check_device, measure_peak, measure_step
from memtrain.model import GPTConfig
from memtrain.step_time import LAUNCH_SECONDS, REACHED, flops_per_token
from memtrain.shards import TokenShards
from memtrain.train import TrainConfig, gpt_step
from memtrain.wpo import FactorNet
from memtrain.wpo_train import Choice, Rates, backward_by

_GENERATIONS = {3: 8e9, 4: 16e9, 5: 32e9}  # of PCI Express: bits per second on a lane


def bus_rate(generation: int, lanes: int = 16) -> float:  # of PCI Express, 3 to 5  # bytes per second
    """What PCI Express of this `generation` carries over so many `lanes`, in one direction, without what
    packets add"""
    if generation not in _GENERATIONS:
        raise MemtrainError(
            'is not known', f'take one of {", ".join(map(str, _GENERATIONS))}', 'generation', generation
        )
    return _GENERATIONS[generation] * lanes * 128 / 130 / 8


@dataclass(frozen=True)
class Part:
    "Something that `benchmarks/gpu.py` measures"

    question: str  # that it answers
    result: str  # file in the folder of results, without `.json`
    table: Callable  # of the values that were saved; gives header and rows


def _size(r, key):
    return format_size(r[key]) if r.get(key) else '–'


def _rate(r):
    return format_number(r.get('tokens_per_second'))


def _fits(values):
    return ['model', 'technique', 'predicted', 'found', 'tokens/s'], [
        [r['model'], r['technique'], r['predicted'], r.get('failed') or r.get('largest', '–'), _rate(r)]
        for r in values['rows']
    ]


def _memory(values):
    def row(what, s):
        return [what, s['n'], *(f'{s[k]:.2%}' for k in ('median', 'mean', 'worst')), s['over_3_percent']]

    return ['bytes', 'steps', 'median miss', 'mean', 'worst', 'over 3 %'], [
        row(*item) for item in values['summary'].items()
    ]


def _training(values):
    def row(name, r):
        if 'failed' in r:
            return [name, _size(r, 'predicted'), 'failed', '–', '–', '–']
        return [
            name,
            *(_size(r, k) for k in ('predicted', 'peak', 'reserved')),
            _rate(r),
            f"{r['mfu']:.1%}" if r.get('mfu') else '–',
        ]

    return ['', 'predicted', 'measured', 'reserved', 'tokens/s', 'utilisation'], [
        row(*item) for item in values['rows'].items()
    ]


def _loss(values):
    def row(name, r):
        return (
            [name, 'failed', '–']
            if 'failed' in r
            else [name, format_size(r['peak']), f"{1000 * statistics.median(r['seconds'][1:]):.2f}"]
        )

    return ['head and loss', 'peak', 'ms'], [row(*item) for item in values['rows'].items()]


def _largest(values):
    return ['', 'predicted', 'found', 'tokens/s'], [
        [name, r.get('guess', '–'), r.get('largest', 'failed'), _rate(r)]
        for name, r in values['rows'].items()
    ]


def _copies(values):
    names, bus = [*values['rows'][0]['rates']], values.get('bus')
    limit = bus and bus['generation'] in _GENERATIONS and bus_rate(**bus)

    def row(r):
        return [format_size(r['size']), *(format_number(r['rates'][n] / 1e9) for n in names)] + (
            [f"{r['rates']['page-locked'] / limit:.0%}"] if limit else []
        )

    return ['GB/s', *names] + ['page-locked, of the bus'] * bool(limit), [row(r) for r in values['rows']]


def _feeding(values):
    limit, rates = (
        statistics.median(values['rates']['limit']),
        {n: statistics.median(r) for n, r in values['rates'].items()},
    )
    return ['', 'M tokens/s', 'of the limit'], [
        [n, format_number(r / 1e6), format_number(r / limit)] for n, r in rates.items()
    ]


def _wpo(values):
    def row(r):
        real = (
            ['failed', '–']
            if 'failed' in r
            else [format_size(r['peak']), format_number(statistics.median(r['seconds']))]
        )
        return [
            r['centers'],
            r['strategy'],
            r['chunk_size'] or 'all',
            r['accumulation_steps'],
            format_size(r['predicted']),
            real[0],
            format_number(r['predicted_seconds']),
            real[1],
        ]

    return [
        'centers',
        'strategy',
        'at a time',
        'micro-batches',
        'predicted',
        'measured',
        'predicted s',
        'measured s',
    ], [row(r) for r in values['rows']]


PARTS = {  # by the name that the command line knows
    'fits': Part('What fits an RTX 3090?', 'gpu_fits', _fits),
    'memory': Part('How far off are the predicted peaks?', 'gpu_memory', _memory),
    'techniques': Part('What does each technique save and cost?', 'gpu_training_ablation', _training),
    'nanogpt': Part("How fast is it beside nanoGPT's own loop?", 'gpu_training_nanogpt', _training),
    'loss': Part('How does the loss in chunks compare with fused kernels?', 'gpu_training_loss', _loss),
    'largest': Part(
        'What is the largest micro-batch of 124M parameters within 24 GB?', 'gpu_training_largest', _largest
    ),
    'copies': Part('How much does the bus carry, page-locked and not?', 'gpu_copies', _copies),
    'feeding': Part('How fast does the loader feed a GPU, against the limit?', 'gpu_feeding', _feeding),
    'wpo': Part('What do the strategies of WPO-SGM take in 3,072 dimensions?', 'gpu_wpo', _wpo),
}


def show_recorded(
    name: str,
    folder: str | Path | None = None,  # of `PARTS`  # of results; `results_dir()` by default
) -> None:
    "Print what was measured for the part `name`, with its stamp, or that nobody has measured it yet"
    if name not in PARTS:
        raise MemtrainError('is not a part', f'take one of {", ".join(PARTS)}', 'name', name)
    part = PARTS[name]
    if not (Path(folder or results_dir()) / f'{part.result}.json').exists():
        return print(
            f'results/{part.result}.json: not measured yet. On a machine with a CUDA GPU: python'
            f' benchmarks/gpu.py {name}'
        )
    r = load_result(part.result, folder)
    print(r.values.get('device', ''), format_table(*part.table(r.values)), r.stamp, r.command, sep='\n')


# an error for what is neither, and where there is no CUDA
def _is_cuda(device):
    return check_device(device).startswith('cuda')


def describe_device(
    device: str = 'cpu',  # or 'cuda:0'
    # `device`: its title; `card`: key of `DEVICES`, or None; `total`: bytes, None on a CPU; `torch`, `cuda`:
    # versions
) -> dict:
    "What a result has to say of the `device` it was measured on"
    versions = {'torch': torch.__version__, 'cuda': torch.version.cuda}
    if not _is_cuda(device):
        return {'device': 'cpu', 'card': 'cpu', 'total': None, **versions}
    found = torch.cuda.get_device_properties(check_device(device))
    try:
        card = find_device(found.name).name
    except MemtrainError:
        card = None
    return {'device': found.name, 'card': card, 'total': found.total_memory, **versions}


@contextlib.contextmanager
def limit_memory(
    budget: int,  # bytes that the allocator may have from CUDA
    device: str = 'cuda',  # or 'cuda:1'; on a CPU, which knows no such limit, nothing happens
) -> Iterator[None]:
    """Within the block this process has no more than `budget` bytes of `device` for tensors, as on a smaller
    card"""
    if not _is_cuda(device):
        yield
        return
    device = check_device(device)
    total = torch.cuda.get_device_properties(device).total_memory
    if budget > total:
        raise MemtrainError(
            f'is {format_size(budget)}, {device} has {format_size(total)} and can only play a smaller card',
            argument='budget',
        )
    # torch 2.8 can't tell
    before = getattr(torch.cuda, 'get_per_process_memory_fraction', lambda _: 1.0)(device)
    torch.cuda.empty_cache()  # what is only kept would count
    torch.cuda.set_per_process_memory_fraction(budget / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


def clear_device(device: str = 'cpu') -> None:  # or 'cuda:0'
    "Give back everything that `device` only keeps for later, and let its peaks start again"
    gc.collect()
    if not _is_cuda(device):
        return
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()  # which would not count in the next peak
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def make_step(
    shape: GPTConfig,  # of the model
    config: TrainConfig,  # how it is trained
    device: str = 'cpu',  # or 'cuda:0'
) -> Callable[[], Any]:
    """A function that takes a training step of a new GPT of `shape` on `device`, as `config` says, on random
    tokens"""
    build, optimizer_fn, step_fn = gpt_step(shape, config)
    with torch.device(device):
        model = build()
    optimizer = optimizer_fn([*model.parameters()])
    return lambda: step_fn(model, optimizer)


def peak_of_steps(
    shape: GPTConfig,  # of the model
    config: TrainConfig,  # how it is trained
    device: str = 'cpu',  # or 'cuda:0'
) -> tuple[int, int | None]:  # bytes in tensors, and bytes reserved by the allocator, which a CPU hasn't got
    "The peaks of building a GPT of `shape` on `device` and of two training steps as `config` says"
    if not _is_cuda(device):
        return measure_step(*gpt_step(shape, config)).peak, None
    clear_device(device)
    before = torch.cuda.memory_allocated(device)
    step = make_step(shape, config, device)
    for _ in range(2):
        step()
    torch.cuda.synchronize(device)
    found = torch.cuda.max_memory_allocated(device) - before, torch.cuda.max_memory_reserved(device)
    del step
    clear_device(device)
    return found


def fits_memory(
    shape: GPTConfig,  # of the model
    config: TrainConfig,  # how it is trained
    budget: int,  # bytes for tensors; more than `device` has isn't found out, but refused
    device: str = 'cpu',  # or 'cuda:0'
) -> bool:
    "Whether two real steps of a GPT of `shape` as `config` says stay within `budget` on `device`"
    try:
        with limit_memory(budget, device):
            peak = peak_of_steps(shape, config, device)[0]
    except Exception as e:
        if not is_out_of_memory(e):
            raise
        peak = math.inf
    clear_device(device)  # behind the except, where nothing holds the failed step any more
    return peak <= budget


def search_largest(
    fits: Callable[[int], bool],  # of a size; once false, false for all larger ones
    start: int = 1,  # where to begin, such as a prediction
    most: int = 2**20,  # not looked for beyond this
) -> int:  # 0 if 1 is too large
    "The largest size for which `fits` is true, with few tries if `start` is near it"
    good, bad, n, stride = 0, most + 1, min(max(1, start), most), max(1, start // 16)
    while True:  # outwards
        if fits(n):
            good = n
        else:
            bad = n
        if good and bad <= most or good == most or bad == 1:
            break
        n, stride = (min(n + stride, most) if good else max(1, n - stride)), 2 * stride
    while bad - good > 1:
        n = (good + bad) // 2
        good, bad = (n, bad) if fits(n) else (good, n)
    return good


def time_work(
    fn: Callable[[], Any],  # the work; on CUDA, what it puts into the current stream
    tries: int = 7,  # that are timed
    warm: int = 2,  # before them, that aren't
    device: str = 'cpu',  # or 'cuda:0'
) -> list[float]:  # seconds of each try
    "How long `fn` takes on `device`, in `tries` tries, after `warm` that don't count"
    cuda = _is_cuda(device)

    def here():
        started = time.perf_counter()
        fn()
        return time.perf_counter() - started

    def on_gpu():
        with torch.cuda.device(check_device(device)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            fn()
            end.record()
            end.synchronize()
        return start.elapsed_time(end) / 1000

    for _ in range(warm):
        fn()
    return [on_gpu() if cuda else here() for _ in range(tries)]


def time_steps(
    shape: GPTConfig,  # of the model
    config: TrainConfig,  # how it is trained
    device: str = 'cpu',  # or 'cuda:0'
    steps: int = 7,  # that are timed
    warm: int = 3,  # before them
) -> list[float]:  # seconds of each
    "How long training steps of a new GPT of `shape` on `device` take as `config` says"
    clear_device(device)
    try:
        return time_work(make_step(shape, config, device), steps, warm, device)
    finally:
        clear_device(device)


def utilisation(
    shape: GPTConfig,  # of the model
    tokens_per_second: float,  # that it learns from
    card: str | None,  # that `find_device` knows; None where it isn't known
) -> float | None:  # from 0 to 1
    """The share of the 16-bit rate in `card`'s data sheet that training a GPT of `shape` uses; what is
    computed twice doesn't count"""
    return tokens_per_second * flops_per_token(shape) / find_device(card).bf16 if card else None


def measure_copies(
    size: int = 2**26,  # bytes of a copy; 64 MiB are enough to hide what starting one takes
    device: str = 'cpu',  # or 'cuda:0'
    tries: int = 9,  # copies of each kind that are timed
) -> dict[str, float]:  # bytes per second, by the kind of copy
    """How fast `size` bytes get from memory to `device`, ordinary and page-locked, and where that is a GPU
    back and from place to place"""
    here, there = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8, device=device)
    ways = {'ordinary': lambda: there.copy_(here)}
    if _is_cuda(device):
        locked, other = here.pin_memory(), there.clone()
        ways |= {
            'page-locked': lambda: there.copy_(locked, non_blocking=True),
            'locked on the way': lambda: there.copy_(here.pin_memory(), non_blocking=True),
            'back, page-locked': lambda: locked.copy_(there, non_blocking=True),
            'on the device': lambda: other.copy_(there),
        }
    return {name: size / statistics.median(time_work(copy, tries, 2, device)) for name, copy in ways.items()}


def find_bus(
    device: str = 'cuda',  # or 'cuda:1'
) -> dict | None:  # `generation`, `lanes`; None where the driver doesn't tell
    "The link over which `device` hangs at this machine"
    ask = [
        'nvidia-smi',
        '--query-gpu=pcie.link.gen.max,pcie.link.width.max',
        '--format=csv,noheader',
        '-i',
        check_device(device).split(':')[1],
    ]
    try:
        found = re.fullmatch(
            r'\s*(\d+)\s*,\s*(\d+)\s*', subprocess.run(ask, capture_output=True, text=True, timeout=20).stdout
        )
    except (OSError, subprocess.TimeoutExpired):
        found = None
    return {'generation': int(found[1]), 'lanes': int(found[2])} if found else None


def list_feeds(
    shards: TokenShards,  # of one split
    batch_size: int,  # windows, B
    block_size: int,  # tokens in each, T
    device: str = 'cpu',  # or 'cuda:0'
) -> dict[str, Callable[[], Iterator]]:  # name: function that gives the batches of an epoch on `device`
    "The ways in which a `TokenLoader` of `shards` feeds `device` with batches of `batch_size` × `block_size`"

    def load(**kw):
        return TokenLoader(shards, batch_size, block_size, seed=0, drop_last=True, **kw)

    # doesn't wait where it is page-locked
    def send(t):
        return torch.empty_like(t, device=device).copy_(t, non_blocking=t.is_pinned())

    def sent(**kw):
        return (tuple(send(t) for t in batch) for batch in load(**kw))

    ways = {
        'int64, ordinary': sent,
        'int64, a thread ahead': lambda: sent(prefetch=4),
        'as on disk': lambda: iter(load(device=device)),
        'as on disk, a thread ahead': lambda: iter(load(device=device, prefetch=4)),
    }
    return ways | (
        {
            'int64, page-locked': lambda: sent(pin_memory=True),
            'int64, page-locked, a thread ahead': lambda: sent(pin_memory=True, prefetch=4),
        }
        if _is_cuda(device)
        else {}
    )


def measure_feeding(
    shards: TokenShards,  # of one split
    batch_size: int = 16,  # windows, B
    block_size: int = 1024,  # tokens in each, T
    device: str = 'cpu',  # or 'cuda:0'
    batches: int = 100,  # that are timed, in each round and way, after two that aren't
    rounds: int = 3,  # in which every way has its turn
) -> dict[str, list[float]]:  # tokens per second of each round, by way; 'limit' first
    """How fast a `TokenLoader` of `shards` feeds `device`, in every way of `list_feeds`, and how fast its
    bytes alone would get there"""
    if (have := len(shards.windows(block_size)) // batch_size) < batches + 2:
        raise MemtrainError(
            f'{shards.path}: {have} batches of {batch_size} × {block_size}, {batches + 2} are needed',
            'take fewer, or smaller ones',
        )
    raw, cuda = (
        torch.zeros(batch_size * (block_size + 1) * shards.dtype.itemsize, dtype=torch.uint8),
        _is_cuda(device),
    )
    raw, there = raw.pin_memory() if cuda else raw, torch.empty_like(raw, device=device)

    def wait():
        return torch.cuda.synchronize(device) if cuda else None

    def rate(feed):
        for _ in range(2):
            next(feed)
        wait()
        started, tokens = time.perf_counter(), 0
        for _ in range(batches):
            tokens += next(feed)[0].numel()
        wait()
        return tokens / (time.perf_counter() - started)

    ways, found = list_feeds(shards, batch_size, block_size, device), {}
    for _ in range(rounds):
        seconds = time_work(lambda: there.copy_(raw, non_blocking=True), 9, 2, device)
        found.setdefault('limit', []).append(batch_size * block_size / statistics.median(seconds))
        for name, start in ways.items():
            with contextlib.closing(start()) as feed:
                found.setdefault(name, []).append(rate(feed))
    return found


def card_rates(
    card: str,  # that `find_device` knows by name
) -> Rates:  # for `choose_strategy` and `predict_seconds`
    "What `card` would do in a second, by its data sheet"
    found = find_device(card)
    if found.fp32 is None:
        raise MemtrainError('has no data sheet here', 'name a card such as rtx3090', 'card', card)
    # a number is read and written, four bytes each
    return Rates(
        REACHED * found.fp32 / 2,
        REACHED * found.bandwidth / 8,
        REACHED * found.bandwidth / 8,
        1 / LAUNCH_SECONDS,
    )


def describe_failure(error: BaseException) -> str:  # any  # at most 300 characters
    "What a result says of an `error`: its kind and its first line"
    return f'{type(error).__name__}: {error}'.splitlines()[0][:300]


def measure_strategies(
    choice: Choice,  # its rows that fit are run
    dim: int,  # of the data, d
    centers: int,  # K
    batch_size: int,  # samples in a step, B
    hidden: int = 64,  # of the `FactorNet`
    depth: int = 5,  # of the `FactorNet`
    panel: int = 32,  # of the `FactorNet`
    device: str = 'cpu',  # or 'cuda:0'
    tries: int = 3,  # passes that are timed
    # of each row: strategy, knobs, `predicted` and `peak` bytes of the pass, `predicted_seconds`, `seconds`,
    # `loss`; or `failed`
) -> list[dict]:
    """What forward and backward by each row of `choice` that fits really hold and take, for `centers` and a
    batch of `batch_size` in `dim` dimensions on `device`"""
    torch.manual_seed(0)
    net, rows = FactorNet(dim, hidden, depth, panel=panel).to(device), []
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    data = torch.randn(batch_size, dim).to(device), torch.randn(centers, dim).to(device)
    for row in (row for row in choice.rows if row['fits']):
        found = {k: row[k] for k in ('strategy', 'chunk_size', 'accumulation_steps')} | {
            'predicted': row['bytes']['pass'],
            'predicted_seconds': row['seconds'],
        }

        def run(row=row):
            return backward_by(row['strategy'], net, *data, row['chunk_size'], row['accumulation_steps'])

        try:
            loss = run().item()
            found |= {
                'loss': loss,
                'peak': measure_peak(run, device),
                'seconds': time_work(run, tries, 0, device),
            }
        except Exception as e:
            found['failed'] = describe_failure(e)  # told, and doesn't end the others
        rows.append(found)
        clear_device(device)
    return rows
