"""How the pages read, in numbers: `page_numbers.py [REVISION]` prints a table of all pages, of this checkout or of another commit. Nothing is run.

* kB: what is written in cells, without outputs
* lines: the median and the 90th percentile of the code cells of examples; lines that are neither blank nor directives nor imports alone
* prose: cells of prose for each cell of code
* lesson: the share of those lines, prose included, that a reader sees: without tests and what is hidden
* figures: pictures that cells show, and those that prose shows
* screens: some 45 lines of 110 characters each, what cells print included, folded code left out
* you: times "you" or "your" in 1,000 words of prose; "we" beside it"""

import argparse, json, re, subprocess, sys
from pathlib import Path
from statistics import median

from common import BESIDE, find_root, page_name, pages

HEAD = "page", "kB", "lines", "p90", "prose", "lesson", "figures", "screens", "you", "we"
WIDTH, HIGH, FIGURE = 110, 45, 18  # characters of a line, lines of a screen, lines of a figure


def sources(root: Path, revision: str | None) -> dict[str, dict]:
    "Each page's notebook by its name, of the checkout at `root` or of a `revision` of it."
    if not revision:
        return {page_name(o): json.loads(o.read_text(encoding="utf-8")) for o in pages(root)}

    def git(*args):
        return subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, check=True
        ).stdout

    names = [
        o
        for o in git("ls-tree", "-r", "--name-only", revision, "nbs").splitlines()
        if o.endswith(".ipynb") and not any(f"/{b}/" in o for b in BESIDE)
    ]
    return {o: json.loads(git("show", f"{revision}:{o}")) for o in sorted(names)}


def count_lines(text: str) -> int:
    return sum(max(1, -(-len(o) // WIDTH)) for o in text.splitlines())


def measure(nb: dict) -> dict:
    "The numbers of one page."
    prose, examples, seen, lines, figures, height, code, size = [], [], 0, 0, 0, 0, 0, 0
    for c in nb["cells"]:
        source = "".join(c["source"])
        size += len(source.encode())
        if c["cell_type"] == "markdown":
            prose.append(source)
            told = [o for o in source.splitlines() if o.strip()]
            seen, lines, height, figures = (
                seen + len(told),
                lines + len(told),
                height + count_lines(source) + 1,
                figures + len(re.findall(r"!\[[^]]*\]\(", source)),
            )
            continue
        if c["cell_type"] != "code" or not source.strip():
            continue
        marks = set(re.findall(r"^#\|\s*([\w-]+)", source, re.M))
        body = [o for o in source.splitlines() if o.strip() and not o.lstrip().startswith("#")]
        code += 1
        lines += len(body)
        shown = not {"test", "hide"} & marks
        if shown:
            seen += len(body)
        if (
            shown
            and not {"export", "exports", "exporti", "default_exp"} & marks
            and not all(re.match(r"(from|import|#)", o.strip()) for o in body)
        ):
            examples.append(len(body))
        if shown and not {"export", "exports", "code-fold", "echo", "default_exp"} & marks:
            height += len(body) + 1
        for o in c.get("outputs", []) if shown else ():
            data = o.get("data", {})
            if any(k.startswith("image/") for k in data):
                figures += 1
                height += FIGURE
            else:
                height += min(
                    22,
                    count_lines(
                        "".join(o.get("text") or data.get("text/markdown") or data.get("text/plain") or "")
                    ),
                )
    words = re.findall(
        r"[A-Za-z']+", re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|\$[^$]*\$", " ", "\n".join(prose), flags=re.S)
    )

    def said(*asked):
        return 1000 * sum(o.lower().split("'")[0] in asked for o in words) / max(1, len(words))

    examples.sort()
    return dict(
        kB=round(size / 1000),
        lines=int(median(examples)) if examples else 0,
        p90=examples[int(0.9 * (len(examples) - 1))] if examples else 0,
        prose=round(len(prose) / max(1, code), 2),
        lesson=f"{seen / max(1, lines):.0%}",
        figures=figures,
        screens=round(height / HIGH, 1),
        you=round(said("you", "your", "yours"), 1),
        we=round(said("we", "our", "us"), 1),
    )


def table(found: dict[str, dict]) -> str:
    "The pages of `found` and their numbers, in Markdown, with the median of each column."
    rows = [
        [name.removeprefix("nbs/").removesuffix(".ipynb"), *(str(m[k]) for k in HEAD[1:])]
        for name, nb in found.items()
        for m in [measure(nb)]
    ]

    def middle(i):
        return f"{median(float(r[i].rstrip('%')) for r in rows):g}" + "%" * (HEAD[i] == "lesson")

    rows.append(["*median*", *(middle(i) for i in range(1, len(HEAD)))])
    return "\n".join(f"| {' | '.join(o)} |" for o in (HEAD, [":--", *["--:"] * (len(HEAD) - 1)], *rows))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision", nargs="?", help="a commit, such as e1163e6; this checkout by default")
    print(table(sources(find_root(), parser.parse_args(argv).revision)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
