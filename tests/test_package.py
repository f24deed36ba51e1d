"What `import memtrain` gives, and when."

import ast, os, shutil, subprocess, sys, zipfile
from pathlib import Path

import pytest

import memtrain


def test_core_names_come_when_they_are_asked_for():
    code = (
        "import sys, memtrain; heavy = {'torch', 'numpy', 'matplotlib'}; print(sorted(heavy &"
        " set(sys.modules))); memtrain.TokenShards; print('torch' in sys.modules);memtrain.TokenLoader;"
        " print('torch' in sys.modules, memtrain.plan.plan.__name__)"
    )
    assert subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split() == ["[]", "False", "True", "plan"]


def test_every_name_is_there_and_offered():
    for name in memtrain._NAMES:
        assert getattr(memtrain, name) is not None and name in dir(memtrain)
    from memtrain.train import Trainer

    assert memtrain.Trainer is Trainer and memtrain.__version__
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        getattr(memtrain, "Trainr")


def test_type_checkers_see_the_same_names():
    block = next(o for o in ast.parse(Path(memtrain.__file__).read_text()).body if isinstance(o, ast.If))
    assert {a.name: o.module for o in block.body for a in o.names} == memtrain._HOME


def test_an_editable_clone_is_found_from_the_folder_around_it(tmp_path):
    pytest.importorskip("setuptools")
    root, clone = Path(memtrain.__file__).parents[1], tmp_path / "memtrain"
    shutil.copytree(root / "memtrain", clone / "memtrain", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, clone)
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=clone, capture_output=True, check=True)
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path / "site")
    # without the packages of this environment, where memtrain may be installed already
    code = "import site, sys; site.addsitedir(sys.argv[1]); import memtrain; print(memtrain.__file__)"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    said = subprocess.run(
        [sys.executable, "-S", "-c", code, tmp_path / "site"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert said.stdout.strip() == str(clone / "memtrain/__init__.py"), said.stderr
