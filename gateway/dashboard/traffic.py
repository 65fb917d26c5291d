"""Statistics of the gateway's calls by tenant and stage: calls in flight, tags, latencies, and which stage
follows which.

Every call updates them, with or without an open dashboard. :meth:`TrafficStats.begin` and
:meth:`TrafficStats.end` take less than two microseconds together, and memory is bounded. The engines'
counters are not part of them; ``routes`` joins both.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from agentspec.stats import MAX_STAGES
from agentspec.tags import Tags

FIRST_FAILURE = 400
MAX_SESSIONS = 4096
MAX_EDGES = 1024
MAX_ABREAST = 64  # ended stages of one session that no other call has followed yet


class StageTraffic:
    """Traffic stats of one stage.

    Attributes:
        num_ended, num_failed: number of ended calls, and of those among them that failed.
        seconds: sum of the durations of ended calls.
        tag_sources: number of calls by the stage resolver that found the stage (``stages.resolver``).
    """

    __slots__ = ("num_ended", "num_failed", "num_running", "seconds", "tag_sources")

    def __init__(self) -> None:
        self.num_running = self.num_ended = self.num_failed = 0
        self.seconds = 0.0
        self.tag_sources: dict[str, int] = {}


class TenantTraffic:
    """Traffic stats of one tenant.

    Attributes:
        stages: stats by path. Stages beyond ``max_stages`` share one entry and are not in the workflow graph.
        graph: workflow graph.
    """

    def __init__(self, max_stages: int = MAX_STAGES) -> None:
        self.stages: dict[StagePath, StageTraffic] = {}
        self.graph = WorkflowGraph()
        self._rest = StageTraffic()
        self._max_stages = max_stages

    def traffic(self, path: StagePath) -> tuple[StageTraffic, bool]:
        """Return the entry for a stage's calls, and True if that is its own."""
        known = self.stages.get(path)
        if known is not None:
            return known, True
        if len(self.stages) >= self._max_stages:
            return self._rest, False
        return self.stages.setdefault(path, StageTraffic()), True


class InFlightCall:
    """One call in flight."""

    __slots__ = ("began_s", "graph", "step", "traffic")

    def __init__(
        self, traffic: StageTraffic, graph: WorkflowGraph, step: GraphStep | None, began_s: float
    ) -> None:
        self.traffic = traffic
        self.graph = graph
        self.step = step
        self.began_s = began_s


class TrafficStats:
    """Traffic stats of all tenants. Used from the event loop only.

    Args:
        clock: clock in seconds, with any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tenants: dict[str, TenantTraffic] = {}
        self._clock = clock

    def of(self, tenant: str) -> TenantTraffic:
        """Return the stats of a tenant; a live object."""
        known = self._tenants.get(tenant)
        return known if known is not None else self._tenants.setdefault(tenant, TenantTraffic())

    def all(self) -> Mapping[str, TenantTraffic]:
        """Return the stats of every tenant; a live object."""
        return self._tenants

    def begin(self, tags: Tags) -> InFlightCall:
        """Count the start of a call. :meth:`end` must follow in any case."""
        stage = tags.stage
        path = stage.path
        tenant = self.of(stage.tenant)
        traffic, is_own = tenant.traffic(path)
        traffic.num_running += 1
        sources = traffic.tag_sources
        sources[tags.stage_source] = sources.get(tags.stage_source, 0) + 1
        step = tenant.graph.begin(tags.session, path) if tags.session is not None and is_own else None
        return InFlightCall(traffic, tenant.graph, step, self._clock())

    def end(self, call: InFlightCall, status: int) -> None:
        """Count the end of a call. ``status`` is that of the response, 0 without one."""
        traffic = call.traffic
        traffic.num_running -= 1
        traffic.num_ended += 1
        traffic.seconds += self._clock() - call.began_s
        if not 0 < status < FIRST_FAILURE:
            traffic.num_failed += 1
        elif call.step is not None:
            call.graph.end(call.step)


StagePath = tuple[str, ...]


class _Session:
    """One run of the workflow.

    Attributes:
        now: logical time: number of starts and ends of calls so far.
        ended: stages without an ended successor to their last call, with the time of that call's end.
    """

    __slots__ = ("ended", "now")

    def __init__(self) -> None:
        self.now = 0
        self.ended: dict[StagePath, int] = {}


class GraphStep:
    """A call in flight: its stage, the stages it follows, and its start in the session's logical time."""

    __slots__ = ("after", "began", "session", "stage")

    def __init__(self, session: _Session, stage: StagePath) -> None:
        session.now += 1
        self.session = session
        self.stage = stage
        self.began = session.now
        # a stage that has just ended and starts again is a retry, which the other stages do not lead to
        self.after = (stage,) if stage in session.ended else tuple(session.ended)


class WorkflowGraph:
    """The workflow graph of one tenant. Evicts the sessions idle longest, but never an edge.

    Attributes:
        edges: number of occurrences by (stage, next stage). Beyond ``max_edges`` no new edge is added.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS, max_edges: int = MAX_EDGES) -> None:
        self.edges: dict[tuple[StagePath, StagePath], int] = {}
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._max_sessions = max_sessions
        self._max_edges = max_edges

    def begin(self, session: str, stage: StagePath) -> GraphStep:
        """Record the start of a call of the session."""
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = _Session()
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(session)
        return GraphStep(known, stage)

    def end(self, step: GraphStep) -> None:
        """Record the end of a successful call. Failed calls are not steps, and must not be passed."""
        session, edges = step.session, self.edges
        for before in step.after:
            edge = (before, step.stage)
            if edge in edges:
                edges[edge] += 1
            elif len(edges) < self._max_edges:
                edges[edge] = 1
        ended = session.ended
        if session.now == step.began:  # no other call started or ended meanwhile: all others ended before
            ended.clear()
        else:
            for before in [stage for stage, end in ended.items() if end < step.began]:
                del ended[before]
        session.now += 1
        if len(ended) < MAX_ABREAST:
            ended[step.stage] = session.now
