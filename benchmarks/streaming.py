"""Tokenising while training: speed against bare tiktoken, memory against what was told beforehand, and
what packing wastes.

    python benchmarks/streaming.py speed|memory|waste [--rounds 3] [--megabytes 50] [--sizes 30,300] \\
      [--work FOLDER]

The text: Python sources of the interpreter's standard library and site-packages, each file once (for larger
texts again, with a line of its own in front), as .jsonl files of 10 MB. The tokenizer: a byte-level BPE of
32,000 ids, trained once. Both are kept in FOLDER. speed: every way runs in a process of its own, in
interleaved rounds; seconds are those from opening the stream to its last batch, imports not counted. Bare
tiktoken is given texts that are in memory already, and does nothing but encode_ordinary_batch with as many
threads as there are cores. memory: the PSS of the process and its workers, looked at 20 times a second,
against PSS at the start of the epoch plus predict_memory(). waste: the sources of the standard library, and
its docstrings. The results go to results/stream_speed.json, stream_memory.json and stream_waste.json."""

import argparse, json, os, statistics, subprocess, sys, sysconfig, tempfile, time
from pathlib import Path
from unittest.mock import patch

import numpy as np
from preparing import CORES, hash_of, load_encoding, make_tokenizer

from memtrain.core import save_result
from memtrain.measure import pss

T, BATCH = 1024, 16
SHARD = 10e6  # bytes in a .jsonl file


# --- what every way is given ---------------------------------------------------------------------


def sources():
    "The text of every Python source on this machine, in an order that is the same each time"
    paths = sysconfig.get_paths()
    found = {
        os.path.realpath(p) for root in (paths["stdlib"], paths["purelib"]) for p in Path(root).rglob("*.py")
    }
    for path in sorted(found, key=hash_of):
        try:
            text = Path(path).read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if text.strip():
            yield text


def make_text(work: Path, megabytes: float) -> Path:
    "A folder in `work` with so much text"
    folder = work / f"text_{megabytes:g}"
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    size, number, out, round = 0, 0, None, 0
    while size < megabytes * 1e6:
        for text in sources():
            if out is None or out.tell() > SHARD:
                out = open(folder / f"text_{number:03d}.jsonl", "w", encoding="utf-8")
                number += 1
            out.write(json.dumps({"text": f"# copy {round}\n{text}" if round else text}) + "\n")
            size += len(text.encode())
            if size > megabytes * 1e6:
                break
        round += 1
    out.close()
    (folder / "done").touch()
    return folder


def get_tokenizer(work: Path):
    from memtrain.tokenization import load_tokenizer

    if not (work / "text.jsonl").exists():  # what `make_tokenizer` learns from
        parts = sorted(make_text(work, 50).glob("*.jsonl"))
        (work / "text.jsonl").write_bytes(b"".join(p.read_bytes() for p in parts))
    make_tokenizer(work)
    return load_tokenizer(work / "tokenizer.json")


# --- speed: each way returns (seconds, tokens) ---------------------------------------------------


def bare(work, text, faster=False):
    texts = [
        json.loads(line)["text"]
        for path in sorted(text.glob("*.jsonl"))
        for line in open(path, encoding="utf-8")
    ]
    encoding, _ = load_encoding(work, faster)
    started = time.perf_counter()
    tokens = sum(
        len(ids) + 1
        for i in range(0, len(texts), 256)
        for ids in encoding.encode_ordinary_batch(texts[i : i + 256], num_threads=CORES)
    )
    return time.perf_counter() - started, tokens


def documents(work, text):
    "What the layers below give, with nothing made of it"
    from memtrain.stream import DocumentStream

    tokenizer = get_tokenizer(work)
    started = time.perf_counter()
    tokens = sum(len(ids) for ids, _, _ in DocumentStream(text, tokenizer, exclude="done").groups(0))
    return time.perf_counter() - started, tokens


def stream(work, text, **options):
    from memtrain.stream import TokenStream

    tokenizer = get_tokenizer(work)
    started, tokens = time.perf_counter(), 0
    for x, y, *_ in TokenStream(text, tokenizer, BATCH, T, exclude="done", **options):
        tokens += int((y != -100).sum())
    return time.perf_counter() - started, tokens


