"""Socket tables: who has not read what."""

from __future__ import annotations

import pytest

from vllm_doctor.parsing.framing import segments
from vllm_doctor.parsing.sockets import parse, row

SS = """State Recv-Q Send-Q  Local Address:Port  Peer Address:Port Process
ESTAB 0      2611840     192.0.2.4:8000      192.0.2.9:49593 users:(("python3",pid=20410,fd=41))
ESTAB 98304  0           [::ffff:192.0.2.4]:8000 [::ffff:192.0.2.8]:42422
LISTEN 129   128          0.0.0.0:8000       0.0.0.0:*
"""
NETSTAT = """Active Internet connections (w/o servers)
Proto Recv-Q Send-Q Local Address           Foreign Address         State       PID/Program name
tcp        0 2611840 192.0.2.4:8000          192.0.2.9:49593         ESTABLISHED 20410/python3
tcp    98304      0 192.0.2.4:8000          192.0.2.8:42422         CLOSE_WAIT  -
"""


def test_ss_gives_bytes_of_established_connections_only() -> None:
    assert [(q.received, q.sent, q.local, q.ref.line) for q in parse(SS, "ss.txt", 10)] == [
        (0, 2611840, "192.0.2.4:8000", 11),
        (98304, 0, "[::ffff:192.0.2.4]:8000", 12),
    ]


def test_netstat_says_the_same() -> None:
    assert [(q.state, q.received, q.sent) for q in parse(NETSTAT, "n.txt", 1)] == [("ESTABLISHED", 0, 2611840), ("CLOSE-WAIT", 98304, 0)]


@pytest.mark.parametrize("line", ["", "State", "ESTAB x y", "INFO 11-12 10:04:31 [core.py:77] 1 2 a:1 b:2", "12 13 not an address"])
def test_other_lines_are_no_rows(line: str) -> None:
    assert row(line) is None


def test_a_table_in_a_paste_is_a_segment_of_its_own() -> None:
    found = segments("paste.txt", ("INFO 11-12 10:04:31 [core.py:77] hello\n" + SS + "\nthat is all\n").encode())
    assert [(s.kind, s.first_line) for s in found][:2] == [("server_log", 1), ("sockets", 2)]
