"""Data in a bucket: memtrain, LitData and MosaicML Streaming over the protocol of S3, with 20 ms added to
every request.

    python benchmarks/remote.py [--tokens 100M] [--rounds 3] [--work FOLDER] [--only ours,litdata]

The server is moto's (`pip install moto[server] s3fs boto3 litdata mosaicml-streaming`), on the loopback, in
a process of its own: it speaks S3 and holds the objects in its memory, and is kept from copying all of one
for each range of it. Each way runs in a fresh process with an empty cache, in interleaved rounds: an epoch
over the network, then one from what is in the cache, of which nothing is in the page cache at its
beginning. Every way gives batches of 16 windows of 1,024 ids as int64 and their targets. Seconds are those
from opening the data to the last batch of the epoch, imports not counted. Memory is the PSS of the process
and its workers, looked at 20 times a second. Beside speed, ours only: the bound of a small cache, answers
that are cut, a server that is killed and comes back, a shard that was changed there. The results go to
results/remote.json."""

import argparse, contextlib, hashlib, json, os, shutil, signal, statistics, subprocess, sys, tempfile
import threading, time, urllib.request
from pathlib import Path

for name in ("OMP_NUM_THREADS", "LITDATA_DISABLE_VERSION_CHECK"):
    os.environ.setdefault(name, "1")
import numpy as np
import psutil
from peers import import_peer, in_batches, shared_memory_cleaned

from memtrain.bench import BenchData, data_format, drop_cache, widen
from memtrain.core import format_size, parse_size, save_result

BATCH, BLOCK, DELAY, BUCKET = 16, 1024, 0.02, "data"
WAYS = {
    "ours": ("memtrain", "shards"),
    "litdata": ("LitData", "chunks"),
    "litdata_workers": ("LitData, 2 workers", "chunks"),
    "mosaic": ("MosaicML Streaming", "mds"),
    "mosaic_workers": ("MosaicML Streaming, 2 workers", "mds"),
}


