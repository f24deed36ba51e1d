"""The calculator of the site's home page, nbs/assets/calculator.html: tools/calculator.html with the
package's own arithmetic, turned into JavaScript."""

import base64, configparser, json, re, sys, zlib
from pathlib import Path

from common import find_root
from to_js import Translator

ASKED = dict(
    estimate="estimate",
    Step="estimate",
    OPTIMIZERS="estimate",
    DEVICES="devices",
    find_device="devices",
    parameter_sizes="estimate",
    plan="plan",
    Option="plan",
    CLOSED="plan",
    _ask="plan",
    _EXCLUDED="train",
    TECHNIQUES="plan",
    ModelShape="families",
    list_models="families",
    read_model="families",
    has_law="families",
    predict_step="families",
    count_weights="families",
    shape_of="families",
    usable_memory="plan",
    MARGIN="plan",
    GPTConfig="model",
    state_bytes="estimate",
    NAMED_MODELS="model",
    CATEGORY_COLORS="measure",
    format_size="core",
    format_count="core",
)
WITHOUT = "simulate", "measure_step", "_ask_kernel", "_read_title"  # what runs torch, or reads titles
DATA = "laws.json", "models.json"  # what the package's functions read
DEST = "nbs/assets/calculator.html"


def arithmetic(root: Path) -> str:
    "JavaScript: an object with what the calculator asks of the package at `root`."
    return Translator(root / "memtrain", WITHOUT).script(ASKED)


def packed(root: Path) -> str:
    """The package's data, compressed, in base64: as the calculator has it already, since zlib of another make
    writes other bytes for the same."""
    data = {name: json.loads((root / "memtrain" / name).read_text(encoding="utf-8")) for name in DATA}
    found = (
        re.search(r'PACKED = "([^"]+)"', (root / DEST).read_text(encoding="utf-8"))
        if (root / DEST).exists()
        else None
    )
    if found and json.loads(zlib.decompress(base64.b64decode(found[1]))) == data:
        return found[1]
    return base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)).decode()


def calculator(root: Path) -> str:
    "The calculator as a piece of HTML that needs nothing else."
    conf = configparser.ConfigParser()
    conf.read(root / "settings.ini", encoding="utf-8")
    given = dict(
        ESTIMATE=arithmetic(root),
        PACKED=packed(root),
        SITE=json.dumps("{doc_host}{doc_baseurl}/".format_map(conf["DEFAULT"])),
    )
    text = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    for k, v in given.items():
        text = text.replace(f"/*{k}*/", v, 1)
    return text


def make_calculator(root: Path) -> list[str]:
    "Write the calculator of the project at `root`, where it has what it is made of."
    if not (root / "memtrain/plan.py").exists():
        return []
    dest, text = root / DEST, calculator(root)
    dest.parent.mkdir(exist_ok=True)
    if not dest.exists() or dest.read_text(encoding="utf-8") != text:
        dest.write_text(text, encoding="utf-8")
    return []


if __name__ == "__main__":
    sys.exit(bool(make_calculator(find_root())))
