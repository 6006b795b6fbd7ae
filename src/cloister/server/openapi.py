"""The API described by OpenAPI 3.1, made from the same values that serve it, and a page of it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from cloister.server.endpoint import Conversation, Endpoint
from cloister.server.problems import STATUSES, Problem

_BYTES = {"type": "string", "format": "binary"}
_REF = "#/components/schemas/{name}"
_PROBLEM = "#/components/responses/Problem"
_PARAMETER = re.compile(r"{(\w+)(?::path)?}")


def describe_api(
    endpoints: Sequence[Endpoint], conversations: Sequence[Conversation], version: str
) -> dict[str, Any]:
    """Return the OpenAPI document."""
    types: list[Any] = [Problem]
    for each in endpoints:
        types += [kind for kind in (each.takes, each.query, each.gives) if kind is not None]
    unique = list({repr(kind): kind for kind in types}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    _plain_tuples(components)
    known = {repr(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = _PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, known, components)
    sockets = {
        _PARAMETER.sub(r"{\1}", each.path): {"summary": each.summary, "scope": each.scope}
        for each in conversations
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cloister", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        # OpenAPI has no word for WebSockets.
        "x-websockets": sockets,
        "components": {
            "schemas": components,
            "responses": {
                "Problem": {
                    "description": "what went wrong",
                    "content": {"application/problem+json": {"schema": known[repr(Problem)]}},
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _plain_tuples(schema: Any) -> None:
    """Say of tuples what one member is: programs that write clients know no more than that."""
    if isinstance(schema, dict):
        members = schema.pop("prefixItems", None)
        if members is not None:
            alike = all(each == members[0] for each in members)
            schema["items"] = members[0] if alike else {"anyOf": members}
        for each in schema.values():
            _plain_tuples(each)
    elif isinstance(schema, list):
        for each in schema:
            _plain_tuples(each)


def _operation(
    endpoint: Endpoint, known: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": endpoint.summary}
    if endpoint.gives_bytes:
        answer["content"] = {"application/octet-stream": {"schema": _BYTES}}
    elif endpoint.gives is not None:
        answer["content"] = {"application/json": {"schema": known[repr(endpoint.gives)]}}
    operation: dict[str, Any] = {
        "operationId": _name(endpoint),
        "summary": endpoint.summary,
        "description": f"Needs the scope `{endpoint.scope}`.",
        "parameters": _parameters(endpoint, components),
        "responses": {str(endpoint.status): answer, **_refusals(endpoint)},
    }
    if endpoint.takes_bytes:
        body = {"application/octet-stream": {"schema": _BYTES}}
        operation["requestBody"] = {"required": True, "content": body}
    elif endpoint.takes is not None:
        content = {"application/json": {"schema": known[repr(endpoint.takes)]}}
        operation["requestBody"] = {"required": False, "content": content}
    return operation


def _refusals(endpoint: Endpoint) -> dict[str, Any]:
    told = {str(status): {"$ref": _PROBLEM} for status in STATUSES}
    if endpoint.gives_any_status:
        return {**told, "default": {"description": "what the server inside answers"}}
    return {**told, **{str(status): {"description": said} for status, said in endpoint.further}}


def _parameters(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    if endpoint.query is not None:
        schema = components[endpoint.query.__name__]
        needed = schema.get("required", ())
        found += [
            {"name": name, "in": "query", "required": name in needed, "schema": each}
            for name, each in schema["properties"].items()
        ]
    return found


def _name(endpoint: Endpoint) -> str:
    words = [word for word in re.split(r"[^a-z]+", endpoint.path) if word not in ("", "v")]
    return "_".join([endpoint.method.lower(), *words])


def describe_page(document: dict[str, Any]) -> str:
    """Return a page of the API for people; it loads nothing and runs nothing."""
    rows = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            rows.append(_row(method.upper(), path, operation["summary"], operation["description"]))
    for path, socket in document["x-websockets"].items():
        rows.append(_row("WEBSOCKET", path, socket["summary"], f"Needs `{socket['scope']}`."))
    return (
        "<!doctype html><meta charset=utf-8><title>Cloister</title>"
        "<style>body{font:15px sans-serif;margin:2em}td{padding:.3em 1em .3em 0;"
        "vertical-align:top}code{font-size:14px}</style>"
        f"<h1>Cloister {html.escape(document['info']['version'])}</h1>"
        '<p>The whole of it is in <a href="/openapi.json">/openapi.json</a>.</p>'
        f"<table>{''.join(rows)}</table>"
    )


def _row(method: str, path: str, summary: str, need: str) -> str:
    cells = (method, path, summary, need.replace("`", ""))
    shown = [html.escape(cell) for cell in cells]
    return f"<tr><td>{shown[0]}<td><code>{shown[1]}</code><td>{shown[2]}<td>{shown[3]}"
