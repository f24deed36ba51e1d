"The developer tools, on tiny projects: a clean one passes, and each single defect is found."

import base64, copy, io, json, os, subprocess, sys
from pathlib import Path

import pytest
from execnb import nbio
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_docs, check_house, check_sync, common, export, export_tests, make_readme, run_notebooks, stale

SETTINGS = """[DEFAULT]
repo = memtrain
lib_name = memtrain
version = 0.1.0
user = memtrain
author = The memtrain authors
description = d
branch = main
doc_host = https://memtrain.github.io
doc_baseurl = /memtrain
git_url = https://github.com/memtrain/memtrain
nbs_path = nbs
lib_path = memtrain
custom_sidebar = True
procs = site_pages:ForSite
skip_procs = exec_show_docs,add_links,add_fold
update_pyproject = False
tst_flags = slow cuda net
allowed_metadata_keys = ran
"""
QUARTO = """project:
  type: website
format:
  html:
    css: styles.css
website:
  title: memtrain
  navbar:
    left: [{text: Book, href: index.ipynb}]
  sidebar:
    contents:
      - index.ipynb
      - section: Part
        contents: [reference/88_core.ipynb]
"""
DEF = (
    '#| export\ndef double(\n    n: int,  # a number\n) -> int:  # twice `n`\n    "Twice `n`."\n   '
    ' return 2*n'
)
TEST = "#| test\ndef test_double_doubles(): assert double(2) == 4\n\ntest_double_doubles()"
CORE = [
    ("md", "# Core\n> Twice as much"),
    ("md", "## A part\n\nSee [the start](../index.ipynb#first-steps) and [here](#a-part)."),
    ("code", "#| default_exp core"),
    ("code", "#| export\nimport math"),
    ("code", DEF),
    ("code", "double(3)", "6"),
    ("code", TEST),
]
INDEX = [
    ("md", "# memtrain\n> It fits"),
    (
        "md",
        (
            "## First steps\n\n`double` is in [the core](reference/88_core.ipynb#double). ![a"
            " picture](images/a.png)"
        ),
    ),
    ("code", "#| hide\nfrom memtrain.core import *"),
    ("code", "double(4)", "8"),
]


def cell(i, kind, source, text=None):
    "A notebook cell, its output being the repr `text`."
    res = dict(
        cell_type={"md": "markdown"}.get(kind, kind), id=f"c{i}", metadata={}, source=source.splitlines(True)
    )
    if kind != "code":
        return res
    out = dict(output_type="execute_result", execution_count=None, metadata={}, data={"text/plain": [text]})
    return res | dict(execution_count=None, outputs=[out] if text else [])


def write_nb(path, cells):
    "Write a notebook made of `cells` as nbdev_clean leaves it."
    root = next(o for o in path.parents if (o / "settings.ini").exists())
    ran = {f"c{i}": stale.fingerprint(root, o[1]) for i, o in enumerate(cells) if len(o) > 2}
    nb = dict(
        cells=[cell(i, *o) for i, o in enumerate(cells)],
        metadata={"ran": ran} if ran else {},
        nbformat=4,
        nbformat_minor=5,
    )
    path.write_text(json.dumps(nb, sort_keys=True, indent=1, ensure_ascii=False) + "\n")


