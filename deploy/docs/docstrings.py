"""Reads this project's docstrings into the reference.

They are in NumPy style, but a parameter has its description after the colon, since its type is in the signature. The
client makes some methods from those of the asynchronous client.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(?:Parameters|Attributes)\n-+\n(?:.+\n?)*", flags=re.MULTILINE)
_MADE = re.compile(r"_blocking\((\w+\.\w+)\)")
_ITEM = re.compile(r"^([\w*]+(?:, [\w*]+)*) : (.+)", flags=re.MULTILINE)


def numpy_style(text: str) -> str:
    """Return a docstring with the description of each parameter and attribute on a line of its own."""

    def section(found: re.Match[str]) -> str:
        one_a_line = re.sub(r"(?<=\.)  (?=[\w, ]+ : )", "\n", found[0])
        return _ITEM.sub(r"\1\n    \2", one_a_line)

    return _SECTION.sub(section, text)


class Docstrings(griffe.Extension):  # type: ignore[misc]  # see pyproject.toml
    """Applies `numpy_style` to every docstring before it is parsed, and shows methods that others are made into."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = numpy_style(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Replace each attribute that is made from a method by a method."""
        for name, member in list(cls.members.items()):
            made = member.is_attribute and _MADE.fullmatch(str(member.value))
            if made:
                of = cls.module[made[1]]
                cls.set_member(
                    name, griffe.Function(name, parameters=of.parameters, returns=of.returns, docstring=of.docstring)
                )
