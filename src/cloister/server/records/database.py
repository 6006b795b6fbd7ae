"""The records in SQLite or PostgreSQL, asked from one thread so that the loop never waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    create_engine,
    delete,
    event,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from cloister.errors import AlreadyExists, HostError, RequestError
from cloister.model import quote
from cloister.server.records.rows import SandboxRow, TokenRow
from cloister.server.records.tables import migrate, sandboxes, tokens
from cloister.store.locks import opening_alone

Value = TypeVar("Value")

# Made once, with places for the values: to make them anew takes longer than the database does.
_CHANGED = "changed_id"
_ADD_SANDBOX = insert(sandboxes)
_CHANGE_SANDBOX = update(sandboxes).where(sandboxes.c.id == bindparam(_CHANGED))


class Records:
    """Everything the server remembers. What a call returned from survives `kill -9`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "records")
        self._connection: Connection | None = None

    @classmethod
    def open(cls, url: str) -> Records:
        """Open the records at a URL, made or brought up to date first."""
        try:
            parsed = make_url(url)
        except SQLAlchemyError as error:
            raise RequestError(f"database is {quote(url)}; write sqlite:///FILE") from error
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise RequestError(
                f"database is of kind {quote(parsed.get_backend_name())}; use sqlite or postgresql"
            )
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        try:
            engine = create_engine(parsed)
        except ImportError as error:
            raise HostError(
                f"{error.name} is not installed; pip install 'cloister[postgresql]'"
            ) from error
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _prepare_sqlite)
        records = cls(engine)
        try:
            with _made_private(parsed), engine.begin() as connection:
                migrate(connection)
        except BaseException as error:
            engine.dispose()
            if isinstance(error, SQLAlchemyError):
                raise HostError(f"the records cannot be opened: {_said(error)}") from error
            raise
        return records

    def close(self) -> None:
        """Let go of the database."""
        self._thread.submit(self._disconnect).result()
        self._thread.shutdown()
        self._engine.dispose()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def do(self, work: Callable[[Connection], Value]) -> Value:
        """Do something in one transaction; it is done even if whoever waits is cancelled."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Value] = loop.create_future()
        self._thread.submit(self._do_and_tell, work, loop, told)
        return await told

    def _do_and_tell(
        self,
        work: Callable[[Connection], Value],
        loop: asyncio.AbstractEventLoop,
        told: asyncio.Future[Value],
    ) -> None:
        try:
            outcome = partial(_settle, told, self.do_now(work), None)
        except BaseException as error:
            outcome = partial(_settle, told, None, error)
        # Where the loop has ended meanwhile, nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(outcome)

    def do_now(self, work: Callable[[Connection], Value]) -> Value:
        """Do something in one transaction, in the calling thread."""
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            with self._connection.begin():
                return work(self._connection)
        except IntegrityError as error:
            raise AlreadyExists("a record of that name exists", what="record") from error
        except SQLAlchemyError as error:
            self._disconnect()
            raise HostError(f"the records cannot be used: {_said(error)}") from error

    def view_now(self, work: Callable[[Connection], Value]) -> Value:
        """Look at everything as it is at one moment, in the calling thread."""
        try:
            with self._engine.connect() as connection:
                if self._engine.dialect.name == "sqlite":
                    # Its driver begins a transaction only for what writes.
                    connection.exec_driver_sql("BEGIN")
                else:
                    connection.execution_options(isolation_level="REPEATABLE READ")
                return work(connection)
        except SQLAlchemyError as error:
            raise HostError(f"the records cannot be used: {_said(error)}") from error

    async def probe(self) -> None:
        """Raise if the database does not answer."""
        await self.do(lambda connection: connection.execute(select(1)))

    async def add_sandbox(self, row: SandboxRow) -> None:
        """Remember a sandbox, before it is started."""
        values = pack_row(row)
        await self.do(lambda connection: connection.execute(_ADD_SANDBOX, values))

    async def change_sandbox(self, id: str, **changes: Any) -> None:
        """Change what is remembered of one."""
        values = {_CHANGED: id} | {key: _pack(value) for key, value in changes.items()}
        await self.do(lambda connection: connection.execute(_CHANGE_SANDBOX, values))

    async def forget_ended(self, before: float) -> None:
        """Forget sandboxes that ended before a time and of which nothing is kept."""
        old = sandboxes.c.state == "ended", sandboxes.c.ended_at < before
        await self.do(lambda connection: connection.execute(delete(sandboxes).where(*old)))

    async def sandbox_rows(
        self,
        tenant: str | None,
        *,
        after: tuple[float, str] | None = None,
        limit: int | None = None,
        states: Sequence[str] | None = None,
        **equal: Any,
    ) -> list[SandboxRow]:
        """Return the sandboxes of a tenant, or of all with None; oldest first."""
        query = select(sandboxes).order_by(sandboxes.c.created_at, sandboxes.c.id).limit(limit)
        if tenant is not None:
            query = query.where(sandboxes.c.tenant == tenant)
        if states is not None:
            query = query.where(sandboxes.c.state.in_(states))
        if after is not None:
            time_at, id = after
            same = and_(sandboxes.c.created_at == time_at, sandboxes.c.id > id)
            query = query.where(or_(sandboxes.c.created_at > time_at, same))
        for key, value in equal.items():
            if isinstance(value, str) and not _is_storable(value):
                return []
            query = query.where(sandboxes.c[key] == value)
        rows = await self.do(lambda connection: list(connection.execute(query).mappings()))
        return [sandbox_row(row) for row in rows]

    async def token_row(self, id: str) -> TokenRow | None:
        """Return the token of that id."""
        query = select(tokens).where(tokens.c.id == id)
        row = await self.do(lambda connection: connection.execute(query).mappings().first())
        return None if row is None else token_row(row)


def _settle(told: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if told.done():
        # Whoever waited was cancelled.
        return
    if error is None:
        told.set_result(value)
    else:
        told.set_exception(error)


def _is_storable(text: str) -> bool:
    """Whether a text can be in the records; PostgreSQL refuses to look for any other."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def pack_row(row: SandboxRow | TokenRow) -> dict[str, Any]:
    """Return a row as its table has it."""
    return {each.name: _pack(getattr(row, each.name)) for each in fields(row)}


