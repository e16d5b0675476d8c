"""Where DeepSpeed's ZeRO stages 1 to 3 keep partitions, fp32 master copies and buckets.

Written against 0.19. Its attributes are private: one that is gone is an error, never a silent zero.
Stage 0 keeps everything where torch shows it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.vocabulary.errors import UsageError, hide_from_users
from pytest_shardcheck.vocabulary.frameworks import Held

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__tracebackhide__ = hide_from_users

_BUCKET: Final = "DeepSpeed's reduce bucket of reduce_bucket_size elements"


def pytest_shardcheck_held(thing: object) -> Iterable[Held] | None:
    """Return what the optimizers of stages 1 to 3 hold, and the shards of stage 3's parameters."""
    if "deepspeed" not in sys.modules:
        return None
    classes = _classes(thing)
    if "DeepSpeedZeroOptimizer_Stage3" in classes:
        return _stage3(thing)
    if "DeepSpeedZeroOptimizer" in classes:
        return _stages_1_and_2(thing)
    if "torch.nn.Module" in classes:
        return list(_partitioned_params(thing)) or None
    return None


def pytest_shardcheck_phases(thing: object) -> dict[str, str] | None:
    """Return what an engine does around autograd and the optimizer that it wraps."""
    if "deepspeed" not in sys.modules:
        return None
    classes = _classes(thing)
    if "DeepSpeedEngine" in classes:
        return {"backward": "backward", "step": "optimizer"}
    if "DeepSpeedZeroOptimizer" in classes:
        # Where backward ends: its buckets are named then, and let go of.
        return {"overlapping_partition_gradients_reduce_epilogue": "backward"}
    return None


def _classes(thing: object) -> set[str]:
    names = set()
    for kind in type(thing).__mro__:
        if kind.__module__.partition(".")[0] == "deepspeed":
            names.add(kind.__name__)
        elif (kind.__module__, kind.__name__) == ("torch.nn.modules.module", "Module"):
            names.add("torch.nn.Module")
    return names


def _stages_1_and_2(optimizer: Any) -> Iterator[Held]:
    yield from _all("parameters", "flat parameters", _its(optimizer, "bit16_groups_flat"))
    masters = _its(optimizer, "single_partition_of_fp32_groups")
    yield from _all("optimizer state", "master partition", masters)
    # Stage 2's gradients of the own partition; with offload they are moved to the CPU.
    yield from _all("gradients", "partition", _its(optimizer, "averaged_gradients"))
    yield from _all("gradients", "accumulated", _its(optimizer, "all_grad_tensors"))
    yield from _all("gradients", "partition", _its(optimizer, "grads_in_partition", missing=None))
    for name in ("accumulated_grads_in_cpu", "offload_gradient_dict"):
        yield from _all("gradients", "offloaded", _its(optimizer, name, missing=None))
    for name in (
        "temp_grad_buffer_for_cpu_offload",
        "temp_grad_buffer_for_gpu_offload",
        "param_buffer_of_bit16_for_cpu_offload_groups",
    ):
        yield from _all("communication buffers", name, _its(optimizer, name, missing=None))
    yield from _buckets(optimizer)


def _stage3(optimizer: Any) -> Iterator[Held]:
    yield from _all("parameters", "shards", _its(optimizer, "lp_param_buffer", missing=None))
    yield from _all("parameters", "shards", _its(optimizer, "fp16_partitioned_groups_flat"))
    offloaded = _its(optimizer, "param_groups_fp16_flat_cpu_memory")
    yield from _all("parameters", "offloaded shards", offloaded)
    masters = _its(optimizer, "fp32_partitioned_groups_flat")
    yield from _all("optimizer state", "master partition", masters)
    yield from _all("gradients", "partition", _its(optimizer, "grad_partitions_flat_buffer"))
    yield from _all("gradients", "partition", _its(optimizer, "averaged_gradients"))
    yield from _buckets(optimizer)


def _buckets(optimizer: Any) -> Iterator[Held]:
    for bucket in _its(optimizer, "ipg_buckets").values():
        for tensor in _tensors(_its(bucket, "buffer")):
            yield Held(category="communication buffers", tensor=tensor, name=_BUCKET)


def _partitioned_params(module: Any) -> Iterator[Held]:
    """Yield the shard of each parameter of stage 3, and those that are whole at the moment.

    Small ones stay whole: those below `stage3_param_persistence_threshold`.
    """
    for name, param in module.named_parameters():
        if hasattr(param, "ds_tensor"):
            if param.numel():
                yield Held(category="unsharded parameters", tensor=param, name=name)
            yield from _all("parameters", "shards", param.ds_tensor)


_ANY: Final = object()


def _its(owner: Any, name: str, *, missing: object = _ANY) -> Any:
    """Return an attribute; `missing` is for those that only some configurations have."""
    try:
        return getattr(owner, name)
    except AttributeError:
        if missing is not _ANY:
            return missing
        version = getattr(sys.modules["deepspeed"], "__version__", "of an unknown version")
        raise UsageError(
            f"DeepSpeed {version}: {type(owner).__qualname__} has no .{name}, where DeepSpeed 0.19 "
            "kept state, so what it holds can't be measured; use DeepSpeed 0.19, or implement the "
            "hook pytest_shardcheck_held and run with -p no:shardcheck-deepspeed"
        ) from None


def _all(category: str, name: str, value: object) -> Iterator[Held]:
    for tensor in _tensors(value):
        yield Held(category=category, tensor=tensor, name=f"DeepSpeed's {name}")


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested lists and dicts."""
    if value is None or isinstance(value, (str, int, float)):
        return
    if isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, sys.modules["torch"].Tensor):
        yield value
