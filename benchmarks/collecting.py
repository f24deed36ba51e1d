#!/usr/bin/env python3
"""What it takes to collect traces from a mixture of experts that is larger than memory.

    python benchmarks/collecting.py make FOLDER [--layers 24]  # random weights in the shape of Qwen1.5-MoE-A2.7B
    python benchmarks/collecting.py measure FOLDER             # writes results/collecting.json

`make` writes the checkpoint a layer at a time, in parts, with the names that the published one has: 28.6 GB in
bfloat16 for 24 layers. `measure` collects from it in fresh processes: seconds, bytes read, and the most memory
that the process held (VmHWM), beside accelerate's offloading to disk of the same folder, where the disk and the
memory of the machine allow that one."""

from __future__ import annotations

import argparse, json, os, shutil, subprocess, sys, tempfile, time
from pathlib import Path

import torch
from safetensors.torch import save_file

from memtrain.core import MIB, save_result

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


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('what', choices=['make', 'measure'])
    parser.add_argument('folder', type=Path)
    parser.add_argument('--layers', type=int, default=24)
    args = parser.parse_args()
    if args.what == 'make':
        make(args.folder, args.layers)
