"""What a region watches, opened into modules, optimizers and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_shardcheck.vocabulary.errors import UsageError, hide_from_users
from pytest_shardcheck.vocabulary.frameworks import Frameworks, Held, NoFrameworks

from .tensors import SEQUENCES

__tracebackhide__ = hide_from_users

# Where engines, trainers, containers, wrapped optimizers and pipeline stages keep their parts.
_OPENED = ("optimizers", "optimizer", "optim", "module", "model", "submod")

_ACCEPTED = (
    "a module, an optimizer, a parameter or tensor, a list, tuple, set or dict of them, an "
    f"object that keeps them in one of {', '.join('.' + name for name in _OPENED)}, or what a "
    "pytest_shardcheck_held hook knows"
)
_TORCH_ONLY = NoFrameworks()


@dataclass(slots=True)
class Opened:
    """The modules, optimizers and bare tensors found in watched things, each once."""

    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[object] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    # What frameworks say of the modules, optimizers and other objects that were found.
    taught: list[Held] = field(default_factory=list)
    # All objects that are more than a container of others.
    things: list[Any] = field(default_factory=list)

    @property
    def has_tensors(self) -> bool:
        """Tell whether anything with parameters, gradients and buffers was found."""
        return bool(self.modules or self.tensors) or any(
            its.category != "optimizer state" for its in self.taught
        )

    @property
    def has_optimizer_state(self) -> bool:
        """Tell whether anything that keeps optimizer state was found."""
        return bool(self.optimizers) or any(
            its.category == "optimizer state" for its in self.taught
        )


class Watched:
    """Things to measure; named ones keep subtotals.

    They are opened anew for each measurement: a trainer that builds its optimizer after it was
    watched is measured with it.
    """

    def __init__(self, *things: object, **named: object) -> None:
        """Watch the things.

        Raises:
            UsageError: a thing that is, and holds, nothing that can be measured.
        """
        self._things: list[object] = []
        self._named: dict[str, object] = {}
        self._frameworks: Frameworks = _TORCH_ONLY
        self.add(*things, **named)

    @classmethod
    def taught_by(cls, frameworks: Frameworks) -> Watched:
        """Return one that watches nothing yet, and knows frameworks beside torch."""
        watched = cls()
        watched._frameworks = frameworks
        return watched

    def add(self, *things: object, **named: object) -> None:
        """Watch more; a name that is taken gets both.

        Raises:
            UsageError: a thing that is, and holds, nothing that can be measured.
        """
        settled = [_settled(thing) for thing in things]
        settled_named = {name: _settled(thing) for name, thing in named.items()}
        opened(settled, self._frameworks)
        opened(settled_named.values(), self._frameworks)
        self._things += settled
        for name, thing in settled_named.items():
            self._named[name] = [self._named[name], thing] if name in self._named else thing

    def copy(self) -> Watched:
        """Return a copy that can be added to alone."""
        other = Watched.taught_by(self._frameworks)
        other.add(*self._things, **self._named)
        return other

    def open(self) -> Opened:
        """Return the parts of all things, each once."""
        return opened([*self._things, *self._named.values()], self._frameworks)

    def open_named(self) -> dict[str, Opened]:
        """Return the parts under each name."""
        return {name: opened([thing], self._frameworks) for name, thing in self._named.items()}


def opened(things: Iterable[object], frameworks: Frameworks = _TORCH_ONLY) -> Opened:
    """Open modules, optimizers, tensors, containers and nested sequences or mappings of them.

    Raises:
        UsageError: a thing that is, and holds, nothing that can be measured.
    """
    result = Opened()
    seen: set[int] = set()
    for thing in things:
        _open(thing, result, seen, frameworks)
    return result


def is_optimizer(thing: object) -> bool:
    """Tell optimizers, torch's functional ones and duck-typed ones included, from other things."""
    if isinstance(thing, Optimizer):
        return True
    if isinstance(thing, nn.Module) or not isinstance(getattr(thing, "state", None), Mapping):
        return False
    return isinstance(getattr(thing, "param_groups", None), list) or isinstance(
        getattr(thing, "param_group", None), Mapping
    )


def _open(thing: object, result: Opened, seen: set[int], frameworks: Frameworks) -> None:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    taught = _taught(thing, result, frameworks)
    if isinstance(thing, Tensor):
        result.tensors.append(thing)
        return
    if isinstance(thing, nn.Module):
        result.modules.append(thing)
    elif is_optimizer(thing):
        result.optimizers.append(thing)
    elif not taught and not _is_container(thing):
        raise UsageError(f"can't watch {_describe(thing)}; expected {_ACCEPTED}")
    for part in _parts(thing):
        _open(part, result, seen, frameworks)


def _taught(thing: object, result: Opened, frameworks: Frameworks) -> bool:
    """Add what frameworks know of a thing; tell whether it is anybody's."""
    if isinstance(thing, (Tensor, Mapping, *SEQUENCES)):
        return False
    result.things.append(thing)
    held = frameworks.held(thing)
    if held is None:
        return False
    for its in held:
        if not isinstance(its, Held) or not isinstance(its.tensor, Tensor):
            raise UsageError(
                f"pytest_shardcheck_held of {_describe(thing)} gave {_describe(its)}; expected "
                "pytest_shardcheck.Held(category=..., tensor=a torch.Tensor, name=...)"
            )
        result.taught.append(its)
    return True


def _parts(thing: object) -> Iterator[object]:
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, SEQUENCES):
        yield from thing
    else:
        yield from (value for value in _kept(thing) if _is_watchable(value))


def _kept(thing: object) -> list[object]:
    """Return the values of the attributes that containers keep their parts in."""
    return [value for name in _OPENED if (value := getattr(thing, name, None)) is not None]


def _is_container(thing: object) -> bool:
    if isinstance(thing, (Mapping, *SEQUENCES)):
        return True
    # A trainer's parts may still be None: they come later.
    values = [getattr(thing, name) for name in _OPENED if hasattr(thing, name)]
    return any(value is None or _is_watchable(value) for value in values)


def _is_watchable(value: object, depth: int = 0) -> bool:
    """Tell an attribute that holds parts from one that only has the name (`optim="adamw"`)."""
    if isinstance(value, nn.Module) or is_optimizer(value):
        return True
    if isinstance(value, Mapping):
        return all(_is_watchable(item, depth) for item in value.values())
    if isinstance(value, SEQUENCES):
        return all(_is_watchable(item, depth) for item in value)
    # A wrapper of a wrapper of a wrapper is opened; a cycle ends.
    return depth < 4 and any(_is_watchable(part, depth + 1) for part in _kept(value))


def _settled(thing: object) -> object:
    """Return a list for an iterator such as `model.parameters()`, which could be read only once."""
    return list(thing) if isinstance(thing, Iterator) else thing


def _describe(thing: object) -> str:
    text = repr(thing)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(thing).__qualname__})"
