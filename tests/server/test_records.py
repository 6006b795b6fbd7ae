"""The records, on each kind of database that they can be in."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import create_engine, delete, inspect, text
from sqlalchemy.engine import make_url

from cloister.errors import AlreadyExists, HostError, NotFound
from cloister.server.records import Records, SandboxRow
from cloister.server.records.rows import SecretRow
from cloister.server.records.secret_rows import put_secret
from cloister.server.records.tables import MIGRATIONS, sandboxes, secrets, tokens
from cloister.server.records.transfer import dump, load
from cloister.server.tokens import Tokens, Wish, all_tokens, create_token, revoke

from .conftest import SYNCED, StartServer, created
from .databases import MISSING, postgresql, programs

Value = TypeVar("Value")

ROW = SandboxRow(
    id="sb_one",
    tenant="acme",
    state="running",
    inner_id="sb_inner",
    keep=None,
    created_at=1_700_000_000.123456,
    ended_at=None,
    ending=None,
    deadline_at=1_700_003_600.5,
    spec='{"env":{"A":"\\u0000"}}',
    metadata={"job": "seven ü \0"},
    notes={},
    idempotency="key",
    request_sha256="0" * 64,
)


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    place = programs()
    if place is None:
        pytest.skip(MISSING)
    with postgresql(place) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/records.db"
        return
    url = request.getfixturevalue("postgresql_url")
    execute(url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    yield url


def execute(url: str, statement: str) -> None:
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    engine = create_engine(parsed)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def using(url: str, work: Callable[[Records], Awaitable[Value]]) -> Value:
    """Do something with the records at a URL, opened for it and closed after it."""

    async def do() -> Value:
        return await work(records)

    records = Records.open(url)
    try:
        return asyncio.run(do())
    finally:
        records.close()


def test_a_row_comes_back_as_it_was_also_to_the_next_who_opens(database: str) -> None:
    using(database, lambda records: records.add_sandbox(ROW))
    found = using(database, lambda records: records.sandbox_rows("acme"))
    assert found == [ROW]
    assert using(database, lambda records: records.sandbox_rows("globex")) == []


def test_a_change_is_of_one_row_and_what_is_old_is_forgotten(database: str) -> None:
    other = replace(ROW, id="sb_two", idempotency=None, created_at=ROW.created_at + 1)

    async def work(records: Records) -> list[SandboxRow]:
        await records.add_sandbox(ROW)
        await records.add_sandbox(other)
        await records.change_sandbox("sb_one", state="ended", ended_at=5.0, ending="done")
        await records.forget_ended(4.0)
        assert [row.state for row in await records.sandbox_rows(None)] == ["ended", "running"]
        await records.forget_ended(6.0)
        return await records.sandbox_rows(None)

    assert using(database, work) == [other]


def test_pages_go_on_where_the_last_ended(database: str) -> None:
    rows = [
        replace(ROW, id=f"sb_{number:02}", idempotency=None, created_at=float(number // 3))
        for number in range(10)
    ]

    async def work(records: Records) -> list[SandboxRow]:
        for row in reversed(rows):
            await records.add_sandbox(row)
        found: list[SandboxRow] = []
        while True:
            after = (found[-1].created_at, found[-1].id) if found else None
            page = await records.sandbox_rows("acme", after=after, limit=4, states=("running",))
            if not page:
                return found
            found += page

    assert using(database, work) == rows


def test_one_key_is_one_request_of_a_tenant_and_anybody_elses(database: str) -> None:
    async def work(records: Records) -> int:
        await records.add_sandbox(ROW)
        await records.add_sandbox(replace(ROW, id="sb_two", tenant="globex"))
        with pytest.raises(AlreadyExists):
            await records.add_sandbox(replace(ROW, id="sb_three"))
        # The refusal has left the connection as it was.
        return len(await records.sandbox_rows(None, idempotency="key"))

    assert using(database, work) == 2


@pytest.mark.parametrize("id", ["sb_\0", "sb_\ud800", "sb_one' OR 1=1 --", "x" * 5000])
def test_what_cannot_be_there_is_not_found(database: str, id: str) -> None:
    async def work(records: Records) -> list[SandboxRow]:
        await records.add_sandbox(ROW)
        assert await records.sandbox_rows("acme", id="sb_one") == [ROW]
        return await records.sandbox_rows("acme", id=id)

    assert using(database, work) == []


def test_a_token_opens_until_it_is_revoked(database: str) -> None:
    records = Records.open(database)
    try:
        secret, row = create_token(records, Wish("acme"))
        assert [each.id for each in all_tokens(records)] == [row.id]
        assert asyncio.run(Tokens(records).caller(secret)).tenant == "acme"
        revoke(records, row.id)
        with pytest.raises(NotFound):
            revoke(records, row.id)
        with pytest.raises(Exception, match="revoked"):
            asyncio.run(Tokens(records).caller(secret))
    finally:
        records.close()


def test_tables_are_made_once_and_a_newer_form_is_refused(database: str) -> None:
    Records.open(database).close()
    Records.open(database).close()
    parsed = make_url(database)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    engine = create_engine(parsed)
    assert {"version", "tokens", "sandboxes"} <= set(inspect(engine).get_table_names())
    engine.dispose()
    execute(database, f"INSERT INTO version VALUES ({len(MIGRATIONS) + 1})")
    with pytest.raises(HostError, match="newer release"):
        Records.open(database)


def test_several_that_open_new_records_at_once_agree(database: str) -> None:
    async def open_all() -> None:
        opened = await asyncio.gather(
            *(asyncio.to_thread(Records.open, database) for _ in range(4))
        )
        for records in opened:
            await records.probe()
            records.close()

    asyncio.run(open_all())


def test_all_rows_go_from_one_kind_of_database_to_another(database: str, tmp_path: Path) -> None:
    there = Records.open(f"sqlite:///{tmp_path}/other.db")
    here = Records.open(database)
    try:
        create_token(here, Wish("acme", label="ü"))
        asyncio.run(here.add_sandbox(ROW))
        secret = SecretRow("acme", "TOKEN", ("api.example.org",), "sealed", 1.5)
        here.do_now(lambda connection: put_secret(connection, secret, 1))
        everything = dump(here)
        assert (len(everything.tokens), everything.sandboxes) == (1, [ROW])
        assert everything.secrets == [secret]
        load(there, everything)
        assert dump(there) == everything
        with pytest.raises(AlreadyExists):
            load(there, everything)
        # And back again, where what there was has been lost.
        here.do_now(lambda connection: connection.execute(delete(sandboxes)))
        here.do_now(lambda connection: connection.execute(delete(tokens)))
        here.do_now(lambda connection: connection.execute(delete(secrets)))
        load(here, dump(there))
        assert dump(here) == everything
    finally:
        here.close()
        there.close()


def test_a_killed_server_finds_its_records_in_postgresql(
    start_server: StartServer, postgresql_url: str
) -> None:
    execute(postgresql_url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    server = start_server(f'unlimited_disk = true\ndatabase = "{postgresql_url}"\n')
    secret = server.run("token", "create", "--tenant", "acme")
    client = server.client(secret)
    plain = created(client, metadata={"job": "7"})
    kept = created(client, keep="task", limits={"disk": "unlimited"})
    written = {"command": "echo kept > /workspace/file" + SYNCED}
    assert client.post(f"/v1/sandboxes/{kept}/run", json=written).json()["exit_code"] == 0
    assert client.get("/v1/sandboxes/%00").status_code == 404
    server.stop(signal.SIGKILL)
    server.start()
    client = server.client(secret)
    ended = client.get(f"/v1/sandboxes/{plain}").json()
    assert (ended["state"], ended["metadata"]) == ("ended", {"job": "7"})
    assert client.post(f"/v1/sandboxes/{kept}/resume").json()["id"] == kept
    found = client.post(f"/v1/sandboxes/{kept}/run", json={"command": "cat /workspace/file"})
    assert found.json()["stdout"] == "a2VwdAo="
    assert server.stop() == 0
