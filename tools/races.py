"""Starts two commands that meet in a folder, one behind the other by every twentieth of the time they
take, and looks at what comes of both.

What two commands may leave is what they leave one after the other, or one of them alone where the other is
refused: never two that succeed and one lost, never both refused and the data gone that was there before,
never half of anything."""

import argparse, itertools, os, shutil, sys, time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import faults, scenes
from faults import memtrain
from forked import Child, forked, scratch, told, warm_up

IT = "work/run_traces_it"  # a name that `collect-traces` can be told to use
OFFSETS = 20
o_verbose = bool(os.environ.get("V"))


@dataclass
class Race:
    "Two commands in a folder"

    one: Callable
    other: Callable
    start: Callable = lambda: None


def begun(run: Callable, share: float) -> Callable:
    "What a command leaves when it is killed behind a `share` of its calls"

    def start():
        calls = forked(faults.disturbed, run, Path("work")).value
        shutil.rmtree("work")
        os.mkdir("work")
        forked(faults.disturbed, run, Path("work"), "kill", int(len(calls) * share))

    return start


def races() -> dict[str, Race]:
    "All pairs"
    from memtrain.shards import compress_shards, decompress_shards

    to = "--out_dir", IT + "_shards"
    it = to[1]

    def prepare(text, *more):
        return memtrain("prepare", "--input_files", *text.split(), *to, *scenes.PREPARE, *more)

    def train(lr, *more):
        return memtrain(
            "train",
            "--dataset_dir",
            "data",
            *to,
            "--config_file",
            "small.json",
            *scenes.TRAIN,
            "--lr",
            lr,
            *more,
        )

    def wpo(lr, *more):
        return memtrain("wpo", *scenes.WPO, *to, "--lr", lr, *more)

    def predictor(lr, *more):
        return memtrain("train-predictor", *scenes.PREDICT, *to, "--lr", lr, *more)

    def shard(size, *more):
        return memtrain("shard-traces", "--input_file", "traces.pkl", *to, "--shard_size_mb", size, *more)

    def collect(size, *more):
        return memtrain(
            "collect-traces",
            *scenes.COLLECT,
            "--out_dir",
            "work",
            "--output_suffix",
            "it",
            "--shard_data",
            "--shard_size_mb",
            size,
            *more,
        )

    def export(form, source="data", dest=it):
        return memtrain("export", source, dest, "--format", form)

    writers = {
        "prepare": (prepare("text"), prepare("other")),
        "export": (export("nanogpt"), export("llm.c")),
        "shard-traces": (shard("0.02"), shard("0.03")),
        "collect-traces": (collect("0.02"), collect("0.03")),
        "train": (train("0.001"), train("0.002")),
        "train-predictor": (predictor("0.001"), predictor("0.002")),
        "wpo": (wpo("0.001"), wpo("0.002")),
    }
    found = {f"{a}, another {a}": Race(*pair) for a, pair in writers.items()}
    found |= {f"{a}, {b}": Race(writers[a][0], writers[b][0]) for a, b in itertools.combinations(writers, 2)}
    resumed = {
        "prepare": (prepare("text", "--resume"), prepare("other", "--resume"), 0.5),
        "shard-traces": (shard("0.02", "--resume"), shard("0.03", "--resume"), 0.5),
        "collect-traces": (collect("0.02", "--resume"), collect("0.03", "--resume"), 0.5),
        "train": (train("0.001", "--resume"), train("0.002", "--resume"), 0.7),
        "train-predictor": (predictor("0.001", "--resume"), predictor("0.002", "--resume"), 0.6),
        "wpo": (wpo("0.001", "--resume"), wpo("0.002", "--resume"), 0.7),
    }
    for a, (one, other, share) in resumed.items():
        found[f"{a} --resume twice"] = Race(one, one, begun(one, share))
        found[f"{a} --resume, another {a} --resume"] = Race(one, other, begun(one, share))
    append, another = (
        prepare("text more", "--append", "--resume"),
        prepare("text other", "--append", "--resume"),
    )

    def data():
        shutil.copytree("data", it)

    def compressed():
        data()
        compress_shards(it)

    def growing():
        data()
        begun_append()

    def begun_append():
        forked(faults.disturbed, append, Path("work"), "kill", 50)

    def squeeze():
        compress_shards(it)

    def unpack():
        decompress_shards(it)

    found |= {
        "--append, another --append": Race(append, another, data),
        "--append twice": Race(append, append, data),
        "--append --resume twice": Race(append, append, growing),
        "--append --resume, another": Race(append, another, growing),
        "--append, compress": Race(append, squeeze, data),
        "--append, decompress": Race(append, unpack, compressed),
        "compress twice": Race(squeeze, squeeze, data),
        "compress, decompress": Race(squeeze, unpack, data),
        "decompress twice": Race(unpack, unpack, compressed),
        "--append, export of it": Race(append, export("nanogpt", it, "work/out"), data),
        "compress, export of it": Race(squeeze, export("nanogpt", it, "work/out"), data),
        "decompress, export of it": Race(unpack, export("nanogpt", it, "work/out"), compressed),
    }
    return found


