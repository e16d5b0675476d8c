"""Frozen dataclasses of plain data ↔ what `json` can write, by their fields' types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pytest_shardcheck.vocabulary.errors import UsageError

_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Plain")


class Plain:
    """A frozen dataclass of plain data that crosses processes as JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return what `json` can write."""
        data: dict[str, Any] = to_json(self)
        return data

    @classmethod
    def from_json(cls: type[_Self], data: Mapping[str, Any]) -> _Self:
        """Build what `to_json` wrote."""
        return from_json(cls, data)


def to_json(value: Any) -> Any:
    """Return a frozen dataclass, or a mapping or tuple of them, as what `json` can write."""
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def from_json(kind: type[_T], data: Any) -> _T:
    """Build the dataclass `kind` that `to_json` wrote."""
    hints = _hints(kind)  # type: ignore[arg-type]  # mypy takes type[_T] for unhashable
    return kind(**{name: _restored(hints[name], value) for name, value in data.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _restored(hint: Any, data: Any) -> Any:
    if data is None:
        return None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (some,) = (argument for argument in arguments if argument is not NoneType)
        return _restored(some, data)
    if origin is tuple:
        return tuple(_restored(arguments[0], item) for item in data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _restored(arguments[1], item) for name, item in data.items()}
    if hasattr(hint, "__dataclass_fields__"):
        return from_json(hint, data)
    return data


def to_versioned(value: Any, schema: int) -> dict[str, Any]:
    """Return a frozen dataclass as what `json` can write, with the version of its schema."""
    return {"schema": schema, **to_json(value)}


def from_versioned(kind: type[_T], data: Mapping[str, Any], schema: int, what: str) -> _T:
    """Build what `to_versioned` wrote of a `what`. Raises UsageError on another schema."""
    if data.get("schema") != schema:
        raise UsageError(
            f"A {what} of schema {schema} was expected, this one has "
            f"{data.get('schema')!r}: record it again with the installed pytest-shardcheck."
        )
    return from_json(kind, {name: data[name] for name in data if name != "schema"})
