"""What reading pickles without running them costs: pickle.load against it, an 80 GB pickle, many small
items, damaged files.

    python benchmarks/pickles.py [--folder /dev/shm] [--only whole sparse small mutations] [--mutations 20000]

Every figure is of a process of its own, and peak RSS is what the whole process held, its imports included
(`import only` says what those take). `whole`: a pickled list of 24 traces of 16 MiB is loaded by
pickle.load, and walked by iter_pickle. `sparse`: 5,000 such traces in one pickle whose payloads are holes,
made of what pickle.dump writes for one trace; it is indexed, and its last trace is read. `small`: 500,000
small dicts. `mutations`: a small pickle with up to three wrong bytes, or cut off, many times. The result
goes to results/lazypickle.json; what isn't in --only is kept from before."""

import argparse, dataclasses, json, pickle, random, signal, sys, tempfile, time, types
from collections import Counter
from pathlib import Path

TOKENS, WIDTH = 4096, 1024  # 16 MiB of float32


@dataclasses.dataclass
class Trace:
    layer_id: int
    hidden_states: object
    dataset_name: str
    sample_id: str


Trace.__module__ = "traces"  # which no process that reads the pickle with memtrain can import
sys.modules["traces"] = types.SimpleNamespace(Trace=Trace)


def make_whole(path, traces=24):
    import torch

    with open(path, "wb") as f:
        pickle.dump(
            [
                Trace(i % 6, torch.full((TOKENS, WIDTH), float(i)), "text", f"s{i // 6}")
                for i in range(traces)
            ],
            f,
            protocol=4,
        )


def make_sparse(path, traces=5_000, tokens=TOKENS, width=WIDTH):
    """What pickle.dump writes for one trace, again and again, with a hole for the payload; without a memo, so
    that each can stand anywhere"""
    import io, torch

    out = io.BytesIO()
    pickler = pickle.Pickler(out, 4)
    pickler.fast = True
    pickler.dump(Trace(5, torch.zeros(tokens, width), "text", "s0"))
    data, hole = out.getvalue(), tokens * width * 4
    at = data.index(bytes(hole))
    while data[at + hole : at + hole + 1] == b"\0":
        at += 1
    # APPEND in the place of STOP, so that a frame ends where it did
    head, tail = data[2:at], data[at + hole : -1] + b"a"
    with open(path, "wb") as f:
        f.write(b"\x80\x04]")
        for _ in range(traces):
            f.write(head)
            f.seek(hole, 1)
            f.write(tail)
        f.write(b".")


LOAD = (
    "import pickle, sys, types\nclass Trace: pass\nsys.modules['traces'] ="
    " types.SimpleNamespace(Trace=Trace)\nimport torch\nprint(len(pickle.load(open(sys.argv[1], 'rb'))))"
)
WALK = (
    "import sys; from memtrain.lazypickle import iter_pickle; print(sum(1 for _ in iter_pickle(sys.argv[1])),"
    " 'torch' in sys.modules, 'numpy' in sys.modules)"
)
INDEX = (
    "import sys, time; from memtrain.lazypickle import PickleIndex, build_index; t = time.perf_counter();"
    " build_index(sys.argv[1]); print(time.perf_counter() - t)"
)
LAST = (
    "import sys, time; from memtrain.lazypickle import PickleIndex; t = time.perf_counter(); o ="
    " PickleIndex(sys.argv[1] + '.index')[-1]; print(1e3*(time.perf_counter() - t), o.layer_id,"
    " o.hidden_states.nbytes)"
)


def fresh(code, *args):
    "Run `code` in a process of its own"
    from memtrain.measure import measure_command

    run = measure_command([sys.executable, "-c", code, *map(str, args)])
    if run.returncode:
        raise SystemExit(run.stderr)
    return run


def peak(run):
    return {"peak_rss": run.peak_rss, "seconds": run.seconds, "printed": run.stdout.split()}


def whole(folder, a):
    "pickle.load of a list of tensors, and a walk over it"
    path = folder / "whole.pkl"
    make_whole(path)
    return {
        "bytes": path.stat().st_size,
        "pickle.load": peak(fresh(LOAD, path)),
        "iter_pickle": peak(fresh(WALK, path)),
        "import torch": peak(fresh("import torch")),
        "import only": peak(fresh("import memtrain.lazypickle")),
    }


