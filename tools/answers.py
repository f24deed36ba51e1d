"""Pages that answer what people type: how much memory training a model takes, one page for each model that
`memtrain.families` knows by name and one for all of them. Made of the recorded laws, with Quarto's site, into
nbs/answers/; each figure leads to the calculator, set as it was."""

import re, shutil, sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

from common import find_root

DEST = "nbs/answers"
SIDEBAR = "book"  # of _quarto.yml: who lands here from a search can reach the other pages
SEQ_LEN = 2048  # tokens of a window, or as many as a model knows
CARDS = "rtx3060", "rtx3090", "rtx5090", "a100-40gb", "l40s", "a100", "h200"
# A way to train: its name, what it is, and the step (fields of `Step`) that it takes, a window at a time.
ADDED = dict(gradient_accumulation_steps=16)
LEAN = dict(weights="bfloat16", activation_checkpointing=True, loss_chunk_size=1024)
WAYS = {
    "as usual": ("all weights, AdamW in float32, bfloat16 autocast", dict(use_mixed_precision=True, **ADDED)),
    "lean": (
        "all weights, in bfloat16 with stochastic rounding; gradient checkpointing, a loss in chunks; the "
        "optimizer in the backward pass, so a step learns from what goes through the model at once",
        dict(optimizer_in_backward=True, **LEAN),
    ),
    "LoRA": (
        "adapters of rank 16 beside frozen bfloat16 weights, gradient checkpointing, a loss in chunks",
        dict(lora=16, **LEAN, **ADDED),
    ),
    "QLoRA": (
        "the same, with the frozen weights in 4 bits",
        dict(lora=16, load_in_4bit=True, **LEAN, **ADDED),
    ),
}
FAMILIES = {
    "open_llama": "OpenLLaMA", "llama": "Llama", "codellama": "Code Llama", "mistral": "Mistral",
    "tinyllama": "TinyLlama", "qwen": "Qwen ", "qwq": "QwQ", "smollm": "SmolLM", "deepseek-r1-distill-llama":
    "DeepSeek R1 distilled into Llama", "gpt2": "GPT-2", "pythia": "Pythia", "gemma": "Gemma", "phi": "Phi",
    "olmo": "OLMo",
}  # fmt: skip


def title(name: str) -> str:
    "How people write `name`: Llama 3.1 8B of llama-3.1-8b."
    known = max((o for o in FAMILIES if name.startswith(o)), key=len)
    rest = name[len(known) :].strip("-_").replace("-", " ").replace("_", " ")
    rest = re.sub(r"\b[\d.]+[bm]\b", lambda m: m.group(0).upper(), rest)
    rest = " ".join(o.upper() if o == "xl" else o for o in rest.split())
    glue = "" if known in ("qwen", "smollm") else " "
    return f"{FAMILIES[known]}{glue}{rest}".strip()


def address(name: str, step, card: str) -> str:
    "Where the calculator is asked for `step` of the model `name` on `card`."
    fields = dict(
        model=name,
        seq_len=step.seq_len,
        batch_size=step.batch_size,
        gradient_accumulation_steps=step.gradient_accumulation_steps,
        loss_chunk_size=step.loss_chunk_size or "",
        use_mixed_precision="weights" if step.weights == "bfloat16" else "1",
        lora=step.lora,
        load_in_4bit="1" if step.load_in_4bit else "",
        activation_checkpointing="1" if step.activation_checkpointing else "",
        optimizer_in_backward="1" if step.optimizer_in_backward else "",
        card=card,
    )
    return f"../index.html?{urlencode(fields)}#calculator"


def is_own(name: str) -> bool:
    "Whether the calculator takes `name` for our own GPT of that shape, as `--model_name` does."
    from memtrain.model import NAMED_MODELS

    return name in NAMED_MODELS


def shape_named(name: str, seq_len: int | None = None):
    "The sizes of the model that the calculator calls `name`."
    from memtrain.families import read_model, shape_of
    from memtrain.model import NAMED_MODELS, GPTConfig

    return shape_of(GPTConfig(**NAMED_MODELS[name])) if is_own(name) else read_model(name, seq_len)


def asked(name: str) -> dict:
    "{way: (its step with one window, what that holds)} of the model `name`, where a law tells it."
    from memtrain.families import NoLaw, predict_step
    from memtrain.settings import Step

    seq_len = min(SEQ_LEN, shape_named(name).block_size)
    shape, found = shape_named(name, seq_len), {}
    for way, (_, fields) in WAYS.items():
        step = Step(batch_size=1, seq_len=seq_len, **fields)
        try:
            found[way] = step, predict_step(shape, step, "rtx3090")
        except NoLaw:
            continue
    return found


