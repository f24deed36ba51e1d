"Small folders that commands work on, and what is in a folder, without the time of day."

import hashlib, json, os, random
from pathlib import Path

from forked import forked, run_command

TRAIN = (
    "--device cpu --batch_size 2 --max_iters 6 --eval_interval 3 --eval_batches 1 --checkpoint_interval 2"
    " --warmup_iters 1 --keep_checkpoints 2".split()
)
PREPARE = "--tokenization bytes --tokens_per_shard 1500 --document_kib 1 --workers 1".split()
WPO = (
    "--device cpu --data moons --train_kernel_size 20 --batch_size 16 --hiddenunits 8 --depth 2 --strategy"
    " chunked --chunk_size 7 --max_iters 6 --checkpoint_interval 2 --em_steps 1".split()
)
PREDICT = (
    "--device cpu --shard_dir traces --epochs 3 --batch_size 8 --hidden 16 --kind mlp --window 1".split()
)
LAYERS = (
    "--device cpu --model moe --dataset_dir data --split train --seq_len 16 --target_traces 36"
    " --batch_size 4 --memory_limit 80kB --shard_data --shard_size_mb 0.01".split()
)
COLLECT = "--device cpu --run_dir run --dataset_dir data --target_traces 60 --batch_size 4".split()
VOLATILE = {
    "seconds",
    "waited",
    "memory",
    "tokens_per_second",
    "waiting",
    "peak_memory",
    "date",
    "machine",
    "versions",
}


def command(*argv: str) -> None:
    "Run a command of memtrain in a child, which must succeed"
    done = forked(run_command, [str(o) for o in argv])
    if done.status:
        raise SystemExit(f"memtrain {' '.join(map(str, argv))}: {done.status}\n{done.said}")


def write_texts(folder: Path, files: int, seed: int) -> None:
    "Files of words, no two alike"
    rng = random.Random(seed)
    folder.mkdir()
    for i in range(files):
        (folder / f"{i}.txt").write_text(
            "".join(rng.choice("abcdefghij") + rng.choice(" \n lmnopq") for _ in range(600))
        )


def build_mixture(folder: Path) -> None:
    "A small mixture of experts of transformers, with random weights"
    import torch, transformers

    torch.manual_seed(0)
    shape = dict(vocab_size=257, hidden_size=16, num_hidden_layers=3, num_attention_heads=2)
    experts = dict(num_key_value_heads=2, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2)
    config = transformers.AutoConfig.for_model("mixtral", **shape, **experts)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size="20KB")


def build(folder: Path) -> None:
    """Everything that commands begin with: texts, data sets, a run with experts, its traces as a pickle and
    in shards"""
    os.chdir(folder)
    write_texts(Path("text"), 8, 1)
    write_texts(Path("more"), 4, 2)
    write_texts(Path("other"), 4, 3)
    command("prepare", "--input_files", "text", "--out_dir", "data", *PREPARE)
    Path("shape.json").write_text(
        json.dumps(dict(vocab_size=257, block_size=16, n_layer=3, n_head=2, n_embd=16, n_experts=4))
    )
    Path("small.json").write_text(
        json.dumps(dict(vocab_size=257, block_size=16, n_layer=1, n_head=1, n_embd=8))
    )
    command("train", "--dataset_dir", "data", "--out_dir", "run", "--config_file", "shape.json", *TRAIN)
    command("collect-traces", *COLLECT, "--out_dir", ".", "--output_suffix", "all")
    Path("run_traces_all.pkl").rename("traces.pkl")
    command("shard-traces", "--input_file", "traces.pkl", "--out_dir", "traces", "--shard_size_mb", "0.02")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _plain(x):
    "A checkpoint's content, less times, in a form that `repr` tells apart"
    import torch

    if isinstance(x, torch.Tensor):
        return (
            str(x.dtype),
            tuple(x.shape),
            digest(x.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""),
        )
    if isinstance(x, dict):
        return sorted((str(k), _plain(v)) for k, v in x.items() if k not in VOLATILE)
    if isinstance(x, (list, tuple)):
        return [_plain(o) for o in x]
    return repr(x)


def content(file: Path) -> str:
    "What is in `file`, as a digest; of a training run without seconds and bytes"
    if file.suffix == ".pt":
        import torch

        return digest(repr(_plain(torch.load(file, weights_only=True))).encode())
    if file.name == "metrics.jsonl":
        return digest(repr([_plain(json.loads(o)) for o in file.read_text().splitlines()]).encode())
    if file.name == "summary.json":
        return digest(repr(_plain(json.loads(file.read_text()))).encode())
    return digest(file.read_bytes())


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder below `folder`, and what is in it; a lock is no content, and without its holder
    holds nobody"""
    return (
        {
            str(o.relative_to(folder)): content(o) if o.is_file() else ""
            for o in sorted(folder.rglob("*"))
            if o.name != ".lock"
        }
        if folder.exists()
        else {}
    )


def foreign(folder: Path) -> list[str]:
    "What no finished command leaves: temporary names and locks"
    return [str(o.relative_to(folder)) for o in folder.rglob(".*")]
