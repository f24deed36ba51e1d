"""Run every page of the book as a reader would, in a process of its own; it is forked from one that has
imported what most pages import."""

import argparse, gc, importlib, multiprocessing, os, subprocess, sys, tempfile, time
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from common import find_root, page_name, pages
from run_notebooks import run_cells

sys.path.insert(0, str(find_root(Path(__file__).parent) / "tests"))
import children

PRELOAD = *children.PRELOAD, "matplotlib.pyplot", "matplotlib_inline.backend_inline", "execnb.shell"


def run_page(path: Path, folder: str):
    """Execute the notebook at `path` in this process, temporary files in `folder`; a cell that raises ends it
    with its traceback."""
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    subprocess.run = partial(children.run, start=children.open_nursery())
    run_cells(path)


def run_pages(paths: list[Path], workers: int) -> list[Path]:
    "Those of `paths` that fail, `workers` at a time."
    context, waiting, running, failed = multiprocessing.get_context("fork"), list(paths), {}, []
    while waiting or running:
        while waiting and len(running) < workers:
            path, folder = waiting.pop(0), tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            process = context.Process(target=run_page, args=(path, folder.name))
            process.start()
            running[process.sentinel] = process, path, folder, time.time()
        for o in wait(list(running)):
            process, path, folder, began = running.pop(o)
            process.join()
            folder.cleanup()
            if process.exitcode:
                failed.append(path)
            print(
                f"{page_name(path):<36}{time.time() - began:7.1f} s" + "  failed" * bool(process.exitcode),
                flush=True,
            )
    return failed


def main(argv=None) -> int:
    "Run the notebooks named on the command line, or all pages."
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("notebooks", nargs="*", type=Path, help="notebooks to run (all pages of the book)")
    p.add_argument("--workers", type=int, default=2, help="how many at a time (2)")
    args = p.parse_args(argv)
    root = find_root()
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.environ["PYTHONPATH"] = os.pathsep.join(o for o in (str(root), os.environ.get("PYTHONPATH")) if o)
    sys.path.insert(0, str(root))
    for o in PRELOAD:
        importlib.import_module(o)
    # the collection that each measurement of memory begins with need not look through what is loaded by now
    gc.freeze()
    failed = run_pages([o.resolve() for o in args.notebooks] or pages(root), args.workers)
    if failed:
        print("failed: " + " ".join(map(page_name, failed)), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
