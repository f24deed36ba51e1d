#!/usr/bin/env python3
"""`memtrain bench` with the loaders that its flags don't name: Hugging Face datasets, LitData, MosaicML
Streaming, and `TokenStream`.

    # prints the table; results/bench.json with --json_file results/bench.json
    python benchmarks/peers.py [flags of memtrain bench]

Each is used as its own documentation recommends (`source`). The writers of their formats import much and
leave processes and caches behind, so each runs in a child process that takes all of that with it: the
memory of a loader is measured beside nothing. loading.py, claims.py and remote.py take their loaders from
here."""

from __future__ import annotations

import contextlib, functools, importlib, importlib.util, io, json, multiprocessing, os, re, sys, sysconfig
import tempfile, types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# beside this lies a streaming.py that isn't MosaicML's
sys.path = [p for p in sys.path if Path(p).resolve() != Path(__file__).resolve().parent]

from memtrain.bench import ADD, WAYS, BenchData, data_format, way, widen
from memtrain.shards import TokenShards

ADD |= {
    'datasets': "pip install 'memtrain[hub]'",
    'pyarrow': "pip install 'memtrain[parquet]'",
    'litdata': 'pip install litdata',
    'streaming': 'pip install mosaicml-streaming',
}


def in_child(
    fn: Callable,
    *args,
    timeout: float = 400,  # returns what can be pickled  # for `fn`  # seconds
) -> Any:
    "What `fn(*args)` returns, run in a forked process: nothing that it maps, opens or starts stays behind"
    ours, theirs = multiprocessing.Pipe(duplex=False)

    def work():
        null = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(null, fd)  # progress bars, and complaints about how it ends
        try:
            theirs.send((None, fn(*args)))
        except BaseException as e:
            theirs.send((f'{type(e).__name__}: {str(e)[:300]}', None))
        os._exit(0)

    child = multiprocessing.get_context('fork').Process(target=work)
    child.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            raise RuntimeError(f'not done after {timeout} s')
        error, value = ours.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f'killed by signal {-child.exitcode}') from None
    finally:  # too slow, or we were interrupted
        child.kill()
        child.join()
        ours.close()
    if error:
        raise RuntimeError(error)
    return value


def own_format(name: str) -> Callable:  # what loaders ask for
    """Register a function of (data, folder) that writes a format, in a child process where a fork is
    without risk"""

    def register(fn):
        isolated = lambda data, dest: in_child(fn, data, dest) if sys.platform == 'linux' else fn(data, dest)
        data_format(name)(isolated)
        return fn

    return register


def import_peer(module: str) -> None:  # name
    "Import `module`, whatever it says about itself"
    names = {}  # empty ones for what MosaicML's package wants of torchvision, where there is none
    if module == 'streaming':
        # asks whether there is one
        with contextlib.suppress(ImportError):
            importlib.import_module('transformers.feature_extraction_utils')
        if not importlib.util.find_spec('torchvision'):
            names = {
                'torchvision': (),
                'torchvision.datasets': ('VisionDataset', 'CIFAR10'),
                'torchvision.transforms': (),
                'torchvision.transforms.functional': ('to_tensor',),
            }
    for name, members in names.items():
        sys.modules[name] = types.ModuleType(name)
        for m in members:
            setattr(sys.modules[name], m, type(m, (), {}))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(module)
    finally:
        for name in names:
            del sys.modules[name]


@contextlib.contextmanager
def shared_memory_cleaned():
    "Unlink the segments that MosaicML's loader leaves in /dev/shm"
    folder = Path('/dev/shm')
    before = set(os.listdir(folder)) if folder.exists() else set()
    try:
        yield
    finally:
        for name in set(os.listdir(folder) if folder.exists() else ()) - before:
            if re.fullmatch(r'\d{6}_\w+', name):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()


TEXT_TOKENS = 1_500_000  # ids of the text, at least


@own_format('text')
def _write_text(data, dest, size=6e6):
    "Sources of Python as records, a tokenizer learned from them, and their ids as `prepare` has them"
    from memtrain.prepare import prepare, train_bpe

    texts, found = [], 0
    for p in sorted(Path(sysconfig.get_paths()['stdlib']).rglob('*.py')):
        if 'site-packages' in p.parts or found >= size:
            continue
        texts.append(p.read_text(encoding='utf-8', errors='ignore'))
        found += len(texts[-1])
    (dest / 'text.jsonl').write_text(''.join(json.dumps({'text': text}) + '\n' for text in texts))
    (dest / 'tokenizer.json').write_text(train_bpe(texts[::4], 8192).state(), encoding='utf-8')
    prepare(
        [str(dest / 'text.jsonl')],
        dest / 'shards',
        tokenization=str(dest / 'tokenizer.json'),
        val_fraction=0,
        workers=1,
    )


def _known_text(data):
    "The ids that a stream of the text has to give"
    source = data.path('text') / 'shards'
    ids = TokenShards(source)
    size = data.batch_size, data.block_size, np.dtype(ids.dtype).str, ids.vocab_size
    return BenchData(data.path('text'), len(ids), *size, str(source))


