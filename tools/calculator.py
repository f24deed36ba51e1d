"""The calculator of the site's home page, nbs/assets/calculator.html: tools/calculator.html with
calculator.js, and what that evaluates: recorded laws, models, cards."""

import base64, configparser, json, re, sys, zlib
from dataclasses import asdict
from pathlib import Path

from common import find_root

DEST = "nbs/assets/calculator.html"


def card(name: str) -> dict:
    "What the calculator knows of the card `name`: bytes, operations and bytes per second."
    from memtrain.devices import find_device, priced_as
    from memtrain.step_time import uncertainty

    held, sheet = find_device(name), priced_as(name)
    return dict(
        memory=held.memory,
        context=held.context,
        workspace=held.workspace,
        fp32=sheet.fp32,
        bf16=sheet.bf16,
        bandwidth=sheet.bandwidth,
        bus=sheet.bus,
        link=sheet.link or sheet.bus,
        reached=sheet.reached,
        within=uncertainty(name),
    )


def optimizers(weights: str) -> dict:
    "What the calculator knows of each optimizer that updates such `weights`, if a formula knows its states."
    from memtrain.optimizers import RECORDS

    return {
        o.name: dict(
            moments=len(o.moments(1)),
            number=max(o.moments(1), default=0),  # bytes of a moment's number; of those in 8 bits another
            tables=o.tables,
            held=o.held_on_gpu(1),  # for a moment, for each number of a slice that is updated
            moved=o.moved,
            moved_on_host=o.moved_on_host,
            kernels=o.kernels,
        )
        for o in RECORDS.values()
        if o.weights == weights and o.moments
    }


def gathered(root: Path) -> dict:
    "What the calculator asks of the package at `root`, by the names that tools/calculator.js has for it."
    from memtrain.devices import DEVICES, find_device
    from memtrain.families import KINDS, LIKE, list_models
    from memtrain.core import CATEGORIES
    from memtrain.memory_trace import CATEGORY_COLORS
    from memtrain.model import NAMED_MODELS
    from memtrain.optimizers import SLICE_ON_GPU
    from memtrain.plan import MARGIN
    from memtrain import step_time

    return dict(
        laws=json.loads((root / "memtrain/laws.json").read_text(encoding="utf-8")),
        # by benchmarks/sampling_laws.py
        sampling=json.loads(Path(__file__).with_name("sampling_laws.json").read_text(encoding="utf-8")),
        models=list_models(),
        named=NAMED_MODELS,
        cards={name: card(name) for name in DEVICES if name != "cpu"},
        other_card=dict(
            context=find_device("24gb").context,
            workspace=find_device("24gb").workspace,
            within=step_time.uncertainty("24gb"),
        ),
        optimizers={weights: optimizers(weights) for weights in ("float32", "bfloat16")},
        categories=CATEGORIES,
        colors=CATEGORY_COLORS,
        margin=MARGIN,
        reached=step_time.REACHED,
        launch=step_time.LAUNCH_SECONDS,
        blocks={kind: block._asdict() for kind, block in step_time.BLOCKS.items()},
        adapter_launches=step_time.ADAPTER_LAUNCHES,
        slice=SLICE_ON_GPU,
        attention=step_time.ATTENTION_REACHED,
        memory=step_time.MEMORY_REACHED,
        logit_bytes=step_time.LOGIT_BYTES,
        score_bytes=step_time.SCORE_BYTES,
        like=LIKE,
        kinds={name: asdict(kind) for name, kind in KINDS.items()},
        host=DEVICES["cpu"].bandwidth,
    )


def packed(root: Path) -> str:
    """The data, compressed, in base64: as the calculator has it already, since zlib of another make writes
    other bytes for the same."""
    data = json.loads(json.dumps(gathered(root)))
    made = (root / DEST).read_text(encoding="utf-8") if (root / DEST).exists() else ""
    found = re.search(r'PACKED = "([^"]+)"', made)
    if found and json.loads(zlib.decompress(base64.b64decode(found[1]))) == data:
        return found[1]
    return base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)).decode()


def calculator(root: Path) -> str:
    "The calculator as a piece of HTML that needs nothing else."
    conf = configparser.ConfigParser()
    conf.read(root / "settings.ini", encoding="utf-8")
    here = Path(__file__)
    given = dict(
        MEMTRAIN=here.with_suffix(".js").read_text(encoding="utf-8"),
        PACKED=packed(root),
        SITE=json.dumps("{doc_host}{doc_baseurl}/".format_map(conf["DEFAULT"])),
    )
    text = here.with_suffix(".html").read_text(encoding="utf-8")
    for name, value in given.items():
        text = text.replace(f"/*{name}*/", value, 1)
    return text


def make_calculator(root: Path) -> list[str]:
    "Write the calculator of the project at `root`, where it has the laws that it is made of."
    if (root / "memtrain/laws.json").exists():
        (root / DEST).write_text(calculator(root), encoding="utf-8")
    return []


if __name__ == "__main__":
    sys.exit(bool(make_calculator(find_root())))
