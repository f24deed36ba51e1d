"""Which stored outputs are older than the code they show: each page keeps, by cell, a fingerprint of what
its outputs were made by.

A fingerprint is of what code does: docstrings, comments, annotations, layout and imports don't count, and
every Python gives the same one. The help of a command is made of comments, so that of a command counts
them."""

import ast, hashlib, re
from functools import lru_cache
from pathlib import Path

KEY = "ran"  # in a notebook's metadata: {cell id: fingerprint}
LAYOUT = {"annotation", "returns", "type_comment", "type_params", "type_ignores", "ctx", "kind"}
DOCUMENTED = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef


def essence(code) -> str:
    "What `code`, a source, a tree or a part of one, does."
    if isinstance(code, str):
        try:
            return essence(ast.parse(code))
        except SyntaxError:  # a cell with a magic
            return code
    if isinstance(code, list):
        code = [o for o in code if not isinstance(o, (ast.Import, ast.ImportFrom))]
        return f"[{','.join(essence(o) if isinstance(o, (ast.AST, list)) else repr(o) for o in code)}]"
    parts = {k: v for k, v in ast.iter_fields(code) if k not in LAYOUT and v not in (None, [])}
    if isinstance(code, DOCUMENTED) and ast.get_docstring(code) is not None:
        parts["body"] = parts["body"][1:]
    said = (f"{k}={essence(v) if isinstance(v, (ast.AST, list)) else repr(v)}" for k, v in parts.items())
    return f"{type(code).__name__}({','.join(said)})"


@lru_cache(maxsize=4)
def definitions(root: Path) -> dict[str, str]:
    """{name: what it does, with the classes it inherits from} of all that the package at `root` defines,
    and {`memtrain COMMAND`: the sources of what a command is made of}."""
    found, sources, parents, commands = {}, {}, {}, {}
    for path in sorted((root / "memtrain").glob("*.py")):
        if path.stem == "_modidx":
            continue
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for o in ast.parse(source).body:
            if isinstance(o, (ast.FunctionDef, ast.ClassDef)):
                name, value = o.name, o
                if isinstance(o, ast.ClassDef):
                    parents[name] = [b.id for b in o.bases if isinstance(b, ast.Name)]
            elif isinstance(o, ast.Assign) and isinstance(o.targets[0], ast.Name):
                name, value = o.targets[0].id, o.value
                if path.stem == "cli" and isinstance(value, ast.Dict):
                    for k, v in zip(value.keys, value.values):
                        if isinstance(k, ast.Constant):
                            used = commands.setdefault(f"memtrain {k.value}", set())
                            used.update(re.findall(r"\w+", ast.unparse(v)))
            else:
                continue
            found[name] = essence(value)
            sources[name] = "\n".join(lines[o.lineno - 1 : o.end_lineno])

    def whole(name, of, seen=()):
        inherited = [b for b in parents.get(name, ()) if b in of and b not in seen]
        return of[name] + "".join(whole(b, of, (*seen, name)) for b in inherited)

    made_of = {k: "".join(whole(o, sources) for o in sorted(v) if o in sources) for k, v in commands.items()}
    return {o: whole(o, found) for o in found} | made_of


def fingerprint(root: Path, source: str) -> str:
    "Of a cell's `source` and of everything of ours that it names, commands included."
    known = definitions(root)
    words = set(re.findall(r"\w+", source))
    # cells that run commands by sh('train …') or here(…) name them in quotes
    shell = r"(?:memtrain |[\"'])" if re.search(r"\b(sh|here)\(", source) else "memtrain "
    named = {o: re.escape(o.partition(" ")[2]) for o in known if o.startswith("memtrain ")}
    commands = {o for o, word in named.items() if re.search(rf"{shell}{word}(?![\w-])", source)}
    parts = [essence(source), *(known[o] for o in sorted(words & known.keys() | commands))]
    return hashlib.sha1("".join(parts).encode()).hexdigest()[:8]


def shows(cell) -> bool:
    "Is `cell` one whose outputs a page shows, and that an ordinary run makes?"
    made_by_hand = {"slow", "cuda", "net"} & cell.directives_.keys()
    return cell.cell_type == "code" and bool(cell.get("outputs")) and not made_by_hand


def note_run(root: Path, nb):
    "Keep in `nb`, which has just been run, what its outputs were made by."
    nb.metadata[KEY] = {c.id: fingerprint(root, c.source) for c in nb.cells if shows(c)}


def stale_cells(root: Path, nb) -> list:
    "The cells of `nb` whose outputs are older than what they show."
    ran = nb.metadata.get(KEY, {})
    return [c for c in nb.cells if shows(c) and ran.get(c.id) != fingerprint(root, c.source)]
