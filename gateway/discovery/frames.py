"""Frames: the common content of the prompts of one stage, and the comparison of a new prompt with it.

A prompt belongs to a frame's stage unless both the prompt and the frame have instructions that the other
lacks. Different roles have different instructions; values (a name, a memory, a document) only fill places
in a prompt. This module handles units and words, not stages or requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from agentspec.gateway.discovery.masking import LINE, joined
from agentspec.gateway.discovery.templates import SLOT, Mark, Template, blocks, common_words
from agentspec.gateway.discovery.units import Unit, assigns_role, is_of_turn, is_variable, units_of, variables
from agentspec.gateway.discovery.wording import FREQUENT

FEWEST_OWN_WORDS = 1.0  # weighted words that the other side lacks: with fewer, a prompt is of the same role
ENOUGH_OWN_WORDS = 12.0  # with fewer, it is of the same role if other stages lack the common text
STATIC_SHARE = 0.75  # a unit in this share of the prompts belongs to the frame
ENOUGH_COMMON_WORDS = 12
ENOUGH_COMMON_SHARE = 0.4  # share of the shorter text that must be common if there are fewer common words
ALIKE_SHARE = 0.4  # share of common words from which two units are one unit with other values
WORDS_PER_CHANGE = 4  # common words per difference that looks like no value; one difference needs none
FEWEST_ROLE_WORDS = 5
INSTRUCTING_SHARE = 0.3  # a text is English if this share of its words instructs
STATEMENT_WEIGHT = 0.25  # weight of a word in a sentence that does not instruct
FEWEST_FRAME_WORDS = 12  # least number of instructing words in a user's text that may found a cluster
NAMES_SHARE = 0.2  # share of capitalised words within sentences; in a text with more, nouns are capitalised
MAX_KNOWN = 512
MAX_MARKS = 16  # limit per prompt
LABEL_ENDS = (":", ":**")
MAX_PAIRED = 48  # limit of units compared with each other, on each side
SETTLED = 64  # after this many prompts a frame no longer changes


@dataclass(frozen=True, slots=True)
class Prompt:
    """A masked prompt, cut into units.

    Attributes:
        has_names: True if a capitalised word within a sentence is a name; False for German.
    """

    words: tuple[str, ...]
    units: tuple[Unit, ...]
    has_names: bool

    @classmethod
    def of(cls, masked: str, is_system: bool = True) -> Prompt:
        """Return the weighted units of a masked text.

        A statement weighs less than an instruction if the text has instructions, which English words show. In
        a text without instructions, or in another language, each unit has weight one.
        """
        units = units_of(masked, is_system)
        if sum(len(unit.words) for unit in units if unit.weight) < FEWEST_ROLE_WORDS:
            units = [replace(unit, weight=1.0) for unit in units]
        num_words = sum(len(unit.words) for unit in units if unit.weight)
        num_instructing = sum(len(unit.words) for unit in units if unit.weight and unit.instructs)
        if num_instructing >= max(INSTRUCTING_SHARE * num_words, FEWEST_ROLE_WORDS):
            units = [
                unit if unit.instructs else replace(unit, weight=unit.weight * STATEMENT_WEIGHT)
                for unit in units
            ]
        return cls(tuple(masked.split(" ")), tuple(units), _has_names(units))

    @property
    def num_role_words(self) -> int:
        """Number of words in instructing units."""
        return sum(len(unit.words) for unit in self.units if unit.weight)

    @property
    def is_of_turns(self) -> bool:
        """True if the prompt begins with several instructions, and assigns a role or has turns."""
        has_turns = any(map(is_of_turn, self.units)) or (self.units and self.units[-1].is_labelled)
        begins = has_turns or (self.units and assigns_role(self.units[0].words) > 0)
        return bool(begins) and self.num_role_words >= FEWEST_FRAME_WORDS

    @property
    def skeleton(self) -> list[str]:
        """The words except those that look like values, with a mark for each gap."""
        values: set[tuple[str, ...]] = {unit.words for unit in self.units if not unit.weight}
        result: list[str] = []
        for unit in self.units:
            may_vary = variables(unit.words, self.has_names)
            is_value = unit.words in values
            result += [
                SLOT if is_value or may else word for word, may in zip(unit.words, may_vary, strict=True)
            ]
            result.append(LINE)
        return result


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of comparing a prompt with a frame. Only words in instructing units count.

    Attributes:
        pairs: keys of the frame's units, each with the prompt's unit that corresponds to it.
        missing: weighted number of words of the frame's units that the prompt lacks, by key.
        extra: weighted number of words of the prompt's units that the frame lacks, by key.
        num_changes: number of places within pairs where differing words do not look like values.
        num_values: number of places within pairs where differing words look like values.
    """

    num_common: int
    pairs: tuple[tuple[str, Unit], ...]
    missing: Mapping[str, float]
    extra: Mapping[str, float]
    num_changes: int = 0
    num_values: int = 0

    @property
    def is_enough(self) -> bool:
        """True if prompt and frame share enough to be of one stage, or of stages with a common part."""
        shorter = self.num_common + min(self.num_missing, self.num_extra)
        return self.num_common >= ENOUGH_COMMON_WORDS or self.num_common >= max(
            ENOUGH_COMMON_SHARE * shorter, 2
        )

    @property
    def is_same(self) -> bool:
        """True if the prompt is of the frame's stage.

        Two short prompts that differ only in words that do not look like values are of different stages.
        """
        is_short = self.num_common < ENOUGH_COMMON_WORDS
        is_changed = is_short and self.num_changes > 0 and not self.num_values
        return self.is_enough and self.num_own < FEWEST_OWN_WORDS and not is_changed

    @property
    def num_own(self) -> float:
        """Weighted number of words that only one side has; of both sides, the smaller number."""
        return min(self.num_missing, self.num_extra)

    @property
    def num_missing(self) -> float:
        """Weighted number of words that only the frame has."""
        return sum(self.missing.values())

    @property
    def num_extra(self) -> float:
        """Weighted number of words that only the prompt has."""
        return sum(self.extra.values())

    @property
    def score(self) -> float:
        """A higher score means a better match."""
        return 2 * self.num_common - self.num_missing - self.num_extra


