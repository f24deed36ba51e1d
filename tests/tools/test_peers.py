"""benchmarks/peers.py: other people's loaders, in the bench like its own."""

import os, subprocess, sys, tempfile, time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fastcore.test import test_eq, test_fail

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'benchmarks'))

import peers
from peers import TEXT_TOKENS, in_child

from memtrain.bench import ADD, WAYS, BenchData, check_batch, find_row, select_ways


def test_a_child_tells_its_result_its_error_and_its_death():
    def fail():
        raise ValueError('so')

    parent = os.getpid()
    test_eq(in_child(lambda a: [a, os.getpid() != parent], 3), [3, True])
    test_fail(lambda: in_child(fail), contains='ValueError: so')
    test_fail(lambda: in_child(lambda: os.kill(os.getpid(), 9)), contains='signal 9')
    test_fail(lambda: in_child(time.sleep, 9, timeout=0.1), contains='not done')


def test_what_is_missing_has_a_line_that_adds_it():
    assert all(m in ADD for w in WAYS.values() for m in w.needs)
    chosen, left_out = select_ways()
    test_eq(len(chosen) + len(left_out), len(WAYS))


def test_a_peer_that_is_installed_delivers_each_window_once():
    with tempfile.TemporaryDirectory() as d:
        data = BenchData(d, 20_000, 4, 64)
        for key in ('hf', 'litdata', 'mosaic'):
            if WAYS[key] not in select_ways()[0]:
                continue
            batches = [(np.asarray(x), np.asarray(y)) for x, y in WAYS[key].epoch(data, 0)]
            at = [find_row(data, np.append(a, b[-1])) for x, y in batches for a, b in zip(x, y)]
            assert min(at) >= 0 and len(set(at)) == len(at) > 0.9 * data.windows, key
            assert at != sorted(at), key


def test_a_stream_delivers_the_ids_of_its_text():
    with tempfile.TemporaryDirectory() as d:
        data = BenchData(d, 20_000, 16, 256)
        known = WAYS['ours_stream'].cut_from(data)
        ids, size = known.ids(), data.row
        given = [
            np.append(a, b[-1]).astype(ids.dtype).tobytes()
            for x, y in WAYS['ours_stream'].epoch(data, 0)
            for a, b in zip(x.numpy(), y.numpy())
        ]
        wanted = [ids[i : i + size].tobytes() for i in range(0, len(ids) - size + 1, data.block_size)]
        assert known.tokens > TEXT_TOKENS and len(wanted) - 16 < len(given) <= len(wanted) + 1
        assert given[:99] != wanted[:99]
        assert (Counter(given) - Counter(wanted)).total() <= 1  # the last row of all is filled up
        x, y = next(WAYS['ours_stream'].batches(data))
        test_fail(lambda: check_batch('other', x, y, data), contains='other')


def test_the_bench_runs_a_way_from_the_file_that_registers_it():
    "In a process of its own, which knows only memtrain"
    code = "import peers; from memtrain.bench import LIMITS, run_bench\n" + (
        "b = run_bench(1, 2, 32, tokens=5000, rounds=1, ways=['hf'])\nprint([*b.ways], b.left_out)"
    )
    if WAYS['hf'] not in select_ways()[0]:
        pytest.skip('datasets is not installed')
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT / 'benchmarks'), str(ROOT)])}
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True)
    assert "'hf'] {}" in done.stdout, (done.stdout, done.stderr)
