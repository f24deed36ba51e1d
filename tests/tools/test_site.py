"What the site makes of the notebooks, and the checks of what was built."

import ast, configparser, json, random, shutil, subprocess, sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest, yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import answers, check_docs, check_site, finish_site, site_pages
from browser import Browser, find_browser
from memtrain import core
from test_tools import PNG, Project, with_output

DEFINED = '''#| exports
@dataclass
class Shape:
    "A shape, whose `width` counts"
    width: int = 8  # numbers
    depth: int = 2  # layers; a comment that is so long that its line would be wider than a hundred characters

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
    f = (
        'def double(\n    n: int,  # a number\n    *, up: bool = False,  # or not\n) -> int:  # twice `n`\n  '
        '  "Twice `n`"\n    return 2*n'
    )
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
        "Shape(\n    width: int = 8  # numbers\n"
        "    # layers; a comment that is so long that its line would be wider than a hundred characters\n"
        "    depth: int = 2\n)"
    )
    text = site_pages.document(ROOT, "https://host/x", source, node_of(source), {}, "", source)
    assert text.startswith(
        "### `Shape` {#Shape .doc}\n\n<span id=\"shape\"></span>A shape, whose `width` counts"
    )
    assert (
        '<summary><code>Shape(width=8, depth=2)</code></summary>\n```\n\n```{.python .signature}\n' + source
        in text
    ), "the call opens to the source that the page shows"
    hidden = site_pages.document(ROOT, "https://host/x", source, node_of(source), {}, "")
    assert (
        "Shape(width=8, depth=2)</code>" in hidden
        and "a hundred characters\n" in hidden
        and "_hidden" not in hidden
    ), "or to the arguments"
    assert (
        '- <span id="Shape.area" class="method">`.area`</span> How large it is\n- <span id="Shape.scaled"'
        ' class="method">`.scaled(by=2)`</span> A copy' in text
    )
    made = (
        "class Made:\n    def __init__(\n        self,\n        n: int,  # how many\n    ):\n       "
        " self.n = n"
    )
    assert site_pages.fields_of(made, node_of(made)) == "Made(\n    n: int,  # how many\n)"


@pytest.mark.parametrize(
    "source,line",
    [
        ("def f(n: int, *rest, up: bool = False, **more) -> int: return n", "f(n, *rest, up=False, **more)"),
        ("@patch\ndef plot(self: Trace, wide=(1, 2)): return 1", "plot(wide=(1, 2))"),
        (
            (
                "@dataclass\nclass Options:\n    key: str  # a key\n    size: int = setting(64, lambda v: v >"
                " 1, 'is less')\n    rest: list = field(default_factory=list)"
            ),
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
        return site_pages.terms_linked(md, terms, "memory/11_plan.ipynb", seen)

    assert (
        linked("## The peak\n\n| peak |\n\n`peak` $peak$ [the peak](x)\n\nA Peak, a peak.")
        == "## The peak\n\n| peak |\n\n`peak` $peak$ [the peak](x)\n\nA"
        " [Peak](../reference/71_glossary.ipynb#term-peak){.term title=\"The most\"}, a peak."
    )
    assert (
        linked("the peak of an activation")
        == 'the peak of an [activation](../reference/71_glossary.ipynb#term-activations){.term title="What is'
        ' kept"}'
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
    known = {"Trace": ("memory/02_measure.ipynb", "Trace"), "plan": ("memory/11_plan.ipynb", "doc-plan")}

    def linked(md):
        return site_pages.linked(md, known, "memory/11_plan.ipynb")

    assert (
        linked("a `Trace`, `plan()`, `other`")
        == "a [`Trace`](02_measure.ipynb#Trace), [`plan()`](#doc-plan), `other`"
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
        site_pages.linked("`Trace`", known, "data/30_shards.ipynb")
        == "[`Trace`](../memory/02_measure.ipynb#Trace)"
    )


def test_small_things_of_a_page():
    assert (
        site_pages.site_name("memory/04_estimate.ipynb") == "memory/estimate.html"
        and site_pages.site_name("index.ipynb") == "index.html"
    )
    assert (
        site_pages.site_html('<a href="memory/04_estimate.ipynb#x">') == '<a href="memory/estimate.html#x">'
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
        == f"`{name}`\n\n| <code>test_<wbr>{'long_<wbr>name_<wbr>' * 3}</code>, `short_name` |"
        f" [`{name}`](x) |"
    )
    assert (
        site_pages.callouts("## Limits\n\nNot for text.").startswith('## Limits\n\n::: {.callout-warning')
        and site_pages.callouts("## Other\n\nx") == "## Other\n\nx"
    )


def test_quarto_can_read_the_options_of_every_cell_of_the_book(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = [check_docs.Page(o) for o in finish_site.pages(ROOT)]
    assert len(pages) > 50 and check_docs.check_options(ROOT, pages) == []


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    "The core page of a tiny project, as nbdev hands it to Quarto."
    project = Project(tmp_path / "p")
    project.core[2:2] = [
        ("md", "Of any `Shape`."),
        ("md", "## Limits\n\nNone of `double`, see [`double`](#double)."),
        ("code", "#| export\nimport math\nfrom pathlib import Path\nPath('ran').write_text('x')"),
    ]
    project.core.append(("code", "\n".join(f"x{i} = {i}" for i in range(20))))
    project.core.append(("code", "#| code-fold: false\n" + "\n".join(f"y{i} = {i}" for i in range(20))))
    defined = DEFINED.replace("#| exports", "#| exports\nfrom dataclasses import dataclass")
    project.core.insert(7, ("code", defined))
    project.save()
    with_output(project, cell="double(3)", output_type="display_data", data={"image/png": PNG})
    project.export()
    for o in project.root.rglob("ran"):
        o.unlink()
    monkeypatch.chdir(project.root)
    assert check_docs.findings(project.root) == []
    return check_docs.Page(project.root / "nbs/reference/88_core.ipynb")


def test_preparing_runs_nothing_and_folds_what_was_said(prepared):
    root = prepared.path.parents[2]
    text = [c.source for c in prepared.prepared]
    assert not list(root.rglob("ran")), "a cell was run to prepare the site"
    assert any("code-fold: true" in o and '"Test: double doubles"' in o for o in text)
    shown = [o for o in text if "class Shape" in o]
    assert len(shown) == 1 and shown[0].count("class Shape") == 1, (
        "source is under its call, and nowhere else"
    )
    assert "<code>Shape(width=8, depth=2)</code>" in shown[0]
    assert any(o.startswith("### `double` {#double .doc}") for o in text)
    assert not any("def double" in o or "show_doc" in o for o in text)
    figure = next(o for o in text if "double(3)" in o)
    assert figure.startswith("#| fig-alt:") and "code-fold" not in figure
    assert next(o for o in text if "x19" in o).startswith("#| code-fold: true")
    assert next(o for o in text if "y19" in o).count("code-fold") == 1, "what a cell says itself stands"
    assert "/figures/" in text[0] and (root / "_proc/figures/88_core.png").is_file()
    colab = "https://colab.research.google.com/github/memtrain/memtrain/blob/main/nbs/reference/88_core.ipynb"
    assert f"]({colab})" in text[1]


# --- the built site ------------------------------------------------------------------------------

PAGE = """<!doctype html><html lang="en">
<head><title>t</title><meta name="viewport" content="width=device-width"></head>
<body><main><h1>T</h1><h2 id="a">A</h2><p>Text <a href="#a">here</a> <code>[x](y)</code></p></main></body>"""


@pytest.mark.parametrize(
    "new", ["[Text](x.html)", "## Text", "`Text`", "Text {#id .doc}", "**Text", "::: {.callout}"]
)
def test_raw_markdown_is_found(tmp_path, monkeypatch, capsys, new):
    monkeypatch.setattr(check_site, "find_browser", lambda: None)
    (tmp_path / "index.html").write_text(PAGE)
    assert check_site.check_site(tmp_path) == [] and "not checked" in capsys.readouterr().err
    (tmp_path / "index.html").write_text(PAGE.replace("Text", f"<br>{new}"))
    assert all("index.html: raw markdown" in o for o in check_site.check_site(tmp_path) or [""])


def test_width_scripts_and_what_axe_finds_are_seen_in_a_browser(tmp_path):
    if not find_browser():
        pytest.skip("no chromium is installed here: widths and contrast aren't checked")
    bad = '<div style="width:600px">x</div><script>throw Error("oh")</script>'
    (tmp_path / "bad.html").write_text(PAGE.replace("</main>", f"{bad}</main>"))
    (tmp_path / "good.html").write_text(PAGE)
    (tmp_path / "axe.js").write_text(
        "axe = {run: async o => ({violations: [{help: 'Say', id: 'alt', nodes: [{target: ['p', 'i']}]}]})}"
    )
    found = check_site.check_site(tmp_path, tmp_path / "none")
    assert len(found) == 2 and "oh" in found[0] and "pixels wide on a phone" in found[1]
    assert all(o.startswith("bad.html: ") for o in found)
    found = check_site.check_site(tmp_path, tmp_path / "axe.js")
    assert found[-1] == "good.html: Say (alt), 1 times, first at p i"
    (tmp_path / "bad.html").write_text(PAGE.replace("</main>", '<img src="x.bin" alt="x"></main>'))
    (tmp_path / "x.bin").write_bytes(random.Random(0).randbytes(check_site.HEAVY))
    (found,) = check_site.check_site(tmp_path, tmp_path / "none")
    assert found.startswith("bad.html: 600 kB with all it loads")


def test_what_links_lead_to_is_asked_of_linkinator(tmp_path):
    links = [dict(url="here.html#x", state="BROKEN", parent="a.html"), dict(url="b", state="OK", parent="a")]
    tool = tmp_path / "linkinator"
    tool.write_text(f"#!/bin/sh\necho '{json.dumps(dict(links=links))}'; exit 1\n")
    tool.chmod(0o755)
    assert check_site.broken_links(tmp_path, tool) == ["a.html: a link to here.html#x, which isn't there"]


def test_search_finds_prose_and_names_by_the_words_of_others(tmp_path):
    (tmp_path / "p.html").write_text(
        '<main><div class="description">Less memory</div><p>It begins.</p><section id="twice">'
        "<h2>Computing twice</h2><p>Checkpointing saves.</p><pre>secret = code</pre>"
        '<section id="in"><h3>Deeper</h3><p>inner</p></section></section></main>'
    )
    entries = [
        dict(href="p.html", title="P", text="Less memory It begins. secret = code"),
        dict(href="p.html#twice", title="P", section="Computing twice", text="Checkpointing saves. secret"),
        dict(href="solutions/p.html", title="Solutions", text="the answer"),
        dict(href="gone.html", title="Gone", text="no such page"),
        dict(href="answers/a.html", title="How much", text="it all"),
        dict(href="answers/a.html#card", title="How much", section="Card", text="of a card"),
    ]
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers/a.html").write_text(
        "<main><p>it all</p><section id='card'>of a card</section></main>"
    )
    (tmp_path / "search.json").write_text(json.dumps(entries))
    others = finish_site.synonyms(ROOT)
    known = others["training/checkpointing.html"]
    assert known[:2] == ["gradient checkpointing", "activation checkpointing"], "for the page that defines it"
    assert "FSDP" in others["training/ranks.html"] and "FSDP" not in others["experts/traces.html"]
    assert finish_site.finish_search(tmp_path, {"p.html": ["recomputation", "recomputation"]}) == []
    page, word, begins, section, answer = json.loads((tmp_path / "search.json").read_text())
    assert page["text"] == "Less memory" and "section" not in page
    assert word["section"] == "recomputation" and word["title"] == "P" and word["href"].startswith("p.html#")
    assert begins["href"].startswith("p.html#") and "It begins." in begins["text"]
    assert "secret" not in section["text"] and "inner" not in section["text"]
    assert "recomputation" not in section["text"], "other words stand with the page, not with each section"
    assert answer["href"] == "answers/a.html" and answer["title"] == "How much"
    assert "not there" in finish_site.finish_search(tmp_path / "none", {})[0]


def test_questions_in_a_sentence_are_ranked_by_their_words():
    if not shutil.which("node"):
        pytest.skip("Node isn't installed here: the search isn't run")
    entries = [
        dict(title="Planning", section="Which card fits?", text="The largest model that fits a card."),
        dict(title="Tokenizers", text="Two engines, one of them fast."),
        dict(title="Loading batches", section="Resuming", text="A loader goes on where it was."),
        dict(title="Killed and resumed", text="What a checkpoint of training holds."),
    ]
    script = f"""{finish_site.SENTENCES.read_text(encoding="utf-8")}
      const titles = words => rankByWords(words, {json.dumps(entries)}).map(o => o.title);
      const asked = ['Does my model fit the GPU?', 'how do I resume training after a crash', 'is it',
        'tokenizer'];
      console.log(JSON.stringify(asked.map(titles)));"""
    run = subprocess.run(["node", "-"], input=script, capture_output=True, text=True, check=True)
    fits, resumes, nothing, one_word = json.loads(run.stdout)
    assert fits == ["Planning"] and resumes[0] == "Killed and resumed"
    assert nothing == one_word == [], "a single word is found as it is"


def test_the_search_of_quarto_is_given_sentences(tmp_path):
    assert "not there" in finish_site.answer_sentences(tmp_path)[0]
    path = tmp_path / "site_libs/quarto-search/quarto-search.js"
    path.parent.mkdir(parents=True)
    path.write_text("async function fuseSearch() {}\n")
    assert finish_site.answer_sentences(tmp_path) == []
    made = path.read_text(encoding="utf-8")
    assert made.startswith("async function fuseSearch() {}\n") and "fuseSearch = async" in made


def test_a_table_that_is_too_wide_for_a_phone_is_cards_there(tmp_path):
    if not find_browser():
        pytest.skip("no chromium is installed here: the table isn't tried in a browser")
    script = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))["format"]["html"]
    names = ["name", *(f"a_rather_long_name {i}" for i in range(5))]
    table = "".join(
        f"<{part}><tr>{''.join(f'<{cell}>{o}</{cell}>' for o in row)}</tr></{part}>"
        for part, cell, row in (
            ("thead", "th", names),
            ("tbody", "td", ["<b>it</b> is", *map(str, range(5))]),
        )
    )
    page = tmp_path / "page.html"
    page.write_text(
        '<!doctype html><meta name="viewport" content="width=device-width"><style>'
        f"{(ROOT / 'nbs/styles.css').read_text(encoding='utf-8')}</style><main><table>{table}</table>"
        f"<table><thead><tr><th>a<th>b</thead><tr><td>1<td>2</table></main>"
        f"{script['include-after-body'][0]['text']}",
        encoding="utf-8",
    )
    classes = "[...document.querySelectorAll('table')].map(o => o.className)"
    said = "getComputedStyle(document.querySelectorAll('tbody td')[2], '::before').content"
    with Browser() as b:
        b.open(page, width=390)
        assert b.run(classes) == ["cards", ""], "one that fits stays as it is"
        assert b.run("document.querySelector('table').scrollWidth") <= 390 - 16
        assert b.run(said) == '"a_rather_long_name 1"'
        assert b.run("document.querySelector('td').textContent") == "it is"
        b.open(page, width=1440)
        assert b.run(classes) == ["", ""]


def test_search_engines_are_not_led_to_solutions(tmp_path):
    url = "  <url>\n    <loc>https://host/{}</loc>\n    <lastmod>2026</lastmod>\n  </url>\n"
    text = (
        "<urlset>\n"
        + url.format("a.html")
        + url.format("solutions/a.html")
        + url.format("b.html")
        + "</urlset>\n"
    )
    (tmp_path / "sitemap.xml").write_text(text)
    finish_site.finish_sitemap(tmp_path)
    left = (tmp_path / "sitemap.xml").read_text()
    assert "solutions" not in left and left.count("<url>") == left.count("</url>") == 2


def test_pictures_have_words_beneath_and_words_for_who_cant_see_them():
    assert (
        site_pages.captioned('A.\n\n![Bars](x.svg "What it costs")\n')
        == 'A.\n\n![What it costs](x.svg){fig-alt="Bars"}\n'
    )
    assert site_pages.captioned("![Bars](x.svg)") == '![](x.svg){fig-alt="Bars"}'
    same = "In a line ![Bars](x.svg) of text"
    assert site_pages.captioned(same) == same


def test_html_that_a_cell_shows_stands_beside_it():
    shown = dict(output_type="display_data", data={"text/html": "<b>1</b>", "text/plain": "1"})
    printed = dict(output_type="stream", name="stdout", text="2")
    cell = site_pages.mk_cell("x", "code")
    cell.outputs = [shown, printed]
    first, second = site_pages.as_html(cell)
    assert first.outputs == [printed] and "<b>1</b>" in second.source and second.cell_type == "markdown"
    hidden = site_pages.mk_cell("#| echo: false\nx", "code")
    hidden.outputs = [shown]
    assert [o.cell_type for o in site_pages.as_html(hidden)] == ["markdown"]


def test_answers_lead_to_the_calculator_as_they_were_asked():
    from memtrain.families import list_models, predict_step, read_model
    from memtrain.plan import usable_memory

    names = list_models()
    titles = [answers.title(o) for o in names]
    assert len(set(titles)) == len(names) and {"Llama 3.1 8B", "Qwen 2.5 7B", "GPT-2 XL"} <= {*titles}
    page = answers.answer("llama-3.1-8b")
    step, held = answers.asked("llama-3.1-8b")["QLoRA"]
    assert f"[**{core.format_size(held.peak)}**]({answers.address('llama-3.1-8b', step, 'rtx3090')})" in page
    fields = dict(parse_qsl(urlsplit(answers.address("llama-3.1-8b", step, "rtx3090")).query))
    form = (ROOT / "tools/calculator.html").read_text(encoding="utf-8")
    assert fields["load_in_4bit"] == "1" and all(f'name="{o}"' in form for o in fields)
    most = answers.most_windows("llama-3.1-8b", step, "rtx3090")
    shape = read_model("llama-3.1-8b", step.seq_len)
    fits = [
        predict_step(shape, replace(step, batch_size=n), "rtx3090").peak <= usable_memory("rtx3090")
        for n in (most, most + 1)
    ]
    assert fits == [True, False] and f">{most}<" not in page and f"[{most}](" in page
    assert "[Llama 3.1 8B](llama-3.1-8b.html) | 8.03B |" in answers.overview(["llama-3.1-8b", "gpt2"])


def test_answers_about_our_own_gpt_say_so_and_all_have_the_book_beside_them():
    from memtrain.families import predict_step, shape_of
    from memtrain.model import NAMED_MODELS, GPTConfig

    page, (step, held) = answers.answer("gpt2"), answers.asked("gpt2")["as usual"]
    assert held == predict_step(shape_of(GPTConfig(**NAMED_MODELS["gpt2"])), step)
    assert step.seq_len == 1024 and "--model_name gpt2 " in page and "--model gpt2" not in page
    assert "LoRA" not in answers.asked("gpt2"), "no adapters are trained beside it"
    sidebars = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))["website"]["sidebar"]
    assert answers.SIDEBAR in [o["id"] for o in sidebars]
    for made in (page, answers.overview(["gpt2"])):
        assert yaml.safe_load(made.split("---")[1])["sidebar"] == answers.SIDEBAR


def test_llms_txt_lists_every_page():
    text = finish_site.llms_txt(ROOT)
    assert (
        text.startswith("# memtrain\n\n> ")
        and "- [Predicting memory](https://memtrain.github.io/memtrain/memory/estimate.html): " in text
    )
    assert text.count("\n- [") == len(finish_site.pages(ROOT))


def test_one_address_everywhere():
    conf = configparser.ConfigParser()
    conf.read(ROOT / "settings.ini")
    conf, web = conf["DEFAULT"], yaml.safe_load((ROOT / "_quarto.yml").read_text())["website"]
    site = conf["doc_host"] + conf["doc_baseurl"]
    assert [web["site-url"], web["repo-url"], web["repo-branch"]] == [site, conf["git_url"], conf["branch"]]
    project = (ROOT / "pyproject.toml").read_text()
    assert f'Homepage = "{site}"' in project and f'Repository = "{conf["git_url"]}"' in project
