"""Grammars: the tokens that may follow so that an output obeys a JSON schema, a grammar or a regex.

A thin layer over ``llguidance``. Knows nothing of logits: it returns boolean masks, and the sampler
applies them. One :class:`GrammarCompiler` serves a tokenizer, one :class:`Grammar` one output.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, grammar_from
from numpy.typing import NDArray

from agentspec.draft import Draft
from agentspec.engine.sampling.schema import Enforceable, bad_schema, enforceable
from agentspec.errors import EngineError, RequestError
from agentspec.generation import WrittenConstraint

_ONE_LITERAL = re.compile(r'^(\w+): "(<[^"<>]+>)"$', re.MULTILINE)
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# the library recurses into a schema, with up to 10 KiB a level; an overflow would end the process
FEW_LEVELS = 200
STACK_BYTES = 256 << 20
MAX_WRITTEN_CHARS = 1 << 16
MAX_REASON_CHARS = 500
_SCHEMA_RULE = re.compile(r"^(\w+): %json (.*)$", re.MULTILINE)
# between two JSON tokens: a space or two, or a line break with indentation. A model that may continue white
# space can do so up to its length limit, and the trees would learn it
JSON_SPACE = {"whitespace_flexible": True, "whitespace_pattern": r"[ \t]{0,2}(\r?\n[ \t]{0,20})?"}


class GrammarCompiler:
    """Turns schemas and grammars into masks over one tokenizer's vocabulary. Safe to use from any thread.

    ``param`` of its methods is the request's field that an error names.

    Args:
        tokenizer_json: the text of ``tokenizer.json``.
        vocab_size: width of the model's logits; it may exceed the tokenizer's vocabulary.
        eos_ids: the tokens that end an output.

    Raises:
        RequestError: no grammar can be followed with this tokenizer, e.g. because it has no end token.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        described = json.loads(tokenizer_json)
        self._added_ids = {token["content"]: token["id"] for token in described["added_tokens"]}
        _keep_text_only(described, self._eos_ids)
        try:
            self._tokenizer = LLTokenizer(
                json.dumps(described), n_vocab=vocab_size, eos_token=sorted(self._eos_ids)
            )
        except ValueError as error:
            message = f"response_format: this model can't be held to a JSON schema: {str(error)!r}"
            raise RequestError(message, param="response_format") from None

    def compile(self, schema: Mapping[str, Any], param: str = "response_format") -> Grammar:
        """A fresh grammar for one output; ``{}`` stands for any JSON object. White space is bounded.

        Raises:
            RequestError: ``schema`` is no JSON schema, or uses what the grammar library can't enforce.
        """
        known = _enforceable(schema or ANY_OBJECT, param, options=JSON_SPACE)
        text = LLMatcher.grammar_from_json_schema(known.text)
        return self._grammar(text, param, known.num_levels)

    def compile_lark(self, text: str, answer: Grammar | None = None) -> Grammar:
        """Compile a Lark grammar, which constrains tool calls. With ``answer``, the output may obey either.

        A rule that consists of the text of an added token means that token. A rule that is a schema has a
        line of its own; the schema's ``$comment`` names it in an error.

        Raises:
            RequestError: it is invalid, or contains a JSON schema that can't be enforced.
        """
        rules: dict[str, tuple[str, Enforceable]] = {}

        def written(rule: re.Match[str]) -> str:
            name, schema = rule[1], json.loads(rule[2])
            subject, options = schema.pop("$comment", ""), schema.pop("x-guidance", {})
            known = _enforceable(schema, "tools", subject, options)
            rules[name] = subject, known
            return f"{name}: %json {known.text}"

        calls = _SCHEMA_RULE.sub(written, _ONE_LITERAL.sub(self._as_token, text))
        num_levels = sum(known.num_levels for _, known in rules.values())
        grammar = LLMatcher.grammar_from_lark(calls)
        if answer is not None:
            grammar, num_levels = _either(grammar, answer.text), num_levels + answer.num_levels
        try:
            return self._grammar(grammar, "tools", num_levels)
        except RequestError:
            for subject, known in rules.values():  # which of them is it?
                alone = LLMatcher.grammar_from_json_schema(known.text)
                self._grammar(alone, "tools", known.num_levels, subject)
            raise

    def compile_written(self, written: WrittenConstraint, param: str) -> Grammar:
        """Compile a constraint in the client's own syntax.

        Raises:
            RequestError: it is invalid.
        """
        try:
            if len(written.text) > MAX_WRITTEN_CHARS:
                raise ValueError(f"it has more than {MAX_WRITTEN_CHARS} characters")
            compiled = _in_the_librarys_form(written)
            return self._compiled(compiled, len(compiled))  # at most one level per character
        except ValueError as error:
            raise RequestError(
                f"{param}: the {written.kind} can't be used: {str(error)!r}",
                param=param,
                code=f"invalid_{written.kind}",
            ) from None

    def _as_token(self, rule: re.Match[str]) -> str:
        name, text = rule.groups()
        token_id = self._added_ids.get(text)
        return rule.group() if token_id is None else f"{name}: <[{token_id}]>"

    def _grammar(self, text: str, param: str, num_levels: int = 0, subject: str = "") -> Grammar:
        try:
            return self._compiled(text, num_levels)
        except ValueError as error:
            raise bad_schema(str(error), param, subject) from None

    def _compiled(self, text: str, num_levels: int) -> Grammar:
        """Compile the library's form of a grammar. Raises ValueError."""
        matcher = self._matcher(text, num_levels)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some grammars fail only here
        if matcher.is_error():
            raise ValueError(_reason(matcher))
        return Grammar(matcher, self._vocab_size, self._eos_ids, text, num_levels)

    def _matcher(self, text: str, num_levels: int) -> LLMatcher:
        def make() -> LLMatcher:
            return LLMatcher(self._tokenizer, text, log_level=0)

        return make() if num_levels <= FEW_LEVELS else _on_a_large_stack(make)


