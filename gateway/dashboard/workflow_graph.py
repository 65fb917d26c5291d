"""A workflow graph of the stages that follow each other, learned from the calls of sessions.

A call follows every call of its session that had ended when it began, except those that another ended call
had already followed. So fan-out and fan-in appear in the graph. Calls without a session are ignored: their
order is a matter of chance.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_SESSIONS = 4096
MAX_EDGES = 1024
MAX_ABREAST = 64  # ended stages of one session that no other call has followed yet

Path = tuple[str, ...]


class _Session:
    """One run of the workflow.

    Attributes:
        now: logical time: number of starts and ends of calls so far.
        ended: stages without an ended successor to their last call, with the time of that call's end.
    """

    __slots__ = ("ended", "now")

    def __init__(self) -> None:
        self.now = 0
        self.ended: dict[Path, int] = {}


class GraphStep:
    """A call in flight: its stage, the stages it follows, and its start in the session's logical time."""

    __slots__ = ("after", "began", "session", "stage")

    def __init__(self, session: _Session, stage: Path) -> None:
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
        self.edges: dict[tuple[Path, Path], int] = {}
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._max_sessions = max_sessions
        self._max_edges = max_edges

    def begin(self, session: str, stage: Path) -> GraphStep:
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
