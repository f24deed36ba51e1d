"""Predicted and measured peaks of training steps of other people's models: `memtrain train --model`, on a
CPU, each in a fresh process"""

import argparse, json, multiprocessing, sys, tempfile
from pathlib import Path

MODELS = {  # families of transformers, with random weights
    'gpt2': ('GPT2LMHeadModel', dict(vocab_size=2000, n_positions=256, n_embd=128, n_layer=4, n_head=4)),
    'llama': (
        'LlamaForCausalLM',
        dict(
            vocab_size=2000,
            max_position_embeddings=512,
            hidden_size=128,
            intermediate_size=344,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
    ),
    'llama, wider': (
        'LlamaForCausalLM',
        dict(
            vocab_size=8000,
            max_position_embeddings=512,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=8,
            tie_word_embeddings=True,
        ),
    ),
    'qwen2': (
        'Qwen2ForCausalLM',
        dict(
            vocab_size=4000,
            max_position_embeddings=512,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
        ),
    ),
}
BLOCK, ROWS = 128, 4  # tokens of a window, and windows of a batch
AGAIN, CHUNKS = dict(activation_checkpointing=True), dict(loss_chunk_size=64)
SETTINGS = {  # arguments of open_model, fields of a TrainConfig, whether documents are kept apart
    'full': ({}, {}),
    'full, checkpointing': ({}, AGAIN),
    'full, every second block': ({}, {**AGAIN, 'checkpoint_every': 2}),
    'full, chunked loss': ({}, CHUNKS),
    'full, both': ({}, {**AGAIN, **CHUNKS}),
    'full, 8-bit states': ({}, dict(use_8bit_optimizer=True)),
    'full, two micro-batches': ({}, dict(gradient_accumulation_steps=2)),
    'full, optimizer in the backward pass': ({}, dict(optimizer_in_backward=True, grad_clip=0)),
    'full, bfloat16 by autocast': ({}, dict(use_mixed_precision=True)),
    'full, bfloat16 weights': ({}, dict(weights='bfloat16')),
    'full, packed documents': ({}, {}, True),
    'full, all of it': ({}, {**AGAIN, **CHUNKS, 'use_8bit_optimizer': True, 'use_mixed_precision': True}),
    'lora': (dict(lora=8), {}),
    'lora, checkpointing': (dict(lora=8), AGAIN),
    'lora, both': (dict(lora=8), {**AGAIN, **CHUNKS}),
    'lora, bfloat16 by autocast': (dict(lora=8), dict(use_mixed_precision=True)),
    'lora, packed documents': (dict(lora=8), {}, True),
    'lora, two micro-batches': (dict(lora=8), dict(gradient_accumulation_steps=2)),
    'qlora': (dict(lora=8, load_in_4bit=True), {}),
    'qlora, checkpointing': (dict(lora=8, load_in_4bit=True), AGAIN),
    'qlora, both': (dict(lora=8, load_in_4bit=True), {**AGAIN, **CHUNKS}),
}


def save_random(name, folder):
    "A model of the family `name` with random weights, as transformers saves it"
    import torch, transformers

    kind, shape = MODELS[name]
    made = getattr(transformers, kind)
    torch.manual_seed(0)
    made(made.config_class(**shape)).save_pretrained(folder)


def measure(args):
    "(what the profiler saw, what was predicted) of two steps, in bytes; what says so too"
    folder, own, settings, documents, block_size, batch_size, simulated = args
    from memtrain.estimate import simulate
    from memtrain.measure import track_memory
    from memtrain.train import TrainConfig, model_step
    from memtrain.weights import open_model

    c = TrainConfig(batch_size=batch_size, **settings)
    build, optimizer_fn, step = model_step(
        lambda: open_model(folder, block_size, **own, empty=simulated), c, documents
    )
    if simulated:
        t = simulate(build, optimizer_fn, step)
    else:
        model = build()
        optimizer = optimizer_fn([*model.parameters()])
        scales = [
            vars(p.quant_state)[k]
            for p in model.parameters()
            if hasattr(p, 'quant_state')
            for k in ('absmax', 'code')
        ]
        # which counts weights that are mapped from their file
        with track_memory(model, optimizer, scales) as m:
            for _ in range(2):
                step(model, optimizer)
        t = m.trace
    return {'peak': t.peak, 'op': t.peak_op, 'phases': t.by_phase, 'by_category': t.by_category}


LLAMA_1B = dict(
    model_type='llama',
    architectures=['LlamaForCausalLM'],
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=True,
    max_position_embeddings=131072,
)  # the shape of Llama 3.2 1B
WAYS = {
    'all of it, float32': ({}, {}),
    'LoRA, rank 16': (dict(lora=16), {}),
    'weights of 4 bits (QLoRA)': (dict(lora=16, load_in_4bit=True), {}),
    '… checkpointing, loss in chunks': (
        dict(lora=16, load_in_4bit=True),
        dict(activation_checkpointing=True, loss_chunk_size=256),
    ),
}


def simulate_ways():
    "What a step of `LLAMA_1B` on a window of 1,024 tokens holds at its peak in each of `WAYS`, by category"
    from memtrain.estimate import simulate
    from memtrain.train import TrainConfig, model_step
    from memtrain.weights import open_model

    found = {}
    with tempfile.TemporaryDirectory() as d:
        Path(d, 'config.json').write_text(json.dumps(LLAMA_1B))
        for name, (own, settings) in WAYS.items():
            t = simulate(
                *model_step(
                    lambda: open_model(d, 1024, **own, empty=True), TrainConfig(batch_size=1, **settings)
                )
            )
            found[name] = {'peak': t.peak, **t.by_category}
            print(f'{name}: {t.peak / 2**30:.2f} GiB', flush=True)
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--models', nargs='*', default=[*MODELS])
    p.add_argument('--settings', nargs='*', default=[*SETTINGS])
    p.add_argument(
        '--ways',
        action='store_true',
        help='simulate a Llama of 1.24 billion parameters instead, in four ways',
    )
    p.add_argument(
        '--save', action='store_true', help='record in results/own_models.json, or own_models_ways.json'
    )
    a = p.parse_args()
    from memtrain.core import save_result

    if a.ways:
        found = simulate_ways()
        if a.save:
            save_result('own_models_ways', found, 'python benchmarks/own_models.py --ways --save')
        return
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(
        [
            'torch',
            'transformers',
            'transformers.models.llama.modeling_llama',
            'peft',
            'memtrain.train',
            'memtrain.estimate',
        ]
    )
    rows = []
    with tempfile.TemporaryDirectory() as d:
        for model in a.models:
            with context.Pool(1) as pool:
                pool.apply(save_random, (model, Path(d) / model))
            for name in a.settings:
                own, settings, *documents = SETTINGS[name]
                found = []
                for simulated in (False, True):
                    with context.Pool(1) as pool:
                        found.append(
                            pool.apply(
                                measure,
                                (
                                    (
                                        str(Path(d) / model),
                                        own,
                                        settings,
                                        bool(documents),
                                        BLOCK,
                                        ROWS,
                                        simulated,
                                    ),
                                ),
                            )
                        )
                real, predicted = found
                rows.append(
                    {
                        'model': model,
                        'settings': name,
                        'measured': real['peak'],
                        'predicted': predicted['peak'],
                        'error': predicted['peak'] / real['peak'] - 1,
                    }
                )
                print(
                    f"{model:<14}{name:<38}{real['peak'] / 2**20:9.3f} {predicted['peak'] / 2**20:9.3f} MiB"
                    f" {rows[-1]['error']:+8.3%}  {real['op']} | {predicted['op']}",
                    flush=True,
                )
    worst = max(rows, key=lambda row: abs(row['error']))
    print(f"{len(rows)} steps, the worst {worst['error']:+.3%}: {worst['model']}, {worst['settings']}")
    if a.save:
        save_result(
            'own_models',
            {'rows': rows, 'block_size': BLOCK, 'batch_size': ROWS},
            'python benchmarks/own_models.py --save',
        )


if __name__ == '__main__':
    sys.exit(main())
