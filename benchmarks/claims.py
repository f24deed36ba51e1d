#!/usr/bin/env python3
"""What the first system's documents claimed about loading data, measured one claim at a time.

    python benchmarks/claims.py tokenizers|batches|cache|workers|waiting|all [--mb 20] [--rounds 5]

Each subcommand prints a table and writes `results/bench_<name>.json`. The text is this Python's own
sources; the vocabulary, 8,192 ids, is learned from it, and every tokenizer has to give the same ids.
transformers, where it is installed, must be a 4.x: 5 has no slow tokenizers."""

from __future__ import annotations

import argparse, importlib, importlib.util, json, os, statistics, subprocess, sys, sysconfig, tempfile
import time, warnings
from pathlib import Path

os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')

import numpy as np
import peers  # noqa: F401, registers other people's loaders

from memtrain.bench import (
    LIMITS,
    WAYS,
    BenchData,
    format_number,
    format_table,
    installed_versions,
    select_ways,
    timed,
)
from memtrain.core import save_result
from memtrain.prepare import prepare
from memtrain.tokenization import train_bpe

# --------------------------------------------------------------------------------------------------
# text


def read_texts(mb):
    "Python sources of about `mb` MB in all, always the same ones"
    texts, size = [], 0
    for p in sorted(Path(sysconfig.get_paths()['stdlib']).rglob('*.py')):
        if 'site-packages' in p.parts or size >= mb * 1e6:
            continue
        text = p.read_text(encoding='utf-8', errors='ignore')
        if text.strip():
            texts.append(text)
            size += len(text.encode())
    return texts


def write_texts(folder, mb):
    """The same as files, repeated with a number in front until there is enough; every copy counts as another
    document"""
    texts, size, k = read_texts(mb), 0, 0
    folder.mkdir()
    while size < mb * 1e6:
        text = f'# copy {k // len(texts)}\n' + texts[k % len(texts)]
        (folder / f'{k:05d}.py').write_text(text)
        size, k = size + len(text.encode()), k + 1
    return folder


def learn(texts, fast=True):
    "A tokenizer of 8,192 ids"
    tokenizer = train_bpe(texts, 8192)
    if fast:
        tokenizer.speed_up()
    return tokenizer


# --------------------------------------------------------------------------------------------------
# rounds


def in_turn(ways, rounds):
    "Seconds of each of {name: function}, in interleaved rounds, every second one backwards"
    took = {name: [] for name in ways}
    for r in range(rounds):
        for name in list(ways)[:: -1 if r % 2 else 1]:
            started = time.perf_counter()
            ways[name]()
            took[name].append(time.perf_counter() - started)
    return took


def compare(took, base, work):
    "Rates, and the ratio to `base` of the same round"
    return {
        name: {
            'per_second': work / statistics.median(s),
            'ratio': statistics.median(b / a for a, b in zip(s, took[base])),
            'ratio_low': min(b / a for a, b in zip(s, took[base])),
            'ratio_high': max(b / a for a, b in zip(s, took[base])),
            'seconds': s,
        }
        for name, s in took.items()
    }


def _rounds(args):
    return f'medians of {args.rounds} rounds in turn, ratios of the same round'


def show(title, found, unit, base, scale=1e6):
    rows = [
        [
            name,
            format_number(v['per_second'] / scale),
            f"{v['ratio']:.2f}",
            f"{v['ratio_low']:.2f} – {v['ratio_high']:.2f}",
        ]
        for name, v in found.items()
    ]
    print(f"\n{title}\n{format_table(['', unit, f'over {base}', 'lowest – highest'], rows)}", flush=True)
    return title


# --------------------------------------------------------------------------------------------------
# tokenizers


def as_transformers(tokenizer, folder):
    "(slow, fast): the same vocabulary as transformers' two GPT-2 tokenizers"
    from transformers import GPT2Tokenizer, GPT2TokenizerFast

    model = json.loads(tokenizer.state())['model']
    vocab, merges = folder / 'vocab.json', folder / 'merges.txt'
    vocab.write_text(json.dumps(model['vocab']))
    merges.write_text(
        '#version: 0.2\n'
        + '\n'.join(' '.join(m) if isinstance(m, list) else m for m in model['merges'])
        + '\n'
    )
    return GPT2Tokenizer(str(vocab), str(merges)), GPT2TokenizerFast(
        vocab_file=str(vocab), merges_file=str(merges)
    )


