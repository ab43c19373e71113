"""Socket tables of `ss -tn` and `netstat -tn`: bytes that the server has sent and a client has not read."""

from __future__ import annotations

from ..model.observations import Ref, SocketQueue
from .lazy import lazy

_ADDRESS = r"(\[?[0-9a-fA-F:.%\w]*\]?:(?:\d+|\*)|\*:\*)"
_SS = lazy(rf"^\s*(?:([A-Z][A-Z0-9-]+)\s+)?(\d{{1,15}})\s+(\d{{1,15}})\s+{_ADDRESS}\s+{_ADDRESS}(?:\s|$)")
_NETSTAT = lazy(rf"^\s*tcp6?\s+(\d{{1,15}})\s+(\d{{1,15}})\s+{_ADDRESS}\s+{_ADDRESS}\s+([A-Z][A-Z0-9_]+)")
HEADER = lazy(r"^\s*(?:State\s+)?Recv-Q\s+Send-Q\s+Local|^\s*Proto\s+Recv-Q\s+Send-Q|^Active Internet connections")
"""The line above a table; without one, rows of numbers and addresses are not taken for sockets."""


def row(text: str) -> tuple[str, int, int, str, str] | None:
    """(state, receive queue, send queue, local address, peer address) of a row, bytes; None for any other line. A state filter of
    `ss` drops the state: such a row counts as established."""
    found = _NETSTAT.match(text)
    if found:
        return found[5].replace("_", "-"), int(found[1]), int(found[2]), found[3], found[4]
    found = _SS.match(text)
    if found:
        return found[1] or "ESTAB", int(found[2]), int(found[3]), found[4], found[5]
    return None


def parse(text: str, source: str, first_line: int) -> list[SocketQueue]:
    """The established connections of a socket table. On LISTEN the queues count connections, not bytes: such rows are left out."""
    result = []
    for number, line in enumerate(text.splitlines(), first_line):
        found = row(line)
        if found and found[0].startswith(("ESTAB", "CLOSE-WAIT", "FIN-WAIT")):
            state, received, sent, local, peer = found
            result.append(SocketQueue(state, received, sent, local, peer, Ref(source, number, line.rstrip())))
    return result
