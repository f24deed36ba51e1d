"What `import memtrain` gives, and when."

import ast, contextlib, io, json, os, re, shutil, subprocess, sys, zipfile
from pathlib import Path

import pytest

import memtrain
from memtrain.cli import COMMANDS, main


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


def test_texts_name_what_is_there():
    "Pages and versions that a text names are there, and a line to run has the flags that `--help` shows"
    root = Path(memtrain.__file__).parents[1]
    sources = {p.name: p.read_text(encoding="utf-8") for p in sorted((root / "memtrain").glob("*.py"))}
    for name, text in sources.items():
        for found in re.findall(r"version (\d+\.\d+)", text):
            assert found in memtrain.__version__, (name, found)
        for command, rest in re.findall(r"memtrain ([a-z][a-z-]+)((?: (?:--)?[\w{}.:!']+)+)", text):
            if command in COMMANDS:
                unknown = set(re.findall(r"--(\w+)", rest)) - shown_flags(command) - {"help"}
                assert not unknown, (name, command, unknown)
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    pages = {p.stem for p in (root / "nbs").rglob("*.ipynb")}
    named = re.findall(r"nbs/(?:\w+/)*([\w*]+)\.ipynb|\.edit/(\w+)\.py", makefile)
    assert {name for pair in named for name in pair if name} - {"*"} <= pages
    assert "one of nbs/*.ipynb" not in makefile  # the pages are in folders


def test_results_name_sources_that_are_there():
    results = Path(memtrain.__file__).parents[1] / "results"
    page = results.parent / "nbs" / "reference" / "60_loading.ipynb"  # shows them, and links to each source
    assert page.exists()
    for path in results.glob("bench*.json"):
        for way in json.loads(path.read_text(encoding="utf-8"))["values"].get("ways", {}).values():
            source = way.get("source", "")
            assert not source or "://" in source or (page.parent / source).exists(), (path.name, source)


def shown_flags(command):
    "The flags that `--help all` of `command` lists, each at the beginning of a line"
    with contextlib.redirect_stdout(io.StringIO()) as told, pytest.raises(SystemExit):
        main([command, "--help", "all"])
    return set(re.findall(r"^ +--(\w+)", told.getvalue(), re.M))
