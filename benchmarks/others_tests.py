"""Tests of other libraries with memtrain's data in the place of theirs: what torchdata asks of a data set
under its StatefulDataLoader, Accelerate of one behind its loaders, Lightning of a loader with a state.

A checkout's test file is copied, its made-up data sets are taken out and ours are put in their place; the
rest stays as they wrote it, and pytest runs it. Only tests that asked our data for something are counted.
Where ours is meant to be otherwise, the test fails and the reason stands beside its name; any other failure
is an exit status of 1.

    python benchmarks/others_tests.py --torchdata DATA --accelerate ACCELERATE --lightning LIGHTNING --save
"""

import argparse, ast, os, subprocess, sys, tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from memtrain.core import save_result
from memtrain.loader import TokenLoader
from memtrain.shards import TokenShards, TokenWindows
from memtrain.stream import TokenStream

HERE = Path(__file__).resolve().parent


# --- our data, with the arguments of theirs --------------------------------------------------------


def note_use():
    "Write down which test has asked for our data"
    if 'PYTEST_CURRENT_TEST' in os.environ:
        with open(os.environ['MEMTRAIN_USED'], 'a') as file:
            file.write(os.environ['PYTEST_CURRENT_TEST'].rpartition(' ')[0] + '\n')


def count_tokens(n):
    "The data set 0, 1, … n, so that a window says where it lies"
    note_use()
    return TokenShards.from_array(np.arange(n + 1), max(2, n + 1))


def load_windows(sizes, shuffle=False, **_):
    "A loader of single windows, as many as the workers of theirs have together"
    return TokenLoader(count_tokens(4 * sum(sizes)), 1, 4, shuffle=shuffle)


def load_samples(samples, shuffle, include_generator):
    return load_windows([len(samples)], shuffle)


def load_numbers(sizes, increment_epoch=False):
    "The same, with the epoch beside each number"
    n = sum(sizes) if isinstance(sizes, list) else sizes
    loader = TokenLoader(count_tokens(n), 1, 1, shuffle=False)
    loader.transform = lambda x, y: (x.item(), loader.epoch if increment_epoch else 0)
    return loader


class Letters:
    "A tokenizer of bytes, which worker processes can be sent"

    vocab_size, eod_id = 257, 256

    def encode(self, text):
        return list(text.encode())


def stream_windows(sizes, shuffle=False, **_):
    "A stream of single rows from as many short texts"
    note_use()
    texts = [f'{i:03}' for i in range(sum(sizes))]
    return TokenStream(texts, Letters(), 1, 3, shuffle=shuffle, shuffle_buffer_size=8, documents='split')


def stream_samples(samples, shuffle, include_generator):
    return stream_windows([len(samples)], shuffle)


def take_windows(size, shuffle=False, include_generator=True):
    "Windows by their number"
    return TokenWindows(count_tokens(4 * size), 4)


class Numbers(TokenWindows):
    "Windows of one token, of which `numbers` come by their place"

    def __init__(self, numbers):
        super().__init__(count_tokens(len(numbers)), 1)

    def __getitem__(self, i):
        return int(super().__getitem__(i)[0][0])


def list_numbers(items=()):
    "`list`, but of a range: there a test of Accelerate makes its data set"
    return Numbers(items) if isinstance(items, range) else list(items)


def load_scalars(num_samples=1000, **_):
    return TokenLoader(count_tokens(num_samples), 1, 1, shuffle=False, transform=lambda x, y: x[0].float())


def load_integers(p_stop=0.01, max_length=137):
    return TokenLoader(
        count_tokens(min(max_length, 137)), 1, 1, shuffle=False, shift=False, transform=lambda x, y: x.item()
    )


class Rows(TokenWindows):
    "Windows as rows of numbers, for a linear layer"

    def __init__(self, size, length):
        super().__init__(count_tokens(size * length), size)

    def __getitem__(self, i):
        note_use()
        return torch.from_numpy(super().__getitem__(i)[0]).float() / len(self.shards)


def load_rows(size, count):
    shards = count_tokens(size * count)

    def scale(x, y):
        note_use()
        return x[0].float() / len(shards)

    return TokenLoader(shards, 1, size, transform=scale)


def load_from(start=0):
    "Nine numbers at most, from `start` on, one batch each"
    note_use()
    shards = TokenShards.from_array(np.arange(start, 11), 11)
    return TokenLoader(shards, 1, 1, shuffle=False, transform=lambda x, y: x.item())


# --- their tests -----------------------------------------------------------------------------------


@dataclass
class Suite:
    "A file of tests, what is put in the place of its data, and where ours is meant to be otherwise"

    library: str  # whose version is kept
    file: str  # in its checkout
    data: dict[str, str]  # their names, and ours
    only: str = ''  # as pytest's -k
    differs: dict[str, str] = field(default_factory=dict)  # parts of names of tests that fail, and why