@dataclass(slots=True)
class _Known:
    words: tuple[str, ...]
    weight: float
    instructs: bool
    count: int = 1

    @classmethod
    def of(cls, unit: Unit) -> _Known:
        return cls(unit.words, unit.weight, unit.instructs)


@dataclass(slots=True)
class Frame:
    """The common content of the prompts of one stage and shape.

    Attributes:
        template: recognises further prompts; None if the prompts have too little in common.
        common: words that all prompts have, with marks for the gaps.
        first: the first prompt, while it is the only one.
        num_prompts: number of compared prompts, up to ``SETTLED``; after that the frame does not change.
    """

    shape: bytes
    template: Template | None
    common: list[str] = field(default_factory=list, repr=False)
    longest: int = 0
    num_prompts: int = SETTLED
    first: Prompt | None = field(default=None, repr=False)
    has_names: bool = True
    _known: dict[str, _Known] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, prompt: Prompt, shape: bytes) -> Frame:
        """Return the frame of a first prompt."""
        longest = len(prompt.words)
        template = Template.of_common(prompt.skeleton, longest)
        frame = cls(shape, template, list(prompt.words), longest, 1, prompt, prompt.has_names)
        for unit in prompt.units:
            frame._known.setdefault(unit.key, _Known.of(unit))
        return frame

    @classmethod
    def restored(cls, shape: bytes, template: Template) -> Frame:
        """Return the frame of a stored template."""
        return cls(shape, template)

    def num_in(self, keys: Set[str]) -> int:
        """Return the number of units among ``keys`` that the frame has seen."""
        return len(self._units().keys() & keys)

    @property
    def num_role_words(self) -> int:
        """Number of words that all prompts have in units that instruct."""
        return sum(len(one.words) for one in self._static() if one.weight)

    def key_words(self, with_statements: bool) -> list[str]:
        """Return the words that name the frame: words of common units that can't be values."""
        units = [one for one in self._static() if one.weight] or list(self._static())
        if not with_statements:
            units = [one for one in units if one.instructs] or units
        plain = [self._without_values(one.words) for one in units]
        clean = [words for words, one in zip(plain, units, strict=True) if len(words) == len(one.words)]
        return [word for words in clean or plain for word in words]

    def _without_values(self, words: Sequence[str]) -> list[str]:
        may_vary = variables(words, self.has_names)
        return [word for word, may in zip(words, may_vary, strict=True) if word != SLOT and not may]

    @property
    def text(self) -> str:
        """The text that all prompts have."""
        stored = self.template.runs if self.template else ()
        return joined(" ".join(self.common or (run.strip(" ") for run in stored)))

    def marks(self, masked: str) -> list[Mark]:
        """Return text that this prompt has and some others lack: labels, and three words within an
        instruction.

        No word of a mark looks like a value.
        """
        static = f" {self.text} "
        found: Counter[str] = Counter()
        for unit in Prompt.of(masked).units:
            found.update(_needles(unit, self.has_names))
        rare = [mark for mark in found.items() if static.count(mark[0]) < mark[1]]
        rare.sort(key=lambda mark: not mark[0].endswith(": "))  # labels first: there are fewer of them
        return rare[:MAX_MARKS]

    def compare(self, prompt: Prompt) -> Fit:
        """Compare a prompt with the frame."""
        static = {key: one for key, one in self._units().items() if self._is_static(one)}
        given = {unit.key: unit for unit in prompt.units}
        pairs = [(key, given[key]) for key in static if key in given]
        paired = {key for key, _ in pairs}
        lacking = {key: one for key, one in static.items() if key not in paired}
        others = [unit for key, unit in given.items() if key not in paired]
        num_changes = num_values = 0
        for key, unit in _alike(lacking, others, self.has_names):
            pairs.append((key, unit))
            changes = _changes(lacking.pop(key).words, unit.words, self.has_names)
            num_changes, num_values = num_changes + sum(changes), num_values + changes.count(False)
            others.remove(unit)
        num_common = sum(
            _num_common(static[key].words, unit.words) for key, unit in pairs if static[key].weight
        )
        missing = {key: one.weight * len(one.words) for key, one in lacking.items() if one.weight}
        extra = {unit.key: unit.weight * len(unit.words) for unit in others if unit.weight}
        return Fit(num_common, tuple(pairs), missing, extra, num_changes, num_values)

    def has(self, key: str) -> bool:
        """True if a prompt of the frame had this unit."""
        return key in self._units()

    def join(self, prompt: Prompt, fit: Fit) -> None:
        """Add one more prompt of this stage to the frame."""
        if self.num_prompts >= SETTLED:
            return
        self.num_prompts += 1
        self.first = None
        self.common = common_words(self.common, prompt.words)
        self.longest = max(self.longest, len(prompt.words))
        self.template = Template.of_common(self.common, self.longest)
        seen = set()
        for key, unit in pairs_of(fit):
            known = self._known[key]
            known.count += 1
            known.weight = min(known.weight, unit.weight)
            if unit.key != key and not unit.is_labelled:
                known.words = tuple(common_words(known.words, unit.words)) or known.words
            seen.add(unit.key)
        for unit in prompt.units:
            if unit.key not in seen and len(self._known) < MAX_KNOWN:
                seen.add(unit.key)
                if unit.key in self._known:
                    self._known[unit.key].count += 1
                else:
                    self._known[unit.key] = _Known.of(unit)

    def _units(self) -> dict[str, _Known]:
        """Return the known units. The units of a stored template are made at the first call."""
        if not self._known and self.template is not None:
            for unit in Prompt.of(" ".join(run.strip(" ") for run in self.template.runs)).units:
                self._known.setdefault(unit.key, _Known(unit.words, unit.weight, unit.instructs, SETTLED))
        return self._known

    def _is_static(self, known: _Known) -> bool:
        return known.count >= STATIC_SHARE * self.num_prompts

    def _static(self) -> Iterable[_Known]:
        return (one for one in self._units().values() if self._is_static(one))


