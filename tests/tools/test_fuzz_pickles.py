"""Some pickles of the grammar that `make fuzz` goes on with: they are read alike in order and by index, or
refused."""

import random, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import fuzz_pickles
from memtrain.core import MemtrainError
from memtrain.lazypickle import iter_pickle


def test_pickles_of_a_grammar_are_read_or_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = 0
    for k in range(40):
        Path("in.pkl").write_bytes(fuzz_pickles.make_pickle(b"", random.Random(k), []))
        fuzz_pickles.read_twice("in.pkl")
        try:
            whole += bool([None for _ in iter_pickle("in.pkl")])
        except MemtrainError:
            pass
    assert 3 < whole < 37, whole  # a grammar whose pickles are all refused, or all read, finds little
