"""What earlier commits wrote opens, verifies, resumes and appends, and what comes of it is what came of it
then.

`earlier/COMMIT.tar.gz` holds small folders that it made (earlier/make.py): a data set and one killed after
three shards, three runs killed after their checkpoint at iteration 3 of 6, collected traces, a pickle of
traces and its shards in both formats, a predictor, a mixture, and one killed at step 4 of 6. `golden.json`
holds what it made of them when nothing killed it."""

import hashlib, json, shutil, tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import memtrain.routing as routing
import memtrain.wpo_train as wpo_train
from memtrain.cli import main
from memtrain.loader import TokenLoader
from memtrain.mixtures import load_mixture
from memtrain.model import GPT, GPTConfig
from memtrain.prepare import prepare
from memtrain.shards import TokenShards, verify
from memtrain.tokenization import load_tokenizer
from memtrain.traces import TraceShards, iter_pickle
from memtrain.train import TrainConfig, Trainer, losses, open_stream
from memtrain.weights import load_run

ARCHIVES = sorted((Path(__file__).parent / "earlier").glob("*.tar.gz"))
SHAPE = GPTConfig(vocab_size=300, block_size=16, n_layer=3, n_head=2, n_embd=16, n_experts=4)


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda o: o.name.partition(".")[0])
def made(request, tmp_path_factory):
    "The folder with all of it."
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(request.param) as t:
        t.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else t.extractall(folder)
    shutil.copytree(folder / "tokens", folder / "tokens_of_the_run")  # nothing is going to be appended to it
    return folder


@pytest.fixture
def golden(made, monkeypatch):
    "What came of it then; the current folder is the one with all of it."
    monkeypatch.chdir(made)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield json.loads((made / "golden.json").read_text())
    torch.set_num_threads(threads)


def shas(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()[:16]
        for p in sorted(Path(folder).rglob("*.bin"))
    }


def test_earlier_data_set_opens_verifies_and_appends(golden):
    assert verify("tokens") == [] and main(["verify", "tokens"]) == 0
    loader = TokenLoader(TokenShards("tokens"), 4, 16, seed=3)
    loader.load_state_dict(golden["loader_state"])
    assert [x.tolist() for x, _ in (next(batches) for batches in [iter(loader)] for _ in range(2))] == golden[
        "loader_next"
    ]
    # finished work, as it was
    assert prepare("text", "tokens", vocab_size=300, tokens_per_shard=4000, workers=1).seconds is None
    prepare(["text", "more"], "tokens", vocab_size=300, tokens_per_shard=4000, workers=1, append=True)
    assert shas("tokens") == golden["appended"] and verify("tokens") == []


def test_earlier_preparation_that_was_killed_resumes(golden):
    prepare("text", "killed", "bytes", tokens_per_shard=4000, workers=1, resume=True)
    assert shas("killed") == golden["resumed"] and verify("killed") == []


@pytest.mark.parametrize(
    "name,settings",
    [
        ("plain", {}),
        ("stream", {}),
        (
            "eightbit",
            dict(
                use_8bit_optimizer=True,
                activation_checkpointing=True,
                loss_chunk_size=16,
                gradient_accumulation_steps=2,
            ),
        ),
    ],
)
def test_earlier_run_resumes_to_the_same_losses(golden, name, settings):
    torch.manual_seed(0)
    c = TrainConfig(
        max_iters=6,
        batch_size=4,
        eval_interval=3,
        eval_batches=2,
        checkpoint_interval=3,
        warmup_iters=2,
        **settings,
    )
    data = (
        open_stream("text", load_tokenizer(f"run_{name}/tokenizer_state.json"), c, 16, shuffle_buffer_size=50)
        if name == "stream"
        else "tokens_of_the_run"
    )
    Trainer(GPT(SHAPE), data, c, f"run_{name}", device="cpu", resume=True).run()
    found, wanted = losses(f"run_{name}"), golden[f"losses_{name}"]
    assert [i for i, _ in found] == [i for i, _ in wanted]
    # another processor rounds otherwise
    np.testing.assert_allclose([loss for _, loss in found], [loss for _, loss in wanted], rtol=1e-5)


def test_earlier_traces_and_predictor_are_read(golden):
    for folder in ("traces", "sharded", "sharded_pkl"):
        assert main(["verify", folder]) == 0
    assert (
        len(list(iter_pickle("traces.pkl")))
        == golden["traces"]
        == len(TraceShards("sharded", batch_size=1))
        == len(TraceShards("sharded_pkl", batch_size=1))
    )
    assert routing.load_predictor("predictor", "cpu") is not None
    assert load_run("run_plain", "cpu").model is not None


def test_earlier_mixtures_open_and_resume(golden):
    mixture = load_mixture("mixture", "cpu")
    assert mixture.log_prob(torch.zeros(2, 2)).isfinite().all()
    c = wpo_train.WPOConfig(
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
    s = wpo_train.WPOTrainer(c, "mixture_killed", device="cpu", resume=True).run()
    np.testing.assert_allclose(
        [json.loads(o)["loss"] for o in open("mixture_killed/metrics.jsonl")], golden["mix_losses"], rtol=1e-5
    )
    np.testing.assert_allclose(s["nll_held_out"], golden["nll"], rtol=1e-4)
