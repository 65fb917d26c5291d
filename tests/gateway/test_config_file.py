# ruff: noqa: E501  (one row per line)
from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from agentspec.gateway import yaml_limits
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.settings import Settings

DIGEST = "ab" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agentspec.yaml"


def test_an_empty_file_and_none_are_all_defaults(file: Path) -> None:
    file.write_text("")
    assert load_settings(file) == load_settings(None) == Settings()


def test_a_file_says_everything(file: Path) -> None:
    file.write_text(
        f"""\
server: {{host: 0.0.0.0, port: 80, log_format: json}}
keys:
  - {{sha256: {DIGEST}, tenant: acme, requests_per_minute: 60}}
upstreams:
  - {{url: "http://gpu-1:8000/v1", models: [a, b], weight: 2, max_concurrent: 8}}
  - {{url: "http://gpu-2:8000", name: second}}
routing: {{policy: session, spill: 1.5}}
retries: {{statuses: [503]}}
"""
    )
    settings = load_settings(file)
    assert (settings.server.port, settings.server.log_format) == (80, "json")
    assert (settings.keys[0].tenant, settings.keys[0].requests_per_minute) == ("acme", 60)
    assert [one.label for one in settings.upstreams] == ["http://gpu-1:8000", "second"]
    assert settings.upstreams[0].models == ("a", "b")
    assert (settings.routing.policy, settings.retries.statuses) == ("session", {503})


def test_the_environment_goes_before_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("routing: {spill: 3, max_waiting: 7}")
    monkeypatch.setenv("AGENTSPEC_ROUTING__SPILL", "2")
    monkeypatch.setenv("AGENTSPEC_UPSTREAMS", '[{"url": "http://a"}]')
    settings = load_settings(file)
    assert (settings.routing.spill, settings.routing.max_waiting) == (2, 7)
    assert settings.upstreams[0].url == "http://a"