def _needles(unit: Unit, has_names: bool) -> Iterable[str]:
    if not unit.weight and (unit.is_labelled or unit.words[-1].endswith(LABEL_ENDS)):
        yield f" {unit.key} "
    elif unit.weight and unit.instructs:
        may_vary = variables(unit.words, has_names)
        for at in range(len(unit.words) - 2):
            if not any(may_vary[at : at + 3]):
                yield f" {' '.join(unit.words[at : at + 3])} "


def _has_names(units: Sequence[Unit]) -> bool:
    within = [word for unit in units for word in unit.words[1:]]
    num_capital = sum(is_variable(word, False, True) and word.isalpha() for word in within)
    return num_capital < NAMES_SHARE * len(within) or len(within) < FEWEST_FRAME_WORDS


def pairs_of(fit: Fit) -> Iterable[tuple[str, Unit]]:
    """Return the pairs of a comparison, one per key."""
    return dict(fit.pairs).items()


def _alike(lacking: dict[str, _Known], others: Sequence[Unit], has_names: bool) -> list[tuple[str, Unit]]:
    """Pair units that differ only in values, the most similar ones first."""
    others = others[:MAX_PAIRED]
    places_of: dict[str, list[int]] = {}
    for at, unit in enumerate(others):
        for word in {word for word in unit.words if not _is_frequent(word)}:
            places_of.setdefault(word, []).append(at)
    found = []
    for key, one in list(lacking.items())[:MAX_PAIRED]:
        for at in {at for word in one.words for at in places_of.get(word, ())}:
            share = _similarity(one.words, others[at].words, has_names)
            if share >= ALIKE_SHARE:
                found.append((-share, key, at))
    found.sort()
    keys: set[str] = set()
    places: set[int] = set()
    result = []
    for _, key, at in found:
        if key not in keys and at not in places:
            keys.add(key)
            places.add(at)
            result.append((key, others[at]))
    return result


