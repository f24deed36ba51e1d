"""What the site makes of a notebook beyond nbdev: documentation read from the source (nothing is run), a
call in a line that opens to its arguments or its source, folded tests, links that lead somewhere, figures
with alt text, a link that opens the page in Colab, its first figure as its picture."""

import ast, base64, html, json, os, re
from functools import lru_cache
from pathlib import Path
from textwrap import shorten, wrap

import yaml
from execnb.nbio import mk_cell
from nbdev.config import get_config
from nbdev.process import Processor

from common import DEFS, anchors, definitions, imported
from common import methods, page_name, pages, read_page, symbol


HOME = "index"
WIDE = 100  # characters of a line in a signature
LONG = 10  # lines of an example, beyond which what it shows comes first and its code is folded
FENCE = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.M | re.S)
GLOSSARY = "reference/71_glossary.ipynb"
LINK_OR_NAME = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\([^)\s]*[^)]*\)|<a\b.*?</a>|<[^>\n]+>|``.+?``|`([^`\n]+)`", re.S
)
NO_NAMES = re.compile(r"^(```+|~~~+).*?^\1\s*$|^#{1,6}\s.*?$|^(?: {4}|\t).*?$", re.M | re.S)
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
    line = f"[Open in Colab]({colab_link(conf, name)}) and run there first: `!pip install git+{conf.git_url}`"
    return f"::: {{.colab}}\n{line}\n:::"


def first_figure(cells) -> str | None:
    "The first png that `cells` show, in base64."
    shown = (o.get("data", {}).get("image/png") for c in cells for o in c.get("outputs", []))
    return next(("".join(o) for o in shown if o), None)


def alt_text(prose: str, heading: str) -> str:
    "What stands for a figure where it can't be seen: the sentence that leads to it, and where it stands."
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", FENCE.sub("", prose))
    lines = [o for o in text.strip().splitlines() if o.strip() and not o.startswith(("#", "|", ">", ":::"))]
    sentences = re.split(r"(?<=[.:?!])\s+", re.sub(r"[`*_]|\$[^$]*\$", "", " ".join(lines[-6:])).strip())
    last = next((o for o in reversed(sentences) if o), "")[:220].rstrip(".: ")
    text = f"Figure in '{heading}': {last}" if last else f"Figure in '{heading}'"
    return text.replace('"', "'").replace("\\", "")


# --- documentation, from the source ---------------------------------------------------------------


