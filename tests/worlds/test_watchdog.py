"""What a message shows of a rank's stack."""

from __future__ import annotations

import pytest

from pytest_shardcheck.worlds.orders import stack_path
from pytest_shardcheck.worlds.watchdog import stack_text

HEAD = "Current thread 0x1 (most recent call first):"
TEST = '  File "/home/me/test_train.py", line 7 in test_train'
BELOW = """\
  File "/env/_pytest/python.py", line 159 in pytest_pyfunc_call
  File "/env/pluggy/_callers.py", line 121 in _multicall
  File "/env/pytest_shardcheck/worlds/rank.py", line 88 in run_rank
  File "<string>", line 1 in <module>"""


def frame(name):
    return f'  File "/env/pytest_shardcheck/instruments/{name}.py", line 3 in it'


@pytest.mark.parametrize(
    ("above", "shown"),
    [
        pytest.param([], [], id="the test itself"),
        pytest.param([frame("dispatch")], [], id="a call that we passed on"),
        pytest.param([frame("c10d_tap"), frame("dispatch")], [], id="a collective"),
        pytest.param([frame("settling"), frame("dispatch")], [frame("settling")], id="we hang"),
    ],
)
def test_our_frames_are_shown_where_we_hang(tmp_path, above, shown):
    stack_path(tmp_path, 0).write_text("\n".join([HEAD, *above, TEST, BELOW]))
    assert stack_text(tmp_path, 0).splitlines() == [HEAD, *shown, TEST]
