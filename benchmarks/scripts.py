#!/usr/bin/env python3
"""Popular training scripts, as their authors published them, on a card that isn't here.

    python benchmarks/scripts.py CLONES [--only NAME …] [--jobs 1]

CLONES is a folder of git clones, one for each repository that the tables name (the clone of karpathy/nanoGPT
lies in CLONES/nanoGPT). Each script runs unchanged by `memtrain simulate --stand_in --json`, in a process of
its own whose CPU seconds and memory are measured. Its libraries have to be installed. A script that doesn't
come to a verdict is listed with the reason. The table goes to results/scripts.json; with `--only`, its rows
are replaced and the others stay.
"""

from __future__ import annotations

import argparse, json, os, subprocess, sys, tempfile, time
from pathlib import Path

from memtrain.core import GIB, format_size, load_result, progress, save_result

# of these also what would help
ADVISED = ('LLMs-from-scratch 00_orig',)

# GiB that an author reports as reserved, on the card that is named
REPORTED = {
    'LLMs-from-scratch 00_orig': 26.2617,
    'LLMs-from-scratch 01_opt': 22.5078,  # compiled
    'LLMs-from-scratch 02_ddp': 22.7969,  # compiled, four ranks
}
# Seconds of a step that authors report: its tokens by tokens a second, or the time of an iteration, compiled
REPORTED_SECONDS = {
    'LLMs-from-scratch 00_orig': 8 * 1024 / 12525,
    'LLMs-from-scratch 01_opt': 32 * 1024 / 142156,
    'nanoGPT bench': 0.135,
}

# name | repository | folder in it, to run in | card | words behind it
SCRIPTS = """
nanoGPT train_gpt2 | nanoGPT | . | a100 | train.py config/train_gpt2.py
nanoGPT bench | nanoGPT | . | a100 | bench.py
LLMs-from-scratch 00_orig | LLMs-from-scratch | ch05/10_llm-training-speed | a100 | 00_orig.py
LLMs-from-scratch 01_opt | LLMs-from-scratch | ch05/10_llm-training-speed | a100 | 01_opt_single_gpu.py
LLMs-from-scratch 02_ddp | LLMs-from-scratch | ch05/10_llm-training-speed | a100 | 02_opt_multi_gpu_ddp.py
LLMs-from-scratch gpt_train | LLMs-from-scratch | ch05/01_main-chapter-code | rtx3090 | gpt_train.py
nanochat base_train | nanochat | . | h100 | -m scripts.base_train
minGPT chargpt | minGPT | projects/chargpt | rtx3090 | chargpt.py
examples mnist | examples | mnist | rtx3090 | main.py
examples imagenet | examples | imagenet | rtx3090 | main.py -a resnet50 /data/imagenet
examples word_language_model | examples | word_language_model | rtx3090 | main.py --accel --epochs 1
examples dcgan | examples | dcgan | rtx3090 | main.py --dataset fake --accel
TRL sft | trl | . | rtx3090 | trl/scripts/sft.py --model_name_or_path Qwen/Qwen2-0.5B \
    --dataset_name trl-lib/Capybara --output_dir out
accelerate nlp_example | accelerate | . | rtx3090 | examples/nlp_example.py
peft no_lora_accelerate | peft | . | rtx3090 | examples/sequence_classification/peft_no_lora_accelerate.py \
    --model_name_or_path roberta-base --output_dir out
diffusers text_to_image | diffusers | . | a100 | examples/text_to_image/train_text_to_image.py \
    --pretrained_model_name_or_path CompVis/stable-diffusion-v1-4 \
    --dataset_name lambdalabs/naruto-blip-captions --resolution 512 --center_crop --random_flip \
    --train_batch_size 1 --gradient_accumulation_steps 4 --gradient_checkpointing \
    --mixed_precision bf16 --max_train_steps 100
timm train | pytorch-image-models | . | rtx3090 | train.py /data/imagenet
DiT train | DiT | . | a100 | train.py --data-path /data/imagenet
cleanrl ppo | cleanrl | . | rtx3090 | cleanrl/ppo.py
modded-nanogpt | modded-nanogpt | . | h100 | train_gpt.py
"""

