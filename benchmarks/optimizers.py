"""What optimizers hold, and what a small GPT learns with each at a rate that was searched for.

    python benchmarks/optimizers.py [NAME …]    # writes results/optimizers.json, some six minutes a name

Those that `memtrain train` doesn't have are their authors' packages, and left out where not installed:
pip install galore-torch schedulefree apollo-torch adam-mini lion-pytorch (the first needs transformers).

Bytes are those of a simulated step on a card: a model of a billion parameters in float32 under autocast, one
window of 1,024 tokens, so that hardly more than weights, gradients and states is held. The loss is that of
modules of Python's standard library which weren't trained on, by their bytes, after 400 steps. The rate is
searched by factors of the square root of ten, up and down until the loss gets worse, then by half of such a
factor.
"""

import argparse, importlib, json, math, sys, sysconfig
from functools import cache
from pathlib import Path

import torch

from memtrain.core import MemtrainError, load_result, save_result, seed_everything
from memtrain.estimate import simulate
from memtrain.model import GPT, GPTConfig
from memtrain.train import TrainConfig, cosine_lr, make_optimizer

LARGE = GPTConfig(  # as Llama 3.2 1B
    128256,
    2048,
    n_layer=16,
    n_head=32,
    n_embd=2048,
    n_kv_head=8,
    mlp="swiglu",
    mlp_hidden=8192,
    norm="rms",
    positions="rotary",
)
SMALL = GPTConfig(256, 64, n_layer=3, n_head=4, n_embd=96)
STEPS, ROWS, DECAY = 400, 16, 0.1


def ours(name):
    "A function that makes the optimizer that `memtrain train` has by this name, for a model at a rate"

    def make(model, lr):
        settings = dict(optimizer=name.removesuffix("8bit"), use_8bit_optimizer=name.endswith("8bit"))
        return make_optimizer(model, TrainConfig(lr=lr, min_lr=0.0, weight_decay=DECAY, **settings))

    return make


def split(model, **own):
    "Parameters in groups: a layer's matrices, which have what is `own`, and the others"
    inside = [p for block in model.blocks for p in block.parameters() if p.ndim == 2]
    ids = {id(p) for p in inside}
    others = [p for p in model.parameters() if id(p) not in ids]
    return [dict(params=inside, **own), dict(params=others)]


def galore(model, lr):
    rank = model.config.n_embd // 4
    groups = split(model, rank=rank, update_proj_gap=200, scale=0.25, proj_type="std")
    theirs = importlib.import_module("galore_torch").GaLoreAdamW
    return theirs(groups, lr=lr, weight_decay=DECAY, no_deprecation_warning=True)


