"What the site makes of the notebooks, and the checks of what was built."

import ast, json, subprocess, sys
from itertools import takewhile
from pathlib import Path

import pytest, yaml
from execnb.nbio import read_nb
from nbdev.processors import FilterDefaults

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_docs, check_site, finish_site, site_pages
from browser import Browser, find_browser
from test_tools import PNG, Project

DEFINED = '''#| exports
@dataclass
class Shape:
    "A shape, whose `width` counts"
    width: int = 8  # numbers
    depth: int = 2  # layers; a comment that is so long that the line it stands on would be wider than a hundred characters

    @property
    def area(self) -> int:
        "How large it is"
        return self.width * self.depth

    def scaled(self, by: int = 2) -> 'Shape':
        "A copy, `by` times as wide"
        return Shape(self.width * by, self.depth)

    def _hidden(self): pass'''


def node_of(source):
    return next(o for o in ast.parse(source).body if isinstance(o, site_pages.DEFS))


def test_signatures_are_as_written_a_parameter_a_line():
    f = 'def double(\n    n: int,  # a number\n    *, up: bool = False,  # or not\n) -> int:  # twice `n`\n    "Twice `n`"\n    return 2*n'
    assert (
        site_pages.signature(f, node_of(f))
        == "double(\n    n: int,  # a number\n    *, up: bool = False,  # or not\n) -> int  # twice `n`"
    )
    assert (
        site_pages.signature('def one(a, b=(1, 2)): return a', node_of('def one(a, b=(1, 2)): return a'))
        == "one(a, b=(1, 2))"
    )
    patched = '@patch\ndef plot(self: Trace, wide=1) -> Figure:\n    "A picture"\n    return 1'
    assert (
        site_pages.symbol(node_of(patched)) == "Trace.plot"
        and site_pages.signature(patched, node_of(patched)) == "plot(wide=1) -> Figure"
    )


def test_a_class_is_shown_by_its_fields_and_its_methods():
    source = DEFINED.partition("\n")[2]
    assert site_pages.fields_of(source, node_of(source)) == (
        "Shape(\n    width: int = 8  # numbers\n    # layers; a comment that is so long that the line it stands on would be wider than a hundred\n"
        "    # characters\n    depth: int = 2\n)"
    )
    text = site_pages.document(ROOT, "https://host/x", source, node_of(source), {}, source)
    assert text.startswith(
        "### `Shape` {#Shape .doc}\n\n<span id=\"shape\"></span>A shape, whose `width` counts"
    )
    assert (
        '<summary><code>Shape(width=8, depth=2)</code></summary>\n```\n\n```{.python .signature}\n' + source
        in text
    ), "the call opens to the source that the page shows"
    hidden = site_pages.document(ROOT, "https://host/x", source, node_of(source), {})
    assert (
        "Shape(width=8, depth=2)</code>" in hidden and "a hundred\n" in hidden and "_hidden" not in hidden
    ), "or to the arguments"
    assert (
        '- <span id="Shape.area" class="method">`.area`</span> How large it is\n- <span id="Shape.scaled" class="method">`.scaled(by=2)`</span> A copy'
        in text
    )
    made = "class Made:\n    def __init__(\n        self,\n        n: int,  # how many\n    ):\n        self.n = n"
    assert site_pages.fields_of(made, node_of(made)) == "Made(\n    n: int,  # how many\n)"


@pytest.mark.parametrize(
    "source,line",
    [
        ("def f(n: int, *rest, up: bool = False, **more) -> int: return n", "f(n, *rest, up=False, **more)"),
        ("@patch\ndef plot(self: Trace, wide=(1, 2)): return 1", "plot(wide=(1, 2))"),
        (
            "@dataclass\nclass Options:\n    key: str  # a key\n    size: int = setting(64, lambda v: v > 1, 'is less')\n    rest: list = field(default_factory=list)",
            "Options(key, size=64, rest=...)",
        ),
        ("class Made(Base):\n    x: int = 1", "Made(Base)"),
        ("class Made:\n    def __init__(self, n: int): self.n = n", "Made(n)"),
        (
            f"def g({', '.join(f'argument_{i}=({i}, {i})' for i in range(9))}): return 1",
            f"g({', '.join(f'argument_{i}=({i}, {i})' for i in range(5))}, …)",
        ),
    ],
)
def test_a_call_is_one_line_without_types(source, line):
    assert site_pages.call(node_of(source)) == line and len(line) <= site_pages.WIDE


