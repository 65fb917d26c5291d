# ruff: noqa: E501  (one row per line)
"""Attacks by raw bytes on the wire. To add one, add a row."""

from __future__ import annotations

from dataclasses import dataclass

from tests.hostile.target import Target, answers, check_error

BODY = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}'
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer $MINE\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer $MINE\r\n"
LAST = b"connection: close\r\n"
HIDDEN = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"  # answered if the gateway takes it for a request
CHUNKED = b"transfer-encoding: chunked\r\n"
BAD = frozenset((400,))
OK = frozenset((200,))
NOTHING: frozenset[int] = frozenset((0,))  # the connection is closed without an answer


def sized(body: bytes, *headers: bytes) -> bytes:
    """Return a chat request with a content length."""
    return CHAT + b"".join(headers) + b"content-length: %d\r\n\r\n" % len(body) + body


def chunk(data: bytes) -> bytes:
    """Return one encoded chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(frozen=True)
class RawAttack:
    """Raw bytes and the status of the one answer to them; 0 for no answer.

    Attributes:
        num_answers: number of answers allowed. More than that is a smuggled request.
        leaves: the client half-closes after the bytes. Otherwise the gateway ends the connection, at the latest
            on a time-out.
    """

    name: str
    request: bytes
    statuses: frozenset[int]
    num_answers: int = 1
    leaves: bool = False

    @property
    def is_slow(self) -> bool:
        """True if it may wait for the gateway's time-outs, which are long unless set for this."""
        return 408 in self.statuses

    def run(self, target: Target) -> None:
        """Raise AssertionError if the attack succeeds."""
        got = answers(target.said(self.request, leaves=self.leaves))
        assert len(got) <= self.num_answers, [answer.status for answer in got]
        for answer in got:
            assert answer.status in self.statuses, (answer.status, answer.body[:200])
            if answer.status != 408:
                check_error(answer.status, answer.headers.get("content-type", ""), answer.body)
        assert got or 0 in self.statuses, "no answer"


