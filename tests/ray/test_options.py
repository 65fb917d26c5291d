"""Arguments of the application: no cluster is started."""

from __future__ import annotations

from hashlib import sha256

import pytest

from agentspec.errors import ConfigError


def read(**given):
    from agentspec.ray.options import read_arguments

    return read_arguments(given)


def test_arguments_are_the_clusters_and_the_engines():
    cluster, options, settings = read(
        engines="2", max_engines="4", gpus="0.5", slots="8", corpus="/srv/corpus"
    )
    assert (cluster.engines, cluster.max_engines, cluster.gpus, cluster.is_scaled) == (2, 4, 0.5, True)
    assert (settings.engine.slots, settings.engine.corpus) == (8, "/srv/corpus")
    assert options.engine.slots == 8


def test_stages_of_the_corpus_are_a_text_or_a_mapping():
    for given in ("support=none,support/billing=fleet", {"support": "none", "support/billing": "fleet"}):
        _, _, settings = read(corpus="redis://store", corpus_stages=given)
        assert settings.engine.corpus_stages == {"support": "none", "support/billing": "fleet"}


def test_a_file_is_read_where_the_application_is_built(tmp_path):
    path = tmp_path / "agentspec.yaml"
    path.write_text("engine: {slots: 4}\nretries: {num_retries: 5}\n")
    _, _, settings = read(config=str(path), threads=1)
    assert (settings.engine.slots, settings.engine.threads, settings.retries.num_retries) == (4, 1, 5)


def test_keys_of_the_environment_travel_as_digests(monkeypatch):
    monkeypatch.setenv("AGENTSPEC_API_KEYS", "s3cret=acme")
    monkeypatch.setenv("AGENTSPEC_ADMIN_KEY", "operator")
    _, options, settings = read()
    assert [(key.sha256, key.tenant) for key in settings.keys] == [(sha256(b"s3cret").hexdigest(), "acme")]
    assert settings.admin_key_sha256 == sha256(b"operator").hexdigest()
    assert "s3cret" not in repr((options, settings.model_dump()))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"engins": 2}, "engins"),
        ({"engines": 0}, "engines"),
        ({"engines": 3, "max_engines": 2}, "max_engines is 2"),
        ({"slots": "many"}, "slots"),
        ({"forest_file": "trees"}, "engine.corpus"),
        ({"zero_hop": True}, "zero_hop"),
        ({"hybrid_threshold": 2}, "hybrid_threshold was removed: remove it"),
        ({"corpus_stages": "support=all"}, "corpus_stages.*STAGE=none"),
    ],
)
def test_wrong_arguments_are_named(given, named):
    with pytest.raises(ConfigError, match=named):
        read(**given)


def test_running_engines_are_refused(tmp_path):
    path = tmp_path / "agentspec.yaml"
    path.write_text("upstreams: [{url: 'http://127.0.0.1:8001'}]\n")
    with pytest.raises(ConfigError, match="agentspec serve"):
        read(config=str(path))


def test_the_application_has_an_engine_deployment_with_consistent_hashing():
    from agentspec.ray import app

    built = app({"engines": 2, "slots": 8, "drain_s": 7})
    gateway = built._bound_deployment
    assert gateway.name == "gateway"
    engines = gateway.init_args[2]._bound_deployment
    assert (engines.name, engines.num_replicas, engines.max_ongoing_requests) == ("engine", 2, 8)
    router = engines._deployment_config.request_router_config.get_request_router_class()
    assert router.__name__ == "ConsistentHashRouter"
