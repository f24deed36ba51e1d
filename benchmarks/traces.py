"""What sharding routing traces costs: time against `cp` and against pickle.load, peak memory, random
access, kills, a pickle of 80 GB.

    python benchmarks/traces.py [--gigabytes 3.4] [--rounds 3] [--memory /dev/shm] [--disk FOLDER] \\
      [--kills 50] [--only PART ...]

A pickled list of traces (ten fields; `input_embeddings` repeat `hidden_states`, every tensor is a copy of
its own) is made with pickle.dump in FOLDER of memory and of disk, and then copied (`cp`), sharded by
memtrain (with and without `dedupe`, which copies half) and sharded as the first system did: pickle.load,
group by layer, pickle.dump lists of at most 400 MiB by its estimate. Each is a process of its own; rounds
are interleaved, medians are kept, and what is written is removed after each. On disk `cp` is followed by
`sync` of the copy, since memtrain's shards are durable when it ends. The source is in the page cache. The
result goes to results/traces.json. Needs about three times the size of the pickle on both, and twice in RAM
for the first system's way (left out where it isn't free)."""

import argparse, dataclasses, json, os, pickle, random, shutil, signal, statistics, subprocess, sys
import tempfile, time
from pathlib import Path

TOKENS, WIDTH, EXPERTS, LAYERS = 512, 512, 16, 6


@dataclasses.dataclass
class Trace:
    layer_id: int
    hidden_states: object
    input_embeddings: object
    target_routing: object
    target_top_k: object
    prev_layer_gates: list
    sequence_length: int
    token_ids: object
    dataset_name: str
    sample_id: str


# --- what is sharded -----------------------------------------------------------------------------


def make_traces(count, tokens=TOKENS, width=WIDTH):
    """`count` traces in the order in which a run collects them; contents are windows of random numbers, each
    one its own"""
    import torch

    g = torch.Generator().manual_seed(0)
    pool, gate_pool = (
        torch.randn(tokens * width + count, generator=g),
        torch.rand(tokens * EXPERTS + count, generator=g),
    )
    traces, gates = [], []
    for i in range(count):
        layer = i % LAYERS
        if layer == 0:
            gates = []
        h, gate = (
            pool[i : i + tokens * width].view(tokens, width).clone(),
            gate_pool[i : i + tokens * EXPERTS].view(tokens, EXPERTS).clone(),
        )
        traces.append(
            Trace(
                layer,
                h,
                h.clone(),
                gate,
                gate.topk(2).indices,
                [o.clone() for o in gates[-3:]],
                tokens,
                torch.arange(tokens),
                "text",
                f"s{i // LAYERS}",
            )
        )
        gates.append(gate)
    return traces


def make_pickle(path, gigabytes, tokens=TOKENS, width=WIDTH):
    sys.modules["traces"] = sys.modules["__main__"]
    Trace.__module__ = "traces"
    one = len(pickle.dumps(make_traces(LAYERS, tokens, width), 4)) / LAYERS
    with open(path, "wb") as f:
        pickle.dump(make_traces(max(LAYERS, int(gigabytes * 1e9 / one)), tokens, width), f, protocol=4)


class Sparse:
    "A file for a pickler that leaves holes where it would write zeros"

    def __init__(self, file):
        self.file = file

    def write(self, data):
        "Write `data`, less the zeros at its end"
        data = bytes(data)
        kept = data.rstrip(b"\0")
        self.file.write(kept)
        self.file.seek(len(data) - len(kept), 1)


def make_sparse(path, traces, tokens=2048, width=512):
    "A pickle as large as one likes, whose contents are holes"
    import torch

    sys.modules["traces"] = sys.modules["__main__"]
    Trace.__module__ = "traces"
    hidden, routing = torch.zeros(tokens, width), torch.zeros(tokens, EXPERTS)
    top = torch.zeros(tokens, 2, dtype=torch.int64)

    def make(i):
        return Trace(i % LAYERS, hidden, hidden, routing, top, [], tokens, None, "text", f"s{i // LAYERS}")

    with open(path, "wb") as f:
        pickler = pickle.Pickler(Sparse(f), 4)
        pickler.fast = True  # each trace has contents of its own
        pickler.dump([make(i) for i in range(traces)])


# --- the ways, each a process of its own ---------------------------------------------------------


