"""What the site makes of a notebook beyond nbdev: documentation read from the source (nothing is run), a call in a line that opens to its arguments or its source, folded tests, links that lead somewhere, figures with alt text,
a link that opens the page in Colab, its first figure as its picture."""

import ast, base64, html, json, os, re
from functools import lru_cache
from pathlib import Path
from textwrap import shorten

import yaml
from execnb.nbio import mk_cell
from nbdev.config import get_config
from nbdev.process import Processor

from common import page_name, pages, read_page

HOME = "index"
WIDE = 100  # characters of a line in a signature
LONG = 10  # lines of an example, beyond which what it shows comes first and its code is folded
DEFS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
FENCE = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.M | re.S)
GLOSSARY = "reference/69_glossary.ipynb"
LINK_OR_NAME = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\([^)\s]*[^)]*\)|<a\b.*?</a>|<[^>\n]+>|``.+?``|`([^`\n]+)`", re.S
)
NO_TERMS = re.compile(
    r"^(```+|~~~+).*?^\1\s*$|^(?:#|\||>|:::| {4}|\t)[^\n]*$|<summary>.*?</summary>|\$\$.*?\$\$|\$[^$\n]+\$|"
    + LINK_OR_NAME.pattern,
    re.M | re.S,
)


# --- Colab and pictures ---------------------------------------------------------------------------


def colab_link(conf, name: str) -> str:
    "The address in Colab of notebook `name` of the repository that settings.ini names."
    repo = conf.git_url.removeprefix("https://github.com/").rstrip("/")
    return f"https://colab.research.google.com/github/{repo}/blob/{conf.branch}/{name}"


def colab_line(conf, name: str) -> str:
    "The line under a page's title."
    return f"[Open in Colab]({colab_link(conf, name)}) and run there first: `!pip install git+{conf.git_url}`"


def first_figure(cells) -> str | None:
    "The first png that `cells` show, in base64."
    found = (
        o["data"]["image/png"]
        for c in cells
        for o in c.get("outputs", [])
        if "image/png" in o.get("data", {})
    )
    return next(("".join(o) for o in found), None)


def alt_text(prose: str, heading: str) -> str:
    "What stands for a figure where it can't be seen: the sentence that leads to it, and where it stands."
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", FENCE.sub("", prose))
    lines = [o for o in text.strip().splitlines() if o.strip() and not o.startswith(("#", "|", ">", ":::"))]
    sentences = re.split(r"(?<=[.:?!])\s+", re.sub(r"[`*_]|\$[^$]*\$", "", " ".join(lines[-6:])).strip())
    last = next((o for o in reversed(sentences) if o), "")[:220].rstrip(".: ")
    return (
        (f"Figure in '{heading}': {last}" if last else f"Figure in '{heading}'")
        .replace('"', "'")
        .replace("\\", "")
    )


# --- documentation, from the source ---------------------------------------------------------------


def public(node) -> bool:
    return not node.name.startswith("_")


def methods(cls: ast.ClassDef) -> list:
    "Public methods of `cls`; a setter has its getter's documentation."
    return [
        o
        for o in cls.body
        if isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef))
        and public(o)
        and not any(getattr(d, "attr", "") in ("setter", "deleter") for d in o.decorator_list)
    ]


def symbol(node) -> str:
    "What `node` is called: a method that `@patch` gives to a class has that in front."
    if (
        isinstance(node, DEFS[:2])
        and any(getattr(d, "id", "") == "patch" for d in node.decorator_list)
        and node.args.args[0].annotation is not None
    ):
        return f"{ast.unparse(node.args.args[0].annotation)}.{node.name}"
    return node.name


def defined(source: str) -> list:
    "Functions and classes that a cell with `source` makes public; none where it isn't plain Python."
    try:
        return [
            o
            for o in ast.parse(source).body
            if isinstance(o, DEFS) and public(o) and not symbol(o).startswith("_")
        ]
    except SyntaxError:
        return []