@way(
    'ours_stream',
    'memtrain TokenStream, tokenising',
    ['text'],
    cut_from=_known_text,
    source='../reference/36_streams.ipynb',
)
def _(data, epoch):
    from memtrain.stream import TokenStream

    folder = data.path('text')
    # so that the last row, which isn't full, comes late
    buffer = min(1000, TEXT_TOKENS // data.block_size // 2)
    stream = TokenStream(
        folder / 'text.jsonl',
        folder / 'tokenizer.json',
        data.batch_size,
        data.block_size,
        shuffle_buffer_size=buffer,
        drop_last=True,
    )
    stream.epoch = epoch
    return iter(stream)


def shuffled_batches(
    data: BenchData,
    n: int,
    epoch: int,  # how many there are
) -> np.ndarray:  # a row a batch
    "A permutation of `n` indices, cut into full batches"
    order = np.random.default_rng([1, epoch]).permutation(n)
    return order[: n // data.batch_size * data.batch_size].reshape(-1, data.batch_size)


@own_format('arrow')
def _write_arrow(data, dest, width=None, rows=None):
    "An Arrow table of rows"
    import pyarrow as pa

    width = width or data.row
    schema = pa.schema({'input_ids': pa.list_(pa.from_numpy_dtype(np.dtype(data.dtype)), width)})
    with pa.OSFile(str(dest / 'data.arrow'), 'wb') as f, pa.ipc.new_stream(f, schema) as out:
        for block in rows or data.rows(1000):
            column = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(block).ravel()), width)
            out.write_batch(pa.record_batch([column], schema=schema))


def open_arrow(data: BenchData, name: str = 'arrow') -> Any:  # of its format  # a `datasets.Dataset`
    "The table as a data set"
    import datasets

    datasets.disable_progress_bars()
    return datasets.Dataset.from_file(str(data.path(name) / 'data.arrow'))


@way(
    'hf',
    'Hugging Face datasets, numpy format',
    ['arrow'],
    needs=['datasets', 'pyarrow'],
    source='https://huggingface.co/docs/datasets/use_with_pytorch',
)
def _(data, epoch):
    ds = open_arrow(data).with_format('numpy')
    for indices in shuffled_batches(data, len(ds), epoch):
        yield widen(ds[indices.tolist()]['input_ids'])


def _litdata_piece(raw, dtype, span):
    yield np.array(np.memmap(raw, dtype, mode='r')[span[0] : span[1]])


@own_format('litdata')
def _write_litdata(data, dest, chunk_bytes='64MB'):
    "LitData's chunks of tokens"
    import litdata

    step, end = 1024 * data.row, data.tokens // data.row * data.row
    litdata.optimize(
        functools.partial(_litdata_piece, data.raw, data.dtype),
        [(i, min(i + step, end)) for i in range(0, end, step)],
        output_dir=str(dest),
        chunk_bytes=chunk_bytes,
        num_workers=1,
        start_method='fork',
        keep_data_ordered=True,
        item_loader=litdata.TokensLoader(block_size=data.row),
    )


def open_litdata(data: BenchData, epoch: int, **kw: Any) -> Any:  # of its `StreamingDataset`  # rows
    "LitData's data set of rows"
    import litdata

    return litdata.StreamingDataset(
        str(data.path('litdata')),
        item_loader=litdata.TokensLoader(block_size=data.row),
        shuffle=True,
        seed=42 + epoch,
        **kw,
    )


def in_batches(rows: Iterable[np.ndarray], size: int) -> Iterator:  # of ids  # of a batch  # of x and y
    "Full batches of the rows that an iterator gives one by one"
    batch = []
    for row in rows:  # one loop: asking LitData's data set for an iterator begins anew
        batch.append(row)
        if len(batch) == size:
            yield widen(np.stack(batch))
            batch = []


@way(
    'litdata',
    'LitData, rows stacked',
    ['litdata'],
    needs=['litdata'],
    source='https://lightning.ai/docs/litdata/features/llm-pre-training',
)
def _(data, epoch):
    return in_batches(open_litdata(data, epoch), data.batch_size)


@own_format('mds')
def _write_mds(data, dest):
    "MosaicML's files of rows"
    from streaming import MDSWriter

    with MDSWriter(out=str(dest), columns={'tokens': f'ndarray:{np.dtype(data.dtype).name}:{data.row}'}) as w:
        for block in data.rows():
            for row in block:
                w.write({'tokens': row})


@way(
    'mosaic',
    'MosaicML Streaming',
    ['mds'],
    needs=['streaming'],
    load=import_peer,
    source='https://docs.mosaicml.com/projects/streaming/en/stable/getting_started/main_concepts.html',
)
def _(data, epoch):
    import torch
    from streaming import StreamingDataset

    ds = StreamingDataset(
        local=str(data.path('mds')),
        shuffle=True,
        shuffle_seed=epoch,
        batch_size=data.batch_size,
        num_canonical_nodes=1,
    )
    join = lambda rows: widen(np.stack([r['tokens'] for r in rows]))
    return iter(torch.utils.data.DataLoader(ds, batch_size=data.batch_size, drop_last=True, collate_fn=join))


def main(argv):
    "The bench, with these ways in it too"
    from memtrain.cli import main as memtrain

    if '--cold' in argv:
        WAYS.pop('ours_stream')  # it has read its text long before its batches
    for name in ('HF_HUB_OFFLINE', 'HF_DATASETS_OFFLINE', 'LITDATA_DISABLE_VERSION_CHECK'):
        os.environ[name] = '1'  # nobody looks for a newer version of himself
    with tempfile.TemporaryDirectory() as folder, shared_memory_cleaned():
        for name in ('DATA_OPTIMIZER_CACHE_FOLDER', 'DATA_OPTIMIZER_DATA_CACHE_FOLDER'):
            os.environ[name] = str(Path(folder) / name)  # one each: LitData empties its own
        return memtrain(['bench', *argv])


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
