"""Text to token ids and back, and the chat template, of one checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders

from agentspec.engine.model.checkpoint_config import CONFIG_FILE, TOKENIZER_FILE, read_json
from agentspec.engine.model.config import token_id_set
from agentspec.engine.text.chat_template import TOOLS_TEMPLATE, ChatTemplate, Message
from agentspec.engine.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from agentspec.errors import CheckpointError, RequestError
from agentspec.generation import DEFAULT_OPTIONS, THINK_CLOSE, THINK_OPEN, PromptOptions, ThinkTags

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")  # of tokenizers that fall back to bytes
NUM_END_TOKENS = 16  # of a prompt, more than a tag and white space behind it have
SHOWN_TAGS = frozenset((THINK_OPEN, THINK_CLOSE, "<tool_call>", "</tool_call>"))
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """A Hugging Face ``tokenizer.json`` with its chat template. Safe to use from several threads.

    Attributes:
        raw: the ``tokenizers.Tokenizer``.
        eos_ids: ids that end an output.
        path_to_json: where ``tokenizer.json`` lies.
    """

    def __init__(
        self,
        raw: tokenizers.Tokenizer,
        *,
        eos_ids: frozenset[int],
        templates: Mapping[str, ChatTemplate],
        path_to_json: Path,
    ) -> None:
        self.raw = raw
        self.eos_ids = eos_ids
        self.path_to_json = path_to_json
        self._templates = templates
        vocabulary = raw.get_vocab(with_added_tokens=True)
        self._vocab_size = max(vocabulary.values(), default=-1) + 1
        added = raw.get_added_tokens_decoder()
        self._special_ids = {token_id for token_id, token in added.items() if token.special}
        is_byte_level = isinstance(raw.decoder, decoders.ByteLevel)
        self._bytes_of = _bytes_of(vocabulary, self._special_ids) if is_byte_level else None

    @classmethod
    def load(cls, path: str | Path, *, needs_tools: bool = False) -> Tokenizer:
        """The tokenizer of the checkpoint in directory ``path``.

        ``needs_tools``: a template of our own stands in for one that shows no calls of tools.

        Raises:
            CheckpointError: tokenizer.json is missing or broken, or the chat template is.
        """
        directory = Path(path)
        file = directory / TOKENIZER_FILE
        if not file.is_file():
            raise CheckpointError(f"no {TOKENIZER_FILE!r} in {str(directory)!r}")
        try:
            raw = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception
            raise CheckpointError(f"can't read {str(file)!r}: {error}") from error
        raw = _with_visible_tags(raw)
        raw.no_truncation()
        raw.no_padding()
        settings = _optional_json(directory / "tokenizer_config.json")
        special_tokens = _special_tokens(settings)
        templates = _templates(directory, settings, special_tokens)
        if needs_tools and not any(one.knows_tools and one.shows_tools for one in templates.values()):
            templates = {"default": ChatTemplate(TOOLS_TEMPLATE, special_tokens)}
        return cls(
            raw,
            eos_ids=_eos_ids(directory, raw, special_tokens.get("eos_token")),
            templates=templates,
            path_to_json=file,
        )

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id; the model's logits may be wider."""
        return self._vocab_size

    @cached_property
    def vocabulary(self) -> str:
        """A digest of the texts of all ids: equal for equal vocabularies."""
        tokens = sorted(self.raw.get_vocab(with_added_tokens=True).items())
        return f"sha256:{sha256(json.dumps(tokens).encode()).hexdigest()}"

    @property
    def has_chat_template(self) -> bool:
        """True if :meth:`apply_chat_template` can be called."""
        return bool(self._templates)

    def encode(self, text: str, add_special_tokens: bool = False) -> NDArray[np.int32]:
        """Return the int32 token ids of ``text``. Special tokens in the text count as such.

        The batch call releases the GIL and the single call does not: a long prompt would delay the decoding
        thread.
        """
        (encoding,) = self.raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return np.array(encoding.ids, np.int32)

    def encode_output(self, text: str) -> NDArray[np.int32]:
        """int32 token ids that read as ``text``, in which special tokens that are written out are text too.

        Raises:
            RequestError: this vocabulary has no tokens for it.
        """
        (encoding,) = self._literal.encode_batch_fast([text], add_special_tokens=False)
        stream = self.detokenizer()
        if stream.push(encoding.ids) + stream.flush() != text or not self.eos_ids.isdisjoint(encoding.ids):
            raise RequestError("the model's tokenizer can't write this output exactly; use a byte-level one")
        return np.array(encoding.ids, np.int32)

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same, to which no text is special, nor of two ways to write a character one the better."""
        literal = tokenizers.Tokenizer.from_str(self.raw.to_str())
        literal.encode_special_tokens = True
        if self._bytes_of is not None:
            literal.normalizer = None
        return literal

    def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of words that must not be put out, at the start of a text and after a space.

        As in vLLM: a word after a space counts if that makes another first token and as many tokens.

        Raises:
            RequestError: this vocabulary has no tokens for a word.
        """
        found = []
        for word in words:
            bare = word.lstrip() or word
            plain, spaced = (tuple(self.encode(space + bare).tolist()) for space in ("", " "))
            if not plain:
                raise RequestError(f"bad_words: there are no tokens for {word!r}", param="bad_words")
            found.append(plain)
            if spaced[:1] != plain[:1] and len(spaced) == len(plain):
                found.append(spaced)
        return tuple(dict.fromkeys(found))

    def encode_prompt(
        self,
        prompt: str | Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = DEFAULT_OPTIONS,
    ) -> NDArray[np.int32]:
        """int32 token ids of raw text or chat messages; see :meth:`agentspec.generation.Engine.tokenize`.

        Raises:
            RequestError: as :meth:`apply_chat_template`.
        """
        if isinstance(prompt, str):
            return self.encode(prompt, options.add_special_tokens is not False)
        text = self.apply_chat_template(prompt, tools, options)
        return self.encode(text, bool(options.add_special_tokens))

    def think_tags(self, prompt_ids: NDArray[np.int32], continued: str = "") -> ThinkTags:
        """What ``<think>`` means in the output that follows this prompt, and continues its last message.

        The tags are known if a chat template has ``</think>``, or the vocabulary has both as tokens.
        """
        if not self._knows_thinking:
            return "unknown"
        end = self.raw.decode(prompt_ids[-NUM_END_TOKENS:].tolist(), skip_special_tokens=False)
        is_open = end.rstrip().endswith(THINK_OPEN) or continued.rfind(THINK_OPEN) > continued.rfind(
            THINK_CLOSE
        )
        return "open" if is_open else "known"

    @cached_property
    def _knows_thinking(self) -> bool:
        has_tokens = all(self.raw.token_to_id(tag) is not None for tag in (THINK_OPEN, THINK_CLOSE))
        return has_tokens or any(template.knows_thinking for template in self._templates.values())

    def decode(self, token_ids: Sequence[int] | NDArray[np.int32]) -> str:
        """The text of ``token_ids``, special tokens left out."""
        return str(self.raw.decode([int(i) for i in token_ids], skip_special_tokens=True))

    def decode_prompt(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids`` with special tokens. Raises RequestError if an id is invalid."""
        self.token_names(token_ids)
        return str(self.raw.decode(token_ids, skip_special_tokens=False))

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it. Raises RequestError if an id has no token."""
        names = []
        for token_id in token_ids:
            name = self.raw.id_to_token(token_id) if 0 <= token_id < self._vocab_size else None
            if name is None:
                raise RequestError(f"there is no token {token_id!r}", param="tokens")
            names.append(name)
        return names

    def token_text(self, token_id: int) -> str:
        """Return one token as text; special tokens by name, bytes of no whole character as U+FFFD."""
        if self._bytes_of is not None and token_id in self._bytes_of:
            return self._bytes_of[token_id].decode("utf-8", "replace")
        if token_id in self._special_ids:
            return self.raw.id_to_token(token_id) or ""
        return str(self.raw.decode([token_id], skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes that one token adds to a text, none if it is special. None = those of its text."""
        if self._bytes_of is not None:
            return self._bytes_of.get(token_id, b"")
        if token_id in self._special_ids:
            return b""
        byte = _BYTE_TOKEN.fullmatch(self.raw.id_to_token(token_id) or "")
        return bytes.fromhex(byte[1]) if byte else None

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one output."""
        if self._bytes_of is not None:
            return ByteDetokenizer(self._bytes_of)
        return WindowDetokenizer(self.decode)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = DEFAULT_OPTIONS,
    ) -> str:
        """The prompt's text for these messages (OpenAI form).

        Raises:
            RequestError: the model has no chat template, or it refuses the messages.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise RequestError("this model has no chat template; use a plain prompt", param="messages")
        if tools and not template.shows_tools:
            raise RequestError(
                f"the model would not see these tools: its chat template {name!r} has no 'tools'; "
                "leave tools out, or serve a checkpoint whose chat template lists them",
                param="tools",
            )
        return template.render(messages, tools, options)


def _with_visible_tags(raw: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return the tokenizer with tags as text: checkpoints that declare them special would leave them out."""
    added = raw.get_added_tokens_decoder().values()
    if not any(token.special and token.content in SHOWN_TAGS for token in added):
        return raw
    described = json.loads(raw.to_str())
    for token in described["added_tokens"]:
        token["special"] &= token["content"] not in SHOWN_TAGS
    return tokenizers.Tokenizer.from_str(json.dumps(described))


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token`` etc. of tokenizer_config.json, where a token is a string or an object."""
    tokens = {}
    for name in SPECIAL_TOKEN_NAMES:
        token = settings.get(name)
        if isinstance(token, Mapping):
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens


def _eos_ids(directory: Path, raw: tokenizers.Tokenizer, eos_token: str | None) -> frozenset[int]:
    """Return the ids in generation_config.json (else config.json), and the tokenizer's own end token."""
    stated = _optional_json(directory / "generation_config.json").get("eos_token_id")
    if stated is None:
        stated = _optional_json(directory / CONFIG_FILE).get("eos_token_id")
    own = raw.token_to_id(eos_token) if eos_token is not None else None
    return token_id_set(stated) | token_id_set(own)


def _templates(
    directory: Path, settings: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> dict[str, ChatTemplate]:
    """``chat_template.jinja`` before tokenizer_config.json, which may hold one or several by name."""
    file = directory / "chat_template.jinja"
    source: object = file.read_text(encoding="utf-8") if file.exists() else settings.get("chat_template")
    if source is None:
        return {}
    if isinstance(source, str):
        return {"default": ChatTemplate(source, special_tokens)}
    try:
        return {entry["name"]: ChatTemplate(entry["template"], special_tokens) for entry in _entries(source)}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"chat_template in {str(directory)!r} is malformed") from error


def _entries(source: object) -> list[Any]:
    if not isinstance(source, list):
        raise CheckpointError(f"a chat_template is a string or a list, not {type(source).__name__}")
    return source


def _bytes_of(vocabulary: Mapping[str, int], special_ids: set[int]) -> dict[int, bytes]:
    """The bytes of every token of a byte-level vocabulary that is not special."""
    alphabet = _byte_alphabet()
    table = {}
    for token, token_id in vocabulary.items():
        if token_id in special_ids:
            continue
        is_plain = all(char in alphabet for char in token)
        table[token_id] = bytes(alphabet[char] for char in token) if is_plain else token.encode()
    return table


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte: printable Latin-1 as it is, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet
