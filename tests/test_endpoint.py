"""The little HTTP of the sandbox program, against a server that says exactly these bytes."""

import json

import pytest

from glyph import endpoint
from glyph.endpoint import Endpoint, EndpointError
from glyph.episode import ModelTurn
from tests.http_server import completion, raw_server, reply

ASKED = [{"role": "user", "content": "Hi"}]
HELLO = ModelTurn("hello", "stop", 11, 2)
GOOD = reply(completion("hello"))
CLOSE = "Connection: close"
TOO_LONG = b"This model's maximum context length is 4096 tokens"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RETRY_SECONDS", (0.0, 0.0, 0.0))


def client(url: str) -> Endpoint:
    return Endpoint(url, "s3cret", "m", {"temperature": 0.5}, timeout_seconds=5)


def test_turns_share_one_connection_and_the_secret_travels_in_the_header_alone() -> None:
    with raw_server([GOOD, GOOD, GOOD]) as server:
        asked = client(server.url)
        assert [asked.ask(ASKED) for _ in range(3)] == [HELLO] * 3
        asked.close()
    assert [number for number, _ in server.requests] == [0, 0, 0]
    head, _, body = server.requests[0][1].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer s3cret" in head
    assert b"s3cret" not in body
    assert json.loads(body) == {"model": "m", "messages": ASKED, "temperature": 0.5}


def test_a_tool_message_names_its_call_whatever_the_id() -> None:
    messages = [{"role": "tool", "content": "RESULT a:b c:\nstatus: success"}]
    with raw_server([GOOD]) as server:
        client(server.url).ask(messages)
    assert server.bodies()[0]["messages"] == [{**messages[0], "tool_call_id": "a:b c"}]


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    lines = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n" + lines + b"0\r\nTrailer: x\r\n\r\n"


UNBOUNDED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + completion("hello")


@pytest.mark.parametrize(
    "connections",
    [
        [[chunked(completion("hello"), 7), GOOD]],
        [[reply(completion("hello"), "200 OK", CLOSE)], [GOOD]],
        [[reply(completion("hello")).replace(b"HTTP/1.1", b"HTTP/1.0")], [GOOD]],
        [[UNBOUNDED], [GOOD]],  # no length: the body ends with the connection
        [[GOOD], [GOOD]],  # hangs up between two turns
        [[GOOD[:-30]], [GOOD, GOOD]],  # hangs up in the middle of a reply
        [[b""], [GOOD, GOOD]],  # hangs up at once
        [[b"SSH-2.0-OpenSSH\r\n\r\n"], [GOOD, GOOD]],
        [[b"\r\n\r\n"], [GOOD, GOOD]],
        [[b"HTTP/1.1 OK\r\n\r\n"], [GOOD, GOOD]],
        [[GOOD.replace(b"Content-Length: ", b"Content-Length: -")], [GOOD, GOOD]],
        [[GOOD.replace(b"Content-Length: ", b"Content-Length: 9999999999")], [GOOD, GOOD]],
        [[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], [GOOD, GOOD]],
        [[b"x" * 200_000], [GOOD, GOOD]],
        [[reply(b"busy", "503 Service Unavailable"), reply(b"", "429 Too Many Requests"), GOOD, GOOD]],
        [[reply(b"oops", "500 Internal Server Error", CLOSE)], [GOOD, GOOD]],
        [[reply(TOO_LONG, "500 Internal Server Error"), GOOD, GOOD]],
    ],
    ids=[
        *("chunked", "says close", "HTTP/1.0", "no length", "hangs up between", "hangs up within", "hangs up at once"),
        *("SSH", "an empty head", "no status", "negative length", "huge length", "bad chunk", "endless head"),
        *("503 and 429", "500 and close", "500 about the context"),
    ],
)
def test_two_turns_arrive_through_every_kind_of_reply(connections: list[list[bytes]]) -> None:
    with raw_server(*connections) as server:
        asked = client(server.url)
        assert [asked.ask(ASKED), asked.ask(ASKED)] == [HELLO, HELLO]
        asked.close()