def rows_alone(work, text, mode):
    "Layers 3 to 5 over documents that are tokenised already"
    from memtrain.stream import DocumentStream

    kept = list(DocumentStream(text, get_tokenizer(work), exclude="done").groups(0))
    with patch.object(DocumentStream, "groups", lambda self, epoch, position=None: iter(kept)):
        return stream(work, text, documents=mode)


PLAIN = dict(normalize=False, filter=False, dedup=False)
WAYS = {
    "bare tiktoken": bare,
    "bare tiktoken, memtrain's expression": lambda w, t: bare(w, t, True),
    "documents, nothing made of them": documents,
    "stream, join": stream,
    "stream, pack": lambda w, t: stream(w, t, documents="pack"),
    "stream, join, 2 workers": lambda w, t: stream(w, t, num_workers=2),
    "stream, pack, 2 workers": lambda w, t: stream(w, t, documents="pack", num_workers=2),
    "stream, join, no cleaning": lambda w, t: stream(w, t, **PLAIN),
    "stream, join, no cleaning, 2 workers": lambda w, t: stream(w, t, num_workers=2, **PLAIN),
    "rows alone, join": lambda w, t: rows_alone(w, t, "join"),
    "rows alone, pack": lambda w, t: rows_alone(w, t, "pack"),
}


def run(work: Path, *argv) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, "--work", str(work), *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        sys.exit(f"{argv}: failed\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure_speed(args, work):
    get_tokenizer(work)
    text = make_text(work, args.megabytes)
    ways = {way: {"seconds": [], "tokens": 0} for way in WAYS}
    for round in range(args.rounds):
        for way, found in ways.items():
            got = run(work, "speed", "--way", way, "--megabytes", args.megabytes)
            found["seconds"].append(got["seconds"])
            found["tokens"] = got["tokens"]
            print(
                f"round {round}  {way:40} {got['seconds']:6.2f} s "
                f" {got['tokens'] / got['seconds'] / 1e6:5.2f} M tokens/s  load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    rate = lambda way: statistics.median(ways[way]["tokens"] / s for s in ways[way]["seconds"])
    for way in ways:
        print(
            f"{way:40} {rate(way) / 1e6:5.2f} M tokens/s  {rate(way) / rate('bare tiktoken'):5.2f} of bare"
            " tiktoken"
        )
    return save_result(
        "stream_speed",
        {
            "bytes": sum(p.stat().st_size for p in text.glob('*.jsonl')),
            "cores": CORES,
            "batch_size": BATCH,
            "block_size": T,
            "ways": ways,
        },
        "python benchmarks/streaming.py speed",
    )


# --- memory ----------------------------------------------------------------------------------------


def one_epoch(work, args):
    "In a process of its own: say what is predicted, go through an epoch, and look at the PSS all the while"
    import gc
    import threading
    from memtrain.stream import TokenStream

    data = TokenStream(
        make_text(work, args.size),
        get_tokenizer(work),
        BATCH,
        T,
        exclude="done",
        num_workers=args.workers,
        documents=args.documents,
    )
    gc.collect()
    before, told, seen, stop = pss(), data.predict_memory(), [], threading.Event()

    def look():
        while not stop.wait(0.05):
            seen.append(pss(children=True))

    thread = threading.Thread(target=look)
    thread.start()
    started, batches = time.perf_counter(), sum(1 for _ in data)
    seconds = time.perf_counter() - started
    stop.set()
    thread.join()
    return {
        "before": before,
        "told": told,
        "predicted": before + sum(told.values()),
        "peak": max(seen),
        "batches": batches,
        "seconds": seconds,
        "looks": len(seen),
    }


def measure_memory(args, work):
    get_tokenizer(work)
    sizes, runs = [float(s) for s in args.sizes.split(",")], []
    for documents in args.modes.split(","):
        for workers in (0, 2):
            for size in sizes:
                make_text(work, size)
                got = run(work, "memory", "--size", size, "--workers", workers, "--documents", documents)
                runs.append({"megabytes": size, "workers": workers, "documents": documents, **got})
                print(
                    f"{documents} {workers} workers {size:4.0f} MB: peak {got['peak'] / 2**20:6.0f} MiB,"
                    f" predicted {got['predicted'] / 2**20:6.0f}, before {got['before'] / 2**20:6.0f};"
                    f" {got['batches']} batches, {got['seconds']:.0f} s",
                    flush=True,
                )
    return save_result(
        "stream_memory",
        {"batch_size": BATCH, "block_size": T, "shuffle_buffer_size": 1000, "runs": runs},
        "python benchmarks/streaming.py memory",
    )


# --- waste ------------------------------------------------------------------------------------------


def measure_waste(args, work):
    from memtrain.stream import DocumentStream

    values = {}
    for kind, source in (
        ("sources", sysconfig.get_paths()["stdlib"] + "/**/*.py"),
        ("docstrings", docstrings),
    ):
        docs = DocumentStream(source, get_tokenizer(work), exclude="site-packages", shuffle_files=True)
        groups = list(docs.groups(0))
        lengths = np.concatenate([lengths for _, lengths, _ in groups])
        print(
            f"{kind}: {len(lengths):,} documents, {lengths.sum():,} tokens, median {np.median(lengths):,.0f}"
        )
        values[kind] = {
            "documents": len(lengths),
            "tokens": int(lengths.sum()),
            "median_tokens": float(np.median(lengths)),
            "table": waste_of(docs, groups, lengths),
        }
    return save_result("stream_waste", values, "python benchmarks/streaming.py waste")


def docstrings():
    "The docstrings of the standard library: short documents"
    import ast
    import warnings

    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError, RecursionError):
                continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
                text := ast.get_docstring(node)
            ):
                yield text


