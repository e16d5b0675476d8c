"""Where the file of a test lies: snapshots/<the test file's path>/<test>@<variant>.json."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from string import Formatter
from typing import Final

from pytest_shardcheck.vocabulary.errors import UsageError

SUFFIX: Final = ".json"
_MARK: Final = "@"  # between a test's name and the variant; in neither of them
_VARIANTS: Final = ("device", "gpu", "torch")
# What file systems, shells and the mark need; "%" so that what is written can't be mistaken.
_UNSAFE: Final = re.compile(r'[\x00-\x1f\x7f\\/?*:|"<>%@]')
# Bytes that a name may have on any file system, without the variant and a temporary's prefix.
_LONGEST_STEM: Final = 180
_LONGEST_VARIANT: Final = 40


def check_variant(template: str) -> str:
    """Return the template of a variant.

    Raises:
        UsageError: it names something else than a variant may depend on.
    """
    try:
        names = [(name, spec, how) for _, name, spec, how in Formatter().parse(template) if name]
        right = all(name in _VARIANTS and not spec and not how for name, spec, how in names)
        right = right and "{}" not in template
    except ValueError:
        right = False
    if not right:
        accepted = ", ".join(f"{{{name}}}" for name in _VARIANTS)
        raise UsageError(f"text with {accepted} is expected, not {template!r}")
    return template


def variant_of(template: str, *, device: str, torch: str, gpu: str | None) -> str | None:
    """Return the variant of a world; None where it depends on a GPU that is not known.

    `gpu` is the GPU's name, "" on the CPU.
    """
    if "{gpu}" in template and gpu is None:
        return None
    text = template.format(device=device, torch=torch, gpu=gpu or device)
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text)[:_LONGEST_VARIANT]


def folder_of(nodeid: str) -> PurePosixPath:
    """Return the folder of a test file's snapshots below their directory."""
    path = PurePosixPath(nodeid.partition("::")[0]).with_suffix("")
    # What lies outside of rootdir.
    return PurePosixPath(*("__" if part == ".." else part for part in path.parts))


def name_of(nodeid: str, name: str) -> str:
    """Return what syrupy calls a test of this id and name: "TestClass.test_it[world2]"."""
    return ".".join([*nodeid.split("::")[1:-1], name])


def stem_of(name: str) -> str:
    """Return a test's name, as syrupy has it, as the name of a file.

    No two names share one: what a file can't be called is written in another way, and what is cut
    ends with a digest of the whole.
    """
    safe = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", name)
    if len(safe.encode()) <= _LONGEST_STEM:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    cut = safe.encode()[: _LONGEST_STEM - len(digest) - 1].decode(errors="ignore")
    return f"{cut}~{digest}"


def file_name(stem: str, variant: str) -> str:
    """Return the name of a test's file."""
    return f"{stem}{_MARK}{variant}{SUFFIX}" if variant else f"{stem}{SUFFIX}"


def split_file_name(name: str) -> tuple[str, str] | None:
    """Return stem and variant of a file's name; None where it is none of ours."""
    if not name.endswith(SUFFIX) or name.startswith("."):
        return None
    stem, _, variant = name.removesuffix(SUFFIX).partition(_MARK)
    return stem, variant