class Project:
    "A tiny project in `root` whose notebooks can be changed."

    def __init__(self, root):
        self.root, self.core, self.index = root, copy.deepcopy(CORE), copy.deepcopy(INDEX)
        for o in ("nbs/images", "nbs/reference", "nbs/proofs", "tests", "memtrain"):
            (root / o).mkdir(parents=True)
        (root / "settings.ini").write_text(SETTINGS)
        (root / "_quarto.yml").write_text(QUARTO)
        (root / "nbs/_quarto.yml").symlink_to("../_quarto.yml")
        (root / "nbs/styles.css").write_text("")
        (root / "nbs/images/a.png").write_bytes(b"png")
        (root / "CONTRIBUTING.md").write_text(
            "# How\n\n[top](#how) [core](nbs/reference/88_core.ipynb#a-part)\n"
        )
        self.save()

    def save(self):
        write_nb(self.root / "nbs/reference/88_core.ipynb", self.core)
        write_nb(self.root / "nbs/index.ipynb", self.index)
        export.fold_cells(self.root)
        return self

    def add(self, *cells, page="core"):
        getattr(self, page).extend(cells)
        return self.save()

    def write(self, name, text):
        (self.root / name).write_text(text)
        return self

    def export_tests(self):
        return export_tests.export_tests(self.root)

    def docs(self):
        here = os.getcwd()
        try:
            return check_docs.findings(self.root)
        finally:
            os.chdir(here)

    def export(self):
        "Run tools/export.py here, in its own process."
        env = {k: v for k, v in os.environ.items() if k != "IN_TEST"}
        return subprocess.run(
            [sys.executable, str(ROOT / "tools/export.py")],
            cwd=self.root,
            env=env,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def project(tmp_path, monkeypatch):
    # tmp_path is a path of one machine, which the checks know by name: nothing here stores it.
    return Project(tmp_path / "p")


def only(lines, *words):
    "`lines` is one finding, which has all of `words`."
    assert len(lines) == 1, lines
    assert "\n" not in lines[0]
    for o in words:
        assert o in lines[0], lines[0]


# --- export_tests --------------------------------------------------------------------------------


def test_export_tests_writes_functions_without_calls(project):
    assert project.export_tests() == []
    text = (project.root / "tests/test_core.py").read_text()
    assert "AUTOGENERATED! DO NOT EDIT! File to edit: ../nbs/reference/88_core.ipynb." in text
    assert (
        "from memtrain.core import *" in text and "def test_double_doubles(): assert double(2) == 4" in text
    )
    assert "pytest.mark" not in text and "\ntest_double_doubles()" not in text
    assert project.export_tests() == [] and (project.root / "tests/test_core.py").read_text() == text


def test_export_tests_keeps_helpers_comments_and_decorators(project):
    src = (
        "#| test\nfrom __future__ import annotations\nimport math\n\nONE = 1\n\n# why it matters\ndef"
        " helper(): return ONE\n\n@mark(\n    1)\ndef test_b():\n    # inner\n    assert helper() =="
        " 1\n\nhelper()\ntest_b()  # run"
    )
    assert project.add(("code", src)).export_tests() == []
    text = (project.root / "tests/test_core.py").read_text()
    assert text.index("from __future__") < text.index("from memtrain.core import *")
    kept = "# why it matters\ndef helper(): return ONE\n\n@mark(\n    1)\ndef test_b():\n    # inner\n"
    assert kept in text
    assert "\nhelper()\n" in text and "# run" not in text


@pytest.mark.parametrize("flag", ["slow", "cuda", "net"])
def test_export_tests_turns_flags_into_marks(project, flag):
    project.add(("code", f"#| test\n#| {flag}\n@deco\ndef test_b(): assert 1\ntest_b()"))
    assert project.export_tests() == []
    text = (project.root / "tests/test_core.py").read_text()
    assert f"@pytest.mark.{flag}\n@deco\ndef test_b()" in text and text.count("pytest.mark") == 1
    assert text.index("import pytest") < text.index("from memtrain.core")


def test_proofs_follow_their_page_in_one_file(project):
    proofs = project.root / "nbs/proofs/core.ipynb"
    write_nb(
        proofs,
        [
            ("md", "# Proofs"),
            ("code", "from memtrain.core import *"),
            ("code", "#| test\ndef helper(): return 0"),
            ("code", "#| test\ndef test_edge(): assert double(helper()) == 0\ntest_edge()"),
        ],
    )
    project.add(("code", "#| test\ndef helper(): return 0"))
    assert project.export_tests() == []
    text = (project.root / "tests/test_core.py").read_text()
    assert text.index("\ndef test_double_doubles") < text.index(
        "\ndef test_edge(): assert double(helper()) == 0"
    )
    assert text.count("def helper()") == 1  # what both need stands in both, and here once
    write_nb(proofs, [("code", TEST)])
    only(
        project.export_tests(),
        "nbs/proofs/core.ipynb",
        "`test_double_doubles` is defined in nbs/reference/88_core.ipynb too",
    )


@pytest.mark.parametrize(
    "source,words",
    [
        ("def test_b(): assert 1", ["test_b", "without '#| test'"]),
        ("#| export\ndef test_b(): assert 1", ["test_b", "without '#| test'"]),
        ("%time\ndef test_b(): assert 1", ["test_b", "without '#| test'"]),
        ("#| test\ndef test_b(): assert 1", ["test_b", "never called"]),
        ("#| test\ndef test_b(): assert 1\nfor f in [test_b]: f()", ["test_b", "never called"]),
        ("#| test\ndef test_b(): assert 1\ndef test_c(): assert 1\ntest_b()", ["test_c", "never called"]),
        (
            "#| test\ndef test_double_doubles(): assert 1\ntest_double_doubles()",
            ["test_double_doubles", "cell 7"],
        ),
        ("#| test\n#| export\ndef test_b(): assert 1\ntest_b()", ["#| export", "split"]),
        ("#| test\n%time x\n", ["magics"]),
        ("#| test\ndef test_b(): assert 1\nx = 1; test_b()", ["x = 1; test_b()", "line of its own"]),
    ],
)
def test_export_tests_finds(project, source, words):
    project.add(("code", source))
    only(project.export_tests(), "nbs/reference/88_core.ipynb cell 8", *words)
    assert not list((project.root / "tests").glob("test_*.py")), "nothing is written when something is wrong"


def test_export_tests_needs_a_module(project):
    only(
        project.add(("code", "#| test\ndef test_b(): assert 1\ntest_b()"), page="index").export_tests(),
        "nbs/index.ipynb",
        "default_exp",
    )


def test_export_tests_deletes_only_generated_files(project):
    project.export_tests()
    project.write("tests/test_hand.py", "def test_hand(): assert 1\n")
    (project.root / "nbs/reference/88_core.ipynb").unlink()
    assert project.export_tests() == []
    assert [o.name for o in (project.root / "tests").glob("*.py")] == ["test_hand.py"]


# --- check_docs ----------------------------------------------------------------------------------


def test_docs_of_a_clean_project_pass(project):
    assert project.docs() == []


def with_output(project, cell="double(3)", **output):
    "Give the example `cell` of the core page this output as well."
    path = project.root / "nbs/reference/88_core.ipynb"
    nb = json.loads(path.read_text())
    shown = next(o for o in nb["cells"] if o["source"] == [cell])
    shown["outputs"].append(dict(metadata={}) | output)
    path.write_text(json.dumps(nb))


@pytest.mark.parametrize(
    "md,words",
    [
        ("[x](09_gone.ipynb)", ["09_gone.ipynb", "isn't there"]),
        ("[x](../index.ipynb#nowhere)", ["index.ipynb", "nowhere"]),
        ("[x](#nowhere)", ["nowhere"]),
        ("[x](core.html)", ["core.html"]),
        ("![x](images/gone.png)", ["link to images/gone.png"]),
        ('<img src="images/gone.png" alt="x">', ["link to images/gone.png"]),
        ("![](../images/a.png)", ["without alt text", "a.png"]),
        ('<img src="../images/a.png">', ["without alt text"]),
        ("[x](https://github.com/memtrain/memtrain/blob/main/gone.py)", ["isn't in the repository"]),
        ("[x]\n\n[x]: gone.md", ["gone.md"]),
        ("[![x](images/gone.png)](../index.ipynb)", ["link to images/gone.png"]),
        ("[x](../../CONTRIBUTING.md)", ["outside nbs/"]),
        ("kept in /home/ann/data", ["source", "/home/a"]),
    ],
)
def test_docs_find_in_prose(project, md, words):
    only(project.add(("md", md)).docs(), "nbs/reference/88_core.ipynb", *words)


def test_docs_let_code_and_urls_be(project):
    md = "`[x](gone.md)` [x](https://e.org/home/x) [a](mailto:a@b.c)\n\n```\n[x](gone.md)\n```\n"
    assert project.add(("md", md)).docs() == []


def test_docs_check_markdown_files(project):
    only(
        project.write("CHANGELOG.md", "[x](nbs/reference/88_core.ipynb#gone)").docs(), "CHANGELOG.md", "gone"
    )


@pytest.mark.parametrize(
    "output,words",
    [
        (dict(output_type="error", ename="KeyError", evalue="x", traceback=[]), ["stored error, KeyError"]),
        (dict(output_type="stream", name="stderr", text=["w"]), ["stderr"]),
        (dict(output_type="stream", name="stdout", text=["in /root/x"]), ["output", "/root"]),
        (dict(output_type="stream", name="stdout", text=["in '/tmp/x'"]), ["output", "/tmp/"]),
        (
            dict(output_type="display_data", metadata={}, data={"text/html": ["<p>C:\\Users\\x"]}),
            ["output", "Users"],
        ),
        (
            dict(output_type="display_data", metadata={}, data={"text/markdown": ["[x](gone.md)"]}),
            ["gone.md"],
        ),
    ],
)
def test_docs_find_in_outputs(project, output, words):
    with_output(project, **output)
    only(project.docs(), "nbs/reference/88_core.ipynb", *words)


def test_docs_find_a_result_whose_command_is_gone(project):
    (project.root / "results").mkdir()
    (project.root / "results/a.json").write_text('{"command": "make run NB=nbs/reference/88_core.ipynb"}')
    assert project.docs() == []
    (project.root / "results/b.json").write_text('{"command": "python benchmarks/gone.py --save"}')
    only(project.docs(), "results/b.json", "benchmarks/gone.py, which is gone")


def test_docs_find_own_path(project):
    with_output(project, output_type="stream", name="stdout", text=[f"{project.root}/x"])
    only(project.docs(), "path of one machine")


@pytest.mark.parametrize(
    "source,words",
    [
        ('#| export\ndef b(n): "D."', ["argument `n` of `b`"]),
        ('#| export\nclass b:\n    "D."\n    def __init__(self, x): pass', ["argument `x` of `b.__init__`"]),
        ('#| export\n@patch\ndef b(self: int, k): "D."', ["argument `k` of `int.b`"]),
        ('#| export\n#| hide\ndef b(): "D."', ["`b`", "hidden"]),
    ],
)
def test_docs_find_in_definitions(project, source, words):
    only(project.add(("code", source), ("md", "uses b")).docs(), *words)


@pytest.mark.parametrize(
    "source", ['#| export\ndef lone(): "D."', "#| export\nlone = 1", '#| exports\nclass lone: "D."']
)
def test_docs_find_a_name_never_shown(project, source):
    seen_only_in_tests = ("code", "#| test\ndef test_lone(): lone\ntest_lone()")
    only(
        project.add(("code", source), seen_only_in_tests, ("code", "#| hide\nlone")).docs(),
        "`lone`",
        "never shown",
    )


def test_docs_let_private_names_be(project):
    assert (
        project.add(
            ("code", "#| export\ndef _b(n): return n"), ("code", "#| exporti\ndef c(n): return n")
        ).docs()
        == []
    )


@pytest.mark.parametrize(
    "old,new,words",
    [
        ("    css: styles.css", "    css: gone.css", ["gone.css"]),
        ("href: index.ipynb", "href: gone.ipynb", ["gone.ipynb"]),
        ("[reference/88_core.ipynb]", "[reference/88_core.ipynb, 01_gone.ipynb]", ["01_gone.ipynb"]),
        ("contents: [reference/88_core.ipynb]", "contents: []", ["nbs/reference/88_core.ipynb", "sidebar"]),
    ],
)
def test_docs_find_in_quarto_yml(project, old, new, words):
    assert old in QUARTO
    only(project.write("_quarto.yml", QUARTO.replace(old, new, 1)).docs(), *words)


@pytest.mark.parametrize("how", ["missing", "copy"])
def test_docs_find_a_missing_link_to_quarto_yml(project, how):
    link = project.root / "nbs/_quarto.yml"
    link.unlink()
    if how == "copy":
        link.write_text(QUARTO)
    only(project.docs(), "nbs/_quarto.yml", "ln -s")


@pytest.mark.parametrize(
    "i,source,words",
    [
        (0, "# Core", ["subtitle"]),
        (0, "Core\n> x", ["subtitle"]),
        (0, "# Core\n> x\n\nAnd more.", ["title cell"]),
        (2, "#| default_exp cor", ["default_exp is cor"]),
    ],
)
def test_docs_find_in_titles(project, i, source, words):
    project.core[i] = (project.core[i][0], source)
    only(project.save().docs(), "nbs/reference/88_core.ipynb", *words)


def test_docs_find_a_notebook_never_run(project):
    project.core[5] = ("code", "double(3)")
    only(project.save().docs(), "nbs/reference/88_core.ipynb", "no cell has an output")


def test_docs_find_an_old_calculator(project):
    (project.root / "nbs/assets").mkdir()
    project.write("nbs/assets/calculator.html", '<div class="mt-calc">1</div>')
    for text, lines in (
        ('<h2>Fits?</h2><div class="mt-calc">1</div>', 0),
        ('<div class="mt-calc">0</div>', 1),
    ):
        project.save()
        with_output(project, output_type="display_data", metadata={}, data={"text/html": [text]})
        found = project.docs()
        assert len(found) == lines and all("calculator is older" in o for o in found), found


def test_docs_find_a_broken_notebook(project):
    assert (
        "nbs/reference/88_core.ipynb: not a notebook"
        in project.write("nbs/reference/88_core.ipynb", "{").docs()[0]
    )


@pytest.mark.parametrize(
    "text,pandoc,github",
    [
        ("First steps", "first-steps", "first-steps"),
        ("1. What it costs, and why?", "what-it-costs-and-why", "1-what-it-costs-and-why"),
        ("`nbytes` and [units](x.md)", "nbytes-and-units", "nbytes-and-units"),
        ("KiB vs. kB", "kib-vs.-kb", "kib-vs-kb"),
        ("12", "section", "12"),
    ],
)
def test_heading_ids(text, pandoc, github):
    assert common.anchors(f"## {text}") == {pandoc} and common.anchors(f"# {text}", github=True) == {github}


def test_repeated_headings_are_numbered():
    assert common.anchors("# A\n# A\n# B {#b1}") == {"a", "a-1", "b1"}


# --- what runs nbdev: a process each -------------------------------------------------------------


def test_sync_finds_what_was_not_exported(project):
    assert project.export().returncode == 0
    assert check_sync.check_sync(project.root) == []
    before = {o: o.read_bytes() for o in project.root.rglob("*") if o.is_file()}
    project.core[4] = ("code", DEF.replace("2*n", "n+n"))
    project.save()
    before[project.root / "nbs/reference/88_core.ipynb"] = (
        project.root / "nbs/reference/88_core.ipynb"
    ).read_bytes()
    (project.root / "tests/test_core.py").unlink()
    del before[project.root / "tests/test_core.py"]
    lines = check_sync.check_sync(project.root)
    assert lines == [
        (
            "memtrain/core.py differs from what nbs/reference/88_core.ipynb exports: run 'make export' and"
            " commit the result"
        ),
        (
            "tests/test_core.py is missing, nbs/reference/88_core.ipynb exports it: run 'make export' and"
            " commit the result"
        ),
    ]
    assert {o: o.read_bytes() for o in project.root.rglob("*") if o.is_file()} == before, (
        "the working tree isn't touched"
    )


def test_sync_finds_stale_files_unclean_notebooks_and_bad_tests(project):
    project.export()
    project.write(
        "memtrain/gone.py", '# AUTOGENERATED! DO NOT EDIT! File to edit: ../nbs/data/05_gone.ipynb.\n'
    )
    path = project.root / "nbs/index.ipynb"
    path.write_text(path.read_text().replace('"execution_count": null', '"execution_count": 7', 1))
    lines = check_sync.check_sync(project.root)
    assert (
        len(lines) == 2
        and lines[0].startswith("memtrain/gone.py comes from data/05_gone.ipynb")
        and "nbdev_clean" in lines[1]
    )
    project.core[6] = ("code", TEST.replace("#| test\n", ""))
    only(check_sync.check_sync(project.save().root), "test_double_doubles", "#| test")


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


# --- make_readme ---------------------------------------------------------------------------------


def test_readme_links_work_from_the_top(project):
    modidx = (
        "d = dict(settings=dict(doc_host='https://h', doc_baseurl='/b', git_url='g', branch='main'),"
        " syms={'memtrain.core': {'memtrain.core.double': ('core.html#double', 'memtrain/core.py')}})"
    )
    project.write("memtrain/_modidx.py", modidx)
    assert make_readme.make_readme(project.root) == []
    text = (project.root / "README.md").read_text()
    assert (
        "[the core](nbs/reference/88_core.ipynb#double)" in text and "![a picture](nbs/images/a.png)" in text
    )
    assert "[`double`](https://h/b/core.html#double)" in text
    assert "```python\ndouble(4)\n```" in text and "    8" in text
    assert "from memtrain.core" not in text and "#|" not in text
    make_readme.make_readme(project.root)
    assert (project.root / "README.md").read_text() == text


def test_readme_refuses_an_image_output(project):
    path = project.root / "nbs/index.ipynb"
    nb = json.loads(path.read_text())
    nb["cells"][3]["outputs"][0]["data"]["image/png"] = "AAAA"
    path.write_text(json.dumps(nb))
    only(make_readme.make_readme(project.root), "nbs/index.ipynb cell 4", "image")


# --- run_notebooks -------------------------------------------------------------------------------


def run(project):
    return run_notebooks.main([str(project.root / "nbs/reference/88_core.ipynb")])


def outputs(project):
    return [
        o.get("outputs")
        for o in json.loads((project.root / "nbs/reference/88_core.ipynb").read_text())["cells"]
    ]


def test_run_stores_outputs_and_keeps_skipped_ones(project):
    project.core = [
        ("md", "# A\n> b"),
        ("code", "n = 3\nobject()", "old"),
        ("code", "#| slow\nn = 4", "kept"),
        ("code", "#| eval: false\nn = 5", "kept"),
        ("code", "n"),
        ("code", "n = 6", "old"),
        ("code", "import matplotlib.pyplot as plt"),
        ("code", "plt.plot([1, 2]);"),
    ]
    assert run(project.save()) == 0
    out = outputs(project)
    texts = [o and o[0].get("data", {}).get("text/plain") for o in out]
    assert texts[1:5] == [["<object>"], ["kept"], ["kept"], ["3"]] and out[5] == []
    assert len(out[7]) == 1 and set(out[7][0]["data"]) == {"image/png", "text/plain"}
    figure = Image.open(io.BytesIO(base64.b64decode("".join(out[7][0]["data"]["image/png"]))))
    # with a palette, a third of the size
    assert figure.mode == "P" and figure.info["dpi"] == pytest.approx((100, 100), abs=0.1)


def test_run_leaves_a_notebook_that_fails(project, capfd):
    project.add(("code", "print('x')\n1/0"))
    before = (project.root / "nbs/reference/88_core.ipynb").read_bytes()
    assert run(project) == 1
    assert (project.root / "nbs/reference/88_core.ipynb").read_bytes() == before
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(
    "source,said",
    [
        ("import sys; print('careful', file=sys.stderr)", "careful"),
        ("import warnings; warnings.warn('soon gone')", "soon gone"),
    ],
)
def test_run_refuses_a_page_that_writes_to_stderr(project, capfd, source, said):
    project.add(("code", source))
    before = (project.root / "nbs/reference/88_core.ipynb").read_bytes()
    assert (
        run(project) == 1
        and run_notebooks.main(["--check", str(project.root / "nbs/reference/88_core.ipynb")]) == 1
    )
    assert (project.root / "nbs/reference/88_core.ipynb").read_bytes() == before
    told = capfd.readouterr()
    assert (
        "nbs/reference/88_core.ipynb cell 8 wrote to stderr" in told.err
        and said in told.err
        and "left as it was" in told.out
    )


# --- stale outputs -------------------------------------------------------------------------------


def test_an_output_is_stale_when_what_it_shows_has_changed(project):
    project.export()
    stale.definitions.cache_clear()
    assert (
        run_notebooks.main(
            [str(project.root / "nbs/index.ipynb"), str(project.root / "nbs/reference/88_core.ipynb")]
        )
        == 0
        and project.docs() == []
    )
    module = project.root / "memtrain/core.py"
    module.write_text(module.read_text().replace("return 2*n", "return n + n"))
    stale.definitions.cache_clear()
    lines = project.docs()
    assert (
        len(lines) == 2
        and "nbs/index.ipynb: 1 outputs are older" in lines[0]
        and "nbs/reference/88_core.ipynb: 1 outputs are older" in lines[1]
        and "cell 6" in lines[1]
    )


def test_layout_docstrings_comments_annotations_and_imports_leave_a_fingerprint_as_it_is(tmp_path):
    (tmp_path / "memtrain").mkdir()

    def fingerprint(code, cell):
        (tmp_path / "memtrain/core.py").write_text(code)
        stale.definitions.cache_clear()
        return stale.fingerprint(tmp_path, cell)

    plain = fingerprint("def twice(n): return 2*n", "twice(3)")
    same = 'def twice(\n    n: int,  # any\n) -> int:\n    "Two of `n`"\n    return 2 * n'
    assert fingerprint(same, "twice( 3 )  # six") == plain
    assert fingerprint("import math\ndef twice(n):\n    import re\n    return 2*n", "twice(3)") == plain
    assert fingerprint("def twice(n): return 2*n", "twice(4)") != plain
    assert fingerprint("def twice(n): return n*3", "twice(3)") != plain


def test_help_that_is_shown_goes_stale_with_a_field_that_a_command_inherits(tmp_path):
    (tmp_path / "memtrain").mkdir()
    cli = (
        'class Flags:\n    n: int = 1  # how many\nclass Sow(Flags): "Sow"\nclass Reap: "Reap"\nCOMMANDS ='
        ' {"sow": Sow, "reap": Reap}\n'
    )

    def fingerprints():
        stale.definitions.cache_clear()
        return [stale.fingerprint(tmp_path, f"sh('{o} --help')") for o in ("sow", "reap")]

    (tmp_path / "memtrain/cli.py").write_text(cli)
    before = fingerprints()
    (tmp_path / "memtrain/cli.py").write_text(cli.replace("how many", "how few"))
    after = fingerprints()
    assert before[0] != after[0] and before[1] == after[1]


# --- the house -----------------------------------------------------------------------------------

HOUSE = {
    "core": "def nap(): pass\n_own = 1\n",
    "rooms": "from .core import nap\nclass Bed: pass\nclass Sofa(Bed): pass\n",
}
SLICES = "".join(f"class _A{i}: pass\nclass B{i}(_A{i}): pass\n" for i in range(6))


@pytest.mark.parametrize(
    "module,more,words",
    [
        ("core", "def late():\n    from memtrain.rooms import Bed\n", ["circle", "core → rooms → core"]),
        ("core", "from memtrain import rooms\n", ["circle"]),
        ("rooms", "from .core import _own\n", ["rooms.py", "_own from core"]),
        ("rooms", "class Bunk(Sofa): pass\n", ["Bunk is 3 classes deep"]),
        ("rooms", SLICES, ["6 private classes", "rooms._A0"]),
        ("rooms", "setattr(Bed, 'sleep', nap)\n", ["Bed by setattr"]),
        (
            "rooms",
            (
                "@dataclass\nclass AOptions:\n    n: int = 1  # how many\n@dataclass\nclass BOptions:\n    n:"
                " int = 1  # how many\n"
            ),
            ["option n", "rooms.AOptions and in rooms.BOptions"],
        ),
        (
            "rooms",
            "@dataclass\nclass AOptions:\n"
            + "".join(f"    n{i}: int = 1\n" for i in range(6))
            + "def f("
            + ", ".join(f"n{i}" for i in range(6))
            + "): pass\n",
            ["f lists 6 options of rooms.AOptions"],
        ),
    ],
)
def test_the_house_finds_what_is_out_of_place(tmp_path, module, more, words):
    for o in ("memtrain", "tests"):
        (tmp_path / o).mkdir()
    for k, v in HOUSE.items():
        (tmp_path / f"memtrain/{k}.py").write_text(v)
    # a test may use those of its own module
    (tmp_path / "tests/test_core.py").write_text("from memtrain.core import _own\n")
    assert check_house.findings(tmp_path) == []
    (tmp_path / f"memtrain/{module}.py").write_text(HOUSE[module] + more)
    only(check_house.findings(tmp_path), *words)


def test_the_house_finds_a_test_in_another_room(tmp_path):
    for o in ("memtrain", "tests"):
        (tmp_path / o).mkdir()
    (tmp_path / "memtrain/core.py").write_text(HOUSE["core"])
    (tmp_path / "tests/test_rooms.py").write_text("from memtrain.core import _own\n")
    only(check_house.findings(tmp_path), "tests/test_rooms.py", "_own from core")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "tests/test_rooms.py").rename(tmp_path / "benchmarks/rooms.py")
    only(check_house.findings(tmp_path), "benchmarks/rooms.py", "_own from core")


