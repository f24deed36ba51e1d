"""The last touches on a site that Quarto built: a search over prose and names instead of code, with the words
that others use, also for whole sentences; style sheets and icons with what is used alone (`npm install
--no-save purgecss`); llms.txt, which lists the pages for language models."""

import configparser, json, logging, os, re, subprocess, sys
from pathlib import Path

from bs4 import BeautifulSoup
from fontTools.subset import Subsetter
from fontTools.ttLib import TTFont

from common import find_root, pages, read_page, report
from site_pages import GLOSSARY, site_name

UNSEARCHED = "solutions/", "404"  # pages
ALIKE = "answers/"  # of these the title alone is found: they say the same about one model each
SENTENCES = Path(__file__).with_name("search.js")
CODE = "#title-block-header, .colab, pre, div.sourceCode, .cell-output-stdout, script, style, .mt-calc"


def synonyms(root: Path) -> dict[str, list[str]]:
    """{a page, as the site calls it: what people type who want it}: each term of the glossary with its other
    names, for the page that the term's sentence leads to."""
    path, found = root / "nbs" / GLOSSARY, {}
    cells = read_page(path).cells if path.exists() else []
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    for term, others, what in re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.M):
        link = re.search(r"\]\(([^)#]+\.ipynb)", what)
        if link:
            page = site_name(os.path.normpath(os.path.join(os.path.dirname(GLOSSARY), link[1])))
            found.setdefault(page, []).extend([term, *others.split(", ")])
    return found


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


def finish_search(site: Path, others: dict[str, list[str]]) -> list[str]:
    """Make search.json of the folder `site` find prose and names, and each page by the words that `others`
    has for it; solutions are not found."""
    path = site / "search.json"
    if not path.exists():
        return [f"{path}: not there: Quarto writes it where website.search is on"]
    soups, kept = {}, []
    for o in json.loads(path.read_text(encoding="utf-8")):
        file, _, anchor = o["href"].partition("#")
        if file.startswith(UNSEARCHED) or not (site / file).is_file():
            continue
        if file not in soups:
            soups[file] = BeautifulSoup((site / file).read_text(encoding="utf-8"), "html.parser")
        if file.startswith(ALIKE) and anchor:
            continue
        said = prose(soups[file], anchor)
        if not anchor:
            # Fuse ranks what is short higher: the page in a line, and a line for each of its words
            found = soups[file].select_one(".description")
            about, begins = found.get_text().strip() if found else "", f"{file}#quarto-document-content"
            kept.append(o | dict(text=about))
            for word in dict.fromkeys(others.get(file, [])):
                kept.append(o | dict(objectID=f"{file}#{word}", href=begins, section=word, text=about))
            if file.startswith(ALIKE):
                continue
            o = o | dict(objectID=begins, href=begins)
        kept.append(o | dict(text=said if said is not None else o["text"].removeprefix("Skip to the page ")))
    path.write_text(json.dumps(kept, ensure_ascii=False), encoding="utf-8")
    return []


def answer_sentences(site: Path) -> list[str]:
    "Have the search of the folder `site` find something for a question in a sentence."
    path = site / "site_libs/quarto-search/quarto-search.js"
    if not path.exists():
        return [f"{path}: not there: Quarto writes it where website.search is on"]
    path.write_text(
        path.read_text(encoding="utf-8") + SENTENCES.read_text(encoding="utf-8"), encoding="utf-8"
    )
    return []


def finish_sitemap(site: Path):
    "Leave solutions out of the map that search engines read."
    path = site / "sitemap.xml"
    text = path.read_text(encoding="utf-8")
    path.write_text(
        re.sub(r"\s*<url>\s*<loc>[^<]*/solutions/.*?</url>", "", text, flags=re.S), encoding="utf-8"
    )


def slim(site: Path, purgecss: Path = Path("node_modules/.bin/purgecss")) -> list[str]:
    "Take out of Bootstrap's style sheets and icons what no page and no script of the folder `site` names."
    sheets = [*(site / "site_libs/bootstrap").glob("*.css")]
    if not purgecss.exists():
        print(f"not made smaller: style sheets, since {purgecss} isn't there", file=sys.stderr)
        return []
    content = [f"{site}/**/*.html", f"{site}/**/*.js"]
    subprocess.run(
        [purgecss, "--css", *sheets, "--content", *content, "--font-face", "--output", sheets[0].parent],
        check=True,
    )
    icons = sheets[0].parent / "bootstrap-icons.css"
    points = {
        int(o, 16) for o in re.findall(r'content: ?"\\(f[0-9a-f]+)"', icons.read_text(encoding="utf-8"))
    }
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # two bytes more than it needs
    font = TTFont(icons.with_suffix(".woff"))
    small = Subsetter()
    small.populate(unicodes=points)
    small.subset(font)
    font.save(icons.with_suffix(".woff"))
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
    finish_sitemap(site)
    return finish_search(site, synonyms(root)) + answer_sentences(site) + slim(site)


if __name__ == "__main__":
    sys.exit(report(finish(find_root(), Path(sys.argv[1]).resolve())))
