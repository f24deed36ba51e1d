"""How well the experts of the next layer are known beforehand, on a small mixture of experts that is
trained for the purpose.

    python benchmarks/routing.py [--seeds 1 2 3] [--others 1] [--steps 400] [--samples 600] [--epochs 8] \\
      [--work FOLDER]

The text: Python's standard library without its tests, prepared with a vocabulary of 2,048. The model: 6
layers of 16 experts, two of which a token visits, 96 wide, 1.9 million parameters. For each seed a model is
trained on 'train', traces of SAMPLES windows of 128 tokens of 'val' are collected, and predictors are
trained on seven tenths of these samples, stopped by one tenth and reported on the other two: no text is on
two sides, and neither the model nor a predictor has seen what is reported on. The settings are the same for
all seeds, and were chosen on the model of another seed (0). The seconds of the whole are those of training,
collecting, and an MLP with its baselines at lookahead 1; the other predictors come after, for the first
OTHERS seeds. With --go-on the other predictors are added to a result of which they are missing. FOLDER
keeps data, runs and traces: what is finished there is not made again, and its seconds are those that the
run's log has, or none. The result goes to results/routing.json."""

import argparse, os, sysconfig, tempfile, time
from pathlib import Path

SHAPE = dict(block_size=128, n_layer=6, n_head=4, n_embd=96, n_experts=16, expert_hidden=80)
EXCLUDE = ("test", "tests", "site-packages", "idlelib", "lib2to3", "*.txt")


class Clock:
    "Wall and processor seconds of a block, this process's alone"

    def __enter__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


def train_model(work, seed, a):
    from memtrain.core import seed_everything
    from memtrain.model import GPT, GPTConfig
    from memtrain.train import TrainConfig, Trainer

    shape = GPTConfig(vocab_size=2048, **SHAPE)
    seed_everything(seed)
    config = TrainConfig(
        max_iters=a.steps,
        batch_size=16,
        lr=3e-3,
        min_lr=3e-4,
        warmup_iters=20,
        eval_interval=a.steps,
        eval_batches=20,
        checkpoint_interval=a.steps,
        seed=seed,
    )
    return Trainer(GPT(shape), work / "data", config, work / f"run{seed}", device="cpu").run()


def measure_seed(work, seed, a):
    "Train, collect, predict: what the acceptance is about"
    from memtrain.collect import check_traces, collect_run, find_gates
    from memtrain.folders import read_json
    from memtrain.routing import evaluate_predictors, train_predictor
    from memtrain.weights import load_run

    run, traces = work / f"run{seed}", work / f"traces{seed}"
    done = (run / "summary.json").exists(), (traces / "trace_metadata.json").exists()
    with Clock() as training:
        summary = read_json(run / "summary.json") if done[0] else train_model(work, seed, a)
    if done[0]:
        training.wall, training.cpu = summary["seconds"], None
    with Clock() as collecting:
        manifest = (
            read_json(traces / "trace_metadata.json")
            if done[1]
            else collect_run(run, traces, samples=a.samples, device="cpu", seed=seed)
        )
    if done[1]:
        collecting.wall = collecting.cpu = None
    model = load_run(run, "cpu").model
    with Clock() as predicting:
        p = train_predictor(
            traces,
            work / f"mlp{seed}",
            "mlp",
            epochs=a.epochs,
            batch_size=16,
            gradient_accumulation_steps=1,
            device="cpu",
            seed=seed,
        )
        found = evaluate_predictors(traces, {"mlp": work / f"mlp{seed}"}, find_gates(model))
    return {
        "seed": seed,
        "val_loss": summary["val_loss"],
        "params": summary["params"],
        "peak_memory": summary["peak_memory"],
        "traces": manifest["traces"],
        "samples": p["samples"],
        "bytes": sum(f.stat().st_size for f in traces.iterdir()),
        "agreement": check_traces(traces, model),
        "load": load_of(model, work),
        "seconds": {
            k: c.wall for k, c in (("train", training), ("collect", collecting), ("predict", predicting))
        },
        "cpu_seconds": {
            k: c.cpu for k, c in (("train", training), ("collect", collecting), ("predict", predicting))
        },
        "epochs": p["epoch"],
        "lookahead 1": found,
    }


