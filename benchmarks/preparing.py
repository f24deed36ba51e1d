"""How fast text becomes token shards: memtrain, bare tiktoken, LitData, datasets.map and MosaicML's writer
on the same text.

    python benchmarks/preparing.py [--megabytes 50] [--rounds 3] [--peers PYTHON] [--work FOLDER]

The text: Python sources of the interpreter's standard library and site-packages, each file once, as one
.jsonl and as plain files. The tokenizer: a byte-level BPE of 32,000 ids, trained once; all ways use
tiktoken with the same ids and, but for memtrain, with GPT-2's expression for words as it is published; one
line says what memtrain's form of it does for bare tiktoken. Both are kept in FOLDER. Every way runs in a
process of its own, in interleaved rounds; seconds are those inside the process, imports not counted,
medians of all rounds; the peak is the highest and that of the resident memory of the whole process tree
(pages shared between processes are counted in each). --peers is a Python in which litdata, datasets and
mosaicml-streaming are installed; what isn't there is skipped and named. The result goes to
results/prepare_speed.json."""

import argparse, contextlib, functools, glob, importlib.util, json, os, pickle, shutil, statistics
import subprocess, sys, sysconfig, tempfile, time
from pathlib import Path

CORES = 2 if not hasattr(os, "sched_getaffinity") else len(os.sched_getaffinity(0))
VOCAB = 32_000
PUBLISHED = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


# --- what every way is given ---------------------------------------------------------------------


def make_corpus(work: Path, megabytes: float):
    "`work/text.jsonl` and `work/files/`, the same text"
    if (work / "text.jsonl").exists():
        return
    paths = sysconfig.get_paths()
    sources = sorted(
        {
            os.path.realpath(p)
            for root in (paths["stdlib"], paths["purelib"])
            for p in glob.glob(root + "/**/*.py", recursive=True)
        }
    )
    sources.sort(key=lambda p: hash_of(p))  # a mixture, and the same one each time
    (work / "files").mkdir(parents=True)
    size = 0
    with open(work / "text.jsonl.part", "w", encoding="utf-8") as out:
        for i, path in enumerate(sources):
            try:
                text = Path(path).read_bytes().decode()
            except UnicodeDecodeError:
                continue
            if not text.strip():
                continue
            out.write(json.dumps({"text": text}) + "\n")
            (work / f"files/{i:06d}.py").write_bytes(text.encode())
            size += len(text.encode())
            if size > megabytes * 1e6:
                break
    os.replace(work / "text.jsonl.part", work / "text.jsonl")


def hash_of(text: str) -> bytes:
    import hashlib

    return hashlib.sha256(text.encode()).digest()


def read_texts(work: Path) -> list:
    with open(work / "text.jsonl", encoding="utf-8") as f:
        return [json.loads(line)["text"] for line in f]


def make_tokenizer(work: Path):
    "`work/tokenizer.json`, and what a tiktoken encoding with the same ids is made of"
    if (work / "encoding.pkl").exists():
        return
    from memtrain.tokenization import to_tiktoken, train_bpe

    bpe = train_bpe(read_texts(work)[::2], VOCAB)
    (work / "tokenizer.json").write_text(bpe.state(), encoding="utf-8")
    encoding, table = to_tiktoken(bpe.tokenizer, bpe.eod_id)
    assert table is None
    (work / "encoding.pkl").write_bytes(
        pickle.dumps((encoding._pat_str, encoding._mergeable_ranks, bpe.eod_id))
    )


def load_encoding(work: Path, faster=False):
    "The encoding, with GPT-2's expression as it is published, or as memtrain writes it"
    import tiktoken

    pattern, ranks, end = pickle.loads((work / "encoding.pkl").read_bytes())
    if not faster:
        pattern = PUBLISHED
    return (
        tiktoken.Encoding(
            "bench", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end}
        ),
        end,
    )


# --- the ways: each returns (seconds, tokens) ----------------------------------------------------


def copy(work, out):
    started = time.perf_counter()
    shutil.copyfile(work / "text.jsonl", out / "text.jsonl")
    return time.perf_counter() - started, 0


def encode_all(texts):
    import numpy as np

    return sum(len(encoding.encode_to_numpy(t, disallowed_special=()).astype(np.uint16)) + 1 for t in texts)


