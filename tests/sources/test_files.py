"""Files, folders, stdin and archives as sources: what is read, in which order, and what is said about the rest."""

from __future__ import annotations

import gzip
import io
import os
import socket
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from vllm_doctor.model.observations import Issue
from vllm_doctor.sources import Source, archives, files, read, source

LOG = b"INFO 11-12 10:04:31 [core.py:77] Initializing a V1 LLM engine\n"


def texts(sources: list[Source]) -> dict[str, bytes]:
    return {s.name: b"".join(s.blocks()) for s in sources}


def codes(issues: list[Issue]) -> list[tuple[str, str]]:
    return [(i.code, i.ref.source if i.ref else "") for i in issues]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tar_bytes(members: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1762941871
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zip_bytes(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2025, 11, 12, 10, 4, 30)), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def test_a_file_stays_on_disk_until_its_blocks_are_read(here: Path) -> None:
    Path("server.log").write_bytes(LOG)
    os.utime("server.log", (5.0, 7.0))
    sources, issues = read(["server.log"])
    assert (sources, issues) == ([Source("server.log", "server.log", None, len(LOG), 7.0)], [])
    assert list(sources[0].blocks(block=40)) == [LOG[:40], LOG[40:]]


def test_a_folder_is_read_in_order_without_hidden_entries_and_weights(here: Path) -> None:
    for name in ("logs/b.log", "logs/a/x.log", "logs/.git/config", "logs/.hidden", "logs/model.safetensors"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(LOG)
    sources, issues = read(["logs"])
    assert [s.name for s in sources] == [os.path.join("logs", "b.log"), os.path.join("logs", "a", "x.log")]
    assert codes(issues) == [("source.binary", "logs")]


def test_a_folder_of_too_many_files_is_read_up_to_a_limit(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    for name in "abc":
        Path(name).write_bytes(LOG)
    sources, issues = read(["."])
    assert [s.name for s in sources] == ["./a", "./b"]
    assert codes(issues) == [("source.too_many", ".")]


def test_stdin_is_read_where_nothing_or_a_dash_is_named() -> None:
    assert texts(read([], LOG)[0]) == {"<stdin>": LOG}
    assert texts(read(["-"], io.BytesIO(gzip.compress(LOG)))[0]) == {"<stdin>": LOG}
    assert read([], None) == ([], [])
    assert codes(read(["-"], None)[1]) == [("source.no_stdin", "<stdin>")]


def test_what_cannot_be_read_is_named_and_the_rest_is_read(here: Path) -> None:
    Path("good.log").write_bytes(LOG)
    Path("empty.log").write_bytes(b"")
    Path("image.log").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    Path("random.log").write_bytes(bytes(range(1, 32)) * 100)
    sources, issues = read(["missing.log", "empty.log", "image.log", "random.log", "good.log", "nul\0name"])
    assert [s.name for s in sources] == ["good.log"]
    assert codes(issues) == [
        ("source.missing", "missing.log"),
        ("source.empty", "empty.log"),
        ("source.binary", "image.log"),
        ("source.binary", "random.log"),
        ("source.unreadable", "nul\0name"),
    ]


def test_a_file_without_permission_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "secret.log")

    Path("secret.log").write_bytes(LOG)
    monkeypatch.setattr("builtins.open", denied)
    sources, issues = read(["secret.log"])
    assert (sources, [(i.code, i.values) for i in issues]) == ([], [("source.damaged", {"reason": "Permission denied"})])


def test_a_file_that_vanishes_before_it_is_read_is_named(here: Path) -> None:
    Path("server.log").write_bytes(LOG)
    found = read(["server.log"])[0][0]
    Path("server.log").unlink()
    issues: list[Issue] = []
    assert list(found.blocks(issues)) == []
    assert [(i.code, i.values) for i in issues] == [("source.damaged", {"reason": "No such file or directory"})]


def test_the_same_file_is_read_once(here: Path) -> None:
    Path("server.log").write_bytes(LOG)
    sources, issues = read(["server.log", "./server.log", "."])
    assert ([s.name for s in sources], codes(issues)) == (["server.log"], [("source.twice", "./server.log")])


@pytest.mark.parametrize(
    "text", [LOG.decode().encode("utf-16"), b"\0" * 9000 + LOG, b"\x1b[36m" + LOG, "运行\n".encode(), "日本語".encode("shift-jis")]
)
def test_odd_text_is_still_text(text: bytes) -> None:
    assert files.looks_like_text(text[:8192])


def test_a_gzip_file_is_streamed(here: Path) -> None:
    Path("server.log.gz").write_bytes(gzip.compress(LOG * 3))
    sources, issues = read(["server.log.gz"])
    assert (sources[0].packing, sources[0].data, issues) == ("gzip", None, [])
    assert b"".join(sources[0].blocks(block=10)) == LOG * 3


def test_a_cut_gzip_file_gives_what_it_holds_and_says_so(here: Path) -> None:
    Path("cut.gz").write_bytes(gzip.compress(os.urandom(100).hex().encode() + LOG * 50)[:-20])
    sources, issues = read(["cut.gz"])
    later: list[Issue] = []
    assert len(b"".join(sources[0].blocks(later))) > 0
    assert (issues, codes(later)) == ([], [("source.damaged", "cut.gz")])


def test_a_gzip_file_of_several_parts_is_one(here: Path) -> None:
    Path("rotated.gz").write_bytes(gzip.compress(LOG) + b"\0" * 9 + gzip.compress(LOG * 2) + b"\0" * 70000)
    issues: list[Issue] = []
    assert (b"".join(read(["rotated.gz"])[0][0].blocks(issues)), issues) == (LOG * 3, [])


def test_a_bomb_is_stopped(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "RATIO_GRACE", 1 << 20)
    Path("bomb.gz").write_bytes(gzip.compress(b"a" * (8 << 20)))
    issues: list[Issue] = []
    size = sum(map(len, read(["bomb.gz"])[0][0].blocks(issues)))
    assert size < 8 << 20
    assert codes(issues) == [("source.ratio", "bomb.gz")]


def test_zstd_needs_its_package_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    sources, issues = read([], b"\x28\xb5\x2f\xfd\x04\x00")
    assert (sources, codes(issues)) == ([], [("source.no_zstd", "<stdin>")])


@pytest.mark.parametrize("packing", ["w", "w:gz"])
def test_members_of_a_tar_are_sources_with_their_times(packing: str) -> None:
    data = tar_bytes({"./bundle/metrics/0001_1796046493.023.txt": b"x 1\n", "bundle/server.log": LOG, "bundle/.DS_Store": b"x"}, packing)
    sources, issues = read([], data)
    assert texts(sources) == {"<stdin>/bundle/metrics/0001_1796046493.023.txt": b"x 1\n", "<stdin>/bundle/server.log": LOG}
    assert ([s.mtime for s in sources], issues) == ([1762941871.0] * 2, [])


def test_members_of_a_zip_are_sources_with_their_times(here: Path) -> None:
    Path("logs.zip").write_bytes(zip_bytes({"b/server.log": LOG, "a.txt": b"x 1\n", "__MACOSX/a.txt": b"x"}))
    sources, issues = read(["logs.zip"])
    assert texts(sources) == {"logs.zip/a.txt": b"x 1\n", "logs.zip/b/server.log": LOG}
    assert ([s.mtime for s in sources], issues) == ([1762941870.0] * 2, [])


def test_packed_files_inside_an_archive_are_read_and_deeper_archives_are_not() -> None:
    inner = zip_bytes({"c.log": LOG})
    middle = zip_bytes({"b.log.gz": gzip.compress(LOG), "inner.zip": inner, "deep.zip": zip_bytes({"deeper.zip": inner})})
    sources, issues = read([], zip_bytes({"middle.zip": middle}))
    assert texts(sources) == {"<stdin>/middle.zip/b.log.gz": LOG}
    assert codes(issues) == [("source.nested", "<stdin>/middle.zip/deep.zip"), ("source.nested", "<stdin>/middle.zip/inner.zip")]


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/passwd", "a/../../x", "C:\\x.log", "\\\\host\\x"])
def test_a_member_that_points_outside_is_left_out_and_nothing_is_written(here: Path, name: str) -> None:
    for data in (tar_bytes({name: LOG, "ok.log": LOG}), zip_bytes({name: LOG, "ok.log": LOG})):
        sources, issues = read([], data)
        assert [s.name for s in sources] == ["<stdin>/ok.log"]
        assert codes(issues) == [("source.escape", "<stdin>")]
    assert list(here.iterdir()) == []


def test_links_and_devices_in_a_tar_are_left_out() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("link.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        fifo = tarfile.TarInfo("fifo.log")
        fifo.type = tarfile.FIFOTYPE
        archive.addfile(fifo)
    assert codes(read([], buffer.getvalue())[1]) == [("source.empty", "<stdin>")]


@pytest.mark.parametrize("make", [zip_bytes, lambda members: tar_bytes(members, "w:gz")], ids=["zip", "tar.gz"])
def test_an_archive_that_unpacks_to_too_much_is_stopped(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "RATIO_GRACE", 1 << 20)
    sources, issues = read([], make({"a.log": LOG, "bomb.log": b"a" * (16 << 20)}))  # type: ignore[operator]
    assert [s.name for s in sources] == ["<stdin>/a.log"]
    assert codes(issues) == [("source.limit", "<stdin>")]


def test_an_archive_of_too_many_members_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    sources, issues = read([], zip_bytes({f"{i}.log": LOG for i in range(5)}))
    assert ([s.name for s in sources], codes(issues)) == (["<stdin>/0.log", "<stdin>/1.log"], [("source.too_many", "<stdin>")])


def test_a_damaged_archive_gives_what_came_before_the_damage() -> None:
    data = tar_bytes({"a.log": LOG * 400, "b.log": LOG * 400})
    sources, issues = read([], data[: len(data) // 2])
    assert ([s.name for s in sources], codes(issues)) == (["<stdin>/a.log"], [("source.damaged", "<stdin>")])
    assert codes(read([], zip_bytes({"a.log": LOG})[:40])[1]) == [("source.damaged", "<stdin>")]


def test_a_member_with_a_password_is_named() -> None:
    data = bytearray(zip_bytes({"a.log": LOG}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    assert codes(read([], bytes(data))[1])[0] == ("source.encrypted", "<stdin>/a.log")


@pytest.mark.parametrize(("data", "tool"), [(b"BZh91AY", "bzip2"), (b"\xfd7zXZ\x00", "xz"), (b"Rar!\x1a\x07", "RAR")])
def test_other_packings_are_named(data: bytes, tool: str) -> None:
    sources, issues = read([], data)
    assert (sources, codes(issues), issues[0].values) == ([], [("source.packing", "<stdin>")], {"tool": tool})


def test_reading_files_and_stdin_opens_no_socket(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    Path("a.log").write_bytes(LOG)
    Path("b.zip").write_bytes(zip_bytes({"b.log": LOG}))
    sources, issues = read([".", "-"], LOG)
    assert (list(texts(sources).values()), issues) == ([LOG, LOG, LOG], [])
