"""The permitted dependencies between the parts, checked against every import of every source file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import agentspec

ROOT = Path(agentspec.__file__).resolve().parents[1]
TORCH = {"torch", "transformers", "tokenizers", "safetensors", "llguidance"}
HTTP = {
    "starlette",
    "uvicorn",
    "httpx",
    "httpx2",
    "requests",
    "aiohttp",
    "fastapi",
    "prometheus_client",
    "openai",
}
FRAMEWORKS = {  # by adapter
    "ag2": {"ag2"},
    "anthropic": {"anthropic"},
    "autogen": {"autogen_agentchat", "autogen_core"},
    "crewai": {"crewai"},
    "dspy": {"dspy"},
    "langchain": {"langchain", "langchain_core", "langchain_openai", "langgraph"},
    "litellm": {"litellm"},
    "llama_index": {"llama_index", "workflows"},
    "openai_agents": {"agents"},
    "openhands": {"openhands"},
    "pydantic_ai": {"pydantic_ai"},
    "smolagents": {"smolagents"},
}
PACKAGES = {package for packages in FRAMEWORKS.values() for package in packages}
BENCHMARKS = "benchmarks"
REPLAY = "agentspec.replay"
COMMAND_LINE = ("agentspec.commands", "agentspec.doctor", "agentspec.ray")
PUBLIC_NAMES = set("Draft DraftConfig Forest ForestConfig ForestStats Source StageKey __version__".split())


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in ("gateway", "adapters"):
        parts.insert(0, "agentspec")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(source: str, package: str) -> Iterator[str]:
    """Yield every module that ``source`` imports, including imports inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            )
            module = ".".join(part for part in (base, node.module) if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def sources() -> dict[str, set[str]]:
    parts = ("agentspec", "gateway", "adapters", "benchmarks")
    files = [path for part in parts for path in (ROOT / part).rglob("*.py")]
    imports = {}
    for path in files:
        name = module_name(path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imports[name] = set(imported_by(path.read_text(), package))
    return imports


IMPORTS = sources()


def users_of(*targets: str) -> set[str]:
    """Return the modules that import any of ``targets`` or their contents, except benchmarks."""
    return anyone_importing(*targets) - inside(set(IMPORTS), BENCHMARKS)


def anyone_importing(*targets: str) -> set[str]:
    return {
        name
        for name, imported in IMPORTS.items()
        if any(one == target or one.startswith(f"{target}.") for one in imported for target in targets)
    }


def inside(names: set[str], *packages: str) -> set[str]:
    return {name for name in names if any(name == one or name.startswith(f"{one}.") for one in packages)}


def test_every_source_is_seen() -> None:
    assert {"agentspec", "agentspec.cli", "agentspec.forest", "agentspec.engine.engine"} <= set(IMPORTS)
    assert {"agentspec.gateway.app", "agentspec.adapters.openai", f"{BENCHMARKS}.core.run"} <= set(IMPORTS)
    assert "starlette.types" in IMPORTS["agentspec.gateway.http.api_response"]


@pytest.mark.parametrize(
    ("source", "package", "expected"),
    [
        ("import a.b", "p", {"a.b"}),
        ("from a import b", "p", {"a", "a.b"}),
        ("def f():\n  from . import b", "p.q", {"p.q", "p.q.b"}),
        ("from ..r import b", "p.q", {"p.r", "p.r.b"}),
    ],
)
def test_the_walk_itself(source: str, package: str, expected: set[str]) -> None:
    assert set(imported_by(source, package)) == expected


def test_the_gateway_knows_no_adapter_no_engine_and_no_tree() -> None:
    forbidden = ("adapters", "engine", "forest", "_native", "vllm_plugin", "models")
    users = users_of(*(f"agentspec.{part}" for part in forbidden), *TORCH, "vllm", *PACKAGES)
    assert inside(users, "agentspec.gateway") == set()


GATEWAY_LAYERS = (  # from the bottom up: a folder or file may import earlier ones and its own contents
    ("errors", "settings"),
    ("yaml_limits",),
    ("call", "environment"),
    ("http",),
    ("auth", "config_file", "discovery", "openai"),
    ("stages", "engine_process", "sharing"),
    ("upstreams",),
    ("control", "dashboard", "telemetry"),
    ("handler", "server", "zero_hop"),
    ("app",),
)


ENGINE_LAYERS = (
    ("batch", "drafts", "machine_memory", "pricing"),
    ("model",),
    ("text",),
    ("sampling",),
    ("passed",),
    ("engine_config", "kv_memory"),
    ("request", "verifier"),
    ("admission", "counters", "scheduler"),
    ("decoder",),
    ("engine",),
)


def part_of(package: str, module: str) -> str | None:
    """Return the package's folder or file to which a module or name belongs."""
    inside_it = module.removeprefix(f"agentspec.{package}.")
    return None if inside_it == module else inside_it.split(".")[0]


@pytest.mark.parametrize(("package", "layers"), [("gateway", GATEWAY_LAYERS), ("engine", ENGINE_LAYERS)])
def test_the_folders_of_a_package_import_downwards(package: str, layers: Sequence[Sequence[str]]) -> None:
    floors = {part: floor for floor, parts in enumerate(layers) for part in parts}
    parts = {name: part for name in IMPORTS if (part := part_of(package, name))}
    assert set(parts.values()) == floors.keys()
    for name, part in parts.items():
        for imported in filter(None, (part_of(package, module) for module in IMPORTS[name])):
            is_name_of_the_package = imported not in floors
            assert is_name_of_the_package or imported == part or floors[imported] < floors[part], (
                name,
                imported,
            )


def test_the_gateway_uses_only_the_public_names_of_uvicorn() -> None:
    """Everything below its server loop is ours: its private modules change between versions."""
    users = inside(users_of("uvicorn"), "agentspec.gateway")
    assert users == {"agentspec.gateway.server"}
    for path in (ROOT / "gateway").rglob("*.py"):
        tree = ast.parse(path.read_text())
        modules = {name for name in imported_by(path.read_text(), "") if name.split(".")[0] == "uvicorn"}
        assert modules <= {"uvicorn"}, path
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "uvicorn"
        }
        assert used <= {"Config", "Server"}, path


def test_adapters_know_no_gateway_and_no_engine() -> None:
    users = users_of("agentspec.gateway", "agentspec.engine", "agentspec.forest", "torch", "vllm")
    assert inside(users, "agentspec.adapters") == set()


def test_torch_stays_in_the_engine_and_its_replay() -> None:
    allowed = inside(set(IMPORTS), "agentspec.engine", "agentspec.vllm_plugin", "agentspec.models", REPLAY)
    assert users_of(*TORCH) <= allowed


def test_http_stays_in_gateway_adapters_and_commands() -> None:
    parts = ("agentspec.gateway", "agentspec.adapters", "agentspec.vllm_plugin")
    assert users_of(*HTTP) <= inside(set(IMPORTS), *parts, *COMMAND_LINE)


def test_frameworks_stay_in_their_adapters() -> None:
    for adapter, packages in FRAMEWORKS.items():
        assert users_of(*packages) == {f"agentspec.adapters.{adapter}"}


def test_importing_the_adapters_loads_no_framework() -> None:
    code = "import agentspec.adapters, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(loaded.stdout.split()).isdisjoint(PACKAGES | HTTP)


def test_recorded_calls_know_no_engine_and_no_tree() -> None:
    forbidden = ("engine", "gateway", "forest", "_native", "adapters", "models", "vllm_plugin")
    users = users_of(*(f"agentspec.{part}" for part in forbidden))
    assert inside(users, "agentspec.recorded") == set()


def test_the_corpus_knows_no_engine_and_no_tree() -> None:
    forbidden = ("engine", "gateway", "_native", "adapters", "models", "vllm_plugin", "forest.forest")
    users = users_of(*(f"agentspec.{part}" for part in forbidden))
    assert inside(users, "agentspec.corpus") == set()


def test_packages_of_the_corpus_stay_in_their_modules() -> None:
    assert users_of("cryptography") == {"agentspec.corpus.encryption"}
    assert users_of("zstandard") == {"agentspec.corpus.batch", "agentspec.gateway.http.request_body"}
    stores = (
        "corpus.redis_files",
        "corpus.redis_store",
        "gateway.discovery.redis_store",
        "gateway.sharing.store",
    )
    assert users_of("redis") == {f"agentspec.{store}" for store in stores}


def test_vllm_stays_in_its_plugin() -> None:
    assert users_of("vllm") <= inside(set(IMPORTS), "agentspec.vllm_plugin")


def test_ray_stays_in_its_package() -> None:
    assert users_of("ray") <= inside(set(IMPORTS), "agentspec.ray")
    assert inside(users_of("agentspec.ray"), "agentspec.ray") == users_of("agentspec.ray")


def test_only_the_forest_the_steps_and_doctor_know_the_native_core() -> None:
    parts = ("forest", "registry", "persistence", "model_table")
    forest = {"agentspec.forest", *(f"agentspec.forest.{name}" for name in parts)}
    build_facts = "agentspec.doctor.packages"
    assert users_of("agentspec._native", "_native") == forest | {"agentspec.steps", build_facts}


def test_the_engine_and_the_library_know_no_server() -> None:
    users = users_of("agentspec.gateway") - inside(set(IMPORTS), "agentspec.gateway")
    assert users
    assert users <= inside(set(IMPORTS), *COMMAND_LINE)


def test_nobody_imports_the_command_line() -> None:
    assert users_of("agentspec.cli") == {"agentspec.__main__"}
    inner = inside(set(IMPORTS), *COMMAND_LINE)
    assert users_of(*COMMAND_LINE) - inner == {"agentspec.cli", "agentspec.__main__"}


def test_the_package_does_not_need_the_benchmarks() -> None:
    assert users_of(BENCHMARKS) == set()


def test_nobody_imports_the_lab() -> None:
    folders = ("agentspec", "gateway", "adapters", "examples", "benchmarks", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    users = {
        path.relative_to(ROOT)
        for path in files
        if any(name.split(".")[0] == "lab" for name in imported_by(path.read_text(), ""))
    }
    assert users == set()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--version"], set()),
        (["--help"], set()),
        (["serve", "--help"], set()),
        (["replay", "--help"], set()),
        (["corpus", "stats", "--help"], set()),
    ],
)
def test_a_command_loads_its_own_options_alone(arguments: list[str], expected: set[str]) -> None:
    code = f"""
import atexit, sys
atexit.register(lambda: print("loaded", *sys.modules))
from agentspec.cli import main
main({arguments})
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.rpartition("loaded")[2].split())
    assert inside(loaded, BENCHMARKS, REPLAY) == expected
    assert loaded.isdisjoint(TORCH | HTTP | {"vllm"})


def test_nobody_imports_by_a_name_that_only_a_checkout_has() -> None:
    assert anyone_importing("gateway", "adapters") == set()


def test_importing_the_library_loads_neither_torch_nor_vllm_nor_a_server() -> None:
    code = "import agentspec, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(loaded.stdout.split()).isdisjoint(TORCH | HTTP | PACKAGES | {"vllm"})


def test_the_public_names() -> None:
    assert set(agentspec.__all__) == PUBLIC_NAMES
    assert len(agentspec.__all__) == len(PUBLIC_NAMES)
    assert all(hasattr(agentspec, name) for name in PUBLIC_NAMES)
