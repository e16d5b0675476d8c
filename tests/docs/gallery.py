"""The message gallery of the docs, made by running the failures.

``python tests/docs/gallery.py`` writes ``docs/messages.md``; a test fails when it is out of date.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "messages.md"

HEAD = """\
# Messages

Made by running the failures (`python tests/docs/gallery.py`), not by hand. Each says what was
expected, what was seen, and what to do next.
"""

# Title, and the test that fails; ranks, models and so on as a user writes them.
FAILURES = {
    "A rank's assertion fails": """
        @pytest.mark.world_size(2)
        def test_loss(world):
            print(f"rank {world.rank} is here")
            assert world.rank + 1 == 1
    """,
    "All ranks fail alike": """
        @pytest.mark.world_size(4)
        def test_size(world):
            assert world.size == 2
    """,
    "A rank raises while its peer waits": """
        @pytest.mark.world_size(2)
        def test_raises(process_group, world):
            if world.rank == 1:
                raise ValueError("no batch left")
            dist.barrier()
    """,
    "A rank is killed": """
        @pytest.mark.world_size(2)
        def test_killed(world):
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    """,
    "A rank leaves early": """
        @pytest.mark.world_size(2)
        def test_leaves(world):
            if world.rank == 0:
                os._exit(0)
    """,
    "A rank waits for a collective that its peer never calls": """
        @pytest.mark.world_size(2, timeout=5)
        def test_hangs(process_group, world):
            dist.all_reduce(torch.ones(1))
            if world.rank == 0:
                dist.barrier()
    """,
    "Only some ranks skip": """
        @pytest.mark.world_size(2)
        def test_skips(world):
            if world.rank == 1:
                pytest.skip("no data for this rank")
    """,
    "Only some ranks gather": """
        @pytest.mark.world_size(2)
        def test_gathers(world, shardcheck):
            with shardcheck.measure(torch.nn.Linear(4, 4)) as reading:
                pass
            if world.rank == 0:
                shardcheck.gather(reading)
    """,
    "A debugger in a rank": """
        @pytest.mark.world_size(2)
        def test_debugs(world):
            breakpoint()
    """,
    "A ceiling is crossed": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(state="1 kB")
        def test_ceiling(shardcheck):
            model = torch.nn.Linear(16, 16)
            optimizer = torch.optim.AdamW(model.parameters())
            with shardcheck.measure(model, optimizer):
                model(torch.ones(1, 16)).sum().backward()
                optimizer.step()
    """,
    "A figure is not exact": """
        @pytest.mark.world_size(2)
        @pytest.mark.memory(params=1_088, rank=1)
        def test_exact(world, shardcheck):
            with shardcheck.measure(torch.nn.Linear(16, 16 + world.rank)):
                pass
    """,
    "The optimizer was not watched": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(state="1 MB")
        def test_unwatched(shardcheck):
            with shardcheck.measure(torch.nn.Linear(16, 16)):
                pass
    """,
    "A region is misspelt": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(params="1 MB", region="stepp")
        def test_misspelt(shardcheck):
            with shardcheck.measure(torch.nn.Linear(16, 16), region="step"):
                pass
    """,
    "Nothing was measured": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(grads="1 MB")
        def test_forgot_to_measure(world):
            torch.nn.Linear(16, 16)
    """,
    "A peak is crossed": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory("60 kB")
        def test_peak(process_group, shardcheck):
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
            model = torch.nn.parallel.DistributedDataParallel(model)
            with shardcheck.measure(model):
                model(torch.ones(8, 64)).sum().backward()
    """,
    "Steps leave something behind": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(growth=0)
        def test_leak(shardcheck):
            model, losses = torch.nn.Linear(16, 16), []

            def step():
                model.zero_grad()
                loss = model(torch.ones(4, 16)).sum()
                loss.backward()
                losses.append(loss)

            step()
            with shardcheck.measure(model):
                step()
                step()
    """,
    "A collective too many": """
        @pytest.mark.world_size(2)
        @pytest.mark.collectives(all_reduce=1)
        def test_calls(process_group, shardcheck):
            norm = torch.ones(1)
            with shardcheck.measure():
                dist.all_reduce(norm)
                dist.broadcast(norm, src=0)
    """,
    "Ranks disagree in a collective": """
        @pytest.mark.world_size(2)
        def test_disagree(process_group, shardcheck, world):
            dtype = torch.float32 if world.rank == 0 else torch.int32
            dist.all_reduce(torch.ones(4, dtype=dtype))  # gloo lets it pass
    """,
    "Autograd saves too much": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_saved_activations(bytes="4 kB")
        def test_saved(shardcheck):
            layers = [torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)]
            model = torch.nn.Sequential(*layers)
            with shardcheck.measure(model):
                model(torch.ones(8, 16)).sum().backward()
    """,
    "A group is misspelt": """
        @pytest.mark.world_size(2, mesh={"dp": 2})
        @pytest.mark.collectives(all_reduce=1, group="dpp")
        def test_group(device_mesh, shardcheck):
            with shardcheck.measure():
                dist.all_reduce(torch.ones(1), group=device_mesh.get_group("dp"))
    """,
    "A phase never ran": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory("1 MB", phase="optimizer")
        def test_phase(shardcheck):
            with shardcheck.measure():
                torch.ones(4)
    """,
}

# Title, the test that is recorded, and the edit after which it fails: (before, after).
DRIFTS = {
    "A snapshot of one layer more": (
        """
        from torch.distributed.fsdp import fully_shard


        @pytest.mark.world_size(2)
        def test_layers(device_mesh, shardcheck):
            model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            for layer in [*model, model]:
                fully_shard(layer, mesh=device_mesh)
            for _ in range(3):
                with shardcheck.measure(model) as reading:
                    model(torch.ones(8, 64)).sum().backward()
            shardcheck.snapshot(reading, name="third step")
        """,
        ("range(4)", "range(5)"),
    ),
    "A snapshot after a reshard was removed": (
        """
        from torch.distributed.fsdp import fully_shard


        @pytest.mark.world_size(2)
        def test_reshards(device_mesh, shardcheck):
            model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            for layer in [*model, model]:
                fully_shard(layer, mesh=device_mesh, reshard_after_forward=True)
            for _ in range(3):
                with shardcheck.measure(model) as reading:
                    model(torch.ones(8, 64)).sum().backward()
            shardcheck.snapshot(reading, name="third step")
        """,
        ("reshard_after_forward=True", "reshard_after_forward=False"),
    ),
    "A snapshot after a bucket was doubled": (
        """
        @pytest.mark.world_size(2)
        def test_buckets(process_group, shardcheck):
            model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.03)
            for _ in range(3):
                with shardcheck.measure(model) as reading:
                    model(torch.ones(8, 64)).sum().backward()
            shardcheck.snapshot(reading, name="third step")
        """,
        ("bucket_cap_mb=0.03", "bucket_cap_mb=0.06"),
    ),
}

# Title, and tests that are wrong before anything runs.
USAGE_ERRORS = {
    "A fixture without a world": """
        def test_no_world(process_group):
            pass
    """,
    "A wrong world size": """
        @pytest.mark.world_size("2")
        def test_size(world):
            pass
    """,
    "An unknown argument": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(stat="1 GB")
        def test_argument(shardcheck):
            pass
    """,
    "A wrong unit": """
        @pytest.mark.world_size(2)
        @pytest.mark.max_memory(params="2 megs")
        def test_unit(shardcheck):
            pass
    """,
    "An operation that does not exist": """
        @pytest.mark.world_size(2)
        @pytest.mark.collectives(allgather=1)
        def test_operation(shardcheck):
            pass
    """,
    "A world size that the mapping lacks": """
        @pytest.mark.world_size(2, 4)
        @pytest.mark.max_memory(params={2: "1 MB"})
        def test_mapping(shardcheck):
            pass
    """,
}

