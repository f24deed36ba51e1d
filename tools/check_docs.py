"""Find what Quarto passes over in silence: broken links, stale outputs, names never shown, typos in
_quarto.yml. Needs no Quarto; `--build` also prepares every page, renders it and checks what came of it."""

import ast, configparser, json, re, sys, tempfile
from pathlib import Path

import yaml

from check_sync import copy_tree, run_in_copy
from common import cell_name, find_root, home, page_name, pages as book_pages, read_page, report
from stale import stale_cells

EXPORTS = {"export", "exports"}
DEFS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
FUNCS = ast.FunctionDef, ast.AsyncFunctionDef
MACHINE_PATH = re.compile(
    r"(?<![\w.~])(/home/\w|/root\b|/Users/\w|/tmp/|/work/|/var/folders/|/private/var/|[A-Z]:\\+Users)"
)
KNOWN_KEYS = {
    "": "project website format metadata-files execute lang author toc number-sections bibliography filters brand",
    "project": "type title output-dir lib-dir resources render preview pre-render post-render execute-dir",
    "website": "title image description favicon site-url site-path repo-url repo-subdir repo-branch repo-actions repo-link-target repo-link-rel "
    "reader-mode google-analytics cookie-consent search navbar sidebar body-header body-footer margin-header margin-footer "
    "page-navigation back-to-top-navigation bread-crumbs page-footer comments open-graph twitter-card other-links code-links "
    "draft-mode drafts announcement llms-txt",
    "website.sidebar": "id title logo logo-alt logo-href search tools contents style background foreground border alignment "
    "collapse-level pinned header footer",
    "website.twitter-card": "title description image image-alt card-style creator site",
    "website.navbar": "title logo logo-alt logo-href background foreground search left right pinned collapse collapse-below "
    "tools-collapse toggle-position",
    "format": "html",
    "format.html": "theme css toc toc-depth toc-location toc-title toc-expand number-sections code-fold code-summary code-tools code-copy "
    "code-overflow code-line-numbers code-link code-annotations fig-dpi fig-width fig-height fig-format fig-align "
    "fig-responsive fig-cap-location tbl-cap-location anchor-sections link-external-icon link-external-newwindow "
    "highlight-style mainfont monofont fontsize linestretch max-width grid page-layout smooth-scroll "
    "lightbox embed-resources self-contained html-math-method df-print include-in-header include-before-body "
    "include-after-body email-obfuscation citations-hover footnotes-hover crossrefs-hover keep-md",
}


# --- markdown ------------------------------------------------------------------------------------


def without_code(md: str) -> str:
    "`md` without fenced blocks, inline code and comments: what is left can hold links and headings."
    md = re.sub(r"^(```+|~~~+).*?^\1\s*$", "", md, flags=re.M | re.S)
    md = re.sub(r"<!--.*?-->", "", md, flags=re.S)
    return re.sub(r"(`+)[^`].*?\1", "", md, flags=re.S)


def links(md: str) -> list[tuple[str, bool]]:
    "(target, is an image) of every link in `md`."
    md, res = without_code(md), []
    for bang, url in re.findall(r"(!?)\[(?:[^\[\]]|\[[^\]]*\](?:\([^)]*\))?)*\]\(<?([^)\s>]+)>?[^)]*\)", md):
        res.append((url, bool(bang)))
    res += [(o, True) for o in re.findall(r"!\[[^\]]*\]\(([^)\s]+)", md) if (o, True) not in res]
    for attr, url in re.findall(r"""<\w[^>]*?\b(href|src)=["']([^"']+)["']""", md):
        res.append((url, attr == "src"))
    res += [(o, False) for o in re.findall(r"^\[[^\]^]+\]:\s*(\S+)", md, re.M)]
    return res


def heading_id(text: str, github: bool = False) -> str:
    "The id that pandoc (Quarto), or GitHub with `github`, gives a heading with `text`."
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"[`*]|(?<!\w)_|_(?!\w)", "", text).strip().lower()
    if github:
        return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))
    text = re.sub(r"\s+", "-", re.sub(r"[^\w\s.-]", "", text))
    return re.sub(r"^[^a-z]+", "", text) or "section"


