"""The text of the C header, but for a model's names and numbers.

A model as one C header: declarations, which C++ may read, too, and their definitions for one file of C11.

A program uses it as `anytime.inference.prediction` is used for one row: begin, add groups as they are computed, get an
answer at any time. The code allocates nothing and searches nothing, so the answer of the longest prefix takes longest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from string import Template

import numpy as np

from anytime.errors import ArtifactError
from anytime.model.model import Model
from anytime.types import Float, Label

__all__ = [
    "DECLARATIONS",
    "DEFINITIONS",
    "TELLING",
    "c_source",
]

DECLARATIONS = """\
/* An anytime-linear model for one row at a time, exported by `anytime export`.
 *
 * Include it wherever it is used, and in one file of C11 with ${NAME}_IMPLEMENTATION defined before.
 * Define ANYTIME_REAL as float, everywhere, to compute in single precision. Not for -ffast-math, which knows no NAN.
 *
 *     ${name}_prediction now;
 *     ${name}_begin(&now);
 *     ${name}_add(&now, group, values);               as each group is computed, in any order
 *     prefix = ${name}_answer(&now, INFINITY, told);  at any time, from a signal handler or another thread, too
 *
 * One thread begins and adds. A group counts from when `add` has returned. Begin, or add a group again, only while no
 * answer is being computed, or take another ${name}_prediction: such an answer may mix old values and
 * new ones. Nothing is allocated, and nothing waits.
 */
#if defined ${NAME}_H && !defined ${NAME}_${HASH}
#error "two versions of the same model, or two models whose names are the same in C"
#endif

#ifndef ${NAME}_H
#define ${NAME}_H
#define ${NAME}_${HASH}

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ANYTIME_REAL
#define ANYTIME_REAL double
#endif

#define ${NAME}_STEPS ${steps}
#define ${NAME}_FEATURES ${features}
#define ${NAME}_GROUPS ${groups}
#define ${NAME}_OUTPUTS ${outputs}

/* Groups that have features, in the order of the sequence. */
enum {
    ${group_ids}
};

/* Name of the model, hash of its file, unit of its costs; names of its groups, and of its responses or classes. */
extern const char ${name}_model[];
extern const char ${name}_version[];
extern const char ${name}_cost_unit[];
extern const char *const ${name}_groups[${NAME}_GROUPS];
extern const char *const ${name}_outputs[${NAME}_OUTPUTS];

/* What each prefix costs, the base rate first. */
extern const double ${name}_costs[${NAME}_STEPS + 1];

typedef struct {
    ANYTIME_REAL values[${NAME}_FEATURES]; /* less their training means, in the order of the sequence */
#ifdef __cplusplus
    unsigned char came[${NAME}_GROUPS];
#else
    _Atomic unsigned char came[${NAME}_GROUPS];
#endif
} ${name}_prediction;

/* Forget every group. */
void ${name}_begin(${name}_prediction *prediction);

/* How many features a group has; 0 where there is no such group. */
size_t ${name}_width(size_t group);

/* Take the values of a group, in raw units; NAN stands for a value that is missing, whose mean takes its place.
 * Returns 0; or -1, and nothing has changed, where there is no such group or a value is infinite or beyond 1e100. */
int ${name}_add(${name}_prediction *prediction, size_t group, const ANYTIME_REAL *values);

/* The prediction from the longest prefix that is complete and costs no more than `budget` (INFINITY: no limit): the
 * responses, or a probability for each class. Returns the number of that prefix's steps, 0 being the base rate; or -1,
 * and tells the base rate, where the budget is no number of 0 or more or the result is not finite. */
int ${name}_answer(${name}_prediction *prediction, double budget, ANYTIME_REAL told[${NAME}_OUTPUTS]);

#ifdef __cplusplus
}
#endif

#endif /* ${NAME}_H */
"""

DEFINITIONS = """
#if defined ${NAME}_IMPLEMENTATION && !defined ${NAME}_IMPLEMENTED
#define ${NAME}_IMPLEMENTED

#if defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__
#error "-ffast-math and -ffinite-math-only take it that there is no NAN, by which a missing value is known"
#endif

#include <stdatomic.h>
#include <tgmath.h>

const char ${name}_model[] = ${model};
const char ${name}_version[] = ${version};
const char ${name}_cost_unit[] = ${unit};
const char *const ${name}_groups[${NAME}_GROUPS] = {
    ${group_names}
};
const char *const ${name}_outputs[${NAME}_OUTPUTS] = {
    ${output_names}
};
const double ${name}_costs[${NAME}_STEPS + 1] = {
    ${costs}
};

