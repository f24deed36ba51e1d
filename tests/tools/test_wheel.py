"""tools/check_wheel.py, on a tiny package that is built for real: a clean one passes, and each single defect
is found."""

import configparser, re, shutil, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_wheel
import memtrain

FILES = {
    "memtrain/__init__.py": '__version__ = "0.1.0"\n',
    "memtrain/_modidx.py": "d = {}\n",
    "memtrain/core.py": "import numpy\n",
    "memtrain/py.typed": "",
    "memtrain/__main__.py": "import sys\nfrom memtrain.cli import main\nsys.exit(main())\n",
    "memtrain/cli.py": "from . import __version__\ndef main(): print(f'memtrain {__version__}')\n",
    "tests/test_core.py": "",
    "nbs/index.ipynb": "{}",
    "README.md": "# memtrain\n",
    "CHANGELOG.md": "# Changes\n\n## 0.1.0 (unreleased)\n",
    "settings.ini": "[DEFAULT]\nversion = 0.1.0\n",
}


@pytest.fixture
def project(tmp_path):
    for name in ("pyproject.toml", "MANIFEST.in", "LICENSE"):
        tmp_path.joinpath("p").mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "p")
    for name, text in FILES.items():
        (tmp_path / "p" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "p" / name).write_text(text)
    return tmp_path / "p"


def change(project, name, old, new):
    text = (project / name).read_text()
    assert old in text
    (project / name).write_text(text.replace(old, new, 1))


def test_a_clean_package_passes(project):
    assert check_wheel.findings(project) == []


@pytest.mark.parametrize(
    "name,old,new,words",
    [
        (
            "pyproject.toml",
            'packages = ["memtrain"]',
            'packages = ["memtrain", "tests"]',
            ["W202", "has tests/test_core"],
        ),
        ("MANIFEST.in", "prune tests", "", ["the source distribution has tests/test_core.py"]),
        ("memtrain/cli.py", "def main", "def start", ["has no attribute 'main'"]),
        ("memtrain/core.py", "import numpy", "import pytest", ["pytest is imported"]),
        ("memtrain/cli.py", "memtrain {__version__}", "memtrain", ["answers 'memtrain', not 0.1.0"]),
        ("pyproject.toml", '">=3.10"', '"ten"', ["nothing is built"]),
    ],
)
def test_a_defect_is_found(project, name, old, new, words):
    change(project, name, old, new)
    found = "\n".join(check_wheel.findings(project))
    assert found and all(o in found for o in words), found


def test_a_file_that_is_left_out_is_found(project):
    (project / "memtrain/extra.json").write_text("{}")
    assert "memtrain/extra.json" in "\n".join(check_wheel.findings(project))
    (project / "memtrain/extra.json").unlink()
    (project / "memtrain/py.typed").unlink()
    assert "py.typed is not there" in "\n".join(check_wheel.findings(project))


def test_one_version_everywhere():
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    conf = configparser.ConfigParser(interpolation=None)
    conf.read(ROOT / "settings.ini", encoding="utf-8")
    assert changes[1] == conf["DEFAULT"]["version"] == memtrain.__version__


def test_what_a_distribution_brings(monkeypatch):
    class Found:
        def __init__(self, *requires):
            self.requires = requires

    known = dict(a=Found("B_x>=1; python_version > '3'", "never; extra == 'c'"), **{"b-x": Found("c.y")})

    def find(name):
        if name not in known:
            raise check_wheel.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(check_wheel, "distribution", find)
    assert check_wheel.requirements("a", set()) == {"a", "b-x", "c-y"}