class Grammar:
    """The state of one output under its grammar: the consumed tokens and the allowed next ones.

    Attributes:
        text: the grammar in the library's form.
        num_levels: how deeply the library recurses into it.
    """

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, eos_ids: Collection[int], text: str, num_levels: int
    ) -> None:
        self.text = text
        self.num_levels = num_levels
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._forced: list[int] = []  # the known tokens that are forced next

    def masks(self, draft: Draft) -> NDArray[np.bool_]:
        """The tokens allowed at the root and after each draft token: bool ``[1 + len(draft), vocab]``.

        The matcher walks down the draft depth first and is rolled back on the way up, so that the
        call leaves no trace. A node that the grammar forbids can never be reached by verification;
        the rows from there downwards are left all True. Cost: one mask per allowed draft token.
        """
        masks = np.ones((1 + len(draft), self._vocab_size), np.bool_)
        children: list[list[int]] = [[] for _ in range(len(masks))]
        for node, parent in enumerate(draft.parents.tolist()):
            children[1 + parent].append(node)
        self._fill(0, children, draft.token_ids.tolist(), masks)
        return masks

    def correct(
        self, draft: Draft, targets: Sequence[int], best: Callable[[int, NDArray[np.bool_]], int]
    ) -> list[int]:
        """Return the tokens of a greedy output, corrected to obey the grammar on the path of verification.

        ``targets`` are the most likely tokens at the root and after each draft token. A target that the
        grammar allows is also the most likely allowed token. Only where a target is refused, this method
        computes a mask and calls ``best(row, mask)`` for the most likely token under it. Rows off the path
        that the targets take through the draft stay unchanged, since verification does not read them. The
        grammar's state stays unchanged. Cost: one look-up per token of the path, one mask per refusal.
        """
        corrected = list(targets)
        corrected[0] = self._corrected(0, corrected[0], best)
        here, num_consumed = -1, 0
        for node, (parent, token) in enumerate(
            zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True)
        ):
            if parent != here or token != corrected[1 + here]:
                continue
            if not self._try_consume(token):
                break
            here, num_consumed = node, num_consumed + 1
            corrected[1 + node] = self._corrected(1 + node, corrected[1 + node], best)
        if num_consumed:
            self._matcher.rollback(num_consumed)
        return corrected

    def forced(self, most: int) -> NDArray[np.int32]:
        """Return the tokens that the grammar forces next, int32 ``[n]``, at most ``most``; often none.

        No other text may follow. The model could split this text into other tokens. The grammar's state stays
        unchanged. Cost: O(all tokens that are forced here), once; some microseconds.
        """
        if not self._forced:
            self._forced = self._matcher.compute_ff_tokens()
        return np.array(self._forced[:most], np.int32)

    def _corrected(self, row: int, token: int, best: Callable[[int, NDArray[np.bool_]], int]) -> int:
        if token in self._eos_ids:
            is_allowed = self._matcher.is_accepting()
        else:
            is_allowed = self._matcher.validate_tokens([token]) == 1
        return token if is_allowed else best(row, self._mask())

    def _fill(
        self, root: int, children: list[list[int]], tokens: list[int], masks: NDArray[np.bool_]
    ) -> None:
        """Compute masks depth first without recursion, since a draft may be deeper than Python's stack
        allows.

        The stack holds rows of ``masks``; ``-1`` marks the end of a subtree.
        """
        stack = [root]
        while stack:
            row = stack.pop()
            if row < 0:
                self._matcher.rollback(1)
                continue
            if row != root:
                if not self._try_consume(tokens[row - 1]):
                    continue
                stack.append(-1)
            masks[row] = self._mask()
            stack.extend(1 + child for child in reversed(children[row]))

    def _try_consume(self, token: int) -> bool:
        # eos is never consumed: the output ends there, and the matcher can't roll it back
        if token in self._eos_ids:
            return False
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def _mask(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
        return mask.view(np.bool_)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Consume accepted tokens permanently.

        Raises:
            EngineError: the grammar library failed, for example because the schema is too complex.
        """
        tokens = [token for token in token_ids if token not in self._eos_ids]
        is_forced = self._forced[: len(tokens)] == tokens
        self._forced = self._forced[len(tokens) :] if is_forced else []
        if tokens:
            self._matcher.consume_tokens(tokens)
        if self._matcher.is_error():  # an error in the last mask has allowed only eos
            raise EngineError(f"the grammar could not be followed: {_reason(self._matcher)!r}")


def _in_the_librarys_form(written: WrittenConstraint) -> str:
    """Return the library's form of a constraint. Raises ValueError."""
    if written.kind != "choice":
        return grammar_from(written.kind, written.text)
    texts = map(json.dumps, json.loads(written.text))  # one terminal: thousands of rules are too many
    return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(texts)}")


