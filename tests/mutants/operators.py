"""The mutants of a file: one operator, constant or branch is changed, with the operators of cosmic-ray."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

_ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "Mod_FloorDiv", "Pow_Mul")
_BITS = ("RShift_LShift", "LShift_RShift", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitAnd")
_COMPARISONS = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is")

OPERATORS = (
    *(f"ReplaceBinaryOperator_{pair}" for pair in (*_ARITHMETIC, *_BITS)),
    *(f"ReplaceComparisonOperator_{pair}" for pair in _COMPARISONS),
    *(f"ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer"),
    *("AddNot", "ExceptionReplacer", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
)
"""One replacement for each operator. Most others, such as `<<` for `+`, raise at once, and any test notices them."""

ARITHMETIC = ("arith_expr", "term", "power", "shift_expr", "and_expr", "xor_expr", "expr")
"""Nodes of the grammar whose operators have two operands."""


@dataclass(frozen=True)
class Mutant:
    """A change of one line. Its identity is the text of the line, so that it survives edits elsewhere in the file.

    Attributes
    ----------
    file : str
        Path from the root of the project.
    text : str
        The line without its indentation.
    operator : str
        Name of the operator of cosmic-ray.
    occurrence : int
        Number among the mutants of the file with the same text and operator.
    line : int
        Number of the line at present.
    index : int
        Number among the mutants of the file with the same operator, as cosmic-ray counts them.
    """

    file: str
    text: str
    operator: str
    occurrence: int
    line: int = field(compare=False)
    index: int = field(compare=False)

    @property
    def key(self) -> str:
        return f"{self.file} | {self.operator} {self.occurrence} | {self.text}"


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of a source file; some of them do not compile."""
    nodes = list(ast_nodes(get_ast(source)))
    lines = source.splitlines()
    annotations = _annotations(source)
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        seen: Counter[str] = Counter()
        positions = ((node, start) for node in nodes for start, _ in operator.mutation_positions(node))
        for index, (node, start) in enumerate(positions):
            line = lines[start[0] - 1]
            text = line.strip()
            if "if TYPE_CHECKING" in text or ("BitOr_" in name and any(a <= start < b for a, b in annotations)):
                continue  # runs nowhere
            if name == "ExceptionReplacer" and not re.match(r"\w+(?![\w.])", line[start[1] :]):
                continue  # cosmic-ray cannot replace a dotted name
            if "Binary" in name and node.parent.type not in ARITHMETIC:
                continue  # the `*` before keywords, or the `**` of a dict
            yield Mutant(file, text, name, seen[text], start[0], index)
            seen[text] += 1


def mutated(source: str, mutant: Mutant) -> str | None:
    """Return the source with the change, or None if that does not compile."""
    changed: str | None = mutate_code(source, get_operator(f"core/{mutant.operator}")(), mutant.index)
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(changed or "", mutant.file, "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return changed


def _annotations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the start and the end of each annotation, as lines and columns."""
    found = (getattr(node, name, None) for node in ast.walk(ast.parse(source)) for name in ("annotation", "returns"))
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in found
        if node is not None
    ]
