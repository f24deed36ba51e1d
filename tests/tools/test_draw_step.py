"The picture of a step: its figures are those of the closed form, and it draws any step's areas."

import json, re, sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
sys.path.insert(0, str(ROOT / "tools"))

from draw_step import BATCH, DEST, NAME, draw, figures
from memtrain.estimate import Step, estimate, simulate
from memtrain.model import GPTConfig, named_config
from memtrain.train import TrainConfig, gpt_step


def test_the_picture_says_what_the_closed_form_says():
    told = json.loads(re.search(r"<desc>(.*?)</desc>", (ROOT / DEST).read_text(encoding="utf-8"))[1])
    e = estimate(named_config(NAME), Step(BATCH), "cuda")
    assert told["peak"] == e.peak
    # which the closed form counts as activations, the trace half as inputs of the loss
    batches = 2 * BATCH * 8 * 1024
    assert all(abs(n - e.by_category[k]) <= batches for k, n in told["by_category"].items())


def test_a_picture_has_an_area_for_each_category_and_the_peak_where_it_is():
    trace = simulate(
        *gpt_step(GPTConfig(512, 16, 2, 2, 32), TrainConfig(batch_size=8, grad_clip=0.0)), device="cuda"
    )
    svg = ET.fromstring(draw(trace))
    tall = [o for o in svg.iter(SVG + "path") if o.find(SVG + "title") is not None]
    assert len(tall) >= 10 and figures(trace)["peak"] == trace.peak
    words = " ".join("".join(o.itertext()) for o in svg.iter(SVG + "text"))
    assert (
        "+ gradient of the logits" in words
        and f'the {figures(trace)["loss_events"]} events of the loss' in words
    )