def headings(md: str) -> set[str]:
    "The ids that pandoc gives to the headings of `md`."
    found = re.findall(r"^#{1,6}\s+(.+?)\s*#*$", FENCE.sub("", md), re.M)
    return {
        re.sub(
            r"^[^a-z]+",
            "",
            re.sub(r"\s+", "-", re.sub(r"[^\w\s.-]", "", re.sub(r"[`*]", "", o).strip().lower())),
        )
        for o in found
    }


@lru_cache(maxsize=4)
def anchors(root: Path) -> dict[str, tuple[str, str]]:
    "{public name: (its page, from `nbs` on; its id there)}, methods of classes included."
    found = {}
    for path in pages(root):
        nb = read_page(path)
        taken = set().union(*(headings(c.source) for c in nb.cells if c.cell_type == "markdown"), set())
        for c in nb.cells:
            if (
                c.cell_type != "code"
                or "hide" in c.directives_
                or not {"export", "exports"} & c.directives_.keys()
            ):
                continue
            for o in defined(c.source):
                names = [symbol(o)] + (
                    [f"{o.name}.{m.name}" for m in methods(o)] if isinstance(o, ast.ClassDef) else []
                )
                for name in names:
                    found.setdefault(
                        name, (page_name(path).removeprefix("nbs/"), f"doc-{name}" if name in taken else name)
                    )
    return found


@lru_cache(maxsize=4)
def lines_of(root: Path) -> dict[str, tuple[str, int]]:
    "{public name: (its module's file, its line)}."
    found = {}
    for path in sorted((root / "memtrain").glob("*.py")):
        if path.stem.startswith("_"):
            continue
        for o in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(o, DEFS):
                found.setdefault(symbol(o), (f"memtrain/{path.name}", o.lineno))
    return found


def cut(line: str) -> list[str]:
    "`line` of a signature; where it is too long, its comment goes above it."
    code, sep, comment = line.partition("  # ")
    if len(line) <= WIDE or not sep:
        return [line]
    indent, words, res = re.match(r"\s*", code).group(0) or "    ", comment.split(), []
    while words:
        n = (
            next(
                (i for i in range(1, len(words) + 1) if len(f"{indent}# {' '.join(words[:i])}") > WIDE),
                len(words) + 1,
            )
            - 1
            or 1
        )
        res.append(f"{indent}# {' '.join(words[:n])}")
        words = words[n:]
    return [*res, code]


def signature(source: str, node, name: str | None = None) -> str:
    """The signature of function `node` as it is written in `source`, a parameter a line with its comment,
    called `name`."""
    lines, body = source.splitlines(), node.body[0]
    text = lines[node.lineno - 1 : body.lineno - (0 if body.lineno == node.lineno else 1)]
    if body.lineno == node.lineno:
        text = [text[0].encode()[: body.col_offset].decode()]
    text = [o[node.col_offset :] for o in text]
    text[0] = re.sub(rf"^(async )?def {node.name}\b", name or node.name, text[0])
    if len(text) > 1 and re.match(r"\s*(self|cls|self: [\w.]+),?$", text[1]):
        del text[1]
    joined = "\n".join(x for o in text for x in cut(o)).rstrip()
    joined = re.sub(r"\((self|cls)(: [\w.]+)?(, )?(?=[\n)\w*])", "(", joined, count=1)
    return re.sub(r":(\s*#[^\n]*)?$", r"\1", joined)


def fields_of(source: str, cls: ast.ClassDef) -> str:
    "The fields of a dataclass as they are written, or how any other class is made."
    init = next((o for o in cls.body if getattr(o, "name", "") == "__init__"), None)
    if init:
        return signature(source, init, cls.name)
    fields = [o for o in cls.body if isinstance(o, ast.AnnAssign)]
    lines = source.splitlines()
    kept = [
        x
        for o in fields
        for line in lines[o.lineno - 1 : o.end_lineno]
        for x in cut(re.sub(r"^(\s*[^#]*?)(\s\s#.*)?$", r"\1\2", line))
    ]
    dataclass = any("dataclass" in ast.unparse(d) for d in cls.decorator_list)
    return (
        f"{cls.name}(\n" + "\n".join(kept) + "\n)"
        if kept and dataclass
        else cls.name + (f"({', '.join(ast.unparse(b) for b in cls.bases)})" if cls.bases else "()")
    )


