from __future__ import annotations

from agentspec.corpus.corpus import CorpusFigures
from agentspec.corpus.learner import LearnerFigures
from agentspec.corpus.publisher import PublisherFigures
from agentspec.gateway import Fleet, FleetSettings, UpstreamSettings
from agentspec.gateway.upstreams.metrics import (
    CORPUS_COUNTERS,
    CORPUS_GAUGES,
    corpus_metrics,
)
from tests.gateway.support.answering import IMPATIENT, answering
from tests.gateway.support.live import (
    TIMEOUT_S,
    chat_body,
    post,
    serving,
    serving_engine,
    serving_proxy,
)
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.telemetry import Samples, scrape


def of_upstream(samples: Samples, name: str, upstream: str, **labels: str) -> float:
    return samples[f"agentspec_upstream_{name}", tuple(sorted({"upstream": upstream, **labels}.items()))]


def test_answers_of_an_engine_are_counted_and_timed() -> None:
    with serving_engine(ScriptedEngine()) as engine, serving_proxy(engine, settings={"name": "a"}) as root:
        for _ in range(3):
            post(root, chat_body(stream=True))
        samples = scrape(root)
    assert of_upstream(samples, "requests_total", "a") == 3
    assert of_upstream(samples, "failures_total", "a") == of_upstream(samples, "retries_total", "a") == 0
    assert of_upstream(samples, "first_byte_seconds_count", "a") == 3
    assert of_upstream(samples, "first_byte_seconds_bucket", "a", le="+Inf") == 3
    assert 0 < of_upstream(samples, "first_byte_seconds_sum", "a") < TIMEOUT_S
    assert of_upstream(samples, "running", "a") == 0
    assert of_upstream(samples, "up", "a") == 1
    assert samples["agentspec_gateway_waiting", ()] == 0


def test_failures_and_retries_are_counted_where_they_happen() -> None:
    with answering(503) as (broken, _), serving_engine(ScriptedEngine()) as engine:
        settings = FleetSettings(
            upstreams=(
                UpstreamSettings(url=broken, name="broken", weight=1000),
                UpstreamSettings(url=engine, name="well"),
            ),
            **IMPATIENT,
        )
        with serving(Fleet(settings)) as root:
            assert post(root, chat_body()).status_code == 200
            samples = scrape(root)
    assert of_upstream(samples, "requests_total", "broken") == 1
    assert (
        of_upstream(samples, "failures_total", "broken") == of_upstream(samples, "retries_total", "well") == 1
    )
    assert of_upstream(samples, "failures_total", "well") == 0


def test_an_engine_that_is_gone_is_down(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    fleet = {"health": {"num_failed_looks": 1}, "retries": {"num_retries": 0}}
    with serving_proxy(url, settings={"name": ""}, fleet=fleet) as root:  # without a name: the URL
        assert scrape(root)["agentspec_upstream_up", (("upstream", url),)] == 0
        assert post(root, chat_body()).status_code == 502
        samples = scrape(root)
    assert of_upstream(samples, "failures_total", url) == 1
    assert of_upstream(samples, "first_byte_seconds_count", url) == 0


async def test_figures_go_on_when_the_settings_of_an_engine_change() -> None:
    def settings(weight: float, *names: str) -> FleetSettings:
        return FleetSettings(
            upstreams=tuple(
                UpstreamSettings(url="http://a.invalid", name=name, weight=weight) for name in names
            )
        )

    fleet = Fleet(settings(1, "a", "b"))
    await fleet.start()
    fleet._replicas[0].metrics.requests.inc(7)
    fleet.apply(settings(2, "b", "a"))
    requests = next(
        family for family in await fleet.metrics() if family.name == "agentspec_upstream_requests"
    )
    assert {
        sample.labels["upstream"]: sample.value
        for sample in requests.samples
        if sample.name.endswith("_total")
    } == {"a": 7, "b": 0}
    await fleet.close()


def test_every_figure_of_a_corpus_has_a_metric() -> None:
    learner = LearnerFigures(5, 50, 1.5, 1, 2, 3, 6, 0.25)
    publisher = PublisherFigures(7, 8, 9, 10, 12, None)
    figures = CorpusFigures(publisher, learner, 13, 14, 15).describe()
    assert {key for _, key, _ in (*CORPUS_COUNTERS, *CORPUS_GAUGES)} == figures.keys()
    families = list(corpus_metrics({"a": figures, "b": {"lag_s": 9.0}}))
    samples = {(one.name, one.labels["upstream"]): one.value for all_ in families for one in all_.samples}
    assert samples["agentspec_corpus_published_outputs_total", "a"] == 7
    assert samples["agentspec_corpus_store_failures_total", "a"] == 12 + 6 + 14
    assert samples["agentspec_corpus_lag_seconds", "b"] == 9
    assert ("agentspec_corpus_memory_bytes", "b") not in samples  # an older plugin has no such figure
