"""Build the wheel and the source distribution, and hold both to what they should be: the package, its entry
points, and nothing else."""

import ast, configparser, re, sys, tarfile, tempfile, zipfile
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from check_sync import copy_tree, run_in_copy
from common import find_root, report

DATA = "laws.json", "models.json"  # what the modules read
BUILD = "from setuptools import build_meta as b; print(b.build_wheel('{0}'), b.build_sdist('{0}'))"
# Imports every module of the unpacked wheel, with everything out of reach that installing memtrain doesn't
# bring: what is optional has to wait until it is used.
USE = """import importlib,pkgutil,sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked!r}: raise ModuleNotFoundError(f'{{name}} is imported, and installing memtrain does not bring it')
sys.meta_path.insert(0, Refuse())
import memtrain
assert memtrain.__file__.startswith({folder!r}), memtrain.__file__
for o in pkgutil.iter_modules(memtrain.__path__):
    if o.name != '__main__': importlib.import_module(f'memtrain.{{o.name}}')
from importlib.metadata import distribution
for e in distribution('memtrain').entry_points: e.load()
"""


def build(root: Path, dest: Path) -> tuple[Path, Path] | str:
    """The wheel and the source distribution of a copy of the working tree at `root`, in `dest`; or the last
    line of what went wrong."""
    copy_tree(root, dest / "copy")
    res = run_in_copy(dest / "copy", "-c", BUILD.format(dest))
    if res.returncode:
        return (res.stderr.strip().splitlines() or ["no message"])[-1]
    return next(dest.glob("*.whl")), next(dest.glob("*.tar.gz"))


def package_files(root: Path) -> set[str]:
    """What the package at `root` consists of: its modules, the data they read, and the file that tells type
    checkers to read them."""
    return {f"memtrain/{o.name}" for kind in ("*.py", *DATA) for o in (root / "memtrain").glob(kind)} | {
        "memtrain/py.typed"
    }


def check_wheel_files(names: set[str], wanted: set[str], info: str) -> list[str]:
    "What of `names` in the wheel shouldn't be there, and what is missing."
    wanted = wanted | {
        f"{info}/{o}"
        for o in ("licenses/LICENSE", "METADATA", "WHEEL", "entry_points.txt", "top_level.txt", "RECORD")
    }
    return [
        f"the wheel has {o}, which isn't part of the package: see tool.setuptools in pyproject.toml"
        for o in sorted(names - wanted)
    ] + [f"the wheel lacks {o}: see tool.setuptools in pyproject.toml" for o in sorted(wanted - names)]


def check_sdist_files(names: set[str], wanted: set[str]) -> list[str]:
    """What of `names` in the source distribution is neither the package nor needed to build it, and what is
    missing."""
    names = {o for o in names if not o.startswith("memtrain.egg-info/")}
    wanted = wanted | {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO", "setup.cfg", "MANIFEST.in"}
    return [f"the source distribution has {o}: see MANIFEST.in" for o in sorted(names - wanted)] + [
        f"the source distribution lacks {o}: see MANIFEST.in" for o in sorted(wanted - names)
    ]


def check_version(root: Path, meta) -> list[str]:
    "One version in the wheel, memtrain/__init__.py, settings.ini and CHANGELOG.md."
    conf = configparser.ConfigParser(interpolation=None)
    conf.read(root / "settings.ini", encoding="utf-8")
    init = re.search(
        r"__version__\s*=\s*['\"]([^'\"]+)", (root / "memtrain/__init__.py").read_text(encoding="utf-8")
    )
    changes = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    found = {
        "memtrain/__init__.py": init and init[1],
        "settings.ini": conf["DEFAULT"].get("version"),
        "the newest heading of CHANGELOG.md": changes and changes[1],
    }
    return [
        f"the wheel is version {meta['Version']}, {k} says {v}: make them one"
        for k, v in found.items()
        if v != meta["Version"]
    ]


def check_entry_points(text: str, files: dict[str, str]) -> list[str]:
    "Do the entry points in `text` name something that the modules in `files` define?"
    conf, res = configparser.ConfigParser(delimiters="="), []
    conf.read_string(text)
    if "memtrain" not in (conf["console_scripts"] if "console_scripts" in conf else {}):
        res.append("the wheel has no command memtrain: see project.scripts in pyproject.toml")
    for section in conf.sections():
        for name, target in conf[section].items():
            module, _, attr = target.partition(":")
            body = ast.parse(files.get(module.replace(".", "/") + ".py", "")).body
            defined = {getattr(o, "name", None) for o in body} | {
                t.id for o in body if isinstance(o, ast.Assign) for t in o.targets if isinstance(t, ast.Name)
            }
            if attr not in defined:
                res.append(
                    f"entry point {name} of {section} names {target}, which the wheel hasn't: see pyproject.toml"
                )
    return res


def requirements(name: str, seen: set[str]) -> set[str]:
    """`seen`, with the distribution `name` and all that installing it brings, as far as it is installed here;
    extras are left out."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return seen
    seen.add(key)
    try:
        found = distribution(key).requires or []
    except PackageNotFoundError:
        return seen
    for o in found:
        if not re.search(r"\bextra\s*==", o):
            requirements(re.match(r"[\w.-]+", o)[0], seen)
    return seen


def check_use(folder: Path, meta) -> list[str]:
    """Do all modules of the wheel unpacked in `folder` import, and the command answer, with only what
    installing it brings?"""
    brought = {"memtrain"}
    for o in meta.get_all("Requires-Dist") or []:
        if "extra ==" not in o:
            requirements(re.match(r"[\w.-]+", o)[0], brought)
    blocked = {
        k
        for k, v in packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", o).lower() in brought for o in v)
    }
    res = run_in_copy(folder, "-c", USE.format(blocked=blocked, folder=str(folder)))
    if res.returncode:
        return [f"the wheel's modules don't import by themselves: {res.stderr.strip().splitlines()[-1]}"]
    res = run_in_copy(folder, "-m", "memtrain", "--version")
    if res.returncode or meta["Version"] not in res.stdout:
        return [
            f"python -m memtrain --version answers {(res.stdout + res.stderr).strip()[-200:]!r}, not {meta['Version']}"
        ]
    return []


def findings(root: Path) -> list[str]:
    "Everything that is wrong with what the project at `root` builds, a line each."
    root = Path(root).resolve()
    with tempfile.TemporaryDirectory() as tmp:
        built = build(root, Path(tmp).resolve())
        if isinstance(built, str):
            return [f"nothing is built: {built}"]
        wheel, sdist = built
        with zipfile.ZipFile(wheel) as z:
            files = {o: z.read(o).decode() for o in z.namelist() if not o.endswith("/")}
            z.extractall(Path(tmp) / "installed")
        info = next((o.partition("/")[0] for o in files if ".dist-info/" in o), "")
        with tarfile.open(sdist) as t:
            packed = {o.name.partition("/")[2] for o in t.getmembers() if o.isfile()}
        wanted, meta = package_files(root), Parser().parsestr(files[f"{info}/METADATA"])
        res = (
            check_wheel_files(set(files), wanted, info)
            + check_sdist_files(packed, wanted)
            + check_version(root, meta)
        )
        res += check_entry_points(files.get(f"{info}/entry_points.txt", ""), files)
        return res or check_use(Path(tmp).resolve() / "installed", meta)


if __name__ == "__main__":
    sys.exit(report(findings(find_root())))