enum { ${name}_scores = ${scores} };

/* Where the features of each group begin, and the end; the step that adds the group. */
static const size_t ${name}_start[${NAME}_GROUPS + 1] = {
    ${group_start}
};
static const int ${name}_step[${NAME}_GROUPS] = {
    ${group_step}
};
static const ANYTIME_REAL ${name}_means[${NAME}_FEATURES] = {
    ${means}
};

/* How many features each prefix has; where its coefficients begin, a row for each feature. */
static const size_t ${name}_ends[${NAME}_STEPS + 1] = {
    ${ends}
};
static const size_t ${name}_offsets[${NAME}_STEPS + 1] = {
    ${offsets}
};
static const ANYTIME_REAL ${name}_intercepts[] = {
    ${intercepts}
};
static const ANYTIME_REAL ${name}_coefs[] = {
    ${coefs}
};

void ${name}_begin(${name}_prediction *prediction)
{
    for (size_t group = 0; group < ${NAME}_GROUPS; group++)
        atomic_store_explicit(&prediction->came[group], 0, memory_order_relaxed);
}

size_t ${name}_width(size_t group)
{
    return group < ${NAME}_GROUPS ? ${name}_start[group + 1] - ${name}_start[group] : 0;
}

int ${name}_add(${name}_prediction *prediction, size_t group, const ANYTIME_REAL *values)
{
    const size_t width = ${name}_width(group);
    if (width == 0)
        return -1;
    for (size_t i = 0; i < width; i++)
        if (!isnan(values[i]) && !((double)fabs(values[i]) <= 1e100))
            return -1;
    for (size_t i = 0; i < width; i++) {
        const size_t place = ${name}_start[group] + i;
        prediction->values[place] = isnan(values[i]) ? 0 : values[i] - ${name}_means[place];
    }
    atomic_store_explicit(&prediction->came[group], 1, memory_order_release);
    return 0;
}

/* The longest prefix that is complete: groups are in the order of their steps, so that the first that lacks ends it. */
static int ${name}_complete(${name}_prediction *prediction)
{
    for (size_t group = 0; group < ${NAME}_GROUPS; group++)
        if (!atomic_load_explicit(&prediction->came[group], memory_order_acquire))
            return ${name}_step[group] - 1;
    return ${NAME}_STEPS;
}

/* What a prefix tells; whether all of it is finite. */
static int ${name}_told(const ${name}_prediction *prediction, int prefix, ANYTIME_REAL *told)
{
    ANYTIME_REAL scores[${name}_scores];
    const ANYTIME_REAL *coef = ${name}_coefs + ${name}_offsets[prefix];
    for (size_t r = 0; r < ${name}_scores; r++)
        scores[r] = ${name}_intercepts[(size_t)prefix * ${name}_scores + r];
    for (size_t i = 0; i < ${name}_ends[prefix]; i++)
        for (size_t r = 0; r < ${name}_scores; r++)
            scores[r] += prediction->values[i] * *coef++;
${telling}
    int finite = 1;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        finite &= isfinite(told[r]) != 0;
    return finite;
}

int ${name}_answer(${name}_prediction *prediction, double budget, ANYTIME_REAL told[${NAME}_OUTPUTS])
{
    int prefix = ${name}_complete(prediction);
    if (budget >= 0) {
        while (prefix > 0 && ${name}_costs[prefix] > budget * (1 + 1e-9))
            prefix--;
        if (${name}_told(prediction, prefix, told))
            return prefix;
    }
    ${name}_told(prediction, 0, told);
    return -1;
}

