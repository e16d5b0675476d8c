"""`shardcheck plan`: what it prints, what it refuses, and what it does without."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_shardcheck.cli import main

GB = 10**9
ASKED = ("plan", "--params", "70e9", "--limit", "80 GB")
# A config.json as Hugging Face has it of Llama-2-70B, what is not read left out.
LLAMA = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64}

SHAPE = ("--layers", "2", "--hidden", "8", "--heads", "2", "--sequence", "8")


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*ASKED, *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def smallest(found: dict[str, Any]) -> dict[str, int | None]:
    return {plan["name"]: plan["smallest_world"] for plan in found["plans"]}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the error of a call that must end with 2, print nothing and show no traceback."""
    try:
        code: object = main(arguments)
    except SystemExit as error:  # argparse leaves this way
        code = error.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    return err.strip().splitlines()[-1]


def test_the_plain_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASKED) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[:2] == [
        "70,000,000,000 parameters at 16 B = 1,120.0 GB in all",
        "accounting: mixed precision of the ZeRO paper",
    ]
    assert lines[3] == "limit per GPU: 80 GB (74.5 GiB)"
    assert "     16  1,120.0     332.5     201.2      70.0*" in lines
    assert [line.split()[:2] for line in lines[-4:]] == [
        ["ZeRO-0", "never:"],
        ["ZeRO-1", "never:"],
        ["ZeRO-2", "never:"],
        ["ZeRO-3", "fits"],
    ]
    assert "140.0 GB stay on every GPU (weights 140.0)" in lines[-2]
    assert "fits from 14 GPUs: 80.0 GB each" in lines[-1]


def test_json_has_it_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--stage", "2,3", "--world", "8,16")
    assert found["schema_version"] == 1
    assert (found["params"], found["limit"]) == (70 * GB, 80 * GB)
    assert found["accounting"]["bytes_per_parameter"] == 16
    assert found["accounting"]["components"][0] == {"name": "weights", "dtype": "fp16", "bytes": 2}
    two, three = found["plans"]
    assert (two["name"], two["smallest_world"], two["fits"]) == ("ZeRO-2", None, None)
    assert two["least"]["parts"]["weights"] == 140 * GB
    assert two["answer"].startswith("never: 140.0 GB stay on every GPU (weights 140.0)")
    assert (three["smallest_world"], three["fits"]["total"]) == (14, 80 * GB)
    assert [(one["world"], one["total"], one["fits"]) for one in three["worlds"]] == [
        (8, 140 * GB, False),
        (16, 70 * GB, True),
    ]
    assert three["worlds"][0]["parts"] == {
        "weights": 17_500_000_000,
        "gradients": 17_500_000_000,
        "first moment": 35 * GB,
        "second moment": 35 * GB,
        "master copy": 35 * GB,
    }


@pytest.mark.parametrize(
    ("arguments", "each", "world"),
    [
        (("--moments", "fp16", "--master", "none"), 8, 7),
        (("--master", "none"), 12, 11),
        ((), 16, 14),
        (("--weights", "fp32"), 16, 14),
        (("--weights", "4", "--grads", "4", "--moments", "2,1"), 11, 10),
        (("--weights", "bf16", "--grads", "fp32"), 18, 16),
        (("--moments", "bf16,fp32"), 14, 13),
        (("--optimizer", "sgd"), 8, 7),
        (("--optimizer", "none", "--grads", "fp16"), 4, 4),
        (("--buffers", "10 GB"), 16, 16),
        (("--buffers", "10 GiB"), 16, 17),
    ],
)
def test_the_accounting(
    arguments: tuple[str, ...], each: int, world: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, *arguments)
    assert found["accounting"]["bytes_per_parameter"] == each
    assert smallest(found)["ZeRO-3"] == world