@data_format("small")
def write_small(data, dest):
    "memtrain's shards, a hundred of them"
    from memtrain.shards import ShardWriter

    ids = data.ids()
    dest.rmdir()
    with ShardWriter(dest, vocab_size=data.vocab_size, tokens_per_shard=data.tokens // 100) as w:
        for i in range(0, data.tokens, 2**20):
            w.write(np.asarray(ids[i : i + 2**20]))


@data_format("chunks")
def write_chunks(data, dest):
    "LitData's chunks of tokens, as `optimize` makes them, in this process"
    from litdata import TokensLoader
    from litdata.streaming.cache import Cache

    cache = Cache(str(dest), chunk_bytes="64MB", item_loader=TokensLoader(block_size=data.row))
    for i, block in enumerate(data.rows()):
        cache[i] = block.reshape(-1)
    cache.done()
    cache.merge(1)


# --- the server ----------------------------------------------------------------------------------


def serve(port, *folders):
    """Serve `folders` as the bucket, `DELAY` seconds late; /faults?N has so many answers to GET cut in their
    middle, /change?KEY flips a bit of an object"""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from moto.s3.models import FakeKey, s3_backends
    from werkzeug.serving import make_server

    # twice a copy of the whole object, whatever range is asked for, which no real server makes: once is
    # enough
    read = FakeKey.value.fget

    def value(key):
        if "whole" not in vars(key):
            key.whole = read(key)
        return key.whole

    FakeKey.value = property(value, FakeKey.value.fset)
    bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    bucket.create_bucket(BUCKET, "us-east-1")
    for folder in map(Path, folders):
        for path in folder.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                bucket.put_object(BUCKET, f"{folder.name}/{path.relative_to(folder)}", path.read_bytes())
    moto, lock, count = (
        DomainDispatcherApplication(create_backend_app),
        threading.Lock(),
        {"faults": 0, "cut": 0, "asked": 0, "bytes": 0},
    )

    def app(environ, start_response):
        what, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        if what == "/faults":
            count["faults"] = int(query)
        if what == "/change":
            data = bytearray(bucket.get_object(BUCKET, query).value)
            data[len(data) // 2] ^= 1
            bucket.put_object(BUCKET, query, bytes(data))
        if what in ("/faults", "/change", "/count"):
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(count).encode()]
        time.sleep(DELAY)
        answer = b"".join(moto(environ, start_response))
        with lock:
            count["asked"] += 1
            # three of four
            cut = (
                count["faults"] > 0
                and len(answer) > 10_000
                and environ["REQUEST_METHOD"] == "GET"
                and count["asked"] % 4 > 0
            )
            count["faults"] -= cut
            count["cut"] += cut
            count["bytes"] += len(answer)
        return Cut(answer, environ["werkzeug.socket"]) if cut else [answer]

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as S3 keeps them

        def log(self, *args):
            pass

    server = make_server("127.0.0.1", int(port), app, True, request_handler=Handler)
    server.daemon_threads = True
    print("ready", flush=True)
    server.serve_forever()


class Cut:
    "Half of an answer, and then the connection is shut"

    def __init__(self, answer, socket):
        self.answer, self.socket = answer, socket

    def __iter__(self):
        yield self.answer[: len(self.answer) // 2]
        self.socket.shutdown(2)


class Server:
    "The server as a process that can be killed and started again"

    def __init__(self, folders, port=0):
        import socket

        with socket.socket() as s:
            s.bind(("127.0.0.1", port))
            self.port = s.getsockname()[1]
        self.folders = folders
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(self.port), *map(str, self.folders)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("the server didn't start")

    def ask(self, what):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{what}") as r:
            return json.loads(r.read())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def environ(self):
        url = f"http://127.0.0.1:{self.port}"
        return {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
            "S3_ENDPOINT_URL": url,
        }


# --- the ways: each opens data at `url`, or the folder here, and gives batches for ever ----------


def loader_of(source, cache, **kw):
    from memtrain.loader import TokenLoader
    from memtrain.shards import TokenShards

    return TokenLoader(TokenShards(source, cache_dir=cache, **kw), BATCH, BLOCK, shuffle="shards")


def open_way(way, url, cache):
    "A function that gives an iterator over an epoch"
    if way == "ours":
        loader = loader_of(url, cache)
        return lambda: iter(loader)
    import torch

    workers = 2 if way.endswith("_workers") else 0
    if way.startswith("litdata"):
        import litdata
        from litdata.streaming import downloader

        # or its faster client would refuse this server
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        ds = litdata.StreamingDataset(
            url,
            cache_dir=str(cache),
            item_loader=litdata.TokensLoader(block_size=BLOCK + 1),
            shuffle=True,
            storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        )
        loader = litdata.StreamingDataLoader(
            ds,
            batch_size=BATCH,
            num_workers=workers,
            drop_last=True,
            collate_fn=lambda rows: widen(np.stack(rows)),
        )
        return (lambda: iter(loader)) if workers else (lambda: in_batches(ds, BATCH))
    from streaming import StreamingDataset

    ds = StreamingDataset(remote=url, local=str(cache), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
    loader = torch.utils.data.DataLoader(
        ds,
        batch_size=BATCH,
        num_workers=workers,
        drop_last=True,
        collate_fn=lambda rows: widen(np.stack([r["tokens"] for r in rows])),
    )
    return lambda: iter(loader)


def measure(way, url, cache):
    """Run in a process of its own: tokens a second of both epochs, and what the process held before it opened
    anything"""
    import torch

    torch.set_num_threads(1)
    for module in {"lit": ["litdata", "obstore", "boto3"], "mos": ["streaming", "boto3"]}.get(
        way[:3], ["memtrain.loader", "s3fs"]
    ):
        import_peer(module)
    print(json.dumps("imported"), flush=True)
    sys.stdin.readline()
    Path(cache).mkdir()
    seconds, tokens, cpu = [], [], []
    for epoch in range(2):
        kept = cache if url.startswith("s3:") else url
        if epoch or kept == url:
            drop_cache([p for p in Path(kept).rglob("*") if p.is_file() and p.stat().st_size])
        began, spent = time.perf_counter(), time.process_time()
        if not epoch:
            begin = open_way(way, url, cache)
        n = 0
        for x, y in begin():
            n += x.shape[0] * x.shape[1]
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
        tokens.append(n)
        print(json.dumps(f"epoch {epoch}"), flush=True)
    print(json.dumps({"seconds": seconds, "tokens": tokens, "cpu_seconds": cpu}), flush=True)


# --- watching ------------------------------------------------------------------------------------


def held(pid):
    "(PSS, of it anonymous or in /dev/shm) of a process and those below it, bytes"
    whole = own = 0
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for p in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, OSError):
                lines = dict(
                    line.split(":", 1)
                    for line in Path(f"/proc/{p.pid}/smaps_rollup").read_text().splitlines()[1:]
                )
                whole += 1024 * int(lines["Pss"].split()[0])
                own += 1024 * sum(int(lines[k].split()[0]) for k in ("Pss_Anon", "Pss_Shmem"))
    return whole, own


def run(way, url, work, env):
    "One measurement of `way` in a fresh process"
    cache = Path(tempfile.mkdtemp(dir=work)) / "cache"
    child = subprocess.Popen(
        [sys.executable, __file__, "--measure", way, url, str(cache)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    lines = []
    try:
        reader = threading.Thread(target=lambda: lines.extend(map(json.loads, child.stdout)))
        errors = []
        complaints = threading.Thread(target=lambda: errors.extend(child.stderr))
        complaints.start()
        reader.start()
        while not lines and child.poll() is None:
            time.sleep(0.05)
        base, peak = held(child.pid), {}
        child.stdin.write("go\n")
        child.stdin.flush()
        while child.poll() is None:
            stage = len(lines)
            peak[stage] = [max(a, b) for a, b in zip(peak.get(stage, (0, 0)), held(child.pid))]
            time.sleep(0.05)
        reader.join()
        complaints.join()
        if child.returncode or not isinstance(lines[-1], dict):
            raise RuntimeError(f"{way}: {''.join(errors)[-2000:]}")
        return {
            **lines[-1],
            "base": base[0],
            "base_own": base[1],
            "peak": max(peak[1][0], peak.get(2, [0])[0]),
            "peak_own": max(peak[1][1], peak.get(2, [0, 0])[1]),
            "peak_first": peak[1][0],
            "peak_first_own": peak[1][1],
        }
    finally:
        child.kill()
        shutil.rmtree(cache.parent, ignore_errors=True)


# --- faults and bounds, of ours ------------------------------------------------------------------


def digest(batch):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in batch)).hexdigest()


def size_of(cache):
    "Bytes of the files in `cache`, some of which go meanwhile; one on its way counts whole"
    total = 0
    for p in Path(cache).glob("[0-9a-f]*"):
        with contextlib.suppress(FileNotFoundError):
            total += os.stat(p).st_size
    return total


def try_faults(server, folder, work):
    "What answers that are cut, a server that is killed, a small cache and a changed shard do to the batches"
    from memtrain.core import MemtrainError
    from memtrain.shards import verify

    os.environ.update(server.environ())
    url, whole = f"s3://{BUCKET}/{folder.name}", sum(p.stat().st_size for p in folder.rglob("*.bin"))
    want = [digest(b) for b in loader_of(folder, None)]
    out = {"batches": len(want), "data": whole}

    bound, most, wrong, began = whole // 10, [0], 0, time.perf_counter()
    done = threading.Event()

    def watch():
        while not done.wait(0.005):
            most.append(size_of(f"{work}/small"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for b, w in zip(loader_of(url, f"{work}/small", cache_size=bound), want, strict=True):
        wrong += digest(b) != w
    done.set()
    watcher.join()
    out["small_cache"] = {
        "bound": bound,
        "most": max(most),
        "looked": len(most),
        "wrong": wrong,
        "seconds": time.perf_counter() - began,
    }

    server.ask("faults?20")
    wrong, began, away = 0, time.perf_counter(), []

    def restart():
        server.kill()
        began = time.perf_counter()
        server.start()
        away.append(time.perf_counter() - began)

    for i, (b, w) in enumerate(zip(loader_of(url, f"{work}/faults", cache_size=bound), want, strict=True)):
        wrong += digest(b) != w
        if i == len(want) // 2:
            cut = server.ask("count")["cut"]
            back = threading.Thread(target=restart)
            back.start()
    back.join()
    out["faults"] = {
        "cut": cut,
        "restarted_after_batch": len(want) // 2,
        "seconds_away": away[0],
        "wrong": wrong,
        "seconds": time.perf_counter() - began,
    }

    changed = f"{folder.name}/train/shard_00050.bin"
    server.ask(f"change?{changed}")
    seen, error = 0, ""
    try:
        for b, w in zip(loader_of(url, f"{work}/changed"), want, strict=True):
            seen += 1
            wrong += digest(b) != w
    except MemtrainError as e:
        error = str(e)
    out["changed"] = {
        "shard": changed,
        "error": error.replace(str(work), "…"),
        "batches_before": seen,
        "wrong": wrong,
        "verify": verify(url),
    }
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", default="100M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--serve", nargs="+")
    parser.add_argument("--measure", nargs=3)
    parser.add_argument("--dry", action="store_true", help="print, and save nothing")
    args = parser.parse_args()
    if args.serve:
        return serve(*args.serve)
    if args.measure:
        return measure(*args.measure)
    work = args.work or Path(tempfile.mkdtemp(prefix="memtrain-remote-"))
    data, ways = BenchData(work, int(parse_size(args.tokens))), args.only.split(",")
    if any(way.startswith("mosaic") for way in ways):
        import_peer("streaming")
    folders = {way: data.path(WAYS[way][1]) for way in ways}
    small = data.path("small")
    server = Server([*sorted({*folders.values()}), small])
    try:
        rows = {way: [] for way in [*ways, "here"]}
        with shared_memory_cleaned():
            for _ in range(args.rounds):
                for way in rows:
                    before = server.ask("count")
                    row = run(
                        "ours" if way == "here" else way,
                        str(folders["ours"]) if way == "here" else f"s3://{BUCKET}/{folders[way].name}",
                        work,
                        server.environ(),
                    )
                    after = server.ask("count")
                    rows[way].append(
                        {
                            **row,
                            "requests": after["asked"] - before["asked"],
                            "bytes": after["bytes"] - before["bytes"],
                        }
                    )
                    r = rows[way][-1]
                    print(
                        f"{way:16} {r['tokens'][0] / r['seconds'][0] / 1e6:7.1f}"
                        f" {r['tokens'][1] / r['seconds'][1] / 1e6:7.1f} M tokens/s, peak"
                        f" {format_size(r['peak'])} ({format_size(r['peak_own'])} its own), imported"
                        f" {format_size(r['base'])} ({format_size(r['base_own'])}), {r['requests']} requests,"
                        f" CPU {r['cpu_seconds'][0]:.1f} {r['cpu_seconds'][1]:.1f} s",
                        flush=True,
                    )
        with tempfile.TemporaryDirectory(dir=work) as folder:
            faults = try_faults(server, small, folder)
        print(json.dumps(faults, indent=1))
    finally:
        server.kill()
        if not args.work:
            shutil.rmtree(work, ignore_errors=True)
    import importlib.metadata as metadata

    values = {
        "tokens": data.tokens,
        "delay": DELAY,
        "rounds": args.rounds,
        "batch_size": BATCH,
        "block_size": BLOCK,
        "labels": {**{k: WAYS[k][0] for k in ways}, "here": "memtrain, the folder here"},
        "ways": rows,
        "median": {
            k: [statistics.median(r["tokens"][e] / r["seconds"][e] for r in v) for e in range(2)]
            for k, v in rows.items()
        },
        **faults,
        "versions": {
            p: metadata.version(p)
            for p in ("moto", "s3fs", "litdata", "mosaicml-streaming", "boto3", "obstore")
        },
    }
    if not args.dry:
        save_result(
            "remote",
            values,
            f"python benchmarks/remote.py --tokens {args.tokens} --rounds {args.rounds} --only {args.only}",
        )


if __name__ == "__main__":
    main()
