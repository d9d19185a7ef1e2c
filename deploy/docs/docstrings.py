"""Shows in the reference the methods that the client makes from those of the asynchronous client."""

from __future__ import annotations

import re
from typing import Any

import griffe

_MADE = re.compile(r"_in_(?:portal|thread)\((\w+\.\w+)\)")


class Docstrings(griffe.Extension):  # type: ignore[misc]  # see pyproject.toml
    """Replaces attributes that are made from a method by that method."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Replace each attribute that is made from a method by a method."""
        for name, member in list(cls.members.items()):
            made = member.is_attribute and _MADE.fullmatch(str(member.value))
            if made:
                of = cls.module[made[1]]
                cls.set_member(
                    name, griffe.Function(name, parameters=of.parameters, returns=of.returns, docstring=of.docstring)
                )