def shard_as_the_first_system(source, out, mb=400):
    "Everything into memory, grouped by layer, lists of at most `mb` by an estimate"
    sys.modules["traces"] = sys.modules["__main__"]
    Path(out).mkdir()
    with open(source, "rb") as f:
        traces = pickle.load(f)
    groups = {}
    for t in traces:
        groups.setdefault(t.layer_id, []).append(t)
    shard, size, number, estimates = [], 0, 0, []

    def flush():
        nonlocal shard, size, number
        with open(f"{out}/shard_{number:03d}.pkl", "wb") as f:
            pickle.dump(shard, f)
        estimates.append(size)
        shard, size, number = [], 0, number + 1

    for layer in sorted(groups):
        for t in groups[layer]:
            n = 1000 + sum(
                x.numel() * x.element_size()
                for x in (t.hidden_states, t.input_embeddings, t.target_routing, t.target_top_k)
            )
            if shard and size + n > mb * 2**20:
                flush()
            shard.append(t)
            size += n
    if shard:
        flush()
    print(json.dumps([[n, os.path.getsize(f"{out}/shard_{i:03d}.pkl")] for i, n in enumerate(estimates)]))


OURS = (
    "import sys; from memtrain.trace_files import shard_traces; shard_traces(sys.argv[1], sys.argv[2],"
    " **eval(sys.argv[3])); print('torch' in sys.modules, 'numpy' in sys.modules)"
)


def ours(source, out, **kw):
    return [sys.executable, "-c", OURS, source, out, repr(kw)]


def first(source, out):
    return [sys.executable, __file__, "--way", "first", "--source", source, "--out", out]


def timed(argv, out):
    from memtrain.measure import measure_command

    shutil.rmtree(out, ignore_errors=True)
    Path(out).unlink(missing_ok=True) if Path(out).is_file() else None
    run = measure_command(argv)
    if run.returncode:
        raise SystemExit(f"{argv}: {run.stderr}")
    return run


def size_of(path):
    return (
        sum(p.stat().st_size for p in Path(path).glob("shard_*"))
        if Path(path).is_dir()
        else Path(path).stat().st_size
    )


def remove(path):
    shutil.rmtree(path, ignore_errors=True) if Path(path).is_dir() else Path(path).unlink(missing_ok=True)


def compare(folder, gigabytes, rounds, durable, with_first):
    "Interleaved rounds of every way over one pickle in `folder`"
    source, out = folder / "traces.pkl", folder / "out"
    if not source.exists():
        subprocess.run(
            [sys.executable, __file__, "--way", "make", "--source", source, "--gigabytes", str(gigabytes)],
            check=True,
        )
    copy = f"cp '{source}' '{out}'" + (f" && sync '{out}'" if durable else "")
    ways = {
        "cp": ["sh", "-c", copy],
        "memtrain": ours(source, out, dedupe=False),
        "memtrain, dedupe": ours(source, out),
        "memtrain, pkl": ours(source, out, group="seed", format="pkl"),
    }
    if with_first:
        ways["first system"] = first(source, out)
    found = {name: {"seconds": [], "peak_rss": [], "bytes": 0} for name in ways}
    for r in range(rounds + 1):  # the first isn't counted
        for name, argv in ways.items():
            if name == "first system" and r not in (1, 2):
                continue
            remove(out)
            if durable:
                os.sync()
            run = timed(argv, out)
            if r or name == "first system":
                found[name]["seconds"].append(run.seconds)
                found[name]["peak_rss"].append(run.peak_rss)
            found[name]["bytes"] = size_of(out)
            if name == "first system":
                found[name]["estimated and true bytes"] = json.loads(run.stdout)
            if name.startswith("memtrain") and run.stdout.split()[0] != "False":
                raise SystemExit(f"{name} imported torch: {run.stdout}")
            print(
                f"  {name}: {run.seconds:.2f} s, {run.peak_rss / 2**20:.0f} MiB, {size_of(out) / 1e6:.0f} MB",
                flush=True,
            )
    remove(out)
    for o in found.values():
        o["seconds"], o["peak_rss"], o["all_seconds"] = (
            statistics.median(o["seconds"]),
            max(o["peak_rss"]),
            o["seconds"],
        )
    return {
        "source_bytes": source.stat().st_size,
        "ways": found,
        "cp_ratio": {n: found["cp"]["seconds"] / found[n]["seconds"] for n in found},
    }


# --- single figures ------------------------------------------------------------------------------


