"""A workflow as its calls draw it: which stage follows which, learned from sessions.

Within its session a call follows every call that had ended when it began, but those that yet another one
had followed by then: what fans out and what comes together is drawn as such. Calls without a session draw
nothing: who overlaps or follows whom among them is chance.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_SESSIONS = 4096
MAX_EDGES = 1024
MAX_ABREAST = 64  # stages of one session that nothing has followed yet

Path = tuple[str, ...]


class _Session:
    """One run of the workflow.

    Attributes:
        now: counts its begins and ends.
        ended: stages whose last call nothing has followed to an end yet, with the time of that call's end.
    """

    __slots__ = ("ended", "now")

    def __init__(self) -> None:
        self.now = 0
        self.ended: dict[Path, int] = {}


class GraphStep:
    """A call under way: its stage, the stages it follows, and when it began, as its session counts."""

    __slots__ = ("after", "began", "session", "stage")

    def __init__(self, session: _Session, stage: Path) -> None:
        session.now += 1
        self.session = session
        self.stage = stage
        self.began = session.now
        # what has just ended and begins again is another try, and no step that the others lead to
        self.after = (stage,) if stage in session.ended else tuple(session.ended)


class WorkflowGraph:
    """One tenant's workflows. Sessions that were idle longest are forgotten first, edges never.

    Attributes:
        edges: (stage, next stage), and how often that was seen. Beyond ``max_edges`` no new one is learned.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS, max_edges: int = MAX_EDGES) -> None:
        self.edges: dict[tuple[Path, Path], int] = {}
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._max_sessions = max_sessions
        self._max_edges = max_edges

    def begin(self, session: str, stage: Path) -> GraphStep:
        """A call of the session has begun."""
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = _Session()
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(session)
        return GraphStep(known, stage)

    def end(self, step: GraphStep) -> None:
        """It has ended well; one that failed is not told of, and was no step of the workflow."""
        session, edges = step.session, self.edges
        for before in step.after:
            edge = (before, step.stage)
            if edge in edges:
                edges[edge] += 1
            elif len(edges) < self._max_edges:
                edges[edge] = 1
        ended = session.ended
        if session.now == step.began:  # nothing went on beside it: all had ended before
            ended.clear()
        else:
            for before in [stage for stage, end in ended.items() if end < step.began]:
                del ended[before]
        session.now += 1
        if len(ended) < MAX_ABREAST:
            ended[step.stage] = session.now
