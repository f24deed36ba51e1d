"How the pages read, in numbers."

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from page_numbers import HEAD, measure, table


def cell(kind, source, outputs=()):
    return dict(cell_type=kind, source=source, outputs=list(outputs))


def test_a_page_in_numbers():
    nb = dict(
        cells=[
            cell("markdown", "# A page\n\nYou see two words."),
            cell("code", "#| test\nassert True\nassert 1"),
            cell("code", "import os"),
            cell("code", "a = 1\n\n# why\na", [dict(data={"image/png": ""})]),
        ]
    )
    m = measure(nb)
    # of seven lines two are a test's
    assert (m["lines"], m["p90"], m["prose"], m["lesson"], m["figures"]) == (2, 2, 0.33, "71%", 1)
    assert m["you"] == round(1000 / 6, 1) and m["we"] == 0
    assert (
        table({"nbs/memory/01_x.ipynb": nb}).splitlines()[2].startswith("| memory/01_x | ")
        and len(table({"x": nb}).splitlines()[0].split("|")) == len(HEAD) + 2
    )