RAW = [
    # smuggling: two lengths, or a length and chunks
    RawAttack("length and chunks", CHAT + b"content-length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN, BAD),
    RawAttack("chunks and length", CHAT + CHUNKED + b"content-length: 5\r\n\r\n0\r\n\r\n" + HIDDEN, BAD),
    RawAttack("two lengths", CHAT + b"content-length: 0\r\ncontent-length: 60\r\n\r\n" + HIDDEN, BAD),
    RawAttack("the same length twice", CHAT + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}" + HIDDEN, BAD),
    RawAttack("a list of lengths", CHAT + b"content-length: 5, 5\r\n\r\n{}   " + HIDDEN, BAD),
    RawAttack("a signed length", CHAT + b"content-length: +5\r\n\r\n{}   " + HIDDEN, BAD),
    RawAttack("a negative length", CHAT + b"content-length: -1\r\n\r\n" + HIDDEN, BAD),
    RawAttack("a length in hexadecimal", CHAT + b"content-length: 0x5\r\n\r\n{}   " + HIDDEN, BAD),
    RawAttack("a huge length", CHAT + b"content-length: 99999999999999999999999\r\n\r\n{}", BAD),
    RawAttack("an empty length", CHAT + LAST + b"content-length: \r\n\r\n{}", BAD | OK),
    RawAttack("a space before the colon", CHAT + b"content-length : 2\r\n\r\n{}" + HIDDEN, BAD),
    RawAttack("a tab before the colon", CHAT + b"transfer-encoding\t: chunked\r\n\r\n0\r\n\r\n" + HIDDEN, BAD),
    RawAttack("an unknown coding", CHAT + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN, BAD),
    RawAttack("chunked is not the last", CHAT + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN, BAD),
    RawAttack("a quoted coding", CHAT + b'transfer-encoding: "chunked"\r\n\r\n0\r\n\r\n' + HIDDEN, BAD),
    RawAttack("chunked in vertical tabs", CHAT + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN, BAD),
    RawAttack("a folded coding", CHAT + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN, BAD),
    RawAttack("a hidden coding", CHAT + b"x: y\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN, BAD),
    RawAttack("a request in a body", sized(HIDDEN, LAST), BAD),
    RawAttack("a request in a body of a GET", GET + LAST + b"content-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN, OK | BAD),
    RawAttack("a request behind the last one", GET + LAST + b"\r\n" + HIDDEN, OK),
    # chunks
    RawAttack("a chunk size that is none", CHAT + CHUNKED + b"\r\nzz\r\n{}\r\n0\r\n\r\n", BAD),
    RawAttack("a negative chunk", CHAT + CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n", BAD),
    RawAttack("a signed chunk", CHAT + CHUNKED + b"\r\n+2\r\n{}\r\n0\r\n\r\n", BAD),
    RawAttack("a huge chunk", CHAT + CHUNKED + b"\r\n11111111111111111\r\n{}\r\n0\r\n\r\n", BAD),
    RawAttack("a chunk in hexadecimal twice", CHAT + CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n", BAD),
    RawAttack("a chunk that is longer", CHAT + CHUNKED + b"\r\n1\r\n{}\r\n0\r\n\r\n", BAD),
    RawAttack("a chunk with bare LF", CHAT + CHUNKED + b"\r\n2\n{}\n0\n\n", BAD),
    RawAttack("an empty chunk size", CHAT + CHUNKED + b"\r\n\r\n{}\r\n0\r\n\r\n", BAD),
    RawAttack("a long extension", CHAT + CHUNKED + b"\r\n2;" + b"x" * 100_000, frozenset((400, 408, 431))),
    RawAttack("long trailers", CHAT + CHUNKED + b"\r\n" + chunk(b"{}") + b"0\r\nx: " + b"x" * 100_000, frozenset((400, 408, 431))),
    RawAttack("a key among the trailers", CHAT.replace(b"$MINE", b"wrong") + LAST + CHUNKED + b"\r\n" + chunk(BODY)
              + b"0\r\nauthorization: Bearer $MINE\r\n\r\n", frozenset((401,))),
    RawAttack("chunks without an end", CHAT + CHUNKED + b"\r\n" + chunk(b" "), frozenset((408,))),
    # lines
    RawAttack("bare LF", b"GET /v1/models HTTP/1.1\nhost: x\n\n", BAD | {401}),
    RawAttack("bare CR", b"GET /v1/models HTTP/1.1\rhost: x\r\r", BAD),
    RawAttack("a NUL in a name", CHAT + b"x\x00y: 2\r\n\r\n", BAD),
    RawAttack("a NUL in a value", CHAT + b"x-a: b\x00c\r\n\r\n", BAD),
    RawAttack("a NUL in the path", b"GET /v1/\x00models HTTP/1.1\r\nhost: x\r\n\r\n", BAD),
    RawAttack("a space in a name", CHAT + b"x y: 2\r\n\r\n", BAD),
    RawAttack("no name", CHAT + b": 2\r\n\r\n", BAD),
    RawAttack("no colon", CHAT + b"nothing\r\n\r\n", BAD),
    RawAttack("a folded header", CHAT + b"x-a: b\r\n folded: c\r\n\r\n", BAD),
    RawAttack("white space first", b" " + GET + b"\r\n", BAD),
    RawAttack("nothing but empty lines", b"\r\n" * 40_000, NOTHING | {400, 431}),
    # request lines
    RawAttack("no version", b"GET /v1/models\r\n\r\n", BAD | {401, 404}),
    RawAttack("an unknown version", b"GET / HTTP/9.9\r\n\r\n", BAD),
    RawAttack("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD),
    RawAttack("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", BAD),
    RawAttack("an unknown method", b"HACK /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", BAD),
    RawAttack("a method in small letters", b"get /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", BAD),
    RawAttack("a tunnel", b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n", BAD),
    RawAttack("a path in UTF-8", b"GET /caf\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n", BAD),
    RawAttack("a URL of another host", b"GET http://example.org/agentspec/save HTTP/1.1\r\nhost: x\r\n" + LAST + b"\r\n",
              frozenset((401, 403, 404, 405))),
    RawAttack("an asterisk", b"OPTIONS * HTTP/1.1\r\nhost: x\r\nauthorization: Bearer $MINE\r\n" + LAST + b"\r\n", frozenset((403, 404, 405))),
    RawAttack("a long path", b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", frozenset((400, 431))),
    RawAttack("a long header", GET + b"x-long: " + b"x" * 200_000 + b"\r\n\r\n", frozenset((431,))),
    RawAttack("many headers", GET + b"x-a: b\r\n" * 20_000 + b"\r\n", frozenset((431,))),
    # offers, expectations, pipelined requests
    RawAttack("an upgrade to WebSocket", GET + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n" + GET + LAST + b"\r\n", OK, 2),
    RawAttack("an upgrade to h2c", GET + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n" + GET + LAST + b"\r\n", OK, 2),
    RawAttack("an upgrade with a hidden request", sized(BODY, b"connection: upgrade\r\nupgrade: h2c\r\n") + GET + LAST + b"\r\n", OK, 2),
    RawAttack("a request in a body that waits for a word", CHAT.replace(b"$MINE", b"wrong") + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN, frozenset((401,))),
    RawAttack("an unknown expectation", sized(BODY, b"expect: 999-magic\r\n", LAST), OK | {417}),
    RawAttack("garbage behind a request", GET + b"\r\n\x00\x01 garbage\r\n\r\n", NOTHING | OK | BAD, 2),
    RawAttack("fifty requests in a row", (GET + b"\r\n") * 49 + GET + LAST + b"\r\n", OK, 50),
    RawAttack("a client that leaves in its head", CHAT + b"x-half: ", NOTHING | BAD | {408}, leaves=True),
    RawAttack("a client that leaves in its body", CHAT + b"content-length: 1000\r\n\r\n{", NOTHING | {400, 408}, leaves=True),
    # time-outs: the client sends no more
    RawAttack("nothing at all", b"", NOTHING),
    RawAttack("no body", CHAT + b"content-length: 5\r\n\r\n", frozenset((408,))),
    RawAttack("half a head", CHAT + b"x-half: ", frozenset((408,))),
]  # fmt: skip
