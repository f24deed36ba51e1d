#!/usr/bin/env python3
"""Loading traces: TraceShards against reading the same files in order, and what it holds in memory.

    python benchmarks/trace_loading.py rates|memory|all [--megabytes 512] [--rounds 5] [--work DIR]

Writes `results/trace_loading.json` (rates from a cold and from a warm page cache, random access) and
`results/trace_loading_memory.json`. The limit is the faster of two ways to read all shard files from
beginning to end into one buffer. All ways take turns; a ratio is of one round."""

from __future__ import annotations

import argparse, json, os, pickle, statistics, subprocess, sys, tempfile, time
from pathlib import Path

os.environ.setdefault('OMP_NUM_THREADS', '1')

import numpy as np
import torch

from memtrain.bench import drop_cache
from memtrain.core import MIB, format_size, save_result
from memtrain.traces import TraceShards, TraceWriter, open_traces, shard_traces

LAYERS, T, WIDTH, EXPERTS, BATCH = 8, 128, 512, 16, 8  # a trace of 256 KiB of hidden states, and its routing


def make(work: Path, megabytes: int, shard_mb: int, name: str | None = None) -> Path:
    "Shards of traces, made once"
    dest = work / (name or f'{megabytes}MB_in_{shard_mb}')
    if (dest / 'trace_metadata.json').exists():
        return dest
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.standard_normal((T + 1000, WIDTH), dtype=np.float32))
    each = 4 * T * WIDTH + 4 * T * EXPERTS + 16 * T
    with TraceWriter(dest, shard_size_mb=shard_mb, dedupe=False) as w:
        for i in range(megabytes * MIB // each):
            gates = torch.rand(T, EXPERTS)
            w.write(
                {
                    'layer_id': i % LAYERS,
                    'hidden_states': noise[i % 1000 : i % 1000 + T] + i,
                    'target_routing': gates,
                    'target_top_k': gates.topk(2).indices,
                    'sequence_length': T,
                    'dataset_name': 'made',
                    'sample_id': i // LAYERS,
                }
            )
    return dest


def in_order(files, piece):
    "Read all of `files` into one buffer"
    buffer, n = memoryview(bytearray(piece)), 0
    for p in files:
        fd = os.open(p, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        at = 0
        while got := os.preadv(fd, [buffer], at):
            at += got
        os.close(fd)
        n += at
    return n


def size_of(value):
    "Bytes of the tensors in a batch"
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return (
        sum(map(size_of, value.values() if isinstance(value, dict) else value))
        if isinstance(value, (dict, list))
        else 0
    )


def unannounced(loader):
    "The same batches, with nothing fetched ahead"
    advise = os.posix_fadvise
    del os.posix_fadvise  # as where a system has no such call
    try:
        yield from loader
    finally:
        os.posix_fadvise = advise


LIMITS = {'limit_1': 'in order, pieces of 1 MiB', 'limit_8': 'in order, pieces of 8 MiB'}
WAYS = {
    'traces': 'TraceShards',
    'here': 'TraceShards, no thread (prefetch=0)',
    'global': "TraceShards, shuffle='global'",
    'layer': "TraceShards, batch_by='layer'",
    'window': 'TraceShards, window=3',
    'fields': 'TraceShards, the routing alone',
    'unannounced': 'TraceShards, nothing announced',
    'first': "the first system's: pickle.load of a shard",
}


def loader_of(way, folder, seed):
    kw = {
        'traces': {},
        'here': dict(prefetch=0),
        'global': dict(shuffle='global'),
        'layer': dict(batch_by='layer'),
        'window': dict(window=3),
        'unannounced': {},
        'fields': dict(fields=['target_routing', 'target_top_k']),
    }[way]
    loader = TraceShards(folder, BATCH, seed=seed, **kw)
    return unannounced(loader) if way == 'unannounced' else loader


def first_way(files):
    "Batches as the first system made them"
    for p in files:
        with open(p, 'rb') as f:
            traces = pickle.load(f)
        np.random.shuffle(traces)
        for k in range(0, len(traces), BATCH):
            yield [dict(t) for t in traces[k : k + BATCH]]


def disk_bytes():
    return int(Path('/proc/self/io').read_text().split('\nread_bytes: ')[1].split()[0])


def one(way, folder, old, seed):
    "{seconds, bytes handed out, bytes from the disk} of one pass"
    files, before = sorted(folder.glob('*.safetensors')), disk_bytes()
    started = time.perf_counter()
    if way in LIMITS:
        n = in_order(files, MIB if way == 'limit_1' else 8 * MIB)
    else:
        n = sum(
            size_of(b)
            for b in (
                first_way(sorted(old.glob('shard_*.pkl'))) if way == 'first' else loader_of(way, folder, seed)
            )
        )
    return {'seconds': time.perf_counter() - started, 'bytes': n, 'disk': disk_bytes() - before}


def measure_rates(args, work):
    folder, old = make(work, args.megabytes, 64), work / f'{args.megabytes}MB_first'
    if not old.exists():
        shard_traces(folder, old, shard_size_mb=64, group='seed', format='pkl')
    files, found = [p for d in (folder, old) for p in d.iterdir() if p.is_file()], {}
    os.sync()
    for cold in (True, False):
        runs = found['cold' if cold else 'warm'] = {way: [] for way in (*LIMITS, *WAYS)}
        for r in range(args.rounds + (not cold)):
            for way in list(runs)[:: -1 if r % 2 else 1]:
                if cold and (left := drop_cache(files)) > 0.001:
                    sys.exit(
                        f'{left:.1%} of the data stays in the page cache: give --work a folder on a disk'
                    )
                got = one(way, folder, old, r)
                if cold or r:
                    runs[way].append(got)  # the first warm round brings everything into the cache
        limit = min(LIMITS, key=lambda k: statistics.median(m['seconds'] for m in runs[k]))
        for way in runs:
            ratios = [
                (m['bytes'] / m['seconds']) / (o['bytes'] / o['seconds'])
                for m, o in zip(runs[way], runs[limit])
            ]
            found.setdefault('ratios', {})[f"{'cold' if cold else 'warm'} {way}"] = {
                'median': statistics.median(ratios),
                'low': min(ratios),
                'high': max(ratios),
            }
            m = sorted(runs[way], key=lambda m: m['seconds'])[len(runs[way]) // 2]
            print(
                f"{'cold' if cold else 'warm'} {(LIMITS | WAYS)[way]:45}"
                f" {m['bytes'] / m['seconds'] / 1e6:8,.0f} MB/s  {statistics.median(ratios):5.2f}"
                f" ({min(ratios):.2f} – {max(ratios):.2f})  epoch {m['seconds']:.2f} s, from disk"
                f" {format_size(m['disk'])}",
                flush=True,
            )
    found |= {
        'labels': LIMITS | WAYS,
        'random': random_access(folder),
        'work': {
            'bytes': sum(p.stat().st_size for p in folder.glob('*.safetensors')),
            'trace': 4 * T * WIDTH + 4 * T * EXPERTS + 16 * T,
            'batch_size': BATCH,
            'shard_mb': 64,
            'rounds': args.rounds,
            'traces': len(open_traces(folder)),
        },
        'load': os.getloadavg()[0],
    }
    return save_result('trace_loading', found, 'python benchmarks/trace_loading.py rates')


def random_access(folder, n=200):
    "Median seconds to open the folder, and to read one trace anywhere"
    started = time.perf_counter()
    loader = TraceShards(folder, BATCH)
    found = {'open': time.perf_counter() - started}
    numbers = np.random.default_rng(1).choice(len(loader.traces), n, replace=False).tolist()
    for kind in ('cold', 'warm'):
        seconds = []
        if kind == 'cold':
            drop_cache(list(folder.iterdir()))
        for i in numbers:
            started = time.perf_counter()
            loader.read(i)
            seconds.append(time.perf_counter() - started)
        found[kind] = {'median': statistics.median(seconds), 'p90': sorted(seconds)[int(0.9 * n)]}
    print(found)
    return found


def status(name):
    return int(Path('/proc/self/status').read_text().split(f'{name}:')[1].split()[0]) * 1024


def in_this_process(args, work):
    "What the process holds beyond its imports while it goes through an epoch"
    folder = make(work, args.megabytes, args.shard_mb)
    old = work / f'{args.megabytes}MB_first_in_{args.shard_mb}'
    before, largest = status('VmRSS'), 0
    loader = (
        first_way(sorted(old.glob('shard_*.pkl'))) if args.way == 'first' else loader_of(args.way, folder, 0)
    )
    for b in loader:
        largest = max(largest, size_of(b))
    return {'grown': status('VmHWM') - before, 'largest_batch': largest}


def measure_memory(args, work):
    runs = []
    for shard_mb in map(int, args.shards.split(',')):
        folder = make(work, args.megabytes, shard_mb)
        old = work / f'{args.megabytes}MB_first_in_{shard_mb}'
        if not old.exists():
            shard_traces(folder, old, shard_size_mb=shard_mb, group='seed', format='pkl')
        for way in ('traces', 'layer', 'window', 'first'):
            done = subprocess.run(
                [
                    sys.executable,
                    __file__,
                    'memory',
                    '--way',
                    way,
                    '--shard_mb',
                    str(shard_mb),
                    '--megabytes',
                    str(args.megabytes),
                    '--work',
                    str(work),
                ],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            runs.append({'way': way, 'shard_mb': shard_mb, **json.loads(done.stdout.splitlines()[-1])})
            print(
                f"{way:10} shards of {shard_mb:4} MB: {format_size(runs[-1]['grown']):>10} beyond the"
                f" imports, largest batch {format_size(runs[-1]['largest_batch'])}",
                flush=True,
            )
    return save_result(
        'trace_loading_memory',
        {'runs': runs, 'megabytes': args.megabytes, 'labels': WAYS},
        'python benchmarks/trace_loading.py memory',
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('what', choices=('rates', 'memory', 'all'))
    parser.add_argument('--megabytes', type=int, default=512)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--shards', default='16,64,400', help='of MB, for memory')
    parser.add_argument(
        '--work',
        default=str(Path(tempfile.gettempdir()) / 'memtrain_traces'),
        help='folder for the traces, on a disk',
    )
    for name, kind in (('--way', str), ('--shard_mb', int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    if args.way:
        print(json.dumps(in_this_process(args, work)))
    else:
        for what in ('rates', 'memory') if args.what == 'all' else (args.what,):
            print({'rates': measure_rates, 'memory': measure_memory}[what](args, work).stamp)


if __name__ == '__main__':
    main()
