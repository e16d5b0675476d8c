"""Plans by simulation: what they refuse and say, and that they agree with the closed form."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_shardcheck import UsageError
from pytest_shardcheck.cli import main
from pytest_shardcheck.plan import (
    ClosedForm,
    Footprint,
    Part,
    Plan,
    Sent,
    Simulated,
    SimulatedStep,
    accounting,
    plan_simulated,
    simulated_document,
    simulated_heading,
    simulated_tables,
)
from pytest_shardcheck.plan.strategies import strategy_named
from pytest_shardcheck.vocabulary.errors import DeadRankError, HungRankError

GB = 10**9
REGRESSION = Path(__file__).parents[1] / "regression"
M8_PARAMS, LAYER = 526_336, 65_792
MODELS = """
    import torch

    def m8():
        with torch.device("meta"):
            model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
        return model, torch.empty(32, 256, device="cpu")

    class Asks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, batch):
            loss = self.inner(batch).sum()
            return loss * 2 if loss > 0 else loss

    def asks():
        return Asks(), torch.ones(1, 4)

    def llama():
        import llama
        tokens = torch.zeros(1, llama.TOKENS, dtype=torch.long)
        return llama.llama(2), {"input_ids": tokens, "labels": tokens}
"""


def made(world: int, **at_peak: int) -> Footprint:
    """Return what a simulation might have found: sizes in GB."""
    strategy = strategy_named("fsdp2")
    sizes = {name.replace("_", " "): size * GB for name, size in at_peak.items()}
    return Footprint(
        world=world,
        shards=world,
        replicas=1,
        parts=tuple(
            Part(name=name, bytes=size, divided=strategy.divides(name))
            for name, size in sizes.items()
        ),
        step=SimulatedStep(
            rank=0,
            params=1 * GB,
            grads=1 * GB,
            optimizer=2 * GB,
            buffers=0,
            live=4 * GB,
            peak=sum(sizes.values()),
            at_peak=sizes,
            collectives={"all_gather": Sent(count=162, wire_bytes=3 * GB)},
            parameters=70 * GB,
            tensors=723,
            dtypes=("bfloat16",),
            units={"Block": 80},
        ),
    )


@dataclass(frozen=True)
class Known:
    """An estimate that simulates nothing."""

    footprints: tuple[Footprint, ...]
    name: str = "fsdp2"

    def footprint(self, world: int) -> Footprint:
        return next(one for one in self.footprints if one.world == world)


def planned(*footprints: Footprint, limit: str = "80 GB") -> Plan:
    worlds = [one.world for one in footprints]
    return plan_simulated(Known(footprints), limit=limit, worlds=worlds)


def said(plan: Plan, limit: str = "80 GB") -> str:
    return simulated_tables([plan], limit=limit)[-1]


def test_the_smallest_of_the_worlds_that_fit() -> None:
    plan = planned(made(64, parameters=20), made(8, parameters=90), made(16, parameters=80))
    assert plan.answer.world == 16
    assert [one.world for one in plan.footprints] == [8, 16, 64]
    assert said(plan) == "fsdp2  fits at 16 GPUs: 80.0 GB at the peak, 0.0 GB to spare"


def test_never_is_said_only_of_what_no_world_divides() -> None:
    stays = planned(made(8, parameters=9, unsharded_parameters=81), made(16, parameters=99))
    assert said(stays).startswith("fsdp2  never: 81.0 GB stay on every GPU (unsharded parameters")
    # What the optimizer makes is divided as its state is, and a larger world may have less of it.
    may = planned(made(8, parameters=9, inputs=2, temporaries=81))
    assert said(may) == (
        "fsdp2  in none of these worlds: at 8 GPUs 92.0 GB at the peak, 12.0 GB above the limit; "
        "2.0 GB stay on every GPU (inputs 2.0), so a larger world may fit"
    )


def test_the_table_has_categories_and_calls_for_each_world() -> None:
    plan = planned(made(8, parameters=90, inputs=1), made(16, parameters=45, inputs=1))
    plan = replace(plan, name="fsdp2")
    lines = simulated_tables([plan], limit="80 GB")
    rows = {line[:24].strip(): line[24:].split() for line in lines if "  " in line}
    assert lines[1] == "fsdp2, gathered one at a time: 80 Block"
    text = "\n".join(re.sub(" +", " ", line).strip() for line in lines)
    assert "GPUs 8 16\nparameters 90.0 45.0\ninputs 1.0 1.0\ntotal 91.0 46.0*" in text, rows
    assert "state between steps 4.0 4.0\nall_gather calls 162 162\nall_gather GB sent 3.0" in text


def test_the_heading_says_what_the_model_is() -> None:
    plan = planned(made(8, parameters=1))
    assert simulated_heading([plan], model="a.b:build", limit="80 GB") == [
        "a.b:build: 70,000,000,000 parameters in 723 tensors (bfloat16)",
        "limit per GPU: 80 GB (74.5 GiB)",
    ]
    step = plan.footprints[0].step
    assert step is not None
    still = replace(plan.footprints[0], step=replace(step, ran=False))
    (*_, last) = simulated_heading([planned(still)], model="a.b:build", limit="80 GB")
    assert "returned no inputs" in last


def test_a_plan_survives_json() -> None:
    plan = planned(made(8, parameters=90), made(16, parameters=45))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    document = simulated_document([plan], model="a.b:build", limit="80 GB")
    assert document["plans"][0]["worlds"][1]["step"]["at_peak"] == {"parameters": 45 * GB}
    assert document["plans"][0]["worlds"][1]["state"] == 4 * GB


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"strategy": "fsdp3"}, "strategy 'fsdp3': expected one of fsdp2, fsdp2-no-reshard, ddp"),
        ({"strategy": "ddp", "shard": 2}, "ddp shards nothing"),
        ({"strategy": "ddp", "units": ("Block",)}, "ddp gathers none"),
        ({"shard": 0}, "shard=0: expected a number"),
        ({"optimizer": "lion"}, "optimizer='lion': expected one of adam, adamw"),
        ({"ranks": ()}, "expected at least one rank"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        Simulated(model="a.b:build", **options)


@pytest.mark.parametrize(
    ("options", "world", "seen"),
    [
        ({}, 0, "world=0: expected an int from 1 on"),
        ({"shard": 8}, 12, "world=12: fsdp2 shard 8 needs a multiple of 8"),
        ({"ranks": (0, 8)}, 8, "rank 8: a world of 8 has ranks 0 to 7"),
    ],
)
def test_a_world_that_can_not_be(options: dict[str, Any], world: int, seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        Simulated(model="a.b:build", **options).footprint(world)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        code: object = main(["plan", "--limit", "80 GB", *arguments])
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    return err.strip().splitlines()[-1]


M = ("--model", "absent_module:build")


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ((), "one of the arguments --params --model is required"),
        ((*M, "--params", "70e9"), "not allowed with argument"),
        (M, "--model needs the worlds to simulate, such as --world 8,16,32,64"),
        ((*M, "--world", "8", "--stage", "3"), "--stage: with --model it is what the model and"),
        ((*M, "--world", "8", "--weights", "fp16"), "--weights: with --model"),
        ((*M, "--world", "8", "--tensor-parallel", "1"), "--tensor-parallel: with --model"),
        (("--params", "1", "--strategy", "ddp"), "--strategy: it belongs to --model; leave it out"),
        ((*M, "--world", "8", "--strategy", "zero"), "strategy 'zero': expected one of fsdp2"),
        ((*M, "--world", "8", "--strategy", "ddp", "--no-reshard"), "--no-reshard is of fsdp2"),
        ((*M, "--world", "8", "--strategy", "ddp", "--unit", "A"), "--unit: ddp shards nothing"),
        ((*M, "--world", "8,12", "--hsdp-shard", "8"), "world=12: fsdp2 shard 8 needs a multiple"),
        ((*M, "--world", "8", "--ranks", "first"), "'first': expected numbers of ranks"),
        ((*M, "--world", "8"), "fsdp2 at 8 GPUs, rank 0: there is no module 'absent_module'"),
    ],
)
def test_wrong_calls(
    arguments: tuple[str, ...], seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert seen in refused(capsys, *arguments)


@pytest.fixture
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planned_models.py").write_text(textwrap.dedent(MODELS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(REGRESSION))


@pytest.mark.usefixtures("_models")
def test_m8_agrees_with_the_closed_form_and_what_the_peak_has_more_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--model", "planned_models:m8", "--strategy", "fsdp2,ddp", "--world", "4")
    chart = ("--chart", "plan.svg") if _has_matplotlib() else ()
    assert main(["plan", "--limit", "4 MB", *asked, *chart, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    each = accounting(weights="fp32")
    worlds = {plan["name"]: plan["worlds"][0] for plan in found["plans"]}
    for name, stage in (("fsdp2", 3), ("ddp", 0)):
        form = ClosedForm(params=M8_PARAMS, stage=stage, accounting=each, tensors=16)
        assert worlds[name]["state"] == form.footprint(4).state  # to the byte
        assert abs(worlds[name]["state"] / (16 * M8_PARAMS / (4 if stage else 1)) - 1) < 0.02
    assert {plan["name"]: plan["smallest_world"] for plan in found["plans"]} == {
        "fsdp2": 4,
        "ddp": None,
    }
    sharded, whole = worlds["fsdp2"], worlds["ddp"]
    # Beside the state: one gathered layer, its gradient on the way to its shards, the activations.
    for world in (sharded, whole):
        assert sum(world["parts"].values()) == world["total"] == world["step"]["peak"]
    assert sharded["parts"]["unsharded parameters"] == 4 * LAYER
    assert sharded["parts"]["communication buffers"] == 2 * 4 * LAYER
    assert sharded["step"]["collectives"] == {
        "all_gather": {"count": 16, "wire_bytes": 2 * 3 * M8_PARAMS},
        "reduce_scatter": {"count": 8, "wire_bytes": 3 * M8_PARAMS},
    }
    # Of DDP the buckets, and AdamW's square roots of a whole moment.
    assert whole["parts"]["communication buffers"] == whole["parts"]["temporaries"] == 4 * M8_PARAMS
    assert whole["total"] - whole["state"] == 2 * 4 * M8_PARAMS + whole["parts"]["inputs"]
    if chart:
        assert Path("plan.svg").read_bytes().startswith(b"<?xml")


def _has_matplotlib() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


@pytest.mark.usefixtures("_models")
def test_llama_agrees_with_the_closed_form() -> None:
    pytest.importorskip("transformers")
    layer, rest, head = 855_654_400, 524_296_192, 32_000 * 8_192 + 8_192
    params = 2 * layer + rest
    found = Simulated(model="planned_models:llama", ranks=(-1,)).footprint(64)
    bf16 = accounting(weights="bf16", moments="bf16", master=None)
    form = ClosedForm(params=params, stage=3, accounting=bf16).footprint(64)
    assert found.state == pytest.approx(form.state, rel=0.02)
    step = found.step
    assert step is not None
    assert step.rank == 63
    assert (step.parameters, step.units) == (params, {"LlamaDecoderLayer": 2})
    assert step.collectives["all_gather"].count == 6
    # The closed form ends here. At the peak, in backward of the first layer, there are besides: the
    # layer and the root's unit gathered, their gradients whole (those of the embedding are not made
    # yet), what is about to be reduced, and what was computed anew.
    parts = {part.name: part.bytes for part in found.parts}
    shards = parts["parameters"] + parts["optimizer state"]
    assert shards == pytest.approx(form.state * 3 / 4, rel=0.02)
    gathered = {
        "unsharded parameters": 2 * (layer + rest),
        "gradients": 2 * (layer + head),
        "communication buffers": 2 * layer,
    }
    assert {name: parts[name] for name in gathered} == gathered
    left = found.total - shards - sum(gathered.values())
    named = ("saved activations", "temporaries", "inputs", "module buffers")
    assert left == sum(parts[name] for name in named)
    assert left < 0.1 * found.total


@pytest.mark.usefixtures("_models")
def test_who_asks_for_a_value_is_told_where() -> None:
    with pytest.raises(UsageError, match=r"planned_models.py:16: this needs a value") as caught:
        Simulated(model="planned_models:asks").footprint(2)
    assert "planned_models:asks, fsdp2 at 2 GPUs, rank 0: " in str(caught.value)
    assert "A plan has no data" in str(caught.value)
    assert "world.simulated" not in str(caught.value)  # there is none to ask


def written(name: str, text: str, folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / f"{name}.py").write_text(text)
    patch.chdir(folder)
    return f"{name}:build"


def test_what_a_module_raises_is_shown_with_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = written("broken_model", "1 + 1\nraise KeyError('layer')\n", tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="rank 0: KeyError: 'layer'\n") as caught:
        Simulated(model=model).footprint(2)
    assert re.search(r'broken_model.py", line 2', str(caught.value))
    assert "pytest_shardcheck" not in str(caught.value)


def test_a_process_that_dies_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os\nprint('the last words', flush=True)\nos._exit(3)\n"
    model = written("dying_model", text, tmp_path, monkeypatch)
    with pytest.raises(DeadRankError, match=r"died \(exit code 3\)\n  the last words"):
        Simulated(model=model).footprint(2)


HANGS = """
import os, pathlib, threading
pathlib.Path("pid").write_text(str(os.getpid()))
threading.Event().wait()
"""


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = written("hanging_model", HANGS, tmp_path, monkeypatch)
    with pytest.raises(HungRankError, match=r"it took longer than 0\.5 s; give it more time"):
        Simulated(model=model, timeout_s=0.5).footprint(2)
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_a_process_ends_with_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = written("hanging_model", HANGS, tmp_path, monkeypatch)
    os.mkfifo(tmp_path / "pid")  # opening it waits until the model is there
    asks = f"from pytest_shardcheck.plan import Simulated\nSimulated(model={model!r}).footprint(2)"
    paths = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, "-c", asks],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
    ) as asking:
        simulated = int((tmp_path / "pid").read_text())
        handle = os.pidfd_open(simulated)
        asking.kill()
    assert select.select([handle], [], [], 60)[0], "the simulation goes on without its session"
    os.close(handle)
    assert [*tmp_path.glob("shardcheck-*")] == []
