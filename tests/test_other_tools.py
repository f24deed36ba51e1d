"""Each recipe of benchmarks/recipes.py on two processes, stopped and resumed in the middle; what isn't
installed is skipped."""

import json, os, subprocess, sys, tempfile
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


# Both ranks of both runs are forks of one process that has imported what they need, which takes longer than
# all that they do; each runs the file as its first lines say.
RANKS = """
import importlib, multiprocessing, os, runpy, socket, sys

import torch, torch._dynamo

file, module, names, *given = sys.argv[1:]
needed = importlib.import_module(module)
for name in names.split():
    getattr(needed, name)  # some import their parts when these are asked for


def run_rank(rank, port, resume):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=str(port))
    sys.argv = [file, *given, str(resume)]
    runpy.run_path(file, run_name='__main__')


fork = multiprocessing.get_context('fork')
for resume in range(2):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    ranks = [fork.Process(target=run_rank, args=(rank, port, resume)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        sys.exit(f'exit statuses {[rank.exitcode for rank in ranks]}, resume {resume}')
"""
PARTS = {
    'accelerate': 'Accelerator',
    'trainer': 'Trainer TrainingArguments TrainerCallback',
    'torchdata': '',
    'fabric': 'fabric',
    'lightning': 'Trainer',
    'grain': '',
}


def run_stop_and_resume(name, data, folder):
    "Run recipe `name` of benchmarks/recipes.py in two ranks, and what it left in two again"
    root = Path(memtrain.__path__[0]).parent
    env = {
        **os.environ,
        'PYTHONPATH': str(root),
        'MASTER_ADDR': '127.0.0.1',
        'WORLD_SIZE': '2',
        'LOCAL_WORLD_SIZE': '2',
        'OMP_NUM_THREADS': '1',
        'PYTHONWARNINGS': 'ignore',
    }
    argv = [str(root / 'benchmarks/recipes.py'), NEEDS[name], PARTS[name], name, str(data), str(folder)]
    done = subprocess.run(
        [sys.executable, '-c', RANKS, *argv],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('name', NEEDS)
def test_every_window_comes_once_also_when_resumed(name):
    if not find_spec(NEEDS[name]):
        pytest.skip(f'{NEEDS[name]} is not installed')
    with tempfile.TemporaryDirectory() as d:
        with ShardWriter(f'{d}/data', 1000, tokens_per_shard=100) as w:
            w.write(np.arange(61 * 8 + 1))
        run_stop_and_resume(name, f'{d}/data', d)
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