@pytest.mark.parametrize(
    ("body", "turn"),
    [
        (completion("x" * 3_000_000), ModelTurn("x" * 3_000_000, "stop", 11, 2)),
        (completion("\ud800 \0"), ModelTurn("\ud800 \0", "stop", 11, 2)),
        (completion("hello", usage=None), ModelTurn("hello")),
        (completion("hello", usage={"prompt_tokens": "many"}), ModelTurn("hello")),
        (completion("hello").replace(b'"hello"', b"null"), ModelTurn("", "stop", 11, 2)),
        (completion("hello").replace(b'"stop"', b"null"), HELLO),
        (completion("hello").replace(b'"stop"', b'"length"'), ModelTurn("hello", "length", 11, 2)),
    ],
    ids=["megabytes", "a surrogate", "no usage", "no number", "null content", "null reason", "length"],
)
def test_what_a_completion_holds(body: bytes, turn: ModelTurn) -> None:
    with raw_server([reply(body)]) as server:
        assert client(server.url).ask(ASKED) == turn


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("400 Bad Request", b'{"error": {"message": "rollout stopped: context_length"}}'),
        ("400 Bad Request", b'{"error": {"message": "rollout stopped: max_total_tokens"}}'),
        ("400 Bad Request", TOO_LONG),
        ("413 Payload Too Large", b'{"error": {"code": "prompt_too_long"}}'),
    ],
    ids=["context_length", "max_total_tokens", "prose", "413"],
)
def test_a_refused_prompt_is_a_turn_not_a_fault(status: str, body: bytes) -> None:
    with raw_server([reply(body, status)]) as server:
        assert client(server.url).ask(ASKED) == ModelTurn("", overflow=True)


@pytest.mark.parametrize(
    ("answers", "message", "asked"),
    [
        ([reply(b"no such model", "404 Not Found")], "answered 404: no such model", 1),
        ([reply(b"who are you", "401 Unauthorized")], "answered 401", 1),
        ([reply(b'{"error": "rollout stopped: max_turns"}', "400 Bad Request")], "max_turns", 1),
        ([reply(b"\xff<html>")], "no chat completion", 1),
        ([reply(b"[" * 100_000)], "no chat completion", 1),
        ([reply(b'{"choices": []}')], "no chat completion", 1),
        ([reply(b'{"choices": [{"message": {"content": [1]}}]}')], "no chat completion", 1),
        ([reply(b"busy", "503 Service Unavailable")] * 4, "answered 503: busy", 4),
        ([reply(TOO_LONG, "500 Internal Server Error")] * 4, "answered 500: .*context length", 4),
        ([reply(TOO_LONG, "429 Too Many Requests")] * 4, "answered 429: .*context length", 4),
        ([reply(TOO_LONG, "422 Unprocessable Entity")], "answered 422: .*context length", 1),
        ([reply(b"Payload Too Large", "413 Payload Too Large")], "answered 413: Payload", 1),
    ],
    ids=[
        *("404", "401", "another limit", "no text", "deep JSON", "no choices", "content is a list", "503"),
        *("500 about the context", "429 about the context", "422 about the context", "413 about nothing"),
    ],
)
def test_a_fault_of_the_endpoint_is_an_error(answers: list[bytes], message: str, asked: int) -> None:
    with raw_server(answers) as server, pytest.raises(EndpointError, match=message):
        client(server.url).ask(ASKED)
    assert len(server.requests) == asked


def test_an_endpoint_that_hangs_up_for_good_is_an_error() -> None:
    with raw_server([b""], [b""], [b""], [b""]) as server, pytest.raises(EndpointError, match="no answer from 127"):
        client(server.url).ask(ASKED)
    assert len(server.requests) == 4


def test_a_silent_endpoint_is_an_error() -> None:
    half = [b"HTTP/1.1 200 OK\r\n", b""]
    with raw_server(*[half] * 4) as server, pytest.raises(EndpointError, match="no answer"):
        Endpoint(server.url, "s", "m", {}, timeout_seconds=0.05).ask(ASKED)


def test_nobody_listens() -> None:
    with raw_server() as server:
        url = server.url
    with pytest.raises(EndpointError, match="ConnectionRefusedError"):
        client(url).ask(ASKED)


@pytest.mark.parametrize(
    ("url", "address", "path"),
    [
        ("http://localhost:8000/v1", ("localhost", 8000), "/v1/chat/completions"),
        ("http://localhost:8000/v1/", ("localhost", 8000), "/v1/chat/completions"),
        ("https://api.example.org/a/v1", ("api.example.org", 443), "/a/v1/chat/completions"),
        ("http://example.org", ("example.org", 80), "/chat/completions"),
        ("http://[::1]:9/v1", ("::1", 9), "/v1/chat/completions"),
        ("http://[::1]/v1", ("::1", 80), "/v1/chat/completions"),
    ],
)
def test_urls(url: str, address: tuple[str, int], path: str) -> None:
    asked = client(url)
    assert (asked._address, asked._path) == (address, path)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x/v1", "http://", "http://x:port/v1"])
def test_no_url(url: str) -> None:
    with pytest.raises(EndpointError, match="URL"):
        client(url)
