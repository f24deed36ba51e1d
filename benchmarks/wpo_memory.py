"""What a pass of each WPO strategy holds and takes, against what is predicted, on settings drawn at random.

    python benchmarks/wpo_memory.py [--settings 64] [--seed 8] [--choices 16] [--work 6e9]

Each setting is a strategy with its knobs, 2 to 512 dimensions, 1 to 2,000 centers, 1 to 64 samples, panels
of 8 to 64 columns, 16 to 128 hidden units in 2 to 5 layers; WORK bounds its multiply-adds. Bytes are those
of `measure_peak` over a forward and a backward pass, beyond parameters, gradients, centers and batch.
Seconds are the least of three passes, on one thread. Then CHOICES problems of 16 dimensions or more are
drawn, with a budget between what the closest needs and twice that, and of `choose_strategy`'s rows all that
fit are run: how much slower is the chosen one than the fastest of them, and how far are its loss and the
dense one, in float32, from the dense one in float64? The loss is a difference, so this is told twice:
relative to the loss, and to the sum of the sizes of its two terms, twice the Laplacian's part and the
squared score. Last, whole training steps: the peak of network, gradients, AdamW and pass together. The
result goes to results/wpo_memory.json."""

import argparse, math, os, random, statistics, time

SHAPES = {"dim": (2, 512), "centers": (1, 2000), "batch_size": (1, 64)}
PEAK = {"matrix_free": 256, "single_gpu": 128, "chunked": 128}  # dimensions of the whole steps


def draw_shape(r):
    "Dimensions, centers, samples and network"
    shape = {k: round(2 ** r.uniform(math.log2(a), math.log2(b))) for k, (a, b) in SHAPES.items()}
    return shape | {
        "hidden": r.choice([16, 64, 64, 128]),
        "depth": r.choice([2, 3, 5, 5]),
        "panel": r.choice([8, 16, 32, 64]),
    }


def draw(r, work):
    "A setting with about `work` multiply-adds or less, that holds no more than 1 GiB"
    from memtrain.wpo_train import STRATEGIES, predict_peak

    while True:
        s = {"strategy": r.choice(STRATEGIES), **draw_shape(r)}
        if s["strategy"] == "gradient_accumulation":
            s["accumulation_steps"] = r.randint(1, s["batch_size"])
        elif s["strategy"] != "single_gpu" and r.random() < 0.4:
            s["chunk_size"] = r.randint(1, s["centers"])
        if costs(s) < work and predict_peak(**s)["total"] < 2**30:
            return s


def costs(s):
    "Multiply-adds, with what small operations and wide passes take instead"
    K, d, B = s["centers"], s["dim"], s["batch_size"]
    passes = K / s.get("chunk_size", K) * (d / s["panel"] + 2) * s.get("accumulation_steps", 1)
    return (
        K * d * d * (s["hidden"] + 10 * B + 100 * s.get("accumulation_steps", 1))
        + 100 * K * B * d
        + 1e7 * passes
    )


def make(s):
    "Network with gradients, samples and centers"
    import torch
    from memtrain.wpo import FactorNet

    torch.manual_seed(0)
    net = FactorNet(s["dim"], s["hidden"], s["depth"], panel=s["panel"])
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    return net, torch.randn(s["batch_size"], s["dim"]), torch.randn(s["centers"], s["dim"])


def best(fn, tries=3):
    "The least seconds of `fn`"
    seconds = []
    for _ in range(tries):
        start = time.perf_counter()
        fn()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure_setting(s):
    from memtrain.measure import measure_peak
    from memtrain.wpo_train import backward_by, predict_peak, predict_seconds

    net, x, mu = make(s)

    def run():
        backward_by(s["strategy"], net, x, mu, s.get("chunk_size"), s.get("accumulation_steps", 1))

    found = {
        "pass": measure_peak(run),
        "predicted": predict_peak(**s)["pass"],
        "seconds": best(run),
        "predicted_seconds": predict_seconds(**s),
    }
    return {
        **s,
        **found,
        "ratio": found["predicted"] / found["pass"],
        "seconds_ratio": found["predicted_seconds"] / found["seconds"],
    }


