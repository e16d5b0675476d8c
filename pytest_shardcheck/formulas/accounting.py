"""What one parameter costs, component by component: Rajbhandari et al. 2020, section 3.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_shardcheck.formulas.zero import OPTIMIZERS, BytesPerParameter, element_size
from pytest_shardcheck.vocabulary.errors import UsageError

# Weights, gradients, all moments, master copy.
_NAMES: Final = {
    (2, 2, 4, 0): "simple: all in 16 bits, no master copy",
    (2, 2, 8, 0): "16-bit weights and gradients, fp32 moments, no master copy",
    (2, 2, 8, 4): "mixed precision of the ZeRO paper",
    (4, 4, 8, 0): "single precision",
}
_MOMENTS: Final = {0: (), 1: ("moment",), 2: ("first moment", "second moment")}
NO_OPTIMIZER: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One kind of tensor that has an element for every parameter.

    `kind` is "params", "grads" or "optimizer", which says from which ZeRO stage on it is divided;
    `size` is the bytes of one element.
    """

    name: str
    kind: str
    dtype: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """The components of the model state. `accounting` makes one."""

    components: tuple[Component, ...]

    @property
    def bytes_per_parameter(self) -> int:
        """Return what one parameter costs with everything that belongs to it."""
        return sum(component.size for component in self.components)

    @property
    def each(self) -> BytesPerParameter:
        """Return the same by kind, as `zero_bytes` takes it."""
        return BytesPerParameter(
            param=self._of("params"), grad=self._of("grads"), optimizer=self._of("optimizer")
        )

    @property
    def name(self) -> str:
        """Name the accounting where it is a usual one, else "your own"."""
        master = sum(one.size for one in self.components if one.name == "master copy")
        sizes = (self._of("params"), self._of("grads"), self._of("optimizer") - master, master)
        return _NAMES.get(sizes, "your own")

    def _of(self, kind: str) -> int:
        return sum(one.size for one in self.components if one.kind == kind)


def accounting(
    *,
    weights: object = "fp16",
    grads: object | None = None,
    moments: object | tuple[object, ...] | None = None,
    master: object | None = "auto",
    optimizer: str = "adamw",
) -> Accounting:
    """Say what is kept for each parameter.

    The defaults are the mixed precision of the paper's section 3.1: 2 bytes of weights, 2 of
    gradients and 4 + 4 + 4 of optimizer state, 16 bytes a parameter.

    Args:
        weights: a torch dtype, its name, or the bytes of one element.
        grads: likewise; by default as the weights.
        moments: likewise, one for all moments or one for each; by default fp32.
        master: the dtype of the optimizer's own copy of the weights, None where it has none; by
            default ("auto") fp32 where the weights are narrower than that.
        optimizer: one of `OPTIMIZERS`, which says how many moments there are, or "none".

    Raises:
        UsageError: an argument is not what is written here.
    """
    if optimizer != NO_OPTIMIZER and optimizer not in OPTIMIZERS:
        known = ", ".join((*OPTIMIZERS, NO_OPTIMIZER))
        raise UsageError(f"optimizer={optimizer!r}: expected one of {known}")
    components = [
        _component("weights", "params", weights),
        _component("gradients", "grads", weights if grads is None else grads),
    ]
    names = _MOMENTS[OPTIMIZERS.get(optimizer, 0)]
    for name, dtype in zip(names, _one_each(moments, names, optimizer), strict=True):
        components.append(_component(name, "optimizer", dtype))
    if master == "auto":
        narrow = optimizer != NO_OPTIMIZER and element_size(weights) < element_size("fp32")
        master = "fp32" if narrow else None
    if master is not None:
        if optimizer == NO_OPTIMIZER:
            raise UsageError(f"master={master!r}: without an optimizer no one keeps a master copy")
        components.append(_component("master copy", "optimizer", master))
    return Accounting(components=tuple(components))


def _one_each(
    moments: object | tuple[object, ...] | None, names: tuple[str, ...], optimizer: str
) -> tuple[object, ...]:
    if moments is None:
        return ("fp32",) * len(names)
    given = moments if isinstance(moments, tuple) else (moments,)
    if not names:
        keeps = "there is no optimizer" if optimizer == NO_OPTIMIZER else f"{optimizer} keeps none"
        raise UsageError(f"moments={_written(given)}: {keeps}; leave it out, or name an optimizer")
    if len(given) == 1:
        return given * len(names)
    if len(given) != len(names):
        raise UsageError(
            f"moments={_written(given)}: {len(given)} dtypes; {optimizer} keeps {len(names)} "
            f"({', '.join(names)}); expected one for all, or one for each"
        )
    return given


def _written(dtypes: tuple[object, ...]) -> str:
    return ",".join(map(str, dtypes))


def _component(name: str, kind: str, dtype: object) -> Component:
    words = str(dtype).removeprefix("torch.")
    words = f"{words} B" if words.isdecimal() else words
    return Component(name=name, kind=kind, dtype=words, size=element_size(dtype))
