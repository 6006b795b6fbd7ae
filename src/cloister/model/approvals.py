"""What a person is asked before something is let through, and what they answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from cloister.errors import RequestError
from cloister.model.quote import quote

Kind = Literal["request", "connection", "secret", "budget", "apply", "export"]
How = Literal["once", "for_time", "for_sandbox", "deny", "timeout", "cancelled"]

# The body of a request that waits is read first, and no more of it than this.
HELD_BODY_BYTES = 1024 * 1024
_SHOWN_CHARACTERS = 1500
_SHOWN_HEADERS = (
    *("content-type", "content-encoding", "content-length", "user-agent", "origin"),
    *("x-http-method-override", "x-method-override", "x-http-method", "destination"),
)


@dataclass(frozen=True, slots=True)
class Question:
    """Exactly what would be let through, and by which rule it waits.

    `path` is in its one form, `target` as it would be sent. `subject` is the secret, the limit, or
    what would be written where, for the kinds that have one. `content` is the SHA-256 of all
    headers and the body, `details` are those of them a person is shown.
    """

    kind: Kind
    rule: str
    host: str = ""
    port: int = 0
    method: str = ""
    path: str = ""
    target: str = ""
    subject: str = ""
    content: str = ""
    details: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_request(
        cls,
        rule: str,
        host: str,
        port: int,
        *,
        method: str,
        path: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        subject: str = "",
    ) -> Question:
        """Return the question about one request, held with its whole body.

        `subject` says what makes more of it than its method and path say.
        """
        if len(body) > HELD_BODY_BYTES:
            raise RequestError(
                f"a body of {len(body)} bytes cannot be held; the most is {HELD_BODY_BYTES}"
            )
        named = [(bytes(name).lower(), bytes(value)) for name, value in headers]
        hashed = hashlib.sha256()
        for name, value in named:
            for part in (name, value):
                hashed.update(len(part).to_bytes(8, "big") + part)
        hashed.update(b"\0" * 8 + body)
        # The same header many times is one line: it must not push another, or the body, out.
        details: dict[str, str] = {}
        for name, value in named:
            # Some servers know no difference between the two signs.
            shown = name.decode("latin-1").replace("_", "-")
            text = value.decode("ascii", "backslashreplace")
            if shown in _SHOWN_HEADERS:
                details[shown] = f"{details[shown]}, {text}" if shown in details else text
        if body:
            details["body"] = f"{len(body)} bytes, SHA-256 {_sha256(body)}"
        return cls(
            *("request", rule, host, port, method, path, _cut(target), subject),
            content=hashed.hexdigest(),
            details=tuple((name, _cut(value)) for name, value in details.items()),
        )

    @property
    def digest(self) -> str:
        """The SHA-256 of all of it: an answer is to this and to nothing else."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return _sha256(text.encode("ascii"))

    @property
    def scope(self) -> tuple[object, ...]:
        """What an answer that stays may cover: the same host, method and path; never more.

        Of what is taken out of a sandbox it is the very content that was asked about.
        """
        content = self.content if self.kind in ("apply", "export") else ""
        where = (self.host, self.port, self.method, self.path)
        return (self.kind, self.rule, *where, self.subject, content)

    def as_dict(self) -> dict[str, Any]:
        """Return it as a table."""
        return {**asdict(self), "details": [list(each) for each in self.details]}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Question:
        """Return what `as_dict` wrote, or raise ValueError."""
        if set(table) != {each.name for each in fields(cls)} or table["kind"] not in get_args(Kind):
            raise ValueError("not a question")
        details = tuple((str(name), str(value)) for name, value in table["details"])
        texts = {name: str(table[name]) for name in table if name not in ("port", "details")}
        return cls(**texts, port=int(table["port"]), details=details)  # type: ignore[arg-type]

    def lines(self) -> list[str]:
        """Return what a person is to read: nothing in it can be taken for words of ours."""
        return [f"{name}: {escape(value)}" for name, value in self._shown() if value]

    def _shown(self) -> list[tuple[str, str]]:
        place = f"{self.host}:{self.port}" if self.host else ""
        sent = f"{self.method} {self.target}" if self.method else ""
        return [
            ("what", self.summary()),
            ("rule", self.rule),
            ("host", place),
            ("sent", sent),
            ("path", self.path),
            ("of", self.subject),
            *(("with " + escape(name), value) for name, value in self.details),
            ("digest", self.digest),
        ]

    def summary(self) -> str:
        """Return it in one line, not yet escaped."""
        match self.kind:
            case "request":
                more = f" ({self.subject})" if self.subject else ""
                return f"{self.method} {self.host}:{self.port} {self.path}{more}"
            case "connection":
                return f"a connection to {self.host}:{self.port}"
            case "secret":
                return f"the first use of the secret {self.subject} for {self.host}:{self.port}"
            case "budget":
                return f"more than the budget: {self.subject}"
            case _:
                return f"{self.kind} {self.subject}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question; `until` is when an answer for a time ends, in seconds since 1970.

    `is_standing` says that nobody was asked: an answer given before covers it.
    """

    how: How
    who: str = ""
    reason: str = ""
    until: float | None = None
    is_standing: bool = False

    @property
    def allowed(self) -> bool:
        """Whether it may be."""
        return self.how in ("once", "for_time", "for_sandbox")

    @property
    def why_not(self) -> str:
        """What to say of one that does not allow. Not who gave it: programs inside read this."""
        return self.reason or ("the answer was no" if self.how == "deny" else self.how)

    def as_dict(self) -> dict[str, Any]:
        """Return it as a table."""
        return asdict(self)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Answer:
        """Return what `as_dict` wrote, or raise ValueError."""
        if set(table) != {each.name for each in fields(cls)} or table["how"] not in get_args(How):
            raise ValueError("not an answer")
        until = None if table["until"] is None else float(table["until"])
        who, reason = str(table["who"])[:200], str(table["reason"])[:500]
        return cls(table["how"], who, reason, until, table["is_standing"] is True)


def parse_how(value: object) -> How:
    """Return one of the ways to answer that a person has."""
    for how in ("once", "for_time", "for_sandbox", "deny"):
        if value == how:
            return how
    raise RequestError(f"answer is {quote(value)}; it may be once, for_time, for_sandbox, deny")


def escape(text: str) -> str:
    """Return a text as one line of printable ASCII, its length and digest told if it was cut."""
    shown = text[:_SHOWN_CHARACTERS].encode("ascii", "backslashreplace").decode("ascii")
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in shown)
    if len(text) <= _SHOWN_CHARACTERS:
        return shown
    digest = _sha256(text.encode("utf-8", "surrogatepass"))
    return f"{shown}... ({len(text)} characters, SHA-256 {digest})"


def _cut(text: str) -> str:
    # What is asked travels in one frame; what is left out is told by its digest.
    return text if len(text) <= _SHOWN_CHARACTERS else escape(text)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
