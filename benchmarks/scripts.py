#!/usr/bin/env python3
"""Popular training scripts, as their authors published them, on a card that isn't here.

    python benchmarks/scripts.py CLONES [--only NAME …] [--jobs 1]

CLONES is a folder of git clones, one for each repository that `SCRIPTS` names (the clone of karpathy/nanoGPT
lies in CLONES/nanoGPT). Each script runs unchanged by `memtrain simulate --stand_in --json`, in a process of
its own whose CPU seconds and memory are measured. Its libraries have to be installed. A script that doesn't
come to a verdict is listed with the reason. The table goes to results/scripts.json; with `--only`, its rows
are replaced and the others stay.
"""

from __future__ import annotations

import argparse, json, os, subprocess, sys, tempfile, time
from pathlib import Path

from memtrain.core import GIB, format_size, load_result, progress, save_result

LLMS = 'LLMs-from-scratch/ch05/10_llm-training-speed'
# name: (repository, folder to run in, card, words behind it, GiB that its author reports as reserved)
SCRIPTS = {
    'nanoGPT train_gpt2': ('nanoGPT', '', 'a100', 'train.py config/train_gpt2.py', None),
    'nanoGPT shakespeare_char': ('nanoGPT', '', 'rtx3090', 'train.py config/train_shakespeare_char.py', None),
    'LLMs-from-scratch 00_orig': ('LLMs-from-scratch', LLMS, 'a100', '00_orig.py', 26.2617),
    'LLMs-from-scratch 01_opt_single_gpu': ('LLMs-from-scratch', LLMS, 'a100', '01_opt_single_gpu.py', None),
    'LLMs-from-scratch 02_opt_multi_gpu_ddp': (
        'LLMs-from-scratch',
        LLMS,
        'a100',
        '02_opt_multi_gpu_ddp.py',
        None,
    ),
    'LLMs-from-scratch gpt_train': (
        'LLMs-from-scratch',
        'LLMs-from-scratch/ch05/01_main-chapter-code',
        'rtx3090',
        'gpt_train.py',
        None,
    ),
    'nanochat base_train': ('nanochat', '', 'h100', '-m scripts.base_train', None),
    'minGPT chargpt': ('minGPT', 'minGPT/projects/chargpt', 'rtx3090', 'chargpt.py', None),
    'examples mnist': ('examples', 'examples/mnist', 'rtx3090', 'main.py', None),
    'examples imagenet': (
        'examples',
        'examples/imagenet',
        'rtx3090',
        'main.py -a resnet50 /data/imagenet',
        None,
    ),
    'examples word_language_model': (
        'examples',
        'examples/word_language_model',
        'rtx3090',
        'main.py --accel --epochs 1',
        None,
    ),
    'examples dcgan': ('examples', 'examples/dcgan', 'rtx3090', 'main.py --dataset fake --accel', None),
    'TRL sft': (
        'trl',
        '',
        'rtx3090',
        'trl/scripts/sft.py --model_name_or_path Qwen/Qwen2-0.5B --dataset_name trl-lib/Capybara '
        '--output_dir out',
        None,
    ),
    'accelerate nlp_example': ('accelerate', '', 'rtx3090', 'examples/nlp_example.py', None),
    'peft peft_no_lora_accelerate': (
        'peft',
        '',
        'rtx3090',
        'examples/sequence_classification/peft_no_lora_accelerate.py --model_name_or_path roberta-base',
        None,
    ),
    'diffusers train_text_to_image': (
        'diffusers',
        '',
        'a100',
        'examples/text_to_image/train_text_to_image.py --pretrained_model_name_or_path '
        'CompVis/stable-diffusion-v1-4 --dataset_name lambdalabs/naruto-blip-captions --resolution 512 '
        '--center_crop --random_flip --train_batch_size 1 --gradient_accumulation_steps 4 '
        '--gradient_checkpointing --mixed_precision bf16 --max_train_steps 100',
        None,
    ),
    'timm train': ('pytorch-image-models', '', 'rtx3090', 'train.py /data/imagenet', None),
    'DiT train': ('DiT', '', 'a100', 'train.py --data-path /data/imagenet', None),
    'cleanrl ppo': ('cleanrl', '', 'rtx3090', 'cleanrl/ppo.py', None),
    'modded-nanogpt train_gpt': ('modded-nanogpt', '', 'h100', 'train_gpt.py', None),
}


def run_one(name, clones):
    "The row of one script"
    repository, folder, card, words, reported = SCRIPTS[name]
    where = clones / (folder or repository)
    at = ['git', '-C', str(clones / repository), 'log', '-1', '--format=%h %cs']
    commit = subprocess.run(at, capture_output=True, text=True, check=True).stdout.split()
    command = [sys.executable, '-m', 'memtrain', 'simulate', '--gpu', card, '--stand_in', '--json']
    row = dict(name=name, repository=repository, commit=commit[0], date=commit[1], card=card, words=words)
    # minGPT's project imports its package from the repository's folder
    env = os.environ | dict(PYTHONPATH=f'{os.environ.get("PYTHONPATH", "")}:{clones / repository}')
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command, *words.split()], cwd=where, stdout=out, stderr=err, env=env, stdin=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        row['wall_seconds'] = time.perf_counter() - started
        out.seek(0)
        err.seek(0)
        said, complained = out.read().decode(), err.read().decode().strip().splitlines()
    row |= dict(
        status=os.waitstatus_to_exitcode(status),
        cpu_seconds=used.ru_utime + used.ru_stime,
        rss=used.ru_maxrss * 1024,
    )
    if not said.strip():
        return row | dict(error=complained[-1] if complained else 'no word')
    found = json.loads(said)
    if found['error'] or not found['peak']:
        error = found['error'] or dict(kind='', message=found['ended'])
        return row | dict(error=f'{error["kind"]}: {error["message"]}'.splitlines()[0][:200])
    only = next(iter(found['cards'].values()))
    return row | dict(
        fits=only['fits'],
        peak=found['peak'],
        reserved=only['reserved'],
        reported=reported,
        steps=found['steps'],
        ended=found['ended'],
        assumed=len(found['assumed']),
        lines=dict([*found['by_line'].items()][:4]),
    )


def tell(row):
    "One line of the table"
    cost = f'{row["cpu_seconds"]:5.1f} CPU s  {format_size(row["rss"])}'
    if 'error' in row:
        return f'{row["name"]:<40}  no verdict  {cost}  {row["error"]}'
    verdict = 'fits' if row['fits'] else 'does not fit'
    return (
        f'{row["name"]:<40}  {verdict} {row["card"]}: {row["peak"] / GIB:.4f} GiB allocated, '
        f'{row["reserved"] / GIB:.4f} reserved  {cost}'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('clones', type=Path)
    parser.add_argument('--only', nargs='+', choices=SCRIPTS, metavar='NAME')
    args = parser.parse_args()
    rows = []
    for name in progress(args.only or [*SCRIPTS], desc='scripts'):
        rows.append(run_one(name, args.clones.resolve()))
        print(tell(rows[-1]), flush=True)
    if args.only:
        before = load_result('scripts').values['rows']
        new = {r['name']: r for r in rows}
        rows = [new.get(r['name'], r) for r in before] + [
            r for r in rows if r['name'] not in {b['name'] for b in before}
        ]
    print(save_result('scripts', dict(rows=rows), 'python benchmarks/scripts.py CLONES').stamp)


if __name__ == '__main__':
    main()
