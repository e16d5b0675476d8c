"""A rank's pytest is configured as the session's, however the session was started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

# What the session selects, prints and writes is no business of a rank; everything else is equal.
NOT_FOR_RANKS = {
    "benchmark_compare",
    "cacheclear",
    "collectonly",
    "deselect",
    "durations",
    "failedfirst",
    "file_or_dir",
    "keyword",
    "lf",
    "log_file",
    "markexpr",
    "maxfail",
    "newfirst",
    "pyargs",
    "stepwise",
    "stepwise_reset",
    "stepwise_skip",
    "xmlpath",
}
# The terminal, the cache and our own plugins of either side.
NOT_IN_RANKS = ("terminal", "lfplugin", "nfplugin", "stepwiseplugin", "shardcheck-")

HELPER = """
import json
import os
import pathlib
import re
import sys

import pytest

TO = pathlib.Path(os.environ["FACTS"])

def pytest_addoption(parser):
    parser.addoption("--flavour", default="plain")
    # What JSON would bring back as something else.
    parser.addoption("--pair", default=(1, 2))
    parser.addoption("--table", default={1: "one"})
    parser.addini("sweetness", "an ini value of a plugin", default="none")

def _plain(value):
    return re.sub("0x[0-9a-f]+", "0x", repr(value))

def facts(config):
    return {
        "option": {name: _plain(value) for name, value in vars(config.option).items()},
        "ini": {name: _plain(config.getini(name)) for name in config._parser._inidict},
        "plugins": [name for name, plugin in config.pluginmanager.list_name_plugin() if plugin],
        "rootpath": str(config.rootpath),
        "inipath": str(config.inipath),
        "started in": str(config.invocation_params.dir),
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "sys.path": sys.path,
        "optimize": sys.flags.optimize,
        "pytest in environment": os.environ.get("PYTEST_ADDOPTS"),
    }

@pytest.fixture
def note(request, world):
    def write():
        (TO / f"rank-{request.node.path.parent.name}-{world.rank}.json").write_text(
            json.dumps(facts(request.config))
        )
    return write

def pytest_sessionfinish(session):
    # A rank never runs this hook.
    name = "session.json" if "RANK" not in os.environ else "sessionfinish-in-a-rank.json"
    (TO / name).write_text(json.dumps(facts(session.config)))
"""


@pytest.fixture
def facts(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for what processes note; ``-p helper`` is then importable."""
    library = pytester.mkdir("library")
    (library / "helper.py").write_text(HELPER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(library))
    directory = pytester.mkdir("facts")
    monkeypatch.setenv("FACTS", str(directory))
    return directory


def _assert_equal(facts: Path, ranks: int) -> None:
    names = sorted(path.name for path in facts.iterdir())
    assert "session.json" in names
    assert len(names) == ranks + 1, names
    session = _flat(facts / "session.json")
    for name in names:
        rank = _flat(facts / name)
        assert {what: value for what, value in rank.items() if session.get(what) != value} == {}
        assert session.keys() == rank.keys()


def _flat(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text())
    for name in NOT_FOR_RANKS:
        facts["option"].pop(name, None)
    for group in ("option", "ini"):
        facts.update({f"{group} {name}": value for name, value in facts.pop(group).items()})
    facts["plugins"] = sorted(
        name
        for name in facts["plugins"]
        if not name.startswith(NOT_IN_RANKS) and not name.isdigit()  # unnamed: by id()
    )
    return facts


