"""Logs as one JSON object a line; nothing that a client sent is in them but as a value."""

from __future__ import annotations

import json
import logging
import sys
import time

# What every record has, and nobody asked for.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName", "asctime"}


class JsonLines(logging.Formatter):
    """Writes a record and its extra fields as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of one record."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key not in _PLAIN and value is not None:
                line[key] = value
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def write_logs(level: str) -> None:
    """Write the server's log to standard error."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonLines())
    for name in ("cloister", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [output]
        logger.propagate = False
        logger.setLevel(level.upper() if name == "cloister" else logging.WARNING)
