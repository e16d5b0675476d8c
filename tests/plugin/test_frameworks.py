"""A conftest teaches us a framework: where its state lives, and which methods are a phase."""

from __future__ import annotations

import pytest

FRAMEWORK = """
import torch


class Engine:
    '''Trains in flat buffers that no module and no optimizer of torch shows.'''

    def __init__(self):
        self.flat = torch.zeros(100)
        self.moment = torch.zeros(100)
        self.gradient = torch.zeros(0)

    def backward(self):
        self.gradient = torch.ones(100)
        bucket = torch.zeros(1_000)
        return bucket.sum()

    def update(self):
        self.moment += self.gradient
        self.flat -= self.moment
        self.gradient = torch.zeros(0)
"""

CONFTEST = """
import sys
from pytest_shardcheck import Held


def is_engine(thing):
    return type(thing).__name__ == "Engine"


def pytest_shardcheck_held(thing):
    if not is_engine(thing):
        return None
    return [
        Held(category="parameters", tensor=thing.flat, name="flat parameters"),
        Held(category="optimizer state", tensor=thing.moment, name="moments"),
        Held(category="gradients", tensor=thing.gradient, name="gradient"),
    ]


def pytest_shardcheck_phases(thing):
    return {"backward": "backward", "update": "optimizer"} if is_engine(thing) else None
"""

TESTS = """
import pytest
import torch
import torch.distributed as dist
from framework import Engine
from pytest_shardcheck import max_memory

pytestmark = pytest.mark.world_size(2)


@pytest.mark.memory(params=400, optimizer=400, grads=400, buffers=0)
@pytest.mark.max_memory(peak=5_300, phase="backward")
@pytest.mark.max_memory(peak=1_300, phase="optimizer")
def test_state_and_phases(shardcheck):
    engine = Engine()
    with shardcheck.measure(engine) as reading:
        engine.backward()
        engine.update()
    assert reading.memory.grads == 400  # those at the step's entry: at its end there are none
    assert reading.phases["forward"].memory.peak == 800
    assert "backward" not in vars(engine)  # its methods are its own again


@pytest.mark.max_memory(params=100)
def test_too_much(shardcheck):
    with shardcheck.measure(Engine()):
        pass


@pytest.mark.max_memory(peak=1_000)
def test_what_is_held_has_a_name(shardcheck):
    engine = Engine()
    with shardcheck.measure(engine):
        engine.backward()


@pytest.mark.max_memory(params=400)
def test_not_watched(shardcheck):
    Engine()


def test_a_method_that_raises(shardcheck):
    engine = Engine()
    engine.update = lambda: 1 / 0
    own = engine.update
    with shardcheck.measure(engine) as reading:
        with pytest.raises(ZeroDivisionError):
            engine.update()
        held = torch.ones(10)
    assert reading.phases["forward"].memory.live == reading.memory.live
    assert engine.update is own
"""

SAYS = {
    "test_too_much[world2]": ("max_memory(params): the ceiling of 100 B", "params 400 B"),
    "test_what_is_held_has_a_name[world2]": (
        "float32 [100] parameters (flat parameters)",
        "float32 [100] optimizer state (moments)",
        "float32 [100] gradients (gradient), at framework.py:",
    ),
    "test_not_watched[world2]": ("max_memory(params) is unmeasured", "nothing was watched"),
}


@pytest.fixture(scope="module")
def session(run_session):
    files = {"framework.py": FRAMEWORK, "conftest.py": CONFTEST, "test_inner.py": TESTS}
    return run_session(files, "-rA", "-p", "no:cacheprovider")


@pytest.mark.parametrize("name", ["test_state_and_phases", "test_a_method_that_raises"])
def test_it_is_measured(session, name):
    assert session.results.get(f"{name}[world2]") == ["PASSED"], session.out


@pytest.mark.parametrize("name", SAYS)
def test_it_fails(session, name):
    failure = session.failure(name)
    for part in SAYS[name]:
        assert part in failure


WRONG = """
import pytest

class Engine:
    pass

@pytest.mark.world_size(1)
def test_wrong(shardcheck):
    with shardcheck.measure(Engine()):
        pass
"""
HELD_NOTHING = "def pytest_shardcheck_held(thing): return []"
# What a folder's conftest answers, and what the test in that folder then fails with.
ANSWERS = {
    "category": (
        "def pytest_shardcheck_held(thing): return [Held(category='params', tensor=torch.ones(1))]",
        "Held(category='params'): expected one of 'parameters', 'unsharded parameters'",
    ),
    "no_held": (
        "def pytest_shardcheck_held(thing): return [SOME]",
        "test_no_held.Engine object at",
    ),
    "no_tensor": (
        "def pytest_shardcheck_held(thing): return [Held(category='parameters', tensor=7)]",
        "tensor=a torch.Tensor",
    ),
    "nobodys": (
        "def pytest_shardcheck_held(thing): return None",
        "or what a pytest_shardcheck_held hook knows",
    ),
    "phase": (
        f"{HELD_NOTHING}\ndef pytest_shardcheck_phases(thing): return {{'__str__': 'middle'}}",
        "expected one of 'forward', 'backward', 'optimizer'",
    ),
    "method": (
        f"{HELD_NOTHING}\ndef pytest_shardcheck_phases(thing): return {{'go': 'forward'}}",
        "no such method",
    ),
}


def test_a_wrong_answer_is_an_error_in_its_folder(run_session):
    head = "import torch\nfrom pytest_shardcheck import Held\nSOME = torch.ones(1)\n"
    files = {}
    for name, (conftest, _) in ANSWERS.items():
        files[f"{name}/conftest.py"] = head + conftest
        files[f"{name}/test_{name}.py"] = WRONG.replace("test_wrong", f"test_{name}")
    session = run_session(files, "-p", "no:cacheprovider", "--import-mode=importlib")
    assert session.outcomes == {"failed": len(ANSWERS)}, session.out
    for name, (_, says) in ANSWERS.items():
        assert says in session.failure(f"test_{name}[world1]")


def test_ours_can_be_switched_off(run_session):
    conftest = """
        def pytest_configure(config):
            print("deepspeed" if config.pluginmanager.hasplugin("shardcheck-deepspeed") else "none")
    """
    test = """
        import pytest
        @pytest.mark.world_size(1)
        def test_plugins(request, world):
            assert not request.config.pluginmanager.hasplugin("shardcheck-deepspeed")
    """
    files = {"conftest.py": conftest, "test_plugins.py": test}
    session = run_session(files, "-p", "no:shardcheck-deepspeed")
    assert session.outcomes == {"passed": 1}, session.out