def sparse(folder, a):
    "A pickle of 80 GB"
    path = folder / "small.pkl"
    make_sparse(path, 3, 8, 8)
    # pickle.load reads what is made here
    with open(path, "rb") as f:
        assert [tuple(o.hidden_states.shape) for o in pickle.load(f)] == [(8, 8)] * 3
    path = folder / "sparse.pkl"
    make_sparse(path)
    index, last = fresh(INDEX, path), fresh(LAST, path)
    size = path.stat()
    return {
        "bytes": size.st_size,
        "on disk": size.st_blocks * 512,
        "traces": 5_000,
        "index_seconds": float(index.stdout),
        "index_peak_rss": index.peak_rss,
        "index_bytes": (folder / "sparse.pkl.index").stat().st_size,
        "last_ms": float(last.stdout.split()[0]),
        "last_peak_rss": last.peak_rss,
    }


def small(folder, a):
    "Many small dicts"
    path = folder / "small.pkl"
    with open(path, "wb") as f:
        pickle.dump(
            [{"layer_id": i % 6, "sample_id": i // 6, "loss": i / 7} for i in range(500_000)], f, protocol=4
        )
    return {
        "bytes": path.stat().st_size,
        "items": 500_000,
        "iter_pickle": peak(fresh(WALK, path)),
        "build_index": peak(fresh(INDEX, path)),
        "pickle.load": peak(fresh("import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))", path)),
    }


def read_tensors(value):
    "Read every tensor in `value`"
    from memtrain.lazypickle import LazyTensor, Record

    if isinstance(value, LazyTensor):
        value.torch() if value.kind == "torch" else value.numpy()
    elif isinstance(value, Record):
        read_tensors(value.fields)
    elif isinstance(value, (dict, list, tuple)):
        for v in value.values() if isinstance(value, dict) else value:
            read_tensors(v)


def mutations(folder, a):
    """What becomes of damaged files, the tensors of those that can be read included; ten seconds for one are
    a hang"""
    import numpy as np, torch
    from memtrain.core import MemtrainError
    from memtrain.lazypickle import Refused, Truncated, iter_pickle

    b = torch.ones(3, 4)
    item = {
        "x": b,
        "view": b[1:, ::2],
        "y": np.arange(4.0),
        "z": (1, "a", None, 2.5),
        "t": Trace(3, torch.zeros(2), "text", "s0"),
    }
    whole = {p: pickle.dumps([item, item, {"x": torch.zeros(2)}], p) for p in (2, 3, 4, 5)}
    rng, path, found, slowest = random.Random(0), folder / "bad.pkl", Counter(), 0

    def hangs(*_):
        raise SystemExit("a hang")

    signal.signal(signal.SIGALRM, hangs)
    for k in range(a.mutations):
        bad = bytearray(whole[2 + k % 4])
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        path.write_bytes(bad[: rng.randint(1, len(bad))] if rng.random() < 0.2 else bad)
        started = time.perf_counter()
        signal.alarm(10)
        try:
            for o in iter_pickle(path):
                read_tensors(o)
            found["read"] += 1
        except (Refused, Truncated) as e:
            found[type(e).__name__] += 1
        except MemtrainError:
            found["MemtrainError"] += 1
        except Exception as e:
            found["other: " + type(e).__name__] += 1
        signal.alarm(0)
        slowest = max(slowest, time.perf_counter() - started)
    return {
        "files": a.mutations,
        "outcome": dict(found),
        "other errors": sum(n for name, n in found.items() if name.startswith("other")),
        "slowest_ms": 1e3 * slowest,
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    p.add_argument("--only", nargs="*", default=["whole", "sparse", "small", "mutations"])
    p.add_argument("--mutations", type=int, default=20_000)
    a = p.parse_args()
    from memtrain.core import load_result, results_dir, save_result

    values = load_result("lazypickle").values if (results_dir() / "lazypickle.json").exists() else {}
    for part in (whole, sparse, small, mutations):
        if part.__name__ not in a.only:
            continue
        with tempfile.TemporaryDirectory(dir=a.folder) as folder:
            values[part.__name__] = part(Path(folder), a)
        print(part.__name__, json.dumps(values[part.__name__], indent=1), flush=True)
        save_result("lazypickle", values, "python benchmarks/pickles.py")


if __name__ == "__main__":
    main()
