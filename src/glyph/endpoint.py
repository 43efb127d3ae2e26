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
MAX_HEAD = 64 << 10
MAX_BODY = 64 << 20
_TOO_LONG = (
    "context_length",
    "context length",
    "maximum model length",
    "prompt_too_long",
    "rollout stopped: max_input_tokens",
    "rollout stopped: max_output_tokens",
    "rollout stopped: max_total_tokens",
)
"""What providers, and the interception of Verifiers with its token limits, say when there is no room for a turn."""


class EndpointError(RuntimeError):
    """The endpoint could not be reached, refused the request, or answered with something else than a completion."""


class Endpoint:
    """One rollout's connection to an OpenAI-compatible chat route.

    Args:
        url: the base URL, e.g. `http://127.0.0.1:8000/v1`.
        secret: the bearer token; it travels in the header alone.
        timeout_seconds: how long a silent connection is waited for.

    Raises:
        EndpointError: the URL is none.
    """

    def __init__(self, url: str, secret: str, model: str, sampling: dict[str, Any], timeout_seconds: float = 3600.0):
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        name, colon, port = host.rpartition(":")
        if not colon or "]" in port:  # no port; what was split is an IPv6 address
            name, port = host, ""
        if scheme not in ("http", "https") or not name or not (port.isdecimal() or not port):
            raise EndpointError(f"no http or https URL: {url!r}")
        self._tls = scheme == "https"
        self._address = (name.strip("[]"), int(port or (443 if self._tls else 80)))
        self._host, self._path = host, f"/{path.rstrip('/')}/chat/completions" if path else "/chat/completions"
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
        """Status and body.

        Raises:
            ValueError: this is no HTTP. OSError: the connection broke.
        """
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        protocol, _, rest = lines[0].partition(" ")
        if not protocol.startswith("HTTP/1."):
            raise ValueError(f"no HTTP answer: {lines[0][:80]!r}")
        status, headers = int(rest[:3]), _headers(lines[1:])
        last = headers.get("connection", "keep-alive" if protocol == "HTTP/1.1" else "close").lower() == "close"
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks()
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:  # the body ends with the connection
            body, last = self._rest(), True
        if last:
            self.close()
        return status, body

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            body += self._exactly(size)
            self._exactly(2)
            _check_size(len(body))
        while self._until(b"\r\n"):
            pass
        return bytes(body)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            if len(self._buffer) > MAX_HEAD:
                raise ValueError("an endless head")
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        _check_size(size)
        parts, missing = [self._buffer[:size]], size - len(self._buffer)
        self._buffer = self._buffer[size:]
        while missing > 0:
            self._more()
            parts.append(self._buffer[:missing])
            missing, self._buffer = missing - len(self._buffer), self._buffer[missing:]
        return b"".join(parts)

    def _rest(self) -> bytes:
        while True:
            try:
                self._more()
            except ConnectionError:
                return self._buffer
            _check_size(len(self._buffer))

    def _more(self) -> None:
        assert self._socket is not None
        part = self._socket.recv(1 << 18)
        if not part:
            raise ConnectionError("the endpoint closed the connection")
        self._buffer += part


def _headers(lines: list[str]) -> dict[str, str]:
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _check_size(size: int) -> None:
    if not 0 <= size <= MAX_BODY:
        raise ValueError(f"an answer of {size} bytes")


def _wire(message: dict[str, str]) -> dict[str, str]:
    """A message in OpenAI's form: a tool turn names the call that it answers (its first line is `RESULT <id>:`)."""
    if message["role"] != "tool":
        return message
    first_line = message["content"].partition("\n")[0]
    return {**message, "tool_call_id": first_line.removeprefix("RESULT ").removesuffix(":")}


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
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise EndpointError(f"the endpoint's answer is no chat completion: {answer[:200]!r}") from error