def _similarity(one: Sequence[str], other: Sequence[str], has_names: bool) -> float:
    """Return the share of common words in the shorter unit; 0 if more than a value or two differ."""
    if len(set(one).intersection(other)) < ALIKE_SHARE * min(len(set(one)), len(set(other))):
        return 0.0
    common = [word for begin, end, _ in blocks(one, other) for word in one[begin:end]]
    num_words = min(sum(word != SLOT for word in one), len(other))
    if len(common) < ALIKE_SHARE * num_words or all(_is_frequent(word) for word in common):
        return 0.0
    changes = _changes(one, other, has_names)
    if (one[0] not in (other[0], SLOT) and changes[0]) or _is_other_role(one, other):
        return 0.0  # the first word of a sentence is never a value
    return len(common) / num_words if sum(changes) <= max(1, len(common) // WORDS_PER_CHANGE) else 0.0


def _is_other_role(one: Sequence[str], other: Sequence[str]) -> bool:
    """True for ``You are the router`` and ``You are a critic``; not for ``You are Ann's assistant``."""
    at, place = assigns_role(one), assigns_role(other)
    if not (0 < at < len(one) and 0 < place < len(other)) or SLOT in (one[at], one[at - 1]):
        return False
    return one[at] != other[place] and not (one[at].endswith("'s") or other[place].endswith("'s"))


def _changes(one: Sequence[str], other: Sequence[str], has_names: bool) -> list[bool]:
    """Return one flag per place with differing words: True if they do not look like values."""
    result, left, right = [], 0, 0
    for begin, end, offset in (*blocks(one, other), (len(one), len(one), len(other) - len(one))):
        before, after = one[left:begin], other[right : begin + offset]
        if before or after:
            is_value = SLOT in before or all(
                is_variable(word, False, has_names) for word in (*before, *after)
            )
            result.append(not is_value)
        left, right = end, end + offset
    return result


def _is_frequent(word: str) -> bool:
    return word == SLOT or word.strip(".,:;!?()\"'`*").lower() in FREQUENT


def _num_common(one: Sequence[str], other: Sequence[str]) -> int:
    if one == other:
        return len(one)
    return (Counter(one) & Counter(other)).total() - (SLOT in one and SLOT in other)
