"""Bodies of requests -> named content. Runs in a worker: a body may be hostile."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl

MAX_PARTS = 5000
PASTED = "pasted"


class Unreadable(Exception):
    """The body is not what its content type says."""


def inputs(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """(name, content) of everything that was sent, in its order; fields that are empty are left out.

    multipart/form-data and application/x-www-form-urlencoded as forms send them (`paste` and `files`, any other field counts as content under
    its name); application/json as {"inputs": [{"name", "text"}]}; everything else is one input as it is. Raises Unreadable.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        found = _multipart(content_type, body)
    elif kind == "application/x-www-form-urlencoded" and body.startswith(b"paste="):  # else curl's --data-binary, which calls anything a form
        found = _urlencoded(body)
    elif kind == "application/json":
        found = _json(body)
    else:
        found = [(PASTED, body)]
    result: list[tuple[str, bytes]] = []
    taken: set[str] = set()
    for name, content in found:
        if content.strip():
            clean = (name.replace("\\", "/").lstrip("/") or PASTED)[:300]
            unique, number = clean, 2
            while unique in taken:
                unique, number = f"{clean} ({number})", number + 1
            taken.add(unique)
            result.append((unique, content))
    return result


def _urlencoded(body: bytes) -> list[tuple[str, bytes]]:
    try:
        pairs = parse_qsl(body.decode("ascii"), max_num_fields=MAX_PARTS)
    except ValueError as error:
        raise Unreadable("form") from error
    return [(PASTED if k == "paste" else k, v.replace("\r\n", "\n").encode("utf-8", "replace")) for k, v in pairs]


def _json(body: bytes) -> list[tuple[str, bytes]]:
    try:
        content = json.loads(body)
        return [(str(item.get("name") or PASTED), item["text"].encode("utf-8", "replace")) for item in content["inputs"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unreadable("json") from error


def _multipart(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    parts: list[tuple[str, bytes]] = []
    header: dict[bytes, bytes] = {}
    field, value = bytearray(), bytearray()
    content: list[bytes] = []

    def end_header() -> None:
        header[bytes(field).lower()] = bytes(value)
        field.clear()
        value.clear()

    def end_part() -> None:
        if len(parts) >= MAX_PARTS:
            raise Unreadable("parts")
        _, options = parse_options_header(header.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        file = options.get(b"filename")
        data = b"".join(content)
        if file is None:
            data = data.replace(b"\r\n", b"\n")  # what a text field sends; files stay as they are
            parts.append((PASTED if name == "paste" else name, data))
        else:
            parts.append((file.decode("utf-8", "replace"), data))
        header.clear()
        content.clear()

    _, options = parse_options_header(content_type)
    try:
        parser = MultipartParser(
            options.get(b"boundary", b""),
            {
                "on_header_field": lambda data, start, end: field.extend(data[start:end]),
                "on_header_value": lambda data, start, end: value.extend(data[start:end]),
                "on_header_end": end_header,
                "on_part_data": lambda data, start, end: content.append(data[start:end]),
                "on_part_end": end_part,
            },
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Unreadable("form") from error
    return parts
