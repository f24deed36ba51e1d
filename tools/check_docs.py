"""What is wrong with the pages before Quarto sees them. Each is prepared as nbdev does it, which takes some
seconds for all, and what Quarto is handed is read: links and what they lead to, options of cells, words for
pictures. Then what is stored: errors, paths of one machine, outputs older than their code. What Quarto
makes of it isn't checked here: tools/check_site.py reads the site that it built."""

import ast, json, os, re, sys
from functools import cached_property
from itertools import takewhile
from pathlib import Path

import yaml
from execnb.nbio import read_nb
from nbdev.config import get_config
from nbdev.processors import FilterDefaults

from common import (
    DEFS,
    anchors,
    cell_name,
    definitions,
    find_root,
    is_public,
    methods,
    page_name,
    pages as book_pages,
    read_page,
    report,
    symbol,
    tokens,
)
from site_pages import site_name
from stale import stale_cells

EXPORTS = {"export", "exports"}
NOT_SHOWN = {"export", "exports", "exporti", "hide", "test", "default_exp"}
HTML_LINK = re.compile(r"""<\w[^>]*?\b(?:href|src)=["']([^"']+)["']""")
MACHINE_PATH = re.compile(
    r"(?<![\w.~])(/home/\w|/root\b|/Users/\w|/tmp/|/work/|/var/folders/|/private/var/|[A-Z]:\\+Users)"
)


class Page:
    "A notebook as it is written, and as it is prepared for the site."

    def __init__(self, path: Path):
        self.path, self.name, self.nb = path, page_name(path), read_page(path)
        self.cells = self.nb.cells
        self.code = [o for o in self.cells if o.cell_type == "code"]
        self.exported = [o for o in self.code if EXPORTS & o.directives_.keys()]

    @cached_property
    def prepared(self):
        "Its cells, as nbdev hands them to Quarto after all processors."
        nb = read_nb(self.path)
        FilterDefaults()(nb)
        return nb.cells

    @cached_property
    def markdown(self) -> str:
        "The prose of the prepared page, and the markdown that its code printed."
        printed = [
            o.get("data", {}).get("text/markdown", "") for c in self.prepared for o in c.get("outputs", [])
        ]
        prose = [c.source for c in self.prepared if c.cell_type == "markdown"]
        return "\n\n".join([*prose, *map("".join, printed)])


