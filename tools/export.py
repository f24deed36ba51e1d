"""Regenerate everything that is made from the notebooks: clean notebooks, modules, tests, README.md and the
site's calculator."""

import os, re, sys, textwrap
from pathlib import Path

from execnb.nbio import read_nb, write_nb
from nbdev.clean import nbdev_clean
from nbdev.config import get_config
from nbdev.doclinks import nbdev_export

from calculator import make_calculator
from common import default_exp, find_root, generated_from, is_aside, notebooks, pages, read_page, report
from export_tests import export_tests
from make_readme import make_readme

WIDTH = 110  # columns, as pyproject.toml says


def drop_jupytext(root: Path):
    "Take jupytext's own metadata out of the notebooks: `make save` adds it, nbdev_clean leaves it."
    for o in notebooks(root):
        nb = read_nb(o)
        if nb.metadata.pop("jupytext", None) is not None:
            write_nb(nb, o)


def remove_stale(root: Path):
    "Delete the generated modules under `root` that no notebook exports to any more: nbdev leaves them."
    modules = {default_exp(read_page(o)) for o in notebooks(root)}
    for o in (root / "memtrain").glob("*.py"):
        if o.stem not in modules and generated_from(o):
            o.unlink()


def fold_heads(root: Path):
    "Wrap what nbdev writes at the head of a module in one line: its docstring, and its public names."

    def fold(text: str, indent: str = "") -> str:
        return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)

    for o in (root / "memtrain").glob("*.py"):
        if not generated_from(o) or o.stem == "_modidx":
            continue
        source = o.read_text(encoding="utf-8")
        folded = re.sub(r'\A""".*"""$', lambda m: fold(m[0]), source, count=1, flags=re.M)
        folded = re.sub(
            r"^__all__ = \[.*?\]",
            lambda m: fold(" ".join(m[0].split()), " " * len("__all__ = [")),
            folded,
            count=1,
            flags=re.M | re.S,
        )
        if folded != source:
            o.write_text(folded, encoding="utf-8")


def fold_cells(root: Path):
    "Fold in JupyterLab and on Colab what the site folds or hides; other metadata of cells goes."
    for o in pages(root):
        nb, folded = read_nb(o), []
        for c in read_page(o).cells:
            only_there = c.cell_type == "code" and "site" in c.directives_  # HTML with styles and scripts
            hidden = {"source_hidden": True} | ({"outputs_hidden": True} if only_there else {})
            # Colab shows the output of a "form", and its code when asked
            folded.append({"cellView": "form", "jupyter": hidden} if is_aside(c) or only_there else {})
        if [c.metadata for c in nb.cells] != folded:
            for c, metadata in zip(nb.cells, folded):
                c.metadata = metadata
            write_nb(nb, o)


def export(root: Path) -> list[str]:
    "Regenerate the project at `root`; returns what is wrong with it."
    os.chdir(root)
    os.environ.pop("IN_TEST", None)  # nbdev_export does nothing, silently, where this is set
    get_config.cache_clear()
    nbdev_clean.__wrapped__()
    drop_jupytext(root)
    fold_cells(root)
    remove_stale(root)
    nbdev_export.__wrapped__()
    fold_heads(root)
    return export_tests(root) + make_readme(root) + make_calculator(root)


if __name__ == "__main__":
    sys.exit(report(export(find_root())))