# Nobody looked into these before the first run of this table: what the stand-ins are worth.
UNREAD = """
examples vae | examples | vae | rtx3090 | main.py
examples siamese_network | examples | siamese_network | rtx3090 | main.py
examples mnist_rnn | examples | mnist_rnn | rtx3090 | main.py --accel
LLMs-from-scratch ch06 | LLMs-from-scratch | ch06/01_main-chapter-code | rtx3090 | gpt_class_finetune.py
LLMs-from-scratch ch07 | LLMs-from-scratch | ch07/01_main-chapter-code | rtx3090 | \
    gpt_instruction_finetuning.py
minGPT adder | minGPT | projects/adder | rtx3090 | adder.py
accelerate cv_example | accelerate | . | rtx3090 | examples/cv_example.py --data_dir /data/pets
TRL dpo | trl | . | a100 | trl/scripts/dpo.py --dataset_name trl-lib/ultrafeedback_binarized \
    --model_name_or_path Qwen/Qwen2-0.5B-Instruct --per_device_train_batch_size 2 --max_steps 1000 \
    --gradient_accumulation_steps 8 --output_dir out --no_remove_unused_columns
TRL reward_modeling | trl | . | a100 | examples/scripts/reward_modeling.py \
    --model_name_or_path Qwen/Qwen2-0.5B-Instruct --dataset_name trl-lib/ultrafeedback_binarized \
    --output_dir out --per_device_train_batch_size 8 --max_length 2048
diffusers unconditional | diffusers | . | rtx3090 | \
    examples/unconditional_image_generation/train_unconditional.py \
    --dataset_name huggan/flowers-102-categories --resolution 64 --center_crop --random_flip \
    --output_dir out --train_batch_size 16 --use_ema
cleanrl dqn | cleanrl | . | rtx3090 | cleanrl/dqn.py
peft dora_finetuning | peft | . | a100 | examples/dora_finetuning/dora_finetuning.py --use_dora \
    --base_model meta-llama/Llama-2-7b-hf
"""


def read_table(text):
    "{name: (repository, folder, card, words)}"
    lines = text.strip().splitlines()
    rows = [[' '.join(part.split()) for part in line.split('|')] for line in lines]
    return {name: rest for name, *rest in rows}


# Copies in other repositories, of transformers 4.48; they need transformers 4.49 and accelerate 0.34,
# and run only if named by --only.
COPIES = """
transformers run_clm | 6.7960_GPT2 | . | rtx3090 | run_clm.py --model_name_or_path openai-community/gpt2 \
    --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 --per_device_train_batch_size 8 \
    --do_train --do_eval --output_dir out
transformers run_clm_no_trainer | 6.7960_GPT2 | . | rtx3090 | run_clm_no_trainer.py \
    --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 --model_name_or_path gpt2 \
    --output_dir out
transformers run_glue | Gradient-Weight-normalized-Low-rank-Projection-for-Efficient-LLM-Training | . | \
    rtx3090 | run_glue.py --model_name_or_path bert-base-cased --task_name mrpc --max_length 128 \
    --per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3 --output_dir out
"""

ALL = read_table(SCRIPTS) | read_table(UNREAD) | read_table(COPIES)


def run_one(name, clones):
    "The row of one script"
    repository, folder, card, words = ALL[name]
    where = clones / repository / folder
    at = ['git', '-C', str(clones / repository), 'log', '-1', '--format=%h %cs']
    commit = subprocess.run(at, capture_output=True, text=True, check=True).stdout.split()
    command = [sys.executable, '-m', 'memtrain', 'simulate', '--gpu', card, '--stand_in', '--json']
    if name in ADVISED:  # its cost isn't that of one simulation
        advised = subprocess.run(
            [*command, '--advise', *words.split()], cwd=where, capture_output=True, text=True, check=False
        )
        advice = json.loads(advised.stdout)['advice']
    else:
        advice = []
    row = dict(name=name, repository=repository, commit=commit[0], date=commit[1], card=card, words=words)
    row['unread'] = name in read_table(UNREAD)
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
        reserved=found['reserved'],
        advice=advice,
        reported=REPORTED.get(name),
        seconds=next(iter(found['seconds'].values()), None),
        reported_seconds=REPORTED_SECONDS.get(name),
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
    parser.add_argument('--only', nargs='+', choices=ALL, metavar='NAME')
    args = parser.parse_args()
    rows = []
    for name in progress(args.only or [*(read_table(SCRIPTS) | read_table(UNREAD))], desc='scripts'):
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
