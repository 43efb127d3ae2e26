"""Frames of JSON over a stream socket: the one framing between parent, zygote and the candidate's process.

A frame is a length of four bytes and a JSON object in UTF-8; lone surrogates pass through unchanged. Nothing here
trusts the other side: a reader bounds the size, and every wait when it is given a deadline.
"""

import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

MAX_FRAME = 4 << 20
"""The largest frame that the candidate's process may send, in bytes."""

# The candidate may replace what hangs in modules: keep our own references.
_pack, _unpack, _monotonic = struct.pack, struct.unpack, time.monotonic
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_dumps, _loads = _encoder.encode, json.loads


class Frames:
    """Reads and writes frames. `receive` replaces the socket's `recv`; `largest` bounds what is read, None not.

    Raises (from `read` and `write`):
        EOFError: the other side hung up.
        TimeoutError: the deadline (of `time.monotonic`) passed.
        ValueError: what came is no frame with a JSON object (`read` only).
    """

    def __init__(
        self,
        connection: socket.socket,
        receive: Callable[[int], bytes] | None = None,
        largest: int | None = None,
    ) -> None:
        self._receive, self._send = receive or connection.recv, connection.sendall
        self._set_timeout, self._largest = connection.settimeout, largest
        self._rest = b""

    def write(self, message: dict[str, Any], deadline: float | None = None) -> None:
        self.send(pack(message), deadline)

    def send(self, frame: bytes, deadline: float | None = None) -> None:
        self._wait_until(deadline)
        try:
            self._send(frame)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError("hung up") from error

    def read(self, deadline: float | None = None) -> dict[str, Any]:
        (size,) = _unpack("!I", self._exactly(4, deadline))
        if self._largest is not None and size > self._largest:
            raise ValueError("the frame is too large")
        try:
            message = _loads(self._exactly(size, deadline))
        except RecursionError as error:
            raise ValueError("the frame is nested too deeply") from error
        if not isinstance(message, dict):
            raise ValueError("the frame holds no object")
        return message

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        parts, missing = [self._rest], size - len(self._rest)
        while missing > 0:
            self._wait_until(deadline)
            try:
                part = self._receive(max(missing, 4096))
            except TimeoutError:
                raise
            except OSError as error:
                raise EOFError("hung up") from error
            if not part:
                raise EOFError("hung up")
            parts.append(part)
            missing -= len(part)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]

    def _wait_until(self, deadline: float | None) -> None:
        if deadline is not None:
            remaining = deadline - _monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._set_timeout(remaining)


def pack(message: dict[str, Any]) -> bytes:
    """The frame of a message."""
    body = _dumps(message).encode("utf-8", "surrogatepass")
    return _pack("!I", len(body)) + body