LEFT_EARLY = 'a loop that was left early goes on in the next one, where theirs begins anew'
STATEFUL = {
    'DummyIterableDataset': 'load_windows',
    'DummyIteratorIterableDataset': 'load_samples',
    'GeneratorIterable': 'load_numbers',
    'GeneratorIterableNoState': 'load_numbers',
    'DummyMapDataset': 'take_windows',
}
SUITES = {
    'torchdata, TokenLoader and windows': Suite(
        'torchdata',
        'test/stateful_dataloader/test_state_dict.py',
        STATEFUL,
        differs={'TestDatasetIteratorStateDuplication': 'it wants a data set that is its own iterator'},
    ),
    'torchdata, TokenStream': Suite(
        'torchdata',
        'test/stateful_dataloader/test_state_dict.py',
        {
            **STATEFUL,
            'DummyIterableDataset': 'stream_windows',
            'DummyIteratorIterableDataset': 'stream_samples',
        },
        'Iterable or iterable or FastStateDictRequest',
        {
            'TestJsonSerDe': "a stream's state holds rows, and tensors aren't JSON",
            'TestSnapshotEnd_shard2.test_iterable': 'resumed between snapshots at the end of an epoch, a '
            'worker that was not through repeats it (`snapshot_every_n_steps=1` avoids that)',
        },
    ),
    'Accelerate, windows and TokenLoader': Suite(
        'accelerate',
        'tests/test_data_loader.py',
        {
            'list': 'list_numbers',
            'SimpleIterableDataset': 'load_scalars',
            'RandomIterableDataset': 'load_integers',
        },
    ),
    'Lightning, a loader with a state': Suite(
        'lightning',
        'tests/tests_pytorch/loops/test_loops.py',
        {'StatefulIterable': 'load_from'},
        'save_and_restore_dataloaders',
    ),
    'Lightning, windows and TokenLoader': Suite(
        'lightning',
        'tests/tests_pytorch/trainer/test_dataloaders.py',
        {
            'RandomDataset': 'Rows',
            'RandomIterableDataset': 'load_rows',
            'RandomIterableDatasetWithLen': 'load_rows',
        },
        differs={
            'test_inf_dataloaders_with_limit_percent': 'a TokenLoader has a length, and the test wants none',
            'test_dataloaders_with_limit_val_batches': LEFT_EARLY,
            'test_datasets_dataloaders_with_limit_num_batches': LEFT_EARLY,
        },
    ),
}


def replace_data(source: str, data: dict[str, str]) -> str:
    "`source` of a test file with our `data` in the place of its own, from behind its imports on"
    tree, lines = ast.parse(source), source.splitlines(keepends=True)
    imports = [o.end_lineno for o in tree.body if isinstance(o, (ast.Import, ast.ImportFrom))]
    lines[max(imports) - 1] += ''.join(
        f'from others_tests import {ours} as {name}\n' for name, ours in data.items()
    )
    for o in tree.body:
        if isinstance(o, ast.ClassDef) and o.name in data:
            lines[o.lineno - 1 : o.end_lineno] = [''] * (o.end_lineno - o.lineno + 1)
    return ''.join(lines)


def run_suite(suite: Suite, checkout: Path, seconds: int) -> dict:
    "What became of each test that used our data: passed, otherwise by design and why, failed and how"
    theirs = checkout / suite.file
    copy = theirs.with_name(f'{theirs.stem}_with_memtrain.py')
    copy.write_text(replace_data(theirs.read_text(), suite.data))
    with tempfile.TemporaryDirectory() as folder:
        report, used = Path(folder) / 'report.xml', Path(folder) / 'used'
        used.touch()
        path = os.pathsep.join([str(HERE), str(HERE.parent), str(checkout / 'tests')])
        env = {**os.environ, 'PYTHONPATH': path, 'PYTHONSAFEPATH': '1', 'MEMTRAIN_USED': str(used)}
        command = [
            sys.executable,
            '-m',
            'pytest',
            '-q',
            '-p',
            'no:cacheprovider',
            '-o',
            'addopts=',
            str(copy),
        ]
        command += [f'--junitxml={report}', *(['-k', suite.only] if suite.only else [])]
        try:
            subprocess.run(command, cwd=checkout, env=env, timeout=seconds)
            cases = list(ET.parse(report).iter('testcase'))
            # of file::class::test, or of file::test
            ours = {'.'.join(line.split('::')[1:]) for line in used.read_text().splitlines()}
        finally:
            copy.unlink()
    found = {'version': version(suite.library), 'passed': [], 'differs': {}, 'failed': {}}
    for case in cases:
        wrong = [o for o in case if o.tag in ('failure', 'error')]
        last = case.get('classname').rpartition('.')[2]
        name = case.get('name') if last == copy.stem else f'{last}.{case.get("name")}'
        if name not in ours and not wrong or case.find('skipped') is not None:
            continue
        reason = next((why for part, why in suite.differs.items() if part in name), None)
        if not wrong:
            found['passed'].append(name)
        elif reason:
            found['differs'][name] = reason
        else:
            found['failed'][name] = (wrong[0].get('message') or '').strip().splitlines()[0][:200]
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for library in sorted({suite.library for suite in SUITES.values()}):
        parser.add_argument(f'--{library}', type=Path, help='a checkout of it')
    parser.add_argument('--seconds', type=int, default=1500, help='that a suite may take')
    parser.add_argument('--save', action='store_true', help='keep what came in results/others_tests.json')
    options = parser.parse_args()
    results = {}
    for name, suite in SUITES.items():
        checkout = getattr(options, suite.library)
        if not checkout:
            continue
        found = results[name] = run_suite(suite, checkout.resolve(), options.seconds)
        print(f'{name}:', ', '.join(f'{len(found[k])} {k}' for k in ('passed', 'differs', 'failed')))
        for test, why in found['failed'].items():
            print(f'  {test}: {why}')
    if options.save:
        save_result(
            'others_tests',
            results,
            'python benchmarks/others_tests.py --torchdata DATA --accelerate ACCELERATE'
            ' --lightning LIGHTNING --save',
        )
    return any(found['failed'] for found in results.values())


if __name__ == '__main__':
    sys.exit(main())
