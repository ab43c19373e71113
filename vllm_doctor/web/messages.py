"""What the server and a worker say to each other: frames of MessagePack with their length before them, over the worker's stdin and stdout."""

from __future__ import annotations

import struct
from typing import IO, Literal

import msgspec

HEAD = struct.Struct(">Q")
Output = Literal["html", "json", "markdown"]


class Job(msgspec.Struct, tag=True):
    """One request as it came in. `outputs` are the forms of the report that are wanted."""

    content_type: str
    body: bytes
    language: str
    outputs: tuple[Output, ...]


class Progress(msgspec.Struct, tag=True):
    """What is being read, and how far."""

    name: str
    done: int
    total: int


class Done(msgspec.Struct, tag=True):
    outputs: dict[str, str]


class Failed(msgspec.Struct, tag=True):
    """`code` is one of the keys of `pages.FAILURES`; `details` are sentences about single inputs, in the language asked for and redacted."""

    code: str
    details: tuple[str, ...] = ()


Answer = Progress | Done | Failed
encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


def frame(message: Job | Answer) -> bytes:
    data = encode(message)
    return HEAD.pack(len(data)) + data


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame, None at the end of the stream."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    size = HEAD.unpack(head)[0]
    data = stream.read(size)
    return data if len(data) == size else None
