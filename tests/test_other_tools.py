"""Each recipe of benchmarks/recipes.py on two processes, stopped and resumed in the middle; what isn't
installed is skipped."""

import json, os, socket, subprocess, sys, tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import memtrain
from memtrain.core import MemtrainError
from memtrain.loader import refuse_second_sharing
from memtrain.shards import ShardWriter

NEEDS = {
    'accelerate': 'accelerate',
    'fabric': 'lightning',
    'lightning': 'lightning',
    'trainer': 'transformers',
    'torchdata': 'torchdata',
    'grain': 'grain',
}


def on_two_processes(*args):
    "Run benchmarks/recipes.py as two ranks do"
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    root = Path(memtrain.__path__[0]).parent
    env = {
        **os.environ,
        'PYTHONPATH': str(root),
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(port),
        'WORLD_SIZE': '2',
        'LOCAL_WORLD_SIZE': '2',
        'OMP_NUM_THREADS': '1',
        'PYTHONWARNINGS': 'ignore',
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(root / 'benchmarks/recipes.py'), *map(str, args)],
            env={**env, 'RANK': str(r), 'LOCAL_RANK': str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for r in range(2)
    ]
    told = [p.communicate(timeout=600)[0] for p in ranks]
    assert not any(p.returncode for p in ranks), told


@pytest.mark.parametrize('name', NEEDS)
def test_every_window_comes_once_also_when_resumed(name):
    if not find_spec(NEEDS[name]):
        pytest.skip(f'{NEEDS[name]} is not installed')
    with tempfile.TemporaryDirectory() as d:
        with ShardWriter(f'{d}/data', 1000, tokens_per_shard=100) as w:
            w.write(np.arange(61 * 8 + 1))
        for resume in (0, 1):
            on_two_processes(name, f'{d}/data', d, resume)
        found = [
            [json.loads((Path(d) / f'{name}-{rank}-{resume}.json').read_text()) for rank in range(2)]
            for resume in range(2)
        ]
        assert sorted(first // 8 for run in found for rank in run for first in rank) == list(range(61)), found
        assert all(len(rank) == 12 for rank in found[0])


@pytest.mark.parametrize('workers', [0, 1])
def test_accelerates_dispatcher_is_refused(workers):
    kind = type(
        'DataLoaderDispatcher',
        (),
        {
            '__module__': 'accelerate.data_loader',
            'ask': lambda self: refuse_second_sharing('data', 1 + workers),
        },
    )
    if not workers:
        kind().ask()
        return
    with pytest.raises(MemtrainError, match="never be seen.*accelerator.prepare"):
        kind().ask()