def docstring(node) -> str:
    return (ast.get_docstring(node) or "").strip()


def default(value):
    "What stands for the default `value` of a field: that of `setting(8, …)` and `field(default=8)` is 8."
    if not isinstance(value, ast.Call):
        return value
    own = [k.value for k in value.keywords if k.arg == "default"] or value.args[:1]
    return own[0] if own else ast.Constant(...)


def call(node, name: str | None = None) -> str:
    """How the function or class `node` is called by `name`, in a line without types; of a long one the
    beginning."""
    name, init = (
        name or node.name,
        next((o for o in getattr(node, "body", []) if getattr(o, "name", "") == "__init__"), node),
    )
    if any(
        getattr(d, "id", getattr(d, "attr", "")) in ("property", "cached_property")
        for d in node.decorator_list
    ):
        return name
    if isinstance(init, ast.ClassDef):
        fields = (
            [o for o in init.body if isinstance(o, ast.AnnAssign)]
            if any("dataclass" in ast.unparse(d) for d in init.decorator_list)
            else []
        )
        if not fields:
            return fields_of("", init)
        words = ", ".join(
            o.target.id + (f"={ast.unparse(default(o.value))}" if o.value else "") for o in fields
        )
    else:
        plain, a = lambda o: o and ast.arg(o.arg), init.args
        args = [plain(o) for o in a.posonlyargs + a.args]
        words = ast.unparse(
            ast.arguments(
                **{
                    **vars(a),
                    "posonlyargs": [],
                    "args": args[bool(args) and args[0].arg in ("self", "cls") :],
                    "kwonlyargs": [*map(plain, a.kwonlyargs)],
                    "vararg": plain(a.vararg),
                    "kwarg": plain(a.kwarg),
                }
            )
        )
    if len(f"{name}({words})") > WIDE:
        ends = [
            m.start()
            for m in re.finditer(", ", words)
            if len(name) + m.start() < WIDE - 4
            and all(words[: m.start()].count(x) == words[: m.start()].count(y) for x, y in ("()", "[]", "{}"))
        ]
        words = f"{words[: ends[-1]]}, …" if ends else "…"
    return f"{name}({words})"


def opened(line: str, code: str) -> str:
    "Markdown: a `line` of code that opens to `code`."
    return f'```{{=html}}\n<details class="call"><summary><code>{html.escape(line)}</code></summary>\n```\n\n```{{.python .signature}}\n{code}\n```\n\n```{{=html}}\n</details>\n```'


def document(
    root: Path, repo: str, source: str, node, here: dict[str, tuple[str, str]], shown: str = ""
) -> str:
    """Markdown: what `node`, defined in a cell with `source`, is called and does, and a call that opens to
    what it takes, or to the source that is `shown`."""
    name = symbol(node)
    file, line = lines_of(root).get(name, ("", 0))
    link = f' <a class="doc-source" href="{repo}/{file}#L{line}">source</a>' if file else ""
    anchor = here.get(name, ("", name))[1]
    lower = (
        f'<span id="{name.lower()}"></span>'
        if name != name.lower() and name.lower() not in {o for _, o in here.values()}
        else ""
    )
    text = (
        fields_of(source, node)
        if isinstance(node, ast.ClassDef)
        else signature(source, node, name.rpartition(".")[2])
    )
    line = call(node, name.rpartition(".")[2])
    if not shown and isinstance(node, ast.ClassDef):
        text = "\n\n".join(
            [text, *(o for m in methods(node) if "  # " in (o := signature(source, m, f".{m.name}")))]
        )
    parts = [
        f"### `{name}` {{#{anchor} .doc}}",
        lower + linked(docstring(node), here, "") + link,
        opened(line, shown or text) if shown or text != line else f"```{{.python .signature}}\n{text}\n```",
    ]
    if isinstance(node, ast.ClassDef) and methods(node):
        parts.append(
            "\n".join(
                f"- <span id=\"{here.get(f'{name}.{m.name}', ('', f'{name}.{m.name}'))[1]}\" class=\"method\">`.{call(m)}`</span> {linked(docstring(m).splitlines()[0] if docstring(m) else '', here, '')}"
                for m in methods(node)
            )
        )
    return "\n\n".join(o for o in parts if o.strip())