def run_tokenizers(args):
    """A fast tokenizer against a slow one: the Rust ones of `tokenizers` and tiktoken against transformers'
    in Python"""
    texts = read_texts(args.mb / 10)
    tokenizer = learn(read_texts(args.mb))
    size, rust = sum(len(t.encode()) for t in texts), tokenizer.tokenizer
    one = lambda encode: lambda: [encode(t) for t in texts]
    ways = {
        'tokenizers, one text at a time': one(lambda t: rust.encode(t, add_special_tokens=False).ids),
        'tokenizers, a batch, all cores': lambda: [
            e.ids for e in rust.encode_batch(texts, add_special_tokens=False)
        ],
        'memtrain (tiktoken), one thread': lambda: np.split(*_cuts(tokenizer.encode_documents(texts))),
    }
    left_out = {}
    with tempfile.TemporaryDirectory() as folder:
        if importlib.util.find_spec('transformers'):
            slow, fast = as_transformers(tokenizer, Path(folder))
            call = lambda t, x: t(x, add_special_tokens=False)['input_ids']
            ways = {
                'transformers, slow': one(lambda t: call(slow, t)),
                'transformers, fast, one at a time': one(lambda t: call(fast, t)),
                'transformers, fast, a batch': lambda: call(fast, texts),
                **ways,
            }
        else:
            left_out['transformers'] = "pip install 'transformers<5'"
        ids = {name: [list(map(int, i)) for i in fn()] for name, fn in ways.items()}
        first = next(iter(ids))
        for name, found in ids.items():
            if name.startswith('memtrain'):
                found = [i[:-1] for i in found]  # its documents have an end
            assert found == ids[first], f'{name}: not the ids of {first}'
        took = in_turn(ways, args.rounds)
    found = compare(took, first, size)
    caption = show(
        f"{size / 1e6:.1f} MB of Python's sources in {len(texts)} texts of {size / len(texts) / 1e3:.0f} kB,"
        f" a vocabulary of 8,192, the same ids by all; {_rounds(args)}",
        found,
        'MB/s',
        first,
    )
    return {
        'ways': found,
        'caption': caption,
        'base': first,
        'bytes': size,
        'texts': len(texts),
        'left_out': left_out,
    }


def _cuts(documents):
    ids, lengths = documents
    return ids, np.cumsum(lengths)[:-1]


# --------------------------------------------------------------------------------------------------
# batches


def run_batches(args):
    "Documents handed to the tokenizer at a time: 512 against 256, and others"
    texts = [t[i : i + 2000] for t in read_texts(args.mb) for i in range(0, len(t), 2000)][:4096]
    tokenizer, size = learn(read_texts(args.mb)), sum(len(t.encode()) for t in texts)
    out, captions = {}, {}
    for engine, encode in (('tokenizers', tokenizer.encode_batch), ('tiktoken', tokenizer.encode_documents)):
        ways = {
            f'{engine}, {n} at a time': lambda n=n, encode=encode: [
                encode(texts[i : i + n]) for i in range(0, len(texts), n)
            ]
            for n in (1, 16, 64, 256, 512, 1024, 4096)
        }
        out[engine] = compare(in_turn(ways, args.rounds), f'{engine}, 256 at a time', size)
        captions[engine] = show(
            f"{engine}: {size / 1e6:.1f} MB of Python's sources in {len(texts):,} texts of up to 2,000"
            f" characters, a vocabulary of 8,192; {_rounds(args)}",
            out[engine],
            'MB/s',
            '256',
        )
    return {'engines': out, 'captions': captions, 'bytes': size, 'texts': len(texts)}


# --------------------------------------------------------------------------------------------------
# cache


def stream_epoch(stream):
    "An epoch, and how many tokens it had"
    return sum(batch[0].numel() for batch in stream)