def anchors(md: str, github: bool = False) -> set[str]:
    "Every id that can be linked to in `md`."
    res, seen = set(), {}
    md = re.sub(r"^(```+|~~~+).*?^\1\s*$", "", md, flags=re.M | re.S)
    for text in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", md, re.M):
        m = re.search(r"\s*\{#([\w.:-]+)[^}]*\}$", text)
        if m:
            res.add(m.group(1))
            continue
        o = heading_id(re.sub(r"\s*\{[^}]*\}$", "", text), github)
        n = seen[o] = seen.get(o, -1) + 1
        res.add(f"{o}-{n}" if n else o)
    return (
        res
        | set(re.findall(r"""(?:\bid|\bname)=["']([^"']+)["']""", md))
        | set(re.findall(r"\]\{#([\w.:-]+)", md))
    )


# --- pages ---------------------------------------------------------------------------------------


class Page:
    "A notebook, with what the checks ask of it."

    def __init__(self, path: Path):
        self.path, self.nb = path, read_page(path)
        self.cells, self.module = self.nb.cells, home(path, self.nb)
        self.name = page_name(path)

    def code(self):
        return [o for o in self.cells if o.cell_type == "code"]

    def exported(self):
        return [o for o in self.code() if EXPORTS & o.directives_.keys()]

    def markdown(self) -> str:
        "All its prose, and markdown that its code printed."
        parts = []
        for c in self.cells:
            if c.cell_type == "markdown":
                parts.append(c.source)
            parts += [
                "".join(o["data"]["text/markdown"])
                for o in c.get("outputs", [])
                if "text/markdown" in o.get("data", {})
            ]
        return "\n\n".join(parts)

    def anchors(self) -> set[str]:
        "Its headings, and the names that nbdev documents on it."
        names = [o for c in self.exported() for o in public_defs(c)]
        names = [o.name for o in names] + [
            f"{o.name}.{m.name}" for o in names if isinstance(o, ast.ClassDef) for m in methods(o)
        ]
        printed = "".join(
            "".join(o["data"].get("text/html", ""))
            for c in self.cells
            for o in c.get("outputs", [])
            if "data" in o
        )
        return (
            anchors(self.markdown())
            | {o.lower() for o in names}
            | set(names)
            | set(re.findall(r"""<\w[^>]*\bid=["']([^"']+)["']""", printed))
        )


def parsed(cell) -> list[ast.stmt]:
    "The statements of `cell`; none where it isn't plain Python."
    try:
        return ast.parse(cell.source).body
    except SyntaxError:
        return []


def public_defs(cell) -> list:
    "Functions and classes that `cell` makes public, `@patch`ed methods included."
    return [o for o in parsed(cell) if isinstance(o, DEFS) and not o.name.startswith("_")]


def patches(node) -> bool:
    "Is `node` a method that `@patch` gives to a class?"
    return any(getattr(o, "id", "") == "patch" for o in node.decorator_list)


def methods(cls: ast.ClassDef) -> list:
    "Public methods of `cls`; a setter has its getter's docs."
    return [
        o
        for o in cls.body
        if isinstance(o, FUNCS)
        and not o.name.startswith("_")
        and not any(getattr(d, "attr", "") in ("setter", "deleter") for d in o.decorator_list)
    ]


