"What `import memtrain` gives, and when."
import ast,subprocess,sys
from pathlib import Path

import pytest

import memtrain


def test_core_names_come_when_they_are_asked_for():
    code = ("import sys, memtrain; heavy = {'torch', 'numpy', 'matplotlib'}; print(sorted(heavy & set(sys.modules))); memtrain.TokenShards; print('torch' in sys.modules);"
            "memtrain.TokenLoader; print('torch' in sys.modules, memtrain.plan.plan.__name__)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["[]", "False", "True", "plan"]


def test_every_name_is_there_and_offered():
    for name in memtrain._NAMES: assert getattr(memtrain, name) is not None and name in dir(memtrain)
    from memtrain.train import Trainer
    assert memtrain.Trainer is Trainer and memtrain.__version__
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"): getattr(memtrain, "Trainr")


def test_type_checkers_see_the_same_names():
    block = next(o for o in ast.parse(Path(memtrain.__file__).read_text()).body if isinstance(o, ast.If))
    assert {a.name: o.module for o in block.body for a in o.names} == memtrain._HOME
