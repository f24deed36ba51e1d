"Work in forked children of one warm process: started at once, watched, and what they said and made is known."

import atexit, functools, gc, os, pickle, select, signal, sys, tempfile, traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable


@dataclass
class Done:
    "What became of a child"

    # exit status, minus the signal that ended it; None if it was ended since it took too long
    status: int | None
    said: str  # on both its outputs
    value: Any = None  # what its work returned


class Child:
    """A fork of this process that does `work`, whose exit status is 0 unless it raises, or tells another by
    `sys.exit`"""

    def __init__(self, work: Callable, *args: Any):
        self.out, self.made = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        for o in (sys.stdout, sys.stderr):
            o.flush()
        self.pid = os.fork()
        if self.pid:
            return
        status, self.kept = 1, (sys.stdout, sys.stderr)  # or they would close their descriptors
        try:
            for fd in (1, 2):
                os.dup2(self.out.fileno(), fd)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)
            value, status = work(*args), 0
            with open(self.made.fileno(), "wb", closefd=False) as f:
                pickle.dump(value, f)
        except SystemExit as e:
            status = e.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()  # as the process of a command would
            for o in (sys.stdout, sys.stderr):
                try:
                    o.flush()
                except Exception:
                    pass
            os._exit(status)

    def wait(self, seconds: float = 60) -> Done:
        "What became of it, at most `seconds` from now"
        fd = os.pidfd_open(self.pid)
        timely = bool(select.select([fd], [], [], seconds)[0])
        os.close(fd)
        if not timely:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for f in (self.out, self.made):
            f.seek(0)
        said, made = self.out.read().decode(errors="replace"), self.made.read()
        self.out.close()
        self.made.close()
        return Done(status if timely else None, said, pickle.loads(made) if made and not status else None)


def forked(work: Callable, *args: Any, seconds: float = 60) -> Done:
    "Do `work` in a child, to its end"
    return Child(work, *args).wait(seconds)


_understood: dict = {}


def warm_up(all: bool = True) -> None:
    """Import what the commands need, so that children have it, or `all` but what needs torch; command lines
    are understood once, and torch keeps to one thread"""
    import tyro
    import memtrain.command_line as command_line
    import memtrain.cli, memtrain.formats, memtrain.prepare, memtrain.traces

    if not _understood:
        understand = _understood["really"] = tyro.cli

        def remember(*given, args, prog, **kw):
            if (key := (prog, *args)) not in _understood:
                _understood[key] = understand(*given, args=args, prog=prog, **kw)
            return _understood[key]

        tyro.cli = remember
        command_line.read_flags = functools.cache(command_line.read_flags)
    if all:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        import torch, torch._dynamo, torch.utils.data
        import memtrain.mixtures, memtrain.routing, memtrain.stream, memtrain.train, memtrain.wpo_train

        torch.set_num_threads(1)
        # these two write nothing and would take most of a run's seconds
        memtrain.train.sample_text.__defaults__ = 3, 0.8
        memtrain.wpo_train.WPOTrainer.judge.__defaults__ = (64,)
    gc.freeze()  # children don't look through, and so don't copy, what is here


def run_command(argv: list[str]) -> None:
    "`memtrain` with `argv`, ending with its exit status"
    from memtrain.cli import main

    sys.exit(main(argv))


def told(work: Callable) -> int:
    "The exit status of a command, or of a function that has none of its own: 1 for an error that is ours"
    from memtrain.core import MemtrainError

    try:
        work()
    except SystemExit as e:
        return e.code or 0
    except MemtrainError as e:
        print(f"memtrain: {e}", file=sys.stderr)
        return 1
    return 0


def scratch(prefix: str) -> Path:
    "A new folder, in memory where there is such a place: what is tried is order, not the disk"
    return Path(
        tempfile.mkdtemp(
            prefix=f"memtrain-{prefix}-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
    )
