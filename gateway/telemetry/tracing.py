"""One OpenTelemetry span per call: time, engine and token usage, never the content.

Needs ``agentspec-serving[otel]``, and is imported only if tracing is enabled. Names follow OpenTelemetry's
semantic conventions for HTTP servers and generative AI. Other names begin with ``agentspec.``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from agentspec.gateway.call import CallLog, Endpoint
from agentspec.gateway.upstreams.usage import num_input_tokens, num_output_tokens

OPERATIONS: Mapping[str, str] = {
    Endpoint.CHAT: "chat",
    Endpoint.CHAT_BATCH: "chat",
    Endpoint.RESPONSES: "chat",
    Endpoint.MESSAGES: "chat",
    Endpoint.COMPLETIONS: "text_completion",
}
TRACE_HEADERS = ("traceparent", "tracestate")
MAX_NAME_CHARS = 256

Attribute = str | int


class Tracing:
    """Creates the spans of one gateway; ``provider`` exports them."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("agentspec.gateway")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, method: str, endpoint: str, headers: Headers, record: CallLog) -> Span:
        """Start the span of a new call: a child of the client's span, and the parent of the engine's."""
        given = {name: ",".join(values) for name in TRACE_HEADERS if (values := headers.getlist(name))}
        span = self._tracer.start_span(
            f"{method} {endpoint}",
            self._propagator.extract(given),
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": endpoint},
        )
        passed: dict[str, str] = {}
        self._propagator.inject(passed, set_span_in_context(span))
        record.trace_headers = {name.encode(): value.encode("latin-1") for name, value in passed.items()}
        return span

    def end(self, span: Span, endpoint: str, status: int, request_id: str, record: CallLog) -> None:
        """End the span of a finished call."""
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("agentspec.request_id", request_id)
        if span.is_recording():
            span.set_attributes(dict(_attributes(endpoint, record)))
        if status >= 500 or record.is_broken:
            span.set_attribute("error.type", str(record.outcome or status))
            span.set_status(StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Send the spans that are still buffered."""
        self._provider.shutdown()


def exporting(endpoint: str | None) -> Tracing:
    """Return a :class:`Tracing` that sends spans to a collector by OTLP over HTTP.

    Args:
        endpoint: the collector's base URL; None = the one in ``$OTEL_EXPORTER_OTLP_ENDPOINT`` and related
            variables.
    """
    url = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
    provider = TracerProvider(resource=_resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return Tracing(provider)


def _resource() -> Resource:
    """Return our service name, unless ``$OTEL_SERVICE_NAME`` or ``$OTEL_RESOURCE_ATTRIBUTES`` override it."""
    given = OTELResourceDetector().detect()
    return Resource.create({SERVICE_NAME: "agentspec", **given.attributes})


def _attributes(endpoint: str, record: CallLog) -> Iterator[tuple[str, Attribute]]:
    named = {
        "gen_ai.operation.name": OPERATIONS.get(endpoint),
        "gen_ai.request.model": record.named_model,
        "gen_ai.response.id": _text(record.reported, "id"),
        "gen_ai.response.model": _text(record.reported, "model"),
        "agentspec.tenant": record.tenant,
        "agentspec.stage": record.tags and record.tags.stage.name,
        "agentspec.stage_source": record.tags and record.tags.stage_source,
        "agentspec.upstream": record.upstream,
        "agentspec.outcome": record.outcome and record.outcome.value,
        "agentspec.num_retries": record.num_retries if record.num_tries else None,
    }
    yield from ((name, value) for name, value in named.items() if isinstance(value, str | int))
    if "usage" in record.reported:
        yield "gen_ai.usage.input_tokens", num_input_tokens(record.reported)
        yield "gen_ai.usage.output_tokens", num_output_tokens(record.reported)


def _text(reported: Mapping[str, object], name: str) -> str | None:
    value = reported.get(name)
    return value[:MAX_NAME_CHARS] if isinstance(value, str) else None
