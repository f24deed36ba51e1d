"""A training step of GPT-2 small as a picture for a wall, nbs/assets/step.svg: every byte over the events
of the step by what it is for, and the events of the loss enlarged.

`python tools/draw_step.py` simulates the step, for some seconds, and writes the picture. Its `<desc>`
holds the figures, which a test lays beside the closed form."""

import json, sys
from html import escape

import numpy as np

from memtrain.core import GIB, format_size
from memtrain.estimate import simulate
from memtrain.core import CATEGORIES
from memtrain.memory_trace import CATEGORY_COLORS, Trace
from memtrain.model import count_params, named_config
from memtrain.train import TrainConfig, gpt_step

from common import find_root

DEST = "nbs/assets/step.svg"
NAME, BATCH = "gpt2", 8
# from below: what changes least lies lowest
ORDER = "weights", "optimizer state", "gradients", "activations", "logits and loss", "temporaries"
PLAIN = {
    "mm": "logits",
    "_log_softmax": "log-softmax",
    "nll_loss_backward": "gradient of the log-softmax",
    "_log_softmax_backward_data": "gradient of the logits",
}
LEFT, WIDE = 90, 1270


def simulated() -> Trace:
    "The step that is drawn, the second of two: the moments are there"
    return simulate(
        *gpt_step(named_config(NAME), TrainConfig(batch_size=BATCH, grad_clip=0.0)), device="cuda"
    )


def last_step(trace: Trace) -> int:
    "The event with which the last forward pass begins"
    return max(start for name, start, _ in trace.spans if name == "forward")


def loss_events(trace: Trace) -> tuple[int, int]:
    "The event of the last step's logits, and the one behind the end of their gradient"
    large = [
        b
        for b in trace.blocks
        if b.category == "logits and loss" and b.size > trace.peak / 100 and b.start >= last_step(trace)
    ]
    return min(b.start for b in large), max(b.end for b in large) + 1


def areas(levels: np.ndarray, top: int, height: int, highest: float) -> str:
    "An area for each of `ORDER`, of bytes after each event, (events, categories)"
    heights = np.round(height * levels[:, [CATEGORIES.index(o) for o in ORDER]].cumsum(1) / highest, 1)
    step, base, out = WIDE / len(levels), top + height, []
    for i, name in enumerate(ORDER):
        upper, lower = heights[:, i], heights[:, i - 1] if i else np.zeros(len(levels))
        if not (upper > lower).any():
            continue

        def along(line, back=False):
            keep = [k for k in range(len(line)) if not k or line[k] != line[k - 1]]
            ends = [*keep[1:], len(line)]
            runs = [(LEFT + a * step, LEFT + b * step, base - line[a]) for a, b in zip(keep, ends)]
            return "".join(
                f"V{y:.1f}H{(a if back else b):.1f}" for a, b, y in (reversed(runs) if back else runs)
            )

        area = f"M{LEFT},{base - lower[0]:.1f}{along(upper)}{along(lower, True)}Z"
        out.append(f'<path fill="{CATEGORY_COLORS[name]}" d="{area}"><title>{name}</title></path>')
    return "\n".join(out)


def axis(top: int, height: int, highest: float) -> str:
    "Lines and numbers for every 2 GiB"
    return "\n".join(
        f'<path class="line" d="M{LEFT},{y:.1f}h{WIDE}"/><text class="small" x="{LEFT - 10}" y="{y + 5:.1f}"'
        f' text-anchor="end">{n}{" GiB" * (n + 2 > highest / GIB)}</text>'
        for n in range(0, int(highest / GIB) + 1, 2)
        for y in [top + height - height * n * GIB / highest]
    )


def changes(trace: Trace, start: int, end: int) -> list[tuple[int, str]]:
    "(event, what happens) for the large tensors that come and go from `start` to `end`"
    found = [
        (b.start, f"+ {PLAIN[op]}")
        for b in trace.blocks
        for op in [b.op.split("::")[-1]]
        if b.size > trace.peak / 100 and op in PLAIN and start <= b.start < end
    ]
    return sorted(
        found
        + [
            (b.end, f"− {PLAIN[op]}")
            for b in trace.blocks
            for op in [b.op.split("::")[-1]]
            if b.size > trace.peak / 100 and op in PLAIN and start <= (b.end or 0) < end
        ]
    )


def figures(trace: Trace) -> dict:
    "What the picture says in numbers"
    first, (a, b) = last_step(trace), loss_events(trace)
    held = trace.by_category
    return dict(
        model=NAME,
        batch_size=BATCH,
        peak=trace.peak,
        by_category=held,
        events=trace.events - first,
        loss_events=b - a,
        loss_share=held["logits and loss"] / trace.peak,
    )