def tiktoken_threads(work, out, faster=False):
    global encoding
    from concurrent.futures import ThreadPoolExecutor

    encoding, texts = load_encoding(work, faster)[0], read_texts(work)
    started = time.perf_counter()
    with ThreadPoolExecutor(CORES) as pool:
        tokens = sum(pool.map(encode_all, [texts[i : i + 64] for i in range(0, len(texts), 64)]))
    return time.perf_counter() - started, tokens


def tiktoken_faster(work, out):
    return tiktoken_threads(work, out, faster=True)


def tiktoken_processes(work, out):
    global encoding, shared
    import multiprocessing

    encoding, shared = load_encoding(work)[0], read_texts(work)
    started = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(CORES) as pool:
        tokens = sum(pool.imap(encode_shared, range(0, len(shared), 64)))
    return time.perf_counter() - started, tokens


def encode_shared(i):
    return encode_all(shared[i : i + 64])


def memtrain(work, out, source, **options):
    from memtrain.prepare import prepare
    import tiktoken, tokenizers  # noqa: F401

    started = time.perf_counter()
    done = prepare(work / source, out / "data", tokenization=str(work / "tokenizer.json"), **options)
    return time.perf_counter() - started, sum(done.manifest["tokens"].values())


NOTHING = dict(normalize=False, filter=False, dedup=False)


def memtrain_plain(work, out):
    return memtrain(work, out, "text.jsonl", **NOTHING)


def memtrain_cleaning(work, out):
    return memtrain(work, out, "text.jsonl")


def memtrain_files_plain(work, out):
    return memtrain(work, out, "files", **NOTHING)


def memtrain_files_cleaning(work, out):
    return memtrain(work, out, "files")


def tokenize_files(paths, work):
    import torch

    encoding, end = load_encoding_once(work)
    for path in paths:
        ids = encoding.encode_ordinary(Path(path).read_bytes().decode())
        yield torch.tensor([*ids, end], dtype=torch.int32)


@functools.lru_cache
def load_encoding_once(work):
    return load_encoding(Path(work))


def litdata(work, out):
    from functools import partial
    from litdata import TokensLoader, optimize

    files = sorted(map(str, (work / "files").iterdir()))
    started = time.perf_counter()
    optimize(
        fn=partial(tokenize_files, work=str(work)),
        inputs=[files[i : i + 64] for i in range(0, len(files), 64)],
        output_dir=str(out / "data"),
        chunk_size=2049 * 2048,
        item_loader=TokensLoader(),
        num_workers=CORES,
    )
    return time.perf_counter() - started, sum(p.stat().st_size for p in (out / "data").glob("*.bin")) // 4


def tokenize_row(row, work):
    encoding, end = load_encoding_once(work)
    ids = encoding.encode_ordinary(row["text"])
    ids.append(end)
    return {"ids": ids, "len": len(ids)}


def datasets_map(work, out):
    "As nanoGPT prepares OpenWebText: datasets.map with a number of processes, then into one memory map"
    from functools import partial
    import numpy as np
    from datasets import load_dataset

    started = time.perf_counter()
    rows = load_dataset(
        "json", data_files=str(work / "text.jsonl"), split="train", cache_dir=str(out / "cache")
    )
    rows = rows.map(partial(tokenize_row, work=str(work)), remove_columns=["text"], num_proc=2)
    array, at = (
        np.memmap(
            out / "train.bin", dtype=np.uint16, mode="w+", shape=(int(np.sum(rows["len"], dtype=np.uint64)),)
        ),
        0,
    )
    for i in range(min(1024, len(rows))):
        batch = np.concatenate(
            rows.shard(num_shards=min(1024, len(rows)), index=i, contiguous=True).with_format("numpy")["ids"]
        )
        array[at : at + len(batch)] = batch
        at += len(batch)
    array.flush()
    return time.perf_counter() - started, at


