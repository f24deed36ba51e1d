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

GPT2 = 8 * 1024  # tokens of a batch of LLMs-from-scratch
# 45,000 pictures to train on and 5,000 to look at, which take a third of the time of a step
VIT = lambda minutes, batch: minutes * 60 / ((45_000 + 5_000 / 3) / batch)
HUB = 'https://github.com/'
BOOK = HUB + 'rasbt/LLMs-from-scratch/tree/main/ch05/10_llm-training-speed'
LOGS = HUB + 'rasbt/pytorch-memory-optim/blob/main/logs.md'
RECORDS = HUB + 'KellerJordan/modded-nanogpt/tree/master/records/track_1_short/'
TUNE = HUB + 'pytorch/torchtune#optimization-flags'
LIT = HUB + 'Lightning-AI/litgpt/tree/main/config_hub/finetune'
STEPS = HUB + 'Wedsonlin/assignment2-systems/tree/main/results'
BACKWARD = 'https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html'
NANO = HUB + 'karpathy/nanoGPT'
EAGER, COMPILED = 'eager', 'compiled'

# What authors published of their runs: bytes allocated and reserved, seconds of a step, how it ran, where.
# Digits that they left out are left out.
SAID = 'allocated', 'reserved', 'seconds', 'how', 'source'
PUBLISHED = {
    'LLMs-from-scratch 00_orig': (None, 26.2617 * GIB, GPT2 / 12525, EAGER, BOOK),
    'LLMs-from-scratch 01_opt': (None, 22.5078 * GIB, 4 * GPT2 / 142156, COMPILED, BOOK),
    'LLMs-from-scratch 02_ddp': (None, 22.7969 * GIB, 4 * 4 * GPT2 / 419259, COMPILED, BOOK),
    'nanoGPT bench': (None, None, 0.135, COMPILED, NANO),
    # "about 4 days" for 600,000 steps
    'nanoGPT 8 ranks': (None, None, 4 * 86400 / 600_000, COMPILED, NANO),
    'CS336 medium 128': (7026606592, 7235174400, None, EAGER, STEPS),
    'CS336 medium 256': (9112391680, 9265217536, None, EAGER, STEPS),
    'CS336 medium 512': (12434494464, 12660506624, None, 'eager, autocast', STEPS),
    'CS336 medium 1024': (24211100672, 25178406912, None, 'eager, autocast', STEPS),
    'optimizer in backward': (6e9, None, None, EAGER, BACKWARD),
    'torchtune full': (60.0 * GIB, None, 8192 / 7075, EAGER, TUNE),
    'torchtune full checkpointed': (24.9 * GIB, None, 8192 / 7210, COMPILED, TUNE),
    'litgpt tiny-llama full': (14.10e9, None, None, EAGER, LIT),
    'litgpt tiny-llama lora': (13.50e9, None, None, EAGER, LIT),
    'litgpt llama-3.2-1b full': (8.70e9, None, None, EAGER, LIT),
    'litgpt llama-3.2-1b lora': (4.49e9, None, None, EAGER, LIT),
    'vit 01 float32': (None, 26.79e9, VIT(17.94, 64), EAGER, LOGS),
    'vit 02 mixed': (None, 18.21e9, VIT(3.45, 64), EAGER, LOGS),
    'vit 03 bfloat16': (None, 13.82e9, VIT(2.88, 64), EAGER, LOGS),
    'vit 04 batch of 16': (None, 5.69e9, VIT(3.96, 16), EAGER, LOGS),
    'modded-nanogpt Muon': (None, None, 0.21633, COMPILED, RECORDS + '2024-10-10_Muon'),
    'modded-nanogpt ModernArch': (None, None, 0.17889, COMPILED, RECORDS + '2024-10-14_ModernArch'),
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
modded-nanogpt | modded-nanogpt | . | h100 | --nproc 8 train_gpt.py
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

# Scripts of which PUBLISHED says more than that they run. Some need files that nothing stands in for:
# checkpoints of torchtune and litgpt (names and shapes, all zeros), shards of modded-nanogpt (a header and
# zeros). nsys_profile.py needs Python 3.12 for the quotes in one of its f-strings; on 3.11 they were changed.
# Whether its runs had autocast, their snapshots tell by the sizes of the logits. The tutorial is that of
# pytorch/tutorials@2a488705.
HELD = """
nanoGPT 8 ranks | nanoGPT | . | a100-40gb | --nproc 8 train.py config/train_gpt2.py
CS336 medium 128 | assignment2-systems | cs336_systems | a100 | MEDIUM --context_length 128
CS336 medium 256 | assignment2-systems | cs336_systems | a100 | MEDIUM --context_length 256
CS336 medium 512 | assignment2-systems | cs336_systems | a100 | MEDIUM --context_length 512 --autocast true
CS336 medium 1024 | assignment2-systems | cs336_systems | a100 | MEDIUM --context_length 1024 --autocast true
optimizer in backward | tutorials | intermediate_source | a100 | optimizer_step_in_backward_tutorial.py
torchtune full | torchtune | . | a100 | TUNE loss=torch.nn.CrossEntropyLoss \
    enable_activation_checkpointing=False
torchtune full checkpointed | torchtune | . | a100 | TUNE optimizer.fused=True \
    loss=torchtune.modules.loss.CEWithChunkedOutputLoss enable_activation_checkpointing=True
litgpt tiny-llama full | litgpt | . | a10g | -m litgpt finetune_full \
    --config config_hub/finetune/tiny-llama/full.yaml
litgpt tiny-llama lora | litgpt | . | a10g | -m litgpt finetune_lora \
    --config config_hub/finetune/tiny-llama/lora.yaml
litgpt llama-3.2-1b full | litgpt | . | a10g | -m litgpt finetune_full \
    --config config_hub/finetune/llama-3.2-1B/full.yaml
litgpt llama-3.2-1b lora | litgpt | . | a10g | -m litgpt finetune_lora \
    --config config_hub/finetune/llama-3.2-1B/lora.yaml
vit 01 float32 | pytorch-memory-optim | . | a100 | 01_pytorch-vit.py
vit 02 mixed | pytorch-memory-optim | . | a100 | 02_mixed-precision.py
vit 03 bfloat16 | pytorch-memory-optim | . | a100 | 03_bfloat16.py
vit 04 batch of 16 | pytorch-memory-optim | . | a100 | 04_lower-batchsize.py
modded-nanogpt Muon | modded-nanogpt | records/track_1_short/2024-10-10_Muon | h100 | --nproc 8 train_gpt2.py
modded-nanogpt ModernArch | modded-nanogpt | records/track_1_short/2024-10-14_ModernArch | h100 | \
    --nproc 8 train_gpt2.py
"""
SHORT = {
    'MEDIUM': 'nsys_profile.py --d_model 1024 --d_ff 4096 --num_layers 24 --num_heads 16 --model_name medium '
    '--pattern full-training-step --memory-profiler pytorch',
    'TUNE': 'recipes/full_finetune_single_device.py --config '
    'recipes/configs/llama3_2/3B_full_single_device.yaml dataset.packed=True tokenizer.max_seq_len=4096 '
    'batch_size=2 optimizer_in_bwd=False optimizer=torch.optim.AdamW',
}


def read_table(text):
    "{name: (repository, folder, card, words)}"
    lines = text.strip().splitlines()
    for short, long in SHORT.items():
        lines = [line.replace(f'{short} ', f'{long} ') for line in lines]
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

ALL = read_table(SCRIPTS) | read_table(UNREAD) | read_table(HELD) | read_table(COPIES)


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
        # of the card, as the allocator counts what it handed out
        allocated=only['allocated'],
        published=dict(zip(SAID, PUBLISHED[name])) if name in PUBLISHED else None,
        seconds=next(iter(found['seconds'].values()), None),
        steps=found['steps'],
        ended=found['ended'],
        assumed=len(found['assumed']),
        # a script's own by their names, others from the folder of clones on
        lines={at.removeprefix(f'{clones}/'): size for at, size in [*found['by_line'].items()][:4]},
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
    for name in progress(
        args.only or [*(read_table(SCRIPTS) | read_table(UNREAD) | read_table(HELD))], desc='scripts'
    ):
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