def test_what_only_imports_is_folded_under_what_it_imports():
    assert site_pages.imported(
        "import os.path\nfrom memtrain.core import GIB\nfrom memtrain.core import MIB"
    ) == ["os.path", "memtrain.core"]
    assert site_pages.imported("import os\nos.getcwd()") == site_pages.imported("%time x") == []


def test_the_first_use_of_a_term_leads_to_the_glossary():
    terms, seen = (
        {"activations": ("term-activations", "What is kept"), "peak": ("term-peak", "The most")},
        set(),
    )

    def linked(md):
        return site_pages.terms_linked(md, terms, "memory/07_plan.ipynb", seen)

    assert (
        linked("## The peak\n\n| peak |\n\n`peak` $peak$ [the peak](x)\n\nA Peak, a peak.")
        == "## The peak\n\n| peak |\n\n`peak` $peak$ [the peak](x)\n\nA [Peak](../reference/69_glossary.ipynb#term-peak){.term title=\"The most\"}, a peak."
    )
    assert (
        linked("the peak of an activation")
        == 'the peak of an [activation](../reference/69_glossary.ipynb#term-activations){.term title="What is kept"}'
    )
    assert (
        linked("the residual stream")
        == site_pages.terms_linked(
            "the residual stream", {"stream": ("term-stream", "Text")}, "index.ipynb", set()
        )
        == "the residual stream"
    )
    assert site_pages.terms_named("| peak | x | The most |", terms) == "| [peak]{#term-peak} | x | The most |"
    known = site_pages.glossary(Path(__file__).resolve().parents[2])
    assert (
        known["gradient checkpointing"][0] == "term-gradient-checkpointing"
        and "second time" in known["gradient checkpointing"][1]
        and len(known) >= 30
    )


def test_names_are_linked_where_that_makes_a_link_and_nowhere_else():
    known = {"Trace": ("memory/01_measure.ipynb", "Trace"), "plan": ("memory/07_plan.ipynb", "doc-plan")}

    def linked(md):
        return site_pages.linked(md, known, "memory/07_plan.ipynb")

    assert (
        linked("a `Trace`, `plan()`, `other`")
        == "a [`Trace`](01_measure.ipynb#Trace), [`plan()`](#doc-plan), `other`"
    )
    for same in (
        "[the `Trace` of it](x.ipynb)",
        "[`Trace`](x.ipynb#y)",
        "## The `Trace`",
        "```python\n`Trace`\n```",
        '<a href="x">`Trace`</a>',
        "    `Trace`",
        "![a `Trace`](x.png)",
    ):
        assert linked(same) == same
    assert (
        site_pages.linked("`Trace`", known, "data/20_shards.ipynb")
        == "[`Trace`](../memory/01_measure.ipynb#Trace)"
    )


def test_small_things_of_a_page():
    assert (
        site_pages.site_name("memory/03_estimate.ipynb") == "memory/estimate.html"
        and site_pages.site_name("index.ipynb") == "index.html"
    )
    assert (
        site_pages.site_html('<a href="memory/03_estimate.ipynb#x">') == '<a href="memory/estimate.html#x">'
    )
    assert (
        site_pages.to_proofs("[x](../proofs/core.ipynb)", "https://host/r")
        == "[x](https://host/r/nbs/proofs/core.ipynb)"
    )
    assert (
        site_pages.alt_text("# Costs\n\nFirst. What a `step` [holds](x.ipynb), over its events:", "Costs")
        == "Figure in 'Costs': What a step holds, over its events"
    )
    assert (
        site_pages.summaries("`a` <summary>The `x<y` of `z`</summary>")
        == "`a` <summary>The <code>x&lt;y</code> of <code>z</code></summary>"
    )
    name = "test_" + "long_name_" * 3
    assert (
        site_pages.breakable(f"`{name}`\n\n| `{name}`, `short_name` | [`{name}`](x) |")
        == f"`{name}`\n\n| <code>test_<wbr>{'long_<wbr>name_<wbr>' * 3}</code>, `short_name` | [`{name}`](x) |"
    )
    assert (
        site_pages.callouts("## Limits\n\nNot for text.").startswith('## Limits\n\n::: {.callout-warning')
        and site_pages.callouts("## Other\n\nx") == "## Other\n\nx"
    )


