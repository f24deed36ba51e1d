"Which stored outputs are older than the code they show: each page keeps, by cell, a fingerprint of what its outputs were made by."
import ast,hashlib,re
from functools import lru_cache
from pathlib import Path

KEY = "ran"  # in a notebook's metadata: {cell id: fingerprint}


@lru_cache(maxsize=4)
def definitions(root: Path) -> dict[str, str]:
    "{name: its source, with that of the classes it inherits from} of all that the package at `root` defines, and `memtrain COMMAND` for what a command is made of."
    found,parents,commands = {},{},{}
    for path in sorted((root/"memtrain").glob("*.py")):
        if path.stem == "_modidx": continue
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for o in ast.parse(source).body:
            if isinstance(o, (ast.FunctionDef, ast.ClassDef)):
                found[o.name] = "\n".join(lines[o.lineno - 1:o.end_lineno])
                if isinstance(o, ast.ClassDef): parents[o.name] = [b.id for b in o.bases if isinstance(b, ast.Name)]
            elif isinstance(o, ast.Assign) and isinstance(o.targets[0], ast.Name):
                found[o.targets[0].id] = ast.unparse(o.value)
                if path.stem == "cli" and isinstance(o.value, ast.Dict):
                    for k,v in zip(o.value.keys, o.value.values):
                        if isinstance(k, ast.Constant): commands.setdefault(f"memtrain {k.value}", set()).update(re.findall(r"\w+", ast.unparse(v)))
    def whole(name, seen=()): return found[name] + "".join(whole(b, (*seen, name)) for b in parents.get(name, ()) if b in found and b not in seen)
    res = {o: whole(o) for o in found}
    return res | {k: "".join(res[o] for o in sorted(v) if o in res) for k,v in commands.items()}


def fingerprint(root: Path, source: str) -> str:
    "Of a cell's `source` and of everything of ours that it names, commands included."
    known = definitions(root)
    words = set(re.findall(r"\w+", source))
    shell = "memtrain " if not re.search(r"\b(sh|here)\(", source) else r"(?:memtrain |[\"'])"  # cells that run commands by sh('train …') or here(…)
    commands = {o for o in known if o.startswith("memtrain ") and re.search(rf"{shell}{re.escape(o.partition(' ')[2])}(?![\w-])", source)}
    return hashlib.sha1("".join([source, *(known[o] for o in sorted(words & known.keys() | commands))]).encode()).hexdigest()[:8]


def shows(cell) -> bool:
    "Is `cell` one whose outputs a page shows, and that an ordinary run makes?"
    return cell.cell_type == "code" and bool(cell.get("outputs")) and not {"slow", "cuda", "net"} & cell.directives_.keys()


def note_run(root: Path, nb):
    "Keep in `nb`, which has just been run, what its outputs were made by."
    nb.metadata[KEY] = {c.id: fingerprint(root, c.source) for c in nb.cells if shows(c)}


def stale_cells(root: Path, nb) -> list:
    "The cells of `nb` whose outputs are older than what they show."
    ran = nb.metadata.get(KEY, {})
    return [c for c in nb.cells if shows(c) and ran.get(c.id) != fingerprint(root, c.source)]
