"tools/check_numbers.py, on a page of known outputs: what has a source is let be, and what has none is named."

import json, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_numbers

OUTPUT = """GPT of 1,068,544 parameters: peak 240.8 MiB, loss 5.9042, 0.84 s a step
                 MB/s   PSS, MiB
plain           1,767       28.1
quick             673      150.0
4096 ids, share 0.3163
"""
CODE = "#| export\nWIDTH, LIMIT = 768, 24*2**30\ndef f(shard_size_mb=400):\n    'Holds 917 things'\n    return shard_size_mb  # 613 of them"
RESULT = dict(
    name="speed",
    command="python benchmarks/speed.py",
    values=dict(seconds=[23.4797, 0.00531], peak_bytes=4913012345, ratio=2.4713),
)


def write(path, *cells):
    nb = dict(
        cells=[
            dict(cell_type=k, id=f"c{i}", metadata={}, source=s)
            | (dict(execution_count=None, outputs=o) if k == "code" else {})
            for i, (k, s, *o) in enumerate(cells)
        ],
        metadata={},
        nbformat=4,
        nbformat_minor=5,
    )
    for c in nb["cells"]:
        if c["cell_type"] == "code":
            c["outputs"] = [dict(output_type="stream", name="stdout", text=o) for o in c["outputs"]]
    path.write_text(json.dumps(nb))


@pytest.fixture
def book(tmp_path):
    """A book of a page of figures and one that has none; `book(text)` are the numbers without a source where
    the first says `text`."""
    for o in ("nbs", "results"):
        (tmp_path / o).mkdir()
    (tmp_path / "settings.ini").write_text("[DEFAULT]\n")
    (tmp_path / "results/speed.json").write_text(json.dumps(RESULT))
    write(tmp_path / "nbs/01_other.ipynb", ("markdown", "# Other"), ("code", "1", "it took 37.25 s"))

    def found(text, code="load_result('speed')", name="00_core.ipynb"):
        write(
            tmp_path / "nbs" / name,
            ("markdown", "# Core 99"),
            ("markdown", text),
            ("code", CODE),
            ("code", code, OUTPUT),
        )
        pages = check_numbers.load_pages(tmp_path)
        return [o.number.text for o in check_numbers.findings(pages, [o for o in pages if o.name == name])]

    found.root = tmp_path
    return found


@pytest.mark.parametrize(
    "text",
    [
        "It has 1,068,544 parameters, that is 1.07M or 1.1 million.",
        "A 1-million-parameter model.",
        "The peak is 241 MiB, or 252 MB.",
        "It peaks at about 235 MiB, more than 220 MiB and less than 250 MiB.",
        "The loss is 5.90; a step takes 840 ms.",
        "The quick one holds 150 MiB, the plain 28.",
        "A third, 32 %, is used.",
        "It is 768 wide and a card has 24 GiB.",
        "Shards of 400 MB.",
        "It took 23.5 seconds and 5.3 ms and 4.9 GB; the ratio is 2.47.",
        "It runs 2.5 times as fast.",
        "From 240.8 to 28.1 MiB, 8.6 times less.",
        "4 × 768 bytes, 3,072 in all, make 3.1 kB.",
        "With 16 bytes for each of 1.07M parameters it holds 17 MB.",
        "Weights and the rest, 150.0 + 28.1 + 150.0 MiB, 328 MiB.",
        "That saves 240.8 − 28.1, 213 MiB.",
        "A billion and ten billion tokens of two bytes each are 20 GB.",
        "Half of 240.8 MiB are 120.4 MiB.",
        "One of 64 × 1,024 tokens, 65,536 in all.".replace("64", "4096")
        .replace("1,024", "768")
        .replace("65,536", "3,145,728"),
    ],
)
def test_what_has_a_source_is_let_be(book, text):
    assert book(text) == []


@pytest.mark.parametrize(
    "text,found",
    [
        ("It has 1.09M parameters.", ["1.09M"]),
        ("The peak is 243 MiB.", ["243 MiB"]),
        ("The peak is 240.8 MB.", ["240.8 MB"]),
        ("It takes 0.91 s.", ["0.91 s"]),
        ("The loss is 5.95.", ["5.95"]),
        ("About 190 MiB.", ["190 MiB"]),
        ("It runs 3.1 times as fast.", ["3.1 times"]),
        ("From 240.8 to 28.1 MiB, 9.6 times less.", ["9.6 times"]),
        # docstrings and comments prove nothing
        ("4 × 768 bytes, 3,172 in all.", ["3,172"]),
        ("That saves 240.8 − 28.1, 223 MiB.", ["223 MiB"]),
        ("Ten billion tokens of two bytes each are 30 GB.", ["30 GB"]),
        ("There are 917 of them, or 613.", ["917", "613"]),
        ("It took 37.25 s.", ["37.25 s"]),
        ("| plain | 1,769 MB |\n|---|---|\n| quick | 673 |", ["1,769 MB"]),
        ("Use 57 % of it (or 0.3163).", ["57 %"]),
    ],
)
def test_what_has_none_is_found(book, text, found):
    assert book(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "`it_is(4711)` and $4711$ and\n\n```\n4711\n```\n",
        "### 4711 things",
        "On 2026-11-21, in 2019, two, 3 or 12 of them.",
        "In fp32, GPT-2, int64, sha256 and 8-bit.",
        "[Page 15](15_x.ipynb) with Python 3.13.",
        "They claim \"4711 times faster\".",
        "See [the paper](https://example.org/1): 4711 of them.",
        "A card of 47 GB.",
        "It is $2^{60}$ or 2⁶⁰.",
        "## Try it\n\n1. Take 4711 of them.",
        "<!-- 4711 -->",
    ],
)
def test_what_is_no_claim_is_left_alone(book, text):
    assert book(text) == []


def test_a_link_to_a_page_is_checked_there(book):
    assert book("It took 37.25 s ([there](01_other.ipynb)).") == []
    assert book("It took 38.25 s ([there](01_other.ipynb)).") == ["38.25 s"]


def test_results_count_for_the_page_that_reads_them(book):
    assert book("It took 23.5 s.", code="1") == ["23.5 s"]
    assert book("It took 23.5 s, see `benchmarks/speed.py`.", code="1") == []
    assert book("It took 23.5 s.", code="load_result(f'spe{x}')") == ["23.5 s"]


def test_a_large_file_of_values_proves_only_long_numbers(book):
    values = [1 + i / 1000 for i in range(1000)]
    (book.root / "results/speed.json").write_text(json.dumps(RESULT | dict(values=values)))
    assert book("It is 1.5 and 1.523.") == ["1.5"]


def test_nearest_value_and_exit_status(book, monkeypatch, capsys):
    monkeypatch.chdir(book.root)
    book("The peak is 250 MiB.")
    assert check_numbers.main([]) == 0
    out = capsys.readouterr().out
    assert (
        "nbs/00_core.ipynb cell 2: 250 MiB: The peak is 250 MiB.  [nearest: 240.8 MiB (output of cell 4)]"
        in out
    )
    assert check_numbers.main(["nbs/01_other.ipynb"]) == 0
    book("The peak is 241 MiB.")
    assert check_numbers.main([]) == 0
    with pytest.raises(SystemExit, match="no such notebook"):
        check_numbers.main(["nbs/09_gone.ipynb"])