def apollo(rank, scale_type, scale):
    "APOLLO, whose moments are of a random projection of the gradient; at rank 1 it scales whole matrices"

    def make(model, lr):
        own = dict(rank=rank or model.config.n_embd // 4, update_proj_gap=200, proj="random")
        groups = split(model, **own, proj_type="std", scale_type=scale_type, scale=scale)
        theirs = importlib.import_module("apollo_torch.apollo")
        theirs.max = lambda x, least: x.clamp(min=least)  # Python's reads numbers, which a simulation hasn't
        return theirs.AdamW(groups, lr=lr, weight_decay=DECAY)

    return make


def adam_mini(model, lr):
    c, theirs = model.config, importlib.import_module("adam_mini").Adam_mini
    sizes = dict(dim=c.n_embd, n_heads=c.n_head, n_kv_heads=c.n_kv_head)
    made = theirs(model.named_parameters(), lr=lr, weight_decay=DECAY, **sizes, verbose=False)
    made.wqk_names.add("qkv")  # a second moment for each head of the joined matrix
    made.output_names.add("head")
    return made


def lion(model, lr):
    return importlib.import_module("lion_pytorch").Lion(model.parameters(), lr=lr, weight_decay=DECAY)


def schedule_free(model, lr):
    theirs = importlib.import_module("schedulefree").AdamWScheduleFree
    made = theirs(model.parameters(), lr=lr, weight_decay=DECAY, warmup_steps=STEPS // 20)
    made.train()
    return made


# how each is made, and the rate that the search begins at
OPTIMIZERS = {
    "adamw": (ours("adamw"), 3e-3),
    "adamw8bit": (ours("adamw8bit"), 3e-3),
    "lion8bit": (ours("lion8bit"), 3e-4),
    "sgd": (ours("sgd"), 0.3),
    "sgd-momentum": (ours("sgd-momentum"), 0.1),
    "adafactor": (ours("adafactor"), 1e-2),
    "muon": (ours("muon"), 3e-3),
    "Lion": (lion, 3e-4),
    "GaLore": (galore, 1e-2),
    "APOLLO": (apollo(None, "channel", 1), 1e-2),
    "APOLLO-Mini": (apollo(1, "tensor", 128), 1e-2),
    "Adam-mini": (adam_mini, 3e-3),
    "schedule-free AdamW": (schedule_free, 1e-2),
}


def hold(make):
    "Bytes of a simulated step of the large model: of the states, and of the update beyond them"
    made = []

    def model_fn():
        made[:] = [GPT(LARGE)]
        made[0].checkpointing, made[0].loss_chunk_size = True, 256
        return made[0]

    def step_fn(model, optimizer):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss(*torch.randint(LARGE.vocab_size, (2, 1, 1024), device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = simulate(model_fn, lambda params: make(made[0], 1e-3), step_fn, device="cuda")
    params = sum(p.numel() for p in made[0].parameters())
    states = trace.by_category["optimizer state"]
    update = trace.by_phase.get("optimizer", states + 8 * params) - states - 8 * params
    return dict(params=params, states=states, update=update, peak=trace.peak)


@cache
def text():
    "Bytes of the standard library's modules of one file: those to learn from, and every tenth to evaluate on"
    found = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = [[f.read_bytes() for f in found if (found.index(f) % 10 == 0) == held] for held in (False, True)]
    return [torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8) for part in parts]


def windows(data, n, generator):
    at = torch.randint(len(data) - SMALL.block_size - 1, (n, 1), generator=generator)
    rows = data[at + torch.arange(SMALL.block_size + 1)].long()
    return rows[:, :-1], rows[:, 1:]


def learn(make, lr, seed):
    "The loss on held-out text after `STEPS` at a rate that rises to `lr` and falls to nothing"
    seed_everything(seed)
    generator, (train, held) = torch.Generator().manual_seed(seed), text()
    model = GPT(SMALL)
    optimizer, scheduled = make(model, lr), make is not schedule_free
    c = TrainConfig(max_iters=STEPS, warmup_iters=STEPS // 20, lr=lr, min_lr=0.0)
    for step in range(STEPS):
        for group in optimizer.param_groups if scheduled else ():
            group["lr"] = cosine_lr(step, c)
        loss = model.loss(*windows(train, ROWS, generator))
        if not math.isfinite(loss.item()):
            return math.inf
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if not scheduled:
        optimizer.eval()
    with torch.no_grad():
        batches = [windows(held, 64, torch.Generator().manual_seed(i)) for i in range(8)]
        return sum(model.loss(*batch).item() for batch in batches) / len(batches)


def search(make, start):
    "Losses by rate, which has been searched for both ways from `start`"
    losses, best = {}, start

    def at(lr):
        lr = float(f"{lr:.2g}")
        if lr not in losses:
            losses[lr] = learn(make, lr, seed=0)
            print(f"  {lr:g}: {losses[lr]:.4f}", flush=True)
        return lr

    for factor in (10**0.5, 10**0.25):
        for way in (factor, 1 / factor):
            while losses[at(best * way)] < losses[at(best)]:
                best = at(best * way)
    return {lr: losses[lr] for lr in sorted(losses)}, at(best)


def measure(make, start):
    row = hold(make)
    losses, best = search(make, start)
    seeds = [losses[best], *(learn(make, best, seed) for seed in (1, 2))]
    tried = {str(lr): loss if math.isfinite(loss) else None for lr, loss in losses.items()}
    return row | dict(lr=best, tried=tried, losses=seeds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*OPTIMIZERS])
    names = parser.parse_args().names
    torch.set_num_threads(1)
    try:
        rows = load_result("optimizers").values["rows"]
    except (FileNotFoundError, MemtrainError):
        rows = {}
    for name in names:
        print(name, flush=True)
        try:
            rows[name] = measure(*OPTIMIZERS[name])
        except ImportError as e:
            print(f"  left out: {e}", file=sys.stderr)
            continue
        print(json.dumps(rows[name]), flush=True)
        setup = dict(
            steps=STEPS,
            rows=ROWS,
            block_size=SMALL.block_size,
            params=sum(p.numel() for p in GPT(SMALL).parameters()),
        )
        ordered = {name: rows[name] for name in OPTIMIZERS if name in rows}
        save_result("optimizers", dict(setup=setup, rows=ordered), command="python benchmarks/optimizers.py")


if __name__ == "__main__":
    main()
