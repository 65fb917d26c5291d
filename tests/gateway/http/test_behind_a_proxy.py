"""The blocks for nginx and Caddy in docs/gateway.md, tested in the real programs where installed."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from agentspec.gateway import ApiKeys
from tests.gateway.support.live import TIMEOUT_S, chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.misbehaving import EVENT, misbehaving
from tests.gateway.support.scripted import ScriptedEngine
from tests.support.ports import reserved_port

DOCUMENT = Path(__file__).parents[3] / "docs/gateway.md"
NGINX = """
daemon off; pid {folder}/pid; error_log stderr; worker_processes 1;
events {{ worker_connections 64; }}
http {{ access_log off;
client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{block} }}
"""
CADDY = "{{ \n admin off\n auto_https off\n storage file_system {folder}\n}}\n{block}"
NEW_BUFFERS, OLD_BUFFERS = (
    "request_buffers 4MiB",
    "buffer_requests\n max_buffer_size 4MiB",
)  # before Caddy 2.7
COMMANDS: dict[str, Callable[[str, Path], list[str]]] = {
    "nginx": lambda program, file: [program, "-e", "stderr", "-p", str(file.parent), "-c", str(file)],
    "caddy": lambda program, file: [program, "run", "--adapter", "caddyfile", "--config", str(file)],
}


def block(name: str) -> str:
    found = re.findall(rf"```{name}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(found) == 1
    assert found[0].count("8080") >= 1
    assert found[0].count("127.0.0.1:8000") == 1
    return str(found[0])


@contextmanager
def proxy(name: str, gateway: str, folder: Path) -> Iterator[str]:
    """Yield the program's root URL in front of ``gateway``, with the document's block and other ports."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    with reserved_port() as port, running_proxy(name, program, gateway, folder, port) as root:
        yield root


@contextmanager
def running_proxy(name: str, program: str, gateway: str, folder: Path, port: int) -> Iterator[str]:
    file = folder / "conf"
    own = (
        block(name)
        .replace("127.0.0.1:8000", f"127.0.0.1:{httpx.URL(gateway).port}")
        .replace("8080", str(port))
    )
    if name == "caddy" and is_before_2_7(program):
        assert NEW_BUFFERS in own
        own = own.replace(NEW_BUFFERS, OLD_BUFFERS)
    file.write_text({"nginx": NGINX, "caddy": CADDY}[name].format(folder=folder, block=own))
    with subprocess.Popen(
        COMMANDS[name](program, file),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"HOME": str(folder)},
    ) as process:
        try:
            wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            print(process.communicate(timeout=TIMEOUT_S)[1].decode())  # shown if the test fails


def is_before_2_7(caddy: str) -> bool:
    said = subprocess.run([caddy, "version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.findall(r"\d+", said)[:2]
    return (int(major), int(minor)) < (2, 7)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until it listens. There is no other signal."""
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    process.kill()
    pytest.fail(process.communicate()[1].decode())


@pytest.mark.parametrize("name", COMMANDS)
def test_an_early_refusal_is_no_bad_gateway(name: str, tmp_path: Path) -> None:
    engine, keys = ScriptedEngine(), ApiKeys.parse(["good=a"])
    with serving_engine(engine, keys=keys) as gateway, proxy(name, gateway, tmp_path) as root:
        for num_bytes in (300_000, 20_000_000):
            for _ in range(3):
                answer = post(root, b" " * num_bytes, authorization="Bearer wrong")
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        answer = post(root, b" " * 40_000_000, authorization="Bearer good")
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert post(root, chat_body(), authorization="Bearer good").status_code == 200


@pytest.mark.parametrize("name", COMMANDS)
def test_events_pass_and_a_client_that_leaves_is_noticed(name: str, tmp_path: Path) -> None:
    with (
        misbehaving() as engine,
        serving_proxy(engine.url) as gateway,
        proxy(name, gateway, tmp_path) as root,
    ):
        with httpx.stream(
            "POST",
            f"{root}/v1/chat/completions",
            json=chat_body(stream=True),
            headers={"x-way": "falls silent"},
            timeout=TIMEOUT_S,
            trust_env=False,
        ) as answer:
            assert answer.status_code == 200, answer.read()
            got, parts = b"", answer.iter_raw()
            while got.count(EVENT) < 3:  # the rest is never sent: else a time-out
                got += next(parts)
        assert engine.has_lost.wait(TIMEOUT_S)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_client_of_the_proxy_is_not_on_this_machine(name: str, tmp_path: Path) -> None:
    with serving_engine(ScriptedEngine()) as gateway, proxy(name, gateway, tmp_path) as root:
        file = tmp_path / "forest"
        assert post(root, {"path": str(file)}, "/agentspec/save").status_code == 403
        assert not file.exists()
