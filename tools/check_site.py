"""What is wrong with the built site: links, raw markdown, pictures without words, headings, names of controls, and in a browser the width on a phone and the contrast.
`check_site.py _docs` checks what Quarto built (`make docs`); without a folder, the pages are rendered here as far as that goes without Quarto. `--measure` tells how many screens there are."""

import html, json, re, shutil, sys, tempfile
from pathlib import Path
from urllib.parse import unquote

import yaml
from bs4 import BeautifulSoup

from browser import Browser, find_browser
from check_docs import PROC, heading_id, last_line, mapping, named_files
from check_sync import copy_tree, run_in_copy
from common import find_root, report
from site_pages import site_html, site_name

PHONE, SCREEN = 390, (1440, 900)  # pixels
NO_PROSE = "pre", "code", "script", "style", "textarea", "svg", "math", ".math", ".mt-calc"
LIKE_QUARTO = """html{font-size:17px} body{font:1rem/1.5 'Source Sans Pro',system-ui,sans-serif;margin:0;color:#343a40;background:#fff} #quarto-content{display:grid;grid-template-columns:230px minmax(0,940px);gap:2rem;max-width:1300px;margin:0 auto;padding:0 12px;align-items:start}
#quarto-sidebar{font-size:.875rem} #quarto-sidebar ul{list-style:none;padding:0} h1,h2,h3,h4{line-height:1.2} h2{border-bottom:1px solid #dee2e6;margin-top:2rem} p{margin:0 0 1rem} a{color:#1f5fbf} code,pre{font:.875em/1.5 ui-monospace,monospace}
div.sourceCode{background:#f3f4f6;border:1px solid #e3e5e8;border-radius:.25rem;margin:1em 0} div.sourceCode pre{margin:0;padding:.4em} pre{overflow:auto} table{border-collapse:collapse;margin-bottom:1rem} td,th{border-top:1px solid #dee2e6;text-align:left;vertical-align:top}
img{max-width:100%;height:auto} .btn{display:inline-block;padding:.4rem .8rem;border-radius:.25rem;border:1px solid #1f5fbf;text-decoration:none} .btn-primary{background:#1f5fbf;color:#fff}
@media(max-width:991px){#quarto-content{display:block}#quarto-sidebar{display:none}}"""


# --- rendering, without Quarto -------------------------------------------------------------------


def markdown():
    "A renderer of the markdown that these pages use, as pandoc reads it."
    from markdown_it import MarkdownIt
    from mdit_py_plugins.attrs import attrs_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    md = (
        MarkdownIt("commonmark", dict(html=True, typographer=False))
        .enable(["table", "strikethrough"])
        .use(attrs_plugin, spans=True)
        .use(dollarmath_plugin, allow_space=False, double_inline=True)
    )

    def fence(tokens, i, options, env):
        o, info = tokens[i], tokens[i].info.strip()
        if info == "{=html}":
            return o.content
        classes = " ".join(re.findall(r"\.([\w-]+)", info)) or info
        return f'<div class="sourceCode {classes}"><pre><code>{colored(o.content, "bash" if classes == "sh" else "python" if "python" in classes else "text")}</code></pre></div>\n'

    md.renderer.rules["fence"] = fence
    return md


