"""Gives every reader what no writer wrote: seeds that are changed bit by bit, number by number, opcode by
opcode, in a child that is watched.

Of no input below 1 MB may a reader take more than 2 s or 300 MB, and nothing may come of it but what it
reads or a `MemtrainError`. Inputs follow from the reader's name, their number and the seed, so each can be
had again; what is found stays in the folder `fuzz/READER`."""

import argparse, bisect, collections, functools, gzip, hashlib, io, itertools, json, mmap, os, pickle
import pickletools, random, re, resource, select, shutil, signal, struct, sys, tempfile, time, traceback
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import faults, fuzz_pickles, scenes
from forked import Child, forked, scratch, warm_up

SECONDS, MEMORY, LARGEST = 2, 300 * 10**6, 10**6  # of CPU, and bytes above what the process held before
CORPUS = Path(__file__).resolve().parent.parent / "tests/fuzz"  # inputs that were found once, by reader
NUMBERS = [
    0,
    1,
    -1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
]


# --- changes ---------------------------------------------------------------------------------------


def change_bytes(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    "`data` with one to four things done to it"
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        n, how = len(data), rng.randrange(10)
        # the beginning says most
        at = rng.randrange(n + 1) if rng.random() < 0.6 else min(n, int(rng.expovariate(1 / 40)))
        if how == 0 and at < n:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < n:
            data[at] = rng.randrange(256)
        elif how in (2, 3):
            size = rng.choice((1, 2, 4, 8))
            data[at : at + size] = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(
                size, rng.choice(("little", "little", "big"))
            )
        elif how == 4:
            del data[at:]
        elif how == 5:
            del data[at : at + rng.choice((1, 2, 8, 64))]
        elif how == 6:
            data[at:at] = data[at : at + rng.choice((1, 4, 16, 256))]
        elif how == 7:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 16, 100)))
        elif how == 8 and others:
            other = rng.choice(others)
            k = rng.randrange(len(other) + 1)
            data[at:] = other[k:]
        elif how == 9:
            data[at:at] = data[at : at + rng.choice((1, 2, 5, 9, 30))] * rng.choice((3, 100, 2000, 50_000))
        del data[LARGEST:]
    return bytes(data)


def odd_value(rng: random.Random, near: Any) -> Any:
    "Something that may stand in the place of `near`"
    deep = functools.reduce(lambda x, _: [x], range(rng.choice((3, 50, 5000))), 0)
    odd = [
        None,
        True,
        False,
        -5,
        10**30,
        1.5,
        float("nan"),
        float("inf"),
        -1e300,
        "",
        "x",
        "../../victim",
        "/etc/passwd",
        "a/b",
        "train",
        "\ud800",
        "9" * 5000,
        "a" * 100_000,
        [],
        {},
        [[]],
        {"": {}},
        [0] * 10_000,
        deep,
        near,
        [near],
        {"x": near},
    ]
    if isinstance(near, (int, float)) and not isinstance(near, bool) and rng.random() < 0.7:
        return rng.choice([*NUMBERS, near + 1, near - 1, -near, near * 2, float(near), str(near)])
    if isinstance(near, str) and rng.random() < 0.4:
        return rng.choice(
            [near[:-1], near + near, near.upper(), "../" + near, near + "\0", near.replace("0", "1")]
        )
    return rng.choice(odd)


def change_tree(tree: Any, rng: random.Random) -> Any:
    "A container of containers with one or two of its values changed"
    places = []

    def walk(o, depth=0):
        for k in list(o) if isinstance(o, dict) else range(len(o)) if isinstance(o, list) else ():
            places.append((o, k))
            if depth < 12:
                walk(o[k], depth + 1)

    tree = json.loads(json.dumps(tree)) if not _tensors_in(tree) else _copy(tree)
    walk(tree)
    for _ in range(rng.choice((1, 1, 2))):
        if not places or rng.random() < 0.02:
            return odd_value(rng, tree)
        o, k = rng.choice(places)
        if isinstance(o, list) and k >= len(o) or isinstance(o, dict) and k not in o:
            continue
        how = rng.randrange(8)
        if how == 0:
            del o[k]
        elif how == 1 and isinstance(o, list):
            o.insert(k, _copy(o[k]))
        elif how == 1:
            o[str(odd_value(rng, k))[:50]] = _copy(o[k])
        elif how == 2:
            other, at = rng.choice(places)
            if not (
                isinstance(other, list) and at >= len(other) or isinstance(other, dict) and at not in other
            ):
                o[k] = _copy(other[at])
        else:
            o[k] = (
                _odd_tensor(rng, o[k])
                if hasattr(o[k], "untyped_storage") and rng.random() < 0.8
                else odd_value(rng, o[k])
            )
    return tree


def _tensors_in(o) -> bool:
    return hasattr(o, "untyped_storage") or any(
        map(_tensors_in, o.values() if isinstance(o, dict) else o if isinstance(o, (list, tuple)) else ())
    )


def _copy(o):
    return (
        {k: _copy(v) for k, v in o.items()}
        if isinstance(o, dict)
        else [_copy(v) for v in o]
        if isinstance(o, (list, tuple))
        else o
    )


