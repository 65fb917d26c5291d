"""Ends of requests: the delivered part of an output is learned, shared with other engines, counted and
traced.

The rest of an output is dropped. Does not import vLLM.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

from agentspec.forest import EndedRow, Forest, Tokens
from agentspec.vllm_plugin.delivery import Call, Delivered, call_of
from agentspec.vllm_plugin.live import LiveRequest
from agentspec.vllm_plugin.texts import ServedTokenizer
from agentspec.vllm_plugin.traces import Traces

if TYPE_CHECKING:
    from agentspec.corpus.corpus import Corpus

logger = logging.getLogger(__name__)


class Endings:
    """Finishes requests. Only the worker's thread may use it; :meth:`settle` any thread.

    Args:
        counting: lock of the stages' counters.

    Attributes:
        corpus: shares the outputs; None = they are not shared.
    """

    def __init__(
        self, forest: Forest, texts: ServedTokenizer, traces: Traces, counting: threading.Lock
    ) -> None:
        self.corpus: Corpus | None = None
        self._forest = forest
        self._texts = texts
        self._traces = traces
        self._counting = counting
        self._calls: dict[str, Call] = {}  # by name: calls with running requests
        self._has_texts = False  # True once the tokenizer was requested
        self._thread = ThreadPoolExecutor(1, "agentspec-outputs")
        self._unfinished: set[Future[None]] = set()

    def expect(self, live: LiveRequest) -> None:
        """Register a request that begins."""
        if live.stops is not None and not self._has_texts:
            self._has_texts = True
            self._thread.submit(self._texts.load)  # loading takes seconds
        name = call_of(live.name) if live.is_answered_at_end else None
        if name is not None:
            live.call = self._calls.setdefault(name, Call(name))
            live.call.num_live += 1

    def forgo(self, live: LiveRequest) -> None:
        """Register the end of a request whose start failed, so that its output is unknown."""
        if live.call is not None:
            live.call.is_lost = True
            if self._leave(live.call):
                self._in_background(self._answer, live.call)

    def finish(self, live: LiveRequest, row: EndedRow) -> None:
        """Finish a request: now if all of its output was certainly delivered, otherwise in a thread."""
        is_last = live.call is None or self._leave(live.call)
        is_alone = live.call is None or (is_last and live.call.num_ended == 1)
        starting = live.starting
        if starting is not None and not starting.cancel():  # its start runs or has run
            starting.add_done_callback(partial(self._forget_entered, live.key))
        if is_alone and live.stops is None and row.is_ended:
            self._close(live, row, self._delivered(live, row))
        else:
            self._in_background(self._judge, live, row, None if is_alone else live.call, is_last)

    def settle(self) -> None:
        """Wait until all requests are finished."""
        wait(list(self._unfinished))

    def close(self) -> None:
        """End the thread, once all requests are finished."""
        self._thread.shutdown(wait=True)

    def _leave(self, call: Call) -> bool:
        """Register the end of one of a call's requests. Return True if it is the last one."""
        call.num_live -= 1
        call.num_ended += 1
        if call.num_live == 0:
            del self._calls[call.name]
        return call.num_live == 0

    def _in_background(self, do: Callable[..., None], *arguments: Any) -> None:
        ending = self._thread.submit(do, *arguments)
        self._unfinished.add(ending)
        ending.add_done_callback(self._unfinished.discard)

    def _judge(self, live: LiveRequest, row: EndedRow, call: Call | None, is_last: bool) -> None:
        """Find the delivered part of an output. A call is answered when all its requests have ended."""
        delivered: Delivered | None = None
        try:
            delivered = self._delivered(live, row)
        except Exception:
            logger.exception("nothing is learned of the output of %r", live.name)
        if call is None:
            self._close(live, row, delivered)
            return
        call.ended.append((live, row, delivered))
        if is_last:
            self._answer(call)

    def _answer(self, call: Call) -> None:
        """Finish the requests of a call. If one was aborted, the client did not receive the others either."""
        is_answered = not call.is_lost and all(delivered is not None for _, _, delivered in call.ended)
        for live, row, delivered in call.ended:
            self._close(live, row, delivered if is_answered else None)

    def _delivered(self, live: LiveRequest, row: EndedRow) -> Delivered | None:
        """Return the delivered part of an output; None for an aborted request, whose part is unknown."""
        num_tokens = row.num_output_tokens
        if live.stops is not None:
            tokens = row.output.tolist()
            is_whole = len(tokens) == num_tokens
            if row.is_ended and is_whole and not live.stops.is_included and live.stop_tokens & {*tokens[-1:]}:
                tokens.pop()  # a stop token has no text
            found = live.stops.find(self._texts.pieces(live.params, live.prompt_token_ids, tokens))
            if found is not None or not is_whole:
                return found
        return Delivered(num_tokens, num_tokens) if row.is_ended else None

    def _close(self, live: LiveRequest, row: EndedRow, delivered: Delivered | None) -> None:
        """Learn, share, count and trace the delivered part of an output; None = no part."""
        try:
            self._count(live, row, delivered)
            output = row.output[: 0 if delivered is None else delivered.num_whole]
            if live.starting is None:
                self._learn(live, output, is_delivered=delivered is not None)
                self._share(live, output)
        except Exception:
            logger.exception("the request %r was not finished", live.name)

    def _count(self, live: LiveRequest, row: EndedRow, delivered: Delivered | None) -> None:
        """Add the rest of an output to its stage's figures, and end its trace."""
        trace, trace_id = live.trace, live.tags.trace
        if delivered is None:
            if trace is not None:
                self._traces.forget(trace)
            return
        with self._counting:
            live.count(row.counts() if live.stops is None else row.counts(delivered.num_counted))
        if live.stops is not None and trace is not None and trace_id is not None:
            trace.cut(delivered.num_counted)
            self._traces.keep(live.tags.stage.tenant, trace_id, trace)

    def _learn(self, live: LiveRequest, output: Tokens, *, is_delivered: bool) -> None:
        if live.stops is not None:
            self._forest.finish(live.key, live.tags.learn and len(output) > 0, output)
        else:  # shared trees must not hold outputs that the corpus does not know
            self._forest.finish(live.key, learn=is_delivered and (self.corpus is None or len(output) > 0))

    def _share(self, live: LiveRequest, output: Tokens) -> None:
        if self.corpus is not None and live.tags.learn and len(output):
            self.corpus.share(
                live.trees,
                output,
                subject=live.tags.subject,
                session=live.tags.session,
            )

    def _forget_entered(self, key: str, entering: Future[int]) -> None:
        if entering.exception() is not None:
            return
        try:
            self._forest.finish(key, learn=False)
        except Exception:
            logger.exception("the forest could not finish %r", key)