def waste_of(docs, groups, lengths):
    from memtrain.stream import JoinedRows, PackedRows, SplitRows, row_type

    begins, table = np.cumsum(lengths) - lengths, []
    for length in (256, 512, 1024, 2048):
        for mode in (
            "join",
            "split",
            "pack",
            *((f"pack, a pool of {n}" for n in (1, 16, 128)) if length == 1024 else ()),
        ):
            kind = row_type(length, docs.dtype, mode[:4] if mode != "split" else mode)
            pool = int(mode.split()[-1]) if "," in mode else 1024
            cutter = (
                JoinedRows(kind, docs.eod_id, length)
                if mode == "join"
                else SplitRows(kind, docs.eod_id)
                if mode == "split"
                else PackedRows(kind, docs.eod_id, pool)
            )
            started, rows, targets = time.perf_counter(), 0, 0
            for made in [cutter.add(ids, n) for ids, n, _ in groups] + [cutter.end()]:
                rows, targets = rows + len(made), targets + int(made["targets"].sum())
            seconds = time.perf_counter() - started
            cut = (
                begins // length != (begins + lengths - 1) // length
                if mode == "join"
                else lengths - 1 > length
            )
            table.append(
                {
                    "block_size": length,
                    "mode": mode,
                    "rows": rows,
                    "padding": 1 - targets / (rows * length),
                    "documents_cut": float(cut.mean()),
                    "cut_without_need": float((cut & (lengths - 1 <= length)).mean()),
                    "ns_per_token": 1e9 * seconds / targets,
                }
            )
            print(
                f"T={length:5} {mode:22} {rows:7,} rows  padding {table[-1]['padding']:7.2%}  documents cut"
                f" {cut.mean():5.1%}  {table[-1]['ns_per_token']:.1f} ns/token",
                flush=True,
            )
    return table


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed", "memory", "waste"))
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="30,300", help="of text, in MB, for memory")
    parser.add_argument(
        "--modes", default="join,pack", help="what rows do at the ends of documents, for memory"
    )
    parser.add_argument(
        "--work",
        default=str(Path(tempfile.gettempdir()) / "memtrain_streaming"),
        help="folder for text and tokenizer",
    )
    for name, kind in (("--way", str), ("--size", float), ("--workers", int), ("--documents", str)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    if args.way:
        seconds, tokens = WAYS[args.way](work, make_text(work, args.megabytes))
        print(json.dumps({"seconds": seconds, "tokens": int(tokens)}))
    elif args.size:
        print(json.dumps(one_epoch(work, args)))
    else:
        print(
            {"speed": measure_speed, "memory": measure_memory, "waste": measure_waste}[args.what](
                args, work
            ).stamp
        )


if __name__ == "__main__":
    main()
