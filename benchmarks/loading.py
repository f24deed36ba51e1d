#!/usr/bin/env python3
"""Loading token batches: memtrain against other loaders and against the limit of the machine.

    python benchmarks/loading.py warm|wait|cold|small-cache|shuffle|start|order|all [--tokens 200M] \\
      [--work DIR]

Each subcommand prints a table and writes `results/loader_<name>.json`. Loaders that aren't installed are
left out, and listed. Every way gives batches `x`, `y` of 16 windows of 1,024 ids as int64, `y` one ahead of
`x`; the first batches of each are checked.

The ids encode their own position (two neighbouring ids tell it), so the order in which a loader visits the
windows is read off the batches it really gave."""

from __future__ import annotations

import argparse, contextlib, gc, importlib, importlib.metadata, json, math, os, re, shutil, statistics
import subprocess, sys, tempfile, time, warnings
from pathlib import Path

for name in ('OMP_NUM_THREADS', 'HF_HUB_OFFLINE', 'HF_DATASETS_OFFLINE', 'LITDATA_DISABLE_VERSION_CHECK'):
    os.environ.setdefault(name, '1')  # one thread, and nobody looks for a newer version of himself

import numpy as np  # after the number of threads is set

from peers import (
    import_peer,
    in_batches,
    in_child,
    open_arrow,
    open_litdata,
    shared_memory_cleaned,
    shuffled_batches,
)

from memtrain.bench import (
    FORMATS,
    LARGEST,
    LIMITS,
    VOCAB,
    WAYS,
    BenchData,
    data_format,
    decode_positions,
    drop_cache,
    files_of,
    format_number,
    format_table,
    open_ours,
    resident_bytes,
    summarize_rates,
    timed,
    way,
    widen,
)
from memtrain.shards import TokenShards

BATCH, BLOCK = 16, 1024
ROW = BLOCK + 1  # ids of a stored row, where a format stores rows
DTYPE = np.dtype('<u2')
PEERS = {
    'torch': 'torch',
    'torchdata': 'torchdata',
    'litdata': 'litdata',
    'datasets': 'datasets',
    'grain': 'grain',
    # module: distribution
    'streaming': 'mosaicml-streaming',
    'webdataset': 'webdataset',
    'pyarrow': 'pyarrow',
}
NOT_IMPORTED = {}  # module: the reason
MIB = 2**20


# --------------------------------------------------------------------------------------------------
# the data, per format


@data_format('tar')
def write_tar(data, dest, rows=None, per_shard=10_000):
    "WebDataset's tar files of rows"
    import webdataset

    with webdataset.ShardWriter(str(dest / '%05d.tar'), maxcount=per_shard, verbose=0) as w:
        n = 0
        for block in rows or data.rows():
            for row in block:
                w.write({'__key__': f'{n:09d}', 'ids': row.tobytes()})
                n += 1


def short_rows(data, width=16):
    """The first `width` ids of each row: a shuffle buffer that counts rows does to them what it does to whole
    ones"""
    for block in data.rows(1000):
        yield block[:, :width]


data_format('arrow-short')(lambda data, dest: FORMATS['arrow'](data, dest, 16, short_rows(data)))
data_format('tar-short')(lambda data, dest: write_tar(data, dest, short_rows(data)))


# --------------------------------------------------------------------------------------------------
# the ways

# The bench's own ways come first, with the other orders of ours; the loaders below are measured here only.


@way('ours_narrow', "memtrain, device='cpu' (widened there)", ['shards'])
def _(data, epoch):
    return open_ours(data, epoch, device='cpu')


@way('ours_global', "memtrain, shuffle='global'", ['shards'])
def _(data, epoch):
    return open_ours(data, epoch, shuffle='global')


@way('gather', 'one NumPy gather over a memmap, global')
def _(data, epoch):
    ids = data.ids()
    # row i begins at id i
    rows = np.ndarray(len(ids) - BLOCK, f'V{ROW * DTYPE.itemsize}', ids, strides=DTYPE.itemsize)
    for indices in shuffled_batches(data, data.windows, epoch):
        yield widen(rows[indices * BLOCK].view(DTYPE).reshape(BATCH, ROW))


@way('stateful_loader', 'torchdata StatefulDataLoader over windows', ['shards'], needs=['torch', 'torchdata'])
def _(data, epoch):
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    g = torch.Generator().manual_seed(epoch)
    return iter(
        StatefulDataLoader(
            TokenShards(data.path('shards')).windows(BLOCK),
            batch_size=BATCH,
            shuffle=True,
            drop_last=True,
            generator=g,
        )
    )


@way('litdata_full', 'LitData, the same, whole chunks shuffled', ['litdata'], needs=['litdata'])
def _(data, epoch):
    return in_batches(open_litdata(data, epoch, item_shuffle_window='full'), BATCH)


@way('litdata_loader', 'LitData, its StreamingDataLoader', ['litdata'], needs=['litdata'])
def _(data, epoch):
    import litdata

    return iter(
        litdata.StreamingDataLoader(
            open_litdata(data, epoch),
            batch_size=BATCH,
            num_workers=0,
            drop_last=True,
            collate_fn=lambda rows: widen(np.stack(rows)),
        )
    )


