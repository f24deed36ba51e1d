"""What the README and the pages show, for a type checker: each call has to be allowed, and each result be of
the type that is asserted. It isn't run."""

from pathlib import Path

import numpy as np
import torch
from typing_extensions import assert_type

from memtrain.ablation import Ablation, load_ablation
from memtrain.bench import Bench, run_bench
from memtrain.cli import main
from memtrain.collect import collect_traces
from memtrain.core import MemtrainError, Result, format_size, load_result, parse_size
from memtrain.estimate import Estimate, Step, estimate, estimate_memory_usage, simulate
from memtrain.formats import export_shards
from memtrain.lazypickle import build_index, iter_pickle
from memtrain.loader import GPTDataLoader, TokenLoader
from memtrain.measure import CommandRun, Trace, log_memory_usage, measure_command, measure_peak, track_memory
from memtrain.mixtures import Mixture, load_mixture, make_points, plot_points
from memtrain.model import GPT, GPTConfig, count_params, generate, named_config, size_model
from memtrain.optim import make_8bit
from memtrain.plan import Plan, find_optimal_batch_size, plan
from memtrain.prepare import Prepared, prepare
from memtrain.ranks import spread_model, start_ranks
from memtrain.report import write_report
from memtrain.routing import train_predictor
from memtrain.shards import ShardWriter, TokenShards
from memtrain.stream import StreamingDataLoader, TokenStream
from memtrain.tokenization import ByteTokenizer
from memtrain.traces import ShardedDataLoader, TraceDataSharder, TraceShards, open_traces, shard_traces
from memtrain.train import TrainConfig, Trainer, chunked_cross_entropy, sample_text
from memtrain.wpo import FactorNet, ism_loss
from memtrain.wpo_train import (
    WPOConfig,
    WPOTrainer,
    setup_chunked_training,
    setup_gradient_accumulation_training,
    setup_model_parallel_training,
)


def data(folder: Path) -> None:
    assert_type(prepare('sources/**/*.py', 'data', vocab_size=4096), Prepared)
    prepare([folder, 'b.txt'], folder / 'out')
    shards = TokenShards('data', split='train')
    loader = TokenLoader(shards, batch_size=16, block_size=1024, seed=0)
    for x, y in loader:
        print(x, y)
    loader.load_state_dict(loader.state_dict())
    out = np.empty(7, shards.dtype)
    shards.read_many(np.array([0, 5]), np.array([3, 4]), out)
    print(shards.windows(1024)[0], shards[0], shards[2:5])
    with ShardWriter(folder, vocab_size=300) as w:
        w.write([1, 2, 3], 'train')
    assert_type(export_shards('data', folder, 'llm.c'), dict[str, int])
    for batch in TokenStream(folder, 'bytes', 4, 256):
        print(batch)
    for row in StreamingDataLoader('x', ByteTokenizer(), 256, 4):
        print(row['input_ids'])


def memory(config: GPTConfig) -> None:
    assert_type(estimate(config, Step(batch_size=8)), Estimate)
    assert_type(estimate_memory_usage(10, 20, 4), dict[str, float])
    assert_type(measure_peak(lambda: torch.ones(3)), int)
    trace = simulate(lambda: GPT(config), lambda ps: torch.optim.AdamW(ps), lambda m, o: None)
    assert_type(trace, Trace)
    assert_type(trace.peak, int)
    model = GPT(config)
    with track_memory(model, torch.optim.SGD(model.parameters())) as m:
        pass
    m.plot()
    assert_type(plan(config, 'rtx3090'), Plan)
    assert_type(find_optimal_batch_size(model, 'cpu'), int)
    log_memory_usage()


def traces(folder: Path) -> None:
    for item in iter_pickle('x.pkl'):
        print(item)
    index = build_index('x.pkl')
    print(len(index), index[0])
    shard_traces('x.pkl', folder, shard_size_mb=400)
    TraceDataSharder(shard_size_mb=400).shard_traces('x.pkl', folder)
    for batch in ShardedDataLoader(folder, 4, shuffle=True).iterate_batches():
        print(batch)
    for b in TraceShards(open_traces(folder), batch_size=8):
        print(b)


def training(folder: Path) -> None:
    model = GPT(size_model('2M', 2048, 256))
    assert_type(count_params(named_config('gpt2')), int)
    trainer = Trainer(model, folder, TrainConfig(batch_size=8), folder / 'run', resume=True)
    assert_type(trainer.run(), dict)
    assert_type(sample_text(trainer), str)
    write_report(folder / 'run', folder / 'report.html')
    assert_type(generate(model, torch.zeros(1, 1, dtype=torch.long), 5), torch.Tensor)
    make_8bit('adamw', model.parameters(), 1e-3, (0.9, 0.95))
    with start_ranks('cpu') as ranks:
        spread_model(model, 'ddp', ranks)
    h, w, y = torch.ones(4, 2), torch.ones(9, 2), torch.zeros(4, dtype=torch.long)
    assert_type(chunked_cross_entropy(h, w, y, 2), torch.Tensor)
    net = FactorNet(3, hidden=64, depth=5, stab=0.1)
    assert_type(net.cholesky(h), torch.Tensor)
    assert_type(ism_loss(net, h, h, method='chunked', chunk_size=2), torch.Tensor)
    assert_type(setup_chunked_training(net, h, 2).compute_loss(h, 0.1), torch.Tensor)
    setup_gradient_accumulation_training(net, h, 2).training_step(h, torch.optim.SGD(net.parameters()), 0.1)
    setup_model_parallel_training(net, h, ['cpu'], None)[0].compute_loss(h)
    assert_type(WPOTrainer(WPOConfig(data='moons', max_iters=100), folder, device='cpu').run(), dict)
    mixture = load_mixture(folder)
    assert_type(mixture, Mixture)
    plot_points(mixture, make_points('moons', 5000, torch.Generator().manual_seed(1))).savefig('points.png')


def results(folder: Path) -> None:
    assert_type(format_size(parse_size('24 GiB')), str)
    assert_type(load_result('demo', folder), Result)
    assert_type(run_bench(rounds=1, skip_tf=True), Bench)
    assert_type(load_ablation('ablation', folder), Ablation)
    assert_type(
        collect_traces(
            GPT(named_config('gpt2')), [torch.zeros(1, 3, dtype=torch.long)], folder, shard_size_mb=400
        ),
        dict,
    )
    train_predictor(folder, epochs=1)
    assert_type(measure_command(['true']), CommandRun)
    try:
        parse_size('')
    except MemtrainError as e:
        print(e)
    main(['estimate', '--target_params', '124M'])
