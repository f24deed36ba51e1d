"The calculator of the site's home page, nbs/assets/calculator.html: tools/calculator.html with the package's own arithmetic, turned into JavaScript."
import configparser,json,sys
from pathlib import Path

from common import find_root
from to_js import Translator

ASKED = dict(estimate="estimate", Step="estimate", OPTIMIZERS="estimate", PROFILES="estimate", get_profile="estimate", parameter_sizes="estimate", plan="plan", Option="plan", CLOSED="plan",
             usable_memory="plan", MARGIN="plan", GPTConfig="model", state_bytes="estimate", NAMED_MODELS="model", CATEGORY_COLORS="measure", format_size="core", format_count="core")
WITHOUT = "simulate", "measure_step", "_ask_kernel", "predict_step", "count_weights", "has_law", "shape_of"  # what runs torch, or reads recorded laws
DEST = "nbs/assets/calculator.html"


def arithmetic(root: Path) -> str:
    "JavaScript: an object with what the calculator asks of the package at `root`."
    return Translator(root/"memtrain", WITHOUT).script(ASKED)


def calculator(root: Path) -> str:
    "The calculator as a piece of HTML that needs nothing else."
    conf = configparser.ConfigParser()
    conf.read(root/"settings.ini", encoding="utf-8")
    given = dict(ESTIMATE=arithmetic(root), SITE=json.dumps("{doc_host}{doc_baseurl}/".format_map(conf["DEFAULT"])))
    text = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    for k,v in given.items(): text = text.replace(f"/*{k}*/", v, 1)
    return text


def make_calculator(root: Path) -> list[str]:
    "Write the calculator of the project at `root`, where it has what it is made of."
    if not (root/"memtrain/plan.py").exists(): return []
    dest,text = root/DEST,calculator(root)
    dest.parent.mkdir(exist_ok=True)
    if not dest.exists() or dest.read_text(encoding="utf-8") != text: dest.write_text(text, encoding="utf-8")
    return []


if __name__ == "__main__": sys.exit(bool(make_calculator(find_root())))
