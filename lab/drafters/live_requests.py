"""The live requests of a drafter, by id."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from agentspec.errors import DuplicateRequestError

Request = TypeVar("Request")


class LiveRequests(Generic[Request]):
    """Requests that several threads admit and end, while one thread drafts for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for changes; a dict is read without
        self._requests: dict[str, Request] = {}

    def add(self, request_id: str, request: Request) -> None:
        """Admit a request. Raises DuplicateRequestError if a live one has this id."""
        with self._lock:
            if request_id in self._requests:
                raise DuplicateRequestError(f"request {request_id!r} is live already")
            self._requests[request_id] = request

    def get(self, request_id: str) -> Request | None:
        """Return a request, or None if it is not live."""
        return self._requests.get(request_id)

    def __getitem__(self, request_id: str) -> Request:
        """Return a live request."""
        return self._requests[request_id]

    def remove(self, request_id: str) -> None:
        """Forget a request, if it is live."""
        with self._lock:
            self._requests.pop(request_id, None)
