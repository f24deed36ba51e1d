"The lines of README.md, in their order: in small, and (slow) as they stand."

import os, re, shlex, shutil, subprocess, sys, tempfile
from pathlib import Path

import pytest

import memtrain
from memtrain.cli import main

ROOT = Path(memtrain.__path__[0]).parent
ELSEWHERE = ('git clone', 'make ', 'pip install', 'hf download')  # what makes the machine ready
SMALL = {
    r'--max_iters \d+': '--max_iters 1',
    r'--target_params 1M': '--target_params 20k',
    r'--epochs 5': '--epochs 1',
    r'--n_embd 64': '--n_embd 8',
    r'--target_traces 2000': '--target_traces 80',
    r'--what topk': '--what topk --target_traces 8 --seq_len 32',
    r'--train_kernel_size 64': '--train_kernel_size 8 --niters 2',
    r'vocab_size([= ])2048': r'vocab_size\g<1>300',
    r'block_size=256': 'block_size=32',
    r'--prompt "def "': '--prompt "def " --max_new_tokens 3',
}


def blocks():
    "(language, text) of each block of code that can be pasted without a network"
    found = re.findall(r'^```(\w+)\n(.*?)^```', (ROOT / 'README.md').read_text(), flags=re.M | re.S)
    for language, text in found:
        lines = [
            line
            for line in text.splitlines()
            if not line.startswith(ELSEWHERE) and '# needs a network' not in line
        ]
        if language in ('sh', 'python') and any(lines):
            yield language, '\n'.join(lines)


def make_mixture(folder):
    "What the line that downloads a mixture of experts makes, small and with random weights"
    import transformers
    from memtrain.tokenization import train_bpe

    shape = dict(vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    experts = dict(num_key_value_heads=2, moe_intermediate_size=16, shared_expert_intermediate_size=24)
    config = transformers.AutoConfig.for_model('qwen2_moe', **shape, **experts, num_experts=4)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / 'tokenizer.json').write_text(train_bpe([(ROOT / 'LICENSE').read_text()], 300).state())


def test_every_line_of_the_readme_runs_in_small(monkeypatch, capsys):
    with tempfile.TemporaryDirectory() as d:
        (Path(d) / 'memtrain').mkdir()
        sources = sorted((ROOT / 'memtrain').glob('*.py'), key=lambda p: p.stat().st_size)
        for p in sources[3:15]:
            shutil.copy(p, Path(d) / 'memtrain')
        make_mixture(Path(d) / 'qwen')
        monkeypatch.chdir(d)
        ran, here = [], {}
        for language, text in blocks():
            for old, new in SMALL.items():
                text = re.sub(old, new, text)
            if language == 'python':
                exec(text, here)
            for line in text.splitlines() if language == 'sh' else ():
                command, *args = shlex.split(line, comments=True)
                ran.append(args[0])
                # processes of their own: the slow test has them
                if command == 'torchrun' or args[0] == 'bench':
                    continue
                small = (
                    ['--seq_len', '32', '--eval_interval', '1', '--eval_batches', '1']
                    if args[0] == 'train' and '--seq_len' not in args
                    else []
                )
                assert command == 'memtrain' and main([*args, *small]) in (0, None), line
        assert {
            'prepare',
            'plan',
            'train',
            'sample',
            'eval',
            'export-model',
            'verify',
            'collect-traces',
            'shard-traces',
            'train-predictor',
            'expert-cache',
            'wpo',
            'bench',
        } <= set(ran)
        assert here['x'].shape[1] == 32 and 'TokenShards' in capsys.readouterr().out
        assert all(
            Path(made).exists()
            for made in (
                'report.html',
                'mixture.png',
                'routing_data/experts_traces.pkl',
                'routing_data/qwen_traces_shards/trace_metadata.json',
                'gpt/model.safetensors',
            )
        )


@pytest.mark.slow
def test_every_line_of_the_readme_runs_as_pasted():
    with tempfile.TemporaryDirectory() as d:
        shutil.copytree(ROOT / 'memtrain', Path(d) / 'memtrain')
        make_mixture(Path(d) / 'qwen')
        (Path(d) / 'bin').mkdir()
        for name, module in (('memtrain', 'memtrain'), ('torchrun', 'torch.distributed.run')):
            (Path(d) / 'bin' / name).write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n'
            )
            (Path(d) / 'bin' / name).chmod(0o755)
        env = {**os.environ, 'PATH': f"{d}/bin:{os.environ['PATH']}", 'PYTHONPATH': d}
        for language, text in blocks():
            for line in [text] if language == 'python' else text.splitlines():
                run = subprocess.run(
                    [sys.executable, '-c', line] if language == 'python' else ['sh', '-c', line],
                    cwd=d,
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                assert run.returncode == 0 and run.stdout, f'{line}\n{run.stdout[-2000:]}'
