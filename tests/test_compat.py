"""Each private interface that we use is still there: a new pytest or torch fails here, by name."""

from __future__ import annotations

import importlib
import inspect

import pytest
from _pytest import capture, runner, threadexception, tmpdir, unittest, unraisableexception
from _pytest._code import code
from _pytest.config import _prepareconfig

from pytest_shardcheck import _compat


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_a_configuration_is_prepared_from_arguments_and_plugins():
    assert parameters(_prepareconfig)[:2] == ["args", "plugins"]
    assert callable(pytest.Config._do_configure)
    assert parameters(pytest.Session.from_config) == ["config"]


def test_capturing_starts_by_a_manager_of_one_method():
    assert parameters(capture.CaptureManager.__init__) == ["self", "method"]
    manager = capture.CaptureManager("fd")
    manager.start_global_capturing()
    try:
        assert manager._global_capturing.out.tmpfile.fileno() > 2
    finally:
        manager.stop_global_capturing()


def test_the_terminal_is_written_to_beside_what_is_captured(request, capfd):
    assert isinstance(
        request.config.pluginmanager.getplugin("capturemanager"), capture.CaptureManager
    )
    print("captured")
    with _compat.uncaptured(request.config):
        pass
    print("captured too")
    assert capfd.readouterr().out == "captured\ncaptured too\n"


def test_temporary_paths_come_from_the_factory_of_the_configuration(request):
    assert isinstance(request.config._tmp_path_factory, pytest.TempPathFactory)
    wanted = ["given_basetemp", "retention_count", "retention_policy", "trace"]
    assert parameters(tmpdir.TempPathFactory.__init__)[1:5] == wanted


def test_exception_queues_are_in_the_stash(request):
    for key in (threadexception.thread_exceptions, unraisableexception.unraisable_exceptions):
        assert hasattr(request.config.stash[key], "clear")


def test_the_ordinary_protocol_is_the_runners(request):
    implementations = request.config.hook.pytest_runtest_protocol.get_hookimpls()
    assert any(impl.plugin is runner for impl in implementations)


def test_unittest_functions_have_an_instance_and_an_original_name():
    assert "self.parent.obj(" in inspect.getsource(unittest.TestCaseFunction._getinstance)
    assert "originalname" in parameters(pytest.Function.__init__)


def test_a_chain_survives_the_way_through_json():
    crash = _compat.file_location("file.py", 3, "message")
    chain = _compat.chain_of([(_compat.native_traceback(["text\n"]), crash, None)])
    report = pytest.TestReport("id", ("file.py", 2, "id"), {}, "failed", chain, "call")
    back = pytest.TestReport._from_json(report._to_json())
    assert isinstance(back.longrepr, code.ExceptionChainRepr)
    assert back.longrepr.reprcrash.message == "message"
    assert "text" in back.longreprtext


def test_subtests_report_under_a_name_that_we_know():
    subtests = importlib.import_module("_pytest.subtests")
    assert subtests.SubtestReport.__name__ == "SubtestReport"
    assert issubclass(subtests.SubtestReport, pytest.TestReport)


def test_interpreter_flags():
    assert isinstance(_compat.interpreter_flags(), list)


def test_torch_finds_rendezvous_handlers_in_a_table():
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    assert {"env", "file", "tcp"} <= set(handlers)
