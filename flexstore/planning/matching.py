"""What a state wants against what a checkpoint holds: names, shapes, dtypes, declared axes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flexstore.core.manifest import Manifest, TensorInfo
from flexstore.core.region import Region
from flexstore.errors import StateMismatchError

_SHOWN = 20


@dataclass(frozen=True)
class Match:
    """The outcome for one rank, or for all ranks together.

    Attributes:
        wanted: every name the state has.
        missing: names that the checkpoint lacks.
        mismatched: name → why it cannot be loaded.
    """

    wanted: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    mismatched: Mapping[str, str] = field(default_factory=dict)

    def loadable(self, regions: Iterable[Region]) -> list[Region]:
        """Those regions whose tensor is there and fits."""
        return [region for region in regions if region.key not in self.missing and region.key not in self.mismatched]

    def unexpected(self, manifest: Manifest) -> tuple[str, ...]:
        """Names in the checkpoint that the state does not have."""
        names = {tensor.key for tensor in manifest.tensors} | set(manifest.common)
        return tuple(sorted(names - self.wanted))


def match(manifest: Manifest, tensors: Iterable[TensorInfo], plain: Iterable[str], *, cast: bool) -> Match:
    """Compare a state with a checkpoint.

    Args:
        manifest: of the checkpoint.
        tensors: what the state has.
        plain: names of its plain values.
        cast: accept a different dtype (the values will be converted).
    """
    wanted: set[str] = set()
    missing: set[str] = set()
    mismatched: dict[str, str] = {}
    for info in tensors:
        wanted.add(info.key)
        if info.key in manifest.index:
            reason = _difference(manifest.tensors[manifest.index[info.key]], info, cast)
            if reason:
                mismatched[info.key] = reason
        elif info.key in manifest.common:
            mismatched[info.key] = "the checkpoint holds a plain value, the state a tensor"
        else:
            missing.add(info.key)
    for name in plain:
        wanted.add(name)
        if name in manifest.index:
            mismatched[name] = "the checkpoint holds a tensor, the state a plain value"
        elif name not in manifest.common:
            missing.add(name)
    return Match(frozenset(wanted), frozenset(missing), mismatched)


def _difference(stored: TensorInfo, wanted: TensorInfo, cast: bool) -> str | None:
    if stored.shape != wanted.shape:
        return f"shape {stored.shape} in the checkpoint, {wanted.shape} in the state"
    if stored.dtype != wanted.dtype and not cast:
        return f"dtype {stored.dtype} in the checkpoint, {wanted.dtype} in the state (cast=True converts)"
    if stored.dtype.numpy.kind == "c" != wanted.dtype.numpy.kind:
        return f"dtype {stored.dtype} cannot become {wanted.dtype} without losing the imaginary part"
    axes = (stored.declared_axis, wanted.declared_axis)
    if None not in axes and axes[0] != axes[1]:
        return f"declared axis {axes[0]} in the checkpoint, {axes[1]} in the state: one of them is transposed"
    return None


def merged(matches: Sequence[Match]) -> Match:
    """The outcome of all ranks together."""
    return Match(
        frozenset().union(*(m.wanted for m in matches)),
        frozenset().union(*(m.missing for m in matches)),
        {name: reason for m in matches for name, reason in m.mismatched.items()},
    )


def refuse(found: Match, unexpected: Sequence[str], url: str) -> StateMismatchError:
    """The error of a strict load, with the full lists as attributes and their beginnings in the text."""
    lines = [f"the state does not match the checkpoint at {url}"]
    lines += _listed("missing in the checkpoint", sorted(found.missing))
    lines += _listed("mismatched", [f"{name}: {why}" for name, why in sorted(found.mismatched.items())])
    lines += _listed("unexpected, not in the state", unexpected)
    return StateMismatchError(
        "\n".join(lines),
        missing=tuple(sorted(found.missing)),
        unexpected=tuple(unexpected),
        mismatched=tuple(sorted(found.mismatched)),
        hint="strict=False loads what matches and reports the rest",
    )


def _listed(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    more = [f"    … and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else []
    return [f"  {title} ({len(entries)}):", *(f"    {entry}" for entry in entries[:_SHOWN]), *more]