def test_what_the_site_folds_is_folded_in_jupyterlab_and_on_colab(project):
    folded = (
        "#| hide\n1",
        "#| test\n2",
        "#| code-fold: true\n3",
        "#| echo: false\n4",
        "import os\nimport sys",
    )
    project.add(("code", "#| site\n#| echo: false\n0"))
    shown = "import os", "#| exports\ndef seen(): ...", "#| code-fold: false\n5", "6"
    for source in (*folded, *shown):
        project.add(("code", source))
    path = project.root / "nbs/reference/88_core.ipynb"
    export.fold_cells(project.root)
    states = {c.source: c.metadata for c in nbio.read_nb(path).cells}
    closed = {"cellView": "form", "jupyter": {"source_hidden": True}}
    assert all(states[source] == closed for source in folded), states
    assert not any(states[source] for source in shown), states
    hidden = {"source_hidden": True, "outputs_hidden": True}  # it is for the site alone
    assert states["#| site\n#| echo: false\n0"] == closed | {"jupyter": hidden}
    nb = nbio.read_nb(path)
    for c in nb.cells:
        c.metadata = {"jupyter": {"source_hidden": c.source == "6"}}
    nbio.write_nb(nb, path)
    export.fold_cells(project.root)
    assert {c.source: c.metadata for c in nbio.read_nb(path).cells} == states
    before = path.stat().st_mtime_ns
    export.fold_cells(project.root)
    assert path.stat().st_mtime_ns == before
