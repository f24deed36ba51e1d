"Fail when regenerating anything from the notebooks would change a file. The working tree isn't touched."

import os, shutil, subprocess, sys, tempfile
from pathlib import Path

from common import default_exp, find_root, generated_from, notebooks, page_name, read_page, report

HERE = Path(__file__).resolve().parent


def tree_files(root: Path) -> list[str]:
    """Files of the working tree at `root`: tracked, and untracked ones that aren't ignored; all of them
    outside git."""
    res = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"], capture_output=True, text=True
    )
    names = (
        res.stdout.split("\0") if res.returncode == 0 else [str(o.relative_to(root)) for o in root.rglob("*")]
    )
    skip = {".venv", ".git", "_proc", "_docs", "demo", "__pycache__"}
    keep = [o for o in names if o and not skip & set(Path(o).parts)]
    return sorted({o for o in keep if (root / o).is_symlink() or (root / o).is_file()})


def copy_tree(root: Path, dest: Path) -> list[str]:
    "Copy the working tree at `root` to `dest`, links as links; returns the names."
    names = tree_files(root)
    for o in names:
        (dest / o).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / o, dest / o, follow_symlinks=False)
    return names


def run_in_copy(copy: Path, *args: str) -> subprocess.CompletedProcess:
    """Run Python with `args` in `copy`, importing the memtrain that lies there whatever is installed; tools/
    is there for what settings.ini names."""
    env = {k: v for k, v in os.environ.items() if k != "IN_TEST"} | dict(
        PYTHONPATH=os.pathsep.join((str(copy), str(HERE)))
    )
    return subprocess.run([sys.executable, *args], cwd=copy, env=env, capture_output=True, text=True)


def contents(root: Path, names) -> dict[str, bytes]:
    "Bytes of each of `names` that is a file under `root`."
    return {o: (root / o).read_bytes() for o in names if (root / o).is_file() and not (root / o).is_symlink()}


def describe(root: Path, name: str, old: bytes | None, new: bytes | None) -> str:
    "One line about a file that regenerating changes from `old` to `new`."
    path, way = Path(name), "run 'make export' and commit the result"
    made = {default_exp(read_page(o)): page_name(o) for o in notebooks(root)}
    stem = path.stem.removeprefix("test_") if path.parts[0] == "tests" else path.stem
    source = "nbs/index.ipynb" if name == "README.md" else made.get(stem, "the notebooks and settings.ini")
    if path.suffix == ".ipynb":
        return f"{name} isn't as nbdev_clean leaves it: {way}"
    if old is None:
        return f"{name} is missing, {source} exports it: {way}"
    if new is None:
        return f"{name} comes from {generated_from(root / name)}, which doesn't export it any more: {way}"
    return f"{name} differs from what {source} exports: {way}"


def check_sync(root: Path) -> list[str]:
    "One line for each file under `root` that regenerating would change."
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp).resolve() / root.name
        before = contents(root, copy_tree(root, copy))
        res = run_in_copy(copy, str(HERE / "export.py"))
        if res.returncode:
            return res.stderr.strip().splitlines() or ["export failed without a word"]
        after = contents(
            copy, [str(o.relative_to(copy)) for o in copy.rglob("*") if "__pycache__" not in o.parts]
        )
    changed = sorted(o for o in before.keys() | after.keys() if before.get(o) != after.get(o))
    return [describe(root, o, before.get(o), after.get(o)) for o in changed]


if __name__ == "__main__":
    sys.exit(report(check_sync(find_root())))
