"""Python in a process of its own without waiting for its imports: `subprocess.run` of this interpreter forks from one that has torch loaded.

Half of the seconds of a test run went into children that import the same. What a child must not share stays with a fresh process: `subprocess.Popen`,
a limit or a handler that is set before it starts, and code that looks at what is imported or at the memory of its process."""

import multiprocessing, os, re, runpy, signal, subprocess, sys, tempfile, types

PRELOAD = (
    "numpy",
    "torch",
    "torch.utils.data",
    "torch._dynamo",
    "tokenizers",
    "tyro",
    "memtrain.train",
    "memtrain.cli",
)
FRESH = re.compile(r"sys\.modules|rss|VmHWM|getrusage|tracemalloc|setrlimit|import_module|faulthandler")
UNDERSTOOD = {"capture_output", "text", "cwd", "env", "timeout", "check", "encoding", "stdout", "stderr"}
really_run = subprocess.run


def can_fork(args, kwargs) -> bool:
    "Whether a child that was asked for by `subprocess.run(args, **kwargs)` may come from the server."
    if os.name != "posix" or not isinstance(args, (list, tuple)) or len(args) < 3 or set(kwargs) - UNDERSTOOD:
        return False
    if any(
        kwargs.get(k)
        not in (None, subprocess.PIPE, subprocess.DEVNULL, *[subprocess.STDOUT] * (k == "stderr"))
        for k in ("stdout", "stderr")
    ):
        return False
    env, cwd = kwargs.get("env") or os.environ, kwargs.get("cwd") or "."
    # another memtrain
    if (
        env.get("PYTHONPATH") != os.environ.get("PYTHONPATH")
        or os.path.isdir(os.path.join(cwd, "memtrain"))
        and not os.path.samefile(cwd, ".")
    ):
        return False
    args = [str(o) for o in args]
    return (
        args[0] == sys.executable
        and args[1] in ("-c", "-m")
        and not (args[1] == "-m" and args[2] != "memtrain")
        and not any(map(FRESH.search, args))
    )


def child(args, cwd, env, out, err):
    "What the forked process does: what `python -c …` or `python -m …` would."
    for name, fd in ((os.devnull, 0), (out, 1), (err, 2)):
        opened = os.open(name, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        open(0),
        open(1, "w"),
        open(2, "w", buffering=1, errors="backslashreplace"),
    )
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    more = [o for o in env.get("PYTHONPATH", "").split(os.pathsep) if o]
    sys.path[:] = ["" if args[0] == "-c" else str(cwd), *more, *(o for o in sys.path if o not in more)]
    if "OMP_NUM_THREADS" in env:
        sys.modules["torch"].set_num_threads(int(env["OMP_NUM_THREADS"]))
    sys.modules.pop("__mp_main__", None)
    if args[0] == "-c":
        sys.argv = ["-c", *args[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(args[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = list(args[1:])
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)


def server():
    "The context whose processes are forked from a server with `PRELOAD` imported."
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    return context


def start_child(args, timeout, context=None) -> int | None:
    """The exit status of `child(*args)` in a process of `context`, the server's by default; None where it
    took longer than `timeout` seconds, and was ended."""
    process = (context or server()).Process(target=child, args=args)
    process.start()
    process.join(timeout)
    if process.exitcode is not None:
        return process.exitcode
    process.kill()
    process.join()


def open_nursery():
    """A function like `start_child`, whose children are forked from a copy of this process as it is now, imports and all.

    For a process that has run nothing yet: later it has threads, and can't be forked."""
    here, there = multiprocessing.Pipe()
    if os.fork():
        there.close()

        def start(args, timeout):
            here.send((args, timeout))
            return here.recv()

        return start
    here.close()
    while True:
        try:
            asked = there.recv()
        except EOFError:
            os._exit(0)
        there.send(start_child(*asked, multiprocessing.get_context("fork")))


def run(*popenargs, start=start_child, **kwargs):
    """`subprocess.run`, from the server or the nursery that `start`s its children where that makes no
    difference but to the time it takes."""
    args = popenargs[0] if len(popenargs) == 1 else kwargs.get("args")
    if args is None or not can_fork(args, {k: v for k, v in kwargs.items() if k != "args"}):
        return really_run(*popenargs, **kwargs)
    caught = {
        k: kwargs.get("capture_output") or kwargs.get(k) == subprocess.PIPE for k in ("stdout", "stderr")
    }
    with tempfile.TemporaryDirectory() as d:
        names = {k: os.path.join(d, "stdout" if kwargs.get(k) == subprocess.STDOUT else k) for k in caught}
        for o in names.values():
            open(o, "w").close()
        env = dict(os.environ if kwargs.get("env") is None else kwargs["env"])
        said = (
            [str(o) for o in args[1:]],
            str(kwargs.get("cwd") or os.getcwd()),
            {str(k): str(v) for k, v in env.items()},
            *names.values(),
        )
        status = start(said, kwargs.get("timeout"))
        if status is None:
            raise subprocess.TimeoutExpired(args, kwargs["timeout"])
        said = {k: open(o, "rb").read() for k, o in names.items()}
    for k in said:
        if not caught[k] and kwargs.get(k) not in (subprocess.DEVNULL, subprocess.STDOUT):
            getattr(sys, k).write(said[k].decode(errors="replace"))
    if kwargs.get("text") or kwargs.get("encoding"):
        said = {k: v.decode(kwargs.get("encoding") or "utf-8", "replace") for k, v in said.items()}
    done = subprocess.CompletedProcess(
        args, status, *(said[k] if caught[k] else None for k in ("stdout", "stderr"))
    )
    if kwargs.get("check"):
        done.check_returncode()
    return done
