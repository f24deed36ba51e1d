"""List the numbers in the prose of each page that come neither from the page's own run nor from the results it reads.

A number counts as sourced where it agrees, rounded as it is written, with

* what the page printed, or a constant in its code (not in comments and docstrings);
* a value in results/*.json that the page reads, or that the benchmark it names has written;
* the same of another page, where the sentence links to that page;
* the arithmetic that its sentence writes out ("3 × 4 = 12", "30 s instead of 10, 3 times less").

A number whose sentence links to a source outside the book is left to that source. Headings, code, formulas, names (`fp32`, GPT-2), versions, dates,
quoted claims, list markers, and whole numbers up to twelve without a unit aren't looked at, nor are the settings that an exercise gives its reader."""

import argparse, ast, itertools, json, math, re, sys
from collections import namedtuple
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from common import find_root, page_name, pages as book_pages, read_page

# `value`·`factor` in bytes, seconds …, exact to ± `step`/2
Number = namedtuple("Number", "text value step kind factor hedge start end")
# `value` in bytes, seconds …; without a kind, a bare number beside `units`
Source = namedtuple("Source", "value step kind where units", defaults=[frozenset()])
Finding = namedtuple("Finding", "page cell number sentence near")

UNITS = {
    o: ("bytes", f)
    for names, f in [
        ("byte bytes", 1),
        ("kB KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("KiB", 2**10),
        ("MiB", 2**20),
        ("GiB", 2**30),
        ("TiB", 2**40),
    ]
    for o in names.split()
}
UNITS |= {
    o: ("time", f)
    for names, f in [
        ("ns", 1e-9),
        ("µs μs us", 1e-6),
        ("ms", 1e-3),
        ("s sec second seconds", 1),
        ("min minute minutes", 60),
        ("h hour hours", 3600),
    ]
    for o in names.split()
}
UNITS |= {
    o: ("count", f)
    for names, f in [("k thousand", 1e3), ("M million", 1e6), ("G B billion", 1e9), ("T trillion", 1e12)]
    for o in names.split()
}
UNITS |= {o: ("share", 0.01) for o in ("%", "percent", "per cent")}
UNITS |= {o: ("ratio", 1) for o in ("×", "x", "times")}
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
# Digits, with thousands separated or a fraction; a power of ten; a unit, alone or after a hyphen
# ("7-billion"). No letter, dot or hyphen before it: those are names.
NUMBER = re.compile(
    rf"(?<![\w.,:/#$^&@\\])(?<![A-Za-z\d\]`][-–_])(?:[-−–](?=\d))?(?P<digits>\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    rf"(?:(?P<e>e[-+]?\d+)|\s?[·×x*]\s?10(?P<ten>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+|\^[-+]?\d+|\*\*-?\d+)|(?P<pow>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+|\*\*\d+))?"
    rf"(?:[\s\u00a0\u202f-]?(?P<unit>{UNIT})(?![\w]))?(?P<tail>[\w]*)"
)
ABOUT = re.compile(r"(?:about|some|nearly|almost|roughly|around|close to|approximately|or so|≈|~)\W*$", re.I)
ABOVE = re.compile(r"(?:more than|over|at least|above|beyond|exceeds?|no less than|>|≥)\W*$", re.I)
BELOW = re.compile(
    r"(?:less than|under|at most|below|up to|within|no more than|not even|never more than|fewer than|<|≤)\W*$",
    re.I,
)
# What makes the number behind it a name: a version, a page, a status.
NAMES = re.compile(
    r"(?:\b(?:(?i:pages?|section|part|chapter|figure|table|equation|exercise|step|status|line|port|ranks?|layers?|blocks?|shards?|epochs?|iterations?|seeds?|version)|"
    r"capability|exits? with|ends with|Python|torch|PyTorch|NumPy|numpy|CUDA|nbdev|transformers|tiktoken|tokenizers|bitsandbytes|Apache|RTX|GPT|A|H|No\.)"
    r"(?:\s|-|\u00a0))$"
)
# What somebody has is given, not measured: a card of 24 GB.
CARD = re.compile(r"\b(?:cards?|GPUs?|machines?)(?:'s| of| with| that reports| that says)(?: \w+)? ?$")
WORDS = {"half": 0.5, "twice": 2, "double": 2, "thrice": 3} | {
    f"{w} times": i for i, w in enumerate("one two three four five six seven eight nine ten".split(), 1)
}
SPELLED = {
    w: i for i, w in enumerate("one two three four five six seven eight nine ten eleven twelve".split(), 1)
}
DATE = re.compile(
    r"\b\d{4}-\d\d(-\d\d)?\b|\b(?:19|20)\d\d\b(?![\s\u00a0]?(?:%|[kMGT]i?B\b|ms\b|s\b|tokens|bytes|samples))"
)
# In a file of this many values any one or two digits are found: only numbers with three say that they come
# from there.
MANY, MANY_MARK = 400, ".json, among many values"
OPS = {
    "+": lambda a, b: a + b,
    "−": lambda a, b: a - b,
    "-": lambda a, b: a - b,
    "×": lambda a, b: a * b,
    "·": lambda a, b: a * b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.nan,
}


# --- reading numbers -----------------------------------------------------------------------------


def parse_number(m: re.Match, before: str = "") -> Number | None:
    "The number that `m` found; None for a name such as 3D or 8-bit. `before` is the text in front of it."
    digits, unit = m["digits"].replace(",", ""), m["unit"]
    if m["tail"] and not (unit is None and m["tail"] in ("d", "th")):
        return None
    if m["tail"]:
        return None
    exp = int(m["e"][1:]) if m["e"] else int(m["ten"].lstrip("^*").translate(SUPER)) if m["ten"] else 0
    if abs(exp) > 99:
        return None
    value, places = float(digits), len(digits.partition(".")[2])
    step = 10.0**-places
    if m["pow"]:
        value, step = value ** int(m["pow"].lstrip("*").translate(SUPER)), 0.0
    kind, factor = UNITS.get(unit, (None, 1))
    hedge = next(
        (k for k, o in (("about", ABOUT), ("above", ABOVE), ("below", BELOW)) if o.search(before)), ""
    )
    return Number(
        m.group(0).strip(), value * 10.0**exp, step * 10.0**exp, kind, factor, hedge, m.start(), m.end()
    )


def numbers(text: str) -> list[Number]:
    """Every number in `text`; in a range or list ('4 to 10 %', '3–5×', '7, 10 and 15 µs') all have the unit
    of the last."""
    res = [
        n for m in NUMBER.finditer(text) if (n := parse_number(m, text[max(0, m.start() - 24) : m.start()]))
    ]
    joined = False
    for i in range(len(res) - 2, -1, -1):
        a, b = res[i], res[i + 1]
        gap = text[a.end : b.start].strip(" \u00a0")
        joined = (
            a.kind is None
            and b.kind is not None
            and (gap in ("–", "-", "to", "and", "or", "against", "instead of") or joined and gap == ",")
        )
        if joined:
            res[i] = a._replace(kind=b.kind, factor=b.factor)
    return res


def spelled(text: str) -> list[Number]:
    "Small numbers that `text` spells before a unit: 'ten billion', 'two bytes'."
    found = re.findall(rf"\b({'|'.join(SPELLED)}) (thousand|million|billion|bytes?)\b", text, re.I)
    return [n for a, b in found for n in numbers(f"{SPELLED[a.lower()]} {b}")]


def looked_at(n: Number, text: str) -> bool:
    "Is `n` in `text` something to be sourced: no name, no small count?"
    if NAMES.search(text[: n.start]) or re.match(r"-?\s?bits?\b|[-–]\w+ed\b", text[n.end :]):
        return False
    if re.search(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]|\*\*|10\^", n.text):
        return False  # a power written as one is mathematics
    if n.kind == "bytes" and (
        CARD.search(text[: n.start])
        or re.match(r"(?: of memory| of RAM)?[\s-](?:card|GPU|machine)s?\b", text[n.end :])
    ):
        return False
    if n.kind == "bytes" and n.factor == 1 and n.value <= 16:
        return False  # how wide a number is
    return not (n.kind in (None, "ratio") and n.value <= 12 and n.value == int(n.value) and "." not in n.text)


# --- where numbers may come from -----------------------------------------------------------------

SIZES = dict(KIB=2**10, MIB=2**20, GIB=2**30)


def fold(node: ast.AST):
    "The value of a constant expression such as 8*2**20 or 8*MIB, else None."
    if isinstance(node, ast.Name):
        return SIZES.get(node.id)
    if isinstance(node, ast.Constant):
        return (
            node.value if isinstance(node.value, (int, float)) and not isinstance(node.value, bool) else None
        )
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return None if (v := fold(node.operand)) is None else -v
    if not isinstance(node, ast.BinOp):
        return None
    a, b = fold(node.left), fold(node.right)
    if a is None or b is None:
        return None
    try:
        if isinstance(node.op, ast.Pow) and abs(b) > 64:
            return None
        return {
            ast.Add: lambda: a + b,
            ast.Sub: lambda: a - b,
            ast.Mult: lambda: a * b,
            ast.Div: lambda: a / b,
            ast.FloorDiv: lambda: a // b,
            ast.Pow: lambda: a**b,
        }[type(node.op)]()
    except (KeyError, ArithmeticError):
        return None


def code_sources(source: str, where: str) -> list[Source]:
    """Constants in the cell `source`: numbers, folded expressions, and numbers in strings that aren't
    docstrings."""
    try:
        tree = ast.parse(re.sub(r"^[%!].*$", "pass", source, flags=re.M))
    except SyntaxError:
        return []
    docs = {
        id(o.body[0].value)
        for o in ast.walk(tree)
        if isinstance(o, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
        and o.body
        and isinstance(o.body[0], ast.Expr)
        and isinstance(o.body[0].value, ast.Constant)
    }
    res, units = [], units_in(source)
    # bounds, not settings
    asserted = {id(n) for o in ast.walk(tree) if isinstance(o, ast.Assert) for n in ast.walk(o)}
    for o in ast.walk(tree):
        if id(o) in asserted:
            continue
        v = fold(o)
        if v is not None:
            res.append(Source(abs(v), 0, None, where, units))
        elif isinstance(o, ast.Constant) and isinstance(o.value, str) and id(o) not in docs:
            res += text_sources(o.value, where)
    return res


def units_in(text: str) -> frozenset:
    "Units that `text` names anywhere: those of a table's head, of an argument such as `shard_size_mb`."
    return frozenset(o.lower() for o in re.findall(rf"(?<![A-Za-z])(?:{UNIT})(?![A-Za-z])", text, re.I))


def text_sources(text: str, where: str, units: frozenset = frozenset()) -> list[Source]:
    "Numbers in `text` that a page printed, also those in names (rtx3090)."
    units |= units_in(text)
    res = [Source(n.value * n.factor, n.step * n.factor, n.kind, where, units) for n in numbers(text)]
    return res + [Source(float(o), 0, None, where) for o in re.findall(r"(?<=[A-Za-z_-])\d+(?:\.\d+)?", text)]


KEYS = [
    ("bytes", r"bytes|memory|peak|rss|pss|_mib|size|resident|reserved|allocated"),
    ("time", r"second|_s$|_ms$|time|took|latency|wait$"),
    ("share", r"share|ratio|over|error|fraction"),
    ("count", r"per_second|rate|tokens|params|samples|count|iters"),
]


def key_kind(path: tuple) -> str | None:
    "What the keys in `path` say a value is, from the innermost outwards; None where they don't."
    for key in reversed([o for o in path if isinstance(o, str)]):
        if re.search("per_second|ratio|share|over_|_over", key):
            return "count" if "per_second" in key else "share"
        for kind, pattern in KEYS:
            if re.search(pattern, key):
                return kind


def result_sources(value, where: str, path: tuple = ()) -> list[Source]:
    "Every number in the JSON `value`, strings included."
    if isinstance(value, dict):
        return [
            s
            for k, v in value.items()
            for s in result_sources(v, where, (*path, k))
            + [Source(o.value, 0, None, where) for o in numbers(str(k))]
        ]
    if isinstance(value, list):
        return [s for o in value for s in result_sources(o, where, path)] + [
            Source(len(value), 0, "count", where)
        ]
    if isinstance(value, str):
        return text_sources(value, where)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return []
    return [Source(abs(value), 0, key_kind(path), where, units_in(" ".join(map(str, path))))]


class Page:
    "A notebook's prose, and what its numbers may come from."

    def __init__(self, path: Path, results: dict):
        self.path, self.nb, self.results = path, read_page(path), results

    name = property(lambda self: self.path.name)

    def code(self):
        return [o for o in self.nb.cells if o.cell_type == "code"]

    def reads(self) -> list[str]:
        "Names of the results that the page reads, or whose benchmark it names."
        code = "\n".join(o.source for o in self.code())
        text = code + "\n".join(o.source for o in self.nb.cells if o.cell_type == "markdown")
        prefixes = tuple(re.findall(r"f['\"](\w+_)\{", code))
        words, scripts = (
            set(re.findall(r"['\"/](\w+)(?:\.json)?['\"]|results/(\w+)\.json", text)),
            set(re.findall(r"benchmarks/(\w+)\.py", text)),
        )
        words = {o for w in words for o in w if o}
        return [
            k
            for k, v in self.results.items()
            if k in words
            or prefixes
            and k.startswith(prefixes)
            or set(re.findall(r"benchmarks/(\w+)\.py", str(v.get("command", "")))) & scripts
        ]

    @cached_property
    def sources(self) -> list[Source]:
        """What the page printed, the results it reads, the constants of its code; the nearest kind of source
        first."""
        res = []
        for c in self.code():
            for o in c.get("outputs", []):
                text = "".join(o.get("text", "")) + "\n".join(
                    "".join(v)
                    for k, v in o.get("data", {}).items()
                    if k in ("text/plain", "text/markdown", "text/html")
                )
                res += text_sources(plain(text), f"output of cell {c.idx_ + 1}")
        for o in self.reads():
            found = result_sources(self.results[o], f"results/{o}.json")
            res += (
                found if len(found) <= MANY else [s._replace(where=f"results/{o}{MANY_MARK}") for s in found]
            )
        for c in self.code():
            res += code_sources(c.source, f"code of cell {c.idx_ + 1}")
        return res


def plain(text: str) -> str:
    "`text` without HTML tags and terminal colours."
    return re.sub(r"</?\w[^>]*>|\x1b\[[\d;]*m", " ", text)


# --- do they agree -------------------------------------------------------------------------------


def close(v: float, lo: float, hi: float) -> bool:
    "Is `v` in [`lo`, `hi`], but for the last bit?"
    return lo - 1e-9 * abs(lo) <= v <= hi + 1e-9 * abs(hi)


def agrees(n: Number, s: Source) -> bool:
    "Is `n` what `s` is when it is written with as many digits?"
    if not s.value:
        return n.value == 0 and s.kind in (None, n.kind)
    slack = {"about": (0.93, 1.07), "above": (1, 1.2), "below": (0.85, 1)}.get(n.hedge, (1, 1))
    for value, step in readings(n, s):
        if close(
            value,
            min(n.value - (n.step + step) / 2, n.value * slack[0]),
            max(n.value + (n.step + step) / 2, n.value * slack[1]),
        ):
            return True
    return False


def readings(n: Number, s: Source):
    "(value in the unit of `n`, how exactly) for every way in which `s` can be meant."
    if s.where.endswith(MANY_MARK) and digits_of(n) < 3:
        return
    plain = s.kind in (None, "share", "ratio", "count")  # what a bare number may be
    if s.kind == n.kind:
        yield s.value / n.factor, 0 if same_unit(n, s) else s.step / n.factor
    elif n.kind in (None, "ratio"):
        yield from [(s.value, 0)] * plain
    elif s.kind is None or n.kind in ("count", "share") and plain:
        yield s.value / n.factor, 0
    if s.kind is None and n.factor != 1 and unit_of(n) in s.units:
        yield s.value, 0  # a column in MiB
    if s.where.startswith("code") or not plain:
        return
    # 1.24 of it is 24 % more
    if n.kind == "share" and s.value < 20 and s.step < 0.1:
        yield abs(s.value - 1) * 100, s.step * 100
    if n.kind == "ratio" and 0 < s.value < 1:
        yield 1 / s.value, 0  # a fifth is 5 times less


def digits_of(n: Number) -> int:
    "How many significant digits `n` is written with."
    return len(re.sub(r"\D", "", re.match(r"\D*[\d.,]+", n.text).group(0)).strip("0"))


def unit_of(n: Number) -> str:
    "The unit that `n` is written with, in lower case."
    return next((o for o in sorted(UNITS, key=len, reverse=True) if n.text.endswith(o)), "").lower()


def same_unit(n: Number, s: Source) -> bool:
    "Can `s` have been printed in the unit of `n`?"
    o = s.value / n.factor / (n.step or 1)
    return abs(o - round(o)) < 1e-6 * max(1, abs(o))


def bounds(n: Number) -> tuple[float, float]:
    "What `n` can have been before it was rounded, in bytes, seconds …"
    return (n.value - n.step / 2) * n.factor, (n.value + n.step / 2) * n.factor


def meets(n: Number, lo: float, hi: float) -> bool:
    "Can `n` be something in [`lo`, `hi`]?"
    a, b = bounds(n)
    return lo <= b + 1e-9 * abs(b) and a - 1e-9 * abs(a) <= hi


def chains(ns: list[Number], text: str):
    """The value of every product and sum that `text` writes out: '16 · 1024 · 4 bytes', '2 × 4 MiB + 8 × 16
    KiB', '24.8 + 49.6 GiB'; with the places of its numbers."""

    def term(n, sign=1):
        return [sign * n.value * n.factor, n.kind in ("bytes", "time")]

    i = 0
    while i < len(ns):
        terms, used = [term(ns[i])], [i]
        for j in range(i + 1, len(ns)):
            op = text[ns[j - 1].end : ns[j].start].strip(" \u00a0") or (
                "×" if ns[j - 1].text[-1] in "×x" else ""
            )
            if op not in OPS:
                break
            if op in "+−-":
                terms.append(term(ns[j], 1 if op == "+" else -1))
            else:
                terms[-1] = [OPS[op](terms[-1][0], term(ns[j])[0]), terms[-1][1] or term(ns[j])[1]]
            used.append(j)
        unit = ns[used[-1]].factor if terms[-1][1] else 1  # a sum may give it once, at its end
        if len(used) > 1:
            yield sum(v if has_unit else v * unit for v, has_unit in terms), used
        i = used[-1] + 1


def arithmetic(ns: list[Number], i: int, text: str, before: Sequence[Number] = ()) -> bool:
    """Does the sentence say how number `i` comes of others: a chain such as 'a × b', 'twice' another, so many
    bytes times so many, a ratio or share of two of one kind?"""
    n, others = ns[i], [o for k, o in enumerate(ns) if k != i]
    for v, used in chains(ns, text):
        # '110.5 − 28.1, 82 MB' gives the unit once
        plain = not any(ns[k].kind in ("bytes", "time") for k in used)
        if (
            math.isfinite(v)
            and i not in used
            and any(meets(n, abs(v) * f, abs(v) * f) for f in {1, n.factor if plain else 1})
        ):
            return True
    for word, f in WORDS.items():
        if re.search(rf"\b{word}\b", text, re.I) and any(
            meets(n, f * bounds(o)[0], f * bounds(o)[1]) for o in others if o.kind == n.kind
        ):
            return True
    for a, b in itertools.product([*others, *before], repeat=2):
        if (
            n.kind == "bytes" == b.kind
            and b.factor == 1
            and a.kind in ("count", None)
            and a.value * a.factor >= 100
            and meets(n, bounds(a)[0] * b.value, bounds(a)[1] * b.value)
        ):
            return True
    if n.kind not in ("ratio", "share"):
        return False
    for a, b in itertools.permutations([o for o in others if o.value], 2):
        if a.kind != b.kind or a.kind in ("ratio", "share"):
            continue
        (al, ah), (bl, bh) = bounds(a), bounds(b)
        if bl <= 0:
            continue
        lo, hi = al / bh, ah / bl
        if meets(n, lo, hi) or n.kind == "share" and meets(n, *sorted((abs(lo - 1), abs(hi - 1)))):
            return True
    return False


# --- prose ---------------------------------------------------------------------------------------


def blank(m: re.Match) -> str:
    return re.sub(r"[^\n]", " ", m.group(0))


def prose(md: str) -> str:
    """`md` with everything blanked that holds no number of its own: code, formulas, comments, headings, list
    markers, dates, quotations."""
    for pattern, flags in [
        (r"^(```+|~~~+).*?^\1\s*$", re.M | re.S),
        (r"<!--.*?-->", re.S),
        (r"(`+)(?!`).+?\1", re.S),
        (r"\$\$.+?\$\$", re.S),
        (r"\$[^$\n]+\$", 0),
        (r"^#{1,6} .*$", re.M),
        (r"^\s*\d+[.)] ", re.M),
        (r"“[^”\n]*”|\"[^\"\n]{1,160}\"", 0),
    ]:
        md = re.sub(pattern, blank, md, flags=flags)
    return DATE.sub(blank, md)


def sentences(md: str) -> list[str]:
    "The sentences of `md`, a row of a table being one, as they stand between full stops and blank lines."
    res = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+[.)])\s)|(?<=\|)\n(?=\s*\|)", md):
        res += (
            re.split(r"(?<=[.?!;])[\"*_)]*\s+(?=[\"*_(\[`]*[A-Z0-9`])", block)
            if not block.lstrip().startswith("|")
            else [block]
        )
    return [o for o in res if o.strip()]