def draw(trace: Trace) -> str:
    "The picture of the last step of `trace` as SVG"
    first, (a, b), told = last_step(trace), loss_events(trace), figures(trace)
    a, b, logits = a - 2, b + 2, next(o.size for o in trace.blocks if o.start == a)
    levels, highest, config = trace.timeline, 1.12 * trace.peak, named_config(NAME)
    x = lambda event: LEFT + WIDE * (event - first) / (trace.events - first)
    zoom = lambda event: LEFT + WIDE * (event - a) / (b - a)
    top, height, low, short = 150, 400, 640, 210
    turn = min(start for name, start, _ in trace.spans if name == "backward" and start > first)
    words = [
        f'<text class="title" x="{LEFT}" y="62">One training step of GPT-2 small</text>',
        (
            f'<text class="sub" x="{LEFT}" y="94">{count_params(config) / 1e6:.0f}M parameters, {BATCH}'
            f' windows of {config.block_size:,} tokens, float32, AdamW: every byte of {told["events"]:,}'
            f' allocations and frees, simulated for a GPU. Peak {format_size(trace.peak)}.</text>'
        ),
    ]
    for name, start, end in (
        ("forward pass", first, turn),
        ("backward pass, then the update", turn, trace.events),
    ):
        words.append(
            f'<path class="line" d="M{x(start):.1f},{top - 14}v{height + 14}"/><text class="small"'
            f' x="{x(start) + 6:.1f}" y="{top - 4}">{name}</text>'
        )
    layers = [blk.start for blk in trace.blocks if blk.op == "aten::gelu" and blk.start > first]
    words += [
        f'<text class="tiny" x="{x(at):.1f}" y="{top + height + 16}" text-anchor="middle">{n}</text>'
        for n, at in enumerate(layers, 1)
        if n in (1, len(layers))
    ]
    words.append(
        f'<text class="tiny" x="{x(turn) + 30:.1f}" y="{top + height + 16}">up through layers 1 to'
        f' {len(layers)}, and down again</text>'
    )
    peak = top + height - height * trace.peak / highest
    words.append(
        f'<text class="small" x="{x(trace.peak_event) - 12:.1f}" y="{peak + 4:.1f}" text-anchor="end">peak:'
        f' {told["loss_share"]:.0%} of it is the loss</text>'
    )
    funnel = (
        '<path fill="#e6a23c" opacity=".15"'
        f' d="M{x(a):.1f},{top + height}H{x(b):.1f}L{LEFT + WIDE},{low}H{LEFT}Z"/>'
    )
    marks = [
        f'<path class="line" d="M{zoom(at + 0.5):.1f},{low + short}v8"/><text class="tiny"'
        f' transform="translate({zoom(at + 0.5) + 4:.1f},{low + short + 18}) rotate(-32)"'
        f' text-anchor="end">{escape(what)}</text>'
        for at, what in changes(trace, a, b)
    ]
    words.append(
        f'<text class="small" x="{LEFT + 8}" y="{low - 10}">the {told["loss_events"]} events of the loss, in'
        f' which four tensors of {format_size(logits)} come and go; three at once are the peak</text>'
    )
    legend = [
        f'<rect x="{1010 + 180 * (i % 2)}" y="{180 + 24 * (i // 2)}" width="15" height="15"'
        f' fill="{CATEGORY_COLORS[o]}"/><text class="small" x="{1032 + 180 * (i % 2)}"'
        f' y="{193 + 24 * (i // 2)}">{o}</text>'
        for i, o in enumerate(reversed(ORDER))
    ]
    style = (
        "text{font-family:system-ui,'DejaVu Sans',sans-serif;fill:#22303f}"
        ".title{font-size:36px;font-weight:700}.sub{font-size:17px}.small{font-size:15px}.tiny{font-size:12px}"
        ".line{stroke:#22303f;stroke-opacity:.25;fill:none}"
    )
    alt = (
        "Bytes over the events of a training step: weights and states lie still, activations rise through"
        f" {len(layers)} layers, the loss stands on top as a tower of a few events, and the gradients come as"
        " the activations go."
    )
    return "\n".join(
        [
            (
                '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1400 990" role="img"'
                f' aria-label="{escape(alt)}">'
            ),
            f"<desc>{json.dumps(told)}</desc>",
            f"<style>{style}</style>",
            '<rect width="1400" height="990" fill="#fff"/>',
            axis(top, height, highest),
            areas(levels[first:], top, height, highest),
            funnel,
            axis(low, short, highest),
            areas(levels[a:b], low, short, highest),
            *words,
            *marks,
            *legend,
            "</svg>",
            "",
        ]
    )


def main() -> int:
    (find_root() / DEST).write_text(draw(simulated()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
