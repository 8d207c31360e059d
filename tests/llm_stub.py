"""A language model's endpoint on loopback, which behaves as badly as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behavior = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One call of a test's endpoint."""

    stub: Stub
    body: dict[str, Any]

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.body = json.loads(content)
        self.stub.calls.append((self.path, dict(self.headers), self.body))
        try:
            self.stub.behaves(self)
        except OSError:  # the caller has hung up
            self.stub.hung_up.set()

    def send(self, content: bytes, status: int = 200, **headers: str) -> None:
        """A whole response."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def trickle(self) -> None:
        """A byte now and then, until somebody hangs up."""
        while not self.stub.released.wait(0.01):
            self.wfile.write(b" ")
            self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        """Not into the tests' output."""


class Stub:
    """The endpoint, and who has called it."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.name = f"127.0.0.1:{server.server_port}"
        self.behaves: Behavior = says("{}")
        self.calls: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.released, self.hung_up = threading.Event(), threading.Event()


def says(text: str) -> Behavior:
    """A chat completion with this text."""
    message = {"role": "assistant", "content": text}
    content = json.dumps({"id": "x", "choices": [{"index": 0, "message": message}]})
    return lambda handler: handler.send(content.encode())


def examines(
    question: str = "Why?", points: Mapping[str, str] | None = None, **marks: str
) -> Behavior:
    """A model that asks this, and finds each point covered, but for ``marks``."""

    def behaves(handler: Handler) -> None:
        system, user = (message["content"] for message in handler.body["messages"])
        if '"question": "..."' in system:
            says(json.dumps({"question": question}))(handler)
            return
        ids = [point["id"] for point in json.loads(user)["card"]["points"]]
        found = dict.fromkeys(ids, "covered") | marks
        says(json.dumps({"points": found if points is None else points}))(handler)

    return behaves


@contextlib.contextmanager
def serving() -> Iterator[Stub]:
    """Serve it; at the end, whatever stalls is released."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub = Stub(server)
    server.RequestHandlerClass = type("OwnHandler", (Handler,), {"stub": stub})
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