def run_cache(args):
    "A second epoch of a stream: tokenised again, from a cache in memory, and from prepared shards"
    from memtrain.loader import TokenLoader
    from memtrain.stream import TokenStream

    with tempfile.TemporaryDirectory() as d:
        files = write_texts(Path(d) / 'text', args.mb)
        tokenizer = learn(read_texts(args.mb))
        kinds = {'no cache': {}, 'cache in memory': {'cache_size': 2**30}}
        streams = {
            name: TokenStream(files, tokenizer, 16, 1024, threads=1, **kw) for name, kw in kinds.items()
        }
        prepare(
            [str(files)],
            Path(d) / 'shards',
            tokenization=_saved(tokenizer, Path(d)),
            val_fraction=0,
            workers=1,
        )
        firsts = {name: _first_epoch(files, tokenizer, kw) for name, kw in kinds.items()}
        first = compare(in_turn(firsts, args.rounds), 'no cache', 1)
        for stream in streams.values():
            stream_epoch(stream)  # which fills the caches
        ways = {name: lambda s=s: stream_epoch(s) for name, s in streams.items()}
        ways['prepared shards'] = lambda: stream_epoch(TokenLoader(Path(d) / 'shards', 16, 1024))
        tokens = stream_epoch(streams['no cache'])
        found = compare(in_turn(ways, args.rounds), 'no cache', tokens)
    for name, v in first.items():
        v['per_second'] *= tokens
    about = (
        f"{args.mb:g} MB of Python's sources, {tokens / 1e6:.1f}M tokens, batches of 16 × 1,024, one thread;"
        f" {_rounds(args)}"
    )
    captions = {
        'later': show(f'later epochs of {about}', found, 'M tokens/s', 'none'),
        'first': show(f'first epochs of {about}', first, 'M tokens/s', 'none'),
    }
    return {'ways': found, 'first': first, 'captions': captions, 'tokens': tokens}


def _first_epoch(files, tokenizer, kw):
    "The first epoch of a stream with that kind of cache, which is empty each time"
    from memtrain.stream import TokenStream

    return lambda: stream_epoch(TokenStream(files, tokenizer, 16, 1024, threads=1, **kw))


def _saved(tokenizer, folder):
    path = folder / 'tokenizer.json'
    path.write_text(tokenizer.state(), encoding='utf-8')
    return str(path)


# --------------------------------------------------------------------------------------------------
# workers


def run_workers(args):
    "One worker against several, where there is work: preparing, and tokenising on the fly"
    with tempfile.TemporaryDirectory() as d:
        files = write_texts(Path(d) / 'text', args.mb)
        tokenizer, number = learn(read_texts(args.mb)), iter(range(10**6))
        saved = _saved(tokenizer, Path(d))

        def prepared(workers):
            return lambda: prepare(
                [str(files)],
                Path(d) / f'out{next(number)}',
                tokenization=saved,
                val_fraction=0,
                workers=workers,
            )

        ways = {f'prepare, {n} worker{"s" * (n > 1)}': prepared(n) for n in (1, 2)}
        size = sum(p.stat().st_size for p in files.iterdir())
        found = {'prepare': compare(in_turn(ways, args.rounds), 'prepare, 1 worker', size)}
        captions = {
            'prepare': show(
                f"preparing {size / 1e6:.0f} MB of Python's sources, {os.cpu_count()} cores; {_rounds(args)}",
                found['prepare'],
                'MB/s',
                'one',
            )
        }
        if importlib.util.find_spec('memtrain.stream'):
            from memtrain.stream import TokenStream

            def streamed(**kw):
                return lambda: stream_epoch(TokenStream(files, tokenizer, 16, 1024, **kw))

            ways = {
                'stream, 1 thread': streamed(threads=1),
                'stream, 2 threads': streamed(threads=2),
                'stream, 1 worker process': streamed(threads=1, num_workers=1),
                'stream, 2 worker processes': streamed(threads=1, num_workers=2),
            }
            found['stream'] = compare(in_turn(ways, args.rounds), 'stream, 1 thread', size)
            captions['stream'] = show(
                f"streaming {size / 1e6:.0f} MB, an epoch with its start, batches of 16 × 1,024,"
                f" {os.cpu_count()} cores; {_rounds(args)}",
                found['stream'],
                'MB/s',
                'one',
            )
    return {**found, 'captions': captions, 'bytes': size}


# --------------------------------------------------------------------------------------------------
# waiting

# a small GPT, its steps alone and in the loop, and what there is to read
MODEL, STEPS, TOKENS = dict(n_layer=2, n_head=2, n_embd=64), 12, 16_000_000


def make_step(block_size, vocab=512):
    "A training step of the small GPT, as a function of a batch"
    import torch
    from memtrain.model import GPT, GPTConfig

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(GPTConfig(vocab, block_size, **MODEL))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x, y):
        model.loss(torch.as_tensor(x) % vocab, torch.as_tensor(y) % vocab).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loop(key, folder, together=4):
    """Seconds of training steps alone, of as many in the loop that reads by the way `key`, and of each wait;
    `together` of a kind in turn"""

    def clock(fn, *args):
        started = time.perf_counter()
        return fn(*args), time.perf_counter() - started

    data, way = BenchData(Path(folder), TOKENS, 16, 256), WAYS[key]
    importlib.import_module('memtrain.loader')
    for module in way.needs:
        way.load(module)
    for name in way.formats:
        data.path(name)
    batches, step, found = (
        way.batches(data),
        make_step(data.block_size),
        {'alone': [], 'took': [], 'waits': []},
    )
    timed(batches, 0.1, way.lead)
    fixed = next(batches)
    for _ in range(0, STEPS, together):
        found['alone'] += [clock(step, *fixed)[1] for _ in range(1 + together)][1:]
        timed(batches, 0, way.lead)
        for _ in range(together):
            batch, waited = clock(next, batches)
            found['waits'].append(waited)
            found['took'].append(clock(step, *batch)[1])
    return found