def measure_choice(r, work):
    "Every row of a choice run, and how far the loss of the chosen one is from the dense loss"
    import torch
    from memtrain.wpo import score
    from memtrain.wpo_train import backward_by, choose_strategy, predict_peak

    while True:
        s = {**draw_shape(r), "strategy": "single_gpu"}
        if s["dim"] >= 16 and costs(s) < work:
            break
    net, x, mu = make(s)
    shape = {k: v for k, v in s.items() if k != "strategy"}
    choice = choose_strategy(**shape, budget=2**40)
    knobs = [
        ("matrix_free", {"chunk_size": 1}),
        ("single_gpu", {}),
        ("gradient_accumulation", {"accumulation_steps": s["batch_size"]}),
    ]
    least = min(predict_peak(strategy, **shape, **kw)["total"] for strategy, kw in knobs)
    choice = choose_strategy(**shape, budget=int(least * r.uniform(1.05, 2)))
    rows = {}
    for row in choice.rows:
        if row["fits"]:
            rows[row["strategy"]] = best(
                lambda: backward_by(
                    row["strategy"], net, x, mu, row["chunk_size"], row["accumulation_steps"]
                ),
                5,
            )

    def loss(strategy, dtype, *knobs):
        return backward_by(strategy, net.to(dtype), x.to(dtype), mu.to(dtype), *knobs).item()

    knobs, exact = (
        (choice.strategy, choice.chunk_size, choice.accumulation_steps),
        loss("single_gpu", torch.float64),
    )
    off = {
        "float64": loss(knobs[0], torch.float64, *knobs[1:]) - exact,
        "float32": loss(knobs[0], torch.float32, *knobs[1:]) - exact,
        "dense float32": loss("single_gpu", torch.float32) - exact,
    }
    squared = score(net.double(), x.double(), mu.double()).square().sum(1).mean().item()
    terms = squared + abs(exact + squared)
    error = {k: abs(v / exact) for k, v in off.items()} | {
        f"{k}, of its terms": abs(v) / terms for k, v in off.items()
    }
    return {
        **shape,
        "budget": choice.budget,
        "chosen": choice.strategy,
        "chunk_size": choice.chunk_size,
        "accumulation_steps": choice.accumulation_steps,
        "seconds": rows,
        "predicted_seconds": {row["strategy"]: row["seconds"] for row in choice.rows},
        "slower": rows[choice.strategy] / min(rows.values()),
        "error": error,
    }


def measure_step(strategy, dim):
    "The peak of two training steps, with everything that they make"
    import torch
    from memtrain.measure import measure_peak
    from memtrain.wpo import FactorNet
    from memtrain.wpo_train import backward_by, predict_peak

    def run():
        net, x, mu = FactorNet(dim), torch.randn(8, dim), torch.randn(32, dim)
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            backward_by(strategy, net, x, mu)
            optimizer.step()

    return {
        "strategy": strategy,
        "dim": dim,
        "centers": 32,
        "batch_size": 8,
        "peak": measure_peak(run),
        "predicted": predict_peak(strategy, dim, 32, 8)["total"],
    }


def summarise(settings, choices):
    "How well the predictions do"
    ratios, seconds = [s["ratio"] for s in settings], [s["seconds_ratio"] for s in settings]
    return {
        "within_15_percent": sum(abs(q - 1) <= 0.15 for q in ratios) / len(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "median": statistics.median(ratios),
        "seconds_within_2": sum(0.5 <= q <= 2 for q in seconds) / len(seconds),
        "seconds_within_3": sum(1 / 3 <= q <= 3 for q in seconds) / len(seconds),
        "seconds_least": min(seconds),
        "seconds_most": max(seconds),
        "chosen_is_fastest": sum(c["slower"] == 1 for c in choices) / len(choices),
        "slower_median": statistics.median(c["slower"] for c in choices),
        "slower_most": max(c["slower"] for c in choices),
        "error": {k: max(c["error"][k] for c in choices) for k in choices[0]["error"]},
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, n in (("settings", 64), ("seed", 8), ("choices", 16)):
        parser.add_argument(f"--{name}", type=int, default=n)
    parser.add_argument("--work", type=float, default=6e9)
    parser.add_argument("--dry", action="store_true", help="print and write nothing")
    a = parser.parse_args()
    import torch
    from memtrain.core import format_size, save_result
    from memtrain.wpo_train import measure_rates

    torch.set_num_threads(1)
    r, values = random.Random(a.seed), {"rates": vars(measure_rates()), "settings": [], "choices": []}
    print({k: f"{v:.3g}" for k, v in values["rates"].items()})
    for _ in range(a.settings):
        values["settings"].append(s := measure_setting(draw(r, a.work)))
        print(
            f"{s['strategy']:22} d {s['dim']:3} K {s['centers']:4} B {s['batch_size']:2}: "
            f"{format_size(s['pass']):>9}, "
            f"predicted {s['ratio']:.3f} of it; {s['seconds']:.4f} s, "
            f"predicted {s['seconds_ratio']:.2f} of it",
            flush=True,
        )
    for _ in range(a.choices):
        values["choices"].append(c := measure_choice(r, a.work))
        print(
            f"d {c['dim']:3} K {c['centers']:4} B {c['batch_size']:2}: {c['chosen']} ({c['chunk_size']}), "
            f"{c['slower']:.2f} times as long as the fastest of {len(c['seconds'])}; loss {c['error']}",
            flush=True,
        )
    values["steps"] = [measure_step(*item) for item in PEAK.items()]
    print([f"{s['strategy']} {s['predicted'] / s['peak']:.3f}" for s in values["steps"]])
    print(summarise(values["settings"], values["choices"]))
    if not a.dry:
        save_result(
            "wpo_memory",
            {**values, "summary": summarise(values["settings"], values["choices"])},
            "python benchmarks/wpo_memory.py",
        )


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
