"""Fails every writer at every write, rename, fsync, unlink, mkdir and truncate that it makes, once each,
and looks at what is left.

A fault is an `error` of that one call, a disk that is `full` from there on, a `kill` in the middle of it,
or a `power` cut, which takes with it what wasn't synced. After each: what was whole is whole, nothing
foreign is left, and to run again ends in the bytes of a run that nothing disturbed."""

import argparse, builtins, collections, errno, functools, importlib, io, json, os, pathlib, shutil, signal
import sys, threading, time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import scenes
from forked import forked, run_command, scratch, told, warm_up

HOWS = "error", "full", "kill", "power"
GROWING = "open", "write", "mkdir", "fsync"  # what a full disk refuses
WITH_TORCH = "collect-traces"
TO_ANOTHER = "rename", "replace", "link", "symlink"  # which change the second of their paths
BY_PATH = "unlink", "remove", "rmdir", "mkdir", "truncate", *TO_ANOTHER
BY_FD = (
    "write",
    "pwrite",
    "writev",
    "pwritev",
    "ftruncate",
    "fsync",
    "fdatasync",
    "posix_fallocate",
    "sendfile",
)


class Faults:
    """Counts the calls by which this process changes what lies in `root`; call number `at` fails, in the
    manner of `how`"""

    def __init__(self, root: Path, how: str | None = None, at: int = -1):
        self.root, self.how, self.at = os.path.realpath(root) + os.sep, how, at
        self.calls: list[tuple[str, str]] = []  # what was called, on which path below the root
        self.lock = threading.RLock()
        self.synced: dict[int, int] = {}  # inode of what was written to its size at its last sync
        self.due = False  # the other half of a write fails

    def point(self, name: str, path, size: int = 0) -> int:
        "A call `name` on `path` is about to be made, to write `size` bytes; how many it may write"
        path = os.path.realpath(os.path.dirname(path)) + os.sep + os.path.basename(path)
        if not path.startswith(self.root):
            return size
        with self.lock:
            n = len(self.calls)
            self.calls.append((name, path[len(self.root) :]))
            if self.due and "write" in name:
                self.due = False
            elif n == self.at and size > 1:  # half of it is written, what comes then isn't
                self.due = True
                return size // 2
            elif n != self.at and not (self.how == "full" and n > self.at >= 0 and name in GROWING):
                return size
            if self.how in ("kill", "power"):
                self.die()
            number = errno.ENOSPC if name in GROWING else errno.EIO
            raise OSError(number, os.strerror(number), path)

    def die(self) -> None:
        "The end of this process; with the power, every file loses what was written behind its last sync"
        for o in Path(self.root).rglob("*") if self.how == "power" else ():
            if o.is_file() and (n := self.synced.get(o.stat().st_ino)) is not None:
                real["truncate"](o, n)
        os.kill(os.getpid(), signal.SIGKILL)

    def wrote(self, fd: int) -> None:
        "A file is about to be written to"
        s = os.fstat(fd)
        self.synced.setdefault(s.st_ino, s.st_size)

    def wrap_path(self, name: str) -> Callable:
        "The function `name` of os, which takes a path, with its faults"

        def call(path, *args, dir_fd=None, **kw):
            if isinstance(path, int):
                self.point(name, file_of(path))
            elif name in TO_ANOTHER:
                self.point(name, name_of(args[0], kw.get("dst_dir_fd")))
            else:
                self.point(name, name_of(path, dir_fd))
            return real[name](path, *args, **kw, **({} if dir_fd is None else {"dir_fd": dir_fd}))

        return call

    def wrap_fd(self, name: str) -> Callable:
        "The function `name` of os, which takes a descriptor, with its faults"

        def call(fd, *args):
            fd = fd if isinstance(fd, int) else fd.fileno()
            if "write" in name or name in ("ftruncate", "sendfile"):
                self.wrote(fd)
            if name in ("write", "pwrite"):
                return self.write(lambda part: real[name](fd, part, *args[1:]), name, fd, args[0])
            self.point(name, file_of(fd))
            done = real[name](fd, *args)
            if "sync" in name:
                self.synced.pop(os.fstat(fd).st_ino, None)
            return done

        return call

    def write(self, work: Callable, name: str, fd: int, data) -> int:
        "Do `work`, which writes to `fd`, with as much of `data` as a fault lets through"
        data = memoryview(data).cast("B")
        size = self.point(name, file_of(fd), len(data))
        done = work(data[:size])
        if size < len(data) and self.how in ("kill", "power"):
            self.die()
        return done

    def open_fd(self, path, flags, *args, dir_fd=None, **kw) -> int:
        "os.open, with its faults"
        if flags & (os.O_CREAT | os.O_TRUNC):
            self.point("open", name_of(path, dir_fd))
        return real["open"](path, flags, *args, dir_fd=dir_fd, **kw)

    def open_file(
        self,
        file,
        mode="r",
        buffering=-1,
        encoding=None,
        errors=None,
        newline=None,
        closefd=True,
        opener=None,
    ):
        "io.open, with the faults of what is opened to be written"
        if not set(mode) & set("wax+"):
            return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = FaultyFile(self, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom if "+" in mode else io.BufferedWriter
        binary = buffered(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        if "b" in mode:
            return binary
        text = io.TextIOWrapper(binary, encoding, errors, newline, buffering == 1)
        text.mode = mode
        return text

    def install(self) -> None:
        "From now on every such call of this process comes by here"
        real.update({k: getattr(os, k) for k in (*BY_PATH, *BY_FD, "open")})
        for k in BY_PATH:
            setattr(os, k, self.wrap_path(k))
        for k in BY_FD:
            setattr(os, k, self.wrap_fd(k))
        os.open = self.open_fd
        io.open = builtins.open = self.open_file
        # Python 3.10's paths took these when pathlib was imported
        if accessor := getattr(pathlib, "_normal_accessor", None):
            accessor.open = self.open_file
            for k in BY_PATH:
                if hasattr(accessor, k):
                    setattr(accessor, k, getattr(os, k))


class FaultyFile(io.FileIO):
    "A file opened to be written, each change of which is a point of `faults`"

    def __init__(self, faults: Faults, file, mode: str, closefd: bool, opener):
        if not isinstance(file, int) and not opener:
            faults.point("open", os.fsdecode(file))
        super().__init__(file, mode, closefd, opener)
        self.faults = faults
        faults.wrote(self.fileno())

    def write(self, data):
        self.faults.wrote(self.fileno())
        return self.faults.write(super().write, "write", self.fileno(), data)

    def truncate(self, size=None):
        self.faults.point("truncate", file_of(self.fileno()))
        return super().truncate(size)


def file_of(fd: int) -> str:
    "The path of what is open as `fd`"
    return os.readlink(f"/proc/self/fd/{fd}")


def name_of(path, dir_fd: int | None = None) -> str:
    "`path` as a string, behind that of the folder open as `dir_fd`"
    path = os.fsdecode(path)
    return path if dir_fd is None else os.path.join(file_of(dir_fd), path)


plain_open = io.open
real: dict[str, Callable] = {}


def disturbed(work: Callable, root: Path, how: str | None = None, at: int = -1) -> list:
    "Do `work` with a fault, in a child; the calls it has made"
    faults = Faults(root, how, at)
    faults.install()
    if status := told(work):
        sys.exit(status)
    return faults.calls


@dataclass
class Scene:
    "A command that writes in the folder `work`"

    run: Callable  # the command, in the folder above `work`
    again: Callable | None = None  # how it is resumed; by default the same
    start: Callable = lambda: None  # makes what is in `work` before
    # what must always be true of `work`; the more of it there is, the larger what it returns
    whole: Callable = lambda: None
    refuses: bool = False  # run again behind its end, it says so
    calls: list = field(default_factory=list)
    want: dict = field(default_factory=dict)


def memtrain(*argv: str) -> Callable:
    "A command as something to do"
    argv = [str(o) for o in argv]
    from memtrain.cli import COMMANDS
    from memtrain.command_line import CommandLine

    CommandLine(argv[0], COMMANDS[argv[0]]).parse(argv[1:])  # understood once, and remembered
    return functools.partial(run_command, argv)


def shards_held(noted: Callable, problems: Callable) -> Callable:
    "What a folder of shards holds, whole: a manifest, if there is one, tells the truth"

    def held():
        work = Path("work/it")
        if not work.exists():
            return set()
        try:
            shards = noted(work)
        except Exception as e:
            shards = e
        if isinstance(shards, Exception):
            from memtrain.core import MemtrainError

            if not isinstance(shards, MemtrainError):
                raise shards
            return set()
        if found := problems(work):
            raise AssertionError(found)
        return {(s["file"], o.stat().st_ino) for s in shards for o in work.glob(s["file"] + "*")}

    return held


def tokens_held() -> set:
    "Shards of the data set in `work`, finished or not"
    from memtrain.shards import MANIFEST, ShardWriter, read_manifest, verify

    def noted(work):
        if (work / MANIFEST).exists():
            if found := verify(work):
                raise AssertionError(found)
        done = read_manifest(work)["shards"] if (work / MANIFEST).exists() else []
        more = ShardWriter.find_unfinished(work, True, (work / MANIFEST).exists())
        return more["shards"] if more else done

    return shards_held(noted, lambda work: [])()


def traces_held() -> set:
    "Shards of the traces in `work`, finished or not"
    from memtrain.folders import UNFINISHED
    from memtrain.trace_files import TraceFolder, verify_traces

    def noted(work):
        if not (work / TraceFolder.manifest_name).exists():
            return TraceFolder.read_journal(work)["shards"] if (work / UNFINISHED).exists() else []
        if found := verify_traces(work):
            raise AssertionError(found)
        return TraceFolder.read_manifest(work)["shards"]

    return shards_held(noted, lambda work: [])()


def run_held() -> set:
    """Lines of the log that the newest checkpoint of the run in `work` stands behind: a run that is resumed
    doesn't make them again"""
    from memtrain.runs import Run

    if not Path("work/it/metrics.jsonl").exists():
        return set()
    with Run("work/it", resume=True) as run:
        found = run.load()
    if found is None:
        return set()
    last = found.get("epoch", found["iter"])
    lines = Path("work/it/metrics.jsonl").read_text().splitlines(keepends=True)
    return {o for o in lines if o.endswith("}\n") and json.loads(o)["iter"] <= last}


def tokens_kept() -> set:
    "The data set that was in `work` before is whole, in one form or the other"
    from memtrain.shards import TokenShards, verify

    if found := verify("work/it"):
        raise AssertionError(found)
    return {
        scenes.digest(TokenShards("work/it", split).read(0, len(TokenShards("work/it", split))).tobytes())
        for split in ("train", "val")
    }


def scenes_of() -> dict[str, Callable]:
    "All of them, by name: what makes each; those behind `WITH_TORCH` need it"
    from memtrain.shards import compress_shards, decompress_shards

    def copied(name):
        return lambda: shutil.copytree(name, "work/it")

    def packed():
        shutil.copytree("data", "work/it")
        compress_shards("work/it")

    def made(*argv, start=lambda: None, held=set, resume=("--resume",), **kw):
        return Scene(memtrain(*argv), memtrain(*argv, *resume), start, held, **kw)

    def layer_by_layer():
        for name in ("accelerate", "memtrain.layerwise", "transformers.models.mixtral.modeling_mixtral"):
            importlib.import_module(name)  # children have it, then

        def start():
            if not Path("moe").exists():
                scenes.build_mixture(Path("moe"))

        return made("collect-traces", *scenes.LAYERS, "--out_dir", "work", start=start)

    to = "--out_dir", "work/it"
    shard = "shard-traces", "--input_file", "traces.pkl", *to, "--shard_size_mb", "0.02"
    return {
        "prepare": lambda: made("prepare", "--input_files", "text", *to, *scenes.PREPARE, held=tokens_held),
        "prepare with a vocabulary": lambda: made(
            "prepare",
            "--input_files",
            "text",
            *to,
            *scenes.PREPARE[2:],
            "--vocab_size",
            "270",
            "--dedup_lines",
            held=tokens_held,
        ),
        "prepare --append": lambda: made(
            "prepare",
            "--input_files",
            "text",
            "more",
            *to,
            *scenes.PREPARE,
            "--append",
            start=copied("data"),
            held=tokens_held,
        ),
        "export": lambda: made("export", "data", "work/it", resume=(), refuses=True),
        "export --format llm.c": lambda: made(
            "export", "data", "work/it", "--format", "llm.c", resume=(), refuses=True
        ),
        "compress": lambda: Scene(lambda: compress_shards("work/it"), None, copied("data"), tokens_kept),
        "decompress": lambda: Scene(lambda: decompress_shards("work/it"), None, packed, tokens_kept),
        "shard-traces": lambda: made(*shard, held=traces_held),
        "shard-traces --format pkl": lambda: made(
            *shard, "--format", "pkl", "--group", "seed", held=traces_held
        ),
        "shard-traces --index_only": lambda: made(*shard, "--index_only", resume=()),
        "collect-traces": lambda: made(
            "collect-traces", *scenes.COLLECT, "--out_dir", "work", "--output_suffix", "it", refuses=True
        ),
        "collect-traces --shard_data": lambda: made(
            "collect-traces", *scenes.COLLECT, "--out_dir", "work", "--shard_data", "--shard_size_mb", "0.02"
        ),
        "collect-traces --model": layer_by_layer,
        "train": lambda: made(
            "train", "--dataset_dir", "data", *to, "--config_file", "small.json", *scenes.TRAIN, held=run_held
        ),
        "train-predictor": lambda: made("train-predictor", *scenes.PREDICT, *to, held=run_held),
        "wpo": lambda: made("wpo", *scenes.WPO, *to, held=run_held),
    }


def begin(scene: Scene) -> None:
    "The folder `work` as it is before"
    shutil.rmtree("work", ignore_errors=True)
    shutil.copytree("start", "work")


def look(scene: Scene, how: str, call: tuple, status: int) -> list[str]:
    "What is wrong behind a fault, and behind another run"
    wrong, work = [], Path("work")
    held = scene.whole()
    if how in ("error", "full"):
        if (left := scenes.foreign(work)) and call[0] not in ("unlink", "remove", "rmdir"):
            wrong.append(f"leaves {left}")
        if status == 0 and (now := scenes.contents(work)) != scene.want:
            wrong.append(f"says that all is well with {differences(now, scene.want)}")
    again = told(scene.again or scene.run)
    if again and not (scene.refuses and scenes.contents(work) == scene.want):
        wrong.append(f"run again it ends with {again}")
    elif (now := scenes.contents(work)) != scene.want:
        wrong.append(f"run again it ends in other bytes: {differences(now, scene.want)}")
    elif lost := held - scene.whole():
        wrong.append(f"made again what was there: {sorted(lost)[:3]}")
    return wrong


def differences(now: dict, want: dict) -> str:
    "Which files differ"
    return ", ".join(
        [f"{k} is missing" for k in want.keys() - now.keys()]
        + [f"{k} is too much" for k in now.keys() - want.keys()]
        + [f"{k} differs" for k in want.keys() & now.keys() if want[k] != now[k]]
    )


def short(said: str) -> str:
    "The lines of what a command said that tell of an error, and where it came from"
    lines = [o.strip() for o in said.splitlines()]
    return " / ".join(
        [o for o in lines if o.startswith('File "') and "/memtrain/" in o][-3:]
        + [o for o in lines if o.startswith("memtrain:")]
        + lines[-1:] * ("Traceback" in said)
    )


def try_point(scene: Scene, how: str, at: int) -> list[str]:
    "What is wrong when call number `at` fails"
    begin(scene)
    done = forked(disturbed, scene.run, Path("work"), how, at)
    if how in ("kill", "power"):
        # 0: threads came in another order, and there were fewer calls
        if done.status not in (-signal.SIGKILL, 0):
            return [f"wasn't killed but ended with {done.status}: {short(done.said)}"]
    elif done.status not in (0, 1) or "Traceback" in done.said:
        return [f"ended with {done.status}: {short(done.said)}"]
    after = forked(look, scene, how, scene.calls[at], done.status)
    if after.status:
        return [f"behind it, {after.status}: {short(after.said)}"]
    return [f"{o}; {short(done.said)} | {short(after.said)}" for o in after.value]


def try_scene(name: str, scene: Scene, hows: tuple, every: int = 1, first: int = 0) -> dict:
    "Undisturbed, then with each fault; what was tried and what is wrong"
    shutil.rmtree("start", ignore_errors=True)
    shutil.rmtree("work", ignore_errors=True)
    os.mkdir("work")
    if (done := forked(scene.start)).status:
        raise SystemExit(done.said)
    os.rename("work", "start")
    begin(scene)
    done = forked(disturbed, scene.run, Path("work"))
    if done.status:
        raise SystemExit(f"{name}: {done.status} undisturbed\n{done.said}")
    scene.calls, scene.want = done.value, forked(scenes.contents, Path("work")).value
    tried, wrong = collections.Counter(), []
    for i, (at, how) in enumerate(
        (at, how)
        for at in range(len(scene.calls))
        for how in hows
        if how != "full" or scene.calls[at][0] in GROWING
    ):
        if i % every != first % every:
            continue
        tried[how] += 1
        wrong += [
            f"{name}, {how} at {at}, {' '.join(scene.calls[at])}: {o}" for o in try_point(scene, how, at)
        ]
    return {
        "points": len(scene.calls),
        "calls": dict(collections.Counter(k for k, _ in scene.calls)),
        "tried": dict(tried),
        "wrong": wrong,
    }


def main() -> int:
    "Try what the command line names; the figures go to `results/faults.json` when all of it was tried"
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("scenes", nargs="*", help="which commands; all by default")
    p.add_argument("--every", type=int, default=1, help="try one fault of so many")
    p.add_argument("--first", type=int, default=0, help="the number of the first")
    p.add_argument("--how", nargs="*", default=HOWS, choices=HOWS)
    p.add_argument("--save", action="store_true", help="keep the figures although not all was tried")
    o = p.parse_args()
    home, base = Path.cwd(), scratch("faults")
    try:
        warm_up(all=False)  # a small process forks in no time
        if (done := forked(lambda: (warm_up(), scenes.build(base)), seconds=600)).status:
            raise SystemExit(done.said)
        os.chdir(base)
        found = {}
        for name, make in scenes_of().items():
            if name == WITH_TORCH:
                warm_up()
            if o.scenes and name not in o.scenes:
                continue
            scene = make()
            started = time.monotonic()
            r = found[name] = try_scene(name, scene, tuple(o.how), o.every, o.first)
            print(
                f"{name}: {r['points']} calls, {sum(r['tried'].values())} faults, {len(r['wrong'])} wrong,"
                f" {time.monotonic() - started:.0f} s",
                flush=True,
            )
            for line in r["wrong"]:
                print("  " + line, flush=True)
    finally:
        os.chdir(home)
        shutil.rmtree(base, ignore_errors=True)
    lost = sum(len(r["wrong"]) for r in found.values())
    if o.save or not o.scenes and o.every == 1 and set(o.how) == set(HOWS):
        from memtrain.core import save_result

        save_result(
            "faults",
            {
                k: {**{f: r[f] for f in ("points", "calls", "tried")}, "lost": len(r["wrong"])}
                for k, r in found.items()
            },
            "make faults" if o.every == 1 else f"python tools/faults.py --every {o.every} --save",
        )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
