"""The Redis store: servers that are away, full, or want a password or TLS, and the keys it uses."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agentspec.corpus.redis_store import RedisStore
from agentspec.corpus.store import START, Retention, Scope
from agentspec.errors import CorpusError
from tests.corpus.support.records import SCOPE
from tests.corpus.support.redis_server import running, running_at
from tests.support.ports import reserved_port

ALL = 1 << 30


@pytest.fixture
def client(redis_port: int) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_port) as client:
        yield client


def batches(store: RedisStore, scope: Scope = SCOPE) -> list[bytes]:
    return [entry.batch for entry in store.read(scope, START, ALL)]


def publish_many(store: RedisStore) -> None:
    for _ in range(20):
        store.publish(SCOPE, bytes(1 << 20))


# ---- servers ----


def test_a_server_that_is_away_is_an_error_without_its_password():
    with reserved_port() as port, closing(RedisStore(f"redis://engine:secret@127.0.0.1:{port}")) as store:
        with pytest.raises(CorpusError, match=f"redis://engine@127.0.0.1:{port}") as caught:
            store.publish(SCOPE, b"x")
        assert "secret" not in str(caught.value)
        for call in (
            lambda: store.read(SCOPE, START, 1),
            lambda: store.wait({SCOPE: START}, 60.0),
            lambda: store.end(SCOPE),
            lambda: store.marks(SCOPE),
            lambda: store.lease(SCOPE, "holder", 1.0),
            lambda: store.put_snapshot(SCOPE, 1, "1", [b"x"]),
            lambda: store.snapshot(SCOPE),
            lambda: store.erase(SCOPE),
            lambda: store.rewrite(SCOPE, []),
            lambda: store.drop_previous(SCOPE),
            lambda: store.settle(0.0),
            lambda: store.wrapped_key(SCOPE, b"x"),
            lambda: store.scopes(),
            lambda: store.stats(),
        ):
            with pytest.raises(CorpusError, match="can't be used now"):
                call()


def test_a_server_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with closing(RedisStore(url, connect_timeout_s=0.1, call_timeout_s=0.1)) as store:
            with pytest.raises(CorpusError, match=r"(?i)time"):
                store.publish(SCOPE, b"x")
            with pytest.raises(CorpusError, match=r"(?i)time"):
                store.wait({SCOPE: START}, 60.0)


def test_a_server_that_comes_back_is_used_again(tmp_path):
    with reserved_port() as port, closing(RedisStore(f"redis://127.0.0.1:{port}")) as store:
        with running_at(port, tmp_path):
            store.publish(SCOPE, b"x")
        with pytest.raises(CorpusError):
            store.publish(SCOPE, b"x")
        with running_at(port, tmp_path):
            store.publish(SCOPE, b"y")
            assert batches(store) == [b"y"]


def test_a_server_that_is_full_refuses_and_keeps_what_it_has(tmp_path):
    with running(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as port:
        store = RedisStore(f"redis://127.0.0.1:{port}")
        with closing(store):
            store.publish(SCOPE, b"first")
            fence = store.lease(SCOPE, "holder", 600.0)
            assert store.put_snapshot(SCOPE, fence, "1", [b"kept"])
            with pytest.raises(CorpusError, match="maxmemory"):
                store.put_snapshot(SCOPE, fence, "2", [bytes(1 << 20)] * 9)
            assert list(store.snapshot(SCOPE).parts) == [b"kept"]
            with pytest.raises(CorpusError, match="maxmemory"):
                publish_many(store)
            assert batches(store)[0] == b"first"
            assert store.stats()[SCOPE].num_bytes == sum(map(len, batches(store)))
            store.erase(SCOPE)
            store.publish(SCOPE, b"room again")


def test_a_user_with_a_password_sees_its_keys_alone(tmp_path):
    with running(tmp_path) as port:
        with redis.Redis(port=port) as admin:
            commands = (
                "+eval +xadd +xdel +xlen +xrange +xrevrange +xread +xinfo +hset +hget +hstrlen +hexists +hdel"
                " +hlen +sadd +srem +smembers +get +set +unlink +rename +pexpire +persist +pttl +time +type"
            )
            rules = f"on >secret ~agentspec:corpus:* {commands}".split()
            admin.execute_command("ACL", "SETUSER", "engine", *rules)
            admin.execute_command("ACL", "SETUSER", "admin", "on", ">secret", "~*", "+@all")
            admin.execute_command("ACL", "SETUSER", "default", "off")
        with closing(RedisStore(f"redis://engine:secret@127.0.0.1:{port}")) as store:
            store.publish(SCOPE, b"x")
            store.wait({SCOPE: START}, 60.0)
            assert store.scopes() == [SCOPE]
            assert store.scopes() == list(store.stats()) == [SCOPE]
            assert store.put_snapshot(SCOPE, store.lease(SCOPE, "holder", 60.0), store.end(SCOPE), [b"x"])
            assert list(store.snapshot(SCOPE).parts) == [b"x"]
            store.rewrite(SCOPE, [(store.end(SCOPE), b"y")])
            assert store.wrapped_key(SCOPE, b"key") == b"key"
            assert store.replace_key(SCOPE, b"key", b"other")
            store.erase(SCOPE)
            assert store.marks(SCOPE).epoch > 0
            store.mark(SCOPE, 7)
            (problem,) = store.settle(60.0)
            assert "the server did not say what its files hold" in problem
            files = "+info +config|get +bgsave +bgrewriteaof +wait +waitaof".split()
            with redis.Redis(port=port, username="admin", password="secret") as admin:
                admin.execute_command("ACL", "SETUSER", "engine", *files)
            assert store.settle(60.0) == []
        with closing(RedisStore(f"redis://engine:wrong@127.0.0.1:{port}")) as store:
            with pytest.raises(CorpusError, match=r"(?i)password") as caught:
                store.publish(SCOPE, b"x")
            assert "wrong@" not in str(caught.value)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of a key and of its own certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, plain))
    (folder / "certificate.pem").write_bytes(made.public_bytes(encoding))
    return folder / "key.pem", folder / "certificate.pem"


def test_tls(tmp_path):
    key, own = certificate(tmp_path)
    files = ["--tls-key-file", str(key), "--tls-cert-file", str(own), "--tls-ca-cert-file", str(own)]
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        try:
            server = running(tmp_path, "--tls-port", str(port), *files, "--tls-auth-clients", "no")
            stack.enter_context(server)
        except AssertionError as error:
            if "TLS support" not in str(error):
                raise
            pytest.skip("this server was built without TLS")
        store = stack.enter_context(closing(RedisStore(f"rediss://127.0.0.1:{port}?ssl_ca_certs={own}")))
        store.publish(SCOPE, b"x")
        assert batches(store) == [b"x"]
        store = stack.enter_context(closing(RedisStore(f"rediss://127.0.0.1:{port}")))
        with pytest.raises(CorpusError, match=r"(?i)cert"):
            store.publish(SCOPE, b"x")


# ---- keys ----


def test_all_keys_have_the_prefix_and_the_tenants_name(redis_url, client):
    with closing(RedisStore(redis_url)) as store:
        scope = Scope("a/b c", "acme corp+lora")
        store.publish(scope, b"x")
        store.put_snapshot(scope, store.lease(scope, "holder", 60.0), "1", [b"x"])
        keys = {key.decode() for key in client.keys("*")}
    assert len(keys) == 5
    assert {key for key in keys if not key.startswith("agentspec:corpus:")} == set()
    assert {key for key in keys if "acme%20corp%2Blora}" not in key} == {"agentspec:corpus:scopes"}


def test_old_entries_are_dropped_and_an_idle_log_ends(redis_url, client):
    with closing(RedisStore(redis_url, Retention(most_age_s=3600.0))) as store:
        store.publish(SCOPE, b"first")
        (log,) = client.keys("*:log")
        client.delete(log)
        client.xadd(log, {"batch": b"old"}, id="1-0")
        client.hincrby(client.keys("*:facts")[0], "bytes", 3 - 5)
        store.publish(SCOPE, b"new")
        assert batches(store) == [b"new"]
        assert store.stats()[SCOPE].num_bytes == 3
        assert 0 < client.pttl(log) <= 3_600_000
        store.put_snapshot(SCOPE, store.lease(SCOPE, "holder", 60.0), "1", [b"x"])
        assert all(0 < client.pttl(key) <= 3_600_000 for key in client.keys("*:snapshot:*"))


def test_what_the_server_evicted_is_no_error(redis_url, client):
    with closing(RedisStore(redis_url)) as store:
        store.publish(SCOPE, b"lost")
        store.put_snapshot(SCOPE, store.lease(SCOPE, "holder", 60.0), "1", [b"x", b"y"])
        parts = store.snapshot(SCOPE).parts
        assert next(parts) == b"x"
        client.delete(*client.keys("*:log"), *client.keys("*:snapshot:*"))
        with pytest.raises(CorpusError, match="replaced"):
            next(parts)
        assert store.snapshot(SCOPE) is None
        assert store.stats() == {}
        store.publish(SCOPE, b"new")
        assert store.stats()[SCOPE].num_bytes == 3
        assert store.put_snapshot(SCOPE, store.lease(SCOPE, "holder", 60.0), "1", [b"z"])
        assert list(store.snapshot(SCOPE).parts) == [b"z"]


def test_an_upload_that_is_never_ended_is_dropped(redis_url, client):
    with closing(RedisStore(redis_url)) as store:
        fence = store.lease(SCOPE, "holder", 60.0)

        def parts() -> Iterator[bytes]:
            yield b"x"
            (key,) = client.keys("*:snapshot:*")
            assert 0 < client.pttl(key) <= 600_000
            client.delete(key)  # as the server does then
            yield b"y"

        assert not store.put_snapshot(SCOPE, fence, "1", parts())
        assert client.keys("*:snapshot:*") == []
        assert store.snapshot(SCOPE) is None