def summarize_waits(runs):
    """The share of the loop spent waiting and the step in the loop over the step alone, as medians of rounds,
    with the lowest and the highest"""
    med, found = statistics.median, {}
    for name, values in (
        ('share_waiting', [sum(m['waits']) / (sum(m['waits']) + sum(m['took'])) for m in runs]),
        ('step_over_alone', [med(m['took']) / med(m['alone']) for m in runs]),
    ):
        found |= {name: med(values), f'{name}_low': min(values), f'{name}_high': max(values)}
    every = {name: [s for m in runs for s in m[name]] for name in runs[0]}
    return found | {
        'wait_seconds': med(every['waits']),
        'wait_most': max(every['waits']),
        'step_seconds': med(every['took']),
        'alone_seconds': med(every['alone']),
    }


def run_waiting(args):
    """No claim, but what they are about: the share of a training step spent waiting for each loader, each in
    a process of its own"""
    if args.way:
        return print(json.dumps(loop(*args.way)))
    chosen, left_out = select_ways([k for k in WAYS if k not in LIMITS[1:]])
    runs = {w.key: [] for w in chosen}
    with tempfile.TemporaryDirectory() as d:
        for r in range(args.rounds):
            for w in chosen[:: -1 if r % 2 else 1]:
                run = subprocess.run(
                    [sys.executable, __file__, 'waiting', '--way', w.key, d], capture_output=True, text=True
                )
                if run.returncode:
                    left_out[w.label] = run.stderr.strip().splitlines()[-1]
                else:
                    runs[w.key].append(json.loads(run.stdout.splitlines()[-1]))
    found = {
        w.key: {'label': w.label, **summarize_waits(runs[w.key])} for w in chosen if w.label not in left_out
    }
    print(
        format_table(
            ['', 'waiting', 'median wait, µs', 'step, ms', 'over alone'],
            [
                [
                    v['label'],
                    f"{v['share_waiting']:.2%}",
                    f"{1e6 * v['wait_seconds']:,.0f}",
                    f"{1e3 * v['step_seconds']:,.0f}",
                    f"{v['step_over_alone']:.2f}",
                ]
                for v in found.values()
            ],
        )
    )
    return {
        'ways': found,
        'left_out': left_out,
        'work': {
            'steps': STEPS,
            'batch_size': 16,
            'block_size': 256,
            'rounds': args.rounds,
            'tokens': TOKENS,
            'model': MODEL,
        },
    }


# --------------------------------------------------------------------------------------------------
# main

COMMANDS = {
    'tokenizers': run_tokenizers,
    'batches': run_batches,
    'cache': run_cache,
    'workers': run_workers,
    'waiting': run_waiting,
}


def main():
    warnings.filterwarnings('ignore')
    p = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument('command', choices=[*COMMANDS, 'all'])
    p.add_argument('--mb', type=float, default=20, help='megabytes of text; for tokenizers a tenth of it')
    p.add_argument('--rounds', type=int, default=5, help='interleaved rounds')
    p.add_argument('--results', help='folder for the results; by default `results` of the checkout')
    p.add_argument('--way', nargs=2, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.way:
        return run_waiting(args)
    for name in COMMANDS if args.command == 'all' else [args.command]:
        started = time.perf_counter()
        values = COMMANDS[name](args)
        flags = [
            f'--{k} {v:g}' for k, v in (('mb', args.mb), ('rounds', args.rounds)) if v != p.get_default(k)
        ]
        result = save_result(
            f'bench_{name}',
            {
                **values,
                'rounds': args.rounds,
                'mb': args.mb,
                'seconds': time.perf_counter() - started,
                'libraries': _libraries(),
            },
            ' '.join(['python benchmarks/claims.py', name, *flags]),
            args.results,
        )
        print(result.stamp)


def _libraries():
    from importlib import metadata

    found = installed_versions()
    for name in ('tokenizers', 'tiktoken', 'transformers'):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


if __name__ == '__main__':
    main()
