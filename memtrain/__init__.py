"Train what doesn't fit: memory-efficient training, taught and measured"

__version__ = "0.1.0"

from importlib import import_module as _import
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what follows here is what `memtrain.NAME` gives, each imported when it is first asked for
    from .core import MemtrainError
    from .lazypickle import iter_pickle
    from .loader import TokenLoader
    from .measure import measure_peak, track_memory
    from .model import GPT, GPTConfig
    from .own_kernels import keeps
    from .settings import TrainConfig
    from .shards import ShardWriter, TokenShards
    from .stream import TokenStream
    from .trace_files import TraceWriter, shard_traces
    from .traces import TraceShards
    from .train import Trainer, chunked_cross_entropy
    from .weights import load_run
    from .wpo import FactorNet, ism_loss

_HOMES = {
    "core": "MemtrainError",
    "lazypickle": "iter_pickle",
    "loader": "TokenLoader",
    "measure": "measure_peak track_memory",
    "model": "GPT GPTConfig",
    "own_kernels": "keeps",
    "settings": "TrainConfig",
    "shards": "ShardWriter TokenShards",
    "stream": "TokenStream",
    "trace_files": "TraceWriter shard_traces",
    "traces": "TraceShards",
    "train": "Trainer chunked_cross_entropy",
    "weights": "load_run",
    "wpo": "FactorNet ism_loss",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_ROOMS = (
    "bench cli devices estimate explain formats plan prepare routing simulate text tokenization".split()
)  # whose main function is called as they are: memtrain.plan.plan
_NAMES = list(_HOME) + sorted(set(_HOMES).union(_ROOMS))


def __getattr__(name):
    if name in _HOME:
        found = getattr(_import(f".{_HOME[name]}", __name__), name)
    elif name in _NAMES:
        found = _import(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def load_ipython_extension(shell):
    "What `%load_ext memtrain` calls: `shell` then knows `%memtrain` and `%%memtrain`"
    _import(".notebook", __name__).add_magic(shell)


def __dir__():
    return [*_NAMES, "__version__"]
