"""Hold the house: no circle of imports, no private name across modules, no class in slices, no option
declared twice."""

import ast, itertools, re, sys
from collections import Counter
from dataclasses import dataclass, field
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
    # {module of ours: names taken from it}, those inside functions too
    imports: dict = field(default_factory=dict)

    def classes(self):
        return [o for o in self.tree.body if isinstance(o, ast.ClassDef)]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imports_of(tree: ast.Module, package: str, modules: set[str]) -> dict[str, set]:
    "{module of ours: names taken from it} of everything that `tree` imports."
    found = {}
    for o in ast.walk(tree):
        if isinstance(o, ast.ImportFrom) and (o.level or (o.module or "").split(".")[0] == package):
            home = (o.module or "") if o.level else o.module.partition(".")[2]
            for a in o.names:
                if home:
                    found.setdefault(home, set()).add(a.name)
                # from memtrain import train
                else:
                    found.setdefault(a.name if a.name in modules else "", set()).add(
                        "" if a.name in modules else a.name
                    )
        elif isinstance(o, ast.Import):
            for a in o.names:
                if a.name.startswith(f"{package}."):
                    found.setdefault(a.name.partition(".")[2], set())
    return found


def read_package(root: Path, package: str = "memtrain") -> dict[str, Module]:
    "The modules of the package at `root`, by name."
    files = {o.stem: o for o in sorted((root / package).glob("*.py")) if o.stem != "_modidx"}
    found = {k: Module(k, s := o.read_text(encoding="utf-8"), ast.parse(s)) for k, o in files.items()}
    for m in found.values():
        m.imports = imports_of(m.tree, package, set(files))
    return found


def find_circle(graph: dict[str, set]) -> list[str] | None:
    "A circle in `graph`, {name: those it leads to}, as the names on it; None where there is none."
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name) :] + [name]
        if name in done or name not in graph:
            return None
        path.append(name)
        for o in sorted(graph[name]):
            if found := visit(o):
                return found
        done.add(path.pop())

    return next((c for o in sorted(graph) if (c := visit(o))), None)


def check_imports(modules: dict[str, Module]) -> list[str]:
    "No circle, those inside functions included."
    # __init__ hands names on and __main__ runs the commands: nothing depends on what they take
    graph = {k: set(m.imports) - {"", k} for k, m in modules.items() if k not in ("__init__", "__main__")}
    circle = find_circle(graph)
    return (
        [
            f"memtrain/{circle[0]}.py: imports form a circle, {' → '.join(circle)}: move what they share into a room beneath both"
        ]
        if circle
        else []
    )


def check_private(root: Path, modules: dict[str, Module]) -> list[str]:
    "No private name crosses a module, and no benchmark takes one; a test may use those of its own module."
    res = [
        f"memtrain/{k}.py: takes the private name {n} from {home}: give it a public name, or move it"
        for k, m in modules.items()
        for home, names in m.imports.items()
        for n in sorted(names)
        if is_private(n)
    ]
    for path in sorted((*(root / "tests").glob("test_*.py"), *(root / "benchmarks").glob("*.py"))):
        way = (
            "use what is public, or make it so"
            if path.parent.name == "benchmarks"
            else "test it where it is, or what is public"
        )
        for home, names in imports_of(
            ast.parse(path.read_text(encoding="utf-8")), "memtrain", set(modules)
        ).items():
            if home != path.stem.removeprefix("test_"):
                res += [
                    f"{path.parent.name}/{path.name}: takes the private name {n} from {home}: {way}"
                    for n in sorted(names)
                    if is_private(n)
                ]
    return res


def bases(cls: ast.ClassDef) -> list[str]:
    return [
        o.id if isinstance(o, ast.Name) else o.attr
        for o in cls.bases
        if isinstance(o, (ast.Name, ast.Attribute))
    ]


def check_classes(modules: dict[str, Module]) -> list[str]:
    "No class exists only to be the parent of another, and no chain of our own is deep."
    ours = {o.name: (k, o) for k, m in modules.items() for o in m.classes()}
    words = Counter(w for m in modules.values() for w in re.findall(r"\w+", m.source))
    parents = Counter(b for _, o in ours.values() for b in set(bases(o)))
    slices = [f"{k}.{n}" for n, (k, _) in ours.items() if is_private(n) and parents[n] == 1 and words[n] == 2]
    res = [
        f"memtrain: {len(slices)} private classes exist only to be the parent of one other, at most {MOST_SLICES} may: {', '.join(slices)}: "
        "make each class whole"
    ] * (len(slices) > MOST_SLICES)

    def depth(name, seen=()):
        return 1 + max(
            (depth(b, (*seen, name)) for b in bases(ours[name][1]) if b in ours and b not in seen), default=0
        )

    errors = {
        n
        for n in ours
        if n.endswith("Error") or any(b.endswith(("Error", "Exception")) for b in bases(ours[n][1]))
    }
    for name, (k, _) in ours.items():
        if name not in errors and depth(name) > DEEPEST:
            res.append(
                f"memtrain/{k}.py: {name} is {depth(name)} classes deep, {DEEPEST} are enough: make it whole"
            )
    for k, m in modules.items():
        for o in ast.walk(m.tree):
            if (
                isinstance(o, ast.Call)
                and getattr(o.func, "id", "") == "setattr"
                and isinstance(o.args[0], ast.Name)
                and o.args[0].id in ours
            ):
                res.append(f"memtrain/{k}.py: attaches to {o.args[0].id} by setattr: use @patch")
    return res


def is_dataclass(cls: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(o) for o in cls.decorator_list)


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


def check_options(modules: dict[str, Module]) -> list[str]:
    """An option is declared once: no two classes of settings say the same of one name and give it the same
    default, and no function lists again what a class declares."""
    declared, res = {}, []
    for k, m in modules.items():
        lines = m.source.splitlines()
        for cls in m.classes():
            if not is_dataclass(cls) or not (SETTINGS.search(cls.name) or k == "cli"):
                continue
            for name, said in option_fields(cls, lines).items():
                declared.setdefault((name, said), []).append(f"{k}.{cls.name}")
    res += [
        f"memtrain: the option {name} is declared in {' and in '.join(homes)}: let one inherit it from the other"
        for (name, said), homes in declared.items()
        if len(homes) > 1
    ]
    settings = {}
    for (name, _), homes in declared.items():
        for o in homes:
            settings.setdefault(o, set()).add(name)
    for k, m in modules.items():
        for f in m.tree.body:
            if not isinstance(f, ast.FunctionDef):
                continue
            names = {a.arg for a in f.args.args + f.args.kwonlyargs}
            for home, fields in settings.items():
                if len(both := names & fields) >= SHARED:
                    res.append(
                        f"memtrain/{k}.py: {f.name} lists {len(both)} options of {home} again ({', '.join(sorted(both))}): take them from there"
                    )
    return res


def findings(root: Path) -> list[str]:
    "A line for everything in the package at `root` that isn't where it belongs."
    modules = read_package(root)
    return (
        check_imports(modules)
        + check_private(root, modules)
        + check_classes(modules)
        + check_options(modules)
    )


if __name__ == "__main__":
    sys.exit(report(findings(find_root())))
