"""Files written for people and programs alike: groups at new costs, and what stands beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from anytime.errors import GroupsError, file_error
from anytime.groups import FeatureGroups

__all__ = ["check_file", "write_groups", "write_text"]

_SUFFIXES = (".json", ".yaml", ".yml")


def check_file(path: Path, suffixes: tuple[str, ...] = _SUFFIXES) -> None:
    """Refuse a file that could not be written, before the work for it.

    Raises
    ------
    GroupsError
        Its suffix is not one of those, or there is no such directory.
    """
    if path.suffix.lower() not in suffixes:
        raise GroupsError(f"cannot write {str(path)!r}; expected a name that ends in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise GroupsError(f"cannot write {str(path)!r}: there is no directory {str(path.parent)!r}")
    if path.is_dir():
        raise GroupsError(f"cannot write {str(path)!r}: it is a directory")


def write_groups(groups: FeatureGroups, path: Path) -> None:
    """Write a groups file, JSON or YAML by its suffix, a line a group; `load_groups` reads the same from it.

    Raises
    ------
    GroupsError
        It cannot be written.
    """
    told = [_told(group.model_dump(mode="json")) for group in groups.groups]
    if path.suffix.lower() == ".json":
        lines = ",\n".join("  " + json.dumps(group, ensure_ascii=False) for group in told)
        unit = json.dumps(groups.cost_unit, ensure_ascii=False)
        text = f'{{"cost_unit": {unit}, "groups": [\n{lines}\n]}}\n'
    else:
        unit = yaml.safe_dump({"cost_unit": groups.cost_unit}, allow_unicode=True)
        text = unit + "groups:\n" + "".join(f"  - {_flow(group)}\n" for group in told)
    write_text(text, path)


def write_text(text: str, path: Path) -> None:
    """Write a file; raise GroupsError where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise file_error(GroupsError, f"write {str(path)!r}", error) from error


def _told(group: dict[str, Any]) -> dict[str, Any]:
    """A group without what need not be said."""
    return {name: value for name, value in group.items() if name != "requires" or value}


def _flow(group: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(group, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return text.strip()