def test_secrets_come_from_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("upstreams:\n  - url: http://a\n    api_key: ${ENGINE_KEY}\n")
    monkeypatch.setenv("ENGINE_KEY", "123")
    settings = load_settings(file)
    assert settings.upstreams[0].api_key == "123"
    assert "123" not in repr(settings)
    monkeypatch.delenv("ENGINE_KEY")
    with pytest.raises(ConfigError, match=r"agentspec\.yaml:3: there is no \$ENGINE_KEY"):
        load_settings(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server:\n  port: 99999", ":2: server.port: "),
        ("upstreams:\n  - url: http://a\n    weight: -1", ":3: upstreams[0].weight: "),
        ("routing:\n  spil: 2", ":2: routing.spil is no setting; did you mean spill?"),
        ("keys:\n  - sha: 1", ":2: keys[0].sha is no setting; did you mean sha256?"),
        ("discovery:\n  pat: a", ":2: discovery.pat is no setting; did you mean path?"),
        ("\nroutin:\n  spill: 2", ":2: routin is no setting; did you mean routing?"),
        ("port: 80", ":1: port is no setting; did you mean server.port?"),
        (
            "routing: {zebra: 1}",
            ":1: routing.zebra is no setting; there are: policy, spill, max_waiting, affinity_key",
        ),
        ("xyz: 1", ":1: xyz is no setting; there are: server, keys, "),
        ("engine:\n  slots: 0", ":2: engine.slots: "),
        ("engine:\n  device: abacus", ":2: engine.device: "),
        ("upstreams: [{url: ftp://a}]", ": an engine URL looks like"),
        ("upstreams: [{url: 'http://169.254.169.254'}]", "link-local"),
        ("upstreams: [{url: 'http://a'}, {url: 'http://a'}]", "two upstreams have one name"),
        (f"keys: [{{sha256: {DIGEST}}}, {{sha256: {DIGEST.upper()}, tenant: b}}]", "given to two tenants"),
        ("keys: [{tenant: a}]", ":1: keys[0].sha256: Field required"),
        ("- server", ":1: the file must be a mapping"),
        ("server: {port: 1}\nserver: {port: 2}", ":2: 'server' is there twice"),
        ("server: [", "this is no YAML"),
        (
            "server: !!python/object/apply:os.system [true]",
            ":1: the tag 'tag:yaml.org,2002:python/",
        ),
        ("a: &a [*a]", ":1: "),
    ],
)
def test_an_error_names_its_place(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def bomb(levels: int) -> str:
    """Return a file of some hundred bytes that stands for 9 to the power of ``levels`` values."""
    lines = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join(["a0: &a0 [x]", *lines])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(9), "its aliases stand for more than 100000 values"),
        (bomb(40), "its aliases stand for more than 100000 values"),
        ("keys: &k [*k]", "stands for a part of itself"),
        ("a: &a {b: &b [*a]}", "stands for a part of itself"),
        ("\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 900))]), "or 32 levels"),
        ("\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))]), "stand for"),
        ("[" * 3_000, "nested more than 32 deep"),
        ("{" * 3_000, "nested more than 32 deep"),
        ("- " * 3_000, "nested more than 32 deep"),
        ("? " * 3_000, "nested more than 32 deep"),
        ("[\n" * 3_000, "nested more than 32 deep"),
        ("server: " + "[" * 40 + "]" * 40, ":1: it is nested more than 32 deep"),
        ("\n".join("  " * n + f"k{n}:" for n in range(40)), "nested more than 32 deep"),
        ("#" * (2 << 20) + "\n", "has more than 2097152 bytes"),
        ("server: {port: " + "9" * 5_000 + "}", "this is no YAML"),
        ("server: \x00", "this is no YAML"),
    ],
)  # fmt: skip
def test_a_file_beyond_the_limits_is_refused_at_once(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def test_aliases_within_the_limits(file: Path) -> None:
    file.write_text(f"""\
keys:
  - &key {{sha256: {DIGEST}, tenant: acme, requests_per_minute: &most 60}}
  - {{<<: *key, sha256: {"cd" * 32}}}
limits: {{num_stage_labels: *most}}
""")
    settings = load_settings(file)
    assert [key.tenant for key in settings.keys] == ["acme", "acme"]
    assert settings.limits.num_stage_labels == 60


def test_thousands_of_keys_are_within_the_limits(file: Path) -> None:
    lines = (f"  - {{sha256: a{number:063x}, tenant: t{number}}}\n" for number in range(2_000))
    file.write_text("keys:\n" + "".join(lines))
    assert len(load_settings(file).keys) == 2_000


def test_a_number_of_values(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_limits, "MAX_NODES", 99)
    file.write_text("retries: {statuses: [" + ", ".join(["503"] * 94) + "]}")
    assert load_settings(file).retries.statuses == {503}
    file.write_text("retries: {statuses: [" + ", ".join(["503"] * 95) + "]}")
    with pytest.raises(ConfigError, match=r"agentspec\.yaml:1: it has more than 99 values"):
        load_settings(file)


def test_many_mistakes_are_a_short_message(file: Path) -> None:
    file.write_text("keys:\n" + "  - {sha256: x}\n" * 500)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    *first, last = str(caught.value).splitlines()
    assert len(first) == 20
    assert last == "and 480 more"


def test_what_is_no_text_is_no_file(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is no UTF-8 text"):
        load_settings(file)
    with pytest.raises(ConfigError, match="can't read"):
        load_settings(file.parent)


def test_scalars_are_plain(file: Path) -> None:
    """YAML 1.2: "no" is text, and a setting that is true or false takes it as false."""
    file.write_text(
        f"""\
server: {{allow_open: on, port: &port 0x50, grace_s: 1e1}}
health: {{timeout_s: 1_0.5}}
keys: [{{sha256: {DIGEST}, tenant: no}}]
limits: &limits {{}}
upstreams: [{{url: "http://a", sends_xargs: no}}]
"""
    )
    settings = load_settings(file)
    assert settings.server.model_dump(include={"allow_open", "port", "grace_s"}) == {
        "allow_open": True,
        "port": 80,
        "grace_s": 10.0,
    }
    assert type(settings.server.port) is int
    assert settings.keys[0].tenant == "no"
    assert settings.upstreams[0].sends_xargs is False


def test_merged_groups(file: Path) -> None:
    file.write_text(
        "upstreams:\n- &first {url: 'http://a', weight: 2}\n- <<: *first\n  url: http://b\n  weight: 0\n"
    )
    with pytest.raises(ConfigError, match=r"agentspec\.yaml:5: upstreams\[1\]\.weight: "):
        load_settings(file)
    file.write_text(file.read_text().replace("  weight: 0\n", ""))
    assert [(one.url, one.weight) for one in load_settings(file).upstreams] == [
        ("http://a", 2),
        ("http://b", 2),
    ]


def test_every_error_is_told_at_once(file: Path) -> None:
    file.write_text("server:\n  port: 99999\nrouting:\n  spill: 0\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [f"{file}:2", f"{file}:4"]


def test_an_error_in_the_environment_names_the_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("routing: {spill: 3}")
    monkeypatch.setenv("AGENTSPEC_ROUTING__SPILL", "0")
    with pytest.raises(ConfigError, match=r"^\$AGENTSPEC_ROUTING__SPILL: routing\.spill: .*, not '0'$"):
        load_settings(file)


@pytest.mark.parametrize(
    "text", ["keys: [{sha256: s3cret}]", "upstreams: [{url: 'http://a', api_key: [s3cret]}]"]
)
def test_no_secret_is_shown(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_settings(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"server: \xe9")
    with pytest.raises(ConfigError, match="no UTF-8 text"):
        load_settings(tmp_path / "latin.yaml")