@lru_cache(maxsize=4)
def documented(root: Path) -> dict[str, tuple[str, str]]:
    "{public name: (its page, from `nbs` on; its id there)}, methods of classes included."
    found = {}
    for path in pages(root):
        cells, page = read_page(path).cells, page_name(path).removeprefix("nbs/")
        taken = set().union(*(anchors(c.source) for c in cells if c.cell_type == "markdown"))
        exported = [
            c for c in cells if c.cell_type == "code" and {"export", "exports"} & c.directives_.keys()
        ]
        for o in (o for c in exported if "hide" not in c.directives_ for o in definitions(c.source)):
            inside = methods(o) if isinstance(o, ast.ClassDef) else []
            for name in (symbol(o), *(f"{o.name}.{m.name}" for m in inside)):
                found.setdefault(name, (page, f"doc-{name}" if name in taken else name))
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
    indent = re.match(r"\s*", code)[0] or "    "
    return [*wrap(comment, WIDE, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "), code]


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
    lines, kept = source.splitlines(), []
    for o in fields(cls):
        kept += [x for line in lines[o.lineno - 1 : o.end_lineno] for x in cut(line)]
    if kept:
        return f"{cls.name}(\n" + "\n".join(kept) + "\n)"
    return f"{cls.name}({', '.join(map(ast.unparse, cls.bases))})"


def fields(cls: ast.ClassDef) -> list[ast.AnnAssign]:
    "The fields of `cls`, where it is a dataclass."
    dataclass = any("dataclass" in ast.unparse(d) for d in cls.decorator_list)
    return [o for o in cls.body if dataclass and isinstance(o, ast.AnnAssign)]


def default(value):
    "What stands for the default `value` of a field: that of `setting(8, …)` and `field(default=8)` is 8."
    if not isinstance(value, ast.Call):
        return value
    own = [k.value for k in value.keywords if k.arg == "default"] or value.args[:1]
    return own[0] if own else ast.Constant(...)


def call(node, name: str | None = None) -> str:
    """How the function or class `node` is called by `name`, in a line without types; of a long one the
    beginning."""
    name = name or node.name
    init = next((o for o in node.body if getattr(o, "name", "") == "__init__"), node)
    if any(ast.unparse(d).rpartition(".")[2] in ("property", "cached_property") for d in node.decorator_list):
        return name
    if isinstance(init, ast.ClassDef):
        if not fields(init):
            return fields_of("", init)
        parts = [o.target.id + (f"={ast.unparse(default(o.value))}" if o.value else "") for o in fields(init)]
    else:
        untyped = ast.parse(ast.unparse(init)).body[0].args
        for o in ast.walk(untyped):
            if isinstance(o, ast.arg):
                o.annotation = None
        parts = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(untyped)).split(", ")
    line, shown = f"{name}({', '.join(parts)})", parts
    while len(line) > WIDE or any(line.count(a) != line.count(b) for a, b in ("()", "[]", "{}")):
        shown = shown[:-1]
        line = f"{name}({', '.join([*shown, '…'])})"
    return line


def opened(line: str, code: str) -> str:
    "Markdown: a `line` of code that opens to `code`."
    head = f'<details class="call"><summary><code>{html.escape(line)}</code></summary>'
    shown = f"```{{.python .signature}}\n{code}\n```"
    return "\n\n".join([raw(head), shown, raw("</details>")])


def raw(text: str) -> str:
    "Markdown: HTML that pandoc leaves as it is."
    return f"```{{=html}}\n{text}\n```"


def document(root: Path, repo: str, source: str, node, known: dict, page: str, shown: str = "") -> str:
    """Markdown for `page`: what `node`, defined in a cell with `source`, is called and does, and a call
    that opens to what it takes, or to the source that is `shown`; `known` says where each name is
    documented."""
    name, is_class = symbol(node), isinstance(node, ast.ClassDef)
    short, (file, number) = name.rpartition(".")[2], lines_of(root).get(name, ("", 0))
    link = f' <a class="doc-source" href="{repo}/{file}#L{number}">source</a>' if file else ""
    anchor = known.get(name, ("", name))[1]
    # links of before were in lower case
    taken = {o for _, o in known.values()}
    lower = f'<span id="{name.lower()}"></span>' if name != name.lower() and name.lower() not in taken else ""
    text, line = fields_of(source, node) if is_class else signature(source, node, short), call(node, short)
    inside = methods(node) if is_class else []
    if not shown:
        told = [o for m in inside if "  # " in (o := signature(source, m, f".{m.name}"))]
        text = "\n\n".join([text, *told])
    said = linked(ast.get_docstring(node) or "", known, page)
    code = opened(line, shown or text) if shown or text != line else f"```{{.python .signature}}\n{text}\n```"
    listed = []
    for m in inside:
        own = f"{name}.{m.name}"
        what = linked((ast.get_docstring(m) or "").partition("\n")[0], known, page)
        listed.append(
            f'- <span id="{known.get(own, ("", own))[1]}" class="method">`.{call(m)}`</span> {what}'
        )
    return "\n\n".join(
        o for o in (f"### `{name}` {{#{anchor} .doc}}", lower + said + link, code, "\n".join(listed)) if o
    )


# --- links ---------------------------------------------------------------------------------------


def way(page: str, to: str) -> str:
    "The relative link from `page` to another, both from `nbs` on."
    return "" if to == page else os.path.relpath(to, os.path.dirname(page) or ".").replace(os.sep, "/")


def linked(md: str, known: dict[str, tuple[str, str]], page: str) -> str:
    """`md`, of `page` (from `nbs` on), with each name of ours that stands in backticks outside of links,
    headings and code linked to where it is documented."""

    def link(m):
        name = (m.group(1) or "").removesuffix("()")
        if name not in known:
            return m.group(0)
        file, anchor = known[name]
        return f"[{m.group(0)}]({way(page, file)}#{anchor})"

    return outside(NO_NAMES, md, lambda text: LINK_OR_NAME.sub(link, text))


def outside(skipped: re.Pattern, md: str, change) -> str:
    "`md` with what lies outside of all that is `skipped` changed."
    res, at = [], 0
    for m in skipped.finditer(md):
        res += [change(md[at : m.start()]), m.group(0)]
        at = m.end()
    return "".join([*res, change(md[at:])])


@lru_cache(maxsize=4)
def glossary(root: Path) -> dict[str, tuple[str, str]]:
    "The terms of the glossary in lower case, longest first, with the id and the sentence of each."
    path = root / "nbs" / GLOSSARY
    cells = read_page(path).cells if path.exists() else []
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    found = {}
    for term, what in re.findall(r"^\| ([^|*]+?) \| [^|]+ \| ([^|]+) \|$", text, re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[*`\"]", r"\1", what).partition(": ")[0]
        found[term.lower()] = "term-" + re.sub(r"\W+", "-", term.lower()), plain
    found.pop("term", None)
    return dict(sorted(found.items(), key=lambda o: -len(o[0])))


def terms_linked(md: str, terms: dict[str, tuple[str, str]], page: str, seen: set[str]) -> str:
    """`md`, of `page`, whose first use of each term that isn't in `seen` yet leads to the glossary; outside
    of headings, tables, code, formulas and links."""
    where, any_term = way(page, GLOSSARY), "|".join(rf"{re.escape(o.removesuffix('s'))}s?" for o in terms)
    words = re.compile(rf"(?<![\w/.-])(?<!residual )({any_term})(?![\w-]|\.\w)", re.I)

    def link(m):
        low = m.group(0).lower()
        term = next(o for o in (low, low.removesuffix("s"), low + "s") if o in terms)
        if term in seen:
            return m.group(0)
        seen.add(term)
        return f'[{m.group(0)}]({where}#{terms[term][0]}){{.term title="{terms[term][1]}"}}'

    return outside(NO_TERMS, md, lambda text: words.sub(link, text)) if terms else md


def terms_named(md: str, terms: dict[str, tuple[str, str]]) -> str:
    "The glossary's own `md`: each row begins with what links to it lead to."

    def name(m):
        found = terms.get(m.group(1).lower())
        return f"| [{m.group(1)}]{{#{found[0]}}} |" if found else m.group(0)

    return re.sub(r"^\| ([^|*]+?) \|", name, md, flags=re.M)


def site_name(page: str) -> str:
    "The file that nbdev makes of notebook `page`: without the number that orders it."
    folder, _, name = page.rpartition("/")
    return f"{folder}/" * bool(folder) + re.sub(r"^\d+[a-zA-Z0-9]*_", "", name).replace(".ipynb", ".html")


def site_html(text: str) -> str:
    "HTML with links to notebooks turned to their pages."
    to_page = r"""(href=["'])(?![a-z]+:)([^"'#]+\.ipynb)"""
    return re.sub(to_page, lambda m: m.group(1) + site_name(m.group(2)), text)


def to_proofs(md: str, repo: str) -> str:
    "`md` with links to proofs, which aren't on the site, to where they are read."
    return re.sub(r"\]\((?:\.\./)*proofs/", f"]({repo}/nbs/proofs/", md)


def summaries(md: str) -> str:
    "`md` with code in the summary of what is folded as HTML, which is what stands around it."

    def code(m):
        return f"<code>{html.escape(m.group(1), quote=False)}</code>"

    return re.sub(r"<summary>[^<]*`.*?</summary>", lambda m: re.sub(r"`([^`]+)`", code, m.group(0)), md)


def breakable(md: str) -> str:
    "`md` whose long names in tables may be broken after an underscore."

    def broken(m):
        return f"<code>{m.group(1).replace('_', '_<wbr>')}</code>"

    long_name = r"(?<!\[)`(\w{25,})`(?!\])"
    return re.sub(r"^\|.*\|$", lambda row: re.sub(long_name, broken, row.group(0)), md, flags=re.M)


def captioned(md: str) -> str:
    "`md` whose pictures have their title beneath them, and for who can't see them what they show."

    def picture(m):
        what, where, title = m.groups()
        return f'![{title or ""}]({where}){{fig-alt="{what}"}}'

    return re.sub(r"""!\[([^]"]+)\]\(([^)\s]+)(?: "([^"]*)")?\)$""", picture, md, flags=re.M)


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
        known, terms, seen = documented(root), glossary(root), set()
        code = [c for c in read_page(path).cells if c.cell_type == "code"]
        exported = [c for c in code if {"export", "exports"} & c.directives_.keys()]
        own = {symbol(o): (o, c) for c in exported for o in definitions(c.source)}
        head = self.nb.cells[0]
        front = yaml.safe_load(head.source.strip().strip("-"))
        prose, heading, cells = "", front.get("title", page), [head]
        for c in self.nb.cells[1:]:
            documents = c.cell_type == "code" and re.search(r"^show_doc\(([\w.]+)\)", c.source, re.M)
            if documents and documents[1] in own:
                node, cell = own[documents[1]]
                told = document(root, repo, cell.source, node, known, page, whole(cell))
                cells.append(mk_cell(told, "markdown"))
            if documents or whole(c):
                continue
            if c.cell_type == "markdown":
                found = re.findall(r"^#{1,6}\s+(.+)$", c.source, re.M)
                prose, heading = c.source, re.sub(r"[`*]", "", found[-1]) if found else heading
                text = terms_named(prose, terms) if page == GLOSSARY else prose
                if path.stem != HOME and page != GLOSSARY:
                    text = terms_linked(prose, terms, page, seen)
                text = breakable(linked(summaries(captioned(text)), known, page))
                c.source = callouts(to_proofs(text, repo))
            elif c.cell_type == "code":
                self.code(c, prose, heading)
            cells += as_html(c)
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
            tests = [o.name for o in definitions(c.source) if o.name.startswith("test_")]
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


def whole(c) -> str:
    "The source of a cell that shows one definition and nothing else: it is under that's call."
    if c.cell_type != "code" or "exports" not in c.directives_ or c.get("outputs"):
        return ""
    return re.sub(r"^(#\|.*\n)+", "", c.source).strip() if len(definitions(c.source)) == 1 else ""


def as_html(c) -> list:
    """Cell `c`, and after it as HTML what of its outputs is HTML, for which Quarto would load a library of
    scripts; that alone, where the code isn't shown."""
    shown = [o for o in c.get("outputs", []) if "text/html" in o.get("data", {})]
    if c.cell_type != "code" or not shown:
        return [c]
    text = "\n".join("".join(o["data"]["text/html"]) for o in shown)
    html_of_it = mk_cell(raw(site_html(text)), "markdown")
    if cell_options(c.source).get("echo") is False:
        return [html_of_it]
    c.outputs = [o for o in c.outputs if o not in shown]
    return [c, html_of_it]