# --- links ---------------------------------------------------------------------------------------


def linked(md: str, known: dict[str, tuple[str, str]], page: str) -> str:
    """`md`, of `page` (from `nbs` on), with each name of ours that stands in backticks outside of links,
    headings and code linked to where it is documented."""

    def link(m):
        name = (m.group(1) or "").removesuffix("()")
        if name not in known:
            return m.group(0)
        file, anchor = known[name]
        where = (
            "" if file == page else os.path.relpath(file, os.path.dirname(page) or ".").replace(os.sep, "/")
        )
        return f"[{m.group(0)}]({where}#{anchor})"

    res, at = [], 0
    for m in [*FENCE.finditer(md), None]:
        part = md[at : m.start() if m else len(md)]
        lines = re.split(r"(^#{1,6}\s.*$|^(?: {4}|\t).*$)", part, flags=re.M)
        res += [o if i % 2 else LINK_OR_NAME.sub(link, o) for i, o in enumerate(lines)]
        if m:
            res.append(m.group(0))
            at = m.end()
    return "".join(res)


@lru_cache(maxsize=4)
def glossary(root: Path) -> dict[str, tuple[str, str]]:
    "The terms of the glossary in lower case, longest first, with the id and the sentence of each."
    path = root / "nbs" / GLOSSARY
    text = (
        "\n".join(c.source for c in read_page(path).cells if c.cell_type == "markdown")
        if path.exists()
        else ""
    )
    rows = re.findall(r"^\| ([^|*]+?) \| [^|]+ \| ([^|]+) \|$", text, re.M)
    plain = {
        term: re.sub(r"\[([^]]*)\]\([^)]*\)|[*`\"]", r"\1", what).partition(": ")[0]
        for term, what in rows
        if term != "term"
    }
    return {
        k.lower(): ("term-" + re.sub(r"\W+", "-", k.lower()), what)
        for k, what in sorted(plain.items(), key=lambda o: -len(o[0]))
    }


def terms_linked(md: str, terms: dict[str, tuple[str, str]], page: str, seen: set[str]) -> str:
    """`md`, of `page`, whose first use of each term that isn't in `seen` yet leads to the glossary; outside
    of headings, tables, code, formulas and links."""
    where = os.path.relpath(GLOSSARY, os.path.dirname(page) or ".").replace(os.sep, "/")
    words = re.compile(
        r"(?<![\w/.-])(?<!residual )("
        + "|".join(rf"{re.escape(o.removesuffix('s'))}s?" for o in terms)
        + r")(?![\w-]|\.\w)",
        re.I,
    )

    def link(m):
        low = m.group(0).lower()
        term = next(o for o in (low, low.removesuffix("s"), low + "s") if o in terms)
        if term in seen:
            return m.group(0)
        seen.add(term)
        return f'[{m.group(0)}]({where}#{terms[term][0]}){{.term title="{terms[term][1]}"}}'

    res, at = [], 0
    for m in [*NO_TERMS.finditer(md), None]:
        part = md[at : m.start() if m else len(md)]
        res += [words.sub(link, part) if terms else part, m.group(0) if m else ""]
        if m:
            at = m.end()
    return "".join(res)


def terms_named(md: str, terms: dict[str, tuple[str, str]]) -> str:
    "The glossary's own `md`: each row begins with what links to it lead to."
    return re.sub(
        r"^\| ([^|*]+?) \|",
        lambda m: (
            f"| [{m.group(1)}]{{#{terms[m.group(1).lower()][0]}}} |"
            if m.group(1).lower() in terms
            else m.group(0)
        ),
        md,
        flags=re.M,
    )


