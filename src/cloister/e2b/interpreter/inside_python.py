"""Runs inside a sandbox: imports ipykernel once, then forks one kernel for each connection.

Needs nothing but the standard library and ipykernel, of any Python from 3.8 on. A frame is a
length of four bytes, big-endian, and that many bytes of JSON.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

# Completion and debugging are of no use to a program, and take half of the time to import.
_UNWANTED = ("debugpy", "jedi")
_MAXIMUM_KERNELS = 64
_DRAIN_S = 1.0


def main() -> None:
    """Say on which port kernels are to be had, and make one for each who asks."""
    charts, *further = sys.argv[1:]
    del sys.argv[1:]
    if importlib.util.find_spec("ipykernel") is None:
        # Last: what the image has of the same name is what its own code was written for.
        sys.path.extend(further)
        if importlib.util.find_spec("ipykernel") is None:
            print(json.dumps({"missing": "ipykernel"}), flush=True)
            return
    for name in _UNWANTED:
        sys.modules[name] = None  # type: ignore[assignment]
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    kernel = make_kernel(charts)
    listener = socket.create_server(("127.0.0.1", 0), backlog=_MAXIMUM_KERNELS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    serve(listener, kernel)


def make_kernel(charts: str) -> Any:
    """Return a kernel that has not run anything and has no threads, so that it can be forked.

    `charts` is the program that reads figures.
    """
    from ipykernel.ipkernel import IPythonKernel
    from jupyter_client.session import Session
    from traitlets.config import Config

    class Quiet(Session):  # type: ignore[misc]
        """Sends what a kernel publishes to whoever is connected."""

        conversation: Any = None

        def send(
            self, stream: Any, msg_or_type: Any, content: Any = None, *rest: Any, **named: Any
        ) -> None:
            kind = msg_or_type if isinstance(msg_or_type, str) else msg_or_type["msg_type"]
            body = content if isinstance(msg_or_type, str) else msg_or_type["content"]
            if Quiet.conversation is not None:
                Quiet.conversation.publish(kind, body)

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    kernel = IPythonKernel(config=config, session=Quiet(), iopub_socket=None, user_ns={})
    import logging

    kernel.log = logging.getLogger("kernel")
    kernel.log.setLevel(logging.CRITICAL)
    _add_formatters(kernel.shell, charts)
    return kernel


def _add_formatters(shell: Any, charts: str) -> None:
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class DataFormatter(BaseFormatter):  # type: ignore[misc]
        """Tables as columns of plain values."""

        format_type = Unicode("e2b/data")
        print_method = ObjectName("_repr_e2b_data_")
        _return_type = dict

    class ChartFormatter(BaseFormatter):  # type: ignore[misc]
        """Figures as what they show."""

        format_type = Unicode("e2b/chart")
        print_method = ObjectName("_repr_e2b_chart_")
        _return_type = dict

        def __call__(self, shown: Any) -> Any:
            # Not by its type: matplotlib takes figures from all formatters that it does not know.
            kinds = ((kind.__module__, kind.__name__) for kind in type(shown).__mro__)
            return chart(shown) if ("matplotlib.figure", "Figure") in kinds else None

    def chart(figure: Any) -> Any:
        known: dict[str, Any] = {}
        try:
            exec(compile(charts, "<charts>", "exec"), known)  # noqa: S102
            return known["chart_of"](figure)
        except Exception:
            # A picture that cannot be read is still a picture.
            return None

    formatters = shell.display_formatter.formatters
    formatters["e2b/chart"] = ChartFormatter(parent=shell.display_formatter)
    data = formatters["e2b/data"] = DataFormatter(parent=shell.display_formatter)
    # Since its third major version pandas calls its classes by its own name.
    for module in ("pandas.core.frame", "pandas"):
        data.for_type_by_name(module, "DataFrame", _columns)
    for kind in (dict, list):
        formatters["application/json"].for_type(kind, _plain)
    sys.meta_path.insert(0, _ImagesShown())


class _ImagesShown:
    """Shows the pictures that a cell shows or saves; there is no screen to show them on.

    Whoever never imports Pillow never waits for it.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "PIL.Image":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def executed(module: Any) -> None:
                execute(module)
                _show_images(module)

            found.loader.exec_module = executed  # type: ignore[method-assign]
        return found


def _show_images(module: Any) -> None:
    from IPython.display import display

    save = module.Image.save

    def show(image: Any, *_: Any, **__: Any) -> None:
        display(image)

    def saved(image: Any, to: Any, *rest: Any, **named: Any) -> Any:
        outcome = save(image, to, *rest, **named)
        if isinstance(to, (str, os.PathLike)):
            display(image)
        return outcome

    module.Image.show = show
    module.Image.save = saved


def _columns(frame: Any) -> Any:
    return json.loads(frame.to_json(orient="split", date_format="iso")) and {
        str(name): json.loads(frame[name].to_json(orient="values", date_format="iso"))
        for name in frame.columns
    }


