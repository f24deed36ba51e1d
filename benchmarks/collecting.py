#!/usr/bin/env python3
"""What it takes to collect traces from a mixture of experts that is larger than memory.

    python benchmarks/collecting.py make FOLDER     # random weights in the shape of Qwen1.5-MoE-A2.7B
    python benchmarks/collecting.py measure FOLDER  # writes results/collecting.json

`make` writes the checkpoint a layer at a time, in parts, with the names that the published one has: 28.6 GB
in bfloat16. `measure` collects from it in a process of its own, and keeps its seconds, the bytes that it read
from the files, and the most memory that the process held, imports and all (VmHWM)."""

from __future__ import annotations

import argparse, json, shutil, subprocess, sys, tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from memtrain.core import save_result

SHAPE = dict(
    architectures=['Qwen2MoeForCausalLM'],
    model_type='qwen2_moe',
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=5632,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    num_hidden_layers=24,
    num_attention_heads=16,
    num_key_value_heads=16,
    num_experts=60,
    num_experts_per_tok=4,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    dtype='bfloat16',
)
BLOCK = 1 << 24  # random numbers that the weights repeat: routing needs no more, and they are made once


def make(folder, layers):
    "Write the checkpoint"
    folder.mkdir(parents=True)
    shape = {**SHAPE, 'num_hidden_layers': layers}
    noise = (torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    dice, named = torch.Generator().manual_seed(1), {}

    def weight(*size):
        n = torch.Size(size).numel()
        at = int(torch.randint(max(1, BLOCK - n), (1,), generator=dice))
        return noise[at:].repeat(-(-n // (BLOCK - at)))[:n].view(size).clone()

    def write(name, tensors):
        save_file(tensors, folder / name, {'format': 'pt'})
        named.update(dict.fromkeys(tensors, name))

    c, inner, experts = shape['hidden_size'], shape['moe_intermediate_size'], shape['num_experts']
    for i in range(layers):
        top = f'model.layers.{i}'
        tensors = {
            f'{top}.{n}_layernorm.weight': torch.ones(c).bfloat16() for n in ('input', 'post_attention')
        }
        for n in 'qkvo':
            tensors[f'{top}.self_attn.{n}_proj.weight'] = weight(c, c)
            if n != 'o':
                tensors[f'{top}.self_attn.{n}_proj.bias'] = weight(c)
        tensors[f'{top}.mlp.gate.weight'] = weight(experts, c)
        tensors[f'{top}.mlp.shared_expert_gate.weight'] = weight(1, c)
        wide = [(f'experts.{e}', inner) for e in range(experts)]
        for name, width in [*wide, ('shared_expert', shape['shared_expert_intermediate_size'])]:
            for n in ('gate', 'up'):
                tensors[f'{top}.mlp.{name}.{n}_proj.weight'] = weight(width, c)
            tensors[f'{top}.mlp.{name}.down_proj.weight'] = weight(c, width)
        write(f'model-{i:05}.safetensors', tensors)
    table, head = weight(shape['vocab_size'], c), weight(shape['vocab_size'], c)
    ends = {
        'model.embed_tokens.weight': table,
        'lm_head.weight': head,
        'model.norm.weight': torch.ones(c).bfloat16(),
    }
    write('model-ends.safetensors', ends)
    index = dict(metadata={}, weight_map=named)
    (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
    (folder / 'config.json').write_text(json.dumps(shape, indent=1))


# runs in a process of its own
COLLECT = """
import json, re, sys, time
from pathlib import Path
import torch
from memtrain.layerwise import StreamedModel, collect_model, plan_block

folder, out, prompts, T, limit = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])

def held():
    return 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])

begun = held()
model = StreamedModel(folder)
ids = torch.randint(1000, (prompts, T), generator=torch.Generator().manual_seed(0))
_, planned = plan_block(model, T, limit, prompts=prompts)
start, cpu = time.perf_counter(), time.process_time()
manifest = collect_model(model, [ids], out, memory_limit=limit)
print(json.dumps(dict(
    seconds=time.perf_counter() - start, cpu_s=time.process_time() - cpu, traces=manifest['traces'],
    tokens=prompts * T, planned=planned, imports=begun, most=held(), read=model.read_bytes,
    on_disk=sum(t.nbytes for t in model.tensors.values()), layer=max(map(model.size, model.layers)),
)))
"""


def measure(folder, prompts, T, limit):
    "One collection, in a fresh process"
    out = tempfile.mkdtemp(dir=folder.parent)
    try:
        command = [sys.executable, '-c', COLLECT, folder, out, prompts, T, limit]
        run = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(run.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(out)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('what', choices=['make', 'measure'])
    parser.add_argument('folder', type=Path)
    parser.add_argument('--layers', type=int, default=24, help='of the checkpoint')
    parser.add_argument('--prompts', type=int, default=24)
    parser.add_argument('--tokens', type=int, default=32, help='of a prompt')
    parser.add_argument('--limit', type=int, default=2 << 30, help='bytes beyond imports')
    args = parser.parse_args()
    if args.what == 'make':
        make(args.folder, args.layers)
    else:
        found = measure(args.folder, args.prompts, args.tokens, args.limit)
        save_result('collecting', found, 'python benchmarks/collecting.py measure FOLDER')
