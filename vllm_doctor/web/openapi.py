"""The description of the API. The report's schema is the published one."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import __version__
from ..model.report import Report

_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object", "required": ["code", "message"], "properties": {
    "code": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "array", "items": {"type": "string"}}}}}}  # fmt: skip
REFUSALS = {
    "400": "The body is not what its content type says.",
    "403": "The Host header is not one of this server's, or a page of another site sent this.",
    "408": "The body stopped or was too slow.",
    "413": "The body, or what it unpacks to, is too large.",
    "422": "Nothing was sent, or nothing of it could be read.",
    "429": "Too many analyses wait.",
    "500": "An internal error.",
    "503": "The analysis took too long, or too much is being sent at the same time.",
}


def document(base: str) -> dict[str, Any]:
    """OpenAPI 3.1 for the paths below `base`."""
    (_,), schemas = msgspec.json.schema_components([Report], ref_template="#/components/schemas/{name}")
    language = {
        "name": "lang",
        "in": "query",
        "schema": {"type": "string", "enum": ["en", "zh"]},
        "description": "Else Accept-Language, else English.",
    }
    named = {"type": "object", "required": ["text"], "properties": {"name": {"type": "string"}, "text": {"type": "string"}}}
    bodies = {
        "text/plain": {"schema": {"type": "string"}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {"schema": {"type": "object", "properties": {
            "paste": {"type": "string"}, "files": {"type": "array", "items": {"type": "string", "format": "binary"}}}}},
        "application/json": {"schema": {"type": "object", "required": ["inputs"], "properties": {"inputs": {"type": "array", "items": named}}}},
    }  # fmt: skip
    refusals = {
        status: {"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
        for status, text in REFUSALS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vllm-doctor",
            "version": __version__,
            "description": "Logs, metrics, GPU dumps and launch commands in, a report out. Nothing is stored.",
        },
        "servers": [{"url": base or "/"}],
        "paths": {
            "/api/analyze": {
                "post": {
                    "operationId": "analyze",
                    "summary": "The report, as `vllm-doctor analyze --format json` writes it; redacted.",
                    "parameters": [language],
                    "requestBody": {"required": True, "content": bodies},
                    "responses": {
                        "200": {"description": "The report.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Report"}}}},
                        **refusals,
                    },
                }
            },
            "/healthz": {
                "get": {
                    "operationId": "healthz",
                    "summary": "Is the server up?",
                    "responses": {"200": {"description": "It is.", "content": {"application/json": {"schema": {"type": "object"}}}}},
                }
            },
        },
        "components": {"schemas": {**schemas, "Error": _ERROR}},
    }