def texts(output) -> str:
    "The text of one stored `output`."
    parts = [output.get("text", "")] + [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
    return "\n".join("".join(o) for o in parts)


# --- what Quarto is handed -----------------------------------------------------------------------


def links(md: str) -> list[tuple[str, bool]]:
    "(target, whether it is in HTML that is made for the site) of every link and image in `md`."
    found = []
    for o in tokens(md):
        if o.type in ("link_open", "image"):
            found.append((o.attrGet("href") or o.attrGet("src"), False))
        elif o.type in ("html_inline", "html_block") or o.type == "fence" and o.info == "{=html}":
            found += [(url, o.type == "fence") for url in HTML_LINK.findall(o.content)]
    return found


def check_links(root: Path, pages: list[Page]) -> list[str]:
    "Links between pages, to files, to headings, and to the repository."
    docs = {o.path: (o.name, o.markdown) for o in pages}
    docs |= {o: (o.name, o.read_text(encoding="utf-8")) for o in sorted(root.glob("*.md"))}
    ids = {path: anchors(md, github=path.suffix == ".md") for path, (_, md) in docs.items()}
    made = {root / "nbs" / site_name(page_name(o.path).removeprefix("nbs/")): o.path for o in pages}
    res = []
    for path, (name, md) in docs.items():
        found = [broken(root, path, url, ids, made if in_html else {}) for url, in_html in links(md)]
        res += [f"{name}: {what}" for what in dict.fromkeys(found) if what]
    return res


def broken(root: Path, path: Path, url: str, ids: dict, made: dict) -> str | None:
    """What is wrong with `url` in the document at `path`, if anything; `made` has the notebooks by their
    pages."""
    conf = get_config()
    hosted = f"{conf.git_url}/blob/{conf.branch}/"
    file, _, anchor = url.partition("#")
    if file.startswith(hosted):
        target = root / file.removeprefix(hosted)
        return None if target.exists() else f"link to {url}, which isn't in the repository: correct it"
    if re.match(r"[a-z][a-z0-9+.-]*:|//", url, re.I):
        return None
    target = (path.parent / file).resolve() if file else path
    target = made.get(target, target)
    if not target.exists():
        return f"link to {url}, which isn't there: correct it (pages are linked to by their notebooks)"
    nbs = root / "nbs"
    if path.is_relative_to(nbs) and not target.is_relative_to(nbs):
        return (
            f"link to {url}, which lies outside nbs/ and so isn't on the site: link to it on the repository's"
            " host"
        )
    if anchor and target in ids and anchor not in ids[target]:
        return f"link to {url}, but {target.name} has no heading with the id {anchor}: correct it"


class UniqueKeys(yaml.SafeLoader):
    "YAML as Quarto reads it: a key that is given twice is an error."

    def construct_mapping(self, node, deep=False):
        keys = [k.value for k, _ in node.value]
        if twice := [k for k in keys if keys.count(k) > 1]:
            raise yaml.YAMLError(f"duplicated key {twice[0]}")
        return super().construct_mapping(node, deep)


def check_options(root: Path, pages: list[Page]) -> list[str]:
    "Options of cells that Quarto can't read, and pictures without words."
    res = []
    for page in pages:
        for c in page.prepared:
            lines = [o[2:] for o in takewhile(lambda o: o.startswith("#|"), c.source.splitlines())]
            try:
                options = yaml.load("\n".join(lines), UniqueKeys) or {}
            except yaml.YAMLError as e:
                res.append(
                    f"{page.name}: options that Quarto can't read, {' '.join(str(e).split())}: {lines}"
                )
                continue
            pictures = [k for o in c.get("outputs", []) for k in o.get("data", {}) if k.startswith("image/")]
            if pictures and "fig-alt" not in options:
                res.append(
                    f"{page.name}: a figure without alt text: add '#| fig-alt' to its cell {c.get('id')}"
                )
        silent = [o for o in re.findall(r"<img\b[^>]*>", page.markdown) if "alt=" not in o]
        silent += re.findall(r"!\[\]\(([^)\s]+)[^)]*\)(?!\{fig-alt=)", page.markdown)
        res += [f"{page.name}: an image without alt text, {o}: say what it shows" for o in silent]
    return res


def check_sidebar(root: Path, pages: list[Page]) -> list[str]:
    "Files that _quarto.yml names, the link to it, a place in the sidebar for every page, a number for each."
    link, path = root / "nbs/_quarto.yml", root / "_quarto.yml"
    text = path.read_text(encoding="utf-8")
    res = []
    if not link.is_symlink() or link.resolve() != path.resolve():
        res.append(
            "nbs/_quarto.yml: isn't a link to ../_quarto.yml, so nbdev would write its own: "
            "ln -sfn ../_quarto.yml nbs/_quarto.yml"
        )
    named = [o.lstrip("/") for o in re.findall(r"[\w/.-]+\.(?:ipynb|svg|png|css|scss)\b", text)]
    for o in dict.fromkeys(named):
        if not (root / "nbs" / o).is_file():
            res.append(f"_quarto.yml: names {o}, which isn't in nbs/: correct it, or add the file")
    for page in pages:
        if page.path.relative_to(root / "nbs").as_posix() not in named:
            res.append(f"{page.name}: isn't in the sidebar: add it under website.sidebar in _quarto.yml")
    numbers = [o.path.name[:2] for o in pages if o.path.name[:2].isdigit()]
    twice = sorted({o for o in numbers if numbers.count(o) > 1})
    return res + [f"nbs: the number {n} is given twice: nbdev exports by the names of files" for n in twice]


# --- what a page says and stores -----------------------------------------------------------------


def check_titles(root: Path, pages: list[Page]) -> list[str]:
    "A title with a subtitle, in a cell of their own; a module named as its page."
    res = []
    for page in pages:
        title = next((c.source.strip().splitlines() for c in page.cells if c.cell_type == "markdown"), [])
        if not re.match(r"# \S.*\n+> \S", "\n".join(title)):
            res.append(
                f"{page.name}: its first text cell isn't '# Title' and '> one-line subtitle': write them"
            )
        elif any(o.strip() and not re.match(r"# |> ", o) for o in title):
            res.append(
                f"{page.name}: the title cell has more than title and subtitle, and the site leaves the rest"
                " out: move it to the next cell"
            )
        own = next(
            (o.directives_["default_exp"][0] for o in page.code if "default_exp" in o.directives_), None
        )
        if own and page.path.stem[3:] != own and page.path.stem != own:
            res.append(
                f"{page.name}: its default_exp is {own}: give it the name of the notebook, or rename that"
            )
    return res


def check_outputs(root: Path, pages: list[Page]) -> list[str]:
    """Stored errors and stderr, paths of one machine, notebooks that were never run, outputs older than
    their code."""
    res = []
    for page in pages:
        again = f"run 'make run NB={page.name}'"
        for c in page.cells:
            where, outputs = cell_name(page.path, c), c.get("outputs", [])
            for kind, text in [("source", c.source), *(("output", texts(o)) for o in outputs)]:
                found = MACHINE_PATH.search(text)
                if found or str(root) in text:
                    path = found[0] if found else root
                    res.append(
                        f"{where}: its {kind} has a path of one machine, {path}: use a relative one, and"
                        f" {again}"
                    )
            for o in outputs:
                if o.get("output_type") == "error":
                    res.append(f"{where}: a stored error, {o.get('ename')}: repair the cell and {again}")
                if o.get("name") == "stderr":
                    res.append(f"{where}: its output has stderr: silence what writes there and {again}")
        examples = [c for c in page.code if c.source.strip() and not NOT_SHOWN & c.directives_.keys()]
        if examples and not any(c.get("outputs") for c in page.code):
            res.append(f"{page.name}: no cell has an output: {again}")
        if old := stale_cells(root, page.nb):
            first = f"first that of cell {old[0].idx_ + 1}"
            res.append(f"{page.name}: {len(old)} outputs are older than the code they show, {first}: {again}")
    return res


def check_calculator(root: Path, pages: list[Page]) -> list[str]:
    "A page shows the calculator that there is."
    made = root / "nbs/assets/calculator.html"
    newest = made.read_text(encoding="utf-8").strip() if made.is_file() else ""
    shown = [(page, c, texts(o)) for page in pages for c in page.code for o in c.get("outputs", [])]
    return [
        f"{cell_name(page.path, c)}: the calculator is older than nbs/assets/calculator.html: run 'make run"
        f" NB={page.name}'"
        for page, c, text in shown
        if 'class="mt-calc"' in text and newest not in text
    ]


def check_types(where: str, node) -> list[str]:
    "Types of the arguments of the function or class `node`; docstrings are ruff's matter."
    inside = {symbol(node): node}
    if isinstance(node, ast.ClassDef):
        init = [o for o in node.body if getattr(o, "name", "") == "__init__"]
        inside = {f"{node.name}.{o.name}": o for o in [*methods(node), *init]}
    return [
        f"{where}: argument `{a.arg}` of `{name}` has no type: annotate it"
        for name, f in inside.items()
        for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)
        if a.annotation is None and a.arg not in ("self", "cls")
    ]


