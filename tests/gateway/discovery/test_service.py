from __future__ import annotations

import logging
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError, RequestError
from agentspec.gateway.discovery.redis_store import RedisDiscoveryStore
from agentspec.gateway.discovery.service import MAX_RECENT, Discovery
from agentspec.gateway.errors import UnknownClusterError
from agentspec.gateway.settings import DiscoverySettings
from tests.corpus.support.redis_server import running
from tests.gateway.support.discovering_processes import run_two

HELP = "You are helping {} with {} today, and you are kind to everybody."
SECRET = "Rumpelstiltskin"
TIMEOUT_S = 60


def body(system: str, user: str = "Hello.") -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


def helping(number: int) -> dict[str, Any]:
    name = "".join(chr(97 + number // 26**place % 26) for place in range(3))
    return body(HELP.format(f"{name} {SECRET}{name}", f"the {name[0]}"), name)


@contextmanager
def discovering(place: Path | str | None = None, **settings: Any) -> Iterator[Discovery]:
    """Yield a discovery without a background thread, in a file or a server. ``catch_up`` does its work."""
    is_server = isinstance(place, str)
    store = RedisDiscoveryStore(place) if is_server else None
    chosen = DiscoverySettings(path=None if is_server else place, **settings)
    with closing(Discovery(chosen, store, in_background=False)) as discovery:
        yield discovery


def stage(discovery: Discovery, asked: dict[str, Any], tenant: str = "acme") -> str | None:
    found = discovery.stage_of(tenant, asked)
    discovery.catch_up()
    return found and found.name


def stages(discovery: Discovery, tenant: str = "acme") -> dict[str, str]:
    return {cluster.id: cluster.stage.name for cluster in discovery.clusters(tenant)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stages.sqlite"


@pytest.fixture(params=["a file", "a server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    """Yield a place that gateways share."""
    if request.param == "a file":
        yield tmp_path / "stages.sqlite"
    else:
        with running(tmp_path) as port:
            yield f"redis://127.0.0.1:{port}/0"


def test_the_first_request_gets_the_wider_stage_and_the_next_its_own() -> None:
    with discovering() as discovery:
        assert stage(discovery, body("Plan the trip.")) == "discovered"
        name = stage(discovery, body("Plan the trip.", "Hello again."))
        assert name is not None
        assert name.startswith("discovered/plan-")
        assert stage(discovery, body("Plan  the\ntrip.")) == name


def test_a_body_that_says_nothing_has_no_stage() -> None:
    with discovering() as discovery:
        assert stage(discovery, {"prompt": [1, 2]}) is None
        assert discovery.clusters("acme") == []


def test_a_new_prompt_of_a_known_template_has_its_stage_at_once() -> None:
    with discovering() as discovery:
        for number in range(12):
            stage(discovery, helping(number))
        name = stage(discovery, helping(1))
        assert stage(discovery, helping(500)) == name != "discovered"


def test_tenants_share_nothing() -> None:
    with discovering() as discovery:
        for tenant in ("acme", "bolt"):
            assert stage(discovery, body("Plan."), tenant) == "discovered"
        stage(discovery, body("Code."), "acme")
        found = discovery.stage_of("bolt", body("Plan."))
        assert found is not None
        assert found.tenant == "bolt"
        [plan] = discovery.clusters("bolt")  # has the same id as the other tenant's, but is another cluster
        discovery.name("bolt", plan.id, "mine/plan")
        assert "mine/plan" not in stages(discovery, "acme").values()
        [code] = set(stages(discovery, "acme")) - {plan.id}
        with pytest.raises(UnknownClusterError):
            discovery.merge("bolt", code, plan.id)
        with pytest.raises(UnknownClusterError):
            discovery.pin("carl", plan.id, True)


def test_the_thread_finds_out_by_itself() -> None:
    with closing(Discovery(DiscoverySettings(cpu_share=1))) as discovery:
        discovery.stage_of("acme", body("Plan."))
        discovery._waiting.join()
        assert len(discovery.clusters("acme")) == 1
    assert discovery._thread is not None
    assert not discovery._thread.is_alive()


def test_what_was_found_is_found_after_a_restart(place: Path | str) -> None:
    with discovering(place) as discovery:
        for number in range(12):
            stage(discovery, helping(number))
        stage(discovery, body("Plan."))
        found = stages(discovery)
        [fixed] = [one for one, name in found.items() if "plan" in name]
        discovery.name("acme", fixed, "my_agent/plan")
    with discovering(place) as discovery:
        assert stages(discovery) == {**found, fixed: "my_agent/plan"}
        assert stage(discovery, body("Plan.")) == "my_agent/plan"
        assert stage(discovery, helping(600)) == next(name for one, name in found.items() if one != fixed)
        assert sum(cluster.num_requests for cluster in discovery.clusters("acme")) == 15


def test_what_left_a_cluster_is_not_back_after_a_restart(place: Path | str) -> None:
    jobs = ["Look for mistakes.", "Count the words.", "Say it in French."]
    names = ["".join(chr(97 + number // 26**place % 26) for place in range(2)) for number in range(123)]
    asked = [
        body(f"A letter from {name} von {name} today. {jobs[i % 3]} Be brief.")
        for i, name in enumerate(names)
    ]
    with discovering(place) as discovery:
        for one in asked:
            stage(discovery, one)
        told = [stage(discovery, one) for one in asked]
        assert len(set(told)) == 3
    with discovering(place) as discovery:
        assert [stage(discovery, one) for one in asked] == told


def test_names_are_the_same_in_every_process_without_a_file() -> None:
    names = []
    for _ in range(2):
        with discovering() as discovery:
            stage(discovery, body("Plan."))
            names.append(stages(discovery))
    assert names[0] == names[1]


def test_no_prompt_is_in_the_file(path: Path) -> None:
    with discovering(path) as discovery:
        for number in range(12):
            stage(discovery, helping(number))
        stage(discovery, body(f"Write to {SECRET} once."))
        for conversation in "abc":
            stage(discovery, body("Order 4711 of ann@example.org stands.", conversation))
    for file in path.parent.iterdir():
        assert SECRET.encode() not in file.read_bytes()
        assert b"4711" not in file.read_bytes()
    assert b"helping" in path.read_bytes()


def test_an_operator_can_keep_all_text_out_of_the_file(path: Path) -> None:
    with discovering(path, keeps_text=False) as discovery:
        for number in range(12):
            stage(discovery, helping(number))
        found = stages(discovery)
    assert b"helping" not in path.read_bytes()
    with discovering(path, keeps_text=False) as discovery:
        assert stage(discovery, helping(3)) == next(iter(found.values()))  # by its digest
        for number in range(700, 720):
            stage(discovery, helping(number))
        assert stage(discovery, helping(800)) == next(iter(found.values()))  # the same template, found again


def test_the_file_is_its_owners(path: Path) -> None:
    with discovering(path):
        assert path.stat().st_mode & 0o077 == 0


def test_it_survives_being_killed(path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.settings import DiscoverySettings
discovery = Discovery(DiscoverySettings(path=Path({str(path)!r})), in_background=False)
for number in range(50):
    discovery.stage_of("acme", {{"instructions": f"Plan {{'abcdefghij'[number % 10]}}."}})
    discovery.catch_up()
discovery.name("acme", discovery.clusters("acme")[0].id, "my_agent/plan")
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S, check=False)
    assert run.returncode == -signal.SIGKILL
    with discovering(path) as discovery:
        assert len(discovery.clusters("acme")) == 10
        assert "my_agent/plan" in stages(discovery).values()


@contextmanager
def full_disk() -> Iterator[None]:
    """Prevent every file from growing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_once_and_costs_nothing_but_the_file(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with discovering(path) as discovery:
        with full_disk():
            for text in ("Plan.", "Code.", "Test."):
                stage(discovery, body(text))
            found = stages(discovery)
            assert len(found) == 3
            assert stage(discovery, body("Code.")) in found.values()
        told = [record for record in caplog.records if "can't be saved" in record.message]
        assert [record.levelno for record in told] == [logging.WARNING]
        discovery.save()
        assert "again" in caplog.messages[-1]
    with discovering(path) as discovery:
        assert stages(discovery) == found


def test_a_disk_that_is_full_at_the_start(path: Path) -> None:
    with full_disk(), discovering(path) as discovery:
        stage(discovery, body("Plan."))
        assert len(discovery.clusters("acme")) == 1


@pytest.mark.parametrize("content", [b"no database at all, but text " * 100, b"\0" * 5000])
def test_a_file_of_something_else_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="move it away"):
        Discovery(DiscoverySettings(path=path))
    assert path.read_bytes() == content


def test_a_file_of_another_version_is_refused(path: Path) -> None:
    with discovering(path):
        pass
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("update facts set value = 99 where name = 'version'")
    with pytest.raises(ConfigError, match="version 99"):
        Discovery(DiscoverySettings(path=path))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        Discovery(DiscoverySettings(path=tmp_path / "none" / "file"))


def test_two_gateways_at_one_place_agree(place: Path | str) -> None:
    with discovering(place) as one, discovering(place) as other:
        for number in range(24):
            stage((one, other)[number % 2], helping(number))
        for text in ("Plan.", "Code."):
            stage(one, body(text))
            stage(other, body(text))
        one.save()
        other.save()
        assert stages(one) == stages(other)
        [plan] = [cluster for cluster, name in stages(one).items() if "plan" in name]
        [code] = [cluster for cluster, name in stages(one).items() if "code" in name]
        one.name("acme", plan, "my_agent/plan")
        other.save()
        assert stage(other, body("Plan.")) == "my_agent/plan"
        other.merge("acme", code, plan)
        one.save()
        assert stage(one, body("Code.")) == "my_agent/plan"
        one.split("acme", plan)
        other.save()
        assert stages(one) == stages(other)
        assert len({stage(other, body(text)) for text in ("Plan.", "Code.")}) == 2


def test_what_people_did_at_one_gateway_is_not_undone_by_the_other(place: Path | str) -> None:
    with discovering(place) as one, discovering(place) as other:
        for number in range(12):
            stage(one, helping(number))
        stage(one, body("Plan."))
        other.save()
        [plan] = [cluster for cluster, name in stages(one).items() if "plan" in name]
        [helps] = set(stages(one)) - {plan}
        for number in range(20, 40):  # new to the other gateway, and not saved there yet
            other.stage_of("acme", helping(number))
        while other._place_next(timeout_s=0):
            pass
        one.merge("acme", helps, plan)
        other.save()
        one.save()
        assert set(stages(one)) == set(stages(other)) == {plan}
        assert stage(other, helping(3)) == stage(one, helping(50)) == stage(one, body("Plan."))


def test_what_the_other_gateway_did_first_is_refused_and_changes_nothing(place: Path | str) -> None:
    """The list that a person acts on may be older than another person's change."""
    with discovering(place) as one, discovering(place) as other:
        for text in ("Plan.", "Code.", "Test."):
            stage(one, body(text))
        plan, code, test = (cluster.id for cluster in one.clusters("acme"))
        other.save()
        other.merge("acme", code, plan)
        with pytest.raises(UnknownClusterError, match=code):
            one.merge("acme", code, test)
        with pytest.raises(UnknownClusterError, match=code):
            one.split("acme", code)
        members = [digest.hex() for digest in other.merge("acme", test, plan).members]
        other.split("acme", plan, members[:1])
        with pytest.raises(RequestError, match=members[0]):
            one.split("acme", plan, members[:1])
        assert len(stages(one)) == 2
        assert stages(one) == stages(other)


def test_two_processes_can_not_corrupt_the_file(path: Path) -> None:
    """One process may change a cluster that the other has merged into another: that is refused."""
    settings = f"DiscoverySettings(path=Path({str(path)!r}), max_clusters=20)"
    run_two(f"Discovery({settings}, in_background=False)")
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("pragma integrity_check").fetchone() == ("ok",)
    with discovering(path) as discovery:
        clusters = discovery.clusters("acme")
        members = [digest for cluster in clusters for digest in cluster.members]
        assert len(members) == len(set(members)) > 0


def test_a_wrong_call_changes_neither_memory_nor_file(place: Path | str) -> None:
    with discovering(place) as discovery:
        stage(discovery, body("Plan."))
        found = stages(discovery)
        [cluster_id] = found
        with pytest.raises(UnknownClusterError):
            discovery.pin("acme", "none", True)
        with pytest.raises(RequestError):
            discovery.split("acme", cluster_id)
        assert stages(discovery) == found
    with discovering(place) as discovery:
        assert stages(discovery) == found


def test_memory_is_bounded() -> None:
    with discovering(max_clusters=10) as discovery:
        for number in range(MAX_RECENT + 100):
            discovery.stage_of("acme", {"prompt": f"{number}"})
        assert len(discovery._tenants["acme"].recent) == MAX_RECENT
        assert discovery._waiting.qsize() <= 1024


def test_many_threads_at_once(path: Path) -> None:
    with closing(Discovery(DiscoverySettings(path=path, cpu_share=1))) as discovery:
        failed: list[BaseException] = []

        def ask(first: int) -> None:
            try:
                for number in range(first, first + 60):
                    discovery.stage_of("acme", helping(number % 80))
                    if number % 20 == 0:
                        for cluster in discovery.clusters("acme"):
                            with suppress(UnknownClusterError):  # it was merged into another meanwhile
                                discovery.pin("acme", cluster.id, number % 40 == 0)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=ask, args=(17 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        assert failed == []


def test_nothing_of_a_request_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with discovering(path) as discovery:
        for number in range(20):
            stage(discovery, helping(number))
    assert SECRET not in caplog.text


def test_the_file_can_come_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_DISCOVERY_FILE", os.fspath(path))
    assert DiscoverySettings.from_environment().path == path
    monkeypatch.setenv("AGENTSPEC_DISCOVERY_FILE", "")
    assert DiscoverySettings.from_environment().path is None