def stand_in(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def import_streaming():
    """The package; where torchvision isn't there, which it imports for data sets of pictures, with something
    in its place"""
    import types

    if not importlib.util.find_spec("torchvision"):
        for name in (
            "torchvision",
            "torchvision.datasets",
            "torchvision.transforms",
            "torchvision.transforms.functional",
            "torchvision.io",
        ):
            sys.modules[name] = module = types.ModuleType(name)
            module.__getattr__, module.__spec__ = stand_in, importlib.util.spec_from_loader(name, None)
    here = sys.path.pop(0)  # beside this file lies a streaming.py that isn't MosaicML's
    import streaming

    sys.path.insert(0, here)
    return streaming


def mosaicml(work, out):
    import numpy as np

    MDSWriter = import_streaming().MDSWriter
    encoding, end = load_encoding(work)
    started, tokens = time.perf_counter(), 0
    with (
        MDSWriter(out=str(out / "data"), columns={"tokens": "ndarray:uint16"}, compression=None) as writer,
        open(work / "text.jsonl", encoding="utf-8") as f,
    ):
        for line in f:
            ids = np.append(
                encoding.encode_to_numpy(json.loads(line)["text"], disallowed_special=()), end
            ).astype(np.uint16)
            writer.write({"tokens": ids})
            tokens += len(ids)
    return time.perf_counter() - started, tokens


WAYS = {
    "copying the text": (copy, None),
    "tiktoken, threads": (tiktoken_threads, None),
    "tiktoken, processes": (tiktoken_processes, None),
    "tiktoken, threads, memtrain's expression": (tiktoken_faster, None),
    "memtrain, no cleaning": (memtrain_plain, None),
    "memtrain, cleaning and deduplication": (memtrain_cleaning, None),
    "memtrain, plain files, no cleaning": (memtrain_files_plain, None),
    "memtrain, plain files, cleaning and deduplication": (memtrain_files_cleaning, None),
    "LitData optimize": (litdata, "litdata"),
    "datasets.map (nanoGPT)": (datasets_map, "datasets"),
    "MosaicML MDSWriter": (mosaicml, "streaming"),
}


# --- measuring -----------------------------------------------------------------------------------


def run_one(way: str, work: Path):
    "In a process of its own: print seconds and tokens of one way"
    with tempfile.TemporaryDirectory(dir=work) as out:
        with contextlib.redirect_stdout(sys.stderr):
            seconds, tokens = WAYS[way][0](work, Path(out))
    print(json.dumps({"seconds": seconds, "tokens": int(tokens)}), flush=True)


def is_there(python: str, module: str) -> bool:
    return (
        subprocess.run(
            [python, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"],
            capture_output=True,
        ).returncode
        == 0
    )


def measure(args) -> dict:
    from memtrain.measure import measure_command

    ways = {}
    for way, (_, module) in WAYS.items():
        python = args.peers if module else sys.executable
        if not module or is_there(python, module):
            ways[way] = {"python": python, "seconds": [], "peak": []}
        else:
            print(f"skipped: {way}, {module} is not installed in {python} (see --peers)", flush=True)
    for round in range(args.rounds):
        for way, found in ways.items():
            run = measure_command(
                [found["python"], __file__, "--work", args.work, "--way", way], interval=0.01, timeout=600
            )
            if run.returncode:
                sys.exit(f"{way}: failed\n{run.stderr[-2000:]}")
            got = json.loads(run.stdout.strip().splitlines()[-1])
            found["seconds"].append(got["seconds"])
            found["peak"].append(run.peak_rss)
            found["tokens"] = got["tokens"]
            print(
                f"round {round}  {way:50} {got['seconds']:6.2f} s  {run.peak_rss / 2**20:6.0f} MiB  load"
                f" {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    for found in ways.values():
        del found["python"]
    return ways


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=sys.executable, help="Python that has the other libraries")
    parser.add_argument(
        "--work",
        default=str(Path(tempfile.gettempdir()) / "memtrain_preparing"),
        help="folder for text and tokenizer",
    )
    parser.add_argument("--way", help=argparse.SUPPRESS)
    args = parser.parse_args()
    work = Path(args.work)
    if args.way:
        return run_one(args.way, work)
    from memtrain.core import save_result

    make_corpus(work, args.megabytes)
    make_tokenizer(work)
    ways = measure(args)
    bare = min(statistics.median(ways[w]["seconds"]) for w in ("tiktoken, threads", "tiktoken, processes"))
    result = save_result(
        "prepare_speed",
        {
            "bytes": (work / "text.jsonl").stat().st_size,
            "documents": len(read_texts(work)),
            "cores": CORES,
            "ways": ways,
        },
        "python benchmarks/preparing.py --peers PYTHON",
    )
    for way, found in ways.items():
        s = statistics.median(found["seconds"])
        print(f"{way:50} {s:6.2f} s  {bare / s:5.2f} of bare tiktoken  {max(found['peak']) / 2**20:6.0f} MiB")
    print(result.stamp)


if __name__ == "__main__":
    main()
