"""What is wrong with the site that Quarto built, in the folder that is given: markdown that stands on a
page as it was written; and in a Chromium, scripts that fail, what is wider than a phone, and what axe-core
finds wanting in contrast, names, alt text and structure (`npm install --no-save axe-core`). What isn't
installed is said to be *not checked*. LinkChecker follows the links (`make docs`)."""

import re, sys
from pathlib import Path

from bs4 import BeautifulSoup

from browser import Browser, find_browser
from common import report

PHONE, SCREEN = (390, 844), (1440, 900)  # pixels
NO_PROSE = "pre, code, script, style, textarea, svg, math, .math, .mt-calc"
RAW = re.compile(r"\]\([^)\s]+\)|^#{1,6} |\*\*\w|^:::|\{[#.][\w-]+[^}]*\}|^\|.*\|$|`[^`\n]+`", re.M)
AXE = "node_modules/axe-core/axe.min.js"
FOUND = """axe.run({runOnly: ['wcag2a', 'wcag2aa']}).then(found => found.violations.map(o =>
  `${o.help} (${o.id}), ${o.nodes.length} times, first at ${o.nodes[0].target.join(' ')}`))"""


def raw_markdown(page: Path) -> list[str]:
    "What stands on the built `page` as it was written."
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    main = soup.find("main") or soup
    for o in main.select(NO_PROSE):
        o.replace_with(" ")
    for o in main.find_all(["p", "li", "td", "div", "h2", "h3"]):
        o.insert_before("\n")
    text = main.get_text()
    return [
        f"raw markdown, {text[max(0, m.start() - 30) : m.end() + 20]!r}: repair the cell"
        for m in RAW.finditer(text)
    ]


def seen(b: Browser, page: Path, axe: str) -> list[str]:
    "What shows in the browser `b` alone."
    b.open(page, *SCREEN)
    res = [f"a script fails: {o.splitlines()[0]}" for o in b.errors()]
    if axe:
        b.run(f"{axe};0")
        res += b.run(FOUND)
    b.size(*PHONE)
    width = b.run("document.documentElement.scrollWidth")
    if width > PHONE[0]:
        res.append(f"{width} pixels wide on a phone of {PHONE[0]}: let what is wide scroll by itself")
    return res


def check_site(site: Path, axe: Path = Path(AXE)) -> list[str]:
    "Everything that is wrong with the site in the folder `site`."
    pages = [
        o for o in sorted(site.rglob("*.html")) if not {"assets", "site_libs"} & {*o.relative_to(site).parts}
    ]
    if not pages:
        return [f"{site}: no page in it: build the site first, with 'make docs'"]
    found = [(o, line) for o in pages for line in raw_markdown(o)]
    if find_browser():
        source = axe.read_text(encoding="utf-8") if axe.is_file() else ""
        with Browser() as b:
            found += [(o, line) for o in pages for line in seen(b, o, source)]
    else:
        print("not checked: scripts, widths and contrast, since no Chromium is installed", file=sys.stderr)
    if not axe.is_file():
        print(f"not checked: contrast and names, since {axe} isn't there", file=sys.stderr)
    return [f"{o.relative_to(site)}: {line}" for o, line in found]


if __name__ == "__main__":
    sys.exit(report(check_site(Path(sys.argv[1]).resolve())))