LITDATA = ['litdata', 'litdata_full', 'litdata_loader']


@way('hf_torch', 'HF datasets, torch format, DataLoader', ['arrow'], needs=['datasets', 'pyarrow', 'torch'])
def _(data, epoch):
    import torch

    g, join = torch.Generator().manual_seed(epoch), lambda rows: torch.stack([r['input_ids'] for r in rows])
    ds = open_arrow(data).with_format('torch')
    for rows in torch.utils.data.DataLoader(
        ds, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=join, generator=g
    ):
        rows = rows.long()
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


@way('hf_iterable', 'HF iterable, buffer of 1,000', ['arrow'], needs=['datasets', 'pyarrow'])
def _(data, epoch):
    ds = (
        open_arrow(data)
        .to_iterable_dataset(num_shards=20)
        .shuffle(seed=epoch, buffer_size=1000)
        .with_format('numpy')
    )
    for batch in ds.iter(batch_size=BATCH, drop_last_batch=True):
        yield widen(np.asarray(batch['input_ids']))


class DocumentSamples:
    """Samples as Megatron's GPTDataset cuts them (own form): documents end to end, a table of where samples
    begin, a shuffle index"""

    def __init__(self, data, epoch):
        rng = np.random.default_rng(epoch)
        lengths = rng.integers(200, 1800, data.tokens // 1000 + 1)
        self.ends = np.cumsum(lengths)
        self.ends = np.append(self.ends[self.ends < data.tokens], data.tokens)
        self.ids, self.n = data.ids(), data.windows
        begins = np.arange(self.n + 1) * BLOCK
        self.samples = np.searchsorted(self.ends, begins, side='right')  # the document each sample begins in
        self.offsets = begins - np.append(0, self.ends)[self.samples]
        self.order = rng.permutation(self.n)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        import torch

        i = self.order[i]
        first, last, offset, end, pieces = (
            self.samples[i],
            self.samples[i + 1],
            self.offsets[i],
            self.offsets[i + 1],
            [],
        )
        for d in range(first, last + 1):
            begin = self.ends[d - 1] if d else 0
            low, high = begin + (offset if d == first else 0), begin + end + 1 if d == last else self.ends[d]
            pieces.append(self.ids[low:high])
        text = torch.from_numpy(np.concatenate(pieces).astype(np.int64))
        return {
            'tokens': text[:-1].contiguous(),
            'labels': text[1:].contiguous(),
            'loss_mask': torch.ones(BLOCK),
            'position_ids': torch.arange(BLOCK),
        }


@way('megatron', 'Megatron-like GPTDataset (own form), DataLoader', needs=['torch'])
def _(data, epoch):
    import torch

    for b in torch.utils.data.DataLoader(DocumentSamples(data, epoch), batch_size=BATCH, drop_last=True):
        yield b['tokens'], b['labels']


def open_tar(data, epoch, name='tar'):
    import webdataset

    files = sorted(str(p) for p in data.path(name).glob('*.tar'))
    return webdataset.WebDataset(files, shardshuffle=len(files), seed=epoch).shuffle(1000)


@way('webdataset', 'WebDataset, shards and buffer of 1,000', ['tar'], needs=['webdataset'])
def _(data, epoch):
    return in_batches((np.frombuffer(s['ids'], DTYPE) for s in open_tar(data, epoch)), BATCH)


def choose_ways(keys, only=None):
    "The ways that can run here, and {label: why not} for the others"
    chosen, skipped = [], {}
    for w in (WAYS[key] for key in keys if not only or key in only or key in LIMITS):
        missing = [NOT_IMPORTED[m] for m in w.needs if m in NOT_IMPORTED]
        if missing:
            skipped[w.label] = ', '.join(missing)
        else:
            chosen.append(w)
    return chosen, skipped


LITDATA = ['litdata', 'litdata_full', 'litdata_loader']
ALL = [k for k in WAYS if k != 'ours_stream']  # which tokenises


# --------------------------------------------------------------------------------------------------
# processes, cache, memory


def import_peers():
    """Import what is installed, once, so that children needn't; note in `NOT_IMPORTED` what isn't, or doesn't
    import"""
    for m, distribution in PEERS.items():
        try:
            import_peer(m)
        except Exception as e:
            NOT_IMPORTED[m] = (
                f'{distribution} is not installed'
                if getattr(e, 'name', '') == m
                else f"{distribution} doesn't import: {e}"
            )


def fetched_bytes():
    "Bytes that this process made the disk deliver so far"
    return int(re.search(r'^read_bytes: (\d+)', Path('/proc/self/io').read_text(), re.M)[1])


def device_of(path):
    "Name of the block device that `path` lies on, '' where there is none"
    number = os.stat(path).st_dev
    found = Path(f'/sys/dev/block/{os.major(number)}:{os.minor(number)}')
    return found.resolve().name if found.exists() else ''


def device_bytes(device):
    "Bytes read from `device` by anyone since boot"
    for line in Path('/proc/diskstats').read_text().splitlines():
        fields = line.split()
        if fields[2] == device:
            return int(fields[5]) * 512
    return 0


def read_ahead_kb(device):
    for folder in (Path(f'/sys/block/{device}'), Path(f'/sys/class/block/{device}').resolve().parent):
        with contextlib.suppress(OSError):
            return int((folder / 'queue/read_ahead_kb').read_text())
    return None


def memory_now():
    "RSS and PSS of this process and the anonymous and file parts of its PSS, bytes"
    text = Path('/proc/self/smaps_rollup').read_text()
    field = lambda name: int(re.search(rf'^{name}:\s+(\d+)', text, re.M)[1]) * 1024
    return {
        'rss': field('Rss'),
        'pss': field('Pss'),
        'pss_anon': field('Pss_Anon'),
        'pss_file': field('Pss_File'),
    }


def peak_rss():
    return int(re.search(r'VmHWM:\s+(\d+)', Path('/proc/self/status').read_text())[1]) * 1024


def run_fresh(*args):
    "The JSON that this script prints when run anew with the hidden subcommand `args`"
    done = subprocess.run(
        [sys.executable, __file__, *map(str, args)], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f'exit {done.returncode}'
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


# -------------------------------------------------------------------------------------------------------- a
# cgroup for the page cache


class MemoryGroup:
    """A memory cgroup of our own below the one this process is in (v1 or v2); `None` from `make` where that
    isn't allowed"""

    def __init__(self, folder, version):
        self.folder, self.version = folder, version

    @classmethod
    def make(cls):
        for line in Path('/proc/self/cgroup').read_text().splitlines():
            _, controllers, path = line.split(':', 2)
            roots = [('/sys/fs/cgroup/memory', 1)] if 'memory' in controllers.split(',') else []
            if not controllers:
                roots = [('/sys/fs/cgroup', 2), ('/sys/fs/cgroup/unified', 2)]
            for root, version in roots:
                folder = Path(root + path.rstrip('/')) / f'memtrain-bench-{os.getpid()}'
                try:
                    folder.mkdir()
                except OSError:
                    continue
                if (folder / ('memory.max' if version == 2 else 'memory.limit_in_bytes')).exists():
                    return cls(folder, version)
                folder.rmdir()  # the memory controller isn't handed down here
        return None

    def join(self):
        (self.folder / 'cgroup.procs').write_text(str(os.getpid()))

    def stat(self):
        "(anonymous bytes, page cache bytes) charged to the group"
        s = dict(line.split() for line in (self.folder / 'memory.stat').read_text().splitlines())
        return (int(s['anon']), int(s['file'])) if self.version == 2 else (int(s['rss']), int(s['cache']))

    def limit(self, size):
        name = 'memory.max' if self.version == 2 else 'memory.limit_in_bytes'
        for _ in range(20):
            try:
                return (self.folder / name).write_text(str(size))
            except OSError:  # busy: reclaim hasn't got below it yet
                time.sleep(0.05)
        raise RuntimeError(f'{self.folder / name}: {size} refused')

    def remove(self):
        for _ in range(40):
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.05)


# --------------------------------------------------------------------------------------------------
# tables and results


def print_table(title, header, rows):
    print(f'\n{title}\n{format_table(header, rows)}', flush=True)


def print_skipped(skipped):
    for label, why in skipped.items():
        print(f'left out: {label}: {why}')


def versions():
    found = {}
    for name in ('memtrain', 'numpy', *PEERS.values()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def save(args, values):
    from memtrain.core import save_result

    shown = [a for a in sys.argv[1:] if a != args.command]
    for flag in ('--work', '--results'):  # a folder on this machine, no part of what to repeat
        if flag in shown:
            del shown[shown.index(flag) : shown.index(flag) + 2]
    shown = [a for a in shown if not a.startswith(('--work=', '--results=')) and a not in ('--keep', 'all')]
    result = save_result(
        f"loader_{args.command.replace('-', '_')}",
        {**values, 'libraries': versions()},
        ' '.join(['python benchmarks/loading.py', args.command, *shown]),
        args.results,
    )
    print(result.stamp)


def median(values):
    return statistics.median(values) if values else None


# --------------------------------------------------------------------------------------------------
# warm


def run_warm(args, data):
    "One process, page cache warm: rounds of all ways in turn, each round against the limit of that round"
    import torch

    torch.set_num_threads(1)
    ways, skipped = choose_ways(ALL, args.ways)
    running, rates = {}, {}
    for w in list(ways):
        try:
            w.write(data)
            for p in files_of(w, data):
                p.read_bytes()
            running[w.key] = w.batches(data)
            timed(running[w.key], 0.3)
        except Exception as e:
            ways.remove(w)
            skipped[w.label] = f'{type(e).__name__}: {str(e)[:200]}'
    for r in range(args.rounds):
        for w in ways if r % 2 else reversed(ways):
            timed(running[w.key], 10, at_most=w.lead)
            tokens, seconds = timed(running[w.key], args.seconds or 0.25)
            rates.setdefault(w.key, []).append(tokens / seconds)
    values = summarize_rates(ways, rates)
    rows = [
        (
            w.label,
            format_number(v['tokens_per_second'] / 1e6),
            format_number(v['ratio_to_limit']),
            f"{format_number(v['ratio_low'])} – {format_number(v['ratio_high'])}",
            format_number(v['ratio_to_best_peer']),
        )
        for w in ways
        for v in [values['ways'][w.key]]
    ]
    print_table(
        f"warm: {args.rounds} rounds, limit is '{WAYS[values['limit']].label}'",
        ['way', 'M tokens/s', 'of the limit', 'lowest – highest', 'to the best peer'],
        rows,
    )
    print_skipped(skipped)
    running.clear()
    gc.collect()
    return {
        **values,
        'rounds': args.rounds,
        'skipped': skipped,
        'tokens': data.tokens,
        'batch_size': BATCH,
        'block_size': BLOCK,
        'best_litdata': max((k for k in LITDATA if k in rates), key=lambda k: median(rates[k]), default=None),
    }


def add_fetched(values, found):
    "To each way: bytes read over bytes needed, as the process and as the device counts them, and its runs"
    for key, v in values['ways'].items():
        for kind in ('fetched', 'device'):
            v[f'{kind}_over_needed'] = median([m[kind] / (m['tokens'] * DTYPE.itemsize) for m in found[key]])
        v['runs'] = found[key]


# --------------------------------------------------------------------------------------------------
# wait


def run_wait(args, data):
    """A training loop whose step keeps one core busy for about 20 ms: the share of it spent waiting for the
    next batch"""
    import torch

    torch.set_num_threads(1)
    a = torch.randn(384, 384)

    def work(times):
        started = time.perf_counter()
        for _ in range(times):
            torch.mm(a, a)
        return time.perf_counter() - started

    work(50)
    times = max(1, round(0.02 / (min(work(50) for _ in range(5)) / 50)))
    keys = [
        'ours_block',
        'ours_prefetch',
        'ours_narrow',
        'ours_global',
        'torch_loader',
        'litdata',
        'nanogpt',
        'hf',
        'mosaic',
    ]
    ways, skipped = choose_ways(keys, args.ways)
    running, found, lengths, took, steps = {}, {w.key: [] for w in ways}, {}, {'alone': []}, 60
    for w in ways:
        w.write(data)
        for p in files_of(w, data):
            p.read_bytes()
        running[w.key] = w.batches(data)
        timed(running[w.key], 0.5)
    for r in range(args.rounds if args.rounds_given else 3):
        took['alone'].extend(work(times) for _ in range(steps // 2))
        for w in ways:
            next(running[w.key])
            waits, started = [], time.perf_counter()
            for _ in range(steps):
                before = time.perf_counter()
                next(running[w.key])
                waits.append(time.perf_counter() - before)
                took.setdefault(w.key, []).append(work(times))
            found[w.key].append(sum(waits) / (time.perf_counter() - started))
            lengths.setdefault(w.key, []).extend(waits)
    values = {
        w.key: {
            'label': w.label,
            'share_waiting': median(found[w.key]),
            'rounds': found[w.key],
            'wait_median': median(lengths[w.key]),
            'wait_p99': float(np.quantile(lengths[w.key], 0.99)),
            'step_over_alone': median(took[w.key]) / median(took['alone']),
        }
        for w in ways
    }
    step = median(took['alone'])
    print_table(
        f'wait: a step of {step * 1e3:.1f} ms, {steps} steps a round',
        ['way', 'share waiting', 'median wait', '99th percentile', 'step, to alone'],
        [
            (
                v['label'],
                f"{v['share_waiting']:.3%}",
                f"{v['wait_median'] * 1e6:,.0f} µs",
                f"{v['wait_p99'] * 1e6:,.0f} µs",
                f"{v['step_over_alone']:.3f}",
            )
            for v in values.values()
        ],
    )
    print_skipped(skipped)
    return {'ways': values, 'step_seconds': step, 'steps': steps, 'skipped': skipped, 'tokens': data.tokens}


# --------------------------------------------------------------------------------------------------
# cold


def one_epoch(way, data):
    return way.epoch(data, 0)


def measure_cold(way, data, seconds):
    """In a fresh process: tokens, seconds, and bytes fetched, from opening the data to the end of an epoch or
    of the time"""
    import torch

    torch.set_num_threads(1)
    before = fetched_bytes()
    started = time.perf_counter()
    tokens, _ = timed(one_epoch(way, data), seconds)
    return {'tokens': tokens, 'seconds': time.perf_counter() - started, 'fetched': fetched_bytes() - before}


def run_cold(args, data):
    """The page cache is emptied of the data's files before each measurement, each of which is a process of
    its own"""
    keys = [
        *LIMITS,
        'ours_block',
        'ours_global',
        'gather',
        'torch_loader',
        *LITDATA,
        'hf',
        'nanogpt',
        'megatron',
        'grain_map',
        'mosaic',
        'webdataset',
    ]
    ways, skipped = choose_ways(keys, args.ways)
    for w in list(ways):
        try:
            w.write(data)
        except RuntimeError as e:
            ways.remove(w)
            skipped[w.label] = str(e)
    device = device_of(data.folder)
    os.sync()
    rates, found = {}, {}
    rounds = args.rounds if args.rounds_given else 3
    with shared_memory_cleaned():
        for r in range(rounds):
            for w in list(ways if r % 2 == 0 else reversed(ways)):
                left = drop_cache(files_of(w, data))
                if left > 0.001:
                    raise SystemExit(
                        f'{data.folder}: {left:.1%} of the data stays in the page cache; choose --work on a'
                        ' disk'
                    )
                disk = device_bytes(device)
                try:
                    m = in_child(measure_cold, w, data, args.seconds or 2)
                except RuntimeError as e:
                    ways.remove(w)
                    rates.pop(w.key, None)
                    skipped[w.label] = str(e)
                    continue
                m['device'] = device_bytes(device) - disk
                rates.setdefault(w.key, []).append(m['tokens'] / m['seconds'])
                found.setdefault(w.key, []).append(m)
    values = summarize_rates(ways, rates)
    add_fetched(values, found)
    print_rates(
        f"cold: {rounds} rounds, limit is '{WAYS[values['limit']].label}', read-ahead"
        f" {read_ahead_kb(device)} kB",
        values,
    )
    print_skipped(skipped)
    return {
        **values,
        'rounds': rounds,
        'skipped': skipped,
        'tokens': data.tokens,
        'device': device,
        'read_ahead_kb': read_ahead_kb(device),
    }


def print_rates(title, values):
    print_table(
        title,
        ['way', 'M tokens/s', 'of the limit', 'to the best peer', 'fetched/needed', 'device/needed'],
        [
            (
                v['label'],
                format_number(v['tokens_per_second'] / 1e6),
                format_number(v['ratio_to_limit']),
                format_number(v['ratio_to_best_peer']),
                format_number(v['fetched_over_needed']),
                format_number(v['device_over_needed']),
            )
            for v in values['ways'].values()
        ],
    )


# --------------------------------------------------------------------------------------------------
# small-cache


def measure_small(way, data, group, cache, warm_seconds, seconds, device):
    """In a fresh process, in a cgroup whose page cache holds at most `cache` bytes: rates after the cache has
    filled"""
    import torch

    torch.set_num_threads(1)
    if group:
        group.join()
    files, batches, since, opened = files_of(way, data), way.batches(data), fetched_bytes(), 0
    timed(batches, 1, at_most=20)
    if group:
        group.limit(group.stat()[0] + cache)

    def run(length):
        """Batches for `length` seconds; without a cgroup the data is closed and dropped from the cache when a
        quarter of it was fetched"""
        nonlocal since, batches, opened
        tokens, started, dropping = 0, time.perf_counter(), 0
        while time.perf_counter() - started - dropping < length:
            tokens += timed(batches, 0.1)[0]
            if group is None and fetched_bytes() - since > cache:
                # what is mapped can't be dropped
                before, batches, opened = time.perf_counter(), None, opened + 1
                gc.collect()
                if (left := drop_cache(files)) > 0.1:
                    raise RuntimeError(f'{left:.0%} of the data stays in the page cache')
                batches = way.batches(data, opened)
                timed(batches, 1, at_most=1)
                since, dropping = fetched_bytes(), dropping + time.perf_counter() - before
        return tokens, time.perf_counter() - started - dropping

    filled = time.perf_counter() + warm_seconds
    while time.perf_counter() < filled:
        run(0.25)
    before, disk = fetched_bytes(), device_bytes(device)
    (first, first_took), (second, second_took) = run(seconds / 2), run(seconds / 2)
    tokens, took = first + second, first_took + second_took
    resident, size = sum(map(resident_bytes, files)), sum(map(os.path.getsize, files))
    if group and resident > 1.1 * cache:
        raise RuntimeError(f'{resident / size:.0%} of the data is in the page cache, it was not held')
    anon, held = group.stat() if group else (None, None)
    return {
        'tokens': tokens,
        'seconds': took,
        'fetched': fetched_bytes() - before,
        'device': device_bytes(device) - disk,
        'resident': resident,
        'group_cache': held,
        'group_anon': anon,
        'passes': tokens / data.tokens,
        'second_half_over_first': second / second_took / (first / first_took),
    }


def run_small_cache(args, data):
    "The page cache held at a quarter of the data"
    keys = [
        *LIMITS,
        'ours_block',
        'ours_global',
        'gather',
        'nanogpt',
        'torch_loader',
        'litdata',
        'litdata_full',
        'hf',
    ]
    ways, skipped = choose_ways(keys, args.ways)
    device, cache = device_of(data.folder), data.tokens * DTYPE.itemsize // 4
    if cache < 48 * MIB:
        raise SystemExit(
            f'--tokens {data.tokens}: a quarter of it is too little for a loader to work in; take 120M or'
            ' more'
        )
    for w in ways:
        w.write(data)
    os.sync()
    rates, found = {}, {}
    seconds = args.seconds or 3
    rounds = args.rounds if args.rounds_given else 2
    kind = None
    for r in range(rounds):
        for w in list(ways if r % 2 == 0 else reversed(ways)):
            group = MemoryGroup.make()
            kind = (
                f'memory cgroup v{group.version}'
                if group
                else 'emulated: data closed and dropped from the page cache after each quarter fetched'
            )
            # pages that are there already would be charged to whoever read them
            left = drop_cache(files_of(w, data))
            try:
                if left > 0.001:
                    raise SystemExit(
                        f'{data.folder}: {left:.1%} of the data stays in the page cache; choose --work on a'
                        ' disk'
                    )
                m = in_child(measure_small, w, data, group, cache, seconds, seconds, device)
            except RuntimeError as e:
                ways.remove(w)
                skipped[w.label] = str(e)
                continue
            finally:
                if group:
                    group.remove()
            rates.setdefault(w.key, []).append(m['tokens'] / m['seconds'])
            found.setdefault(w.key, []).append(m)
    values = summarize_rates(ways, rates)
    add_fetched(values, found)
    for key, v in values['ways'].items():
        v['resident_share'] = max(m['resident'] for m in found[key]) / (data.tokens * DTYPE.itemsize)
    print_rates(
        f"small-cache: {kind}, {cache / MIB:.0f} MiB of cache for {4 * cache / MIB:.0f} MiB of data, limit is"
        f" '{WAYS[values['limit']].label}', read-ahead {read_ahead_kb(device)} kB",
        values,
    )
    print(
        'data resident at the end, of all: '
        + ', '.join(f"{k} {v['resident_share']:.0%}" for k, v in values['ways'].items())
    )
    print_skipped(skipped)
    return {
        **values,
        'rounds': rounds,
        'skipped': skipped,
        'tokens': data.tokens,
        'kind': kind,
        'cache_bytes': cache,
        'device': device,
        'read_ahead_kb': read_ahead_kb(device),
    }


# --------------------------------------------------------------------------------------------------
# shuffle


def visited(batches, width=BLOCK):
    "(batches, B) numbers of the windows in the order in which they came"
    order = [decode_positions(np.asarray(x)[:, 0], np.asarray(x)[:, 1]) // width for x, _ in batches]
    if len(order) > 1 and len(order[-1]) < len(order[0]):
        order.pop()
    return np.stack(order)


def judge_order(order, n, near=128):
    """Near pairs and wander of batch means relative to a true shuffle, displacement relative to it, and the
    share of windows seen"""
    k, batch = order.shape
    a, b = np.triu_indices(batch, 1)
    close = (np.abs(order[:, a] - order[:, b]) <= near).mean()
    uniform = (2 * n * near - near * (near + 1)) / (n * (n - 1))
    spread = math.sqrt(
        (n * n - 1) / 12 / batch * (n - batch) / (n - 1)
    )  # of a mean drawn without replacement
    flat = order.ravel()
    moved = np.abs(flat - np.arange(len(flat)) * (n / len(flat))).mean() / (n / 3)
    return {
        'near_pairs': float(close / uniform),
        'wander': float(order.mean(1).std() / spread),
        'displacement': float(moved),
        'windows_seen': len(np.unique(flat)) / n,
        'batches': k,
    }


def order_of_buffer(which, data):
    "Orders of the loaders whose buffer counts rows, over shortened rows"
    if which == 'hf_iterable':
        ds = (
            open_arrow(data, 'arrow-short')
            .to_iterable_dataset(num_shards=20)
            .shuffle(seed=0, buffer_size=1000)
            .with_format('numpy')
        )
        batches = (
            (np.asarray(b['input_ids']), None) for b in ds.iter(batch_size=BATCH, drop_last_batch=True)
        )
    else:
        rows = (np.frombuffer(s['ids'], DTYPE) for s in open_tar(data, 0, 'tar-short'))
        batches = (
            (np.stack(b), None)
            for b in iter(lambda: [r for _, r in zip(range(BATCH), rows)], [])
            if len(b) == BATCH
        )
    return judge_order(visited(batches, ROW), data.tokens // ROW)


def run_shuffle(args, data):
    "How well each order mixes, read off one epoch of real batches"
    keys = [
        'ours_block',
        'ours_global',
        'gather',
        'litdata',
        'litdata_full',
        'hf_iterable',
        'webdataset',
        'mosaic',
        'nanogpt',
    ]
    ways, skipped = choose_ways(keys, args.ways)
    short = {'hf_iterable': 'arrow-short', 'webdataset': 'tar-short'}
    values = {}
    for w in ways:
        try:
            if w.key in short:
                data.path(short[w.key])
                found = in_child(order_of_buffer, w.key, data)
            else:
                w.write(data)
                stored = w.key in ('litdata', 'litdata_full', 'mosaic')  # rows that don't overlap
                width, n = (ROW, data.tokens // ROW) if stored else (BLOCK, data.windows)
                with shared_memory_cleaned():
                    found = in_child(lambda: judge_order(visited(w.epoch(data, 0), width), n))
            values[w.key] = {'label': w.label, **found}
        except RuntimeError as e:
            skipped[w.label] = str(e)
    print_table(
        'shuffle: one epoch, relative to a true shuffle',
        ['way', 'near pairs', 'wander', 'displacement', 'windows seen'],
        [
            (
                v['label'],
                format_number(v['near_pairs']),
                format_number(v['wander']),
                format_number(v['displacement']),
                f"{v['windows_seen']:.2%}",
            )
            for v in values.values()
        ],
    )
    print_skipped(skipped)
    return {'ways': values, 'skipped': skipped, 'tokens': data.tokens, 'windows': data.windows, 'near': 128}


# --------------------------------------------------------------------------------------------------
# start and order


def write_sparse(folder, shards, per_shard):
    """A data set of zeros in `shards` files without blocks: one shard by the real writer, its entry in the
    manifest repeated"""
    from memtrain.folders import checksum, read_json, write_json
    from memtrain.shards import MANIFEST, ShardWriter

    with ShardWriter(folder, vocab_size=VOCAB, tokens_per_shard=per_shard) as w:
        w.write(np.zeros(per_shard, DTYPE))
    manifest = read_json(folder / MANIFEST)
    entry, first = manifest['shards'][0], folder / manifest['shards'][0]['file']
    beside = [p for p in first.parent.iterdir() if p != first]
    manifest['shards'] = [{**entry, 'file': f'train/shard_{i:05d}.bin'} for i in range(shards)]
    for s in manifest['shards']:
        with open(folder / s['file'], 'wb') as f:
            f.truncate(per_shard * DTYPE.itemsize)
        for p in beside:
            if (target := (folder / s['file']).with_suffix(p.suffix)) != p:
                shutil.copy(p, target)
    for what in ('tokens', 'documents'):
        manifest[what] = {'train': sum(s[what] for s in manifest['shards'])}
    write_json(folder / MANIFEST, {**manifest, 'checksum': checksum(manifest)})
    return folder


def open_folder(folder, shuffle):
    from memtrain.loader import TokenLoader

    return TokenLoader(folder, BATCH, BLOCK, shuffle=shuffle)


def child_start(folder, shuffle):
    "Hidden subcommand: time to the first batch and memory, after imports"
    importlib.import_module('memtrain.loader')  # what follows is counted from after it
    before, started = memory_now(), time.perf_counter()
    opened = open_folder(folder, shuffle)
    ready = time.perf_counter()
    batches = iter(opened)
    x, y = next(batches)
    seconds = time.perf_counter() - started
    assert tuple(x.shape) == (BATCH, BLOCK)
    return {
        'seconds': seconds,
        'open_seconds': ready - started,
        'imports': before,
        'after': memory_now(),
        'peak_rss': peak_rss(),
    }


def child_epoch(folder, shuffle):
    "Hidden subcommand: memory while and after an epoch is read"
    importlib.import_module('memtrain.loader')
    before, started = memory_now(), time.perf_counter()
    most, tokens, loader = dict(before), 0, open_folder(folder, shuffle)
    step = max(1, len(loader) // 50)
    for i, (x, y) in enumerate(loader):
        tokens += math.prod(x.shape)
        if i % step == 0:
            most = {k: max(v, most[k]) for k, v in memory_now().items()}
    return {
        'seconds': time.perf_counter() - started,
        'tokens': tokens,
        'imports': before,
        'after': memory_now(),
        'most': most,
        'peak_rss': peak_rss(),
    }


def child_order(which, folder):
    "Hidden subcommand: time and memory until the first window of the epoch is known"
    import torch

    importlib.import_module('memtrain.loader')
    n = (
        int(json.loads((Path(folder) / 'dataset_metadata.json').read_text())['tokens']['train']) - 1
    ) // BLOCK
    before, started = memory_now(), time.perf_counter()
    if which == 'random_sampler':
        first = next(iter(torch.utils.data.RandomSampler(range(n))))
    elif which == 'numpy_permutation':
        first = int(np.random.default_rng(0).permutation(n)[0])
    else:
        first = next(iter(open_folder(folder, which)))[0].shape[0]
    return {
        'seconds': time.perf_counter() - started,
        'memory': max(0, peak_rss() - before['rss']),
        'windows': n,
        'first': first,
    }


OUR_SHUFFLES = ('block', 'global')


def run_start(args, data):
    """Time to the first batch of 10 billion tokens, and memory then and after an epoch of 1 GB, each in fresh
    processes"""
    rounds, values = args.rounds if args.rounds_given else 5, {}
    with tempfile.TemporaryDirectory(dir=data.folder) as d:
        big = write_sparse(Path(d) / 'sparse', 1000, 10_000_000)
        for s in OUR_SHUFFLES:
            values[f'start_{s}'] = [run_fresh('_start', big, s) for _ in range(rounds)]
    folder = data.path('shards')
    for s in OUR_SHUFFLES:
        values[f'epoch_{s}'] = run_fresh('_epoch', folder, s)
    rows = []
    for s in OUR_SHUFFLES:
        runs, epoch = values[f'start_{s}'], values[f'epoch_{s}']
        growth = lambda key: median([r['after'][key] - r['imports'][key] for r in runs]) / MIB
        rows.append(
            (
                f'first batch of 10 billion tokens, {s}',
                f"{median([r['seconds'] for r in runs]) * 1e3:.0f} ms",
                *(f'{growth(k):+.0f}' for k in ('rss', 'pss', 'pss_anon', 'pss_file')),
                f"{median([r['peak_rss'] - r['imports']['rss'] for r in runs]) / MIB:+.0f}",
            )
        )
        for label, at in (('most during', 'most'), ('after', 'after')):
            rows.append(
                (
                    f"{label} an epoch of {epoch['tokens'] * 2 / 1e9:.2g} GB, {s}",
                    f"{epoch['seconds']:.1f} s",
                    *(
                        f"{(epoch[at][k] - epoch['imports'][k]) / MIB:+.0f}"
                        for k in ('rss', 'pss', 'pss_anon', 'pss_file')
                    ),
                    f"{(epoch['peak_rss'] - epoch['imports']['rss']) / MIB:+.0f}",
                )
            )
    imports = values[f'start_{OUR_SHUFFLES[0]}'][0]['imports']
    print_table(
        f"start: MiB over what the imports take (RSS {imports['rss'] / MIB:.0f} MiB, PSS"
        f" {imports['pss'] / MIB:.0f} MiB)",
        ['', 'time', 'RSS', 'PSS', 'PSS anonymous', 'PSS file', 'peak RSS'],
        rows,
    )
    return {**values, 'tokens': data.tokens, 'sparse_tokens': 10_000_000_000}


def run_order(args, data):
    """The order of 50 million windows: torch's RandomSampler, a stored permutation, and ours (which also
    opens the data and reads a batch)"""
    rounds, values = args.rounds if args.rounds_given else 3, {}
    with tempfile.TemporaryDirectory(dir=data.folder) as d:
        big = write_sparse(Path(d) / 'sparse', 512, 100_000_000)
        for which in ('random_sampler', 'numpy_permutation', *OUR_SHUFFLES):
            values[which] = [run_fresh('_order', which, big) for _ in range(rounds)]
    labels = {
        'random_sampler': 'torch RandomSampler, first index',
        'numpy_permutation': 'NumPy permutation, first index',
        'block': 'memtrain, block, opened, first batch',
        'global': 'memtrain, global, opened, first batch',
    }
    print_table(
        'order of 50 million windows',
        ['', 'seconds', 'peak memory over imports, MiB'],
        [
            (
                labels[k],
                f"{median([r['seconds'] for r in v]):.3g}",
                f"{median([r['memory'] for r in v]) / MIB:,.0f}",
            )
            for k, v in values.items()
        ],
    )
    return {'runs': values}


# --------------------------------------------------------------------------------------------------
# main

COMMANDS = {
    'warm': (run_warm, 200_000_000),
    'wait': (run_wait, 200_000_000),
    'cold': (run_cold, 200_000_000),
    'small-cache': (run_small_cache, 500_000_000),
    'shuffle': (run_shuffle, 200_000_000),
    'start': (run_start, 500_000_000),
    'order': (run_order, 1_000_000),
}
HIDDEN = {'_start': child_start, '_epoch': child_epoch, '_order': child_order}


def parse_args(argv):
    p = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument('command', choices=[*COMMANDS, 'all'])
    p.add_argument(
        '--tokens',
        help='ids in the data, such as 200M; by default 200M, for small-cache and start 500M (1 GB)',
    )
    p.add_argument('--work', help='folder for the data, on a disk; by default a temporary folder')
    p.add_argument('--keep', action='store_true', help='leave the data in --work for the next run')
    p.add_argument('--results', help='folder for the results; by default `results` of the checkout')
    p.add_argument(
        '--rounds',
        type=int,
        help='rounds; by default 9 for warm, 3 for wait, cold and order, 5 for start, 2 for small-cache',
    )
    p.add_argument(
        '--seconds',
        type=float,
        help='seconds per way and round; by default 0.25 for warm, 2 for cold, 3 for small-cache',
    )
    p.add_argument('--ways', nargs='+', choices=ALL, help='only these ways, and the limits')
    args = p.parse_args(argv)
    args.rounds_given, args.rounds = args.rounds is not None, args.rounds or 9
    return args


def run_command(args, name):
    from memtrain.core import parse_count

    run, tokens = COMMANDS[name]
    args.command, tokens = name, parse_count(args.tokens) if args.tokens else tokens
    if not 10 * ROW * BATCH < tokens <= LARGEST:
        raise SystemExit(f'--tokens {tokens}: choose from 1M to 1,200M')
    parent = Path(args.work) if args.work else None
    if parent:
        parent.mkdir(parents=True, exist_ok=True)
    folder = parent if parent and args.keep else Path(tempfile.mkdtemp(prefix='loading-', dir=parent))
    started, scratch = time.perf_counter(), Path(tempfile.mkdtemp(prefix='scratch-', dir=folder))
    tempfile.tempdir = os.environ['TMPDIR'] = str(scratch)  # some loaders leave locks and caches behind
    for variable in ('DATA_OPTIMIZER_CACHE_FOLDER', 'DATA_OPTIMIZER_DATA_CACHE_FOLDER'):
        os.environ[variable] = str(scratch / variable)
    try:
        values = run(args, BenchData(folder, tokens, BATCH, BLOCK))
        save(args, values)
        print(f'{name}: {time.perf_counter() - started:.0f} s in all')
    finally:
        tempfile.tempdir = None
        del os.environ['TMPDIR']
        shutil.rmtree(scratch if parent and args.keep else folder, ignore_errors=True)


def main(argv=None):
    warnings.filterwarnings('ignore')  # what loaders say about each other's deprecations
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in HIDDEN:
        return print(json.dumps(HIDDEN[argv[0]](*argv[1:])))
    args = parse_args(argv)
    import_peers()
    if args.command != 'all':
        return run_command(args, args.command)
    for name in COMMANDS:  # a process each: threads and maps of one would be in the way of the next
        subprocess.run([sys.executable, __file__, name, *(a for a in argv if a != 'all')], check=True)


if __name__ == '__main__':
    main()