def targets(sentence: str) -> list[str]:
    "Where the links in `sentence` go."
    return re.findall(r"\]\(<?([^)\s>]+)", sentence)


def unlinked(text: str) -> str:
    "`text` with the addresses of its links blanked."
    return re.sub(r"\]\([^)]*\)", blank, text)


def findings(pages: list[Page], only: list[Page] | None = None) -> list[Finding]:
    "Every number in the prose of `only`, or of all `pages`, that nothing stands behind."
    by_name, res = {o.name: o for o in pages}, []
    for page in only or pages:
        exercises = False
        for c in page.nb.cells:
            if c.cell_type != "markdown":
                continue
            heads = re.findall(r"^#{1,6} (.+)$", c.source, re.M)
            if heads:
                exercises = heads[-1].strip() in ("Try it", "Exercises")
            if exercises:
                continue
            seen, spans = (
                [],
                [
                    o
                    for t in re.findall(r"`([^`\n]+)`", c.source)
                    for o in text_sources(t, "code in the text")
                ],
            )
            for s in sentences(prose(c.source)):
                links = targets(s)
                if any(re.match(r"https?://", o) for o in links):
                    continue
                linked = [
                    by_name[f] for o in links if (f := o.partition("#")[0].rpartition("/")[2]) in by_name
                ]
                text = unlinked(s)
                ns = numbers(text)
                seen += spelled(text)
                for i, n in enumerate(ns):
                    if not looked_at(n, text) or arithmetic(ns, i, text, seen):
                        continue
                    if any(
                        agrees(v, o)
                        for v in variants(ns, i, text)
                        for found in (page.sources, spans, *(p.sources for p in linked))
                        for o in found
                    ):
                        continue
                    res.append(
                        Finding(page_name(page.path), c.idx_ + 1, n, " ".join(s.split()), nearest(n, page))
                    )
                seen += ns
    return res


