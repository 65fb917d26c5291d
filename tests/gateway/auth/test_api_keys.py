from __future__ import annotations

import argparse
import json
from pathlib import Path

import httpx
import openai
import pytest
from starlette.datastructures import Headers

from agentspec.cli import main
from agentspec.commands.key import run_key
from agentspec.errors import AgentSpecError, ConfigError, StageError
from agentspec.gateway import ApiKeys
from agentspec.gateway.auth.api_keys import given_key
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.errors import AuthError
from tests.gateway.support.live import chat_body, client_of, post, serving_engine
from tests.gateway.support.scripted import ScriptedEngine

BAD_TENANTS = ["../x", "a b", "a/b", "..", ".", "a:b", "bad\ttenant", "caf\u00e9", "x" * 65, "a\n", "{}", "'"]


@pytest.mark.parametrize(
    ("text", "key", "tenant"),
    [
        ("k1", "k1", "default"),
        ("k1=acme", "k1", "acme"),
        ("YWJj==", "YWJj==", "default"),
        ("YWJj===acme", "YWJj==", "acme"),
    ],
)
def test_how_keys_are_written(text: str, key: str, tenant: str) -> None:
    assert ApiKeys.parse([text]).principal(key).tenant == tenant


def test_bad_keys_are_refused_and_not_shown() -> None:
    for texts in ([""], ["=acme"], ["s3cret é=acme"], ["s3cret=a", "s3cret=b"]):
        with pytest.raises(ConfigError) as caught:
            ApiKeys.parse(texts)
        assert "s3cret" not in str(caught.value)
    for text in ("=", "==", "===", "==acme"):  # "$KEY=$TENANT" with unset variables
        with pytest.raises(ConfigError, match="KEY=TENANT"):
            ApiKeys.parse([text])


@pytest.mark.parametrize("tenant", BAD_TENANTS)
def test_a_tenants_name_is_a_plain_word_wherever_it_is_given(tenant: str, tmp_path: Path) -> None:
    digest = "ab" * 32
    with pytest.raises(StageError, match="a tenant's name"):
        ApiKeys.parse([f"k={tenant}"])
    with pytest.raises(StageError, match="a tenant's name"):
        run_key(argparse.Namespace(tenant=tenant))
    (tmp_path / "file").write_text(json.dumps({"keys": [{"sha256": digest, "tenant": tenant}]}))
    with pytest.raises(AgentSpecError, match="a tenant's name"):
        load_settings(tmp_path / "file")


@pytest.mark.parametrize("tenant", ["acme", "Acme_2.eu-west", "..a", "7", "x" * 64])
def test_plain_names_of_tenants(tenant: str) -> None:
    assert ApiKeys.parse([f"k={tenant}"]).principal("k").tenant == tenant


@pytest.mark.parametrize("options", [["--admin-key", ""], ["--api-key", "="]])
def test_an_option_whose_variable_is_not_set_stops_the_start(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--dry-run", *options]) == 1
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "header", [None, "", "k1", "Basic k1", "Bearer", "Bearer ", "Bearer k", "Bearer k11"]
)
def test_no_other_key_opens(header: str | None) -> None:
    with pytest.raises(AuthError):
        ApiKeys.parse(["k1=acme"]).principal(
            given_key(Headers({} if header is None else {"authorization": header}))
        )


def test_without_keys_everybody_is_the_default_tenant() -> None:
    assert not ApiKeys()
    assert ApiKeys().principal("whatever").tenant == "default"


def test_the_tenant_comes_from_the_key_alone() -> None:
    engine = ScriptedEngine()
    with serving_engine(engine, keys=ApiKeys.parse(["ka=acme", "kb=bolt"])) as root:
        for key, tenant in (("ka", "acme"), ("kb", "bolt")):
            with client_of(root, api_key=key) as client:
                client.chat.completions.create(
                    **chat_body(metadata={"agentspec_tenant": "victim"}),
                    extra_body={"vllm_xargs": {"agentspec_tenant": "victim"}},
                )
            assert engine.last.tags.stage.tenant == tenant
        num_answered = len(engine.requests)
        with client_of(root, api_key="nobody") as client, pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(**chat_body())
        assert caught.value.code == "invalid_api_key"
        assert len(engine.requests) == num_answered


def test_every_form_of_the_api_is_locked_and_the_probes_are_not() -> None:
    with serving_engine(ScriptedEngine(), keys=ApiKeys.parse(["k1"])) as root:
        for path in ("/v1/chat/completions", "/v1/completions", "/stages/a/v1/chat/completions", "/v1/none"):
            answer = post(root, chat_body(), path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for path in ("/v1/models", "/v1/models/scripted", "/stages/a/b/v1/models"):
            assert httpx.get(root + path).status_code == 401
            assert httpx.get(root + path, headers={"authorization": "Bearer k1"}).status_code == 200
        for path in ("/health", "/metrics"):
            assert httpx.get(root + path).status_code == 200
