"Execute notebooks, each in a fresh process from its own folder, and store the outputs."

import argparse, base64, io, os, subprocess, sys, time
from pathlib import Path

from common import find_root, notebooks, page_name, read_page
from stale import note_run

FLAGS = {"slow", "cuda", "net"}
SLOW_SECONDS = 120


def skipped(cell) -> bool:
    "Is `cell` one that an ordinary run leaves alone, with the outputs it has?"
    d = cell.directives_
    return cell.cell_type != "code" or bool(FLAGS & d.keys()) or d.get("eval:", [""])[0].lower() == "false"


def run_cells(path: Path):
    "The notebook at `path` after executing it here; a cell that raises ends the process with its traceback."
    from execnb.shell import CaptureShell

    nb = read_page(path)
    os.chdir(path.parent)
    shell = CaptureShell(path, mpl_format="png")  # its default, retina, doubles the size
    shell.run_cell(
        "import matplotlib; matplotlib.rcParams['figure.dpi'] = 100; matplotlib.rcParams['savefig.dpi'] ="
        " 100; del matplotlib"
    )
    for cell in nb.cells:
        if skipped(cell):
            continue
        cell.outputs = []  # execnb keeps the old ones where a cell prints nothing
        shell.cell(cell)
        if shell.exc:
            sys.exit(shell.prettytb(fname=path.name))
    return nb


def run_one(path: Path, write: bool):
    "Execute the notebook at `path` in this process, and with `write` store it, cleaned, in one step."
    from execnb.nbio import nb2str
    from nbdev.clean import _nbdev_clean

    nb = run_cells(path)
    refuse_stderr(path, nb)
    if not write:
        return
    shrink_figures(nb)
    note_run(find_root(path.parent), nb)
    _nbdev_clean(nb)
    tmp = path.with_name(f".{path.name}.tmp")
    tmp.write_text(nb2str(nb), encoding="utf-8")
    os.replace(tmp, path)


def refuse_stderr(path: Path, nb):
    """End the process where a cell of `nb` wrote to stderr, with what it wrote: a page that warns isn't
    stored."""
    for c in nb.cells:
        said = "".join("".join(o["text"]) for o in c.get("outputs", []) if o.get("name") == "stderr").strip()
        if said:
            sys.exit(f"{page_name(path)} cell {c.idx_ + 1} wrote to stderr: {said.splitlines()[-1]}")


def shrink_figures(nb):
    """Store the figures of `nb` with a palette of 256 colours: a third of the size, and no difference that
    shows."""
    from PIL import Image

    for o in (o for c in nb.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})):
        figure, out = Image.open(io.BytesIO(base64.b64decode("".join(o["data"]["image/png"])))), io.BytesIO()
        if figure.mode == "P":
            continue
        figure.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            out, "png", optimize=True, dpi=figure.info.get("dpi", (100, 100))
        )
        o["data"]["image/png"] = base64.b64encode(out.getvalue()).decode() + "\n"


def run_fresh(path: Path, root: Path, check: bool) -> bool:
    "Execute the notebook at `path` in a process of its own; did it work?"
    start = time.time()
    env = os.environ | dict(
        PYTHONPATH=os.pathsep.join(o for o in (str(root), os.environ.get("PYTHONPATH")) if o)
    )
    args = [sys.executable, __file__, "--in_process", str(path)] + ["--check"] * check
    ok = subprocess.run(args, env=env).returncode == 0
    took = time.time() - start
    print(f"{page_name(path):<36}{took:7.1f} s" + ("" if ok else "  failed, left as it was"), flush=True)
    if took > SLOW_SECONDS:
        print(
            f"warning: {page_name(path)} took more than {SLOW_SECONDS} s: leave its longest tests to pytest"
            " ('#| long'), or mark cells '#| slow'",
            file=sys.stderr,
        )
    return ok


def main(argv=None) -> int:
    "Execute the notebooks named on the command line, or all of them."
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("notebooks", nargs="*", type=Path, help="notebooks to execute (all of them)")
    p.add_argument("--check", action="store_true", help="only see whether they run: store nothing")
    p.add_argument("--in_process", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    root = find_root(args.notebooks[0].parent if args.notebooks else None)
    paths = [o.resolve() for o in args.notebooks] or notebooks(root)
    for o in paths:
        if not o.is_file():
            sys.exit(f"{o}: no such notebook: give one of nbs/*/*.ipynb")
    if args.in_process:
        return run_one(paths[0], write=not args.check)
    return 0 if all([run_fresh(o, root, args.check) for o in paths]) else 1


if __name__ == "__main__":
    sys.exit(main())
