"""The model of a plan: found by its name, built without data, cut into units, trained for a step.

Runs in a simulated rank, and imports torch only there.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.optim import Optimizer

RETURNS: Final = (
    "expected a function without arguments that returns a model, or (model, inputs): inputs are a "
    "dict or tuple of the arguments of a step's forward, or one tensor"
)


def find(name: str) -> Callable[[], object]:
    """Import the function "package.module:build".

    Raises:
        UsageError: there is no such module or function.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(f"{name!r}: expected package.module:build, a module and its function")
    if "/" in module_name or module_name.endswith(".py"):
        raise UsageError(
            f"{name!r} names a file; expected the module as import names it, such as "
            f"{module_name.removesuffix('.py').strip('./').replace('/', '.')}:{attribute}"
        )
    module = _imported(module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = [each for each, value in vars(module).items() if _is_own(value, module)]
            raise UsageError(
                f"there is no {attribute!r} in {module_name} ({module.__file__}); it has "
                f"{', '.join(there) or 'no function'}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"it is a {type(found).__name__}; {RETURNS}")
    build: Callable[[], object] = found
    return build


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Its own imports may be what is missing: that is another mistake.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"there is no module {error.name!r}; run it from the folder that holds it, or set "
            "PYTHONPATH"
        ) from None


def _is_own(value: object, module: Any) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def taken_apart(built: object) -> tuple[nn.Module, object]:
    """Return the model and the inputs that a function returned; the inputs are None without any.

    Raises:
        UsageError: it returned something else.
    """
    from torch import Tensor, nn

    pair = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    model, inputs = pair
    if not isinstance(model, nn.Module):
        raise UsageError(f"it returned a {type(model).__name__}; {RETURNS}")
    if inputs is not None and not isinstance(inputs, Tensor | Mapping | tuple | list):
        raise UsageError(f"its inputs are a {type(inputs).__name__}; {RETURNS}")
    return model, inputs


def give_memory(model: nn.Module) -> None:
    """Put what is on the meta device on the CPU; what modules share stays shared."""
    import torch

    made: dict[int, tuple[Tensor, Tensor]] = {}  # the old one, too, so that its id stays its own

    def real(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            new = torch.empty_like(tensor, device="cpu")
            if isinstance(tensor, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
            made[id(tensor)] = (tensor, new)
        return made[id(tensor)][1]

    for module in model.modules():
        for own in (module._parameters, module._buffers):  # noqa: SLF001  # as nn.Module.to does
            for name, tensor in own.items():
                if tensor is not None and tensor.device.type == "meta":
                    setattr(module, name, real(tensor))


def units_of(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return the modules that are gathered one at a time, the whole model aside.

    Those of the classes that are named; without any, the members of each outermost ModuleList or
    Sequential that have parameters.

    Raises:
        UsageError: the model has no module of a class.
    """
    if not names:
        return list(_blocks(model))
    classes = Counter(type(module).__name__ for module in model.modules())
    for name in names:
        if name not in classes:
            there = ", ".join(classes)
            raise UsageError(
                f"unit {name!r}: the model has no module of that class; it has {there}"
            )
    return [
        module
        for module in model.modules()
        if type(module).__name__ in names and module is not model
    ]


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    from torch import nn

    inside = isinstance(module, nn.ModuleList | nn.Sequential)
    for child in module.children():
        if not inside:
            yield from _blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def optimizer_named(name: str, model: nn.Module) -> Optimizer:
    """Return torch's optimizer, which takes all parameters at once, as it does on a GPU."""
    import torch

    each: dict[str, tuple[Any, dict[str, Any]]] = {
        "adam": (torch.optim.Adam, {}),
        "adamw": (torch.optim.AdamW, {}),
        "adagrad": (torch.optim.Adagrad, {}),
        "rmsprop": (torch.optim.RMSprop, {}),
        "sgd": (torch.optim.SGD, {}),
        "sgd_momentum": (torch.optim.SGD, {"momentum": 0.9}),
    }
    kind, options = each[name]
    optimizer: Optimizer = kind(model.parameters(), foreach=True, **options)
    return optimizer


def take_step(model: nn.Module, optimizer: Optimizer, inputs: object) -> None:
    """Train for one step; without inputs, gradients are given to the optimizer."""
    import torch

    optimizer.zero_grad()
    if inputs is None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
    else:
        _loss(_forward(model, inputs)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _forward(model: nn.Module, inputs: object) -> object:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def _loss(output: Any) -> Tensor:
    """Return the output's loss, or the sum of an output that is one tensor."""
    import torch

    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    found = output if loss is None else loss
    if not isinstance(found, torch.Tensor):
        raise UsageError(
            f"the model returned a {type(output).__name__} without a loss; expected a tensor, or "
            "an output with a loss (a Hugging Face model has one where its inputs have labels)"
        )
    return found.sum() if found.dim() else found