def most_windows(name: str, step, card: str) -> int:
    "The largest micro-batch of windows of `step` that fits `card`."
    from memtrain.families import predict_step
    from memtrain.plan import find_largest, usable_memory

    shape = shape_named(name, step.seq_len)
    return find_largest(
        lambda n: predict_step(shape, replace(step, batch_size=n), card).peak, usable_memory(card), most=65536
    )


def answer(name: str) -> str:
    "The page of the model `name`."
    from memtrain.core import format_count, format_size
    from memtrain.devices import find_device

    found = asked(name)
    usual, whole = found["as usual"]
    seq_len = usual.seq_len
    said = ", ".join(f"{format_size(p.peak)} {way}" for way, (_, p) in found.items())
    rows = []
    for way, (step, p) in found.items():
        held = [p.by_category.get(k, 0) for k in ("weights", "gradients", "optimizer state")]
        rest = p.peak - sum(held)
        sizes = " | ".join(format_size(o) for o in (*held, rest))
        link = address(name, step, "rtx3090")
        rows.append(f"| **{way}** | [**{format_size(p.peak)}**]({link}) | {sizes} |")
    fits = []
    for card in CARDS:
        cells = []
        for step, _ in found.values():
            n = most_windows(name, step, card)
            link = address(name, replace(step, batch_size=n or 1), card)
            cells.append(f"[{n or 'no'}]({link})")
        fits.append(f"| {card}, {format_size(find_device(card).memory)} | {' | '.join(cells)} |")
    what = "\n".join(f"* **{way}**: {WAYS[way][0]}." for way in found)
    made = " as `memtrain train --model_name` makes it, without dropout" * is_own(name)
    return f"""---
title: "How much memory does it take to train {title(name)}?"
description: "{said}: a window of {seq_len:,} tokens"
sidebar: {SIDEBAR}
repo-actions: false
---

What one training step of {title(name)} ({format_count(whole.params)} parameters{made}) holds at its
peak on a GPU, with one window of {seq_len:,} tokens at a time, 16 of them a step. The figures come from
[recorded laws](../memory/families.html), which agree with PyTorch's allocator
[to the byte on most steps that were measured](../reference/held.html). CUDA itself takes some hundred MiB
more. A figure leads to the calculator, where you can change the step. [All models](index.html).

| way | peak | weights | gradients | optimizer states | activations and the rest |
|:--|--:|--:|--:|--:|--:|
{chr(10).join(rows)}

The parts are those of the moment of the peak.

{what}

## On which card?

Windows of {seq_len:,} tokens that fit at once, with an eighth of the card left to the allocator's holes:

| card | {" | ".join(found)} |
|:--|{"--:|" * len(found)}
{chr(10).join(fits)}

"no": not one window fits. Windows that go through the model one after the other are
[accumulated](../training/train.html). For other windows, cards and optimizers, for the fastest of all ways
that fit, and for the line that trains:

```bash
memtrain plan --gpu rtx3090 --{"model_name" if is_own(name) else "model"} {name} --seq_len {seq_len}
```

What each way does and what it costs: [gradient checkpointing](../training/checkpointing.html),
[a loss in chunks](../training/loss.html), [optimizer states](../training/optim.html),
[LoRA and QLoRA](../training/weights.html).
"""


def overview(names: list[str]) -> str:
    "The page of all models."
    from memtrain.core import format_count, format_size

    rows = []
    for name in names:
        found = asked(name)
        cells = [format_size(found[way][1].peak) if way in found else "" for way in WAYS]
        params = format_count(found["as usual"][1].params)
        rows.append(f"| [{title(name)}]({name}.html) | {params} | {' | '.join(cells)} |")
    ways = "\n".join(f"* **{way}**: {what}." for way, (what, _) in WAYS.items())
    return f"""---
title: "How much memory does it take to train a model?"
description: "{len(names)} models from 70M to 405B parameters, up to four ways to train each"
sidebar: {SIDEBAR}
repo-actions: false
---

The peak of a training step with one window of {SEQ_LEN:,} tokens at a time, 16 a step. A
model's page says what that consists of and which cards it fits; for other steps there is
[the calculator](../index.html#will-it-fit), and for a script as it stands `memtrain simulate`.

{ways}

| model | parameters | {" | ".join(WAYS)} |
|:--|--:|{"--:|" * len(WAYS)}
{chr(10).join(rows)}
"""


def make_answers(root: Path) -> list[str]:
    "Write the pages of the project at `root`, instead of those that are there."
    from memtrain.families import list_models

    dest = root / DEST
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir()
    names = [*list_models()]
    for name in names:
        (dest / f"{name}.qmd").write_text(answer(name), encoding="utf-8")
    (dest / "index.qmd").write_text(overview(names), encoding="utf-8")
    return []


if __name__ == "__main__":
    sys.exit(bool(make_answers(find_root())))