def assigned(cell) -> list[str]:
    "Public names that `cell` assigns at its top level."
    nodes = [o for o in parsed(cell) if isinstance(o, (ast.Assign, ast.AnnAssign))]
    targets = [t for o in nodes for t in getattr(o, "targets", None) or [o.target]]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and is_public(n.id)]


def parsed(cell) -> list[ast.stmt]:
    try:
        return ast.parse(cell.source).body
    except SyntaxError:
        return []


def mentions(page: Page, name: str, home) -> bool:
    """Is `name` used or spoken of on `page`, outside of its own definition in cell `home`, tests and
    hidden cells?"""
    word = re.compile(rf"\b{re.escape(name)}\b")
    shown = [c for c in page.cells if not {"test", "hide"} & c.directives_.keys()]
    if any(word.search(c.source) for c in shown if c is not home):
        return True
    others = [
        o
        for o in parsed(home)
        if not isinstance(o, (ast.Assign, ast.AnnAssign)) or name not in assigned(home)
    ]
    others = [o for o in others if getattr(o, "name", None) != name]
    return any(word.search(ast.get_source_segment(home.source, o) or "") for o in others)


def check_names(root: Path, pages: list[Page]) -> list[str]:
    "Every public name is typed, and shown on its page."
    res = []
    for page in pages:
        for c in page.exported:
            where, defined = cell_name(page.path, c), definitions(c.source)
            res += [line for o in defined for line in check_types(where, o)]
            patched = {o.name for o in defined if "patch" in map(ast.unparse, o.decorator_list)}
            names = [o.name for o in parsed(c) if isinstance(o, DEFS) and is_public(o.name)] + assigned(c)
            for name in [o for o in names if o not in patched]:
                if "hide" in c.directives_:
                    res.append(f"{where}: public `{name}` is defined in a hidden cell: take '#| hide' out")
                elif not mentions(page, name, c):
                    res.append(
                        f"{where}: public `{name}` is never shown on its page: add an example, or a _"
                        " before it"
                    )
    return res


def check_results(root: Path, pages: list[Page]) -> list[str]:
    "Commands of stored results: the page or script that measures must be there."
    res = []
    for path in sorted(root.glob("results/*.json")):
        command = json.loads(path.read_text(encoding="utf-8"))["command"]
        gone = [o for o in re.findall(r"[\w./-]+\.(?:ipynb|py)\b", command) if not (root / o).exists()]
        res += [f"results/{path.name}: its command names {o}, which is gone: correct it" for o in gone]
    return res


CHECKS = (
    check_links,
    check_options,
    check_sidebar,
    check_outputs,
    check_calculator,
    check_names,
    check_results,
)


def findings(root: Path) -> list[str]:
    "Everything that is wrong with the pages of the project at `root`, a line each."
    root = Path(root).resolve()
    os.chdir(root)  # where nbdev looks for its settings
    get_config.cache_clear()
    pages, res = [], []
    for o in book_pages(root):
        try:
            pages.append(Page(o))
        except ValueError as e:
            res.append(f"{page_name(o)}: not a notebook: restore it ({e})")
    res += check_titles(root, pages)  # of which the front matter is made, without which no page is prepared
    return res or [line for check in CHECKS for line in check(root, pages)]


if __name__ == "__main__":
    sys.exit(report(findings(find_root())))
