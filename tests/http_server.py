"""A raw socket server that says exactly the bytes that a test gives it, and remembers what it was asked."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

USAGE = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}


def completion(text: str, **fields: object) -> bytes:
    """The JSON body of a chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": USAGE, **fields}).encode()


def reply(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class RawServer:
    """`connections[i]` holds the answers to the requests on the i-th connection; after the last it hangs up.

    `watch` is called at each request, before its answer.
    """

    connections: Sequence[Sequence[bytes]]
    watch: Callable[[], None] = lambda: None
    url: str = ""
    requests: list[tuple[int, bytes]] = field(default_factory=list)

    def bodies(self) -> list[dict]:
        return [json.loads(request.partition(b"\r\n\r\n")[2]) for _, request in self.requests]


@contextmanager
def raw_server(*connections: Sequence[bytes], watch: Callable[[], None] = lambda: None) -> Iterator[RawServer]:
    """Serve the given connections, one after the other, while the context lasts."""
    server = RawServer(connections, watch)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread = threading.Thread(target=_serve, args=(listener, server), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            thread.join(5)


def _serve(listener: socket.socket, server: RawServer) -> None:
    for number, answers in enumerate(server.connections):
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            for answer in answers:
                request = _request(connection)
                if not request:
                    break
                server.requests.append((number, request))
                server.watch()
                connection.sendall(answer)


def _request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = (line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    size = int(next(lengths))
    while len(body) < size:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body
