"""What the gateway knows of one sandbox: what it may reach, its names, who is told of it."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from cloister.egress.asking import Asking
from cloister.egress.book import NETWORK, Book
from cloister.egress.bounds import Bounds
from cloister.egress.meter import Meter
from cloister.egress.pipes import Pipes
from cloister.egress.presence import while_present
from cloister.egress.refusal import Refusal
from cloister.egress.reports import Reports
from cloister.egress.secrets.bound import Secrets
from cloister.egress.upstream import Address, Upstream
from cloister.model.approvals import Answer, Question
from cloister.policy import Connect, Effect, Egress, HttpRequest, Policy, Verdict, judge
from cloister.policy.networks import parse_address

if TYPE_CHECKING:
    from cloister.egress.depth.authority import Leaves

# Of all sandboxes: one that is served anew, under the same id, must not use one twice.
_NUMBERS = itertools.count(1)
_HTTP_PORT = 80
# What becomes of something that was let out, of which there are no more than may be open.
_SURE = ("closed", "answered", "secret", "limit")


@dataclass(frozen=True, slots=True)
class Depth:
    """What reading requests needs: who to be for the program, and whom to trust for it."""

    leaves: Leaves
    bundle: str


class Ward:
    """One sandbox. Everything that is decided for it is decided here."""

    def __init__(
        self,
        id: str,
        policy: Policy,
        known: Mapping[str, str],
        reports: Reports,
        upstream: Upstream,
        pipes: Pipes,
        bounds: Bounds,
        *,
        depth: Depth | None = None,
        secrets: Secrets | None = None,
        used: Mapping[str, int] | None = None,
    ) -> None:
        self.id = id
        self.depth = depth
        self.secrets = Secrets() if secrets is None else secrets
        # Those whose first use a person has allowed, each with the host and port it was for.
        self.asked_secrets: set[tuple[str, str, int]] = set()
        self.bounds = bounds
        self.upstream = upstream
        self.pipes = pipes
        self.policy = policy
        self._egress = Egress() if policy.egress is None else policy.egress
        self._book = Book(bounds.names, known)
        # Names whose addresses the owner has not heard of yet.
        self._untold: set[str] = set()
        self._reports = reports
        self._asking = Asking(id, reports, bounds)
        self._held_bytes = self._requests = 0
        self.meter = Meter(
            self._egress.budget,
            used or {},
            tell=self.tell,
            report=lambda table: reports.tell_now({"do": "used", "sandbox": id, "used": table}),
            ask=self.ask,
        )
        self._lookups = asyncio.Semaphore(bounds.lookups)

    def may_ask(self, name: str) -> bool:
        """Whether a name may be looked up."""
        return self._egress.may_ask(name)

    def address_of(self, name: str) -> IPv4Address | None:
        """Return what stands for a name; None where the owner could not be told.

        The owner keeps the book too: another gateway must never give the address to another name.
        """
        known = self._book.find(name)
        address = self._book.give(name)
        if known is None:
            self._untold.add(name)
        if name in self._untold:
            frame = {"do": "given", "sandbox": self.id, "name": name, "address": str(address)}
            if not self._reports.tell_now(frame):
                return None
            self._untold.discard(name)
        return address

    def name_at(self, address: IPv4Address) -> str:
        """Return the name that a program meant by an address, or the address itself."""
        if address not in NETWORK:
            return str(address)
        name = self._book.name_at(address)
        if name is None:
            raise Refusal(f"{address} was never given for a name")
        return name

    async def permit(self, name: str, port: int, caller: socket.socket) -> Verdict:
        """Decide on a connection, and ask where a rule says so; raises Refusal unless allowed.

        What waits for an answer does so while `caller` is there.
        """
        if self.depth is None and self.policy.needs_depth(name, port):
            # Fail closed: a rule on requests is worth nothing where nobody reads them.
            raise Refusal(f"the rules for {name} are on its requests, which are not read here")
        verdict = self.judge(Connect(name, port))
        if verdict.effect is Effect.DENY:
            raise Refusal(verdict.reason, verdict.rule)
        if verdict.effect is Effect.ASK:
            question = Question("connection", verdict.rule, name, port)
            verdict = await while_present(caller, self.ask_for(question), verdict.rule)
        if self.meter.has_limits:
            await while_present(caller, self.meter.admit("connections"))
        return verdict

    def judge(self, request: Connect | HttpRequest) -> Verdict:
        """Return the verdict of the policy on a connection or a request."""
        return judge(request, self.policy, (), time.time())

    async def ask(self, question: Question) -> Answer:
        """Return what a person answers; nobody's answer is a deny."""
        return await self._asking.ask(question)

    async def ask_for(self, question: Question) -> Verdict:
        """Ask, and return the verdict that allows it or raise Refusal."""
        answer = await self.ask(question)
        if not answer.allowed:
            raise Refusal(f"asked and not allowed: {answer.why_not}", question.rule)
        return Verdict(Effect.ALLOW, question.rule, f"allowed by {answer.who}: {answer.how}")

    def reply(self, number: int, table: Mapping[str, Any]) -> None:
        """The owner has answered a question."""
        self._asking.reply(number, table)

    def open_request(self) -> bool:
        """Count one more request of many on a connection; False where there are too many."""
        if self._requests >= self.bounds.requests:
            return False
        self._requests += 1
        return True

    def close_request(self) -> None:
        """One of them is over."""
        self._requests -= 1

    def hold(self, count: int) -> None:
        """Count bytes that are kept until they are decided on; raises Refusal where it is too much.

        Less than nothing lets go of them.
        """
        if count > 0 and self._held_bytes + count > self.bounds.held_bytes:
            raise Refusal(
                f"{self._held_bytes} bytes that wait to be decided on are held already; the most "
                f"is {self.bounds.held_bytes}"
            )
        self._held_bytes += count

    def reads_requests(self, name: str, port: int) -> bool:
        """Whether each request of a connection is judged by itself."""
        if self.policy.needs_depth(name, port):
            return True
        # Of plain HTTP too where there are placeholders, which must not leave by it.
        return port == _HTTP_PORT and self.secrets.placeholders is not None

    async def find(self, name: str, port: int) -> list[Address]:
        """Return the checked addresses of a name."""
        private = self._egress.may_be_private(name)
        found = await self.upstream.find(name, port, private=private, turns=self._lookups)
        if not self._egress.is_by_address(name):
            return found
        reachable = self._egress.reachable(found)
        if not reachable:
            raise Refusal(f"{name} has the address {found[0]}, which no network of the policy has")
        return reachable

    def is_by_address(self, name: str) -> bool:
        """Whether a connection is to an address that was allowed as such, whatever is said."""
        return parse_address(name) is not None and self._egress.is_by_address(name)

    async def room(self) -> None:
        """Wait until the owner can be told of what is let out next."""
        await self._reports.room(self.id)

    def tell(self, **event: Any) -> None:
        """Tell the owner of something that happened."""
        is_out = event["kind"] in ("connection", "request") and event.get("allowed") is True
        self._reports.tell(self.id, event, sure=is_out or event["kind"] in _SURE)

    def tell_question(self, name: str, record: str, allowed: bool, reason: str) -> None:
        """Tell the owner of a name that was asked for."""
        self.tell(
            kind="name",
            protocol=record,
            host=name[:253],
            port=None,
            allowed=allowed,
            rule="" if allowed else "default",
            reason=reason,
        )

    def next_number(self) -> int:
        """Return a number for a connection."""
        return next(_NUMBERS)