def _write(pytester: pytest.Pytester, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


SAME_NAME = """
import warnings
import pytest

HERE = "{folder}"

@pytest.mark.mine
@pytest.mark.world_size(2)
def test_it(note, where, request):
    assert where == HERE
    assert request.node.path.parent.name == HERE
    assert request.config.getoption("--flavour") == "mint"
    assert request.config.getini("sweetness") == "very"
    with pytest.raises(UserWarning, match="careful"):
        warnings.warn("careful")
    note()

@pytest.mark.world_size(2)
@pytest.mark.parametrize("number", [3])
def test_rewritten(number):
    assert number + 1 == 5
"""


def test_options_files_and_environment(
    pytester: pytest.Pytester, facts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # -p, -o, -W, -c, --rootdir, --import-mode, conftests, PYTEST_ADDOPTS, from another directory,
    # and two files of one name without __init__.py.
    folders = ("one", "two")
    _write(
        pytester,
        {
            "configuration/custom.ini": "[pytest]\npython_files = check_*.py\n"
            "addopts = --tb=short --strict-markers\nmarkers = mine: ours\nsweetness = not at all\n",
            **{f"tests/{f}/check_same.py": SAME_NAME.format(folder=f) for f in folders},
            **{
                f"tests/{f}/conftest.py": "import pytest\n\n@pytest.fixture\ndef where():\n"
                f"    return {f!r}\n"
                for f in folders
            },
            "elsewhere/empty": "",
        },
    )
    monkeypatch.setenv("PYTEST_ADDOPTS", "--flavour=mint -p no:randomly")
    monkeypatch.chdir(pytester.path / "elsewhere")

    result = pytester.runpytest_subprocess(
        "-p", "helper", "-o", "sweetness=very", "-p", "no:asyncio", "-W", "error::UserWarning",
        "-c", "../configuration/custom.ini", "--rootdir=..", "--import-mode=importlib",
        "--showlocals", "--durations=2", "--maxfail=7", "../tests",
    )  # fmt: skip

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*assert (3 + 1) == 5*"])
    result.stdout.fnmatch_lines(["*number     = 3"])  # --showlocals
    _assert_equal(facts, ranks=4)


IN_PACKAGE = """
import os
import pytest

@pytest.mark.world_size(2)
@pytest.mark.parametrize("number", [1, 2])
def test_it(note, number):
    assert os.environ.get("BROKEN") != "1" or number == 1
    note()

@pytest.mark.world_size(2)
def test_dropped_by_a_hook(world):
    raise AssertionError("ran")

@pytest.mark.world_size(2)
def test_deselected(world):
    raise AssertionError("ran")
"""

DROPPING_CONFTEST = """
def pytest_collection_modifyitems(config, items):
    dropped = [item for item in items if "dropped" in item.name]
    items[:] = [item for item in items if "dropped" not in item.name][::-1]
    config.hook.pytest_deselected(items=dropped)
"""


def test_selections(
    pytester: pytest.Pytester, facts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # --pyargs and -k; then --lf; then a node id without a cache. And a hook that deselects.
    _write(
        pytester,
        {
            "conftest.py": DROPPING_CONFTEST,
            "library/package/__init__.py": "",
            "library/package/test_inside.py": IN_PACKAGE,
            "pytest.ini": "[pytest]\naddopts = -p helper -p no:randomly\n",
        },
    )
    monkeypatch.setenv("BROKEN", "1")

    by_keyword = pytester.runpytest_subprocess(
        "--pyargs", "package", "-k", "not deselected", "-m", "world_size"
    )
    by_keyword.assert_outcomes(passed=1, failed=1, deselected=2)
    by_keyword.stdout.fnmatch_lines(["*test_inside.py F.*"])  # in the order of the hook
    _assert_equal(facts, ranks=2)

    monkeypatch.setenv("BROKEN", "0")
    last_failed = pytester.runpytest_subprocess("--lf", "--pyargs", "package", "-v")
    last_failed.assert_outcomes(passed=1)
    last_failed.stdout.fnmatch_lines(["*::test_it?world2-2? PASSED*"])
    _assert_equal(facts, ranks=2)

    by_id = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "library/package/test_inside.py::test_it[world2-1]"
    )
    by_id.assert_outcomes(passed=1)
    _assert_equal(facts, ranks=2)


UNSTABLE = """
import itertools
import os
import random
import pytest

class Case:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"Case({self.name})"

@pytest.mark.world_size(2)
@pytest.mark.parametrize("case", {Case(letter) for letter in "abcdefghijklmnop"})
def test_set_order(case):
    pass

@pytest.mark.world_size(2)
@pytest.mark.parametrize("stable", sorted({"a", "b"}))
def test_stable(stable):
    pass

@pytest.mark.world_size(2)
@pytest.mark.parametrize("address", [object(), lambda: None, Case], ids=["o", "f", "c"])
def test_addresses_may_differ(address):
    pass

@pytest.mark.world_size(2)
@pytest.mark.parametrize("process", [os.getpid()], ids=["pid"])
def test_value(process):
    pass

@pytest.mark.world_size(2)
@pytest.mark.parametrize("process", [f"pid{os.getpid()}"])
def test_id(process):
    pass
"""


def test_parameters_that_differ_between_processes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    pytester.makepyfile(test_unstable=UNSTABLE)

    result = pytester.runpytest_subprocess("-p", "no:randomly", "-rA", "--tb=line")

    lines = result.outlines
    status = {
        line.split()[1].partition("::")[2]: line.split()[0]
        for line in lines
        if line.startswith(("PASSED ", "FAILED ", "ERROR "))
    }
    for name in ("stable[world2-a]", "stable[world2-b]"):
        assert status[f"test_{name}"] == "PASSED"
    for name in ("o", "f", "c"):
        assert status[f"test_addresses_may_differ[world2-{name}]"] == "PASSED"
    assert status["test_value[world2-pid]"] in ("FAILED", "ERROR")
    (by_id,) = [name for name in status if name.startswith("test_id")]
    assert status[by_id] in ("FAILED", "ERROR")
    # Sixteen objects in another order: hardly any is where it was.
    orders = [status[name] for name in status if name.startswith("test_set_order")]
    assert len(orders) == 16
    assert orders.count("PASSED") < 16
    text = result.stdout.str()
    assert "parameter 'case' is Case(" in text
    assert "parameter 'process' is " in text
    assert "a set's order" in text
    assert "Traceback" not in text


def test_modules_that_make_forking_unsafe_are_spawned(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_a_cuda="""
        import os
        import pytest
        import torch

        if "RANK" not in os.environ:
            torch.cuda.is_initialized = lambda: True  # as if this import had used a GPU

        @pytest.mark.world_size(1)
        def test_it(process_group):
            assert process_group.size() == 1
        """,
        test_b_thread="""
        import threading
        import pytest

        threading.Thread(target=threading.Event().wait, name="poller", daemon=True).start()

        @pytest.mark.world_size(1)
        def test_it(process_group):
            # A fork would have dropped it.
            assert [t.name for t in threading.enumerate() if t.name == "poller"]
            assert process_group.size() == 1
        """,
        test_c_safe="""
        import threading
        import pytest

        @pytest.mark.world_size(2)
        def test_it(process_group):
            assert threading.active_count() == 1
            assert process_group.size() == 2
        """,
    )

    result = pytester.runpytest_subprocess("-p", "no:randomly")

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "shardcheck: ranks of *test_a_cuda.py were spawned, not forked: *initialises CUDA",
            "shardcheck: ranks of *test_b_thread.py were spawned, not forked: *thread*poller*",
        ]
    )
    assert "test_c_safe.py were spawned" not in result.stdout.str(), "for what others imported"


def test_output_options(pytester: pytest.Pytester) -> None:
    # What a rank would write to the terminal: it has none.
    pytester.makepyfile(
        test_output="""
        import pytest

        @pytest.fixture
        def prepared(world):
            yield world.size

        @pytest.mark.world_size(2)
        def test_passes(prepared):
            assert prepared == 2

        @pytest.mark.world_size(2)
        def test_fails(prepared):
            helper(prepared)

        def helper(size):
            assert size == 3
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:randomly", "--setup-show", "--tb=native")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "ranks 0-1 of 2 failed in their call",
            "Traceback (most recent call last):",
            "*test_output.py*, line 13, in test_fails",
            "    helper(prepared)",
            "*test_output.py*, line 16, in helper",
            "AssertionError: assert 2 == 3",
        ]
    )
