from __future__ import annotations

import json
import os

import pytest

from pytest_shardcheck.vocabulary import files
from pytest_shardcheck.vocabulary.files import why_not_writable, write_whole


def test_a_file_is_written_and_its_folder_made(tmp_path):
    path = tmp_path / "a" / "b.json"
    assert why_not_writable(path) == ""
    write_whole(path, "é\n")
    assert path.read_text(encoding="utf-8") == "é\n"
    assert [each.name for each in path.parent.iterdir()] == ["b.json"]


def test_it_may_be_read_by_whoever_may_read_a_plain_file(tmp_path):
    (tmp_path / "plain").write_text("")
    write_whole(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=str)
def test_what_was_there_stays_where_writing_fails(tmp_path, monkeypatch, error):
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail(*_):
        raise error

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(type(error)):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_text_that_can_not_be_written_leaves_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a", "half \ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write_whole(tmp_path / "link", json.dumps(1))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "1"


def test_a_folder_a_device_and_what_lies_below_a_file_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "folder" in why_not_writable(tmp_path)
    assert "no regular file" in why_not_writable(type(tmp_path)("/dev/null"))
    assert f"{tmp_path / 'file'} is no folder" in why_not_writable(tmp_path / "file" / "a" / "b")
    assert why_not_writable(tmp_path / "file") == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_what_may_not_be_written_is_refused(tmp_path):
    path = tmp_path / "file"
    path.touch(0o444)
    assert "may not be written" in why_not_writable(path)
    tmp_path.chmod(0o555)
    try:
        assert "may not be written" in why_not_writable(tmp_path / "new")
    finally:
        tmp_path.chmod(0o755)
