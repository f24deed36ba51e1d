"""A headless Chromium, driven through its own protocol: what the checks of the site need to open a page,
press keys and measure. Where none is installed, they say so."""

import base64, json, os, shutil, subprocess, tempfile, time
from pathlib import Path

NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"


def find_browser() -> str | None:
    "The Chromium that is installed here; `CHROMIUM` in the environment names another."
    return os.environ.get("CHROMIUM") or next((o for o in map(shutil.which, NAMES) if o), None)


class Browser:
    "One tab. `with Browser() as b: b.open(url, width=390); b.run('document.title')`"

    def __init__(self, path: str | None = None):
        self.path, self.n, self.events = path or find_browser(), 0, []

    def __enter__(self):
        from websocket import create_connection

        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        args = "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-dev-shm-usage --remote-debugging-port=0 --remote-allow-origins=*".split()
        self.process = subprocess.Popen(
            [self.path, *args, f"--user-data-dir={self.home.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = Path(self.home.name) / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not (port.exists() and port.read_text().count("\n")):
            if time.monotonic() > end or self.process.poll() is not None:
                self.__exit__()
                raise OSError(f"{self.path} didn't start")
            time.sleep(0.02)
        number, path = port.read_text().split()
        self.socket = create_connection(f"ws://127.0.0.1:{number}{path}", timeout=20)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for o in ("Page", "Runtime", "Network"):
            self.send(f"{o}.enable")
        return self

    def __exit__(self, *_):
        if hasattr(self, "socket"):
            self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.home.cleanup()

    def send(self, method: str, **params):
        "Do `method` of the protocol, and give its result; events that come meanwhile are kept."
        self.n += 1
        self.socket.send(
            json.dumps(
                dict(id=self.n, method=method, params=params)
                | (dict(sessionId=self.session) if hasattr(self, "session") else {})
            )
        )
        while True:
            o = json.loads(self.socket.recv())
            if o.get("id") == self.n:
                if "error" in o:
                    raise RuntimeError(f"{method}: {o['error']['message']}")
                return o["result"]
            self.events.append(o)

    def wait(self, event: str):
        while not any(o.get("method") == event for o in self.events):
            self.events.append(json.loads(self.socket.recv()))

    def open(self, url: str | Path, width: int = 1440, height: int = 900):
        "Load `url`, or a file, in a window of `width` by `height` pixels; a narrow one is a phone's."
        self.events.clear()
        self.size(width, height)
        found = self.send("Page.navigate", url=url.resolve().as_uri() if isinstance(url, Path) else url)
        if "loaderId" not in found:
            self.send("Page.reload")  # only what follows the # is new
        self.wait("Page.loadEventFired")
        return self

    def size(self, width: int, height: int):
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def run(self, code: str):
        "The value of the expression `code` in the page; promises are waited for."
        res = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in res:
            raise RuntimeError(
                res["exceptionDetails"]
                .get("exception", {})
                .get("description", res["exceptionDetails"]["text"])
            )
        return res["result"].get("value")

    def press(self, *keys: str):
        "Press and release keys: names such as Tab and ArrowDown, or characters."
        codes = dict(Tab=9, Enter=13, Space=32, ArrowLeft=37, ArrowUp=38, ArrowRight=39, ArrowDown=40)
        for key in keys:
            text = {"Enter": "\r", "Space": " "}.get(key, key if len(key) == 1 else "")
            how = dict(
                key=" " if key == "Space" else key,
                code=key,
                windowsVirtualKeyCode=codes.get(key, ord(key[0])),
            )
            self.send("Input.dispatchKeyEvent", type="keyDown", **how, **(dict(text=text) if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", **how)

    def picture(self, dest: Path, whole: bool = False):
        "Write what is seen, or the `whole` page, as a png to `dest`."
        Path(dest).write_bytes(
            base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        )

    def errors(self) -> list[str]:
        "What scripts of the page threw."
        return [
            o["params"]["exceptionDetails"].get("exception", {}).get("description", "?")
            for o in self.events
            if o.get("method") == "Runtime.exceptionThrown"
        ]

    def asked(self) -> list[str]:
        "The addresses that the page asked for."
        return [
            o["params"]["request"]["url"]
            for o in self.events
            if o.get("method") == "Network.requestWillBeSent"
        ]


def run_script(code: str, given) -> object:
    """What the JavaScript function `code` gives for the value `given`, run by Node or, where there is none,
    by Chromium; None where neither is installed."""
    call = f"JSON.stringify(({code})({json.dumps(given)}))"
    node = shutil.which("node") or shutil.which("nodejs")
    if node:
        with tempfile.TemporaryDirectory() as tmp:
            path = Path(tmp) / "run.js"
            path.write_text(f"process.stdout.write({call});", encoding="utf-8")
            res = subprocess.run([node, str(path)], capture_output=True, text=True)
        if res.returncode:
            raise RuntimeError(res.stderr.strip()[-2000:])
        return json.loads(res.stdout)
    if not find_browser():
        return None
    with Browser() as b:
        return json.loads(b.run(call))
