"""A process that has imported torch and memtrain, and runs in forks of itself what a test needs processes
for: the imports take longer than most tests do. There is one for each process that asks, until that ends."""

import atexit, functools, gc, json, os, signal, subprocess, sys, tempfile, traceback
from dataclasses import dataclass
from pathlib import Path

# what every rank of a training run imports sooner or later
IMPORTS = """
import torch, torch._dynamo, torch.distributed.checkpoint.state_dict, torch.distributed.fsdp
import torch.nn.parallel, torch.utils.data
import memtrain.cli, memtrain.ranks, memtrain.train, memtrain.wpo_train
"""
COMMAND = "import sys; from memtrain.cli import main; sys.exit(main(sys.argv[1:]))"


@dataclass
class Ran:
    "What forks have done, in their order"

    statuses: list[int]  # exit statuses; minus the signal that ended one
    stdout: list[str]
    stderr: list[str]


def run_forks(
    n: int,  # that run side by side
    code: str,  # each runs it as `python -c` would
    argv: list = (),  # its `sys.argv[1:]`
    cwd: str | Path = ".",
    imports: str = "",  # lines to run before, once
    timeout: int = 300,  # seconds
) -> Ran:
    "Run `code` in `n` forks; several are told what torchrun tells its ranks"
    with tempfile.TemporaryDirectory() as said:
        job = dict(n=n, code=code, argv=[*map(str, argv)], cwd=str(Path(cwd).resolve()))
        server = _server()
        server.stdin.write(json.dumps({**job, "imports": imports, "timeout": timeout, "said": said}) + "\n")
        server.stdin.flush()
        told = server.stdout.readline()
        assert told, f"the warm process has ended: {server.wait()}"
        read = lambda name: [(Path(said) / f"{name}{i}").read_text() for i in range(n)]
        return Ran(json.loads(told), read("out"), read("err"))


@functools.cache
def _server():
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(root), str(root / "tools"), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-c", "import warm; warm.serve()"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end():
        server.stdin.close()
        server.wait()

    atexit.register(end)
    return server


def serve() -> None:
    "Do the jobs on standard input, a line each, and write the exit statuses"
    exec(IMPORTS, {})
    import memtrain.train

    memtrain.train.sample_text.__defaults__ = 3, 0.8  # tokens: it would take most of a short run's seconds
    for line in sys.stdin:
        job = json.loads(line)
        exec(job["imports"], {})
        gc.freeze()  # forks don't look through, and so don't copy, what is here
        port = _free_port()
        pids = [os.fork() or _work(job, rank, port) for rank in range(job["n"])]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(statuses), flush=True)


def _free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _work(job, rank, port):
    "What a fork does; it never returns"
    status = 1
    try:
        signal.alarm(job["timeout"])  # of which it dies, where others wait for one that has failed
        files = [open(f"{job['said']}/{name}{rank}", "w", buffering=1) for name in ("out", "err")]
        for fd, file in enumerate(files, 1):
            os.dup2(file.fileno(), fd)
        sys.stdin, sys.stdout, sys.stderr = open(os.devnull), *files
        if job["n"] > 1:
            known = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=job["n"], LOCAL_WORLD_SIZE=job["n"])
            known |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            os.environ.update({k: str(v) for k, v in known.items()})
        os.chdir(job["cwd"])
        sys.argv = ["-c", *job["argv"]]
        exec(job["code"], {"__name__": "__main__"})
        status = 0
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else bool(e.code)
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for o in (sys.stdout, sys.stderr):
            o.flush()
        os._exit(status)
