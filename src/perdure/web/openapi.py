"""The OpenAPI document, made from the table of routes and the types they read (WB-07)."""

import re
from typing import Any, Final

import msgspec

from perdure.records.context_list import ContextList
from perdure.web.refusals import REFUSALS, REJECTIONS, ErrorBody
from perdure.web.routes import ROUTES, Route

VERSION: Final = "3.1.0"
API_VERSION: Final = "1"
_REF: Final = "#/components/schemas/{name}"


def document() -> dict[str, Any]:
    """Answer the whole document."""
    kinds: list[Any] = [ErrorBody]
    for route in ROUTES:
        kinds += [kind for kind in (route.query, route.body) if kind is not None]
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_schema, ref_template=_REF
    )
    by_kind = dict(zip((id(kind) for kind in kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {
        "/health": {
            "get": _simple("health", "Say whether every open session works.", secure=False)
        },
        "/openapi.json": {"get": _simple("openapi", "Answer this document.")},
        "/v1/cookie": {"post": _simple("cookie", "Turn the token into the page's cookie.")},
    }
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, by_kind, components
        )
    return {
        "openapi": VERSION,
        "info": {"title": "perdure", "version": API_VERSION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(
    route: Route, by_kind: dict[int, dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    query = components[route.query.__name__]
    required = query.get("required", ())
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in query["properties"].items()
    ]
    answer = "text/event-stream" if route.is_stream else "application/json"
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.says,
        "parameters": parameters,
        "responses": {
            **{
                str(status): {"description": "done", "content": {answer: {}}}
                for status in route.statuses
            },
            "default": {
                "description": "refused",
                "content": {"application/json": {"schema": by_kind[id(ErrorBody)]}},
            },
        },
    }
    if route.body is not None:
        operation["requestBody"] = {
            "content": {"application/json": {"schema": by_kind[id(route.body)]}}
        }
    return operation


def _simple(name: str, says: str, *, secure: bool = True) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": says,
        "responses": {"200": {"description": "done", "content": {"application/json": {}}}},
    }
    if not secure:
        operation["security"] = []
    return operation


def _schema(kind: type[object]) -> dict[str, Any]:
    if kind is ContextList:
        return {"type": "array", "items": {"type": "integer"}}
    return {}


def error_codes() -> list[tuple[int, str, str]]:
    """Answer every status, code and retry that an error has."""
    table = {**REJECTIONS, **REFUSALS}
    return sorted((status, code, retry) for code, (status, retry) in table.items())