def colored(source: str, language: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    return highlight(
        source, get_lexer_by_name(language, stripnl=False), HtmlFormatter(nowrap=True, classprefix="p-")
    )


def rendered(md, text: str, seen: dict) -> str:
    "`text` as HTML, with pandoc's ids on headings and `:::` as divs."
    out, stack = [], []
    for part in re.split(r"(^:::.*$)", text, flags=re.M):
        if not part.startswith(":::"):
            out.append(
                md.render(
                    re.sub(
                        r"^(#{1,6} .*?)\s*\{#([^ }]+)([^}]*)\}\s*$", r"\1 <!--id \2 \3-->", part, flags=re.M
                    )
                )
            )
            continue
        classes = re.findall(r"\.([\w-]+)", part)
        out.append(f'<div class="{" ".join(classes)}">' if classes else "</div>")
        stack.append(classes)

    def head(m):
        level, inside = m.group(1), m.group(2)
        own = re.search(r"\s*<!--id (\S+)\s*(.*?)-->", inside)
        if own:
            return f'<h{level} id="{own.group(1)}" class="{own.group(2).replace(".", " ").strip()}">{inside.replace(own.group(0), "")}</h{level}>'
        name = heading_id(BeautifulSoup(inside, "html.parser").get_text())
        n = seen[name] = seen.get(name, -1) + 1
        return f'<h{level} id="{name}{f"-{n}" if n else ""}">{inside}</h{level}>'

    return re.sub(r"<h([1-6])>(.*?)</h\1>", head, "".join(out), flags=re.S)


def cell_html(md, cell: dict, seen: dict) -> str:
    "A cell of a prepared notebook."
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return rendered(md, source, seen)
    if cell["cell_type"] == "raw":
        return ""
    options = dict(re.findall(r"^#\|\s*([\w-]+):\s*(.*?)\s*$", source, re.M))
    code, parts = re.sub(r"^#\|.*\n?", "", source, flags=re.M).strip("\n"), []
    if options.get("include") == "false":
        return ""
    if code and options.get("echo") != "false":
        shown = f'<div class="sourceCode"><pre><code>{colored(code, "python")}</code></pre></div>'
        fold = options.get("code-fold") == "true"
        parts.append(
            f'<details class="code-fold"><summary>{html.escape(options.get("code-summary", "Code").strip(chr(34)))}</summary>{shown}</details>'
            if fold
            else shown
        )
    for o in cell.get("outputs", []) if options.get("output") != "false" else []:
        data = o.get("data", {})
        if "text/markdown" in data:
            parts.append(rendered(md, "".join(data["text/markdown"]), seen))
        elif "text/html" in data:
            parts.append("".join(data["text/html"]))
        elif "image/png" in data:
            parts.append(
                f'<figure><img src="data:image/png;base64,{"".join(data["image/png"]).strip()}" alt="{html.escape(options.get("fig-alt", "").strip(chr(34)))}"></figure>'
            )
        else:
            parts.append(
                f'<div class="cell-output"><pre><code>{html.escape("".join(o.get("text", data.get("text/plain", ""))))}</code></pre></div>'
            )
    return f'<div class="cell">{"".join(parts)}</div>'


def render_page(path: Path, proc: Path, css: str, sidebar: str) -> str:
    "The prepared notebook at `path` in the folder `proc` as a page."
    return page(
        json.loads(path.read_text(encoding="utf-8"))["cells"],
        "../" * (len(path.relative_to(proc).parts) - 1),
        css,
        sidebar,
    )


def page(cells: list[dict], up: str, css: str, sidebar: str) -> str:
    "A page of prepared cells, the first of which is the front matter; `up` leads to the root."
    md, seen, front = markdown(), {}, yaml.safe_load("".join(cells[0]["source"]).strip().strip("-")) or {}
    body = site_html("\n".join(cell_html(md, c, seen) for c in cells))
    side = re.sub(r'href="', f'href="{up}', sidebar)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(front.get("title", ""))}</title><style>{LIKE_QUARTO}\n{css}</style></head>'
        f'<body class="fullcontent"><div id="quarto-content"><nav id="quarto-sidebar">{side}</nav><main class="content" id="quarto-document-content"><h1 class="title">{html.escape(front.get("title", ""))}</h1>'
        f'<p class="description">{site_html(md.renderInline(str(front.get("description", ""))))}</p>\n{body}</main></div></body></html>'
    )


def prepare(root: Path, dest: Path) -> list[str]:
    "Prepare the pages of `root` as `make docs` does, in a copy, and render them to `dest`; what went wrong."
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp).resolve() / root.name
        copy_tree(root, copy)
        (Path(tmp) / "proc.py").write_text(PROC.format(workers=2))
        res = run_in_copy(copy, str(Path(tmp) / "proc.py"))
        if res.returncode:
            return [f"nbs/: nbdev can't prepare the pages for the site: {last_line(res.stderr)}"]
        if "Warning" in res.stderr:
            return [
                f"nbs/: nbdev warns while it prepares the pages: {next(o for o in res.stderr.splitlines() if 'Warning' in o)}"
            ]
        render(copy / "_proc", dest)
    return []


def dark_like_quarto(scss: str) -> str:
    "The colors of the dark theme, which Quarto makes of the variables in `scss`."
    v = dict(re.findall(r"^\$([\w-]+):\s*(#\w+);", scss, re.M))
    rules = dict(
        [
            ("", f"color:{v['body-color']};background:{v['body-bg']}"),
            (" a:not(.btn)", f"color:{v['link-color']}"),
            (" code", f"color:{v['code-color']}"),
            (" div.sourceCode", "background:var(--mt-field);border-color:var(--mt-line)"),
            (" pre code", "color:inherit"),
        ]
    )
    return "".join(f"body.quarto-dark{k}{{{o}}}" for k, o in rules.items())