def test_ways_to_shard(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(
        capsys, "--stage", "3", "--hsdp-shard", "8,16", "--hsdp-replicate", "2", "--world", "8,64"
    )
    assert smallest(found) == {
        "ZeRO-3": 14,
        "HSDP shard 8": None,
        "HSDP shard 16": 16,
        "HSDP 2 replicas": 28,
    }
    by_name = {plan["name"]: plan for plan in found["plans"]}
    assert by_name["HSDP shard 8"]["shard_that_fits"] == 14
    assert [one["world"] for one in by_name["HSDP shard 16"]["worlds"]] == [64]  # 8 are too few
    assert by_name["HSDP shard 16"]["worlds"][0]["replicas"] == 4


def test_tensor_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--tensor-parallel", "8")
    assert smallest(found) == {"ZeRO-0": None, "ZeRO-1": 24, "ZeRO-2": 16, "ZeRO-3": 16}
    assert [one["world"] for one in found["plans"][0]["worlds"]][:3] == [8, 16, 32]


def test_activations_and_checkpointing(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--stage", "3", "--activations", "100 GB", "--checkpointing", "1,2..5")
    assert {plan["variant"]: plan["smallest_world"] for plan in found["plans"]} == {
        "activations 100 GB": None,
        "activations 100 GB / 2": 38,
        "activations 100 GB / 3": 25,
        "activations 100 GB / 4": 21,
        "activations 100 GB / 5": 19,
    }
    (batch,) = planned(
        capsys, "--stage", "3", "--activations", "10 GB", "--batch", "3", "--checkpointing", "1.5"
    )["plans"]
    assert batch["variant"] == "activations 10 GB x 3 / 1.5"
    assert batch["fits"]["parts"]["activations"] == 20 * GB


def test_a_config_gives_a_transformers_activations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    sbh = 2048 * 8192
    arguments = ("--config", str(config), "--sequence", "2048", "--stage", "3")
    (plan,) = planned(capsys, *arguments, "--checkpointing", "full")["plans"]
    assert plan["variant"] == "full recomputation"
    assert plan["fits"]["parts"]["activations"] == 80 * 2 * sbh
    assert plan["fits"]["parts"]["recomputed activations"] == (34 + 80 - 2) * sbh
    (plan,) = planned(capsys, *arguments, "--layers", "2", "--batch", "2")["plans"]
    assert plan["fits"]["parts"]["activations"] == 2 * 2 * (34 + 80) * sbh

    cut = ("--tensor-parallel", "8", "--sequence-parallel", "--checkpointing", "selective")
    (plan,) = planned(capsys, *arguments, *cut)["plans"]
    assert plan["fits"]["parts"]["activations"] == 80 * 34 * sbh // 8


def test_a_nested_config_and_older_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"text_config": {"n_embd": 64, "n_layer": 2, "n_head": 4}}))
    arguments = ("--config", str(config), "--sequence", "16", "--stage", "3")
    (plan,) = planned(capsys, *arguments)["plans"]
    assert plan["fits"]["parts"]["activations"] == 2 * (34 * 16 * 64 + 5 * 4 * 16**2)


