#!/usr/bin/env python3
"""What it takes to collect traces from a mixture of experts that is larger than memory.

    python benchmarks/collecting.py make FOLDER     # random weights in the shape of Qwen1.5-MoE-A2.7B
    python benchmarks/collecting.py measure FOLDER  # writes results/collecting.json
    python benchmarks/collecting.py peer FOLDER     # writes results/collecting_peer.json

`make` writes the checkpoint a layer at a time, in parts, with the names that the published one has: 28.6 GB
in bfloat16. `measure` collects from it in a process of its own, and keeps its seconds, the bytes that it read
from the files, and the most memory that the process held, imports and all (VmHWM). `peer` sends the same
prompts through a layer at a time and through accelerate's offloading to disk, in turn, each in a process of
its own; before each batch the files leave the system's cache, as those of a model larger than memory would.
Make a checkpoint of fewer layers for it (`--layers 8`: 10 GB), since accelerate writes the experts to disk
once more."""

from __future__ import annotations

import argparse, json, shutil, statistics, subprocess, sys, tempfile
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


PASS = """
import hashlib, json, os, re, sys, threading, time
from pathlib import Path
import torch, transformers
from memtrain.layerwise import StreamedModel

way, folder, offloaded, prompts, T, rows = *sys.argv[1:4], *map(int, sys.argv[4:])

def field(file, name):
    return int(re.search(name + r':\\s+(\\d+)', Path('/proc/self/' + file).read_text())[1])

def forget():
    for path in (p for d in (folder, offloaded) for p in Path(d).rglob('*') if p.is_file()):
        with open(path, 'rb') as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

def watch():
    while True:
        most[0] = max(most[0], 1024 * field('status', 'RssAnon'))
        time.sleep(0.01)

begun = 1024 * field('status', 'RssAnon')
most = [begun]
threading.Thread(target=watch, daemon=True).start()
ids = torch.randint(1000, (prompts, T), generator=torch.Generator().manual_seed(0))
forget()
start, cpu, read = time.perf_counter(), time.process_time(), field('io', '\\nread_bytes')
if way == 'memtrain':
    model = StreamedModel(folder)
    blocks, run = [ids], lambda block: model.run(block, rows)
else:
    n = transformers.AutoConfig.from_pretrained(folder).num_hidden_layers
    places = {'model.embed_tokens': 'cpu', 'model.norm': 'cpu', 'model.rotary_emb': 'cpu', 'lm_head': 'cpu'}
    places |= {f'model.layers.{i}': 'disk' for i in range(n)}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, device_map=places, offload_folder=offloaded
    ).eval()
    blocks, run = ids.split(rows), lambda block: model.model(input_ids=block, use_cache=False)[0]
found = dict(opening_s=time.perf_counter() - start, opening_read=field('io', '\\nread_bytes') - read)
seconds, read, out = 0, 0, []
for block in blocks:
    forget()
    start, before = time.perf_counter(), field('io', '\\nread_bytes')
    with torch.no_grad():
        out.append(run(block))
    seconds += time.perf_counter() - start
    read += field('io', '\\nread_bytes') - before
digest = hashlib.sha256(torch.cat(out).view(torch.uint8).numpy().tobytes()).hexdigest()
found |= dict(seconds=seconds, read=read, digest=digest, cpu_s=time.process_time() - cpu)
found['most'] = most[0] - begun
print(json.dumps(found))
"""


def compare(folder, T, rounds, rows=8):
    "Both ways on 1, 8 and 32 prompts, in turn: medians of the rounds"
    found = {}
    for _ in range(rounds):
        for prompts in (1, 8, 32):
            for way in ('memtrain', 'accelerate'):
                offloaded = tempfile.mkdtemp(dir=folder.parent)
                try:
                    command = [sys.executable, '-c', PASS, way, folder, offloaded, prompts, T, rows]
                    run = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
                finally:
                    shutil.rmtree(offloaded)
                row = json.loads(run.stdout.splitlines()[-1])
                found.setdefault((prompts, way), []).append(row)
                print(prompts, way, row, flush=True)
    for prompts in (1, 8, 32):
        assert len({row['digest'] for way in ('memtrain', 'accelerate') for row in found[prompts, way]}) == 1
    return [
        {'prompts': prompts, 'tokens': prompts * T, 'way': way}
        | {k: statistics.median(row[k] for row in rows) for k in rows[0] if k != 'digest'}
        for (prompts, way), rows in found.items()
    ]


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('what', choices=['make', 'measure', 'peer'])
    parser.add_argument('folder', type=Path)
    parser.add_argument('--layers', type=int, default=24, help='of the checkpoint')
    parser.add_argument('--prompts', type=int, default=84, help='a trace of each in every layer')
    parser.add_argument('--rounds', type=int, default=3, help='of the comparison')
    parser.add_argument('--tokens', type=int, default=16, help='of a prompt')
    parser.add_argument('--limit', type=int, default=2 << 30, help='bytes beyond imports')
    args = parser.parse_args()
    if args.what == 'make':
        make(args.folder, args.layers)
    elif args.what == 'peer':
        found = compare(args.folder, 32, args.rounds)
        save_result('collecting_peer', found, 'python benchmarks/collecting.py peer FOLDER')
    else:
        found = measure(args.folder, args.prompts, args.tokens, args.limit)
        save_result('collecting', found, 'python benchmarks/collecting.py measure FOLDER')
