"""Write tests/test_<module>.py from the cells marked `#| test` of its pages and its proofs: what they define,
without the calls that run it in the notebook. `nbdev_test` runs a test where it is written; these files are
for who wants one of them."""

import ast, re, sys
from pathlib import Path

from execnb.nbio import mk_cell
from nbdev.maker import ModuleMaker
from nbdev.process import NBProcessor

from common import cell_name, find_root, generated_from, home, notebooks, page_name, read_page, report

MARKS = "slow", "cuda", "net"


def test_names(source: str) -> list[str]:
    """Names of the `test_*` functions that `source` defines, at any depth; a cell with magics is read line by
    line."""
    try:
        found = [
            o.name
            for o in ast.walk(ast.parse(source))
            if isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
    except SyntaxError:
        found = re.findall(r"^\s*(?:async\s+)?def\s+(\w+)", source, re.M)
    return [o for o in found if o.startswith("test_")]


def is_call_of(stmt: ast.stmt, names: set[str]) -> bool:
    "Is `stmt` nothing but a call of one of `names`?"
    return (
        isinstance(stmt, ast.Expr)
        and isinstance(stmt.value, ast.Call)
        and getattr(stmt.value.func, "id", None) in names
    )


def first_line(stmt: ast.stmt) -> int:
    "Line where `stmt` starts, decorators included."
    return min([stmt.lineno] + [o.lineno for o in getattr(stmt, "decorator_list", [])])


def split_cell(source: str, marks: list[str]) -> tuple[str, str, list[str]]:
    """`source` of a test cell as (its `__future__` imports, the rest without calls and with `marks`, names
    never called)."""
    tree, lines = ast.parse(source).body, source.splitlines()
    names = {o.name for o in tree if isinstance(o, ast.FunctionDef) and o.name.startswith("test_")}
    calls = [o for o in tree if is_call_of(o, names)]
    future = [o for o in tree if isinstance(o, ast.ImportFrom) and o.module == "__future__"]
    kept = {
        i for o in tree if o not in calls and o not in future for i in range(first_line(o), o.end_lineno + 1)
    }
    gone = {i for o in calls + future for i in range(o.lineno, o.end_lineno + 1)}
    if kept & gone:
        raise ValueError(f"`{lines[min(kept & gone) - 1].strip()}`: put the call on a line of its own")
    marked = {first_line(o) for o in tree if isinstance(o, ast.FunctionDef) and o.name in names}
    out = []
    for i, line in enumerate(lines, 1):
        if i in gone:
            continue
        if i in marked:
            out += [f"@pytest.mark.{o}" for o in marks]
        out.append(line)
    body = re.sub(r"\n{4,}", "\n\n\n", "\n".join(out)).strip("\n")
    head = "\n".join(ast.get_source_segment(source, o) for o in future)
    return head, body, sorted(names - {o.value.func.id for o in calls})


class TestProc:
    "Collect the test cells of one notebook, and what is wrong with them."

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(self, path: Path):
        self.path, self.cells, self.future, self.errors, self.seen = path, [], [], [], {}

    def begin(self):
        pass

    def wrong(self, cell, what: str):
        self.errors.append(f"{cell_name(self.path, cell)}: {what}")

    def __call__(self, cell):
        if cell.cell_type != "code":
            return
        names = test_names(cell.source)
        if "test" not in cell.directives_:
            for o in names:
                self.wrong(
                    cell, f"`{o}` is a test without '#| test': put the directive at the top of the cell"
                )
        for o in names:
            if o in self.seen:
                self.wrong(cell, f"`{o}` is defined in cell {self.seen[o]} too: rename one of them")
            self.seen[o] = cell.idx_ + 1

    def _test_(self, cell, *args):
        if {"export", "exports", "exporti"} & cell.directives_.keys():
            return self.wrong(cell, "'#| test' and '#| export' in one cell: split it")
        try:
            future, body, uncalled = split_cell(cell.source, [o for o in MARKS if o in cell.directives_])
        except SyntaxError as e:
            return self.wrong(cell, f"a test cell has to be plain Python, without magics ({e.msg})")
        except ValueError as e:
            return self.wrong(cell, str(e))
        for o in uncalled:
            self.wrong(
                cell, f"`{o}` is never called: add `{o}()` on a line of its own at the end of the cell"
            )
        self.future += future.splitlines()
        if body:
            self.cells.append(mk_cell(body, id=cell.id))


def collect_tests(paths: list[Path]) -> tuple[dict, list[str]]:
    "{module: its notebooks with tests}, and what is wrong with them."
    found, errors = {}, []
    for path in paths:
        proc = TestProc(path)
        NBProcessor(path, procs=[proc], process=True)
        module = home(path, read_page(path))
        errors += proc.errors
        if proc.cells and not module:
            errors.append(f"{page_name(path)}: has tests but no '#| default_exp': add it, or move the tests")
        for o in found.get(module, ()):
            for name in o.seen.keys() & proc.seen.keys():
                errors.append(
                    f"{page_name(path)}: `{name}` is defined in {page_name(o.path)} too: rename one of them"
                )
        if proc.cells:
            found.setdefault(module, []).append(proc)
    return found, errors


def write_tests(module: str, procs: list, dest: Path) -> Path:
    "Write the test file of `module` under `dest`."
    head = list(dict.fromkeys(o for p in procs for o in p.future))
    if any("@pytest.mark." in o.source for p in procs for o in p.cells):
        head.append("import pytest")
    # of a page that makes no module
    alone = (
        all(Path(p.path).parent.name == "solutions" for p in procs)
        and not (dest.parent / f"memtrain/{module}.py").exists()
    )
    if not alone:
        head.append(f"from memtrain.{module} import *")
    # a helper that a page and its proofs both need stands in both, and here once
    seen = set()
    for i, p in enumerate(procs):
        p.cells = [c for c in p.cells if c.source not in seen and not seen.add(c.source)]
        # parse=False: no __all__, and imports of memtrain stay absolute.
        maker = ModuleMaker(dest=dest, name=f"test_{module}", nb_path=p.path, is_new=not i, parse=False)
        maker.make([mk_cell("\n".join(head), id="auto"), *p.cells] if head and not i else p.cells)
    return maker.fname


def export_tests(root: Path) -> list[str]:
    """Write the test file of every module under `root`, delete those that none writes; nothing is written if
    there are errors."""
    dest = root / "tests"
    found, errors = collect_tests(notebooks(root))
    if errors:
        return errors
    written = {write_tests(module, procs, dest) for module, procs in found.items()}
    for o in dest.glob("test_*.py"):
        if o not in written and generated_from(o):
            o.unlink()
    return []


if __name__ == "__main__":
    sys.exit(report(export_tests(find_root())))