def _reason(matcher: LLMatcher) -> str:
    """Return the library's error without the grammar and the state that it appends."""
    return str(matcher.get_error().partition("<state>")[0].strip()[:MAX_REASON_CHARS])


def _enforceable(
    schema: Mapping[str, Any], param: str, subject: str = "", options: Mapping[str, Any] | None = None
) -> Enforceable:
    try:
        return enforceable(schema, options)
    except ValueError as error:
        raise bad_schema(str(error), param, subject) from None


def _either(calls: str, answer: str) -> str:
    """Return a grammar of two in the library's forms: JSON, or Lark."""
    parts = [{"lark_grammar": "start: @calls | @answer"}]
    for name, grammar in (("calls", calls), ("answer", answer)):
        described = json.loads(grammar)["grammars"][0] if grammar[:1] == "{" else {"lark_grammar": grammar}
        parts.append({**described, "name": name})
    return json.dumps({"grammars": parts})


def _on_a_large_stack(make: Callable[[], LLMatcher]) -> LLMatcher:
    """Return the result of ``make``, which runs in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        with _STACK_LOCK:
            before = threading.stack_size(STACK_BYTES)
            try:
                made = pool.submit(make)
            finally:
                threading.stack_size(before)
        return made.result()


_STACK_LOCK = threading.Lock()


def _keep_text_only(described: dict[str, Any], eos_ids: Collection[int]) -> None:
    """Remove the added tokens but those that end an output from a ``tokenizer.json``.

    Otherwise the library would write the text of one, as in the schema ``{"const": "<tool_call>"}``, as that
    token, and refuse the token then. A vocabulary that numbers its tokens by their places stays as it is.
    """
    model = described["model"]
    if not isinstance(model["vocab"], dict):
        return
    merges = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ()))
    needed = {text for pair in merges for text in (*pair, "".join(pair))} | {model.get("unk_token")}
    kept = [one for one in described["added_tokens"] if one["id"] in eos_ids or one["content"] in needed]
    removed = {one["id"] for one in described["added_tokens"]} - {one["id"] for one in kept}
    described["added_tokens"] = kept
    model["vocab"] = {text: token for text, token in model["vocab"].items() if token not in removed}
