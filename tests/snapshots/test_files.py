"""A file of snapshots: folded, sorted, read with care, written whole, and where it lies."""

from __future__ import annotations

import json
import os
from pathlib import PurePosixPath

import pytest

from pytest_shardcheck.snapshots import Document, merge, read
from pytest_shardcheck.snapshots.layout import (
    check_variant,
    file_name,
    folder_of,
    split_file_name,
    stem_of,
    variant_of,
)
from pytest_shardcheck.snapshots.merge import fold, unfold
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.files import write_whole
from pytest_shardcheck.vocabulary.snapshots import RankSnapshot


def test_equal_ranks_are_folded_and_come_back():
    by_rank = {rank: {"n": rank // 3} for rank in range(12)}
    folded = fold(by_rank)
    assert list(folded) == ["ranks 0-2", "ranks 3-5", "ranks 6-8", "ranks 9-11"]
    assert unfold(folded) == by_rank
    assert unfold(fold({0: 1, 2: 1, 3: 1, 1: 5})) == {0: 1, 2: 1, 3: 1, 1: 5}


def test_values_that_are_equal_only_to_python_are_not_folded():
    assert fold({0: 1, 1: True, 2: 1.0}) == {"rank 0": 1, "rank 1": True, "rank 2": 1.0}


@pytest.mark.parametrize("words", ["0", "rank", "ranks 0-", "ranks 0,1", "rank -1", "ranks 0-1 "])
def test_other_words_for_ranks_are_refused(words):
    with pytest.raises(ValueError, match="names no ranks"):
        unfold({words: 1})


def test_a_rank_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match="rank 1 comes twice"):
        unfold({"ranks 0-1": 1, "rank 1": 2})


def test_what_is_left_out_is_not_in_the_file():
    value = {"memory": {"peak": 3, "live": 2}, "saved": {"bytes": 1}}
    taken = [
        RankSnapshot(name="n", rank=rank, value=value, region="step", exclude=("live", "saved"))
        for rank in range(2)
    ]
    assert merge(taken) == {"n": {"ranks 0-1": {"memory": {"peak": 3}}}}


def document(value: object = None) -> Document:
    return Document(torch="2.13.0", snapshots={"step": {"rank 0": value}})


def test_the_text_is_sorted_small_and_json():
    value = {"b": {"10": ["x", "y"], "9": [], "a": 1}, "a": "ü"}
    snapshots = {"z": {"rank 2": value, "rank 10": 1}, "a": {"rank 0": None}}
    one = Document(torch="2.13.0", snapshots=snapshots)
    text = one.to_text()
    assert text == (
        '{\n "schema": 1,\n "torch": "2.13.0",\n "snapshots": {\n'
        '  "a": {\n   "rank 0": null\n  },\n'
        '  "z": {\n   "rank 2": {\n    "a": "ü",\n    "b": {\n     "a": 1,\n     "9": [],\n'
        '     "10": ["x", "y"]\n    }\n   },\n   "rank 10": 1\n  }\n }\n}\n'
    )
    assert json.loads(text)["snapshots"] == snapshots
    assert Document.from_text(text, "file").to_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 2}',
        document(1).to_text()[:-4],
        "<<<<<<< HEAD\n" + document(1).to_text(),
        document(1).to_text().replace("rank 0", "nobody"),
        '{"schema": 1, "torch": "2", "snapshots": {"step": 3}}',
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path, text):
    path = tmp_path / "it.json"
    path.write_text(text)
    with pytest.raises(
        UsageError, match=r"snapshots/it\.json: a snapshot of schema 1 was expected"
    ):
        read(path, "snapshots/it.json")


def test_no_file_is_no_document_and_a_folder_is_an_error(tmp_path):
    assert read(tmp_path / "none.json", "none.json") is None
    with pytest.raises(UsageError, match="can't be read"):
        read(tmp_path, "a folder")


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "below" / "it.json"
    write_whole(path, "first")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    monkeypatch.setattr(type(path), "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "second")
    assert [p.name for p in path.parent.iterdir()] == ["it.json"]
    assert path.read_text() == "first"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_folder_is_the_test_files_path():
    assert folder_of("tests/sub/test_a.py::T::test_x[world2]") == PurePosixPath("tests/sub/test_a")
    assert folder_of("../out/test_a.py::test_x") == PurePosixPath("__/out/test_a")


def test_names_of_tests_are_kept_apart_where_a_file_can_not_be_called_so():
    names = ["t[a/b]", "t[ab]", "t[a%2Fb]", "t[a@b]", "t[a:b]", "t[é]", "t[" + "x" * 300 + "]",
             "t[" + "x" * 299 + "y]", "t[" + "é" * 200 + "]"]  # fmt: skip
    stems = [stem_of(name) for name in names]
    assert len(set(stems)) == len(names)
    for stem in stems:
        assert not set(stem) & set('\\/?*:|"<>@\n')
        assert len(file_name(stem, "x" * 40).encode()) <= 255
        assert split_file_name(file_name(stem, "2.13.0-cpu")) == (stem, "2.13.0-cpu")
        assert split_file_name(file_name(stem, "")) == (stem, "")
    assert stem_of("TestC.test_it[world2]") == "TestC.test_it[world2]"
    for other in ("README.md", ".123-t[world2]@cpu.json"):
        assert split_file_name(other) is None


def test_variants():
    place = {"device": "cuda", "torch": "2.13.0", "gpu": "NVIDIA H200 / 141GB"}
    assert variant_of("{device}", **place) == "cuda"
    assert variant_of("{gpu}-torch{torch}", **place) == "NVIDIA-H200-141GB-torch2.13.0"
    assert variant_of("", **place) == ""
    assert variant_of("{gpu}", device="cpu", torch="2", gpu="") == "cpu"
    # What is not known is no variant: a file of it may be anybody's.
    assert variant_of("{gpu}", device="cuda", torch="2", gpu=None) is None
    assert variant_of("{device}", device="cuda", torch="2", gpu=None) == "cuda"


@pytest.mark.parametrize("template", ["{host}", "{}", "{device", "{device!r}", "{torch:>9}", "{0}"])
def test_other_variants_are_refused(template):
    with pytest.raises(UsageError, match=r"\{device\}, \{gpu\}, \{torch\} is expected"):
        check_variant(template)
