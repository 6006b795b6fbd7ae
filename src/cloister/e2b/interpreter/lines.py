"""What a kernel says, as the lines that E2B's code interpreter sends."""

from __future__ import annotations

import time
from typing import Any

from cloister.e2b.interpreter.kernel import Frame

_NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


def line_of(frame: Frame) -> dict[str, Any] | None:
    """Return the line for a frame, or None for one that is not shown."""
    match frame.get("type"):
        case "number_of_executions":
            count = frame.get("execution_count")
            return {
                "type": "number_of_executions",
                "execution_count": count if isinstance(count, int) else 0,
            }
        case "stdout" | "stderr" as kind:
            return {"type": kind, "text": str(frame.get("text", "")), "timestamp": _time(frame)}
        case "error":
            return {
                "type": "error",
                "name": str(frame.get("name", "")),
                "value": str(frame.get("value", "")),
                "traceback": str(frame.get("traceback", "")),
            }
        case "result":
            return _result(frame)
        case "end_of_execution":
            return {"type": "end_of_execution"}
    return None


def _time(frame: Frame) -> str:
    at = frame.get("at")
    seconds = at if isinstance(at, int | float) and 0 <= at < 253_402_300_799 else time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1e6):06d}Z"


def _result(frame: Frame) -> dict[str, Any]:
    data = frame.get("data")
    line: dict[str, Any] = {"type": "result", "is_main_result": bool(frame.get("is_main"))}
    extra: dict[str, Any] = {}
    for kind, value in data.items() if isinstance(data, dict) else ():
        name = _NAMES.get(kind)
        if name is None:
            extra[str(kind)[:256]] = value
        elif name in ("json", "data", "chart"):
            line[name] = value
        else:
            line[name] = value if isinstance(value, str) else str(value)
    text = line.get("text")
    # The result of 'a' is shown as a: a person reads it, not a parser.
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        line["text"] = text[1:-1]
    for name in ("png", "jpeg", "pdf"):
        if name in line:
            line[name] = line[name].strip()
    if extra:
        line["extra"] = extra
    return line
