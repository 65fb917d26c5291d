"""Log formats of a long-running command: text lines or JSON lines."""

from __future__ import annotations

import json
import logging
import re
import time

TEXT_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+-]+")
CHATTY = ("uvicorn", "httpx", "httpcore")


def start_logging(level: str, form: str = "text") -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":  # these libraries log too much below that level
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)


class TextLines(logging.Formatter):
    """A text formatter. The members of a record's ``extra={"fields": {...}}`` follow as ``name=value``."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return one line, for any values."""
        fields = getattr(record, "fields", {}).items()
        return " ".join(
            [super().formatMessage(record), *(f"{name}={_plain(value)}" for name, value in fields)]
        )


class JsonLines(logging.Formatter):
    """A formatter with one JSON object per line, which includes a record's ``extra={"fields": {...}}``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line)


def _plain(value: object) -> str:
    """Return the text as is, or quoted if its end would be ambiguous."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
