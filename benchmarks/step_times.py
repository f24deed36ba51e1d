"""Hold `predict_seconds` against training steps that others have published: `benchmarks/step_times.csv` has
them, with what each row was used for.

    python benchmarks/step_times.py          # writes results/step_times.json

llm-foundry's are its tables of MPT (scripts/train/benchmarking/README.md at 8c8dd48), all rows of at most
eight cards in bfloat16; every second one was used to fit what a card reaches, the others were looked at once,
when the code was done. torchtune's are its README's (at batch 2; packed), torchtitan's its
benchmarks/llama3_h100_202412_torchtitan.md; these were seen while the rules were written, and nothing was
fitted to them. torchtitan checkpoints selected operations, which we take for no checkpointing.
"""

import csv
from pathlib import Path

from memtrain.core import save_result
from memtrain.devices import split_cards
from memtrain.estimate import Step
from memtrain.families import read_model
from memtrain.model import GPTConfig
from memtrain.step_time import predict_seconds

ROWS = Path(__file__).with_suffix('.csv')
MPT = {  # width, heads, layers
    'mpt-125m': (768, 12, 12),
    'mpt-350m': (1024, 16, 24),
    'mpt-760m': (1536, 12, 24),
    'mpt-1b': (2048, 16, 24),
    'mpt-3b': (2560, 20, 32),
    'mpt-7b': (4096, 32, 32),
    'mpt-13b': (5120, 40, 40),
    'mpt-30b': (7168, 56, 48),
    'mpt-70b': (8192, 64, 80),
}


def shape_of(model, tokens):
    "The shape of a `model` by its name, with windows of so many `tokens`"
    if model not in MPT:
        return read_model(model, tokens)
    width, heads, layers = MPT[model]
    return GPTConfig(50368, tokens, layers, heads, width)


def read_step(row):
    "The `Step` that a row of the table describes"
    words = row['settings'].split()
    return Step(
        int(row['windows']),
        int(row['tokens']),
        int(row['accumulate']),
        use_mixed_precision='autocast' in words,
        weights='bfloat16' if 'bfloat16' in words else 'float32',
        activation_checkpointing='checkpointing' in words,
        loss_chunk_size=512 if 'chunks' in words else None,
        optimizer_in_backward='in_backward' in words,
        lora=8 * ('lora' in words or 'qlora' in words),
        load_in_4bit='qlora' in words,
        ranks=split_cards(row['card'])[0],
        parallel='fsdp' if 'fsdp' in words else 'ddp',
    )


def main():
    rows = []
    for row in csv.DictReader(ROWS.read_text(encoding='utf-8').splitlines()):
        step = read_step(row)
        compiled = 'compiled' in row['settings'].split()
        tokens = step.batch_size * step.gradient_accumulation_steps * step.seq_len * step.ranks
        rows.append(
            {
                **row,
                'seconds': tokens / float(row['tokens_per_second']),
                'predicted': predict_seconds(
                    shape_of(row['model'], step.seq_len), step, row['card'], compiled
                ),
            }
        )
    save_result('step_times', {'rows': rows}, 'python benchmarks/step_times.py')


if __name__ == '__main__':
    main()
