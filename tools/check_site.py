"""What is wrong with the site that Quarto built, in the folder that is given. Markdown that stands on a page
as it was written; links that lead nowhere (linkinator); and in a Chromium: scripts that fail, what is wider
than a phone, what axe-core finds wanting in contrast, names, alt text and structure, what a page weighs, and
whether the search finds the page that a newcomer's words mean (tools/queries.json). What isn't installed is
said to be *not checked*: `npm install --no-save axe-core linkinator purgecss`."""

import functools, gzip, http.server, json, re, subprocess, sys, tempfile, threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bs4 import BeautifulSoup

from browser import Browser, find_browser
from common import report

PHONE, SCREEN = (390, 844), (1440, 900)  # pixels
HEAVY = 600_000  # bytes of a page with its scripts, styles and pictures, as a server sends them: compressed
BASE = "memtrain"  # the folder on the server in which the published site lies
NO_PROSE = "pre, code, script, style, textarea, svg, math, .math, .mt-calc"
RAW = re.compile(r"\]\([^)\s]+\)|^#{1,6} |\*\*\w|^:::|\{[#.][\w-]+[^}]*\}|^\|.*\|$|`[^`\n]+`", re.M)
AXE = "node_modules/axe-core/axe.min.js"
LINKINATOR = "node_modules/.bin/linkinator"
QUERIES = Path(__file__).with_name("queries.json")
AMONG, MOST = 2, 2  # the right page is among the first two; of all queries two may fail
FOUND = """axe.run({runOnly: ['wcag2a', 'wcag2aa']}).then(found => found.violations.map(o =>
  `${o.help} (${o.id}), ${o.nodes.length} times, first at ${o.nodes[0].target.join(' ')}`))"""
TOGGLE = "document.querySelector('.quarto-color-scheme-toggle')"  # from light to dark and back
LOADED = """performance.getEntriesByType('resource').map(o => o.name).concat(location.href)"""
# What the search of Quarto lists for words that are typed into it, page by page.
SEARCH = """(async words => {
  const wait = ms => new Promise(done => setTimeout(done, ms));
  const until = async found => {
    for (let i = 0; i < 100 && !found(); i++) await wait(50);
    return found();
  };
  if (!document.querySelector('.aa-Input')) document.querySelector('.aa-DetachedSearchButton').click();
  const field = await until(() => document.querySelector('.aa-Input'));
  field.value = words;
  field.dispatchEvent(new Event('input', {bubbles: true}));
  await wait(400);
  const links = () => [...document.querySelectorAll('.aa-Panel a[href], .aa-List a[href]')].map(o => o.href);
  for (let i = 0; i < 100 && !links().length; i++) await wait(50);
  return [...new Set(links().map(o => new URL(o).pathname))];
})"""


@contextmanager
def served(site: Path):
    "The address under which the folder `site` is served while the block runs."

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with tempfile.TemporaryDirectory() as root:
        (Path(root) / BASE).symlink_to(site)
        handler = functools.partial(Quiet, directory=root)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/{BASE}/"
            server.shutdown()


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


def broken_links(site: Path, linkinator: Path) -> list[str]:
    "What linkinator finds: files and headings of the site that links lead to and that aren't there."
    args = [linkinator.resolve(), ".", "--recurse", "--check-fragments", "--format", "JSON"]
    # Others' pages are theirs; what follows a ? is the calculator's, of a page that is asked for without it.
    args += ["--skip", r"^https?://(?!localhost)|\?"]
    run = subprocess.run(args, cwd=site, capture_output=True, text=True)
    links = json.loads(run.stdout)["links"]
    return [
        f"{o['parent']}: a link to {o['url']}, which isn't there" for o in links if o["state"] == "BROKEN"
    ]


@functools.lru_cache(maxsize=None)
def sent(path: Path) -> int:
    "Bytes that a server sends for the file at `path`."
    data = path.read_bytes()
    return min(len(data), len(gzip.compress(data)))


def seen(b: Browser, address: str, site: Path, page: Path, axe: str) -> list[str]:
    "What shows in the browser `b` alone, of `page` of the folder `site`, served under `address`."
    b.open(address + page.relative_to(site).as_posix(), *SCREEN)
    res = [f"a script fails: {o.splitlines()[0]}" for o in b.errors()]
    paths = {urlsplit(o).path for o in b.run(LOADED)}
    files = [site / o.removeprefix(f"/{BASE}/") for o in paths if not o.endswith("search.json")]
    weight = sum(map(sent, filter(Path.is_file, files)))
    if weight > HEAVY:
        res.append(f"{weight / 1000:.0f} kB with all it loads, compressed, of {HEAVY / 1000:.0f} at most")
    if axe:
        b.run(f"{axe};0")
        for _ in range(1 + b.run(f"{TOGGLE} !== null")):
            how = "in the dark: " * b.run("document.body.classList.contains('quarto-dark')")
            res += [how + o for o in b.run(FOUND)]
            b.run(f"{TOGGLE}?.click(), new Promise(done => setTimeout(done, 400))")  # colors change slowly
    b.size(*PHONE)
    width = b.run("document.documentElement.scrollWidth")
    if width > PHONE[0]:
        res.append(f"{width} pixels wide on a phone of {PHONE[0]}: let what is wide scroll by itself")
    return res


def lost(b: Browser, address: str, queries: dict[str, list[str]]) -> list[str]:
    "Those of `queries`, each with the pages (or folders/) that answer it, that the site's search misses."
    b.open(f"{address}index.html", *SCREEN)
    res = []
    for words, right in queries.items():
        found = [o.removeprefix(f"/{BASE}/") for o in b.run(f"{SEARCH}({json.dumps(words)})")]
        if not any(
            o == page or page.endswith("/") and o.startswith(page) for o in found[:AMONG] for page in right
        ):
            res.append(f"search: '{words}' leads to {found[:4]}, not to {' or '.join(right)}")
    told = [f"search: {len(queries) - len(res)} of {len(queries)} queries lead to their page", *res]
    print(*told, sep="\n", file=sys.stderr)
    return res if len(res) > MOST else []


def check_site(site: Path, axe: Path = Path(AXE), linkinator: Path = Path(LINKINATOR)) -> list[str]:
    "Everything that is wrong with the site in the folder `site`."
    pages = [
        o for o in sorted(site.rglob("*.html")) if not {"assets", "site_libs"} & {*o.relative_to(site).parts}
    ]
    if not pages:
        return [f"{site}: no page in it: build the site first, with 'make docs'"]
    found = [f"{o.relative_to(site)}: {line}" for o in pages for line in raw_markdown(o)]
    if linkinator.exists():
        found += broken_links(site, linkinator)
    else:
        print(f"not checked: links, since {linkinator} isn't there", file=sys.stderr)
    if not axe.is_file():
        print(f"not checked: contrast and names, since {axe} isn't there", file=sys.stderr)
    if not find_browser():
        print(
            "not checked: scripts, widths, contrast, weight and search, since no Chromium is installed",
            file=sys.stderr,
        )
        return found
    source = axe.read_text(encoding="utf-8") if axe.is_file() else ""
    with served(site) as address, Browser() as b:
        for o in pages:
            found += [f"{o.relative_to(site)}: {line}" for line in seen(b, address, site, o, source)]
        if (site / "search.json").exists():
            found += lost(b, address, json.loads(QUERIES.read_text(encoding="utf-8")))
    return found


if __name__ == "__main__":
    sys.exit(report(check_site(Path(sys.argv[1]).resolve())))