def memory(folder):
    "Peak RSS at few and at many shards, with little address space, and over many small traces"
    source, out, found = folder / "traces.pkl", folder / "out", {}
    n = source.stat().st_size
    for shards in (3, 300):
        found[f"{shards} shards"] = timed(
            ours(source, out, shard_size_mb=n / shards / 2**20, dedupe=False), out
        ).peak_rss
    found["300 shards are"] = len(list(out.glob("*.safetensors")))
    argv = ours(source, out)
    found["ulimit -v 200000"] = timed(
        ["sh", "-c", 'ulimit -v 200000; exec "$@"', "sh", *map(str, argv)], out
    ).peak_rss
    small = folder / "small.pkl"
    with open(small, "wb") as f:
        pickle.dump(
            [{"layer_id": i % 6, "sample_id": i // 6, "loss": i / 7} for i in range(500_000)], f, protocol=4
        )
    run = timed(ours(small, out), out)
    found["500,000 dicts"], found["500,000 dicts, seconds"] = run.peak_rss, run.seconds
    code = (
        "import sys; from memtrain.trace_files import iter_pickle; "
        "print(sum(1 for _ in iter_pickle(sys.argv[1])))"
    )
    found["500,000 dicts, iterated"] = timed([sys.executable, "-c", code, small], out).peak_rss
    found["import only"] = timed([sys.executable, "-c", "import memtrain.trace_files"], out).peak_rss
    small.unlink()
    return found


def access(folder):
    "Milliseconds to open shards, and to read one trace at random, its line only and with its tensors"
    from memtrain.trace_files import open_traces, shard_traces

    out = folder / "out"
    remove(out)
    shard_traces(folder / "traces.pkl", out)
    open_traces(out)[0].hidden_states.torch()
    t = time.perf_counter()
    traces = open_traces(out)
    opened = time.perf_counter() - t
    traces[0], traces[-1]
    order, line, one, whole = random.Random(0).sample(range(len(traces)), min(300, len(traces))), [], [], []
    for i in order:
        t = time.perf_counter()
        r = traces[i]
        line.append(time.perf_counter() - t)
        t = time.perf_counter()
        r.target_routing.torch()
        one.append(time.perf_counter() - t)
        t = time.perf_counter()
        [x.torch() for x in (r.hidden_states, r.input_embeddings, r.target_routing, r.target_top_k)]
        whole.append(time.perf_counter() - t)
    n = sum(r[k].nbytes for k in ("hidden_states", "input_embeddings", "target_routing", "target_top_k"))
    remove(out)
    return {
        "open_ms": 1e3 * opened,
        **{
            f"{k}_ms": 1e3 * statistics.median(v)
            for k, v in (("line", line), ("routing", one), ("four tensors", whole))
        },
        "four tensors, bytes": n,
    }


def sparse(folder, traces=9_600):
    "A pickle of 80 GB and more: its index, and its last trace"
    source = folder / "sparse.pkl"
    make_sparse(source, traces)
    code = (
        "import sys, time; from memtrain.lazypickle import build_index, PickleIndex; t = time.perf_counter();"
        " build_index(sys.argv[1]); print(time.perf_counter() - t); t = time.perf_counter(); index ="
        " PickleIndex(sys.argv[1] + '.index'); index[-1].fields['layer_id']; print(1e3*(time.perf_counter()"
        " - t))"
    )
    run = timed([sys.executable, "-c", code, source], folder / "none")
    seconds, last = map(float, run.stdout.split())
    found = {
        "bytes": source.stat().st_size,
        "on disk": source.stat().st_blocks * 512,
        "traces": traces,
        "index_seconds": seconds,
        "last_trace_ms": last,
        "peak_rss": run.peak_rss,
    }
    for p in folder.glob("sparse.pkl*"):
        p.unlink()
    return found


def kill(folder, kills):
    "Kill -9 at random moments, then resume: the same bytes, and nothing temporary left"
    from memtrain.trace_files import verify_traces

    source, whole, out, rng = folder / "kill.pkl", folder / "whole", folder / "out", random.Random(0)
    subprocess.run(
        [sys.executable, __file__, "--way", "make", "--source", source, "--gigabytes", "0.2"], check=True
    )
    contents = lambda d: {p.name: p.read_bytes() for p in sorted(d.iterdir())}
    remove(whole)
    timed(ours(source, whole, shard_size_mb=8), whole)  # the first run reads the interpreter from the disk
    expected, killed, wrong, at = contents(whole), 0, 0, []
    started = time.perf_counter()
    timed_resume(ours(source, out, shard_size_mb=8, resume=True))
    seconds = time.perf_counter() - started
    remove(out)
    while killed < kills:
        process = subprocess.Popen(
            list(map(str, ours(source, out, shard_size_mb=8, resume=True))),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.1, seconds))
        process.kill()
        if process.wait() != -signal.SIGKILL:
            remove(out)
            continue  # it was done before
        killed += 1
        at.append(len(list(out.glob("shard_*.safetensors"))) if out.exists() else -1)
        if rng.random() < 0.5:
            continue  # killed again before it is whole
        timed_resume(ours(source, out, shard_size_mb=8, resume=True))
        wrong += contents(out) != expected or bool(verify_traces(out))
        remove(out)
    for p in (source, whole, out):
        remove(p)
    return {
        "kills": killed,
        "wrong": wrong,
        "whole shards at each": at,
        "shards": sum(name.endswith("safetensors") for name in expected),
    }


def timed_resume(argv):
    subprocess.run(list(map(str, argv)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def full(folder):
    "A tmpfs that is too small, where mounting is allowed; then room is made and the run resumed"
    mount = folder / "small"
    mount.mkdir(exist_ok=True)
    source = folder / "full.pkl"
    subprocess.run(
        [sys.executable, __file__, "--way", "make", "--source", source, "--gigabytes", "0.2"], check=True
    )
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", mount], capture_output=True
    ).returncode:
        return {"mounted": False}
    try:
        argv = list(map(str, ours(source, mount / "out", shard_size_mb=8, resume=True)))
        run = subprocess.run(argv, capture_output=True, text=True)
        left = sorted(p.name for p in (mount / "out").iterdir())
        subprocess.run(["mount", "-o", "remount,size=400m", mount], check=True)
        timed_resume(argv)
        subprocess.run(
            list(map(str, ours(source, folder / "whole", shard_size_mb=8))), check=True, capture_output=True
        )
        same = all(
            (mount / "out" / p.name).read_bytes() == p.read_bytes() for p in (folder / "whole").iterdir()
        )
        return {
            "mounted": True,
            "error": run.stderr.splitlines()[-1].replace(str(mount), "DIR"),
            "shards left": sum(n.endswith("safetensors") for n in left),
            "temporary files left": sum(n.startswith(".") for n in left),
            "same bytes when resumed": same,
        }
    finally:
        subprocess.run(["umount", mount], check=True)
        for p in (mount, source, folder / "whole"):
            remove(p)


# --- all of it -----------------------------------------------------------------------------------


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gigabytes", type=float, default=3.4)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    p.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    p.add_argument("--kills", type=int, default=50)
    p.add_argument(
        "--only", nargs="*", default=["tmpfs", "memory", "access", "disk", "sparse", "kill", "full"]
    )
    p.add_argument(
        "--save", default="traces", help="name of the result; what isn't in --only is kept from before"
    )
    p.add_argument("--way"), p.add_argument("--source"), p.add_argument("--out")
    a = p.parse_args()
    if a.way == "make":
        return make_pickle(a.source, a.gigabytes)
    if a.way == "first":
        return shard_as_the_first_system(a.source, a.out)
    import psutil
    from memtrain.core import load_result, save_result, results_dir

    room = psutil.virtual_memory().available > 2.6 * a.gigabytes * 1e9 + 2 * a.gigabytes * 1e9
    values = load_result(a.save).values if (results_dir() / f"{a.save}.json").exists() else {}
    with tempfile.TemporaryDirectory(dir=a.memory) as m, tempfile.TemporaryDirectory(dir=a.disk) as d:
        m, d = Path(m), Path(d)
        parts = {
            "tmpfs": lambda: compare(m, a.gigabytes, a.rounds, False, room),
            "memory": lambda: memory(m),
            "access": lambda: access(m),
            "disk": lambda: compare(d, a.gigabytes, a.rounds, True, False),
            "sparse": lambda: sparse(d),
            "kill": lambda: kill(m, a.kills),
            "full": lambda: full(m),
        }
        for name, part in parts.items():
            if name not in a.only:
                continue
            if name in ("memory", "access") and not (m / "traces.pkl").exists():
                subprocess.run(
                    [
                        sys.executable,
                        __file__,
                        "--way",
                        "make",
                        "--source",
                        m / "traces.pkl",
                        "--gigabytes",
                        str(a.gigabytes),
                    ],
                    check=True,
                )
            if name == "disk":
                (m / "traces.pkl").unlink(missing_ok=True)
            print(name, flush=True)
            values[name] = part()
            print(json.dumps(values[name], indent=1), flush=True)
            save_result(a.save, values, "python benchmarks/traces.py")


if __name__ == "__main__":
    main()