def variants(ns: list[Number], i: int, text: str) -> list[Number]:
    """Number `i`, and where it has no unit, with those before it in its sentence ('19.3 GiB, and with a batch
    22.3'), and in a sum also with those behind it."""
    summed = i + 1 < len(ns) and text[ns[i].end : ns[i + 1].start].strip() in OPS
    near = [*ns[:i][::-1], *(ns[i + 1 :] if summed else ())] if ns[i].kind is None else []
    units = {(o.kind, o.factor, unit_of(o)): None for o in near if o.kind in ("bytes", "time", "count")}
    return [ns[i]] + [ns[i]._replace(kind=k, factor=f, text=f"{ns[i].text} {u}") for k, f, u in units]


def nearest(n: Number, page: Page) -> str:
    """The value that the page has nearest to `n`, of its kind and within a fifth: what a stale number once
    was."""
    best = None
    for s in page.sources:
        if s.where.startswith("code") or not s.value or s.kind != n.kind:
            continue
        for value in {s.value / n.factor, s.value}:
            off = abs(math.log(value / n.value)) if n.value and value > 0 else 9
            if off < 0.2 and (best is None or off < best[0]):
                best = off, value, s.where
    if best is None:
        return ""
    return (
        f"{float(f'{best[1]:.4g}'):,g}".rstrip()
        + (f" {u}" if (u := re.sub(r'^[\d.,\s−-]+', '', n.text)) else "")
        + f" ({best[2]})"
    )


def load_pages(root: Path) -> list[Page]:
    "The pages of the project at `root`, with the results they may read."
    results = {
        o.stem: json.loads(o.read_text(encoding="utf-8")) for o in sorted((root / "results").glob("*.json"))
    }
    return [Page(o, results) for o in book_pages(root)]


def main(argv=None) -> int:
    """Print page, number and sentence of every number without a source; a report, no gate: two digits can
    agree by chance, and a sum in another sentence isn't found."""
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("notebooks", nargs="*", help="notebooks to look at (all of them)")
    args = p.parse_args(argv)
    pages = load_pages(find_root())
    wanted = {Path(o).name for o in args.notebooks}
    for o in wanted - {p.name for p in pages}:
        sys.exit(f"{o}: no such notebook: give one of nbs/*/*.ipynb")
    found = findings(pages, [o for o in pages if o.name in wanted] if wanted else None)
    for o in found:
        print(
            f"{o.page} cell {o.cell}: {o.number.text}: {o.sentence}"
            + (f"  [nearest: {o.near}]" if o.near else "")
        )
    print(f"{len(found)} numbers without a source", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
