from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
import tokenizers

from agentspec.draft import Draft
from agentspec.engine.sampling.grammar import Grammar, GrammarCompiler
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import EngineError, RequestError
from agentspec.generation import WrittenConstraint
from tests.support.checkpoints import VOCAB_SIZE
from tests.support.fakes import make_draft

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.raw.to_str(), VOCAB_SIZE, tokenizer.eos_ids)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(token) for token in tokenizer.encode(text)]


def allowed_after(grammar: Grammar, tokens: list[int]) -> set[int]:
    """Return the tokens allowed after ``tokens`` on a fresh walk."""
    return set(np.nonzero(grammar.masks(make_draft(tokens))[-1])[0].tolist())


def test_only_what_continues_the_schema_is_allowed(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.compile(SCHEMA)
    first = np.nonzero(grammar.masks(Draft())[0])[0].tolist()
    assert {tokenizer.token_text(token)[0] for token in first} == {"{"}
    inside = {tokenizer.token_text(token) for token in allowed_after(grammar, ids(tokenizer, '{"a": '))}
    assert {"-", "1"} <= inside
    assert not {"a", "}", '"', "."} & inside


def test_a_complete_object_allows_nothing_but_the_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(SCHEMA)
    grammar.advance(ids(tokenizer, '{"a": 1}'))
    assert set(np.nonzero(grammar.masks(Draft())[0])[0].tolist()) == tokenizer.eos_ids
    grammar.advance([min(tokenizer.eos_ids)])
    assert set(np.nonzero(grammar.masks(Draft())[0])[0].tolist()) == tokenizer.eos_ids


def test_the_models_padding_is_never_allowed(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.compile({})
    masks = grammar.masks(make_draft(ids(tokenizer, '{"')))
    assert masks.shape == (len(ids(tokenizer, '{"')) + 1, VOCAB_SIZE)
    assert not masks[:, tokenizer.vocab_size :].any()


def test_an_empty_schema_is_any_object(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    for text in ('{"x": [1, null, {"y": "z"}]}', "{}"):
        grammar = compiler.compile({})
        grammar.advance(ids(tokenizer, text))
        assert set(np.nonzero(grammar.masks(Draft())[0])[0].tolist()) == tokenizer.eos_ids
    with pytest.raises(EngineError, match="could not be followed"):
        compiler.compile({}).advance(ids(tokenizer, "[1]"))


def tree_nodes(draft: Draft) -> Iterator[tuple[int, list[int]]]:
    """Yield each row of a draft's masks with the tokens on the path to it."""
    paths: list[list[int]] = [[]]
    for parent, token in zip(draft.parents.tolist(), draft.token_ids.tolist(), strict=True):
        paths.append([*paths[1 + parent], token])
    yield from enumerate(paths)


def test_masks_along_a_tree_equal_those_of_its_branches(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    right, other = ids(tokenizer, '{"a": 12}'), ids(tokenizer, '{ "a":-3')
    tokens = [*right, *other]
    parents = [*range(-1, len(right) - 1), -1, *range(len(right), len(tokens) - 1)]
    draft = make_draft(tokens, parents)
    grammar = compiler.compile(SCHEMA)
    masks = grammar.masks(draft)
    assert np.array_equal(grammar.masks(draft), masks)  # a walk leaves no trace
    for row, path in tree_nodes(draft):
        branch = compiler.compile(SCHEMA)
        branch.advance(path)
        assert np.array_equal(masks[row], branch.masks(Draft())[0]), path


def test_a_forbidden_draft_token_does_no_harm(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    start, wrong = ids(tokenizer, '{"a": '), ids(tokenizer, "x")
    grammar = compiler.compile(SCHEMA)
    expected = allowed_after(grammar, start)
    eos = min(tokenizer.eos_ids)
    # wrong tokens and an end too early, each with children, next to the right path
    size = len(start)
    draft = make_draft(
        [*start, wrong[0], eos, start[0], start[0]],
        [*range(-1, size - 1), size - 1, size - 1, size, size + 1],
    )
    masks = grammar.masks(draft)
    assert set(np.nonzero(masks[size])[0].tolist()) == expected
    assert not masks[size][[wrong[0], eos]].any()
    assert allowed_after(grammar, start) == expected


def path_of(draft: Draft, targets: list[int]) -> list[int]:
    """Return the targets that verification would read, in order."""
    here, path = -1, [targets[0]]
    for node, (parent, token) in enumerate(zip(draft.parents, draft.token_ids, strict=True)):
        if parent == here and token == path[-1]:
            here = node
            path.append(targets[1 + node])
    return path


def test_corrected_targets_are_the_best_that_the_masks_allow(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    """Compare with masks for every row.

    The random logits prefer the right tokens, the end, padding or any other token.
    """
    rng = np.random.default_rng(5)
    right = ids(tokenizer, '{"a": 12}')
    eos = min(tokenizer.eos_ids)
    num_corrected = longest = 0
    for _ in range(300):
        tokens = [*right, eos] if rng.random() < 0.5 else right[: rng.integers(1, len(right))]
        parents = list(range(-1, len(tokens) - 1))
        for _ in range(rng.integers(0, 4)):  # side branches
            parents.append(int(rng.integers(-1, len(tokens))))
            tokens = [*tokens, int(rng.choice([*right, eos, rng.integers(VOCAB_SIZE)]))]
        draft = make_draft(tokens, parents)
        logits = rng.normal(size=(1 + len(draft), VOCAB_SIZE))
        for row, liked in enumerate([*right, eos][: len(logits)]):
            logits[row, liked] += 8 * (rng.random() < 0.8)
            logits[row, rng.integers(VOCAB_SIZE)] += 9 * (rng.random() < 0.1)
        grammar = compiler.compile(SCHEMA)
        masked = np.where(grammar.masks(draft), logits, -np.inf)
        found = logits.argmax(-1).tolist()

        def best(row: int, mask: np.ndarray, logits: np.ndarray = logits) -> int:
            return int(np.where(mask, logits[row], -np.inf).argmax())

        corrected = grammar.correct(draft, found, best)
        expected = path_of(draft, masked.argmax(-1).tolist())
        assert path_of(draft, corrected) == expected
        assert np.array_equal(grammar.masks(draft), compiler.compile(SCHEMA).masks(draft))  # no trace
        num_corrected += corrected != found
        longest = max(longest, len(expected))
    assert num_corrected > 50
    assert longest > len(right)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strange"},
        {"type": "object", "properties": 3},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "("},
        {"type": {1, 2}},
    ],
)
def test_a_bad_schema_is_the_clients_fault(compiler: GrammarCompiler, schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="response_format") as caught:
        compiler.compile(schema)
    assert caught.value.param == "response_format"


def test_a_model_without_an_end_token_can_not_be_held_to_a_schema(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="can't be held to") as caught:
        GrammarCompiler(tokenizer.raw.to_str(), VOCAB_SIZE, ())
    assert caught.value.param == "response_format"


def follows(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Return True if a grammar allows every token of ``text``."""
    tokens = ids(tokenizer, text)
    masks = grammar.masks(make_draft(tokens))
    return all(masks[row, token] for row, token in enumerate(tokens))


NESTED = {"type": "object", "properties": {"a": {"type": "array", "items": SCHEMA}}, "required": ["a"]}


@pytest.mark.parametrize("schema", [{}, NESTED, {**NESTED, "x-guidance": {"whitespace_pattern": "[ ]*"}}])
def test_white_space_is_bounded(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: dict[str, Any]
) -> None:
    value = {"a": [{"a": 1}, {"a": 2}]}
    for text in (
        json.dumps(value),
        json.dumps(value, indent=2),
        json.dumps(value, indent=5),
        json.dumps(value, indent="\t"),
        json.dumps(value, separators=(",", ":")),
        '{ "a" : [ ] }',
        '{\r\n "a": []\r\n}',
    ):
        assert follows(compiler.compile(schema), tokenizer, text), text
    for text in (
        '{"a":' + " " * 3,
        "{" + "\n" * 2,
        '{"a": [' + "\n \n",
        '{"a": [' + "\t" * 3,
        "{\n" + " " * 21,
        '{"a": []' + " \n" * 2,
        " {",
    ):
        assert not follows(compiler.compile(schema), tokenizer, text), text


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong"),
    [
        ("regex", r"[0-9]{2}-[ab]*", "12-ab", "1-"),
        ("choice", json.dumps([f"a{number}" for number in range(5000)]), "a4711", "b"),
        ("choice", '["", "b"]', "", "a"),
        ("choice", '["SELECT 1", "", "a/b"]', "a/b", "b"),
        ("grammar", 'root ::= "x" digits\ndigits ::= [0-9]+', "x42", "xy"),
        ("grammar", 'start: "x" /[0-9]+/', "x42", "xy"),
    ],
)
def test_what_a_client_wrote(
    compiler: GrammarCompiler, tokenizer: Tokenizer, kind: Any, text: str, right: str, wrong: str
) -> None:
    written = WrittenConstraint(kind, text)
    assert follows(compiler.compile_written(written, "grammar"), tokenizer, right)
    assert not follows(compiler.compile_written(written, "grammar"), tokenizer, wrong)
    grammar = compiler.compile_written(written, "grammar")
    grammar.advance(ids(tokenizer, right))
    assert min(tokenizer.eos_ids) in set(np.nonzero(grammar.masks(Draft())[0])[0].tolist())


def test_a_chain_of_rules_does_not_overflow_the_stack(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    rules = "".join(f"r{i}:r{i + 1}\n" for i in range(5000))
    written = WrittenConstraint("grammar", f'start: r0\n{rules}r5000: "ab"')
    assert follows(compiler.compile_written(written, "grammar"), tokenizer, "ab")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "("),
        ("grammar", "nonsense"),
        ("grammar", "root ::= missing"),
        ("grammar", "start: missing"),
        ("grammar", "root ::= " + "(" * 100_000),
        ("grammar", "x" * 70_000),
        ("choice", '["\\ud800"]'),
    ],
)
def test_what_a_client_wrote_wrong_names_its_field(compiler: GrammarCompiler, kind: Any, text: str) -> None:
    with pytest.raises(RequestError, match="guided_it") as caught:
        compiler.compile_written(WrittenConstraint(kind, text), "guided_it")
    assert caught.value.param == "guided_it"


def test_grammars_do_not_share_state(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    first, second = compiler.compile(SCHEMA), compiler.compile(SCHEMA)
    first.advance(ids(tokenizer, '{"a": 1}'))
    assert json.dumps(sorted(allowed_after(second, []))) != json.dumps(sorted(tokenizer.eos_ids))


CALL = 'start: open "{}" close\nopen: "<tool_call>"\nclose: "</tool_call>"'
TAGS = {"<|bos|>": "<tool_call>", "<|im_start|>": "</tool_call>"}


@pytest.fixture(scope="module", params=[False, True])
def tags_are_tokens(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def with_tags(tokenizer: Tokenizer, tags_are_tokens: bool) -> tokenizers.Tokenizer:
    """Return a tokenizer in which the tags of calls are added tokens, or are not."""
    described = tokenizer.raw.to_str()
    for name, tag in TAGS.items() if tags_are_tokens else ():
        described = described.replace(name, tag)
    return tokenizers.Tokenizer.from_str(described)


@pytest.fixture(scope="module")
def tag_compiler(tokenizer: Tokenizer, with_tags: tokenizers.Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(with_tags.to_str(), VOCAB_SIZE, tokenizer.eos_ids)


def text_of_only_output(grammar: Grammar, raw: tokenizers.Tokenizer, eos_ids: Collection[int]) -> str:
    """Return the text of an output of which the grammar leaves no choice but that of the tokens."""
    tokens: list[int] = []
    while (allowed := set(np.nonzero(grammar.masks(Draft())[0])[0].tolist())) != eos_ids:
        forced = grammar.forced(1).tolist() or [max(allowed)]
        assert set(forced) <= allowed
        grammar.advance(forced)
        tokens += forced
    return str(raw.decode(tokens, skip_special_tokens=False))


def test_a_rule_of_one_tag_is_its_token(
    tag_compiler: GrammarCompiler,
    with_tags: tokenizers.Tokenizer,
    tokenizer: Tokenizer,
    tags_are_tokens: bool,
) -> None:
    grammar = tag_compiler.compile_lark(CALL)
    first = set(np.nonzero(grammar.masks(Draft())[0])[0].tolist())
    assert (first == {with_tags.token_to_id("<tool_call>")}) == tags_are_tokens
    assert text_of_only_output(grammar, with_tags, tokenizer.eos_ids) == "<tool_call>{}</tool_call>"


def test_the_text_of_a_token_in_a_schema_is_text(
    tag_compiler: GrammarCompiler,
    with_tags: tokenizers.Tokenizer,
    tokenizer: Tokenizer,
    tags_are_tokens: bool,
) -> None:
    const = "<tool_call> and </tool_call>"
    grammar = tag_compiler.compile({"const": const})
    assert text_of_only_output(grammar, with_tags, tokenizer.eos_ids) == json.dumps(const)
    inside = allowed_after(tag_compiler.compile({"type": "string"}), with_tags.encode('"').ids)
    tags = {with_tags.token_to_id(tag) for tag in TAGS.values()}
    assert not (inside & tags)


def test_a_grammar_or_a_schema(
    tag_compiler: GrammarCompiler, with_tags: tokenizers.Tokenizer, tokenizer: Tokenizer
) -> None:
    for text in ("<tool_call>{}</tool_call>", '{"a": 1}'):
        grammar = tag_compiler.compile_lark(CALL, tag_compiler.compile(SCHEMA))
        tokens = with_tags.encode(text).ids
        assert grammar.masks(make_draft(tokens))[range(len(tokens)), tokens].all()
        grammar.advance(tokens)
        assert set(np.nonzero(grammar.masks(Draft())[0])[0].tolist()) == tokenizer.eos_ids
    whole = tag_compiler.compile_lark(CALL, tag_compiler.compile(SCHEMA))
    first = np.nonzero(whole.masks(Draft())[0])[0].tolist()
    assert {with_tags.id_to_token(token)[0] for token in first} == {"<", "{"}


@pytest.mark.parametrize(
    ("kind", "text", "output"),
    [
        ("regex", "a+b", "ab"),
        ("choice", '["yes", "no"]', "no"),
        ("grammar", 'root ::= "x" [0-9]', "x7"),
        ("grammar", 'start: "x" DIGIT\nDIGIT: /[0-9]/', "x7"),
    ],
)
def test_a_grammar_or_what_a_client_wrote(
    compiler: GrammarCompiler, tokenizer: Tokenizer, kind: Any, text: str, output: str
) -> None:
    for written in ("<tool_call>{}</tool_call>", output):
        answer = compiler.compile_written(WrittenConstraint(kind, text), "grammar")
        grammar = compiler.compile_lark(CALL, answer)
        grammar.advance(ids(tokenizer, written))
        assert tokenizer.eos_ids <= set(np.nonzero(grammar.masks(Draft())[0])[0].tolist())


@pytest.mark.parametrize("lark", ["start: missing", 'start: a\na: %json {"type": "colour"}'])
def test_bad_calls_are_named_even_with_an_answer(compiler: GrammarCompiler, lark: str) -> None:
    with pytest.raises(RequestError, match="tools") as caught:
        compiler.compile_lark(lark, compiler.compile(SCHEMA))
    assert caught.value.param == "tools"
