"""``cuda``: decided before any rank starts, by one probe that runs only where it is needed."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_shardcheck.plugin import cuda

GPU = {"memory": 80 * 2**30, "capability": [9, 0], "name": "H100"}
OLD_GPU = {"memory": 16 * 2**30, "capability": [7, 0], "name": "V100"}


class Probe:
    """Stands in for the process that asks torch for GPUs, and counts how often one is started."""

    def __init__(self, stdout: str, stderr: str = "") -> None:
        self.answer = (stdout, stderr)
        self.started = 0

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.started += 1
        return subprocess.CompletedProcess(command, 0, *self.answer)


def _with_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: dict[str, object]) -> Probe:
    return _with_probe(monkeypatch, Probe(json.dumps(gpus)))


def _with_probe(monkeypatch: pytest.MonkeyPatch, probe: Probe) -> Probe:
    # Other plugins call subprocess.run() too: only what the name means in that module.
    theirs = SimpleNamespace(run=probe.run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(cuda, "subprocess", theirs)
    return probe


PLAIN = """
import pytest

@pytest.mark.cuda
def test_plain():
    pass
"""

SKIPPED_WORLDS = """
import unittest
import pytest

@pytest.mark.cuda
def test_plain():
    raise AssertionError("ran")

@pytest.mark.world_size(2, device="cuda")
def test_world():
    raise AssertionError("ran")

@pytest.mark.cuda(devices=3, memory="40 GB", capability="9.0")
@pytest.mark.world_size(2)
def test_both():
    raise AssertionError("ran")

class TestMethods(unittest.TestCase):
    @pytest.mark.world_size(4, device="cuda")
    def test_method(self):
        raise AssertionError("ran")
"""


def test_where_cuda_is_absent_tests_are_skipped_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makepyfile(SKIPPED_WORLDS)

    result = pytester.runpytest_subprocess("-rs", "-p", "no:randomly")  # with the real probe

    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED*needs 1 GPU, CUDA is not available here",
            "SKIPPED*needs 2 GPUs, CUDA is not available here",
            "SKIPPED*needs 3 GPUs, CUDA is not available here",
            "SKIPPED*needs 4 GPUs, CUDA is not available here",
        ]
    )
    assert "worlds, " not in result.stdout.str(), "a rank was started for a test that is skipped"


def test_require_cuda_turns_every_skip_into_a_failure(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = _with_gpus(monkeypatch)
    started = _count_nurseries(monkeypatch)
    pytester.makepyfile(SKIPPED_WORLDS)

    result = pytester.runpytest("--require-cuda", "-p", "no:randomly")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 4
    assert "passed" not in outcomes
    assert "skipped" not in outcomes
    result.stdout.fnmatch_lines(["*--require-cuda: needs 2 GPUs, CUDA is not available here*"])
    assert probe.started == 1
    assert started == [], "a nursery for worlds that can't run"


def _count_nurseries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    from pytest_shardcheck.plugin import launching

    started: list[object] = []

    class Refused(launching.Nursery):
        def __init__(self, *args: Any) -> None:
            started.append(args)
            super().__init__(*args)

    monkeypatch.setattr(launching, "Nursery", Refused)
    return started


def test_no_nursery_where_every_world_is_skipped(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_gpus(monkeypatch)
    started = _count_nurseries(monkeypatch)
    pytester.makepyfile(SKIPPED_WORLDS)

    pytester.runpytest("-p", "no:randomly").assert_outcomes(skipped=4)

    assert started == []


def test_require_cuda_by_ini_and_where_gpus_are_there(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\nshardcheck_require_cuda = true\n")
    pytester.makepyfile(PLAIN)

    _with_gpus(monkeypatch, GPU)
    pytester.runpytest().assert_outcomes(passed=1)
    _with_gpus(monkeypatch)
    assert pytester.runpytest().ret == pytest.ExitCode.TESTS_FAILED


def test_require_cuda_does_not_turn_a_user_s_own_skip_into_a_failure(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_gpus(monkeypatch, GPU)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda
        @pytest.mark.skip(reason="flaky driver")
        def test_plain():
            pass
        """
    )

    pytester.runpytest("--require-cuda").assert_outcomes(skipped=1)


NEEDS = """
import pytest

pytestmark = pytest.mark.cuda

def test_any():
    pass

@pytest.mark.cuda(devices=2)
def test_two():
    pass

@pytest.mark.cuda(memory="40 GiB")
def test_memory():
    pass

@pytest.mark.cuda(memory=60 * 2**30, devices=2)
def test_memory_of_two():
    pass

@pytest.mark.cuda(capability="8.0")
def test_capability():
    pass

@pytest.mark.cuda(capability=(10, 0))
def test_new_capability():
    pass
"""


