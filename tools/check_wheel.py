"""Build the wheel and the source distribution. The wheel has to hold the package and nothing else, which
check-wheel-contents says; the source distribution what the wheel is made of; and all modules and commands
have to work with what installing the wheel brings: what is optional waits until it is used."""

import re, subprocess, sys, tarfile, tempfile, zipfile
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from check_sync import copy_tree, run_in_copy
from common import find_root, report

BUILD = "from setuptools import build_meta as b; print(b.build_wheel('{0}'), b.build_sdist('{0}'))"
# Of a source distribution, beside the package.
BESIDE = {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO", "setup.cfg", "MANIFEST.in"}
USE = """import importlib, pkgutil, sys
from importlib.metadata import distribution
from importlib.resources import files
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked!r}:
            raise ModuleNotFoundError(f'{{name}} is imported, and installing memtrain does not bring it')
sys.meta_path.insert(0, Refuse())
import memtrain
assert memtrain.__file__.startswith({folder!r}), memtrain.__file__
for o in pkgutil.iter_modules(memtrain.__path__):
    if o.name != '__main__': importlib.import_module(f'memtrain.{{o.name}}')
for e in distribution('memtrain').entry_points: e.load()
assert (files('memtrain') / 'py.typed').is_file(), 'py.typed is not there: type checkers read nothing'
"""


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def requirements(name: str, seen: set[str]) -> set[str]:
    """`seen`, with the distribution `name` and all that installing it brings, as far as it is installed here;
    extras are left out."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key not in seen:
        seen.add(key)
        try:
            needed = distribution(key).requires or []
        except PackageNotFoundError:
            needed = []
        for o in needed:
            if not re.search(r"\bextra\s*==", o):
                requirements(re.match(r"[\w.-]+", o)[0], seen)
    return seen


def check_use(folder: Path) -> list[str]:
    """Do all modules and entry points of the wheel unpacked in `folder` load with only what installing it
    brings?"""
    meta = Parser().parsestr(next(folder.glob("*.dist-info/METADATA")).read_text(encoding="utf-8"))
    brought = {"memtrain"}
    for o in meta.get_all("Requires-Dist") or []:
        if "extra ==" not in o:
            requirements(re.match(r"[\w.-]+", o)[0], brought)
    names = {k: {re.sub(r"[-_.]+", "-", o).lower() for o in v} for k, v in packages_distributions().items()}
    blocked = {k for k, v in names.items() if not v & brought}
    res = run_in_copy(folder, "-c", USE.format(blocked=blocked, folder=str(folder)))
    if res.returncode:
        return [f"the wheel doesn't work by itself: {last_line(res.stderr)}"]
    res = run_in_copy(folder, "-m", "memtrain", "--version")
    said = (res.stdout + res.stderr).strip()[-200:]
    return (
        []
        if meta["Version"] in said
        else [f"python -m memtrain --version answers {said!r}, not {meta['Version']}"]
    )


def findings(root: Path) -> list[str]:
    "Everything that is wrong with what the project at `root` builds, a line each."
    with tempfile.TemporaryDirectory() as tmp:
        dest = Path(tmp).resolve()
        copy = dest / "copy"
        copy_tree(Path(root).resolve(), copy)
        res = run_in_copy(copy, "-c", BUILD.format(dest))
        if res.returncode:
            return [f"nothing is built: {last_line(res.stderr)}"]
        wheel, sdist = next(dest.glob("*.whl")), next(dest.glob("*.tar.gz"))
        check = [
            Path(sys.executable).with_name("check-wheel-contents"),
            "--no-config",
            "--toplevel",
            "memtrain",
        ]
        res = subprocess.run([*check, "--package", copy / "memtrain", wheel], capture_output=True, text=True)
        found = [o.strip() for o in (res.stdout + res.stderr).splitlines() if res.returncode and o.strip()]
        with zipfile.ZipFile(wheel) as z:
            modules = {o for o in z.namelist() if o.startswith("memtrain/")}
            z.extractall(dest / "installed")
        with tarfile.open(sdist) as t:
            packed = {o.name.partition("/")[2] for o in t.getmembers() if o.isfile()}
        packed = {o for o in packed if not o.startswith("memtrain.egg-info/")}
        found += [
            f"the source distribution has {o}: see MANIFEST.in" for o in sorted(packed - modules - BESIDE)
        ]
        found += [
            f"the source distribution lacks {o}: see MANIFEST.in" for o in sorted((modules | BESIDE) - packed)
        ]
        return found or check_use(dest / "installed")


if __name__ == "__main__":
    sys.exit(report(findings(find_root())))
