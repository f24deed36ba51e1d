#!/usr/bin/env python3
"""What opening a model's weights holds at its peak, beside the model itself.

    python benchmarks/loading_weights.py [FOLDER]     # writes results/loading_weights.json

Makes a model of 271 million numbers (GPT-2's and Llama's layers, float32: 1.1 GB) in a folder of its own: as
transformers saves it, as a run of ours with its optimizer's states, and as a plain `torch.save`. Then opens
each in every way, each in a fresh process, and sends the weights through one sum, so that a way that only
maps a file has to read it. Keeps the most memory of the process's own that was held meanwhile (RssAnon,
looked at every 3 ms) and the most that was resident, mapped files and all (VmHWM), beyond what was held
before."""

from __future__ import annotations

import argparse, json, shutil, subprocess, sys, tempfile
from pathlib import Path

import torch

from memtrain.core import progress, save_result

SHAPE = dict(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=16,
    max_position_embeddings=1024,
)


def make(folder):
    "The same number of weights as a Llama, as a GPT-2, as runs of ours, and as torch.save leaves them"
    import transformers

    from memtrain.runs import save_checkpoint
    from memtrain.weights import load_run

    llama = transformers.AutoConfig.for_model('llama', **SHAPE)
    gpt2 = transformers.AutoConfig.for_model('gpt2', n_embd=1024, n_layer=16, n_head=16, vocab_size=32000)
    for name, config in (('llama', llama), ('gpt2', gpt2)):
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    model = load_run(folder / 'llama', 'cpu').model
    state = model.state_dict()
    torch.save(state, folder / 'state.pt')
    shape = {name: getattr(model.config, name) for name in model.config.__dataclass_fields__}
    found = {'belongs': {'model': shape}, 'model_state': state}
    moments = [{k: t.clone() for k, t in state.items()} for _ in range(2)]  # as AdamW has
    for name, more in (('best', {}), ('checkpoint', {'optimizer': moments})):
        (folder / name).mkdir()
        save_checkpoint(folder / name / f'{name}.pt', {**found, **more})


# runs in a process of its own
OPEN = """
import json, re, sys, threading, time
from pathlib import Path
import torch, transformers, safetensors.torch
from memtrain.weights import export_model, load_run, open_model

transformers.utils.logging.disable_progress_bar()
folder, way = Path(sys.argv[1]), sys.argv[2]

def held(name):
    return 1024 * int(re.search(name + r':\\s+(\\d+)', Path('/proc/self/status').read_text())[1])

def fill(state):
    with torch.device('meta'):
        config = transformers.AutoConfig.from_pretrained(folder / 'llama')
        model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.to_empty(device='cpu')
    model.load_state_dict(state)
    return model

llama = folder / 'llama'
WAYS = {
    'load_run of a Llama': lambda: load_run(llama, 'cpu').model,
    'load_run of a GPT-2': lambda: load_run(folder / 'gpt2', 'cpu').model,
    'load_run of a run, best.pt': lambda: load_run(folder / 'best', 'cpu').model,
    'load_run of a run, checkpoint.pt with AdamW': lambda: load_run(folder / 'checkpoint', 'cpu').model,
    'open_model': lambda: open_model(llama),
    'open_model with LoRA': lambda: open_model(llama, lora=8),
    'export_model of a run, to hf': lambda: export_model(folder / 'best', folder / 'exported', 'hf'),
    'transformers: from_pretrained': lambda: transformers.AutoModelForCausalLM.from_pretrained(llama),
    'torch.load': lambda: torch.load(folder / 'state.pt'),
    'torch.load, mapped': lambda: torch.load(folder / 'state.pt', mmap=True),
    'safetensors: load_file': lambda: safetensors.torch.load_file(llama / 'model.safetensors'),
    'load_file, then load_state_dict': lambda: fill(
        safetensors.torch.load_file(llama / 'model.safetensors')
    ),
}
if way == 'ways':
    print(json.dumps([*WAYS]))
    sys.exit()

def watch():
    while True:
        most[0] = max(most[0], held('RssAnon'))
        time.sleep(0.003)

before = {name: held(name) for name in ('RssAnon', 'VmRSS')}
Path('/proc/self/clear_refs').write_text('5')  # the peak begins anew
most = [0]
threading.Thread(target=watch, daemon=True).start()
start = time.perf_counter()
found = WAYS[way]()
if hasattr(found, 'parameters'):
    found = {id(t): t for t in found.parameters()}
tensors = [t for t in found.values() if torch.is_tensor(t)] if isinstance(found, dict) else []
for t in tensors:
    t.sum()
print(json.dumps(dict(
    seconds=time.perf_counter() - start, model=sum(t.nbytes for t in tensors),
    own=max(most[0], held('RssAnon')) - before['RssAnon'], resident=held('VmHWM') - before['VmRSS'],
)))
"""


def ask(folder, way):
    "What one way took, or the names of all"
    run = subprocess.run(
        [sys.executable, '-c', OPEN, str(folder), way], stdout=subprocess.PIPE, text=True, check=True
    )
    shutil.rmtree(folder / 'exported', ignore_errors=True)
    return json.loads(run.stdout.splitlines()[-1])


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('folder', type=Path, nargs='?', help='where 7 GB may lie meanwhile')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as d:
        make(Path(d))
        ways = ask(Path(d), 'ways')
        rows = [{'way': way, **ask(Path(d), way)} for way in progress(ways, len(ways), 'opening')]
    save_result('loading_weights', rows, 'python benchmarks/loading_weights.py')
