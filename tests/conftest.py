"What pytest has to know about tests that come from notebooks."

import inspect, os

os.environ.setdefault("MPLBACKEND", "Agg")  # before matplotlib is imported: no test opens a window
# before torch is imported: threads that wait leave the cores to the processes that tests start
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest


def pytest_pycollect_makeitem(collector, name, obj):
    "Leave out functions that only live here by a star import, such as fastcore's `test_eq`."
    if not inspect.isfunction(obj) or not name.startswith("test"):
        return None
    module = getattr(collector, "module", None)
    home = getattr(inspect.unwrap(obj), "__module__", None)
    return [] if module is not None and home != module.__name__ else None


def pytest_collection_modifyitems(items):
    "Skip `cuda` tests on a machine without a CUDA device."
    cuda = [o for o in items if o.get_closest_marker("cuda")]
    if not cuda:
        return
    import torch

    if torch.cuda.is_available():
        return
    for o in cuda:
        o.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
