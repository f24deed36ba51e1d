"""Hold the house: no circle of imports, no private name across modules, no class in slices, no option
declared twice."""

import ast, itertools, re, sys
from collections import Counter
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from common import find_root, report

MOST_SLICES = 5  # private classes with one subclass and no other use
DEEPEST = 2  # classes of our own in a chain
SETTINGS = re.compile(r"(Options|Config|Flags|Settings)$")
SHARED = 6  # a function may repeat fewer names of a class of settings than this


@dataclass
class Module:
    "What is asked of one file of the package."

    name: str
    source: str
    tree: ast.Module
    imports: set  # (module of ours, name taken from it), those inside functions too

    def classes(self):
        return [o for o in self.tree.body if isinstance(o, ast.ClassDef)]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imports_of(tree: ast.Module, modules: set[str]) -> set[tuple[str, str]]:
    "(module of ours, name taken from it) of everything that `tree` imports; the package itself is ''."
    found = set()
    for o in ast.walk(tree):
        if isinstance(o, ast.ImportFrom):
            package, _, home = (o.module or "").partition(".")
            if o.level or package == "memtrain":
                home = o.module or "" if o.level else home
                found |= {(home, a.name) if home or a.name not in modules else (a.name, "") for a in o.names}
        elif isinstance(o, ast.Import):
            parts = [a.name.partition(".") for a in o.names]
            found |= {(home, "") for package, _, home in parts if package == "memtrain"}
    return found


def read_package(root: Path) -> dict[str, Module]:
    "The modules of the package at `root`, by name."
    files = {o.stem: o.read_text(encoding="utf-8") for o in sorted((root / "memtrain").glob("*.py"))}
    files.pop("_modidx", None)
    trees = {name: ast.parse(source) for name, source in files.items()}
    return {k: Module(k, files[k], tree, imports_of(tree, set(files))) for k, tree in trees.items()}


def check_imports(root: Path, modules: dict[str, Module]) -> list[str]:
    "No circle, those inside functions included."
    # __init__ hands names on and __main__ runs the commands: nothing depends on what they take
    rooms = [m for k, m in modules.items() if k not in ("__init__", "__main__")]
    graph = {m.name: {home for home, _ in m.imports} - {"", m.name} for m in rooms}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        circle = " → ".join(e.args[1][::-1])
        return [f"memtrain: imports form a circle, {circle}: move what they share into a room beneath both"]
    return []


def check_private(root: Path, modules: dict[str, Module]) -> list[str]:
    "No private name crosses a module, and no benchmark takes one; a test may use those of its own module."
    asked = [(f"memtrain/{k}.py", k, m.imports) for k, m in modules.items()]
    for path in sorted((*(root / "tests").glob("test_*.py"), *(root / "benchmarks").glob("*.py"))):
        taken = imports_of(ast.parse(path.read_text(encoding="utf-8")), set(modules))
        asked.append((f"{path.parent.name}/{path.name}", path.stem.removeprefix("test_"), taken))
    return [
        f"{file}: takes the private name {name} from {home}: use what is public, or make it so"
        for file, own, taken in asked
        for home, name in sorted(taken)
        if is_private(name) and home != own
    ]


def bases(cls: ast.ClassDef) -> list[str]:
    return [ast.unparse(o).rpartition(".")[2] for o in cls.bases]


def check_classes(root: Path, modules: dict[str, Module]) -> list[str]:
    """No class exists only to be the parent of another, no chain of our own is deep, nothing is attached
    from outside."""
    ours = {o.name: (k, o) for k, m in modules.items() for o in m.classes()}
    words = Counter(w for m in modules.values() for w in re.findall(r"\w+", m.source))
    parents = Counter(b for _, o in ours.values() for b in set(bases(o)))
    slices = [f"{k}.{n}" for n, (k, _) in ours.items() if is_private(n) and parents[n] == 1 and words[n] == 2]
    res = []
    if len(slices) > MOST_SLICES:
        listed = ", ".join(slices)
        res.append(
            f"memtrain: {len(slices)} private classes exist only to be the parent of one other, "
            f"at most {MOST_SLICES} may: {listed}: make each class whole"
        )

    def chain(name):
        return [name, *max((chain(b) for b in bases(ours[name][1]) if b in ours), key=len, default=[])]

    for name, (k, _) in ours.items():
        found = chain(name)
        is_error = any(b.endswith(("Error", "Exception")) for o in found for b in (o, *bases(ours[o][1])))
        if len(found) > DEEPEST and not is_error:
            res.append(
                f"memtrain/{k}.py: {name} is {len(found)} classes deep, {DEEPEST} are enough: make it whole"
            )
    for k, m in modules.items():
        for o in ast.walk(m.tree):
            if (
                isinstance(o, ast.Call)
                and ast.unparse(o.func) == "setattr"
                and ast.unparse(o.args[0]) in ours
            ):
                res.append(f"memtrain/{k}.py: attaches to {ast.unparse(o.args[0])} by setattr: use @patch")
    return res


def comment_of(line: int, source: list[str]) -> str:
    "What is said of line number `line` of `source`: behind its code, or in the lines of comment above it."
    if said := source[line - 1].partition("  # ")[2].strip():
        return said
    above = itertools.takewhile(lambda o: o.startswith("#"), map(str.strip, source[line - 2 :: -1]))
    return " ".join(o.lstrip("# ") for o in [*above][::-1])


def option_fields(cls: ast.ClassDef, source: list[str]) -> dict[str, tuple[str, str]]:
    "{field: (what its comment says, its default)} of a class of settings."
    named = [o for o in cls.body if isinstance(o, ast.AnnAssign) and isinstance(o.target, ast.Name)]
    return {
        o.target.id: (comment_of(o.lineno, source), ast.unparse(o.value) if o.value else "") for o in named
    }


def check_options(root: Path, modules: dict[str, Module]) -> list[str]:
    """An option is declared once: no two classes of settings say the same of one name and give it the same
    default, and no function lists again what a class declares."""
    declared, settings, res = {}, {}, []
    for k, m in modules.items():
        lines = m.source.splitlines()
        for cls in m.classes():
            is_dataclass = any("dataclass" in ast.unparse(o) for o in cls.decorator_list)
            if is_dataclass and (SETTINGS.search(cls.name) or k == "cli"):
                found = settings[f"{k}.{cls.name}"] = option_fields(cls, lines)
                for name, said in found.items():
                    declared.setdefault((name, said), []).append(f"{k}.{cls.name}")
    for (name, _), homes in declared.items():
        if len(homes) > 1:
            twice = " and in ".join(homes)
            res.append(
                f"memtrain: the option {name} is declared in {twice}: let one inherit it from the other"
            )
    functions = [(k, f) for k, m in modules.items() for f in m.tree.body if isinstance(f, ast.FunctionDef)]
    for (k, f), (home, fields) in itertools.product(functions, settings.items()):
        again = sorted({a.arg for a in f.args.args + f.args.kwonlyargs} & fields.keys())
        if len(again) >= SHARED:
            listed = f"{len(again)} options of {home} again ({', '.join(again)})"
            res.append(f"memtrain/{k}.py: {f.name} lists {listed}: take them from there")
    return res


CHECKS = check_imports, check_private, check_classes, check_options


def findings(root: Path) -> list[str]:
    "A line for everything in the package at `root` that isn't where it belongs."
    modules = read_package(root)
    return [line for check in CHECKS for line in check(root, modules)]


if __name__ == "__main__":
    sys.exit(report(findings(find_root())))
