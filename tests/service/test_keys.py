"""Keys as an operator writes them, and the ring of those that hold."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, strategies as st

from anytime.errors import AnytimeError, EnvironmentFailure
from anytime_service import keys
from anytime_service.errors import KeysError
from anytime_service.keys import MAX_KEY_BYTES, Key, KeyRing, read_keys
from anytime_service.settings import load_settings

SECRET = "do-not-tell-anybody-0123456789"
HEX = sha256(SECRET.encode()).hexdigest()

clear = st.from_regex(r"[A-Za-z0-9._~+/-]{1,60}={0,2}", fullmatch=True)


def right_of(ring: KeyRing, key: str) -> str | None:
    found = ring.find(key.encode())
    return None if found is None else found.scope


@given(stated=st.lists(st.tuples(clear, st.sampled_from(["", "predict:", "admin:"]), st.booleans()), min_size=1))
def test_each_key_that_is_told_holds_in_its_scope_and_no_other_key(stated: list[tuple[str, str, bool]]) -> None:
    reported = [
        f"{scope}sha256:{sha256(k.encode()).hexdigest()}" if hashed else scope + k for k, scope, hashed in stated
    ]
    ring = KeyRing(read_keys(",".join(reported)))
    for key, _, _ in stated:
        widest = "admin" if any(k == key and scope == "admin:" for k, scope, _ in stated) else "predict"
        assert right_of(ring, key) == widest
        assert right_of(ring, key + "x") is None or key + "x" in {other for other, _, _ in stated}
    assert ring.find(b"") is None
    assert ring.find(sha256(stated[0][0].encode()).hexdigest().encode()) is None, "a hash is not its key"


@pytest.mark.parametrize(
    "text",
    [
        ",",
        f"{SECRET},,{SECRET}",
        "admin:",
        "sha256:",
        f"sha256:{HEX[:-1]}",
        f"sha256:{HEX}0",
        f"sha256:{HEX[:-1]}g",
        f"SHA256:{HEX}",
        f"owner:{SECRET}",
        f"admin:admin:{SECRET}",
        f"'{SECRET}'",
        f"{SECRET},,",
        f"{SECRET} {SECRET}",
        f"{SECRET}ü",
        "x" * (MAX_KEY_BYTES + 1),
    ],
)
def test_what_is_no_key_is_one_line_that_names_the_variable_and_tells_no_key(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYTIME_API_KEYS", text)
    with pytest.raises(AnytimeError, match=r"^setting ANYTIME_API_KEYS: entry \d+ (is|has) .*; expected ") as refused:
        load_settings()
    reported = f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!s}"
    assert "\n" not in str(refused.value)
    assert not any(secret in reported for secret in (SECRET, HEX[:-1], "x" * 50))


def test_settings_have_no_key_and_show_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIME_API_KEYS", f"{SECRET},admin:sha256:{HEX}")
    monkeypatch.setenv("ANYTIME_SSL_KEYFILE_PASSWORD", SECRET)
    reported = load_settings()
    for shown in (repr(reported), str(reported), repr(reported.api_keys), reported.model_dump_json()):
        assert SECRET not in shown
    digest = sha256(SECRET.encode()).digest()
    assert repr(digest)[2:-1] not in repr(reported)
    assert (reported.api_keys, reported.keyed) == ((Key(digest), Key(digest, "admin")), True)
    monkeypatch.setenv("ANYTIME_API_KEYS", "")
    assert (load_settings().keyed, KeyRing().needed) == (False, False)


def test_short_keys_are_taken_and_counted() -> None:
    assert [key.short for key in read_keys(f"guess,{SECRET},sha256:{HEX}")] == [True, False, False]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_file_has_a_key_a_line_comments_and_empty_lines(file: Path) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):  # the byte order mark of some editors
        file.write_bytes(mark + f"{SECRET}  # until May\r\n\r\n # Ann\r\n\tadmin:sha256:{HEX.upper()}\n".encode())
        ring = KeyRing((), file)
        assert [key.scope for key in ring.current] == ["predict", "admin"]
        assert right_of(ring, SECRET) == "admin"


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"\xff\xfe", f"{SECRET}\n{SECRET} twice\n".encode()])
def test_a_file_of_no_keys_is_an_error_that_names_it_and_no_key(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(KeysError, match=f"key file '{file}'") as refused:
        KeyRing((), file)
    assert SECRET not in repr(refused.value)
    paths = {"nothing": "no such file", ".": "is a directory", "k" * 300: "file name too long"}
    for path, why in ((file.parent / name, why) for name, why in paths.items()):
        with pytest.raises(KeysError, match=f"cannot read key file .*: {why}"):
            KeyRing((), path)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_pipe_is_an_error_and_nothing_waits_for_it(file: Path, swapped: bool) -> None:
    file.write_text(SECRET)
    ring = KeyRing((), file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(KeysError, match=r"cannot read key file .*: it is a pipe or a device"):
        ring.read() if swapped else KeyRing((), file)
    assert ring.find(SECRET.encode())


def test_keys_hold_while_the_machine_cannot_read_their_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(SECRET)
    ring = KeyRing((), file)
    monkeypatch.setattr(keys, "read_text", Mock(side_effect=EnvironmentFailure("too many open files")))
    ring.reload()
    assert right_of(ring, SECRET) == "predict"


def test_keys_are_parsed_again_only_when_the_file_has_another_content(file: Path) -> None:
    file.write_text(SECRET)
    ring = KeyRing((), file)
    kept = ring.current
    os.utime(file, (0, 0))
    assert not ring.read()
    assert ring.current is kept
    file.write_text("second-0123456789")
    os.utime(file, (0, 0))
    assert ring.read(), "whatever its times and its size"
