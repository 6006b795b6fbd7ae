"""Answers the protocol's requests: which tools and files there are, and what a call did."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import mcp_types as wire
from mcp.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from cloister.errors import CloisterError
from cloister.mcp import resources
from cloister.mcp.arguments import Arguments, RunArguments
from cloister.mcp.calling import Call, Calling, needed, take_answer
from cloister.mcp.catalogue import instructions, offered
from cloister.mcp.command_tools import finish
from cloister.mcp.desk import Desk
from cloister.mcp.desks import SESSION_HEADER, Desks
from cloister.mcp.failure import ToolFailure, explain
from cloister.mcp.questions import InputNeeded
from cloister.mcp.tool import Told, Tool
from cloister.model import quote


def make_server(desks: Desks, version: str) -> Server[Desks]:
    """Return the server; its desks are closed when it ends, however that happens."""

    @contextlib.asynccontextmanager
    async def lifespan(server: Server[Desks]) -> AsyncIterator[Desks]:
        try:
            yield desks
        finally:
            await desks.close()

    return Server(
        "cloister",
        version=version,
        title="Cloister sandbox",
        instructions=instructions(desks.sample),
        lifespan=lifespan,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_resource_templates,
        on_read_resource=_read_resource,
    )


def _desk(call: Call) -> Desk:
    headers = getattr(call.request, "headers", None)
    return call.lifespan_context.of(None if headers is None else headers.get(SESSION_HEADER))


async def _list_tools(
    call: Call, params: wire.PaginatedRequestParams | None
) -> wire.ListToolsResult:
    desk = call.lifespan_context.sample
    reaches_out = desk.policy.egress is not None
    return wire.ListToolsResult(
        tools=[tool.described(reaches_out=reaches_out) for tool in offered(desk)]
    )


async def _call_tool(
    call: Call, params: wire.CallToolRequestParams
) -> wire.CallToolResult | wire.InputRequiredResult:
    desk = _desk(call)
    tool = next((each for each in offered(desk) if each.name == params.name), None)
    if tool is None:
        names = ", ".join(each.name for each in offered(desk))
        said = _text(f"no tool {quote(params.name)}; there are: {names}")
        raise MCPError(code=wire.INVALID_PARAMS, message=said)
    try:
        given = tool.takes.model_validate(params.arguments or {})
        if params.request_state is None:
            return _succeeded(await tool.act(desk, given, Calling(call)))
        return _succeeded(await _go_on(desk, given, params, Calling(call)))
    except InputNeeded as stop:
        return needed(stop.pending)
    except ValidationError as error:
        return _failed(_wrong_arguments(tool, error))
    except CloisterError as error:
        return _failed(explain(await desk.take_leave(error)))


async def _go_on(
    desk: Desk, given: Arguments, params: wire.CallToolRequestParams, calling: Calling
) -> Told:
    """Go on with a command whose client has been to ask a person."""
    state = params.request_state or ""
    running = desk.left.pop(state, None)
    if running is None or not isinstance(given, RunArguments):
        raise ToolFailure("nothing waits for this answer any more; call the tool anew")
    pending = desk.questions.find(state)
    if pending is not None:
        take_answer(pending, params.input_responses)
    return await finish(desk, given, running, calling)


def _wrong_arguments(tool: Tool, error: ValidationError) -> str:
    """Return which arguments are wrong and what each should be."""
    found = []
    for each in error.errors(include_url=False, include_input=False)[:5]:
        where = ".".join(map(str, each["loc"])) or "the arguments"
        found.append(f"{where[:100]}: {each['msg'].lower()}")
    known = ", ".join(tool.takes.model_fields) or "no arguments"
    return f"{tool.name} cannot take that: {'; '.join(found)}; it takes {known}"


def _succeeded(told: Told) -> wire.CallToolResult:
    return wire.CallToolResult(
        content=[wire.TextContent(text=_text(told.text)), *told.further],
        structured_content=_plain(told.data.model_dump(mode="python")),
    )


def _failed(text: str) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(text=_text(text))], is_error=True)


def _plain(value: Any) -> Any:
    """Return data in which every text can be written as UTF-8: names inside may hold any bytes."""
    match value:
        case str():
            return _text(value)
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return value


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


async def _list_resources(
    call: Call, params: wire.PaginatedRequestParams | None
) -> wire.ListResourcesResult:
    try:
        return wire.ListResourcesResult(resources=await resources.listed(_desk(call)))
    except CloisterError as error:
        raise MCPError(code=wire.INTERNAL_ERROR, message=_text(explain(error))) from error


async def _list_resource_templates(
    call: Call, params: wire.PaginatedRequestParams | None
) -> wire.ListResourceTemplatesResult:
    return wire.ListResourceTemplatesResult(resource_templates=resources.templates())


async def _read_resource(
    call: Call, params: wire.ReadResourceRequestParams
) -> wire.ReadResourceResult:
    desk = _desk(call)
    try:
        return wire.ReadResourceResult(contents=[await resources.read(desk, str(params.uri))])
    except CloisterError as error:
        said = _text(explain(await desk.take_leave(error)))
        data = {"uri": _text(str(params.uri))}
        raise MCPError(code=wire.INVALID_PARAMS, message=said, data=data) from error
