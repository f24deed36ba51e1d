"""Any config.json, found from a few blocks, held against a simulation of the whole model.

    python benchmarks/any_model.py [NAME …]     # writes results/any_model.json; needs transformers and peft

The sizes of benchmarks/configs.json are those of the config.json that their makers publish. Each model is
asked for twice with `memtrain estimate` and twice with `memtrain plan`, in a fresh process each and with a
cache that both of the two have, and once simulated whole in this process. Which way it is trained was drawn.
"""

import argparse, json, os, random, resource, subprocess, sys, tempfile
from pathlib import Path

from memtrain.core import MemtrainError, load_result, save_result
from memtrain.estimate import simulate
from memtrain.record_laws import config_folder, describe_model, open_any
from memtrain.train import TrainConfig, model_step

CONFIGS = json.loads((Path(__file__).parent / "configs.json").read_text())
AUTOCAST, HALF = dict(use_mixed_precision=True), dict(weights="bfloat16")
TWICE, CHUNKS = dict(activation_checkpointing=True), dict(loss_chunk_size=256)
WAYS = [
    (AUTOCAST, {}),
    (AUTOCAST | TWICE, {}),
    (AUTOCAST | TWICE | CHUNKS, {}),
    (HALF | TWICE, {}),
    (HALF | CHUNKS | dict(optimizer_in_backward=True), {}),
    (HALF | TWICE, dict(lora=16)),
    (HALF | TWICE | CHUNKS, dict(lora=16, load_in_4bit=True)),
]


def ask(command, folder, cache, **flags):
    "What the command says, and its processor's seconds; each time in a process of its own"
    argv = [sys.executable, "-m", "memtrain", command, "--model", folder]
    argv += [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(argv, env=os.environ | dict(MEMTRAIN_CACHE=cache), capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode and "doesn't fit" not in run.stderr:
        raise MemtrainError(run.stderr.strip().splitlines()[-1])
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return run.stdout, round(seconds, 2)


def hold(name, settings, own):
    "A row: the model's name, how it is trained, predicted and simulated bytes, and seconds"
    seq_len = min(1024, CONFIGS[name].get("max_position_embeddings", 1024))
    known = describe_model(CONFIGS[name], seq_len)
    if known["reads"] != "tokens":  # has no adapters and no loss in chunks
        settings = {k: v for k, v in settings.items() if k != "loss_chunk_size"}
        own = {}
    seq_len, settings = known["block_size"], dict(settings, batch_size=2 if known["block_size"] > 1 else 64)
    with config_folder(CONFIGS[name]) as folder, tempfile.TemporaryDirectory() as cache:
        flags = settings | own | dict(seq_len=seq_len, device="a100", json=True)
        (found, first), (again, second) = (ask("estimate", folder, cache, **flags) for _ in range(2))
        assert again == found
        found = json.loads(found)
        with tempfile.TemporaryDirectory() as cache:
            plans = [ask("plan", folder, cache, gpu="a100", seq_len=seq_len) for _ in range(2)]
        assert plans[0][0] == plans[1][0]
        config = TrainConfig(**settings, **({"grad_clip": 0} if "optimizer_in_backward" in settings else {}))

        def make():
            return open_any(folder, seq_len, **own, weights=config.weights)[0]

        whole = simulate(*model_step(make, config), device="cuda").peak
    row = dict(model=name, kind=known["kind"], params=found["params"], step=settings | own)
    # else each batch size is simulated by itself
    row["any_batch"] = known["few"] < known["n_layer"] and known["block_size"] > 1
    row |= dict(predicted=found["peak"], simulated=whole, cpu_seconds=[first, second])
    return row | dict(plan_cpu_seconds=[seconds for _, seconds in plans])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*CONFIGS])
    names = parser.parse_args().names
    sys.modules.setdefault("torchvision", None)  # nothing here looks at pictures
    rng = random.Random(36)
    ways = {name: rng.choice(WAYS) for name in CONFIGS}
    try:
        rows = {row["model"]: row for row in load_result("any_model").values["rows"]}
    except (FileNotFoundError, MemtrainError):
        rows = {}
    for name in names:
        try:
            rows[name] = hold(name, *ways[name])
        except MemtrainError as e:
            kind = CONFIGS[name].get("model_type") or CONFIGS[name]["_class_name"]
            rows[name] = dict(model=name, kind=kind, refused=str(e))
        print(json.dumps(rows[name]), flush=True)
        ordered = [rows[name] for name in CONFIGS if name in rows]
        save_result("any_model", dict(rows=ordered), command="python benchmarks/any_model.py")


if __name__ == "__main__":
    main()