def _odd_tensor(rng, t):
    "A tensor of another shape, type or content"
    import torch

    return rng.choice(
        (
            lambda: t[:0],
            lambda: t.reshape(-1),
            lambda: t[None],
            lambda: t.double(),
            lambda: t.long(),
            lambda: torch.cat([t.reshape(-1)] * 2),
            lambda: torch.full_like(t, -1),
            lambda: torch.zeros(()),
            lambda: t.to(torch.uint8),
            lambda: t.expand(1000, *t.shape),
            lambda: t.reshape(-1)[:1].expand(2 ** rng.randrange(10, 50)),
            lambda: torch.full_like(t, 2**30),
            lambda: t.to(torch.complex64),
            lambda: torch.empty(t.shape, device="meta"),
        )
    )()


def change_pickle(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    "The opcodes of a pickle, some left out, moved, said again often, or from another one"
    try:
        ops = opcodes(data)
    except Exception:
        return change_bytes(data, rng, others)
    if rng.random() < 0.3:
        return change_bytes(data, rng, others)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at, how, n = rng.randrange(len(ops)), rng.randrange(7), rng.choice((1, 1, 2, 3, 8))
        if how == 0:
            del ops[at : at + n]
        elif how == 1:
            ops[at:at] = ops[at : at + n] * rng.choice((1, 2, 30, 1000, 100_000 // n))
        elif how == 2:
            other = opcodes(rng.choice(others))
            k = rng.randrange(len(other))
            ops[at:at] = other[k : k + rng.choice((1, 3, 10, 40))]
        elif how == 3:
            ops.insert(rng.randrange(len(ops) + 1), ops.pop(at))
        elif how == 4:
            ops[at] = change_bytes(ops[at], rng, others)
        elif how == 5:
            ops.insert(
                at,
                rng.choice(pickletools.opcodes).code.encode("latin1")
                + rng.randbytes(rng.choice((0, 0, 1, 1, 2, 4, 8))),
            )
        elif how == 6:
            ops.insert(
                at,
                rng.choice(
                    (
                        b"0",
                        b"2",
                        b"1",
                        b"(",
                        b"t",
                        b"\x85",
                        b"\x86",
                        b"\x87",
                        b"a",
                        b"e",
                        b"s",
                        b"u",
                        b"R",
                        b"b",
                        b"\x81",
                        b"\x94",
                        b"h\x00",
                        b"h\x01",
                        b"h\x05",
                        b"]",
                        b"}",
                        b")",
                        b"\x8f",
                        b"\x90",
                        b"\x91",
                        b"\x93",
                    )
                ),
            )
        if not ops:
            break
    return b"".join(ops[: bisect.bisect(list(itertools.accumulate(map(len, ops))), LARGEST) + 1])[:LARGEST]


@functools.lru_cache(64)
def _opcodes(data):
    found = [at for _, _, at in pickletools.genops(data)]
    return tuple(data[a:b] for a, b in zip(found, [*found[1:], len(data)]))


def opcodes(data: bytes) -> list[bytes]:
    "The opcodes of a pickle, each with its argument"
    return list(_opcodes(data))


def tree_changer(decode: Callable, encode: Callable) -> Callable:
    "Changes what `decode` makes of the bytes, mostly; a change that can't be written is another try"

    def change(data, rng, others):
        if rng.random() < 0.25:
            return change_bytes(data, rng, others)
        for _ in range(20):
            try:
                return encode(change_tree(decode(data), rng))[:LARGEST]
            except Exception:
                pass
        return change_bytes(data, rng, others)

    return change


def to_json(tree) -> bytes:
    "JSON, with a checksum that is right"
    from memtrain.folders import checksum

    if isinstance(tree, dict) and "checksum" in tree:
        tree["checksum"] = checksum(tree)
    return json.dumps(tree).encode()


def to_torch(tree) -> bytes:
    "What a checkpoint's file holds, or a state; an old one, which has no checksum"
    import torch

    if isinstance(tree, dict):
        tree.pop("checksum", None)
    torch.save(tree, f := io.BytesIO())
    return f.getvalue()


def from_torch(data: bytes) -> Any:
    "The same read"
    import torch

    return torch.load(io.BytesIO(data), weights_only=True)


def change_zip(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    "An archive of torch.save with its pickle or its storages changed"
    if rng.random() < 0.3:
        return change_bytes(data, rng, others)
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        files = {o: z.read(o) for o in z.namelist()}
    name = next(o for o in files if o.endswith("data.pkl")) if rng.random() < 0.8 else rng.choice(list(files))
    files[name] = change_pickle(files[name], rng, [files[o] for o in files if o.endswith("data.pkl")])
    if rng.random() < 0.1:
        del files[rng.choice(list(files))]
    with zipfile.ZipFile(f := io.BytesIO(), "w") as z:
        for k, v in files.items():
            z.writestr(k, v)
    return f.getvalue()


def packed_changer(pack: Callable, unpack: Callable, inner: Callable = change_bytes) -> Callable:
    "Changes what is packed, or the packed bytes, or packs very much"

    def change(data, rng, others):
        how = rng.random()
        if how < 0.5:
            return change_bytes(data, rng, others)
        if how < 0.97:
            return pack(inner(unpack(data), rng, []))[:LARGEST]
        return (
            pack(bytes([rng.randrange(256)]) * rng.choice((10**5, 10**6, 10**7))) * rng.choice((1, 10, 100))
        )[:LARGEST]

    return change


# --- readers ---------------------------------------------------------------------------------------


@dataclass
class Reader:
    "What reads, of what it is given, and how that is changed"

    read: Callable  # of bytes
    seeds: list = field(default_factory=list)  # bytes
    change: Callable = change_bytes


def file_reader(name: str, work: Callable) -> Callable:
    "`work` of the file `name`, which has the bytes"

    def read(data):
        Path(name).write_bytes(data)
        work(name)

    return read


def read_model_file(path) -> None:
    "The header of a part of a model, and what small tensors it names"
    import torch
    from memtrain.weights import read_header, read_tensor

    for stored in read_header(path).values():
        if stored.nbytes < 1 << 20:
            read_tensor(stored, torch.empty(stored.shape, dtype=stored.dtype))


def read_items(path) -> None:
    "All items of a pickle, and what small tensors are in them"
    from memtrain.lazypickle import LazyBytes, LazyTensor, Record, iter_pickle

    left = 200

    def touch(o, depth=0):
        nonlocal left
        left -= 1
        if left < 0 or depth > 20:
            return
        if isinstance(o, (LazyTensor, LazyBytes)) and o.nbytes < 10**6:
            o.read()
        for x in (
            o.fields.values()
            if isinstance(o, Record)
            else (
                o.values()
                if isinstance(o, dict)
                else o
                if isinstance(o, (list, tuple, set, frozenset))
                else ()
            )
        ):
            touch(x, depth + 1)

    for o in iter_pickle(path):
        touch(o)


def read_index(path) -> None:
    "The items that the index of a pickle names"
    from memtrain.lazypickle import PickleIndex

    with PickleIndex(path, source="../traces.pkl") as index:
        for i in range(min(len(index), 5)):
            index[i]
        index.check()


def read_data_set(path="data") -> None:
    "A data set's tokens, documents and keys"
    from memtrain.shards import TokenShards, read_keys, verify

    verify(path)
    shards = TokenShards(path)
    shards.read(0, min(len(shards), 3000))
    shards.fetch(max(0, len(shards) - 10), min(len(shards), 10))
    shards.document_ends()
    for _ in read_keys(path):
        pass


def read_foreign(folder: str) -> Callable:
    "Tokens in somebody else's format"

    def work(_):
        from memtrain.shards import TokenShards

        shards = TokenShards(folder)
        shards.read(0, min(len(shards), 3000))

    return work


def read_journal(name: str) -> Callable:
    "An interrupted run's folder is resumed"

    def read(data):
        from memtrain.shards import ShardWriter
        from memtrain.trace_files import TraceFolder

        shutil.rmtree(name)
        shutil.copytree(f"../{name}", name)
        with open(f"../{name}/unfinished.json") as f:
            plan = json.JSONDecoder().raw_decode(f.read())[0]["plan"]
        Path(f"{name}/unfinished.json").write_bytes(data)
        if name == "begun":
            ShardWriter(
                name,
                257,
                256,
                1500,
                "auto",
                Path("begun/tokenizer_state.json").read_text(),
                plan["options"],
                True,
            ).lock.release()
        else:
            how = plan["shard_size_mb"], plan["shard_format"], plan["group"], plan["dedupe"]
            TraceFolder(name, plan["source"], *how, resume=True).lock.release()

    return read


def read_traces(path="traces") -> None:
    "Traces, their table, and tensors"
    from memtrain.trace_files import open_traces, verify_traces
    from memtrain.traces import read_tensors

    if Path(path, "trace_metadata.json").exists():
        verify_traces(path)
    with open_traces(path) as traces:
        len(traces.table["layer"])
        for i in range(min(len(traces), 4)):
            read_tensors(traces[i])


def part_reader(path: str, key: str, read: Callable, manifest: str) -> Callable:
    "A part of a folder, whose manifest tells its size and checksum right"
    folder = path.split("/")[0]

    def work(data):
        Path(path).write_bytes(data)
        m = json.loads(Path(f"../{folder}/{manifest}").read_bytes())
        entry = next(o for o in m["shards"] if path.startswith(f"{folder}/{o['file'].rsplit('.', 1)[0]}."))
        if key == "zst":
            entry["zst"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        else:
            entry |= {f"{key}bytes": len(data), f"{key}sha256": hashlib.sha256(data).hexdigest()}
        Path(folder, manifest).write_bytes(to_json(m))
        read(folder)

    return work


def read_text(path) -> None:
    """The first 100,000 documents of a file, or 32 MiB of them: what a compressed file of 1 MB may say in all
    takes its time"""
    from memtrain.text import read_documents

    size = 0
    for text, _ in itertools.islice(read_documents(path), 100_000):
        size += len(text)
        if size > 2**25:
            break


def state_reader(make: Callable) -> Callable:
    "A state is loaded, and the next batch taken"

    def read(data):
        from memtrain.runs import load_checkpoint

        Path("state.pt").write_bytes(data)
        state, loader = load_checkpoint("state.pt"), make()
        loader.load_state_dict(state)
        next(iter(loader))

    return read


def make_stream():
    "A stream of the texts"
    from memtrain.stream import TokenStream
    from memtrain.tokenization import ByteTokenizer

    return TokenStream("../text", ByteTokenizer(), 2, 16, threads=1, shuffle_buffer_size=20)


def make_loader():
    "A loader of the data set"
    from memtrain.loader import TokenLoader
    from memtrain.shards import TokenShards

    return TokenLoader(TokenShards("../data"), 2, 16)


def make_trace_loader():
    "A loader of the traces"
    from memtrain.traces import TraceShards

    return TraceShards("../traces", 2)


def resume_run(_) -> None:
    "A trainer takes up the checkpoint"
    from memtrain.model import GPT, GPTConfig
    from memtrain.train import TrainConfig, Trainer

    config = TrainConfig(
        batch_size=2, max_iters=6, eval_interval=3, eval_batches=1, checkpoint_interval=2, warmup_iters=1
    )
    Trainer(
        GPT(GPTConfig(**json.loads(Path("../small.json").read_text()))),
        "../data",
        config,
        "plain",
        "cpu",
        resume=True,
    ).folder.__exit__()


def use_tokenizer(path) -> None:
    "A tokenizer is loaded and used"
    from memtrain.tokenization import load_tokenizer

    tokenizer = load_tokenizer(path)
    ids, _ = tokenizer.encode_documents(["some text", "\u00e9"])
    tokenizer.decode(ids[:-1])


def explain_file(path) -> None:
    "What an out-of-memory message or a memory snapshot says, in words"
    from memtrain.explain import explain

    str(explain(path))


def predict_config(path) -> None:
    "What a step of the model in a config.json holds, by the laws that come with memtrain"
    from memtrain.estimate import Step
    from memtrain.families import predict_step, read_model

    for lora in (0, 16):
        predict_step(read_model(path), Step(batch_size=2, lora=lora))


FRAMES = [
    {"filename": "/home/me/train.py", "line": 12, "name": "step"},
    {"filename": "x.cpp", "line": 0, "name": "at::empty"},
]
SNAPSHOT = {
    "segments": [
        {
            "device": 0,
            "address": 2**21,
            "total_size": 2**21,
            "stream": 0,
            "segment_type": "small",
            "allocated_size": 1024,
            "active_size": 1024,
            "blocks": [
                {
                    "address": 2**21,
                    "size": 1024,
                    "requested_size": 1000,
                    "state": "active_allocated",
                    "frames": FRAMES,
                },
                {
                    "address": 2**21 + 1024,
                    "size": 2**21 - 1024,
                    "requested_size": 0,
                    "state": "inactive",
                    "frames": [],
                },
            ],
        }
    ],
    "device_traces": [
        [
            {
                "action": "segment_alloc",
                "addr": 2**21,
                "size": 2**21,
                "stream": 0,
                "time_us": 0,
                "frames": FRAMES,
            },
            {"action": "alloc", "addr": 2**21, "size": 1024, "stream": 0, "time_us": 1, "frames": FRAMES},
            {
                "action": "alloc",
                "addr": 2**21 + 1024,
                "size": 512,
                "stream": 0,
                "time_us": 2,
                "frames": FRAMES,
            },
            {
                "action": "free_requested",
                "addr": 2**21 + 1024,
                "size": 512,
                "stream": 0,
                "time_us": 3,
                "frames": FRAMES,
            },
            {
                "action": "free_completed",
                "addr": 2**21 + 1024,
                "size": 512,
                "stream": 0,
                "time_us": 3,
                "frames": FRAMES,
            },
            {
                "action": "oom",
                "addr": 0,
                "size": 2**34,
                "stream": 0,
                "time_us": 4,
                "device_free": 2**30,
                "frames": FRAMES,
            },
        ]
    ],
    "allocator_settings": {"expandable_segments": False},
}
MESSAGES = (  # as PyTorch 2.2 and later word it, and 1.x
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 12, in step\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of "
    "23.69 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 22.56 GiB memory in "
    "use. Of the allocated memory 20.34 GiB is allocated by PyTorch, and 1.70 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting ...",
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 6.05 GiB "
    "already allocated; 17.31 MiB free; 6.16 GiB reserved in total by PyTorch)",
)
LLAMA = dict(
    model_type="llama",
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=512,
    max_position_embeddings=256,
)
GPT2 = dict(model_type="gpt2", n_embd=64, n_layer=4, n_head=4, n_positions=256, vocab_size=512)
UNUSUAL = LLAMA | dict(model_type="starcoder2")  # a kind whose laws don't come with memtrain


def keep_laws() -> None:
    "The file of the laws of a small model, found by simulation, in the folder `laws`"
    from memtrain.laws import CachedLaws

    Path("unusual").mkdir()
    Path("unusual/config.json").write_text(json.dumps(UNUSUAL))
    os.environ["MEMTRAIN_CACHE"] = "."
    CachedLaws("unusual", 64).get("float32")


def use_laws(_) -> None:
    "Laws that were kept are read and used; what isn't among them is not simulated"
    from memtrain.core import MemtrainError
    from memtrain.estimate import Step
    from memtrain.families import predict_step
    from memtrain.laws import CachedLaws

    class Kept(CachedLaws):
        def _run(self, function, *args):
            raise MemtrainError("it isn't kept")

    os.environ["MEMTRAIN_CACHE"] = "."
    predict_step(Kept("../unusual", 64).shape, Step(batch_size=2, seq_len=64))


def build(base: Path) -> dict[str, Reader]:
    "All readers, with seeds that were just written"
    import numpy as np, torch
    import pyarrow as pa, pyarrow.parquet as pq, zstandard
    from memtrain.lazypickle import build_index
    from memtrain.mixtures import load_mixture
    from memtrain.routing import load_predictor
    from memtrain.runs import load_checkpoint, read_metrics
    from memtrain.shards import compress_shards
    from memtrain.trace_files import TraceDataSharder
    from memtrain.weights import load_run

    os.chdir(base)
    if not Path("data").exists():
        scenes.build(base)
    if not Path("nano").exists():
        scenes.command(
            "train",
            "--dataset_dir",
            "data",
            "--out_dir",
            "plain",
            "--config_file",
            "small.json",
            *scenes.TRAIN,
        )
        scenes.command("train-predictor", *scenes.PREDICT, "--out_dir", "predictor")
        scenes.command("wpo", *scenes.WPO, "--out_dir", "mixture")
        scenes.command(
            "prepare", "--input_files", "text", "--out_dir", "bpe", *scenes.PREPARE[2:], "--vocab_size", "270"
        )

        def begin():
            prepare = faults.memtrain(
                "prepare", "--input_files", "text", "--out_dir", "begun", *scenes.PREPARE
            )
            shard = faults.memtrain(
                "shard-traces",
                "--input_file",
                "traces.pkl",
                "--out_dir",
                "begun_traces",
                "--shard_size_mb",
                "0.02",
            )
            for name, run in (("begun", prepare), ("begun_traces", shard)):
                forked(faults.disturbed, run, base / name, "kill", 75)
            shutil.copytree("data", "packed")
            compress_shards("packed")
            TraceDataSharder(0.05).shard_traces("traces.pkl", "legacy")
            Path("legacy/trace_metadata.json").unlink()
            build_index("traces.pkl", "traces.index").close()
            Path("mega").mkdir()
            Path("llmc").mkdir()
            Path("nano").mkdir()
            lengths = np.array([30, 5, 70, 1], "<i4")
            Path("mega/x.bin").write_bytes(np.arange(106, dtype="<u2").tobytes())
            Path("mega/x.idx").write_bytes(
                b"MMIDIDX\0\0"
                + struct.pack("<QBQQ", 1, 8, 4, 5)
                + lengths.tobytes()
                + (2 * (np.cumsum(lengths) - lengths)).astype("<i8").tobytes()
                + np.arange(5, dtype="<i8").tobytes()
            )
            Path("llmc/train_0.bin").write_bytes(
                struct.pack("<3i", 20240520, 1, 50).ljust(1024, b"\0") + np.arange(50, dtype="<u2").tobytes()
            )
            Path("nano/train.bin").write_bytes(np.arange(50, dtype="<u2").tobytes())

        for make in (begin, keep_laws):
            if (done := forked(make, seconds=600)).status:
                raise SystemExit(done.said)
        rows = [f"record {i} " + "text " * (i % 7) for i in range(200)]
        for name, how in (
            ("a", {}),
            ("b", dict(compression="zstd", use_dictionary=False, row_group_size=50)),
            ("c", dict(compression="none", data_page_size=100)),
        ):
            pq.write_table(pa.table({"text": rows, "n": list(range(200))}), f"{name}.parquet", **how)

    def seed(*names):
        return [Path(o).read_bytes() for o in names]

    def lines(n):
        return "".join(json.dumps({"text": f"line {i} \u00e9", "n": i}) + "\n" for i in range(n)).encode()

    class Thing:
        pass

    objects = [
        [1, 2.5, "x", b"yz", None, True],
        {"a": {"b": [(1, 2), {3}]}},
        [
            {
                "layer_id": i,
                "sample_id": f"s{i // 3}",
                "x": np.arange(6.0).reshape(2, 3),
                "y": list(range(20)),
            }
            for i in range(4)
        ],
        {(0, "a"): [1, 2], frozenset((1,)): -(10**40)},
        [
            torch.arange(6.0).reshape(2, 3),
            np.float32(3),
            complex(1, 2),
            range(3),
            slice(1, 2),
            bytearray(b"123"),
        ],
        collections.OrderedDict(a=1),
    ]
    pickles = [pickle.dumps(o, p) for o in objects for p in (2, 4, 5)] + [
        Path("traces.pkl").read_bytes()[:20000]
    ]
    small_traces = pickle.dumps(
        [dict(layer_id=i % 3, sample_id=i // 3, hidden_states=np.ones((2, 4), "f4")) for i in range(6)]
    )
    archives = [
        to_torch({"a": torch.arange(10.0), "b": [torch.zeros(2, 3).half(), 5], "c": "x"}),
        to_torch([torch.arange(4)[1:], torch.nn.Parameter(torch.ones(3))]),
    ]
    torch.save({"a": torch.arange(10.0)}, old := io.BytesIO(), _use_new_zipfile_serialization=False)
    jsonish, torchish = tree_changer(json.loads, to_json), tree_changer(from_torch, to_torch)
    jsonl = tree_changer(
        lambda data: [json.loads(o) for o in data.splitlines()],
        lambda tree: "".join(json.dumps(o) + "\n" for o in tree).encode(),
    )

    def changed_json_head(data, rng, others):
        n = struct.unpack("<Q", data[:8])[0]
        head = jsonish(data[8 : 8 + n], rng, [])
        return struct.pack("<Q", len(head)) + head + data[8 + n :]

    states = {name: [to_torch(s) for s in told] for name, told in _states().items()}
    zst = lambda data: zstandard.compress(data)
    unzst = lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return {
        "pickle": Reader(
            file_reader("in.pkl", read_items),
            [o for o in pickles if len(o) < 5000] + [small_traces],
            change_pickle,
        ),
        "pickle of a grammar": Reader(
            file_reader("in.pkl", fuzz_pickles.read_twice), [b""], fuzz_pickles.make_pickle
        ),
        "torch.save": Reader(file_reader("in.pt", read_items), archives, change_zip),
        "torch.save of before": Reader(file_reader("in.pt", read_items), [old.getvalue()]),
        "pickle's index": Reader(file_reader("in.index", read_index), seed("traces.index")),
        "manifest": Reader(
            file_reader("data/dataset_metadata.json", lambda _: read_data_set()),
            seed("data/dataset_metadata.json"),
            jsonish,
        ),
        "journal": Reader(read_journal("begun"), seed("begun/unfinished.json"), jsonl),
        "journal of traces": Reader(
            read_journal("begun_traces"), seed("begun_traces/unfinished.json"), jsonl
        ),
        ".idx": Reader(
            part_reader(
                "data/train/shard_00000.idx", "idx_", lambda _: read_data_set(), "dataset_metadata.json"
            ),
            seed("data/train/shard_00000.idx"),
        ),
        ".bin.zst": Reader(
            part_reader("packed/train/shard_00000.bin.zst", "zst", read_data_set, "dataset_metadata.json"),
            seed("packed/train/shard_00000.bin.zst"),
            packed_changer(zst, unzst),
        ),
        "Megatron-LM": Reader(file_reader("mega/x.idx", read_foreign("mega")), seed("mega/x.idx")),
        "llm.c": Reader(file_reader("llmc/train_0.bin", read_foreign("llmc")), seed("llmc/train_0.bin")),
        "nanoGPT": Reader(file_reader("nano/train.bin", read_foreign("nano")), seed("nano/train.bin")),
        "manifest of traces": Reader(
            file_reader("traces/trace_metadata.json", lambda _: read_traces()),
            seed("traces/trace_metadata.json"),
            jsonish,
        ),
        "lines of traces": Reader(
            part_reader("traces/shard_00000.jsonl", "index_", read_traces, "trace_metadata.json"),
            seed("traces/shard_00000.jsonl"),
            jsonl,
        ),
        "table of traces": Reader(
            part_reader("traces/shard_00000.idx", "table_", read_traces, "trace_metadata.json"),
            seed("traces/shard_00000.idx"),
        ),
        "safetensors": Reader(
            part_reader("traces/shard_00000.safetensors", "", read_traces, "trace_metadata.json"),
            seed("traces/shard_00000.safetensors"),
            changed_json_head,
        ),
        "a model's safetensors": Reader(
            file_reader("in.safetensors", read_model_file),
            seed("traces/shard_00000.safetensors"),
            changed_json_head,
        ),
        "first system's traces": Reader(
            file_reader("legacy/sharding_metadata.pkl", lambda _: read_traces("legacy")),
            seed("legacy/sharding_metadata.pkl"),
            change_pickle,
        ),
        "checkpoint": Reader(
            file_reader("in.pt", load_checkpoint),
            seed("plain/checkpoint.pt", "mixture/checkpoint.pt") + archives,
            change_zip,
        ),
        "run": Reader(
            file_reader("plain/best.pt", lambda _: load_run("plain", "cpu")), seed("plain/best.pt"), torchish
        ),
        "resumed run": Reader(
            file_reader("plain/checkpoint.pt", resume_run), seed("plain/checkpoint.pt"), torchish
        ),
        "predictor": Reader(
            file_reader("predictor/predictor.pt", lambda _: load_predictor("predictor")),
            seed("predictor/predictor.pt"),
            torchish,
        ),
        "mixture": Reader(
            file_reader("mixture/mixture.pt", lambda _: load_mixture("mixture")),
            seed("mixture/mixture.pt"),
            torchish,
        ),
        "loader's state": Reader(state_reader(make_loader), states["loader"], torchish),
        "trace loader's state": Reader(state_reader(make_trace_loader), states["traces"], torchish),
        "stream's state": Reader(state_reader(make_stream), states["stream"], torchish),
        "tokenizer": Reader(
            file_reader("in.json", use_tokenizer),
            seed("bpe/tokenizer_state.json", "data/tokenizer_state.json"),
            jsonish,
        ),
        "log": Reader(file_reader("metrics.jsonl", read_metrics), seed("plain/metrics.jsonl"), jsonl),
        "parquet": Reader(file_reader("in.parquet", read_text), seed("a.parquet", "b.parquet", "c.parquet")),
        "memory snapshot": Reader(
            file_reader("in.pickle", explain_file), [pickle.dumps(SNAPSHOT, p) for p in (2, 4)], change_pickle
        ),
        "out-of-memory message": Reader(file_reader("in.txt", explain_file), [o.encode() for o in MESSAGES]),
        "config.json": Reader(
            file_reader("config.json", predict_config),
            [json.dumps(LLAMA).encode(), json.dumps(GPT2).encode()],
            jsonish,
        ),
        "laws in the cache": Reader(
            file_reader(next(map(str, Path("laws").glob("*.json"))), use_laws),
            seed(*map(str, Path("laws").glob("*.json"))),
            jsonish,
        ),
        "jsonl": Reader(file_reader("in.jsonl", read_text), [lines(30)], jsonl),
        "text": Reader(file_reader("in.txt", read_text), seed("text/0.txt")),
        "gz": Reader(
            file_reader("in.jsonl.gz", read_text),
            [gzip.compress(lines(30)), gzip.compress(b"one\n" * 30) + gzip.compress(lines(3))],
            packed_changer(functools.partial(gzip.compress, compresslevel=1), gzip.decompress),
        ),
        "zst": Reader(
            file_reader("in.txt.zst", read_text),
            [zst(lines(30)), zst(b"some text\n" * 30) + zst(lines(3))],
            packed_changer(zst, unzst),
        ),
    }


def _states() -> dict:
    "States of loaders in the middle of an epoch"

    def some():
        os.makedirs("in", exist_ok=True)
        os.chdir("in")
        found = {}
        for name, make in (("loader", make_loader), ("traces", make_trace_loader), ("stream", make_stream)):
            loader = make()
            batches = iter(loader)
            next(batches)
            next(batches)
            found[name] = [loader.state_dict()]
        return pickle.dumps(found)

    done = forked(some)
    if done.status:
        raise SystemExit(done.said)
    return pickle.loads(done.value)


# --- the watch -------------------------------------------------------------------------------------


def make_input(name: str, reader: Reader, number: int, seed: int) -> bytes:
    "Input `number` of a reader: the same at every run"
    rng = random.Random(f"{seed} {name} {number}")
    return reader.change(rng.choice(reader.seeds), rng, reader.seeds)


def held(key: str) -> int:
    "Bytes that this process holds: `VmRSS`, or `VmHWM`, the most since it was asked for to be forgotten"
    with open("/proc/self/status") as f:
        return next(int(o.split()[1]) * 1024 for o in f if o.startswith(key))


def where(e: BaseException) -> str:
    "The error, and the last place in memtrain that it came through"
    frames = [f for f in traceback.extract_tb(e.__traceback__) if "/memtrain/" in f.filename]
    return (
        f"{type(e).__name__} in {Path(frames[-1].filename).stem}.{frames[-1].name}"
        if frames
        else type(e).__name__
    )


def enter(work: Path) -> None:
    "Go to a new folder beside those with the seeds, with copies of those that readers change"
    os.mkdir(work)
    os.chdir(work)
    for o in (
        "data",
        "packed",
        "mega",
        "llmc",
        "nano",
        "traces",
        "begun",
        "begun_traces",
        "legacy",
        "plain",
        "predictor",
        "mixture",
        "laws",
    ):
        shutil.copytree(f"../{o}", o)


def watch(
    work: Path, reader: Reader, inputs: Callable, first: int, behind: int, at: mmap.mmap, seconds: float
) -> tuple:
    """(number of the next input, findings, slowest in seconds, most bytes): in a child, whose `at` tells the
    parent where it is"""
    from memtrain.core import MemtrainError

    enter(work)
    tempfile.tempdir = str(work)
    resource.setrlimit(resource.RLIMIT_AS, (held("VmSize") + 3 * 2**30,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    found, slowest, most, end = [], 0.0, 0, time.monotonic() + seconds
    for number in range(first, behind):
        if time.monotonic() > end:
            behind = number
            break
        data = inputs(number)
        at[:8] = struct.pack("<q", number)
        # forgetting the highest takes a millisecond: no more often than it stands out
        if held("VmHWM") - (before := held("VmRSS")) > 10**7:
            with open("/proc/self/clear_refs", "w") as f:
                f.write("5")
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        said = None
        try:
            reader.read(data)
        except MemtrainError as e:
            said = "says out of memory" if "out of memory" in str(e) else None
        except Exception as e:
            said = f"{where(e)}: {str(e)[:100]}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        took, grown = time.process_time() - started, held("VmHWM") - before
        slowest, most = max(slowest, took), max(most, grown)
        if grown > MEMORY:
            said = f"took {grown // 10**6} MB; {said or ''}"
        if said:
            found.append((number, said))
    return behind, found, slowest, most


def fuzz(
    names: dict[str, Reader],
    inputs_each: int,
    seed: int,
    jobs: int = 1,
    keep: Path | None = None,
    seconds: float = 15,
    minutes: float = float("inf"),
) -> dict:
    "Give each of the readers so many inputs, in turns, until the minutes are over; what came of it"
    found = {k: {"inputs": 0, "findings": {}, "slowest": 0.0, "most": 0} for k in names}
    waiting, running, end = collections.deque((k, 0) for k in names), {}, time.monotonic() + 60 * minutes

    def note(name, number, said):
        kind = said.split(":")[0] if not said.startswith("took") else "took more than 300 MB"
        r = found[name]["findings"].setdefault(kind, {"count": 0, "input": number, "said": said})
        r["count"] += 1
        if keep and r["count"] == 1:
            (keep / folder_name(name)).mkdir(parents=True, exist_ok=True)
            data = make_input(name, names[name], number, seed)
            (keep / folder_name(name) / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        if r["count"] == 1:
            print(f"{name}, input {number}: {said}", flush=True)

    while waiting or running:
        while waiting and len(running) < jobs:
            name, first = waiting.popleft()
            at = mmap.mmap(-1, 8)
            work = Path.cwd() / f"job{len(running)}{first}{abs(hash(name))}"
            child = Child(
                watch,
                work,
                names[name],
                functools.partial(make_input, name, names[name], seed=seed),
                first,
                inputs_each,
                at,
                seconds,
            )
            running[os.pidfd_open(child.pid)] = name, first, at, child, work
        ready = select.select(list(running), [], [], seconds + 60)[0]
        for fd in ready or list(running):
            name, first, at, child, work = running.pop(fd)
            os.close(fd)
            done = child.wait(0.1)
            shutil.rmtree(work, ignore_errors=True)
            r = found[name]
            if done.status == 0:
                behind, told, slowest, most = done.value
                r["slowest"], r["most"] = max(r["slowest"], slowest), max(r["most"], most)
            else:
                behind = struct.unpack("<q", at[:8])[0] + 1
                if behind <= first:
                    raise SystemExit(f"{name}: {done.status}: {done.said[-2000:]}")
                what = {None: "hangs", -signal.SIGPROF: f"takes more than {SECONDS} s of CPU"}.get(
                    done.status
                ) or f"ends the process with {done.status}"
                told = [(behind - 1, what)]
            for number, said in told:
                note(name, number, said)
            r["inputs"] += behind - first
            if behind < inputs_each and time.monotonic() < end:
                waiting.append((name, behind))
    return found


def folder_name(reader: str) -> str:
    "What the folder with inputs of a reader is called"
    return re.sub(r"\W+", "_", reader).strip("_")


def corpus(names: dict[str, Reader]) -> dict:
    "The inputs that were found once, with what is wrong of them today"
    wrong = {}
    for name, reader in names.items():
        files = sorted((CORPUS / folder_name(name)).glob("*"))
        if not files:
            continue
        at = mmap.mmap(-1, 8)
        work = Path.cwd() / "job"
        done = Child(watch, work, reader, lambda i: files[i].read_bytes(), 0, len(files), at, 600).wait(600)
        shutil.rmtree(work, ignore_errors=True)
        told = (
            done.value[1]
            if done.status == 0
            else [(struct.unpack("<q", at[:8])[0], f"ends with {done.status} {done.said[-500:]}")]
        )
        wrong |= {f"{folder_name(name)}/{files[number].name}": said for number, said in told}
    return wrong


def main() -> int:
    "Fuzz the readers that the command line names; the figures go to `results/fuzz.json` when all were"
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("readers", nargs="*", help="which; all by default")
    p.add_argument("--part", help="I/N: every Nth reader, beginning with number I, from 0")
    p.add_argument("--inputs", type=int, default=100_000, help="of each reader")
    p.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="no longer than this; the figures say how many inputs it was enough for",
    )
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--keep", type=Path, default=Path("fuzz"), help="folder for what is found")
    p.add_argument("--show", type=int, help="the one input of this number: what is said of it")
    o = p.parse_args()
    print(f"seed {o.seed}", flush=True)
    home, base, keep = Path.cwd(), scratch("fuzz"), o.keep.absolute()
    try:
        warm_up()
        readers = build(base)
        if unknown := set(o.readers) - set(readers):
            sys.exit(f"{', '.join(unknown)}: readers are {', '.join(readers)}")
        if o.part:
            first, parts = map(int, o.part.split("/"))
            o.readers += list(readers)[first::parts]
        wrong = corpus(readers)
        for k, v in wrong.items():
            print(f"{k}: {v}")
        if o.show is not None:
            data = make_input(o.readers[0], readers[o.readers[0]], o.show, o.seed)
            print(data[:3000])

            def show():
                enter(base / "job")
                readers[o.readers[0]].read(data)

            print(forked(show).said)
            return 0
        found = fuzz(
            {k: r for k, r in readers.items() if not o.readers or k in o.readers},
            o.inputs,
            o.seed,
            o.jobs,
            keep,
            minutes=o.minutes,
        )
    finally:
        os.chdir(home)
        shutil.rmtree(base, ignore_errors=True)
    for k, r in found.items():
        print(
            f"{k}: {r['inputs']} inputs, {len(r['findings'])} findings, slowest {r['slowest']:.2f} s, most"
            f" {r['most'] // 10**6} MB"
        )
    if not o.readers:
        from memtrain.core import save_result

        told = {k: {**r, "findings": len(r["findings"])} for k, r in found.items()}
        limited = o.minutes < float("inf")
        command = f"python tools/fuzz.py --minutes {o.minutes:g} --seed {o.seed}" if limited else "make fuzz"
        save_result("fuzz", told, command)
    return 1 if wrong or any(r["findings"] for r in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
