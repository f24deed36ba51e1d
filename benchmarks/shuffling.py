"""Does a model notice how its windows were shuffled? A small next-byte model reads Python sources once, in
several orders.

    python benchmarks/shuffling.py [training] [edges]

`training`: a true shuffle, blocks, a shuffle buffer, and none. `edges`: blocks, with each batch within a
round of the pool, and with every second one over the edge of two. The results go to results/loader_*.json.
"""

import sys, sysconfig
from pathlib import Path

import numpy as np
import torch

from memtrain.core import save_result
from memtrain.loader import WindowOrder
from memtrain.shards import TokenShards


def read_bytes(limit):
    "Python sources below `limit` bytes in all, every tenth file held out, as two sets of shards in memory"
    roots = {Path(sysconfig.get_paths()[k]) for k in ('stdlib', 'purelib')}
    files = sorted({p for root in roots for p in root.rglob('*.py') if 2_000 < p.stat().st_size < 60_000})
    files = files[:: max(1, sum(p.stat().st_size for p in files) // limit)]
    parts = [
        np.concatenate([np.frombuffer(p.read_bytes() + b'\0', np.uint8) for p in chosen])
        for chosen in ([p for i, p in enumerate(files) if i % 10], files[::10])
    ]
    return [TokenShards.from_array(part, 256) for part in parts]


def buffer_order(n, size, seed):
    "The order a shuffle buffer of `size` gives: each window drawn is replaced by the next one in the file"
    rng, held, out = np.random.default_rng(seed), list(range(min(size, n))), []
    for new in range(len(held), n):
        i = rng.integers(len(held))
        out.append(held[i])
        held[i] = new
    return np.array(out + rng.permutation(held).tolist())


def train_in(order, windows, held_out, seed):
    "Held-out loss in nats a byte after one pass in this order"
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, 16),
        torch.nn.Flatten(-2),
        torch.nn.Linear(64, 96),
        torch.nn.ReLU(),
        torch.nn.Linear(96, 256),
    )
    loss = lambda x, y: torch.nn.functional.cross_entropy(
        model(x.unfold(1, 4, 1)).flatten(0, 1), y[:, 3:].flatten()
    )
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = np.array_split(order, len(order) // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, len(batches), pct_start=0.1)
    for b in batches:
        loss(*map(torch.from_numpy, windows.batch(b))).backward()
        opt.step()
        opt.zero_grad()
        schedule.step()
    with torch.no_grad():
        return loss(*map(torch.from_numpy, held_out.batch(np.arange(len(held_out))[::8]))).item()


def same_block(order, batch):
    "Pairs of windows of one block in a batch, on average"
    blocks = np.sort(order.reshape(-1, batch) // 32, axis=1)
    return float(sum((blocks[:, d:] == blocks[:, :-d]).sum() for d in range(1, batch)) / len(blocks))


def measure_training(limit=6_000_000, seeds=3):
    data, held_out = (s.windows(256) for s in read_bytes(limit))
    n = len(data)
    orders = {
        'global': lambda s: WindowOrder(n, s, 'global').at(0, np.arange(n)),
        'block': lambda s: WindowOrder(n, s, 'block', 32, max(1, n // 32 // 50)).at(0, np.arange(n)),
        'a shuffle buffer': lambda s: buffer_order(n, n // 200, s),
        'no shuffle': lambda s: np.arange(n),
    }
    return {
        'windows': n,
        'held_out': len(held_out),
        'loss': {
            name: [train_in(order(s), data, held_out, s) for s in range(seeds)]
            for name, order in orders.items()
        },
    }


def measure_edges(n=18_432, seeds=3):
    data, held_out = (s.windows(256) for s in read_bytes(6_000_000))
    orders = [WindowOrder(n, s, 'block', 32, 64).at(0, np.arange(n)) for s in range(seeds)]
    return {
        name: {
            'pairs': same_block(np.roll(orders[0], by), 32),
            'loss': [train_in(np.roll(o, by), data, held_out, s) for s, o in enumerate(orders)],
        }
        for name, by in (('within rounds', 0), ('over edges', 16))
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ("training", "edges"):
        save_result(
            f"loader_{name}",
            {"training": measure_training, "edges": measure_edges}[name](),
            f"python benchmarks/shuffling.py {name}",
        )
