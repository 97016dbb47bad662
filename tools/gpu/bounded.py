"""For the scripts beside this: commands that end in time with all that they started, and a budget that all steps share."""
import os
import pathlib
import signal
import subprocess
import threading
import time

TIMEOUT = 124  # what timeout(1) ends with


class Budget:
    """Seconds for everything. A step gets what is left of it, and is left out where that is too little to begin."""

    def __init__(self, seconds):
        self.seconds, self.begin = seconds, time.monotonic()

    def spent(self):
        return time.monotonic() - self.begin

    def left(self):
        return self.seconds - self.spent()

    def grant(self, most, least=5):
        """Seconds for a step that wants `most`; 0 where fewer than `least` are left."""
        left = self.left()
        return 0 if left < min(least, most) else min(most, left)


def family(pid):
    """pid, what it started, and who is in its session: pids, the oldest first."""
    parents, sessions = {}, {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The name in brackets may hold anything.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(folder.name)], sessions[int(folder.name)] = int(fields[1]), int(fields[3])
    found = {pid}
    grown = True
    while grown:
        more = {one for one, parent in parents.items() if parent in found or sessions[one] == pid} - found
        found |= more
        grown = bool(more)
    return sorted(found & parents.keys())


def end(process, grace=0.0):
    """Ends a Popen and all that it started; for `grace` seconds they are asked first, and may write what they have."""
    known = set(family(process.pid))
    if grace:
        _signal(known, signal.SIGTERM)
        until = time.monotonic() + grace
        while time.monotonic() < until:
            process.poll()
            if not (alive := {pid for pid in known if _alive(pid)}):
                break
            known |= set().union(*(family(pid) for pid in alive))
            time.sleep(0.05)
    known |= set(family(process.pid))
    _signal(known, signal.SIGKILL)
    process.wait()


def _alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _signal(pids, which):
    for pid in pids:
        try:
            os.kill(pid, which)
        except (ProcessLookupError, PermissionError):
            pass


def run(command, seconds, **options):
    """subprocess.run, whose timeout ends what the command started as well; its code is TIMEOUT then, 127 where there is no such
    program. Whatever interrupts this also ends them."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = [str(word) for word in command]
    options.setdefault("stdin", subprocess.DEVNULL)
    try:
        process = subprocess.Popen(words, **options)
    except OSError as error:
        empty = "" if options.get("text") else b""
        return subprocess.CompletedProcess(words, 127, empty, str(error) if options.get("text") else str(error).encode())
    code = None
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        code = TIMEOUT
        end(process)
        out, err = process.communicate()
    except BaseException:
        end(process)
        raise
    return subprocess.CompletedProcess(words, process.returncode if code is None else code, out, err)


def on_signals(at_once=False):
    """SIGTERM and SIGINT raise SystemExit(130), so that `finally` blocks and run() put things in order; at_once, for who runs
    commands in threads, they end all that this process started, and it."""
    def stop(number, frame):
        if at_once:
            _signal(set(family(os.getpid())) - {os.getpid()}, signal.SIGKILL)
            os._exit(130)
        raise SystemExit(130)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


class Watchdog:
    """Ends this process with `code` when nobody has said feed(seconds, what) for that long: a GPU that hangs lets no
    Python exception through."""

    def __init__(self, tool, code=24):
        self.tool, self.code, self.until, self.what = tool, code, None, ""
        threading.Thread(target=self._watch, daemon=True).start()

    def feed(self, seconds, what):
        self.what, self.until = what, time.monotonic() + seconds

    def rest(self):
        self.until = None

    def _watch(self):
        while True:
            time.sleep(0.2)
            until = self.until
            if until is not None and time.monotonic() > until:
                os.write(2, f"{self.tool}: no end of {self.what}: given up\n".encode())
                os._exit(self.code)