def load_of(model, work):
    "Of each layer, the load of the idlest and of the busiest expert, as a multiple of an even one, on 'val'"
    import torch
    from memtrain.loader import TokenLoader
    from memtrain.model import expert_load
    from memtrain.shards import TokenShards

    batch = next(
        iter(
            TokenLoader(
                TokenShards(work / "data", "val"), 64, SHAPE["block_size"], seed=0, rank=0, world_size=1
            )
        )
    )[0]
    load = expert_load(model, torch.as_tensor(batch)) * SHAPE["n_experts"]
    return [[l.min().item(), l.max().item()] for l in load]


def measure_others(work, seed, a):
    "The other predictors, at lookahead 1 and 2"
    from memtrain.folders import read_json
    from memtrain.collect import find_gates
    from memtrain.routing import evaluate_predictors, train_predictor
    from memtrain.weights import load_run

    traces, gates = work / f"traces{seed}", find_gates(load_run(work / f"run{seed}", "cpu").model)

    def train(name, **kw):
        done = work / f"{name}{seed}" / "summary.json"
        return (
            read_json(done)
            if done.exists()
            else train_predictor(
                traces,
                work / f"{name}{seed}",
                **{
                    "kind": "mlp",
                    "epochs": a.epochs,
                    "batch_size": 16,
                    "gradient_accumulation_steps": 1,
                    "device": "cpu",
                    "seed": seed,
                    **kw,
                },
            )
        )

    one = {
        name: train(name, **kw)
        for name, kw in (
            ("linear", {"kind": "linear"}),
            ("attention", {"kind": "attention"}),
            ("topk", {"target": "topk"}),
        )
    }
    narrow, far = train("narrow", window=1), train("far", lookahead=2)
    return {
        "lookahead 1": {k: keep(v) for k, v in one.items()},
        "window 1": evaluate_predictors(traces, {"mlp": work / f"narrow{seed}"}, gates, window=1),
        "narrow": keep(narrow),
        "far": keep(far),
        "lookahead 2": evaluate_predictors(traces, {"mlp": work / f"far{seed}"}, gates, lookahead=2),
    }


def keep(summary):
    return {
        k: summary[k]
        for k in ("recall", "exact", "recall_at", "layers", "params", "epoch", "best_epoch", "seconds")
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    for name, n in (("steps", 400), ("samples", 600), ("epochs", 8), ("others", 1)):
        parser.add_argument(f"--{name}", type=int, default=n)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--name", default="routing", help="of the result")
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="with the other predictors of a result whose seeds are done in FOLDER",
    )
    a = parser.parse_args()
    from memtrain.core import load_result, save_result
    from memtrain.prepare import prepare

    with tempfile.TemporaryDirectory() as d:
        work = a.work or Path(d)
        work.mkdir(parents=True, exist_ok=True)
        with Clock() as preparing:
            if not (work / "data").exists():
                print(
                    prepare(
                        [sysconfig.get_paths()["stdlib"]], work / "data", vocab_size=2048, exclude=EXCLUDE
                    )
                )
        values = {
            "settings": {
                "shape": {"vocab_size": 2048, **SHAPE},
                "steps": a.steps,
                "samples": a.samples,
                "epochs": a.epochs,
            },
            "prepare_seconds": preparing.wall,
            "seeds": [],
        }
        if a.go_on:
            values = load_result(a.name).values
        for seed in a.seeds[len(values["seeds"]) :]:
            r = measure_seed(work, seed, a)
            values["seeds"].append(r)
            print(
                seed,
                {k: round(v["recall"], 3) for k, v in r["lookahead 1"].items()},
                f"{sum(filter(None, r['seconds'].values())):.0f} s, agreement {r['agreement']:.4%}",
                flush=True,
            )
        save_result(a.name, values, "python benchmarks/routing.py")
        for seed, r in zip(a.seeds[: a.others], values["seeds"]):
            r["others"] = measure_others(work, seed, a)
            print(
                seed,
                {k: round(v["recall"], 3) for k, v in r["others"]["lookahead 1"].items()},
                {k: round(v["recall"], 3) for k, v in r["others"]["lookahead 2"].items()},
                flush=True,
            )
            save_result(a.name, values, "python benchmarks/routing.py")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