def render(proc: Path, dest: Path):
    "Render the pages that nbdev prepared in `proc` to `dest`, with the files beside them."
    conf = yaml.safe_load((proc / "_quarto.yml").read_text(encoding="utf-8"))
    theme = next(
        (o for o in (mapping(conf, "format.html").get("theme") or {}).get("dark", []) if o.endswith(".scss")),
        None,
    )
    css = (dark_like_quarto((proc / theme).read_text(encoding="utf-8")) if theme else "") + "".join(
        (proc / o).read_text(encoding="utf-8")
        for o in named_files(mapping(conf, "format.html").get("css", []))
    )
    listed = [
        o for o in named_files(mapping(conf, "website.sidebar").get("contents", [])) if o.endswith(".ipynb")
    ]
    sidebar = (
        "<ul>" + "".join(f'<li><a href="{site_name(o)}">{Path(o).stem}</a></li>' for o in listed) + "</ul>"
    )
    for path in sorted(proc.rglob("*")):
        name = path.relative_to(proc)
        if name.parts[0] == "proofs" or not path.is_file():
            continue
        to = dest / site_name(name.as_posix())
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".qmd":
            front, body = re.match(r"---\n(.*?)\n---\n(.*)", path.read_text(encoding="utf-8"), re.S).groups()
            cells = [
                dict(cell_type="raw", source=front),
                dict(cell_type="markdown", source=re.sub(r"\]\(/", "](", body)),
            ]
            to.with_suffix(".html").write_text(page(cells, "", css, sidebar), encoding="utf-8")
        if path.suffix == ".ipynb":
            to.write_text(render_page(path, proc, css, sidebar), encoding="utf-8")
        elif path.suffix in (".svg", ".png", ".css", ".html"):
            shutil.copy2(path, to)


# --- what can be wrong with a page ---------------------------------------------------------------


class Built:
    "A page of the built site in folder `site`."

    def __init__(self, site: Path, path: Path):
        self.path, self.name, self.soup = (
            path,
            path.relative_to(site).as_posix(),
            BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser"),
        )
        self.main = self.soup.find("main") or self.soup
        self.ids = {o["id"] for o in self.soup.find_all(id=True)} | {
            o["name"] for o in self.soup.find_all("a", attrs={"name": True})
        }


def check_links(site: Path, pages: dict[Path, Built]) -> list[str]:
    "Links that lead nowhere, and links inside links."
    res = []
    for page in pages.values():
        for o in page.soup.find_all(["a", "img", "script", "link"]):
            url = o.get("href") or o.get("src") or ""
            if o.name == "a" and o.find_parent("a"):
                res.append(f"{page.name}: a link inside a link, {o.get_text()[:40]!r}: write one of them")
            if not url or re.match(r"[a-z][a-z0-9+.-]*:|//", url, re.I):
                continue
            file, _, frag = unquote(url).partition("#")
            file = file.partition("?")[0]
            target = (
                (site / file.lstrip("/") if file.startswith("/") else page.path.parent / file).resolve()
                if file
                else page.path
            )
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                res.append(f"{page.name}: link to {url}, which isn't there: correct it")
            elif frag and o.name == "a" and target in pages and frag not in pages[target].ids:
                res.append(
                    f"{page.name}: link to {url}, and {pages[target].name} has no place of that name: correct it"
                )
    return res


def check_prose(site: Path, pages: dict[Path, Built]) -> list[str]:
    "Markdown that stands on a page as it was written."
    res = []
    for page in pages.values():
        main = BeautifulSoup(str(page.main), "html.parser")
        for o in main.select(", ".join(NO_PROSE)):
            o.replace_with(" ")
        for o in main.find_all(["p", "li", "td", "div", "h2", "h3"]):
            o.insert_before("\n")
        for m in re.finditer(
            r"\]\([^)\s]+\)|^#{1,6} |\*\*\w|^:::|\{[#.][\w-]+[^}]*\}|^\|.*\|$|(?<!`)`[^`\n]+`",
            main.get_text(),
            re.M,
        ):
            res.append(
                f"{page.name}: raw markdown, {main.get_text()[max(0, m.start() - 30) : m.end() + 20]!r}: repair the cell"
            )
    return res


def check_words(site: Path, pages: dict[Path, Built]) -> list[str]:
    """Pictures without alt text, controls without a name, headings that skip a level, ids given twice, pages
    without a title or a language."""
    res = []
    for page in pages.values():
        for o in page.main.find_all("img"):
            if not o.get("alt") and not (
                o.has_attr("alt") and o.find_parent("a") and o.find_parent("a").get_text(strip=True)
            ):
                res.append(f"{page.name}: an image without alt text: add '#| fig-alt' to its cell")
        for o in page.main.find_all(["button", "a"]):
            if o.name == "a" and not o.has_attr("href"):
                continue
            if not (
                o.get_text(strip=True)
                or o.get("aria-label")
                or o.find("img", alt=True)
                or "anchorjs-link" in (o.get("class") or [])
            ):
                res.append(f"{page.name}: a {o.name} without a name: {str(o)[:80]}")
        for o in page.main.find_all(["input", "select", "textarea"]):
            if not (o.find_parent("label") or o.get("aria-label") or o.get("type") == "hidden"):
                res.append(f"{page.name}: a field without a label: {str(o)[:80]}")
        level = 1
        for o in page.main.find_all(re.compile(r"^h[1-6]$")):
            if int(o.name[1]) > level + 1 and not o.find_parent(class_="mt-calc"):
                res.append(
                    f"{page.name}: heading {o.get_text(strip=True)[:40]!r} is of level {o.name[1]} under one of level {level}: lift it"
                )
            level = int(o.name[1])
        ids = [o["id"] for o in page.main.find_all(id=True)]
        res += [
            f"{page.name}: the id {o} is given twice" for o in sorted({o for o in ids if ids.count(o) > 1})
        ]
        if not (page.soup.title and page.soup.title.get_text(strip=True)):
            res.append(f"{page.name}: it has no title")
        if not page.soup.html or not page.soup.html.get("lang"):
            res.append(f"{page.name}: it doesn't say its language")
    return res


