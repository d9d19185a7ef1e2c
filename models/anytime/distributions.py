"""What computing groups takes, as distributions and not as numbers alone: measured one by one, or as a histogram.

They are kept in a JSON file beside the groups file::

    {"format": 1, "unit": "ms", "source": "anytime profile", "paired": true,
     "groups": {"hog": {"samples": [2.41, 2.38]}, "speed": {"bounds": [0.1, 0.2], "counts": [7, 3, 0], "sum": 0.96}}}

Samples are `paired` where those at one place belong to the same input: a large picture is slow for every group, and who
draws costs at random must then draw them together. Histograms cannot be paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from anytime.arrays import Float
from anytime.errors import GroupsError, file_error, listed, suggestion
from anytime.groups import FeatureGroups
from anytime.histogram import Histogram

__all__ = ["CostDistributions", "Samples", "checked_quantile", "milliseconds", "priced"]

DIGITS = 4
"""Significant digits of what is measured."""

_MILLISECONDS = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1.0),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1e3),
    **dict.fromkeys(("us", "µs", "usec", "microsecond", "microseconds"), 1e-3),
}

_Time = Annotated[float, Field(ge=0)]


class Samples(BaseModel):
    """Values that were measured one by one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, ignored_types=(cached_property,)
    )

    samples: tuple[_Time, ...] = Field(min_length=1)

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.samples)

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return float(self.array.mean())

    @cached_property
    def array(self) -> Float:
        """The values, (count,), as they came."""
        return np.array(self.samples, dtype=np.float64)

    def quantiles(self, q: Float) -> Float:
        """Quantiles of the values, by q of 0 to 1 in any shape: each is one of the values."""
        return np.asarray(np.quantile(self.array, q, method="inverted_cdf"), dtype=np.float64)


def _kind(group: Any) -> str:
    """Which of the two a group is, read or made, so that what is wrong is told of that one."""
    is_samples = "samples" in group if isinstance(group, Mapping) else isinstance(group, Samples)
    return "samples" if is_samples else "histogram"


_Group = Annotated[Annotated[Samples, Tag("samples")] | Annotated[Histogram, Tag("histogram")], Discriminator(_kind)]


class CostDistributions(BaseModel):
    """What computing each group takes, in milliseconds.

    Attributes
    ----------
    source : where they come from, in words.
    paired : whether the samples at one place belong to the same input; see the module's head.
    groups : by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: Literal[1] = 1
    unit: Literal["ms"] = "ms"
    source: str = ""
    paired: bool = False
    groups: dict[str, _Group] = Field(min_length=1)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        if self.paired:
            counts = {group.count for group in self.groups.values() if isinstance(group, Samples)}
            if len(counts) != 1 or any(isinstance(group, Histogram) for group in self.groups.values()):
                raise ValueError("paired groups have samples alone, and as many each")
        return self

    @classmethod
    def measured(cls, times: Mapping[str, Float], source: str, *, paired: bool = True) -> CostDistributions:
        """Of samples, (count,) milliseconds each, to four significant digits."""
        rounded = {name: tuple(_rounded(value) for value in each.tolist()) for name, each in times.items()}
        return cls(source=source, paired=paired, groups={name: Samples(samples=kept) for name, kept in rounded.items()})

    @classmethod
    def load(cls, path: str | Path) -> CostDistributions:
        """Read and check a file.

        Raises
        ------
        GroupsError
            It is not there, or holds something else.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise GroupsError(f"cannot read {str(path)!r}: it is not text") from error
        except OSError as error:
            raise file_error(GroupsError, f"read {str(path)!r}", error) from error
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise GroupsError(
                f"{str(path)!r} holds no distributions of costs ({where}: {first['msg'].lower()}); expected a file "
                "that 'anytime profile' or 'anytime costs' wrote by --distributions"
            ) from None

    def text(self) -> str:
        """The file's content."""
        return self.model_dump_json(indent=None) + "\n"

    def missing(self, names: Iterable[str]) -> list[str]:
        """Which of some groups it does not have."""
        return [name for name in names if name not in self.groups]

    def draw(self, names: Iterable[str], draws: int, rng: np.random.Generator) -> Float:
        """Random costs of groups that it has, (draws, groups), in milliseconds: those of one input in each row."""
        found = [self.groups[name] for name in names]
        if self.paired:
            arrays = [group.array for group in found if isinstance(group, Samples)]
            places = rng.integers(next(iter(self.groups.values())).count, size=draws)
            return np.stack([array[places] for array in arrays], axis=1) if arrays else np.zeros((draws, 0))
        columns = [group.quantiles(rng.random(draws)) for group in found]
        return np.stack(columns, axis=1) if columns else np.zeros((draws, 0))

    def cost(self, name: str, quantile: float | None) -> float:
        """What a group costs: its mean, or a quantile; in milliseconds to four significant digits."""
        group = self.groups[name]
        return _rounded(group.mean if quantile is None else float(group.quantiles(np.array(quantile))))


def checked_quantile(quantile: float | None) -> float | None:
    """The value of --cost-quantile.

    Raises
    ------
    GroupsError
        It is not between 0 and 1.
    """
    if quantile is not None and not 0 < quantile < 1:
        raise GroupsError(f"--cost-quantile is {quantile:g}; expected a number between 0 and 1, like 0.9")
    return quantile


def milliseconds(unit: str) -> float | None:
    """How many milliseconds a unit of cost is; None where it is no time."""
    return _MILLISECONDS.get(unit.strip().lower())


def priced(groups: FeatureGroups, costs: Mapping[str, float]) -> FeatureGroups:
    """Groups at costs in milliseconds; those that are not among them keep theirs, in milliseconds too.

    Parameters
    ----------
    costs : by name of the group.

    Raises
    ------
    GroupsError
        A cost is of no such group; or a group that keeps its cost has one that is no time.
    """
    for name in costs:
        if name not in groups.positions:
            raise GroupsError(f"there is no group {name!r}; {suggestion(name, groups.names)}")
    factor = milliseconds(groups.cost_unit)
    unknown = [group.name for group in groups.groups if group.name not in costs and group.cost > 0]
    if factor is None and unknown:
        raise GroupsError(
            f"{listed(unknown)} cannot be measured and keep a cost in {groups.cost_unit!r}, which is no time; "
            "give their costs in ms, and cost_unit ms"
        )
    told = [
        group.model_copy(update={"cost": costs.get(group.name, group.cost * (factor or 0.0))})
        for group in groups.groups
    ]
    return FeatureGroups(cost_unit="ms", groups=tuple(told))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