def _encoded(value: Any) -> str:
    """Return as text what JSON has no form for; a picture is bytes."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return None


def serve(listener: socket.socket, kernel: Any) -> None:
    """Fork a kernel for each connection; signal them when told to on standard input."""
    children: set[int] = set()
    told = b""
    while True:
        ready = select.select([listener.fileno(), 0], [], [], 5.0)[0]
        _reap(children)
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            if len(children) < _MAXIMUM_KERNELS:
                child = os.fork()
                if child == 0:
                    listener.close()
                    _become_kernel(connection, kernel)
                children.add(child)
            connection.close()
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                for child in children:
                    _signal(child, signal.SIGKILL)
                return
            told += data
            *lines, told = told.split(b"\n")
            for line in lines:
                verb, _, number = line.decode().partition(" ")
                if number.isdecimal() and int(number) in children:
                    _signal(int(number), signal.SIGINT if verb == "interrupt" else signal.SIGKILL)


def _reap(children: set[int]) -> None:
    while children:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        children.discard(pid)


def _signal(pid: int, number: int) -> None:
    # The whole session: what the code started is interrupted with it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _become_kernel(connection: socket.socket, kernel: Any) -> None:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        with contextlib.suppress(KeyboardInterrupt, OSError):
            Conversation(connection, kernel).hold()
    finally:
        # Threads of user code must not keep a kernel that nobody talks to.
        os._exit(0)


class Conversation:
    """One kernel and whoever is connected to it."""

    def __init__(self, connection: socket.socket, kernel: Any) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._kernel = kernel
        self._lock = threading.Lock()
        kernel.session.__class__.conversation = self
        self._outputs = [Output(self, 1, "stdout"), Output(self, 2, "stderr")]

    def hold(self) -> None:
        """Run what is sent until the other end leaves."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.say({"type": "ready", "pid": os.getpid()})
        while True:
            request = self._hear()
            if request is None:
                return
            self._execute(request)

    def _execute(self, request: dict[str, Any]) -> None:
        before = dict(os.environ)
        variables = {str(k): str(v) for k, v in (request.get("env_vars") or {}).items()}
        os.environ.update(variables)
        if request.get("cwd"):
            with contextlib.suppress(OSError):
                os.chdir(request["cwd"])
                sys.path[0:0] = [""] if "" not in sys.path else []
        count = self._kernel.shell.execution_count
        self.say({"type": "number_of_executions", "execution_count": count})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            # With no event loop running it is done in one step, on a loop of IPython's own.
            self._kernel.do_execute(request["code"], False, True, None, False).send(None)
        except StopIteration:
            # How a coroutine returns.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except (Exception, KeyboardInterrupt) as error:
            name, words = type(error).__name__, str(error)
            self.publish("error", {"ename": name, "evalue": words, "traceback": [words]})
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for name in variables:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)
            for output in self._outputs:
                output.drain()
        self.say({"type": "end_of_execution"})

    def publish(self, kind: str, content: dict[str, Any]) -> None:
        """Pass on what the kernel publishes, where it is something to show."""
        if kind in ("execute_result", "display_data", "update_display_data"):
            data = content.get("data") or {}
            self.say({"type": "result", "is_main": kind == "execute_result", "data": data})
        elif kind == "error":
            lines = [str(line) for line in content.get("traceback") or []]
            error = {"name": content.get("ename"), "value": content.get("evalue")}
            self.say({"type": "error", **error, "traceback": "\n".join(lines)})
        elif kind == "stream":
            self.say({"type": content["name"], "text": content["text"], "at": time.time()})

    def say(self, message: dict[str, Any]) -> None:
        """Send one frame."""
        body = json.dumps(message, default=_encoded).encode()
        with self._lock:
            self._connection.sendall(len(body).to_bytes(4, "big") + body)

    def _hear(self) -> dict[str, Any] | None:
        length = self._exactly(4)
        body = self._exactly(int.from_bytes(length, "big")) if length else b""
        return json.loads(body) if body else None

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self._connection.recv(count - len(data))
            if not chunk:
                return b""
            data += chunk
        return data


class Output:
    """One of the two outputs, of the code and of everything that it starts."""

    def __init__(self, conversation: Conversation, fd: int, kind: str) -> None:
        self._conversation = conversation
        self._kind = kind
        self._fd = fd
        self._read, write = os.pipe()
        os.dup2(write, fd)
        os.close(write)
        self._mark = os.urandom(16)
        self._drained = threading.Event()
        stream = getattr(sys, kind)
        stream.reconfigure(line_buffering=True, write_through=False, errors="backslashreplace")
        threading.Thread(target=self._follow, daemon=True).start()

    def drain(self) -> None:
        """Return when all that was written before has been sent."""
        # The program may have put anything in its place, which may do anything.
        with contextlib.suppress(Exception):
            getattr(sys, self._kind).flush()
        self._drained.clear()
        os.write(self._fd, self._mark)
        self._drained.wait(_DRAIN_S)

    def _follow(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = b""
        while data := os.read(self._read, 65536):
            held += data
            while self._mark in held:
                before, _, held = held.partition(self._mark)
                self._tell(decoder.decode(before))
                self._drained.set()
            # The beginning of a mark may be the end of what came.
            keep = next(
                (n for n in range(min(15, len(held)), 0, -1) if self._mark.startswith(held[-n:])), 0
            )
            now, held = held[: len(held) - keep], held[len(held) - keep :]
            self._tell(decoder.decode(now))

    def _tell(self, text: str) -> None:
        if text:
            self._conversation.say({"type": self._kind, "text": text, "at": time.time()})


if __name__ == "__main__":
    main()