def assigned(cell) -> list[str]:
    "Public names that `cell` assigns at its top level."
    targets = [
        t
        for o in parsed(cell)
        if isinstance(o, (ast.Assign, ast.AnnAssign))
        for t in getattr(o, "targets", [getattr(o, "target", None)])
    ]
    names = [
        n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    return [o for o in names if not o.startswith("_")]


def texts(output) -> str:
    "The text of one stored `output`."
    parts = [output.get("text", "")] + [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
    return "\n".join("".join(o) for o in parts)


# --- what can be wrong ---------------------------------------------------------------------------


def check_links(root: Path, pages: list[Page]) -> list[str]:
    "Links between pages, to files and to headings; images."
    docs = {o.path: (o.name, o.markdown()) for o in pages}
    docs |= {o: (o.name, o.read_text(encoding="utf-8")) for o in sorted(root.glob("*.md"))}
    ids = {o.path: o.anchors() for o in pages}
    res = []
    for path, (name, md) in docs.items():
        for url, image in links(md):
            if re.match(r"[a-z][a-z0-9+.-]*:|//", url, re.I):
                continue
            what = broken(root, path, url, image, ids)
            if what:
                res.append(f"{name}: {what}")
    return res


def broken(root: Path, path: Path, url: str, image: bool, ids: dict) -> str | None:
    "What is wrong with the relative `url` in the document at `path`, if anything."
    file, _, frag = url.partition("#")
    target = (path.parent / file).resolve() if file else path
    nbs = root / "nbs"
    if not target.exists():
        if image:
            return f"image {url} isn't there: add the file, or take it out"
        return f"link to {url}, which isn't there: correct it" + (
            " (link to the notebook, not to its .html)" if file.endswith(".html") else ""
        )
    if path.is_relative_to(nbs) and not target.is_relative_to(nbs):
        return f"link to {url}, which lies outside nbs/ and so isn't on the site: link to its page on the repository's host"
    if not frag:
        return None
    if target not in ids and target.suffix == ".md":
        ids[target] = anchors(target.read_text(encoding="utf-8"), github=True)
    if target in ids and frag not in ids[target]:
        return f"link to {url}, but {target.name} has no heading with the id {frag}: correct it"


def check_outputs(root: Path, pages: list[Page]) -> list[str]:
    "Stored errors and stderr, paths of one machine, notebooks that were never run."
    res = []
    for page in pages:
        for c in page.cells:
            where = cell_name(page.path, c)
            found = [(c.source, "source")] + [(texts(o), "output") for o in c.get("outputs", [])]
            for text, kind in found:
                m = MACHINE_PATH.search(text)
                hit = m.group(0) if m else str(root) if len(root.parts) > 2 and str(root) in text else None
                if hit:
                    res.append(
                        f"{where}: its {kind} has a path of one machine, {hit}: use a relative path or a temporary folder, and run it again"
                    )
            for o in c.get("outputs", []):
                if o.get("output_type") == "error":
                    res.append(
                        f"{where}: a stored error, {o.get('ename')}: repair the cell and run 'make run NB={page.name}'"
                    )
                if o.get("name") == "stderr":
                    res.append(
                        f"{where}: its output has stderr: silence what writes there and run 'make run NB={page.name}'"
                    )
        run = [
            c
            for c in page.code()
            if not {"export", "exports", "exporti", "hide", "test", "default_exp"} & c.directives_.keys()
            and c.source.strip()
        ]
        if run and not any(c.get("outputs") for c in page.code()):
            res.append(f"{page.name}: no cell has an output: run 'make run NB={page.name}'")
    return res


def check_titles(root: Path, pages: list[Page]) -> list[str]:
    "A title with a subtitle, in a cell of their own; a module named as its page."
    res = []
    for page in pages:
        title = next((c for c in page.cells if c.cell_type == "markdown"), None)
        lines = title.source.strip().splitlines() if title else []
        if not lines or not re.match(r"# \S", lines[0]) or not any(re.match(r"> \S", o) for o in lines):
            res.append(
                f"{page.name}: its first text cell isn't '# Title' and '> one-line subtitle': write them"
            )
        elif any(o.strip() and not re.match(r"# |> ", o) for o in lines):
            res.append(
                f"{page.name}: the title cell has more than title and subtitle, and the site leaves the rest out: move it to the next cell"
            )
        m = re.fullmatch(r"\d\d_(\w+)", page.path.stem)
        own = [o.directives_["default_exp"][0] for o in page.code() if "default_exp" in o.directives_]
        if m and own and own[0] != m.group(1):
            res.append(
                f"{page.name}: its default_exp is {own[0]}: make it '#| default_exp {m.group(1)}', or rename the notebook"
            )
    numbers = [o.path.name[:2] for o in pages if o.path.name[:2].isdigit()]
    res += [
        f"nbs: the number {n} is given twice: nbdev exports by the names of files"
        for n in sorted({o for o in numbers if numbers.count(o) > 1})
    ]
    return res


def arguments(fn) -> list[ast.arg]:
    "Arguments of `fn` that need a type."
    a = fn.args
    return [o for o in a.posonlyargs + a.args + a.kwonlyargs if o.arg not in ("self", "cls")]


def check_types(where: str, cell) -> list[str]:
    "Types of the arguments of everything public in `cell`; docstrings are ruff's matter."
    res = []
    for o in public_defs(cell):
        # of a private class
        if patches(o) and (
            o.args.args[0].annotation is not None and ast.unparse(o.args.args[0].annotation).startswith("_")
        ):
            continue
        inside = [
            m
            for m in getattr(o, "body", [])
            if isinstance(o, ast.ClassDef)
            and isinstance(m, FUNCS)
            and (m in methods(o) or m.name == "__init__")
        ]
        for f in inside if isinstance(o, ast.ClassDef) else [o]:
            name = f"{o.name}.{f.name}" if inside else o.name
            res += [
                f"{where}: argument `{a.arg}` of `{name}` has no type: annotate it"
                for a in arguments(f)
                if a.annotation is None
            ]
    return res


def mentions(page: Page, name: str, home) -> bool:
    "Is `name` used or spoken of on `page`, beside its own definition in cell `home`, tests and hidden cells?"
    word = re.compile(rf"\b{re.escape(name)}\b")
    for c in page.cells:
        if {"test", "hide"} & c.directives_.keys():
            continue
        if c is not home:
            if word.search(c.source):
                return True
            continue
        for o in parsed(c):
            own = (
                getattr(o, "name", None) == name
                or isinstance(o, (ast.Assign, ast.AnnAssign))
                and name in assigned(c)
            )
            if not own and word.search(ast.get_source_segment(c.source, o) or ""):
                return True
    return False


def check_names(root: Path, pages: list[Page]) -> list[str]:
    "Every public name is typed, and shown on its page."
    res = []
    for page in pages:
        for c in page.exported():
            where = cell_name(page.path, c)
            res += check_types(where, c)
            for name in [o.name for o in public_defs(c) if not patches(o)] + assigned(c):
                if "hide" in c.directives_:
                    res.append(
                        f"{where}: public `{name}` is defined in a hidden cell: take '#| hide' out, or use '#| exporti'"
                    )
                elif not mentions(page, name, c):
                    res.append(
                        f"{where}: public `{name}` is never shown on its page: add an example, or a _ before its name"
                    )
    return res


def mapping(conf, key: str) -> dict:
    "The mapping at the dotted `key` of `conf`, empty where there is none."
    for o in key.split("."):
        conf = conf.get(o, {}) if isinstance(conf, dict) else {}
    return conf if isinstance(conf, dict) else {}


def named_files(item) -> list[str]:
    "Every file that a sidebar's or navbar's `item` names."
    if isinstance(item, str):
        return [item]
    if isinstance(item, list):
        return [f for o in item for f in named_files(o)]
    if not isinstance(item, dict):
        return []
    return [
        f
        for k in ("href", "file", "contents", "menu", "left", "right")
        if k in item
        for f in named_files(item[k])
    ]


def check_quarto(root: Path, pages: list[Page]) -> list[str]:
    "Keys and files of _quarto.yml, the link to it, and a place in the sidebar for every notebook."
    link, path = root / "nbs/_quarto.yml", root / "_quarto.yml"
    if not path.is_file():
        return ["_quarto.yml: isn't there: restore it"]
    try:
        conf = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as e:
        return [f"_quarto.yml: not YAML: correct it ({' '.join(str(e).split())})"]
    res = []
    if not link.is_symlink() or link.resolve() != path.resolve():
        res.append(
            "nbs/_quarto.yml: isn't a link to ../_quarto.yml, so nbdev would write its own: ln -sfn ../_quarto.yml nbs/_quarto.yml"
        )
    for key, known in KNOWN_KEYS.items():
        for o in mapping(conf, key) if key else conf:
            if o not in known.split():
                res.append(
                    f"_quarto.yml: unknown key {key + '.' if key else ''}{o}: Quarto ignores it; correct or remove it"
                )
    sidebar = named_files(mapping(conf, "website.sidebar").get("contents", []))
    html, project, web = mapping(conf, "format.html"), mapping(conf, "project"), mapping(conf, "website")
    files = (
        sidebar
        + named_files(mapping(conf, "website.navbar"))
        + [
            o
            for k in ("css", "include-in-header", "include-before-body", "include-after-body")
            for o in named_files(html.get(k, []))
        ]
    )
    files += named_files(project.get("resources", [])) + [
        web[k] for k in ("favicon", "image") if isinstance(web.get(k), str)
    ]
    for o in dict.fromkeys(files):
        if re.match(r"[a-z][a-z0-9+.-]*:|#", o) or o == "auto":
            continue
        if not any((root / "nbs").glob(o.partition("#")[0])):
            res.append(f"_quarto.yml: names {o}, which isn't in nbs/: correct it, or add the file")
    for page in pages:
        if page.path.relative_to(root / "nbs").as_posix() not in sidebar:
            res.append(
                f"{page.name}: isn't in the sidebar: add it under website.sidebar.contents in _quarto.yml"
            )
    return res


def check_addresses(root: Path, pages: list[Page]) -> list[str]:
    "One repository and one address of the site in settings.ini, _quarto.yml and pyproject.toml."
    conf = configparser.ConfigParser()
    conf.read(root / "settings.ini", encoding="utf-8")
    conf, quarto, project = conf["DEFAULT"], root / "_quarto.yml", root / "pyproject.toml"
    site, repo = conf.get("doc_host", "") + conf.get("doc_baseurl", ""), conf.get("git_url", "")
    wanted = {
        ("_quarto.yml", "website.site-url"): site,
        ("_quarto.yml", "website.repo-url"): repo,
        ("_quarto.yml", "website.repo-branch"): conf.get("branch"),
        ("_quarto.yml", "website.repo-subdir"): conf.get("nbs_path"),
    }
    try:
        web = mapping(yaml.safe_load(quarto.read_text(encoding="utf-8")), "website")
    except (OSError, yaml.YAMLError):
        web = {}  # check_quarto says it
    found = {k: web.get(k[1].partition(".")[2]) for k in wanted}
    if project.is_file():
        text = project.read_text(encoding="utf-8")
        for name, value in (("Homepage", site), ("Repository", repo)):
            m = re.search(rf'^{name}\s*=\s*"([^"]*)"', text, re.M)
            (
                wanted["pyproject.toml", f"project.urls.{name}"],
                found["pyproject.toml", f"project.urls.{name}"],
            ) = value, m and m[1]
    return [
        f"{file}: {key} is {found[file, key]}, settings.ini makes it {value}: correct one of them"
        for (file, key), value in wanted.items()
        if found[file, key] not in (None, value)
    ]


def check_stale(root: Path, pages: list[Page]) -> list[str]:
    "Stored outputs that are older than the code they show, or than the calculator that they are."
    made = root / "nbs/assets/calculator.html"
    newest = made.read_text(encoding="utf-8").strip() if made.is_file() else ""
    shown = [
        (page, c, texts(o))
        for page in pages
        for c in page.code()
        for o in c.get("outputs", [])
        if 'class="mt-calc"' in texts(o)
    ]
    old = [
        f"{cell_name(page.path, c)}: the calculator is older than nbs/assets/calculator.html: run 'make run NB={page.name}'"
        for page, c, text in shown
        if newest not in text
    ]
    return old + [
        f"{page.name}: {len(found)} outputs are older than the code they show, first that of cell {found[0].idx_ + 1}: run 'make run NB={page.name}'"
        for page in pages
        if (found := stale_cells(root, page.nb))
    ]


CHECKS = check_addresses, check_links, check_outputs, check_titles, check_names, check_quarto, check_stale


def findings(root: Path) -> list[str]:
    "Everything that reading the project at `root` finds wrong, a line each."
    root = Path(root).resolve()
    res, pages = [], []
    for o in book_pages(root):
        try:
            pages.append(Page(o))
        except ValueError as e:
            res.append(f"{page_name(o)}: not a notebook: restore it ({e})")
    return res + [line for check in CHECKS for line in check(root, pages)]


# --- does it render ------------------------------------------------------------------------------

# In a copy, in a process of its own.
PROC = "from nbdev.serve import proc_nbs\nif __name__ == '__main__': proc_nbs(n_workers={workers})\n"


def last_line(text: str) -> str:
    "The last line of a traceback: what went wrong."
    return (text.strip().splitlines() or ["no message"])[-1]


def proc_name(path: Path) -> str:
    "How the page is called that nbdev prepared as `path`."
    return "nbs/" + path.as_posix().rpartition("/_proc/")[2]


def build_findings(root: Path, workers: int = 2) -> list[str]:
    """What goes wrong when nbdev prepares the pages of `root` for the site, and what is wrong with them when
    they are rendered as far as that goes without Quarto."""
    from check_site import check_site, render

    root = Path(root).resolve()
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp).resolve() / root.name
        copy_tree(root, copy)
        script = Path(tmp) / "proc.py"
        script.write_text(PROC.format(workers=workers))
        res = run_in_copy(copy, str(script))
        if res.returncode:
            return [f"nbs/: nbdev can't prepare the pages for the site: {last_line(res.stderr)}"]
        pages = sorted((copy / "_proc").rglob("*.ipynb"))
        warned = [
            f"nbs/: nbdev warns while it prepares the pages: {o.strip()}"
            for o in res.stderr.splitlines()
            if "Warning:" in o
        ]
        missing = {page_name(o) for o in book_pages(root)} - {proc_name(o) for o in pages}
        render(copy / "_proc", Path(tmp) / "site")
        return (
            warned
            + [f"{o}: nbdev made no page of it: repair the notebook" for o in sorted(missing)]
            + site_findings(copy)
            + check_site((Path(tmp) / "site").resolve())
        )


def site_findings(root: Path) -> list[str]:
    """What the pages that nbdev prepared in `root` lack: a heading for each public name to link to, and what
    tools/site_pages.py gives them: links to Colab and pictures."""
    conf, res, index = configparser.ConfigParser(), [], {}
    exec((root / "memtrain/_modidx.py").read_text(encoding="utf-8"), index)
    urls = [
        url
        for names in index["d"]["syms"].values()
        for k, (url, _) in names.items()
        if not re.search(r"\._|\.\w+\.\w+\.\w+", k)
    ]
    conf.read(root / "settings.ini", encoding="utf-8")
    repo = re.sub(r"^https://github.com/", "", conf["DEFAULT"].get("git_url", ""))
    for path in sorted((root / "_proc").rglob("*.ipynb")):
        if path.parent.name == "proofs":
            continue
        nb = json.loads(path.read_text(encoding="utf-8"))
        text = ["".join(o["source"]) for o in nb["cells"]]
        front = (
            yaml.safe_load(text[0].strip().strip("-"))
            if text and nb["cells"][0]["cell_type"] == "raw"
            else {}
        )
        heads = anchors(
            "\n\n".join(
                [
                    *text,
                    *(
                        "".join(v)
                        for c in nb["cells"]
                        for o in c.get("outputs", [])
                        for k, v in o.get("data", {}).items()
                        if k == "text/markdown"
                    ),
                ]
            )
        )
        # solutions have the names of their pages
        where = (path.relative_to(root / "_proc").parent / str(front.get("output-file"))).as_posix()
        for url in urls:
            file, _, name = url.partition("#")
            if file == where and name not in heads:
                res.append(
                    f"{proc_name(path)}: `{name}` has no heading that links could go to: nbdev shows no documentation of it"
                )
        shown = any("image/png" in o.get("data", {}) for c in nb["cells"] for o in c.get("outputs", []))
        if shown and not (root / "_proc" / str(front.get("image")).lstrip("/")).is_file():
            res.append(f"{proc_name(path)}: its first figure isn't its picture: see procs in settings.ini")
        if path.stem == "index":
            continue
        link = f"https://colab.research.google.com/github/{repo}/blob/{conf['DEFAULT'].get('branch')}/{proc_name(path)}"
        if not any(f"]({link})" in o for o in text):
            res.append(f"{proc_name(path)}: no link to {link}: see procs in settings.ini")
    return res


def main() -> int:
    "Print the findings, with `--build` those of preparing and rendering the pages too."
    root = find_root()
    return report(findings(root) or (build_findings(root) if "--build" in sys.argv[1:] else []))


if __name__ == "__main__":
    sys.exit(main())