CONTRAST = """(() => {
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number), light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126*r + .7152*g + .0722*b; };
  const behind = o => { for (; o; o = o.parentElement) { const c = rgb(getComputedStyle(o).backgroundColor); if (c.length < 4 || c[3] > .5) if (c.length) return c.slice(0, 3); } return [255, 255, 255]; };
  const found = new Map(), walk = document.createTreeWalker(document.querySelector('main') || document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const o = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
    if (!text || !o || o.closest('script, style, svg, option, textarea') || !o.getClientRects().length) continue;
    const s = getComputedStyle(o), a = light(rgb(s.color).slice(0, 3)), b = light(behind(o)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), size = parseFloat(s.fontSize);
    const least = size >= 24 || size >= 18.6 && s.fontWeight >= 700 ? 3 : 4.5;
    const key = (o.className && typeof o.className === 'string' ? '.' + o.className.split(' ')[0] : o.tagName.toLowerCase()) + ' ' + s.color;
    if (ratio < least && !found.has(key)) found.set(key, `${text.slice(0, 30)} (${key}): ${ratio.toFixed(2)} of ${least}`);
  }
  return [...found.values()];
})()"""


def check_in_browser(site: Path, pages: dict[Path, Built], measured: dict) -> list[str]:
    "Width on a phone, contrast, errors of scripts; `measured` gets the screens and widths of each page."
    res = []
    with Browser() as b:
        for page in pages.values():
            b.open(page.path, *SCREEN)
            screens = (
                b.run("(document.querySelector('main') || document.documentElement).scrollHeight") / SCREEN[1]
            )
            res += [f"{page.name}: contrast too low: {o}" for o in b.run(CONTRAST)]
            # rendered here; Quarto loads its dark theme later
            if "quarto-dark" in b.run("document.querySelector('style')?.textContent || ''"):
                res += [
                    f"{page.name}: contrast too low in the dark: {o}"
                    for o in b.run(f"(document.body.classList.add('quarto-dark'), {CONTRAST})")
                ]
                b.run("document.body.classList.remove('quarto-dark')")
            res += [f"{page.name}: a script fails: {o.splitlines()[0]}" for o in b.errors()]
            b.size(PHONE, 844)
            width = b.run("document.documentElement.scrollWidth")
            measured[page.name] = dict(screens=round(screens, 2), phone=width)
            if width > PHONE:
                res.append(
                    f"{page.name}: {width} pixels wide on a phone of {PHONE}: let what is wide scroll by itself"
                )
    return res


def check_site(site: Path, measured: dict | None = None) -> list[str]:
    "Everything that is wrong with the site that was built in the folder `site`."
    pages = {
        o.resolve(): Built(site, o)
        for o in sorted(site.rglob("*.html"))
        if "assets" not in o.relative_to(site).parts and "site_libs" not in o.parts
    }
    if not pages:
        return [f"{site}: no page in it: build the site first, with 'make docs'"]
    res = [line for check in (check_links, check_prose, check_words) for line in check(site, pages)]
    if find_browser():
        return res + check_in_browser(site, pages, {} if measured is None else measured)
    print(
        "no chromium is installed here: widths, contrast and scripts of the site aren't checked",
        file=sys.stderr,
    )
    return res


def main() -> int:
    "Print the findings."
    given, measured = [o for o in sys.argv[1:] if not o.startswith("--")], {}
    if given:
        found = check_site(Path(given[0]).resolve(), measured)
    else:
        with tempfile.TemporaryDirectory() as tmp:
            found = prepare(find_root(), Path(tmp)) or check_site(Path(tmp).resolve(), measured)
    if "--measure" in sys.argv[1:]:
        for k, v in measured.items():
            print(f"{v['screens']:8.1f} screens {v['phone']:5} px on a phone  {k}")
        print(
            f"{sum(o['screens'] for o in measured.values()):8.1f} screens in all, {sum(o['phone'] > PHONE for o in measured.values())} of {len(measured)} pages wider than a phone"
        )
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