def test_gpus_that_are_too_few_too_small_or_too_old(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(NEEDS)

    probe = _with_gpus(monkeypatch, GPU, OLD_GPU)
    mixed = pytester.runpytest("-rs", "-p", "no:randomly")
    mixed.assert_outcomes(passed=4, skipped=2)
    mixed.stdout.fnmatch_lines_random(
        [
            "*needs 2 GPUs of 64.4* GB, here: H100 (*9.0*V100*7.0*",
            "*needs 1 GPU of capability 10.0, here: H100*",
        ]
    )
    assert probe.started == 1

    _with_gpus(monkeypatch, OLD_GPU)
    old = pytester.runpytest("-rs", "-p", "no:randomly")
    old.assert_outcomes(passed=1, skipped=5)
    old.stdout.fnmatch_lines_random(["*needs 2 GPUs, here: V100*"])


def test_a_world_on_gpus_needs_one_for_each_rank(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_gpus(monkeypatch, GPU)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.world_size(2, 3, device="cuda")
        def test_world():
            pass
        """
    )

    result = pytester.runpytest("-rs")

    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines_random(["*needs 2 GPUs, here: H100*", "*needs 3 GPUs, here: H100*"])


def test_markers_of_several_levels_are_all_needed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_gpus(monkeypatch, OLD_GPU)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda(memory="40 GB")
        class TestClass:
            @pytest.mark.cuda(devices=1)
            def test_method(self):
                pass

            @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.cuda)])
            def test_parameter(self, n):
                pass
        """
    )

    result = pytester.runpytest("-rs")

    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(["*needs 1 GPU of 40*GB*, here: V100*"])


def test_a_mark_in_pytest_param_or_of_a_hook_counts(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_gpus(monkeypatch)
    pytester.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                if "gpu" in item.name:
                    item.add_marker(pytest.mark.cuda)
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.cuda)])
        def test_parameter(n):
            pass

        def test_gpu_by_name():
            pass
        """
    )

    pytester.runpytest("-p", "no:randomly").assert_outcomes(passed=1, skipped=2)


def test_a_probe_that_fails_says_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(PLAIN)

    _with_probe(monkeypatch, Probe("", "Traceback\nImportError: libcudart.so.13 is missing\n"))
    result = pytester.runpytest("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*CUDA is not available here (*libcudart.so.13 is missing)*"])

    # A chatty sitecustomize, or a warning on stdout, comes before the answer.
    _with_probe(monkeypatch, Probe("hello\n" + json.dumps([GPU]) + "\n"))
    pytester.runpytest().assert_outcomes(passed=1)


@pytest.mark.parametrize("args", [(), ("--collect-only",), ("-k", "not gpu"), ("-m", "not cuda")])
def test_no_probe_where_no_cuda_test_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    probe = _with_gpus(monkeypatch, GPU)
    pytester.makepyfile(
        "def test_plain(): pass\n" + ("" if not args else PLAIN.replace("test_plain", "test_gpu"))
    )

    assert pytester.runpytest(*args).ret == pytest.ExitCode.OK
    assert probe.started == 0


def test_one_probe_for_any_number_of_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = _with_gpus(monkeypatch, GPU)
    pytester.makepyfile(test_first=PLAIN, test_second=PLAIN)

    pytester.runpytest().assert_outcomes(passed=2)

    assert probe.started == 1


REFUSED = [
    ("cuda(2)", "(2,)", "named arguments only: devices, memory, capability"),
    ("cuda(device=2)", "unknown argument 'device'", "devices, memory, capability"),
    ("cuda(devices=0)", "devices=0", "whole number above 0"),
    ("cuda(devices=-1)", "devices=-1", "whole number above 0"),
    ("cuda(devices='2')", "devices='2'", "whole number above 0"),
    ("cuda(devices=True)", "devices=True", "whole number above 0"),
    ("cuda(devices=None)", "devices=None", "whole number above 0"),
    ("cuda(memory='40 GX')", "memory='40 GX'", "GB"),
    ("cuda(memory=-1)", "memory=-1", "GB"),
    ("cuda(memory=1.5)", "memory=1.5", "GB"),
    ("cuda(capability='nine')", "capability='nine'", '"9.0" or (9, 0)'),
    ("cuda(capability=9)", "capability=9", '"9.0" or (9, 0)'),
    ("cuda(capability=9.0)", "capability=9.0", '"9.0" or (9, 0)'),
    ("cuda(capability='9.')", "capability='9.'", '"9.0" or (9, 0)'),
    ("cuda(capability='.9')", "capability='.9'", '"9.0" or (9, 0)'),
    ("cuda(capability=(9, 0, 0))", "capability=(9, 0, 0)", '"9.0" or (9, 0)'),
    ("cuda(capability=(-1, 0))", "capability=(-1, 0)", '"9.0" or (9, 0)'),
    ("cuda(capability=(True, False))", "capability=(True, False)", '"9.0" or (9, 0)'),
]


def test_a_wrong_argument_is_a_usage_error_at_collection(pytester: pytest.Pytester) -> None:
    for number, (marker, _, _) in enumerate(REFUSED):
        pytester.makepyfile(
            **{
                f"test_{number}": f"""
                import pytest

                @pytest.mark.{marker}
                def test_wrong():
                    pass
                """
            }
        )

    result = pytester.runpytest("-q", "--collect-only")

    wrong = []
    for number, (marker, given, accepted) in enumerate(REFUSED):
        where = f"test_{number}.py::test_wrong: @pytest.mark.cuda: "
        lines = [line for line in result.outlines if line.startswith(where)]
        if len(lines) != 1 or given not in lines[0] or accepted not in lines[0]:
            wrong.append((marker, lines))
    assert not wrong
    assert "Traceback" not in result.stdout.str()
