"""A real browser, driven through the DevTools protocol on two pipes: no driver, no package."""
import base64
import json
import os
import select
import shutil
import subprocess
import time


def find():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """A page that was loaded; what it said on its console and every exception are in `said`."""

    def __init__(self, browser, session):
        self.browser, self.session, self.said = browser, session, []

    def call(self, method, **parameters):
        return self.browser.call(method, parameters, self.session)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path):
        answer = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


class Browser:
    def __init__(self, profile):
        to_browser, from_us = os.pipe()
        to_us, from_browser = os.pipe()

        def pipes():
            # Above 4 first: one of the ends may itself be 3 or 4.
            reading, writing = os.dup(to_browser), os.dup(from_browser)
            while reading < 5:
                reading = os.dup(reading)
            while writing < 5:
                writing = os.dup(writing)
            os.dup2(reading, 3, inheritable=True)
            os.dup2(writing, 4, inheritable=True)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=pipes)
        os.close(to_browser)
        os.close(from_browser)
        self.writing, self.reading = from_us, to_us
        self.buffer, self.number, self.pages, self.events = b"", 0, {}, []

    def close(self):
        try:
            self.call("Browser.close", {})
        except (OSError, TimeoutError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.writing)
        os.close(self.reading)

    def message(self, limit):
        while b"\0" not in self.buffer:
            if not select.select([self.reading], [], [], max(0, limit - time.monotonic()))[0]:
                raise TimeoutError("the browser did not answer")
            got = os.read(self.reading, 1 << 20)
            if not got:
                raise OSError("the browser has ended")
            self.buffer += got
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, parameters, session=None):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        os.write(self.writing, json.dumps(request).encode() + b"\0")
        limit = time.monotonic() + 60
        while True:
            message = self.message(limit)
            if message.get("id") == self.number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self.note(message)

    def note(self, message):
        page = self.pages.get(message.get("sessionId"))
        kind, about = message.get("method"), message.get("params", {})
        if page is None:
            return
        if kind == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            page.said.append(" ".join(str(a.get("value", a.get("description"))) for a in about["args"]))
        elif kind == "Runtime.exceptionThrown":
            page.said.append(str(about["exceptionDetails"].get("exception", {}).get("description", about)))
        elif kind == "Log.entryAdded":
            page.said.append(about["entry"]["text"])
        elif kind == "Page.javascriptDialogOpening":
            page.said.append(f"a dialog: {about['message']}")
            self.number += 1
            os.write(self.writing, json.dumps({"id": self.number, "method": "Page.handleJavaScriptDialog", "sessionId":
                                               message["sessionId"], "params": {"accept": True}}).encode() + b"\0")

    def open(self, url, width=1200, height=900, scheme="light"):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.call("Page.navigate", url=url)
        limit = time.monotonic() + 60
        while page.evaluate("document.readyState") != "complete" or page.evaluate("location.href") == "about:blank":
            assert time.monotonic() < limit, "the page did not load"
            time.sleep(0.05)
        return page
