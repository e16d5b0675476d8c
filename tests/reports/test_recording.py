from __future__ import annotations

import json

import pytest
from made import ceiling, reading, record

from pytest_shardcheck.reports.recording import SCHEMA_VERSION, Recording, read, to_text
from pytest_shardcheck.vocabulary.errors import UsageError

RECORDING = Recording(
    environment={"torch": "2.13.0", "python": "3.11.7"},
    incomplete="interrupted",
    tests=(
        record(
            [
                reading(0, live=(1, 2, 3), calls={"all_reduce": (2, 4)}, saved=5),
                reading(1, region='odd "region"\n'),
            ],
            "a.py::test[é-world2]",
            outcome="failed",
            seconds=0.25,
            failure="max_memory(peak): ...\n",
            verdicts=(ceiling({0: 3, 1: 3}, 2),),
        ),
        record(nodeid="b.py::test", outcome="skipped"),
    ),
)


def written(tmp_path, text):
    path = tmp_path / "recording.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_it_is_read_as_it_was_written(tmp_path):
    assert read(written(tmp_path, to_text(RECORDING))) == RECORDING
    assert read(written(tmp_path, to_text(Recording()))) == Recording()


def test_each_test_has_a_line_and_the_head_says_what_it_is():
    text = to_text(RECORDING)
    data = json.loads(text)
    assert (data["schema"], data["complete"], data["incomplete"]) == (1, False, "interrupted")
    assert [json.loads(line.rstrip(",")) for line in text.splitlines() if '"nodeid"' in line] == (
        data["tests"]
    )
    assert json.loads(to_text(Recording()))["complete"] is True


def test_the_schema_is_the_one_that_is_documented():
    # Whoever changes a field here changes what others read: raise SCHEMA_VERSION.
    data = json.loads(to_text(RECORDING))
    assert SCHEMA_VERSION == 1
    assert list(data) == ["schema", "complete", "incomplete", "environment", "tests"]
    test = data["tests"][0]
    assert {
        "nodeid", "spec", "outcome", "seconds", "failure", "readings", "verdicts"
    } <= test.keys()  # fmt: skip
    assert test["readings"][0].keys() >= {
        "rank", "region", "occurrence", "outermost", "implicit", "memory", "collectives",
        "saved", "live_phases",
    }  # fmt: skip
    assert test["verdicts"][0].keys() >= {
        "marker", "argument", "kind", "region", "occurrence", "figures", "tolerance", "unit",
        "detail", "narrowing",
    }  # fmt: skip


def _with(**changes):
    return json.dumps({**json.loads(to_text(RECORDING)), **changes})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        (to_text(RECORDING)[:-9], "is no JSON"),
        ("[]", "is no recording"),
        ('{"benchmarks": []}', "is no recording"),
        (_with(schema=2), "of schema 2, and 1 was expected"),
        (_with(tests=3), "damaged"),
        (_with(tests=[{"nodeid": "a"}]), "damaged"),
        (_with(tests=[{"nodeid": "a", "spec": {"size": 2}, "colour": 1}]), "colour"),
        (_with(environment=None), "damaged"),
    ],
    ids=[
        "empty", "half", "list", "other", "newer", "no-list", "missing", "unknown", "environment",
    ],
)  # fmt: skip
def test_what_can_not_be_read_is_said(tmp_path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=r"recording\.json") as caught:
        read(path)
    assert said in str(caught.value)


def test_bytes_folders_and_missing_files_are_said(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, said in (("bytes", "is no JSON"), ("", "can't be read"), ("none", "can't be read")):
        with pytest.raises(UsageError, match=said):
            read(tmp_path / name)