def site_name(page: str) -> str:
    "The file that nbdev makes of notebook `page`: without the number that orders it."
    folder, _, name = page.rpartition("/")
    return f"{folder}/" * bool(folder) + re.sub(r"^\d+[a-zA-Z0-9]*_", "", name).replace(".ipynb", ".html")


def site_html(text: str) -> str:
    "HTML with links to notebooks turned to their pages."
    return re.sub(
        r"""(href=["'])(?![a-z]+:)([^"'#]+\.ipynb)""", lambda m: m.group(1) + site_name(m.group(2)), text
    )


def to_proofs(md: str, repo: str) -> str:
    "`md` with links to proofs, which aren't on the site, to where they are read."
    return re.sub(r"\]\((?:\.\./)*proofs/", f"]({repo}/nbs/proofs/", md)


def summaries(md: str) -> str:
    "`md` with code in the summary of what is folded as HTML, which is what stands around it."
    return re.sub(
        r"<summary>[^<]*`.*?</summary>",
        lambda m: re.sub(
            r"`([^`]+)`", lambda c: f"<code>{html.escape(c.group(1), quote=False)}</code>", m.group(0)
        ),
        md,
    )


def breakable(md: str) -> str:
    "`md` whose long names in tables may be broken after an underscore."
    return re.sub(
        r"^\|.*\|$",
        lambda row: re.sub(
            r"(?<!\[)`(\w{25,})`(?!\])",
            lambda m: f"<code>{m.group(1).replace('_', '_<wbr>')}</code>",
            row.group(0),
        ),
        md,
        flags=re.M,
    )


def callouts(md: str) -> str:
    "What stands under a heading 'Limits' as a callout."
    m = re.match(r"(#{2,3} Limits[^\n]*\n)(.+)\Z", md.strip(), re.S)
    if not m or ":::" in md or re.search(r"^#", m.group(2), re.M):
        return md
    return f'{m.group(1)}\n::: {{.callout-warning appearance="minimal"}}\n{m.group(2).strip()}\n:::'


# --- the processor -------------------------------------------------------------------------------