class UniqueKeys(yaml.SafeLoader):
    "YAML as Quarto reads it: a key that is given twice is an error."

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(k) for k, _ in node.value]
        assert len(keys) == len(set(keys)), f"duplicated key in {keys}"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("path", finish_site.pages(ROOT), ids=lambda o: o.stem)
def test_quarto_can_read_the_options_of_every_cell(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    nb = read_nb(path)
    FilterDefaults()(nb)  # all processors, as nbdev hands a page to Quarto
    for cell in nb.cells:
        if cell.cell_type == "code":
            options = [o[2:] for o in takewhile(lambda o: o.startswith("#|"), cell.source.splitlines())]
            given = yaml.load("\n".join(options), UniqueKeys)
            assert given is None or isinstance(given, dict), cell.source[:200]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    "A tiny project whose pages were prepared by nbdev and rendered here."
    project = Project(tmp_path_factory.mktemp("site") / "p")
    project.core[2:2] = [
        ("md", "## Limits\n\nNone of `double`, see [`double`](#double)."),
        ("code", "#| export\nimport math\nfrom pathlib import Path\nPath('ran').write_text('x')"),
    ]
    project.core.append(("code", "\n".join(f"x{i} = {i}" for i in range(20))))
    project.core.insert(
        6, ("code", DEFINED.replace("#| exports", "#| exports\nfrom dataclasses import dataclass"))
    )
    project.save()
    project.export()
    path = project.root / "nbs/reference/60_core.ipynb"
    nb = json.loads(path.read_text())
    shown = next(c for c in nb["cells"] if c["source"] == ["double(3)"])
    shown["outputs"] = [
        dict(output_type="display_data", metadata={}, data={"image/png": PNG, "text/plain": ["<Figure>"]})
    ]
    path.write_text(json.dumps(nb))
    (project.root / "ran").unlink(missing_ok=True)
    (project.root / "proc.py").write_text(check_docs.PROC.format(workers=0))
    res = subprocess.run(
        [sys.executable, "proc.py"],
        cwd=project.root,
        env={"PYTHONPATH": f"{project.root}:{ROOT / 'tools'}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert res.returncode == 0 and "Warning" not in res.stderr, res.stderr[-1500:]
    check_site.render(project.root / "_proc", project.root / "site")
    return project.root


def test_rendering_runs_nothing_and_folds_what_was_said(built):
    assert not list(built.rglob("ran")), "a cell was run to render the site"
    nb = json.loads((built / "_proc/reference/60_core.ipynb").read_text())
    text = ["".join(c["source"]) for c in nb["cells"]]
    assert any("code-fold: true" in o and '"Test: double doubles"' in o for o in text)
    assert [o.count("class Shape") for o in text if "class Shape" in o] == [1] and any(
        "<code>Shape(width=8, depth=2)</code>" in o and "class Shape" in o for o in text
    ), "shown source is under the call, and nowhere else"
    assert any(o.startswith("### `double` {#double .doc}") for o in text) and not any(
        "def double" in o for o in text
    )
    assert (
        any("fig-alt" in o for o in text)
        and "/figures/" in text[0]
        and not any("show_doc" in o for o in text)
    )
    assert next(o for o in text if "x19" in o).startswith('#| code-fold: true') and "code-fold" not in next(
        o for o in text if "double(3)" in o
    )
    assert "#| fig-alt" in next(o for o in text if "double(3)" in o)


def test_what_was_rendered_passes_the_checks(built, monkeypatch):
    monkeypatch.setattr(check_site, "find_browser", lambda: None)
    assert check_site.check_site(built / "site") == []
    page = (built / "site/reference/core.html").read_text()
    assert (
        'id="Shape.scaled"' in page
        and '<div class="callout-warning">' in page
        and "<details" in page
        and "[`" not in page
    )


PAGE = '<!doctype html><html lang="en"><head><title>t</title></head><body><main><h1>T</h1><h2 id="a">A</h2><p>Text <a href="#a">here</a> <code>[x](y)</code></p><img src="p.png" alt="a picture"></main></body></html>'


@pytest.mark.parametrize(
    "old,new,words",
    [
        ('href="#a"', 'href="gone.html"', "gone.html, which isn't there"),
        ('href="#a"', 'href="#b"', "has no place of that name"),
        ("here</a>", '<a href="#a">in</a></a>', "a link inside a link"),
        ("Text", "[Text](x.html)", "raw markdown"),
        ("Text", "## Text", "raw markdown"),
        ("Text", "`Text`", "raw markdown"),
        ("Text", "Text {#id .doc}", "raw markdown"),
        (' alt="a picture"', "", "without alt text"),
        ("Text", "<button></button>", "a button without a name"),
        ("Text", "<input name='x'>", "a field without a label"),
        ("<h2", "<h4", "of level 4 under one of level 1"),
        ("Text", '<i id="a"></i>', "given twice"),
        ("<title>t</title>", "", "no title"),
        (' lang="en"', "", "its language"),
    ],
)
def test_each_single_defect_is_found(tmp_path, monkeypatch, old, new, words):
    monkeypatch.setattr(check_site, "find_browser", lambda: None)
    (tmp_path / "p.png").write_bytes(b"png")
    (tmp_path / "index.html").write_text(PAGE)
    assert check_site.check_site(tmp_path) == []
    (tmp_path / "index.html").write_text(PAGE.replace(old, new).replace("</h4", "</h4"))
    found = check_site.check_site(tmp_path)
    assert any(words in o for o in found) and all(o.startswith("index.html: ") for o in found), found


def test_width_contrast_and_scripts_are_seen_in_a_browser(tmp_path):
    if not find_browser():
        pytest.skip("no chromium is installed here: widths and contrast aren't checked")
    (tmp_path / "p.png").write_bytes(b"png")
    (tmp_path / "good.html").write_text(
        PAGE.replace("<title>", '<meta name="viewport" content="width=device-width"><title>')
    )
    (tmp_path / "bad.html").write_text(
        PAGE.replace("<title>", '<meta name="viewport" content="width=device-width"><title>').replace(
            "Text",
            '<p style="color:#aaa">Text</p><div style="width:600px">x</div><script>throw Error("oh")</script>',
        )
    )
    dark = check_site.dark_like_quarto(
        "$body-bg: #14181f;\n$body-color: #222222;\n$link-color: #8ab4f8;\n$code-color: #a8c7fa;"
    )
    (tmp_path / "night.html").write_text(
        PAGE.replace(
            "<title>", f'<meta name="viewport" content="width=device-width"><style>{dark}</style><title>'
        )
    )
    measured = {}
    found = check_site.check_site(tmp_path, measured)
    assert "in the dark: T (h1 rgb(34, 34, 34))" in found.pop(3) and all(
        "in the dark" in o for o in found[3:]
    )
    found = found[:3]
    assert (
        len(found) == 3
        and all(o.startswith("bad.html") for o in found)
        and "contrast" in found[0]
        and "oh" in found[1]
        and "pixels wide" in found[2]
    ), found
    assert measured["good.html"]["phone"] <= 390 and 0 < measured["good.html"]["screens"] < 1


def test_search_finds_prose_and_names_by_the_words_of_others(tmp_path):
    (tmp_path / "p.html").write_text(
        '<main><section id="twice"><h2>Computing twice</h2><p>Gradient checkpointing saves.</p><pre>secret = code</pre><section id="in"><h3>Deeper</h3><p>inner</p></section></section></main>'
    )
    (tmp_path / "search.json").write_text(
        json.dumps(
            [
                dict(
                    href="p.html#twice",
                    title="P",
                    section="Computing twice",
                    text="Gradient checkpointing saves. secret = code",
                ),
                dict(href="q.html", title="Q", text="kept"),
            ]
        )
    )
    groups = finish_site.synonyms(ROOT)
    assert [
        "gradient checkpointing",
        "activation checkpointing",
        "recomputation",
        "rematerialization",
    ] in groups
    assert finish_site.finish_search(tmp_path, groups) == []
    first, second = json.loads((tmp_path / "search.json").read_text())
    assert (
        "secret" not in first["text"]
        and "inner" not in first["text"]
        and "activation checkpointing" in first["text"]
        and second["text"] == "kept"
    )
    assert "isn't there" in finish_site.finish_search(tmp_path / "none", groups)[0].replace(
        "not there", "isn't there"
    )


def test_llms_txt_lists_every_page():
    text = finish_site.llms_txt(ROOT)
    assert (
        text.startswith("# memtrain\n\n> ")
        and "- [Predicting memory](https://memtrain.github.io/memtrain/memory/estimate.html): " in text
    )
    assert text.count("\n- [") == len(finish_site.pages(ROOT))