IMPORTS = "import os, signal\nimport pytest\nimport torch\nimport torch.distributed as dist\n"


def render() -> str:
    """Run every failure and return the page."""
    return "\n".join([HEAD, *plain(FAILURES), *drifted(DRIFTS), *plain(USAGE_ERRORS)])


def plain(group: dict[str, str]) -> list[str]:
    sources = {title: dedented(source) for title, source in group.items()}
    return [section(title, sources[title], text) for title, text in messages(sources).items()]


def drifted(group: dict[str, tuple[str, tuple[str, str]]]) -> list[str]:
    sources = {title: dedented(source) for title, (source, _) in group.items()}
    edits = {title: edit for title, (_, edit) in group.items()}
    notes = {
        title: f"\n\n# Recorded with --snapshot-update; then {before} became {after}.\n"
        for title, (before, after) in edits.items()
    }
    return [
        section(title, sources[title] + notes[title], text)
        for title, text in messages(sources, edits).items()
    ]


def section(title: str, source: str, text: str) -> str:
    return f"## {title}\n\n```python\n{source}```\n\n```text\n{text}\n```\n"


def dedented(source: str) -> str:
    return textwrap.dedent(source).strip() + "\n"


def messages(
    sources: dict[str, str], edits: dict[str, tuple[str, str]] | None = None
) -> dict[str, str]:
    """Return what pytest prints of each failure, in one session with a file for each.

    Where there are `edits`, the session records, and another fails after them.
    """
    names = {title: re.search(r"def (test_\w+)", source)[1] for title, source in sources.items()}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        for title, source in sources.items():
            (Path(folder) / f"{names[title]}.py").write_text(IMPORTS + source)
        if edits:
            recording = run(folder, "--snapshot-update")
            assert " generated." in recording, recording
        for title, edit in (edits or {}).items():
            path = Path(folder) / f"{names[title]}.py"
            assert edit[0] in path.read_text()
            path.write_text(path.read_text().replace(*edit))
        output = settled(run(folder), folder)
    return {title: failure(output, name) for title, name in names.items()}


def run(folder: str, *more: str) -> str:
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("PYTEST_") and k not in ("CI", "BUILD_NUMBER")
    }
    options = ["-q", "-p", "no:randomly", "-p", "no:logging", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *more],
        cwd=folder,
        env={**environment, "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def failure(output: str, name: str) -> str:
    """Return the text below the title that names a test, or the file that failed to collect."""
    _, title, rest = output.partition(f" {name}")
    assert title, f"{name} did not fail:\n{output}"
    rest = rest.partition("\n")[2]
    return re.split(r"\n(?:____|=====|shardcheck: )", rest)[0].strip()


def settled(text: str, folder: str) -> str:
    """Replace what differs between runs and machines."""
    text = text.replace(folder + "/", "")
    text = re.sub(r'File "[^"]*/site-packages/', 'File ".../', text)
    text = re.sub(r'(File "\.\.\.[^"]*", line )\d+', r"\1...", text)
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", text)


if __name__ == "__main__":
    PAGE.write_text(render())