class ForSite(Processor):
    """Runs behind nbdev's own processors, but those that run cells, fold and link (settings.ini: `procs` and
    `skip_procs`): the first cell is the front matter then, and what is hidden is gone."""

    def end(self):
        conf, path = get_config(), Path(self.nb.path_)
        root, page, repo = (
            conf.config_path,
            page_name(path).removeprefix("nbs/"),
            f"{conf.git_url}/blob/{conf.branch}",
        )
        known, head, terms, seen = anchors(root), self.nb.cells[0], glossary(root), set()
        own = {
            symbol(o): (o, c)
            for c in read_page(path).cells
            if c.cell_type == "code" and {"export", "exports"} & c.directives_.keys()
            for o in defined(c.source)
        }
        here = {k: ((v[0] if v[0] != page else page), v[1]) for k, v in known.items()}
        prose, heading, cells = "", page, [head]
        front = yaml.safe_load(head.source.strip().strip("-"))
        heading = front.get("title", page)
        for c in self.nb.cells[1:]:
            if c.cell_type == "markdown":
                found = re.findall(r"^#{1,6}\s+(.+)$", c.source, re.M)
                prose, heading = c.source, re.sub(r"[`*]", "", found[-1]) if found else heading
                text = (
                    terms_named(c.source, terms)
                    if page == GLOSSARY
                    else c.source
                    if path.stem == HOME
                    else terms_linked(c.source, terms, page, seen)
                )
                c.source = callouts(to_proofs(breakable(linked(summaries(text), known, page)), repo))
            elif m := re.search(r"^show_doc\(([\w.]+)\)", c.source, re.M):
                if m.group(1) not in own:
                    continue
                node, cell = own[m.group(1)]
                cells.append(
                    mk_cell(
                        relinked(document(root, repo, cell.source, node, here, whole(cell)), page), "markdown"
                    )
                )
                continue
            elif whole(c):
                continue
            elif c.cell_type == "code":
                self.code(c, prose, heading)
            cells.append(as_html(c))
        figure = first_figure(cells)
        if figure and "image" not in front:
            dest = root / "_proc/figures" / f"{path.stem}.png"
            dest.parent.mkdir(parents=True, exist_ok=True)
            dest.write_bytes(base64.b64decode(figure))
            front["image"] = f"/figures/{dest.name}"
        if path.stem != HOME:
            cells.insert(1, mk_cell(colab_line(conf, page_name(path)), "markdown"))
        head.source = f"---\n{yaml.dump(front)}\n---\n\n"
        self.nb.cells = cells

    def code(self, c, prose: str, heading: str):
        "Fold what has been said above it, and say what a figure shows; what the cell says itself stands."
        given, summary = cell_options(c.source), ""
        if "exports" in c.directives_:
            summary = "Source"
        elif "test" in c.directives_:
            tests = [o.name for o in defined(c.source) if o.name.startswith("test_")]
            named = "; ".join(o.removeprefix("test_").replace("_", " ") for o in tests)
            summary = f"Test: {named}" if named else "For the tests"
        elif len(modules := imported(c.source)) > 1:
            summary = shorten("Imports: " + ", ".join(modules), WIDE, placeholder=" …")
        elif len(c.source.splitlines()) > LONG and "echo" not in given:
            summary = "Code"
        ours = {"code-fold": True, "code-summary": summary} if summary else {}
        if any(k.startswith("image/") for o in c.get("outputs", []) for k in o.get("data", {})):
            ours["fig-alt"] = alt_text(prose, heading)
        # Quarto ends at a key that is given twice.
        lines = [f"#| {k}: {json.dumps(v, ensure_ascii=False)}\n" for k, v in ours.items() if k not in given]
        c.source = "".join(lines) + c.source


def cell_options(source: str) -> dict:
    "The options with which a cell begins, as Quarto reads them: YAML behind `#|`."
    lines = re.match(r"(?:#\|.*\n?)*", source).group(0).splitlines()
    return yaml.safe_load("\n".join(o.removeprefix("#|") for o in lines)) or {}


def imported(source: str) -> list[str]:
    "The modules that a cell imports from that does nothing else."
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return []
    names = [
        n
        for o in body
        for n in (
            [a.name for a in o.names]
            if isinstance(o, ast.Import)
            else [o.module]
            if isinstance(o, ast.ImportFrom)
            else []
        )
    ]
    return [*dict.fromkeys(names)] if all(isinstance(o, (ast.Import, ast.ImportFrom)) for o in body) else []


def whole(c) -> str:
    "The source of a cell that shows one definition and nothing else: it is under that's call."
    return (
        ""
        if c.cell_type != "code"
        or "exports" not in c.directives_
        or len(defined(c.source)) != 1
        or c.get("outputs")
        else re.sub(r"^(#\|.*\n)+", "", c.source).strip()
    )


def relinked(md: str, page: str) -> str:
    "Links that `document` made from the root of the book, as links from `page`."

    def fix(m):
        return (
            "]("
            + (
                ""
                if m.group(1) == page
                else os.path.relpath(m.group(1), os.path.dirname(page) or ".").replace(os.sep, "/")
            )
            + "#"
        )

    return re.sub(r"\]\((?![a-z]+:)([\w/.]+\.ipynb)#", fix, md)


def as_html(c):
    "A cell of code that isn't shown and printed HTML, as that HTML."
    found = [o["data"]["text/html"] for o in c.get("outputs", []) if "text/html" in o.get("data", {})]
    if c.cell_type != "code" or not found or not re.search(r"^#\|\s*echo:\s*false", c.source, re.M):
        return c
    return mk_cell("```{=html}\n" + site_html("\n".join("".join(o) for o in found)) + "\n```", "markdown")