def test_gib_in_gib_out(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--params", "70e9", "--limit", "80 GiB", "--activations", "10 GB"])
    out = capsys.readouterr().out
    assert "limit per GPU: 80 GiB (85.9 GB)" in out
    assert "activations per sample: 10 GB (9.3 GiB)" in out
    assert "GiB per GPU" in out
    assert " GB each" not in out


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (("--limit", "80"), "--limit: '80' has no unit; expected a size with a unit, such as"),
        (("--limit", "80 Gb"), "'80 Gb' has no unit that is known"),
        (("--limit", "-80 GB"), "--limit: '-80 GB' is negative"),
        (("--limit", "0 GB"), "limit: 0 GB is no memory"),
        (("--activations", "100"), "--activations: '100' has no unit"),
        (("--buffers", "1"), "--buffers: '1' has no unit"),
        (("--params", "0"), "--params: '0': expected a whole number from 1 on"),
        (("--params", "-1"), "--params: '-1' is no count"),
        (("--params", "1.5"), "--params: '1.5': expected a whole number"),
        (("--params", "70B"), "--params: '70B' is no count"),
        (("--params", "nan"), "'nan' is no count"),
        (("--params", "1e99"), r"params=1e\+99: expected at most 1e\+18"),
        (("--params", "7,0e9"), "--params: .7,0e9."),
        (("--world", "0"), "--world: '0': expected a whole number from 1 on"),
        (("--world", "8,"), "--world: '' is no count"),
        (("--world", "8,12", "--tensor-parallel", "8"), "--world 12: expected a multiple of 8"),
        (("--hsdp-shard", "0"), "--hsdp-shard: '0': expected a whole number"),
        (("--tensor-parallel", "0"), "--tensor-parallel: '0': expected a whole number"),
        (("--stage", "4"), "--stage 4: expected some of 0, 1, 2 and 3"),
        (("--stage", ""), "--stage: '' has an empty entry"),
        (("--weights", "fp12"), "'fp12' is no dtype whose size is known"),
        (("--grads", "none"), "'none' is no dtype"),
        (("--master", "fp12"), "'fp12' is no dtype"),
        (("--moments", "fp32,"), "--moments: 'fp32,' has an empty entry"),
        (("--moments", "fp32,bf16,fp16"), "3 dtypes; adamw keeps 2"),
        (("--optimizer", "sgd", "--moments", "fp32"), "moments=fp32: sgd keeps none"),
        (("--optimizer", "none", "--moments", "fp32"), "moments=fp32: there is no optimizer"),
        (("--optimizer", "none", "--master", "fp32"), "without an optimizer"),
        (("--optimizer", "lion"), "invalid choice: 'lion'"),
        (("--checkpointing", "2"), "--checkpointing: there are no activations"),
        (("--batch", "2"), "--batch: there are no activations"),
        (("--activations", "1 GB", "--checkpointing", "0.5"), "expected a number from 1 on"),
        (("--activations", "1 GB", "--checkpointing", "5..2"), "expected a rising range"),
        (("--activations", "1 GB", "--checkpointing", "1/0"), "expected a number from 1 on"),
        (("--activations", "1 GB", "--checkpointing", "1e999999999"), "a number from 1 on"),
        (("--activations", "1 GB", "--checkpointing", "full"), "are of a transformer's shape"),
        (("--activations", "1 GB", "--layers", "2"), "--activations and --layers: give the size"),
        (("--layers", "2", "--sequence", "8"), "need --hidden and --heads, too"),
        (
            (*SHAPE, "--checkpointing", "2"),
            "--checkpointing 2: of a transformer expected none, selective, full",
        ),
        (
            (*SHAPE, "--sequence-parallel"),
            "--sequence-parallel: it cuts nothing without --tensor-parallel",
        ),
        (
            (*SHAPE, "--heads", "3", "--tensor-parallel", "2"),
            "heads=3 can't be cut in tensor_parallel=2 equal parts",
        ),
        (("--config", "missing.json"), "--config missing.json: No such file"),
        (("--chart", "plan.xyz"), r"chart plan.xyz: .*|a chart needs matplotlib: .*\[plots\]"),
    ],
)
def test_bad_input_is_refused_with_what_is_expected(
    arguments: tuple[str, ...], seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = refused(capsys, *ASKED, *arguments)
    assert re.search(seen, found), found


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("{", "this is no JSON"),
        ("[1]", "expected an object, seen a list"),
        ('{"hidden_size": 8}', "need --layers and --heads and --sequence, too"),
        (json.dumps({**LLAMA, "hidden_size": "8"}), "hidden='8': expected an int"),
        ("\x00\udcff", "this is no JSON"),
    ],
)
def test_a_config_that_is_none_is_refused(
    text: str, seen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    sequence = ("--sequence", "8") if "--sequence" not in seen else ()
    assert seen in refused(capsys, *ASKED, "--config", str(config), *sequence)


@pytest.mark.parametrize(
    ("missing", "seen"),
    [("--params", "one of the arguments --params --model is required"), ("--limit", ": --limit")],
)
def test_what_is_needed(missing: str, seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--params": "70e9", "--limit": "80 GB"}
    del given[missing]
    left = [word for option in given.items() for word in option]
    assert seen in refused(capsys, "plan", *left)


def test_a_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    assert main([*ASKED, "--world", "16", "--chart", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "fits from 14 GPUs" in capsys.readouterr().out


def test_a_chart_without_matplotlib_is_refused_before_anything_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    assert "pip install 'pytest-shardcheck[plots]'" in refused(
        capsys, *ASKED, "--chart", "plan.png"
    )


@pytest.mark.parametrize(
    ("asked", "code", "seen"),
    [
        (ASKED, 0, "fits from 14 GPUs"),
        # Simulations have processes of their own, which import what they need.
        (
            ("plan", "--model", "absent:build", "--world", "8", "--limit", "80 GB"),
            2,
            "there is no module 'absent'",
        ),
    ],
    ids=["closed form", "simulation"],
)
def test_it_imports_nothing_heavy(asked: tuple[str, ...], code: int, seen: str) -> None:
    script = (
        "import sys\n"
        "from pytest_shardcheck.cli import main\n"
        f"assert main({[*asked]!r}) == {code}\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'pytest', '_pytest', 'syrupy'}\n"
        "sys.exit(f'imported {found}' if (found := heavy & {*sys.modules}) else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert seen in (done.stderr if code else done.stdout)
