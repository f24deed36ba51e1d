#!/usr/bin/env python3
"""Random networks that others trained on an A100, run as the scripts that trained them stand.

    python benchmarks/gpumemnet.py CLONE ROWS.csv [ROWS.csv ...]   # writes results/gpumemnet.json

GPUMemNet (itu-rad/GPUMemNet on GitHub; arXiv 2602.17817) trained thousands of random MLPs, CNNs and
transformers for a minute each, and wrote down what nvidia-smi saw. CLONE is that repository: its scripts run
as they stand against a card that isn't there, with the arguments that a row's file name records and its
launchers passed. A line of ROWS is `filename,total_parameters,max_gpu_memory_mib,status,...`: columns of its
data sets. torchsummary and modelsummary have to be installed, since the scripts import them.

What isn't in a file name: an epoch has 4,096 samples (transformers: `num_samples`), so its last batch is
smaller. Here an epoch is two whole batches and that last one: the same shapes in the same order, in fewer
steps. Dense CNNs are left out: where they shrink was decided by a coin that wasn't written down.

What the process itself took on the card is no part of a network: it is learned, for each kind of networks,
from the eight smallest of the rows, which aren't scored."""

from __future__ import annotations

import argparse, csv, re, statistics, time
from dataclasses import replace
from pathlib import Path

from memtrain.allocator import reserve
from memtrain.core import MIB, load_result, progress, results_dir, save_result
from memtrain.devices import find_device
from memtrain.script import simulate_script

COMMAND = 'python benchmarks/gpumemnet.py CLONE ROWS.csv [ROWS.csv ...]'
CARD = 'a100-40gb'
SMALLEST = 8  # rows of a kind that tell what the process takes
EPOCH = 4096  # samples, where the launchers name no number
# what file names are made of
NAMES = (
    'input_channels|num_classes|base_filters|input_size|embedding_size|num_layers|num_heads|ff_hidden_size|'
    'dropout_rate|seq_length|num_samples|batch_size|batchnorm|dropout|depth|arch|batch|act|input|output'
)
SCRIPTS = {
    'mlp': 'NeuroNetGen_scripts/MLP/mlp_next.py',
    'cnn': 'NeuroNetGen_scripts/CNN/cnn_with_model_summary.py',
    'transformer': 'NeuroNetGen_scripts/Transformer/transformer.py',
}

# the flags of a script, and the names that a file name has for their values
FLAGS = {
    'mlp': dict(
        input_size='input',
        output_size='output',
        depth='depth',
        architecture='arch',
        activation='act',
        dropout_rate='dropout',
        batch_size='batch',
    ),
    'cnn': dict(
        channels='input_channels',
        num_classes='num_classes',
        depth='depth',
        architecture='arch',
        base_num_filters='base_filters',
        activation_function='act',
        dropout_rate='dropout',
        batch_size='batch',
    ),
    'transformer': dict(
        input_size='input_size',
        embedding_size='embedding_size',
        num_layers='num_layers',
        num_heads='num_heads',
        ff_hidden_size='ff_hidden_size',
        dropout_rate='dropout_rate',
        seq_length='seq_length',
        output_size='num_classes',
        batch_size='batch_size',
    ),
}


def fields_of(filename):
    "What a file name records; `dropout` stands there twice: the rate, then whether it is used"
    pairs = re.findall(rf'(?:^|_)({NAMES}):(.*?)(?=_(?:{NAMES}):|\.out$)', filename)
    used = {
        'dropout_used': value for name, value in pairs if value in ('True', 'False') and name == 'dropout'
    }
    return dict(reversed(pairs)) | used


def kind_of(fields):
    return 'transformer' if 'embedding_size' in fields else 'cnn' if 'base_filters' in fields else 'mlp'


def command_of(fields):
    "The script, and the arguments that its launcher passed"
    kind = kind_of(fields)
    flags = {flag: fields[name] for flag, name in FLAGS[kind].items()}
    batch, samples = int(flags['batch_size']), int(fields.get('num_samples', EPOCH))
    flags['num_samples'] = samples if samples < 3 * batch else 2 * batch + samples % batch
    words = [str(word) for flag, value in flags.items() for word in (f'--{flag}', value)]
    if kind == 'cnn':
        words += ['--input_size', fields['input_size'], fields['input_size']]
    words += ['--use_dropout'] * (fields.get('dropout_used') == 'True')
    words += ['--use_batch_norm'] * (fields.get('batchnorm') == 'True')
    return SCRIPTS[kind], words


def predict(clone, fields, card):
    "Bytes that the script of a row reserves on `card`, and whether it runs out of memory there"
    script, words = command_of(fields)
    start = time.perf_counter()
    run = simulate_script(clone / script, words, gpu=CARD, steps=5, limit=120)
    if run.failed:
        return dict(reserved=None, error=str(run).splitlines()[0])
    held = reserve(run.trace, card, card.capacity)
    return dict(
        reserved=held.reserved,
        oom=not held.fits,
        weights=sum(b.size for b in run.trace.blocks if b.category == 'weights' and b.phase == 'build'),
        ended=run.ended,
        seconds=round(time.perf_counter() - start, 2),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('clone', type=Path)
    parser.add_argument('rows', type=Path, nargs='+')
    parser.add_argument('--again', choices=SCRIPTS, help='predict rows of this kind again; `first` stays')
    args = parser.parse_args()
    rows = []
    for path in args.rows:
        with path.open(newline='') as file:
            for line in csv.DictReader(file):
                fields = fields_of(line['filename'])
                row = dict(
                    filename=line['filename'], kind=kind_of(fields), status=line['status'], sample=path.stem
                )
                row |= dict(
                    parameters=int(line['total_parameters']), measured=int(line['max_gpu_memory_mib']) * MIB
                )
                # where training ended before anybody looked, nothing was measured
                rows += [row] if fields.get('arch') != 'dense' and row['measured'] else []
    known = {}
    if (results_dir() / 'gpumemnet.json').exists():  # a run that was interrupted goes on
        known = {r['filename']: r for r in load_result('gpumemnet').values['rows'] if 'ours' in r}
    process = {}
    for kind in sorted({row['kind'] for row in rows}):
        mine = sorted((r for r in rows if r['kind'] == kind), key=lambda r: (r['status'], -r['measured']))
        mine.reverse()  # those that trained first, the smallest first
        card = find_device(CARD)
        for n, row in enumerate(progress(mine, desc=kind)):
            if n == SMALLEST:
                learned = [r['measured'] - r['ours']['reserved'] for r in mine[:n] if r['ours']['reserved']]
                card = replace(card, context=int(statistics.median(learned)))
            before = known.get(row['filename'])
            if before is None or args.again == kind and 'again' not in before:
                row['ours'] = predict(args.clone, fields_of(row['filename']), card)
                row['first'] = before['first'] if before else row['ours']
                row |= dict(again=True) if before else {}
                known[row['filename']] = row
                save_result('gpumemnet', dict(card=CARD, rows=[*known.values()]), COMMAND)
            row |= known[row['filename']]
            row['scored'] = n >= SMALLEST
        process[kind] = card.context
    save_result('gpumemnet', dict(card=CARD, process=process, rows=rows), COMMAND)


if __name__ == '__main__':
    main()