#endif /* ${NAME}_IMPLEMENTED */
"""

TELLING = {
    "identity": """\
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        told[r] = scores[r];""",
    "log": """\
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        told[r] = exp(scores[r] > 500 ? 500 : scores[r]);""",
    "logit": """\
    told[1] = 1 / (1 + exp(-scores[0]));
    told[0] = 1 - told[1];""",
    "softmax": """\
    ANYTIME_REAL largest = scores[0], total = 0;
    for (size_t r = 1; r < ${NAME}_OUTPUTS; r++)
        largest = scores[r] > largest ? scores[r] : largest;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        total += told[r] = exp(scores[r] - largest);
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        told[r] /= total;""",
    "second indicator": """\
    if (!isfinite(scores[0]))
        return 0;
    told[1] = scores[0] < 0 ? 0 : scores[0] > 1 ? 1 : scores[0];
    told[0] = 1 - told[1];""",
    "indicators": """\
    ANYTIME_REAL total = 0;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        total += told[r] = scores[r] < 0 ? 0 : scores[r];
    if (!isfinite(total))
        return 0;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        told[r] = total > 0 ? told[r] / total : (ANYTIME_REAL)1 / ${NAME}_OUTPUTS;""",
}
"""How scores become what is told, by the rule."""


WIDTH = 118
"""Length of the lines of numbers, at most."""

PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\?')
"""Bytes that stand for themselves in a string of C."""


def c_source(model: Model) -> str:
    """The header of a model; its names begin with `anytime_` and the model's name, in letters that C takes.

    Raises
    ------
    ArtifactError
        The model's name has no such letter.
    """
    manifest, prefixes = model.manifest, model.prefixes
    if not _word(model.name):
        raise ArtifactError(
            f"model {model.name!r} has no name in C; expected a letter from A to Z or a digit in it: name it otherwise"
        )
    name = f"anytime_{_word(model.name).lower()}"
    constants = _constants(group.name for group in model.groups.groups if group.features)
    classes = () if manifest.classes is None else manifest.classes
    scores = len(prefixes.intercept)
    outputs = len(classes) or scores
    places = model.places
    values = {
        "name": name,
        "NAME": name.upper(),
        "HASH": model.version.upper() or "NOT_SAVED",
        "version": _string(model.version),
        "model": _string(model.name),
        "unit": _string(model.groups.cost_unit),
        "steps": model.steps,
        "features": len(prefixes.columns),
        "groups": len(places),
        "scores": scores,
        "outputs": outputs,
        "group_ids": _lines(f"{name.upper()}_GROUP_{constants[place]}" for place in places),
        "group_names": _lines(map(_string, places)),
        "output_names": _lines(_string(_text(each)) for each in (classes or manifest.responses)),
        "group_start": _lines([*(str(place.start) for place in places.values()), str(len(prefixes.columns))]),
        "group_step": _lines(str(place.step) for place in places.values()),
        "means": _numbers(prefixes.mean[prefixes.columns]),
        "costs": _numbers(model.costs),
        "ends": _lines(map(str, prefixes.ends.tolist())),
        "offsets": _lines(map(str, (prefixes.offsets[:-1] * scores).tolist())),
        "intercepts": _numbers(np.stack([prefixes.intercept_of(prefix) for prefix in range(model.steps + 1)])),
        "coefs": _numbers(prefixes.packed),
        "telling": Template(TELLING[_kind(model)]).substitute(NAME=name.upper()),
    }
    return Template(DECLARATIONS + DEFINITIONS).substitute(values)


def _kind(model: Model) -> str:
    """By which rule scores become what is told: the link, or that of indicators of classes by least squares."""
    if model.manifest.classes is None or model.manifest.family != "gaussian":
        return model.manifest.link
    return "second indicator" if len(model.prefixes.intercept) == 1 else "indicators"


def _word(text: str) -> str:
    """Upper-case letters, digits and single underscores that stand for a name."""
    return re.sub(r"[^0-9A-Z]+", "_", text.upper()).strip("_")


def _constants(names: Iterable[str]) -> dict[str, str]:
    """A word for each name, numbered where it comes again: in the order of the groups file, which stays."""
    found: dict[str, str] = {}
    used: set[str] = set()
    times: Counter[str] = Counter()
    for name in names:
        word = one = _word(name) or "UNNAMED"
        times[word] += 1
        while one in used:
            one = f"{word}_{times[word]}"
            times[word] += 1
        used.add(one)
        found[name] = one
    return found


def _text(label: Label) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)


def _string(text: str) -> str:
    """A string of C, in UTF-8; what is not plain is escaped byte by byte."""
    return '"' + "".join(chr(byte) if byte in PLAIN else f"\\{byte:03o}" for byte in text.encode("utf-8")) + '"'


def _numbers(array: Float) -> str:
    return _lines(map(repr, array.ravel().tolist()))


def _lines(items: Iterable[str]) -> str:
    """Items of an initialiser, by commas, in lines."""
    lines: list[str] = []
    line = ""
    for item in items:
        if line and len(line) + len(item) + 2 > WIDTH:
            lines.append(line)
            line = ""
        line += f"{' ' if line else ''}{item},"
    return "\n    ".join([*lines, line])
