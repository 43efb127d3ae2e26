"""A chat endpoint over one kept-alive connection: the little HTTP that the sandbox program needs.

Stdlib only and lean: `http.client` would cost more start-up time than the whole program. TLS is loaded only for
https endpoints. A fault of the endpoint is an `EndpointError`; a prompt that it refuses as too long is a `ModelTurn`.
"""

import json
import socket
import time
from typing import Any

from glyph.episode import ModelTurn

RETRY_SECONDS = (0.5, 1.0, 2.0)
MAX_BODY = 64 << 20
_TOO_LONG = ("context_length", "context length", "maximum model length", "prompt_too_long")


class EndpointError(RuntimeError):
    """The endpoint could not be reached, refused the request, or answered with something else than a completion."""


class Endpoint:
    """One rollout's connection to an OpenAI-compatible chat route.

    Args:
        url: the base URL, e.g. `http://127.0.0.1:8000/v1`.
        secret: the bearer token; it travels in the header alone.
        timeout_seconds: how long a silent connection is waited for.
    """

    def __init__(self, url: str, secret: str, model: str, sampling: dict[str, Any], timeout_seconds: float = 3600.0):
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        self._tls = scheme == "https"
        name, _, port = host.rpartition(":") if ":" in host else (host, "", "")
        self._address = (name.strip("[]"), int(port or (443 if self._tls else 80)))
        self._host, self._path = host, f"/{path.rstrip('/')}/chat/completions"
        self._secret, self._model, self._sampling, self._timeout = secret, model, sampling, timeout_seconds
        self._socket: socket.socket | None = None
        self._buffer = b""

    def ask(self, messages: list[dict[str, str]]) -> ModelTurn:
        """Sample the next turn.

        Raises:
            EndpointError: after retries of transport faults and of 429 and 5xx answers.
        """
        body = json.dumps({"model": self._model, "messages": [_wire(m) for m in messages], **self._sampling}).encode()
        status, answer = self._post_with_retries(body)
        if status == 200:
            return _model_turn(answer)
        text = answer.decode("utf-8", "replace")
        if status in (400, 413) and any(phrase in text.casefold() for phrase in _TOO_LONG):
            return ModelTurn("", overflow=True)
        raise EndpointError(f"the endpoint answered {status}: {text[:500]}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def _post_with_retries(self, body: bytes) -> tuple[int, bytes]:
        for wait in (*RETRY_SECONDS, None):
            try:
                status, answer = self._post(body)
            except (OSError, ValueError) as error:
                self.close()
                if wait is None:
                    raise EndpointError(f"no answer from {self._host}: {type(error).__name__}: {error}") from error
            else:
                if wait is None or (status != 429 and status < 500):
                    return status, answer
            time.sleep(wait)
        raise AssertionError("unreachable")

    def _post(self, body: bytes) -> tuple[int, bytes]:
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {self._secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        if self._socket is None:
            self._socket = self._connect()
        self._socket.sendall(head.encode() + body)
        return self._read_response()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, timeout=self._timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls:
            import ssl

            return ssl.create_default_context().wrap_socket(connection, server_hostname=self._address[0])
        return connection

    def _read_response(self) -> tuple[int, bytes]:
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks()
        else:
            body = self._exactly(int(headers["content-length"]) if "content-length" in headers else None)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, body

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            parts.append(self._exactly(size))
            self._exactly(2)
        while self._until(b"\r\n"):
            pass
        return b"".join(parts)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more(64 << 10)
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, size: int | None) -> bytes:
        if size is None:
            raise ValueError("an answer without a length")
        if size > MAX_BODY:
            raise ValueError(f"an answer of {size} bytes")
        while len(self._buffer) < size:
            self._more(size - len(self._buffer))
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _more(self, size: int) -> None:
        assert self._socket is not None
        part = self._socket.recv(max(size, 4096))
        if not part:
            raise ConnectionError("the endpoint closed the connection")
        self._buffer += part


def _wire(message: dict[str, str]) -> dict[str, str]:
    """A message in OpenAI's form: a tool turn names the call that it answers (`RESULT <id>:`)."""
    if message["role"] != "tool":
        return message
    return {**message, "tool_call_id": message["content"].partition(":")[0].removeprefix("RESULT ")}


def _model_turn(answer: bytes) -> ModelTurn:
    try:
        reply = json.loads(answer)
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):
            raise TypeError("content is no text")
        tokens = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        prompt, completion = (count if isinstance(count, int) else None for count in tokens)
        return ModelTurn(text, choice.get("finish_reason") or "stop", prompt, completion)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise EndpointError(f"the endpoint's answer is no chat completion: {answer[:200]!r}") from error