def _pack(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value


def sandbox_row(row: Any) -> SandboxRow:
    """Return a row of the table of sandboxes as a value."""
    values = dict(row)
    values["metadata"] = json.loads(values["metadata"])
    values["notes"] = json.loads(values["notes"])
    return SandboxRow(**values)


def token_row(row: Any) -> TokenRow:
    """Return a row of the table of tokens as a value."""
    return TokenRow(**{**row, "scopes": tuple(json.loads(row["scopes"]))})


def add_token(connection: Connection, row: TokenRow) -> None:
    """Put a token into the records."""
    connection.execute(insert(tokens).values(pack_row(row)))


def list_tokens(connection: Connection) -> list[TokenRow]:
    """Return all tokens, oldest first."""
    query = select(tokens).order_by(tokens.c.created_at)
    return [token_row(row) for row in connection.execute(query).mappings()]


def revoke_token(connection: Connection, id: str, now: float) -> bool:
    """End a token; whether there was one that had not ended."""
    done = connection.execute(
        update(tokens)
        .where(tokens.c.id == id, tokens.c.revoked_at.is_(None))
        .values(revoked_at=now)
    )
    return done.rowcount == 1


@contextlib.contextmanager
def _made_private(url: URL) -> Iterator[None]:
    """Have a file that only its owner reads, to oneself until it is up to date."""
    if url.get_backend_name() != "sqlite" or not url.database:
        yield
        return
    path = Path(url.database)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink():
        raise HostError(f"{path} is a link; name the database that it leads to")
    with opening_alone(path):
        # One that is there is not touched: its closing would end locks of this process.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        yield


def _prepare_sqlite(connection: Any, _: Any) -> None:
    # With a write-ahead log a commit is in the kernel's hands: it survives the death of the
    # process, and the log keeps the file whole if the machine dies.
    for pragma in ("busy_timeout=5000", "journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _said(error: SQLAlchemyError) -> str:
    # The statement and its values stay out of what a client may read.
    return str(getattr(error, "orig", None) or type(error).__name__)
