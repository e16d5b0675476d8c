"""Llama-2-70B at worlds that no machine here could hold.

The whole model is one test, at world 64; `SHARDCHECK_LLAMA=80` runs the others with it too, which
is half a minute each. Layers are alike: two of them tell what each adds.
"""

from __future__ import annotations

import os

import pytest
from llama import HIDDEN, LAYER, REST, VOCABULARY, params, second, sharded

LAYERS = int(os.environ.get("SHARDCHECK_LLAMA", "2"))
GIB = 2**30
# Of the second step, bytes: (world, reshard) to (live at rest, peak). Those of 70B are in GiB, as
# torch's own FSDPMemTracker gives them too.
PEAKS_OF_70B = {
    (8, True): (64.240, 80.299),
    (8, False): (64.240, 182.351),
    (64, True): (8.030, 16.767),
    (64, False): (8.030, 140.194),
    (1024, True): (0.502, 11.121),
    (1024, False): (0.502, 134.571),
}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def per_rank(size: int) -> int:
    """Return the bytes of parameters on rank 0: of the vocabulary it has a row more than others."""
    return 2 * ((LAYERS * LAYER + HIDDEN) // size + 2 * -(-VOCABULARY // size) * HIDDEN)


def whole_model_at(*sizes):
    """Run at more sizes where the whole model is asked for."""
    if LAYERS < 80:
        return lambda function: function
    return pytest.mark.world_size(*sizes, simulate=True, ranks=[0], timeout=600)


@pytest.mark.world_size(8, 64, 1024, simulate=True, ranks=[0], timeout=600)
def test_any_number_of_ranks(device_mesh, shardcheck, world):
    hold(device_mesh, shardcheck, world, reshard=True)


@whole_model_at(8, 1024)
@pytest.mark.world_size(64, simulate=True, timeout=600)
def test_without_resharding(device_mesh, shardcheck, world):
    hold(device_mesh, shardcheck, world, reshard=False)


def hold(device_mesh, shardcheck, world, *, reshard):
    model, optimizer = sharded(LAYERS, device_mesh, reshard=reshard)
    reading = second(shardcheck, model, optimizer)
    memory = reading.memory
    units = LAYERS + 1
    assert reading.collectives["all_gather"].count == (2 * units if reshard else units)
    assert reading.collectives["reduce_scatter"].count == units
    assert reading.collectives.total.count == (3 if reshard else 2) * units
    assert memory.params == memory.grads == per_rank(world.size)  # and of the last at 64
    counters = 4 * sum(1 for _ in model.parameters())
    assert memory.optimizer == 2 * memory.params + counters
    assert memory.live == pytest.approx(4 * memory.params, rel=0.001)
    gathered = per_rank(world.size) * world.size  # padding included
    assert reading.collectives["reduce_scatter"].bytes == gathered
    assert reading.collectives["all_gather"].bytes == (2 if reshard else 1) * gathered
    if not reshard:
        assert memory.at_peak["unsharded parameters"] == gathered
    if LAYERS == 80:
        live, peak = PEAKS_OF_70B[world.size, reshard]
        assert memory.live / GIB == pytest.approx(live, rel=0.001)
        assert memory.peak / GIB == pytest.approx(peak, rel=0.001)


@pytest.mark.world_size(64, simulate=True, ranks=[0], timeout=600)
@pytest.mark.max_memory(peak="80 GB")
@pytest.mark.memory(params="2156 MB", tolerance="0.1%")
@pytest.mark.collectives(all_gather=162, reduce_scatter=81)
def test_70b_fits_64_gpus(device_mesh, shardcheck):
    assert params(80) == 68_976_648_192
    model, optimizer = sharded(80, device_mesh, reshard=True)
    reading = second(shardcheck, model, optimizer)
    live, peak = PEAKS_OF_70B[64, True]
    assert reading.memory.live / GIB == pytest.approx(live, rel=0.001)
    assert reading.memory.peak / GIB == pytest.approx(peak, rel=0.001)


FAILING = """
    import pytest
    from llama import second, sharded

    @pytest.mark.world_size(64, simulate=True, ranks=[0], timeout=600)
    @pytest.mark.max_memory(peak="{ceiling}")
    def test_without_reshard(device_mesh, shardcheck):
        model, optimizer = sharded({layers}, device_mesh, reshard=False)
        second(shardcheck, model, optimizer)
"""


def test_without_reshard_it_does_not_fit_and_says_why(run_session, monkeypatch):
    """Of 70B the message says 140.194 GiB, of which 128.479 GiB are unsharded parameters."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), *_path()]))
    ceiling = "80 GB" if LAYERS == 80 else "5 GB"
    session = run_session(
        {"test_it.py": FAILING.format(layers=LAYERS, ceiling=ceiling)}, "-q", timeout_s=900
    )
    failure = session.failure("test_without_reshard[world64-simulated]")
    assert "max_memory(peak): the ceiling of" in failure, session.out
    assert f"unsharded parameters {2 * params(LAYERS):,} B" in failure
    if LAYERS == 80:
        assert "(150.5 GB, 140.194 GiB)" in failure


def _path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def test_what_a_layer_adds():
    assert (params(80), LAYER, REST) == (68_976_648_192, 855_654_400, 524_296_192)
