"""Make an archive of what a commit writes, for tests/test_earlier.py: run from a folder outside, with the
checkout of that commit on PYTHONPATH: `PYTHONPATH=CHECKOUT python make.py ARCHIVE.tar.gz`. Texts are those of
the first archive."""

import hashlib, json, os, pickle, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path

import numpy as np
import torch

from memtrain.loader import TokenLoader
from memtrain.model import GPT, GPTConfig
from memtrain.prepare import prepare
from memtrain.routing import train_predictor
from memtrain.collect import collect_run
from memtrain.shards import TokenShards
from memtrain.tokenization import load_tokenizer
from memtrain.traces import iter_pickle, shard_traces
from memtrain.train import TrainConfig, Trainer, losses, open_stream
from memtrain.wpo_train import WPOConfig, WPOTrainer

FIRST = Path(__file__).parent / "e1163e6.tar.gz"
SHAPE = GPTConfig(vocab_size=300, block_size=16, n_layer=3, n_head=2, n_embd=16, n_experts=4)
EIGHT_BIT = dict(
    use_8bit_optimizer=True, activation_checkpointing=True, loss_chunk_size=16, gradient_accumulation_steps=2
)
RUNS = {"plain": {}, "stream": {}, "eightbit": EIGHT_BIT}


def shas(folder):
    found = sorted(Path(folder).rglob("*.bin"))
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in found}


def killed(cls, name: str, calls: int):
    "Have this process end, as by a power cut, at the `calls`-th call of the method `name` of `cls`."
    method, left = getattr(cls, name), [calls]

    def counted(*args, **kwargs):
        left[0] -= 1
        if not left[0]:
            os._exit(9)
        return method(*args, **kwargs)

    setattr(cls, name, counted)


def train(name: str, folder: str):
    torch.manual_seed(0)
    c = TrainConfig(
        max_iters=6,
        batch_size=4,
        eval_interval=3,
        eval_batches=2,
        checkpoint_interval=3,
        warmup_iters=2,
        **RUNS[name],
    )
    data = "tokens"
    if name == "stream":
        data = open_stream("text", load_tokenizer("tokens"), c, 16, shuffle_buffer_size=50)
    Trainer(GPT(SHAPE), data, c, folder, device="cpu").run()


def mix(folder: str) -> dict:
    c = WPOConfig(
        max_iters=6,
        checkpoint_interval=3,
        batch_size=16,
        train_kernel_size=20,
        hiddenunits=8,
        depth=2,
        strategy="chunked",
        chunk_size=7,
        em_steps=2,
    )
    return WPOTrainer(c, folder, device="cpu").run()


def die(what: str):
    "Do `what` until it is killed, in this process."
    torch.set_num_threads(1)
    if what == "prepare":
        really, left = os.replace, [4]

        def replace(src, dst):
            left[0] -= str(dst).endswith(".bin")
            if not left[0]:
                os._exit(9)
            really(src, dst)

        os.replace = replace
        prepare("text", "killed", "bytes", tokens_per_shard=4000, workers=1)
    elif what == "mixture":
        killed(WPOTrainer, "step", 5)
        mix("mixture_killed")
    else:
        killed(Trainer, "step", 5)
        train(what, f"run_{what}")


def make(dest: Path):
    torch.set_num_threads(1)
    with tarfile.open(FIRST) as t:
        t.extractall(".", [m for m in t.getmembers() if m.name.partition("/")[0] in ("text", "more")])
    golden = {}
    prepare("text", "tokens", vocab_size=300, tokens_per_shard=4000, workers=1)
    loader = TokenLoader(TokenShards("tokens"), 4, 16, seed=3)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    golden["loader_state"] = loader.state_dict()
    golden["loader_next"] = [next(batches)[0].tolist() for _ in range(2)]
    shutil.copytree("tokens", "appended")
    prepare(["text", "more"], "appended", vocab_size=300, tokens_per_shard=4000, workers=1, append=True)
    golden["appended"] = shas("appended")
    prepare("text", "resumed", "bytes", tokens_per_shard=4000, workers=1)
    golden["resumed"] = shas("resumed")
    for what in ("prepare", "mixture", *RUNS):
        status = subprocess.run([sys.executable, __file__, "--die", what]).returncode
        assert status == 9, f"{what} ended with {status}"
    for name in RUNS:
        train(name, f"whole_{name}")
        golden[f"losses_{name}"] = losses(f"whole_{name}")
    rng = np.random.default_rng(0)
    made = [
        {"sample_id": f"s{i // 2}", "layer": i % 2, "h": rng.normal(size=3).astype("f4").tolist(), "t": [i]}
        for i in range(12)
    ]
    Path("traces.pkl").write_bytes(pickle.dumps(made))
    golden["traces"] = len(list(iter_pickle("traces.pkl")))
    shard_traces("traces.pkl", "sharded", shard_size_mb=0.0004)
    shard_traces("traces.pkl", "sharded_pkl", shard_size_mb=0.0004, format="pkl")
    collect_run("whole_plain", "traces", dataset_dir="tokens", target_traces=72, batch_size=4)
    train_predictor("traces", "predictor", window=2, epochs=2, hidden=16, batch_size=2, device="cpu")
    golden["nll"] = mix("mixture")["nll_held_out"]
    golden["mix_losses"] = [json.loads(line)["loss"] for line in open("mixture/metrics.jsonl")]
    for folder in ("appended", "resumed", *(f"whole_{name}" for name in RUNS)):
        shutil.rmtree(folder)
    Path("golden.json").write_text(json.dumps(golden))
    with tarfile.open(dest, "w:gz") as t:
        for path in sorted(Path(".").iterdir()):
            t.add(path, path.name)


if __name__ == "__main__":
    if sys.argv[1] == "--die":
        die(sys.argv[2])
    else:
        dest = Path(sys.argv[1]).resolve()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            make(dest)
