"""Faults, races and inputs that no writer wrote: a few of those that `make faults`, `make races` and
`make fuzz` try, and every input that was found once.

All in one process that has torch loaded and forks, since each fault takes a process of its own: 5 to
15 seconds a kind."""

import json, os, re, subprocess, sys, textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"),
    reason="needs Linux: a child is watched by its pidfd, and its memory by /proc",
)
ROOT = Path(__file__).resolve().parents[1]
RACES = (
    "prepare, another prepare",
    "train --resume, another train --resume",
    "--append, another --append",
    "--append, compress",
)
WORK = f"""
import json, os, shutil, sys
sys.path.insert(0, {str(ROOT / "tools")!r})
import faults, forked, fuzz, races, scenes
base = forked.scratch('tests')
try:
    forked.warm_up()
    scenes.build(base)
    for part in sys.stdin:
        found = []
        exec(json.loads(part))
        print('\\n' + json.dumps(found), 'found', flush=True)
finally:
    os.chdir('/')
    shutil.rmtree(base, ignore_errors=True)
"""


@pytest.fixture(scope="module")
def found_by():
    """What is wrong, as the lines of a part find it in a folder with what the commands need; one process
    serves all parts, since it takes seconds to be ready"""
    child = subprocess.Popen(
        [sys.executable, "-c", WORK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )

    def find(part):
        child.stdin.write(json.dumps(textwrap.dedent(part)) + "\n")
        child.stdin.flush()
        said = []
        for line in child.stdout:
            if line.endswith(" found\n"):
                return json.loads(line.removesuffix(" found\n"))
            said.append(line)
        raise AssertionError("".join(said)[-6000:])

    yield find
    child.stdin.close()
    child.wait(60)


def test_a_writer_that_fails_at_any_call_loses_nothing(found_by):
    tried = found_by("""
        for i, (name, make) in enumerate(faults.scenes_of().items()):
            found.append(faults.try_scene(name, make(), faults.HOWS, every=149, first=7*i))
    """)
    assert [o["wrong"] for o in tried if o["wrong"]] == []
    calls = [o["points"] for o in tried]
    assert min(calls) >= 10 and sum(calls) > 1000  # those that could fail are seen


def test_of_two_writers_in_a_folder_none_is_lost(found_by):
    wrong = found_by(f"""
        all_races = races.races()
        for name in {RACES!r}:
            found += races.try_race(name, all_races[name], 2)['wrong']
    """)
    assert wrong == []


def test_what_was_found_once_is_told_in_seconds_and_in_megabytes(found_by):
    assert found_by("found = fuzz.corpus(fuzz.build(base))") == {}


def test_what_no_writer_wrote_is_told_in_seconds_and_in_megabytes(found_by):
    wrong = found_by("""
        tried = fuzz.fuzz(fuzz.build(base), 20, seed=1)
        found = {k: list(r['findings'].values()) for k, r in tried.items() if r['findings']}
    """)
    assert wrong == {}


def test_calls_that_change_a_folder_are_all_seen(tmp_path):
    code = f"""
import json, os, shutil, sys
sys.path.insert(0, {str(ROOT / "tools")!r})
from pathlib import Path
import faults
f = faults.Faults('.')
f.install()
Path('a').mkdir()
Path('a/b').write_text('x')
with open('a/c', 'wb', buffering=0) as o: o.write(b'y'); o.truncate(0)
with open('a/c', 'ab') as o: o.write(b'z'); o.flush(); os.fsync(o.fileno())
os.replace('a/c', 'a/d'); Path('a/d').rename('a/e')
fd = os.open('f', os.O_CREAT | os.O_WRONLY); os.write(fd, b'1'); os.pwrite(fd, b'2', 0)
os.ftruncate(fd, 0); os.close(fd)
shutil.copyfile('f', 'g')
Path('f').unlink(); shutil.rmtree('a')
print(json.dumps([k for k, _ in f.calls]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(done.stdout) == [
        "mkdir",
        "open",
        "write",
        "open",
        "write",
        "truncate",
        "open",
        "write",
        "fsync",
        "replace",
        "rename",
        "open",
        "write",
        "pwrite",
        "ftruncate",
        "open",
        "sendfile",
        "unlink",
        "unlink",
        "unlink",
        "rmdir",
    ], done.stderr


def test_every_promise_names_tests_that_are_there():
    page = json.loads((ROOT / "nbs/reference/75_rely.ipynb").read_text(encoding="utf-8"))
    named = {
        name
        for c in page["cells"]
        if c["cell_type"] == "markdown"
        for name in re.findall(r"`(test_\w+)`", "".join(c["source"]))
    }
    there = {
        name
        for o in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", o.read_text(encoding="utf-8"), re.M)
    }
    assert len(named) > 40 and not named - there
