"""What `benchmarks/step_times.py` recorded of published steps is what memtrain says today."""

import csv, sys
from pathlib import Path

import pytest

from memtrain.core import load_result

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from step_times import ROWS, read_step, shape_of

sys.path.pop(0)  # beside it lies a streaming.py that isn't MosaicML's, whom other tests look for
from memtrain.step_time import predict_seconds


def test_every_published_step_is_predicted_as_recorded():
    recorded = load_result("step_times").values["rows"]
    table = [*csv.DictReader(ROWS.read_text(encoding="utf-8").splitlines())]
    assert len(table) == len(recorded) == 157
    for row, kept in zip(table, recorded):
        assert row == {name: kept[name] for name in row}
        step = read_step(row)
        compiled = "compiled" in row["settings"].split()
        now = predict_seconds(shape_of(row["model"], step.seq_len), step, row["card"], compiled)
        assert now == pytest.approx(kept["predicted"], rel=1e-12), row
        tokens = step.batch_size * step.gradient_accumulation_steps * step.seq_len * step.ranks
        assert tokens / kept["seconds"] == pytest.approx(float(row["tokens_per_second"]))


def test_words_of_the_table_become_settings():
    words = dict(windows="2", tokens="64", accumulate="3", card="8xa100")
    step = read_step({**words, "settings": "bfloat16 qlora fsdp checkpointing chunks in_backward"})
    assert (step.batch_size, step.seq_len, step.gradient_accumulation_steps, step.ranks) == (2, 64, 3, 8)
    assert (step.weights, step.lora, step.load_in_4bit, step.parallel) == ("bfloat16", 8, True, "fsdp")
    assert step.activation_checkpointing and step.loss_chunk_size == 512 and step.optimizer_in_backward
    plain = read_step({**words, "settings": "autocast"})
    assert plain.use_mixed_precision and plain.parallel == "ddp" and not plain.lora
