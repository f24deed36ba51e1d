"""The last touches on a site that Quarto built: a search over prose and names instead of code, with the words
that others use; llms.txt, which lists the pages for language models."""

import configparser, json, re, sys
from pathlib import Path

from bs4 import BeautifulSoup

from common import find_root, pages, read_page, report
from site_pages import site_name

CODE = "pre, div.sourceCode, .cell-output-stdout, script, style, .mt-calc"


def synonyms(root: Path) -> list[list[str]]:
    "Groups of words for one thing, from the tables of the glossary: a term, and what it is also called."
    path = root / "nbs/reference/69_glossary.ipynb"
    text = (
        "\n".join(c.source for c in read_page(path).cells if c.cell_type == "markdown")
        if path.exists()
        else ""
    )
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", text, re.M)
    return [
        [term.strip(), *(o.strip() for o in others.split(","))]
        for term, others in rows
        if term.strip("-") and term != "term"
    ]


def also(text: str, groups: list[list[str]]) -> str:
    "The other words for what `text` speaks of."
    low = text.lower()
    found = [
        o
        for group in groups
        if any(re.search(rf"\b{re.escape(w.lower())}\b", low) for w in group)
        for o in group
        if o.lower() not in low
    ]
    return ", ".join(dict.fromkeys(found))


def prose(soup: BeautifulSoup, anchor: str) -> str | None:
    "What a section says outside of its code and its subsections; None where there is no such section."
    where = soup.find(id=anchor) if anchor else soup.find("main")
    if where is None:
        return None
    section = where if where.name in ("section", "main") else where.find_parent("section") or where
    copy = BeautifulSoup(str(section), "html.parser")
    top = copy.find()
    for o in top.find_all("section") + copy.select(CODE):
        o.decompose()
    return re.sub(r"\s+", " ", top.get_text(" ")).strip()


def finish_search(site: Path, groups: list[list[str]]) -> list[str]:
    "Make search.json of the folder `site` find prose and names."
    path = site / "search.json"
    if not path.exists():
        return [f"{path}: not there: Quarto writes it where website.search is on"]
    soups, entries = {}, json.loads(path.read_text(encoding="utf-8"))
    for o in entries:
        file, _, anchor = o["href"].partition("#")
        if file not in soups:
            soups[file] = (
                BeautifulSoup((site / file).read_text(encoding="utf-8"), "html.parser")
                if (site / file).is_file()
                else None
            )
        said = prose(soups[file], anchor) if soups[file] else None
        if said is not None:
            o["text"] = said
        more = also(f"{o.get('title', '')} {o.get('section', '')} {o['text']}", groups)
        if more and "glossary" not in file:
            o["text"] += f" (also: {more})"
    path.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    return []


def llms_txt(root: Path) -> str:
    "What the site is, and a line for each page, as llmstxt.org has it."
    conf = configparser.ConfigParser()
    conf.read(root / "settings.ini", encoding="utf-8")
    conf = conf["DEFAULT"]
    lines = [f"# {conf['lib_name']}", "", f"> {conf['description']}", "", "## Pages", ""]
    for path in pages(root):
        title = next((c.source for c in read_page(path).cells if c.cell_type == "markdown"), "")
        head, what = (re.search(o, title, re.M) for o in (r"^# (.+)$", r"^> (.+)$"))
        url = (
            f"{conf['doc_host']}{conf['doc_baseurl']}/{site_name(path.relative_to(root / 'nbs').as_posix())}"
        )
        if head:
            lines.append(f"- [{head[1]}]({url})" + (f": {what[1]}" if what else ""))
    return "\n".join(lines) + "\n"


def finish(root: Path, site: Path) -> list[str]:
    "Finish what Quarto built from `root` in the folder `site`."
    (site / "llms.txt").write_text(llms_txt(root), encoding="utf-8")
    return finish_search(site, synonyms(root))


if __name__ == "__main__":
    sys.exit(report(finish(find_root(), Path(sys.argv[1]).resolve())))
