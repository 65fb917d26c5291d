"""The errors that this project raises on purpose.

    AgentSpecError
    ├── ConfigError            a setting or an argument is out of range          (ValueError)
    ├── StageError             a stage path or tenant name is malformed          (ValueError)
    ├── ForestError            invalid call of the forest; nothing changed
    │   ├── UnknownRequestError    no live request has this id                   (KeyError)
    │   ├── DuplicateRequestError  a live request already has this id            (ValueError)
    │   ├── TokenError             token array of wrong dtype, shape or sign     (ValueError)
    │   ├── ForkedForestError      the forest belongs to the parent process
    │   └── ForestFileError        a forest can't be saved there, or loaded from it
    │       └── UnusableForestError    a forest file that is damaged, or of another format or vocabulary
    ├── CheckpointError        a model directory can't be loaded                 (ValueError)
    ├── RequestError           the client's request is at fault                  (ValueError)
    │   ├── ContextLengthError     prompt + max_tokens do not fit the context
    │   ├── UnknownModelError      no model of this name is served
    │   ├── UnrecordedCallError    a replay has no call with this conversation
    │   └── EngineBusyError        the admission queue is full; try again later
    ├── CorpusError            the store of shared outputs is away, slow, full or damaged
    │   ├── BatchError             an encoded batch of outputs that can't be used
    │   │   └── UnknownKeyError        a batch that was encrypted with a key that is not known here
    │   ├── LostBatchesError       an erasure removed batches that could not be read
    │   └── DataKeyError           the operator's key does not open the data key of a tenant
    ├── AdapterError           a framework lacks the part that its adapter replaces
    └── EngineError            the engine failed or was stopped

Messages name the offending value with ``!r`` and, where it helps, state the next step.
"""

from __future__ import annotations


class AgentSpecError(Exception):
    """Base class of all errors of this project."""


class ConfigError(AgentSpecError, ValueError):
    """A setting or an argument is out of range."""


class StageError(AgentSpecError, ValueError):
    """A stage path or a tenant name is malformed."""


class ForestError(AgentSpecError):
    """Invalid call of the forest. The call changed nothing."""


class UnknownRequestError(ForestError, KeyError):
    """No live request has this id."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class DuplicateRequestError(ForestError, ValueError):
    """A live request already has this id."""


class TokenError(ForestError, ValueError):
    """A token array has the wrong dtype or shape, or holds a negative id."""


class ForkedForestError(ForestError):
    """The forest was made before this process was forked. Its threads and locks stayed with the parent."""


class ForestFileError(ForestError):
    """A forest can't be saved to this file, or the file holds no usable forest. Nothing changed."""


class UnusableForestError(ForestFileError):
    """A forest file is damaged, or of another format or vocabulary. Nothing changed."""


class CheckpointError(AgentSpecError, ValueError):
    """A model directory can't be loaded."""


class RequestError(AgentSpecError, ValueError):
    """The client's request is at fault.

    ``param`` names the field of the OpenAI body, ``code`` is the machine-readable reason.
    The response carries both in OpenAI's error form.
    """

    status = 400
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code or self.code


class ContextLengthError(RequestError):
    """The prompt and the tokens asked for do not fit the model's context."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class UnknownModelError(RequestError):
    """No model of this name is served."""

    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class UnrecordedCallError(RequestError):
    """The replayed file has no call with this conversation."""

    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, param="messages", code="unrecorded_call")


class EngineBusyError(RequestError):
    """The engine's admission queue is full. The same request may succeed later."""

    status = 429

    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_busy")


class CorpusError(AgentSpecError):
    """The store of shared outputs is away, slow, full or damaged. Requests lose drafts, never an answer."""


class BatchError(CorpusError):
    """An encoded batch of outputs is damaged, too large, of another format, or encrypted with another key."""


class UnknownKeyError(BatchError):
    """A batch was encrypted with another data key than those known here."""


class DataKeyError(CorpusError):
    """The operator's key does not open a tenant's data key."""


class LostBatchesError(CorpusError):
    """An erasure is complete, but it also removed batches that could not be read."""


class AdapterError(AgentSpecError):
    """A framework, in an untested version, lacks the part that its adapter replaces. Nothing changed."""


class EngineError(AgentSpecError):
    """The engine failed or was stopped while a request was under way."""
