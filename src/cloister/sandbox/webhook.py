"""Posts a question to an address of the policy, and waits there for its answer."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from cloister.errors import CloisterError, HostError, RequestError
from cloister.model.approvals import Answer
from cloister.node.approval_queue import made_answer
from cloister.policy import Approvals

_CALL_S = 10.0
_POLL_S = 2.0
_MOST_BYTES = 64 * 1024


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        # The token, and the right to answer, are of one address.
        return None


async def ask_webhook(approvals: Approvals, body: Mapping[str, Any]) -> Answer:
    """Return the answer of the address, in its response or at the address its response names."""
    url = approvals.webhook
    if url is None:
        raise HostError("there is no webhook")
    data: bytes | None = json.dumps(body).encode()
    while True:
        try:
            table = await asyncio.to_thread(_call, url, approvals.token, data)
        except HostError:
            # It may be back before the time is over; until then nothing is let through.
            table = {}
        if "answer" in table:
            break
        poll = table.get("poll")
        if isinstance(poll, str) and data is not None:
            url, data = _same_place(url, poll), None
        # The address says when it has an answer by being asked again.
        await asyncio.sleep(_POLL_S)
    if table.get("digest") != body["digest"]:
        raise RequestError("the webhook answered another question")
    host = urlsplit(url).hostname
    who = f"webhook {host}: {str(table.get('who') or 'nobody named')[:100]}"
    return made_answer(table["answer"], table.get("for"), who, str(table.get("reason") or "")[:500])


def _same_place(url: str, poll: str) -> str:
    found = urljoin(url, poll)
    if urlsplit(found)[:2] != urlsplit(url)[:2]:
        raise RequestError("the webhook names another host for its answer")
    return found


def _call(url: str, token: str | None, data: bytes | None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token is not None:
        value = os.environ.get(token.removeprefix("env:"))
        if not value:
            raise CloisterError(f"{token} of approvals.token is not set")
        headers["Authorization"] = f"Bearer {value}"
    # The policy takes only http and https for it.
    request = urllib.request.Request(url, data, headers)  # noqa: S310
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_CALL_S) as response:
            text = response.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise HostError(f"the webhook cannot be asked: {type(error).__name__}") from error
    try:
        table = json.loads(text) if text.strip() else {}
    except ValueError:
        table = {}
    return table if isinstance(table, dict) and len(text) <= _MOST_BYTES else {}
