"""Packs vLLM, AgentSpec, the benchmarks and recorded calls for a GPU machine without a package index.

vLLM's wheel is repacked without kernels that a dense bf16 model on Hopper does not use. Everything is one zip
file, split into parts; ``join.py`` beside them puts them together.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

import agentspec
import benchmarks
from agentspec.errors import ConfigError
from agentspec.reporting.report import Announce
from benchmarks.gpu import join
from benchmarks.gpu.calls import Calls

CALLS = "calls.xz"
ARCHIVE = "pack"
MIB = 1 << 20
BLOCK_BYTES = MIB
OMITTED = (
    "vllm/vllm_flash_attn/_vllm_fa2_C*",  # Hopper runs FlashAttention 3
    "vllm/_moe_C*",
    "vllm/_flashmla*",
    "vllm/_flashkda*",
    "vllm/_deepselect*",
    "vllm/_qutlass*",
    "vllm/third_party/deep_gemm/*",
    "vllm/third_party/fmha_sm100/*",
    "vllm/vllm-rs",
)
GLIBCS = ("2_17", "2_24", "2_27", "2_28", "2_31", "2_34", "2_35")
PLATFORMS = (*(f"manylinux_{one}_x86_64" for one in GLIBCS), "manylinux2014_x86_64", "manylinux1_x86_64")
ZIP_TIME = (2020, 1, 1, 0, 0, 0)  # the same pack from the same files


@dataclass(frozen=True, slots=True)
class Target:
    """What to pack.

    Attributes:
        vllm: version of vLLM.
        python: version of the machine's Python, such as 3.12.
        wheels: a file of further requirements, packed without their own.
    """

    vllm: str
    python: str
    wheels: Path


@dataclass(frozen=True, slots=True)
class Packed:
    """A pack that was written."""

    num_files: int
    part_bytes: Sequence[int]


def pack(target: Target, calls: Calls, folder: Path, part_bytes: int, announce: Announce) -> Packed:
    """Write the parts, their manifest and ``join.py`` into a folder.

    Raises:
        ConfigError: the folder is not empty, a package can't be had, or AgentSpec can't be built.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{str(folder)!r} is not empty: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        there = Path(temporary)
        announce(f"downloading vLLM {target.vllm} and the wheels of {target.wheels.name}")
        wheels = download(target, there / "wheels")
        announce("building AgentSpec")
        wheels.append(build(there / "built"))
        announce("writing the calls")
        calls.save(there / CALLS)
        archive = there / ARCHIVE
        announce("packing")
        files = write(archive, contents(wheels), [*sources(), (CALLS, there / CALLS)])
        parts = split(archive, folder, part_bytes)
    manifest = {"parts": parts, "files": files, "vllm": target.vllm, "python": target.python}
    (folder / join.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    (folder / "join.py").write_bytes(Path(join.__file__).read_bytes())
    return Packed(len(files), [(folder / str(part["name"])).stat().st_size for part in parts])


def download(target: Target, folder: Path) -> list[Path]:
    """Return the wheels of vLLM and of the file of requirements. Raises ConfigError if pip fails."""
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    wanted = ["--python-version", target.python, "--implementation", "cp", *platforms]
    common = ["download", "--no-deps", "--only-binary=:all:", *wanted, "--dest", str(folder)]
    _pip(*common, f"vllm=={target.vllm}", "--requirement", str(target.wheels))
    return sorted(folder.glob("*.whl"))


def build(folder: Path) -> Path:
    """Return a wheel of AgentSpec for this Python. Raises ConfigError if it can't be built."""
    root = Path(agentspec.__file__).parents[1]
    if not (root / "pyproject.toml").exists():
        raise ConfigError(f"AgentSpec is packed from its repository, and {str(root)!r} is none")
    options = ["--no-deps", "--no-build-isolation", "--config-settings=build-dir=build/gpu-{wheel_tag}"]
    _pip("wheel", *options, "--wheel-dir", str(folder), str(root))
    return next(folder.glob("*.whl"))


def contents(wheels: Iterable[Path]) -> Iterator[tuple[str, zipfile.ZipFile, zipfile.ZipInfo]]:
    """Yield the files of all wheels, by where they are installed, without :data:`OMITTED` and scripts."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                path = installed_path(info.filename)
                if path and not info.is_dir() and not any(fnmatch(path, one) for one in OMITTED):
                    yield path, archive, info


def installed_path(name: str) -> str | None:
    """Return where a wheel's file belongs below the folder of packages; None if it belongs elsewhere."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name
    scheme, _, path = rest.partition("/")
    return path if scheme in ("purelib", "platlib") else None


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the benchmarks, and the sources of the native core, with their names in the pack."""
    package = Path(benchmarks.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".txt", ".md"):
            yield f"benchmarks/{path.relative_to(package).as_posix()}", path
    native = Path(agentspec.__file__).parent / "native"
    for path in sorted(native.rglob("*")):
        if path.suffix in (".cpp", ".hpp") or path.name == "CMakeLists.txt":
            yield f"{join.SOURCES}/{path.relative_to(native).as_posix()}", path


def write(
    archive: Path,
    packed: Iterable[tuple[str, zipfile.ZipFile, zipfile.ZipInfo]],
    files: Iterable[tuple[str, Path]],
) -> dict[str, str]:
    """Write a zip file; return the SHA-256 of each file in it. A file that comes twice is packed once."""
    digests: dict[str, str] = {}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_LZMA) as out:
        for name, wheel, info in packed:
            if name not in digests:
                with wheel.open(info) as source:
                    digests[name] = _copy(out, name, source)
        for name, path in files:
            with path.open("rb") as source:
                digests[name] = _copy(out, name, source)
    return digests


def split(archive: Path, folder: Path, part_bytes: int) -> list[dict[str, object]]:
    """Write a file's parts; return the name and SHA-256 of each."""
    parts: list[dict[str, object]] = []
    with archive.open("rb") as source:
        while block := source.read(part_bytes):
            name = f"{archive.name}.{len(parts):02}"
            (folder / name).write_bytes(block)
            parts.append({"name": name, "sha256": hashlib.sha256(block).hexdigest()})
    return parts


def _copy(out: zipfile.ZipFile, name: str, source: IO[bytes]) -> str:
    info = zipfile.ZipInfo(name, ZIP_TIME)
    info.compress_type = zipfile.ZIP_LZMA
    info.external_attr = 0o644 << 16
    digest = hashlib.sha256()
    with out.open(info, "w", force_zip64=True) as target:
        while block := source.read(BLOCK_BYTES):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()


def _pip(*arguments: str) -> None:
    environment = {**os.environ, "PIP_CONSTRAINT": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ConfigError(f"pip {arguments[0]} failed: {(errors or [done.stderr])[-1]}")
