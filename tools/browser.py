"""A headless Chromium, driven through its own protocol: what the checks of the site need to open a page,
press keys and measure."""

import json, os, shutil, subprocess, tempfile, time
from pathlib import Path

NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-dev-shm-usage "
    "--remote-debugging-port=0 --remote-allow-origins=*"
)
KEYS = dict(Tab=9, Enter=13, Space=32, ArrowLeft=37, ArrowUp=38, ArrowRight=39, ArrowDown=40)


def find_browser() -> str | None:
    "The Chromium that is installed here; `CHROMIUM` in the environment names another."
    return os.environ.get("CHROMIUM") or next((o for o in map(shutil.which, NAMES) if o), None)


class Browser:
    "One tab. `with Browser() as b: b.open(url, width=390); b.run('document.title')`"

    def __enter__(self):
        from websocket import create_connection

        self.n, self.events, self.session = 0, [], None
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        args = [find_browser(), *FLAGS.split(), f"--user-data-dir={self.home.name}", "about:blank"]
        self.process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port, end = Path(self.home.name) / "DevToolsActivePort", time.monotonic() + 60
        while not (port.exists() and port.read_text().count("\n")):
            if time.monotonic() > end or self.process.poll() is not None:
                self.__exit__()
                raise OSError(f"{args[0]} didn't start")
            time.sleep(0.02)
        number, path = port.read_text().split()
        self.socket = create_connection(f"ws://127.0.0.1:{number}{path}", timeout=60)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for o in ("Page", "Runtime", "Network"):
            self.send(f"{o}.enable")
        return self

    def __exit__(self, *_):
        if hasattr(self, "socket"):
            self.socket.close()
        self.process.kill()
        self.process.wait()
        self.home.cleanup()

    def send(self, method: str, **params):
        "Do `method` of the protocol, and give its result; events that come meanwhile are kept."
        self.n += 1
        asked = dict(id=self.n, method=method, params=params)
        self.socket.send(json.dumps(asked | (dict(sessionId=self.session) if self.session else {})))
        while (found := json.loads(self.socket.recv())).get("id") != self.n:
            self.events.append(found)
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']['message']}")
        return found["result"]

    def told(self, event: str) -> list[dict]:
        "What came with each `event`, such as Network.requestWillBeSent, since the page was opened."
        return [o["params"] for o in self.events if o.get("method") == event]

    def open(self, url: str | Path, width: int = 1440, height: int = 900):
        "Load `url`, or a file, in a window of `width` by `height` pixels; a narrow one is a phone's."
        self.events.clear()
        self.size(width, height)
        found = self.send("Page.navigate", url=url.resolve().as_uri() if isinstance(url, Path) else url)
        if "loaderId" not in found:
            self.send("Page.reload")  # only what follows the # is new
        while not self.told("Page.loadEventFired"):
            self.events.append(json.loads(self.socket.recv()))
        return self

    def size(self, width: int, height: int):
        how = dict(width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.send("Emulation.setDeviceMetricsOverride", **how)

    def run(self, code: str):
        "The value of the expression `code` in the page; promises are waited for."
        res = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if failed := res.get("exceptionDetails"):
            raise RuntimeError(failed.get("exception", {}).get("description", failed["text"]))
        return res["result"].get("value")

    def press(self, *keys: str):
        "Press and release keys of `KEYS`."
        for key in keys:
            text = {"Enter": "\r", "Space": " "}.get(key)
            how = dict(key=" " if key == "Space" else key, code=key, windowsVirtualKeyCode=KEYS[key])
            self.send("Input.dispatchKeyEvent", type="keyDown", **how, **(dict(text=text) if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", **how)

    def errors(self) -> list[str]:
        "What scripts of the page threw."
        thrown = [o["exceptionDetails"] for o in self.told("Runtime.exceptionThrown")]
        return [o.get("exception", {}).get("description", "?") for o in thrown]
