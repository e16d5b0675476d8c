"""Markers over code that inductor compiled: live memory is refused by name, state is judged.

The graph class of inductor is a stand-in: tests/regression/test_compile.py has the real one.
"""

from __future__ import annotations

TESTS = """
    import sys
    from types import ModuleType

    import pytest
    import torch

    pytestmark = pytest.mark.world_size(2)
    max_memory = pytest.mark.max_memory


    class CompiledFxGraph:
        def __call__(self, inputs):
            return inputs


    def step(shardcheck, monkeypatch, runs=True):
        module = ModuleType("output_code")
        module.CompiledFxGraph = CompiledFxGraph
        monkeypatch.setitem(sys.modules, "torch._inductor.output_code", module)
        model = torch.nn.Linear(4, 4, bias=False)
        with shardcheck.measure(model):
            model(torch.ones(1, 4))
            if runs:
                CompiledFxGraph()([])

    @max_memory(peak="1 MB")
    def test_compiled_and_never_run(shardcheck, monkeypatch):
        step(shardcheck, monkeypatch, runs=False)

    @max_memory(params=64, allocated="1 MB")
    def test_state_and_allocated(shardcheck, monkeypatch):
        step(shardcheck, monkeypatch)

    @max_memory(peak="1 MB")
    def test_peak(shardcheck, monkeypatch):
        step(shardcheck, monkeypatch)

    @max_memory(peak="1 MB", phase="forward")
    def test_peak_of_a_phase(shardcheck, monkeypatch):
        step(shardcheck, monkeypatch)

    @pytest.mark.memory(growth=0)
    @max_memory(live="1 MB", peak_above_start="1 MB")
    def test_the_others(shardcheck, monkeypatch):
        step(shardcheck, monkeypatch)
"""


def test_live_memory_of_compiled_code_is_refused(run_session):
    session = run_session({"test_it.py": TESTS}, "--shardcheck-report")
    assert session.outcomes == {"passed": 2, "failed": 3}, session.out
    for name in ("test_peak[world2]", "test_peak_of_a_phase[world2]"):
        failure = session.failure(name)
        assert "max_memory(peak" in failure
        assert "inductor's compiled code ran in this test" in failure
        assert "judge allocated= instead" in failure
    others = session.failure("test_the_others[world2]")
    assert "max_memory(live, peak_above_start) is unmeasured in region 'step'" in others
    assert "memory(growth) is unmeasured in region 'step'" in others