def begin(start: Callable) -> None:
    "The folder `work` as it is before"
    shutil.rmtree("work", ignore_errors=True)
    os.mkdir("work")
    if (done := forked(start)).status:
        raise SystemExit(done.said)


def look() -> tuple:
    "What is in `work`, and what a data set there says of itself"
    from memtrain.shards import MANIFEST, verify

    broken = [line for o in Path("work").iterdir() if (o / MANIFEST).exists() for line in verify(o)]
    return (
        {k: v for k, v in scenes.contents(Path("work")).items() if "/." not in k},
        scenes.foreign(Path("work")),
        broken,
    )


def one_behind_the_other(race: Race, order: tuple) -> tuple:
    "(exit statuses, contents, seconds of each) when each waits for the one before"
    begin(race.start)
    status, seconds = {}, {}
    for k in order:
        started = time.monotonic()
        done = forked(told, (race.one, race.other)[k])
        if done.status:
            raise SystemExit(f"{done.status}: {done.said}")
        status[k], seconds[k] = done.value, time.monotonic() - started
    return status, forked(look).value[0], seconds


def try_race(name: str, race: Race, offsets: int = OFFSETS) -> dict:
    "What came of it at each offset, and what is wrong"
    begin(race.start)
    before, begun_before, _ = forked(look).value
    allowed, seconds = [(1, 1, before)], {0: 0, 1: 0}
    for order in ((0,), (1,), (0, 1), (1, 0)):
        status, left, took = one_behind_the_other(race, order)
        allowed.append((status.get(0, 1), status.get(1, 1), left))
        if len(order) == 1:
            seconds |= took
    ended, wrong = {"both": 0, "one": 0, "neither": 0}, []
    for i in range(offsets):
        first = i % 2
        pair = (race.one, race.other) if not first else (race.other, race.one)
        begin(race.start)
        offset = seconds[first] * (i // 2) / max(1, offsets // 2)
        a = Child(told, pair[0])
        time.sleep(offset)
        b = Child(told, pair[1])
        done = (a.wait(), b.wait())
        done = done if not first else done[::-1]
        at = f"{name}, {'the other' if first else 'the one'} {offset * 1000:.0f} ms ahead"
        said = " | ".join(" ".join(d.said.split())[-500:] for d in done)
        if any(d.status for d in done):
            wrong.append(f"{at}: {[d.status for d in done]} {said}")
            continue
        looked = forked(look)
        if looked.status:
            wrong.append(f"{at}: {looked.said[-1000:]}")
            continue
        left, foreign, broken = looked.value
        one, other = (d.value for d in done)
        if one and other and o_verbose:
            print("   ", at, said)
        ended[("neither", "one", "both")[(not one) + (not other)]] += 1
        if foreign and not begun_before:
            wrong.append(f"{at}: leaves {foreign}")
        if broken:
            wrong.append(f"{at}: {broken}")
        if (one, other, left) not in allowed:
            wrong.append(
                f"{at}: ended with {one} and {other}, and left what they don't leave one behind the other;"
                f" {said}; "
                + min(
                    (faults.differences(left, w) for a, b, w in allowed if (a, b) == (one, other)),
                    key=len,
                    default="no such ends",
                )
            )
    return {"offsets": offsets, "ended": ended, "wrong": wrong}


def main() -> int:
    "Run the races that the command line names; the figures go to `results/races.json` when all were run"
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("races", nargs="*", help="which; all by default")
    p.add_argument("--offsets", type=int, default=OFFSETS)
    o = p.parse_args()
    home, base = Path.cwd(), scratch("races")
    found = {}
    try:
        warm_up()
        scenes.build(base)
        for name, race in races().items():
            if o.races and name not in o.races:
                continue
            started = time.monotonic()
            r = found[name] = try_race(name, race, o.offsets)
            print(
                f"{name}: {r['ended']}, {len(r['wrong'])} wrong, {time.monotonic() - started:.0f} s",
                flush=True,
            )
            for line in r["wrong"]:
                print("  " + line, flush=True)
    finally:
        os.chdir(home)
        shutil.rmtree(base, ignore_errors=True)
    if not o.races and o.offsets >= OFFSETS:
        from memtrain.core import save_result

        save_result(
            "races",
            {k: {"offsets": r["offsets"], **r["ended"], "wrong": len(r["wrong"])} for k, r in found.items()},
            "make races",
        )
    return 1 if any(r["wrong"] for r in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
