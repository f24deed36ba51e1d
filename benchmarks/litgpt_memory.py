#!/usr/bin/env python3
"""litgpt's published table of finetuning on an A100, with weights of 4 bits too, by litgpt's own models.

    python benchmarks/litgpt_memory.py   # writes results/litgpt_memory.json; needs litgpt and lightning

The rows are those of one card in tutorials/resource-tables.md of Lightning-AI/litgpt (20 October 2023,
commit 8641822, PyTorch 2.1, bitsandbytes 0.41.1): what `torch.cuda.max_memory_allocated` said, in units of
10⁹ bytes, where the first micro-batch holds the longest text. Each runs in `simulate_script` as the
repository's script did: Fabric makes the model, and a micro-batch goes forward and backward with the logits
in chunks of 128.

bitsandbytes is part of such a run. Up to its release 0.43 a product with a weight of 4 bits kept its input
for the backward pass (`ctx.tensors = (A, B)` in MatMul4Bit of autograd/_functions.py), and Fabric packed
weights that it had made float16, so that each product made a float16 matrix and then a copy of it in
bfloat16. `then` is the step with both, `today` the one with what is installed."""

from __future__ import annotations

import argparse, importlib, importlib.metadata, sys

COMMAND = 'python benchmarks/litgpt_memory.py'
# method, model, tokens of its longest text, weights in 4 bits, windows, 10⁹ bytes
ROWS = '''
    lora        phi-1_5                 1044  none    1   4.82
    lora        phi-1_5                 1044  nf4     1   3.78
    lora        phi-1_5                 1044  nf4-dq  1   3.72
    lora        phi-1_5                 1044  none    2   6.76
    lora        phi-1_5                 1044  none    4  10.68
    lora        stablelm-base-alpha-3b  1034  none    1   9.69
    lora        stablelm-base-alpha-3b  1034  nf4     1   6.35
    lora        stablelm-base-alpha-3b  1034  nf4-dq  1   6.19
    lora        stablelm-base-alpha-3b  1034  none    2  12.10
    lora        stablelm-base-alpha-3b  1034  none    4  16.92
    lora        Llama-2-7b-hf           1304  none    1  21.30
    lora        Llama-2-7b-hf           1304  nf4     1  14.14
    lora        Llama-2-7b-hf           1304  nf4-dq  1  13.84
    lora        Llama-2-7b-hf           1304  none    2  29.07
    lora        Llama-2-13b-hf          1304  none    1  38.12
    lora        Llama-2-13b-hf          1304  nf4     1  23.14
    lora        Llama-2-13b-hf          1304  nf4-dq  1  22.55
    adapter     stablelm-base-alpha-3b  1034  none    1   9.10
    adapter     stablelm-base-alpha-3b  1034  nf4     1   5.65
    adapter     stablelm-base-alpha-3b  1034  nf4-dq  1   5.48
    adapter     Llama-2-7b-hf           1304  none    1  19.98
    adapter     Llama-2-7b-hf           1304  nf4     1  12.68
    adapter     Llama-2-7b-hf           1304  nf4-dq  1  12.38
    adapter_v2  stablelm-base-alpha-3b  1034  none    1  10.71
    adapter_v2  stablelm-base-alpha-3b  1034  nf4     1   7.41
    adapter_v2  stablelm-base-alpha-3b  1034  nf4-dq  1   7.25
    adapter_v2  Llama-2-7b-hf           1304  none    1  25.51
    adapter_v2  Llama-2-7b-hf           1304  nf4     1  18.30
    adapter_v2  Llama-2-7b-hf           1304  nf4-dq  1  17.98
'''


def unpack_as_then():
    "Let products with weights of 4 bits keep and copy what they did in bitsandbytes 0.41.1, under Fabric"
    import bitsandbytes, torch
    from bitsandbytes.functional import dequantize_4bit

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, packed, bias, state):
            ctx.kept, ctx.state = (x, packed), state  # until the graph goes
            return torch.nn.functional.linear(x, dequantize_4bit(packed, state).to(x.dtype), bias)

        @staticmethod
        def backward(ctx, grad):
            weight = dequantize_4bit(ctx.kept[1], ctx.state).to(grad.dtype)
            return torch.matmul(grad, weight), None, None, None

    def forward(self, x):
        self.weight.quant_state.dtype = torch.float16
        return Product.apply(x, self.weight.data, self.bias, self.weight.quant_state)

    bitsandbytes.nn.Linear4bit.forward = forward


def train(method, name, tokens, bits, windows, release):
    "The script that is simulated: one micro-batch, as litgpt's finetune/`method`.py at that commit has it"
    import gc

    import lightning, torch
    from lightning.fabric.plugins import BitsandbytesPrecision
    from litgpt.utils import chunked_cross_entropy

    of = importlib.import_module(f'litgpt.{method}')
    how = dict(precision='bf16-true')
    if bits != 'none':
        how = dict(plugins=BitsandbytesPrecision(bits, torch.bfloat16))
        if release == 'then':
            unpack_as_then()
    fabric = lightning.Fabric(devices=1, accelerator='cuda', **how)
    lora = dict(lora_r=8, lora_alpha=16, lora_dropout=0.05, lora_query=True, lora_value=True)
    with fabric.init_module(empty_init=False):
        model = of.GPT(of.Config.from_name(name, **(lora if method == 'lora' else {})))
    getattr(of, f'mark_only_{method}_as_trainable')(model)
    model = fabric.setup_module(model)
    model.max_seq_length = int(tokens)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(trained))
    gc.collect()  # today's packed layers refer to themselves, and leave what they were made of to Python
    ids, targets = torch.randint(1000, (2, int(windows), int(tokens)), device=fabric.device)
    logits = model(ids, lm_head_chunk_size=128)
    logits[-1] = logits[-1][..., :-1, :]
    loss = chunked_cross_entropy(logits, targets[..., 1:])
    fabric.backward(loss)
    optimizer.step()


def predict(row, release):
    "Bytes that a first micro-batch holds at most"
    from memtrain.script import simulate_script

    words = [row[k] for k in ('method', 'model', 'tokens', 'bits', 'windows')]
    run = simulate_script(__file__, [*map(str, words), release], gpu='a100', steps=1)
    if run.failed:
        raise SystemExit(str(run))
    return max(run.trace.by_phase[phase] for phase in ('forward', 'backward'))


def main():
    from memtrain.core import progress, save_result

    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    rows = []
    for line in progress([line.split() for line in ROWS.strip().splitlines()], desc='rows'):
        row = dict(zip(('method', 'model', 'tokens', 'bits', 'windows', 'published'), line))
        row |= dict(tokens=int(row['tokens']), windows=int(row['windows']))
        row['published'] = round(float(row['published']) * 1e9)
        releases = ['today'] if row['bits'] == 'none' else ['then', 'today']
        rows.append(row | {release: predict(row, release) for release in releases})
    versions = {name: importlib.metadata.version(name) for name in ('litgpt', 'lightning', 'bitsandbytes')}
    save_result('litgpt_memory', dict(rows=rows, versions=versions), COMMAND)


if __name__ == '__main__':
    if len(sys.argv) == 7:
        train(*sys.argv[1:])
    else:
        main()
