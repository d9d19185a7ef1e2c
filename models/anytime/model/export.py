"""Export of a model as text, for programs and devices without this library: a JSON document or a C header.

*The document* has everything that predictions from prefixes need. A prefix has

    scores = intercept + (x - mean) @ coef,

where x is its first `features` values in the order of the document's features. A missing value is replaced by its mean.
The library answers from the longest prefix whose groups have all arrived and whose cost is at most the budget, plus one
part in 1e9, because costs are sums. `link` maps scores to predictions: "identity", "logit", "softmax", or "log", where
scores above 500 count as 500. For classes with the link "identity", scores are least-squares estimates of indicators:
clip them at 0 and scale them to sum to 1 (equal shares if none is positive). A single score, with this link or with
"logit", is that of the second of two classes.

*The header* has declarations for C and C++, and their definitions for one file of C11. A program uses it as
`anytime.inference.prediction` is used for one row: it begins, adds groups as they are computed, and gets an answer at
any time. The code allocates nothing and searches nothing, so an answer from the longest prefix takes the most time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from string import Template
from typing import Any

import numpy as np

from anytime.errors import ArtifactError
from anytime.model.model import Model
from anytime.types import Float, Label

WIDTH = 118
"""Maximum length of the lines of numbers in C."""

PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\?')
"""Bytes that a C string literal needs no escape for."""


def document(model: Model) -> dict[str, Any]:
    """Return the document of a model; every number is finite.

    Groups are in the order of the sequence and include those without features. A group is complete with prefix `step`.
    Its features are those from `start` to before `stop`. `coef` of a prefix has a row for each of its features, and a
    column for each score.
    """
    manifest, prefixes = model.manifest, model.prefixes
    names = model.groups.features
    groups: list[dict[str, Any]] = []
    start = 0
    for step, record in enumerate(manifest.steps, start=1):
        for name in record.adds:
            group = model.groups.groups[model.groups.positions[name]]
            place = {"step": step, "start": start, "stop": start + len(group.features)}
            groups.append({"name": name, "cost": group.cost, "requires": list(group.requires), **place})
            start += len(group.features)
    return {
        "export": 1,  # version of this form
        "model": model.name,
        "version": model.version,
        "task": manifest.task,
        "family": manifest.family,
        "link": manifest.link,
        "responses": list(manifest.responses),
        "classes": None if manifest.classes is None else list(manifest.classes),
        "cost_unit": model.groups.cost_unit,
        "features": [{"name": names[column], "mean": float(prefixes.mean[column])} for column in prefixes.columns],
        "groups": groups,
        "prefixes": [
            {
                "cost": float(model.costs[prefix]),
                "cv_error": model.expected(prefix).cv_error,
                "features": int(prefixes.ends[prefix]),
                "intercept": prefixes.intercept_of(prefix).tolist(),
                "coef": prefixes.coef(prefix).tolist(),
            }
            for prefix in range(model.steps + 1)
        ],
    }


def c_source(model: Model) -> str:
    """Return the header of a model; its names begin with `anytime_` and the model's name, as a C identifier."""
    manifest, prefixes = model.manifest, model.prefixes
    if not (word := _word(model.name)):
        raise ArtifactError(
            f"model {model.name!r} has no name in C; expected at least one letter from A to Z or digit: rename it"
        )
    name = f"anytime_{word.lower()}"
    constants = _constants(group.name for group in model.groups.groups if group.features)
    labels = manifest.classes or manifest.responses
    scores = len(prefixes.intercept)
    places = model.places
    rule: str = manifest.link
    if manifest.classes is not None and manifest.family == "gaussian":
        rule = "second indicator" if scores == 1 else "indicators"
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
        "outputs": len(labels),
        "group_ids": _lines(f"{name.upper()}_GROUP_{constants[place]}" for place in places),
        "group_names": _lines(map(_string, places)),
        "output_names": _lines(_string(_text(label)) for label in labels),
        "group_start": _lines([*(str(place.start) for place in places.values()), str(len(prefixes.columns))]),
        "group_step": _lines(str(place.step) for place in places.values()),
        "means": _numbers(prefixes.mean[prefixes.columns]),
        "costs": _numbers(model.costs),
        "ends": _lines(map(str, prefixes.ends.tolist())),
        "offsets": _lines(map(str, (prefixes.offsets[:-1] * scores).tolist())),
        "intercepts": _numbers(np.stack([prefixes.intercept_of(prefix) for prefix in range(model.steps + 1)])),
        "coefs": _numbers(prefixes.packed),
        "output_code": Template(OUTPUT_CODE[rule]).substitute(NAME=name.upper()),
    }
    return Template(C_HEADER).substitute(values)


def _word(text: str) -> str:
    """Return a name in upper-case letters, digits and single underscores."""
    return re.sub(r"[^0-9A-Z]+", "_", text.upper()).strip("_")


def _constants(names: Iterable[str]) -> dict[str, str]:
    """Return a unique C word for each name, in the order of the groups file; repeated words get a number appended."""
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
    """Return a C string literal in UTF-8; special bytes are escaped one by one."""
    return '"' + "".join(chr(byte) if byte in PLAIN else f"\\{byte:03o}" for byte in text.encode("utf-8")) + '"'


def _numbers(array: Float) -> str:
    return _lines(map(repr, array.ravel().tolist()))


def _lines(items: Iterable[str]) -> str:
    """Return the items of an initialiser, separated by commas and broken into lines."""
    lines: list[str] = []
    line = ""
    for item in items:
        if line and len(line) + len(item) + 2 > WIDTH:
            lines.append(line)
            line = ""
        line += f"{' ' if line else ''}{item},"
    return "\n    ".join([*lines, line])


C_HEADER = """\
/* An anytime-linear model for one row at a time, exported by `anytime export`.
 *
 * Include it where it is used, and in exactly one C11 file after defining ${NAME}_IMPLEMENTATION.
 * Define ANYTIME_REAL as float in every file to compute in single precision. Do not use -ffast-math: it ignores NAN.
 *
 *     ${name}_prediction now;
 *     ${name}_begin(&now);
 *     ${name}_add(&now, group, values);               as each group is computed, in any order
 *     prefix = ${name}_answer(&now, INFINITY, output);  at any time, also from a signal handler or thread
 *
 * One thread calls `begin` and `add`. A group counts once `add` returns. Call `begin`, or `add` for a group a second
 * time, only while no answer is being computed, or use another ${name}_prediction: otherwise the answer may mix old and
 * new values. The code allocates nothing and never waits.
 */
#if defined ${NAME}_H && !defined ${NAME}_${HASH}
#error "two versions of the same model, or two models with the same name in C"
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

/* Cost of each prefix, the base rate first. */
extern const double ${name}_costs[${NAME}_STEPS + 1];

typedef struct {
    ANYTIME_REAL values[${NAME}_FEATURES]; /* less their training means, in the order of the sequence */
#ifdef __cplusplus
    unsigned char present[${NAME}_GROUPS];
#else
    _Atomic unsigned char present[${NAME}_GROUPS];
#endif
} ${name}_prediction;

/* Remove every group. */
void ${name}_begin(${name}_prediction *prediction);

/* Return the number of features of a group; 0 if the group does not exist. */
size_t ${name}_width(size_t group);

/* Add the values of a group, in raw units; NAN marks a missing value, which its training mean replaces.
 * Return 0; or -1, without any change, if the group does not exist or a value is infinite or beyond 1e100. */
int ${name}_add(${name}_prediction *prediction, size_t group, const ANYTIME_REAL *values);

/* Write the prediction from the longest prefix that is complete and costs at most `budget` (INFINITY: no limit): the
 * responses, or a probability for each class. Return the number of that prefix's steps, 0 for the base rate. If the
 * budget is not a number >= 0, or the result is not finite, write the base rate and return -1. */
int ${name}_answer(${name}_prediction *prediction, double budget, ANYTIME_REAL output[${NAME}_OUTPUTS]);

#ifdef __cplusplus
}
#endif

#endif /* ${NAME}_H */

#if defined ${NAME}_IMPLEMENTATION && !defined ${NAME}_IMPLEMENTED
#define ${NAME}_IMPLEMENTED

#if defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__
#error "-ffast-math and -ffinite-math-only assume that there is no NAN, which marks a missing value"
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

/* First feature of each group, and the total; the step that adds the group. */
static const size_t ${name}_start[${NAME}_GROUPS + 1] = {
    ${group_start}
};
static const int ${name}_step[${NAME}_GROUPS] = {
    ${group_step}
};
static const ANYTIME_REAL ${name}_means[${NAME}_FEATURES] = {
    ${means}
};

/* Number of features of each prefix; index of its first coefficient (one row per feature). */
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
        atomic_store_explicit(&prediction->present[group], 0, memory_order_relaxed);
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
    atomic_store_explicit(&prediction->present[group], 1, memory_order_release);
    return 0;
}

/* The longest complete prefix: groups are in the order of their steps, so the first missing group ends it. */
static int ${name}_complete(${name}_prediction *prediction)
{
    for (size_t group = 0; group < ${NAME}_GROUPS; group++)
        if (!atomic_load_explicit(&prediction->present[group], memory_order_acquire))
            return ${name}_step[group] - 1;
    return ${NAME}_STEPS;
}

/* Write the outputs of a prefix; return whether all are finite. */
static int ${name}_outputs_of(const ${name}_prediction *prediction, int prefix, ANYTIME_REAL *output)
{
    ANYTIME_REAL scores[${name}_scores];
    const ANYTIME_REAL *coef = ${name}_coefs + ${name}_offsets[prefix];
    for (size_t r = 0; r < ${name}_scores; r++)
        scores[r] = ${name}_intercepts[(size_t)prefix * ${name}_scores + r];
    for (size_t i = 0; i < ${name}_ends[prefix]; i++)
        for (size_t r = 0; r < ${name}_scores; r++)
            scores[r] += prediction->values[i] * *coef++;
${output_code}
    int finite = 1;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        finite &= isfinite(output[r]) != 0;
    return finite;
}

int ${name}_answer(${name}_prediction *prediction, double budget, ANYTIME_REAL output[${NAME}_OUTPUTS])
{
    int prefix = ${name}_complete(prediction);
    if (budget >= 0) {
        while (prefix > 0 && ${name}_costs[prefix] > budget * (1 + 1e-9))
            prefix--;
        if (${name}_outputs_of(prediction, prefix, output))
            return prefix;
    }
    ${name}_outputs_of(prediction, 0, output);
    return -1;
}

#endif /* ${NAME}_IMPLEMENTED */
"""

OUTPUT_CODE = {
    "identity": """\
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        output[r] = scores[r];""",
    "log": """\
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        output[r] = exp(scores[r] > 500 ? 500 : scores[r]);""",
    "logit": """\
    output[1] = 1 / (1 + exp(-scores[0]));
    output[0] = 1 - output[1];""",
    "softmax": """\
    ANYTIME_REAL largest = scores[0], total = 0;
    for (size_t r = 1; r < ${NAME}_OUTPUTS; r++)
        largest = scores[r] > largest ? scores[r] : largest;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        total += output[r] = exp(scores[r] - largest);
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        output[r] /= total;""",
    "second indicator": """\
    if (!isfinite(scores[0]))
        return 0;
    output[1] = scores[0] < 0 ? 0 : scores[0] > 1 ? 1 : scores[0];
    output[0] = 1 - output[1];""",
    "indicators": """\
    ANYTIME_REAL total = 0;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        total += output[r] = scores[r] < 0 ? 0 : scores[r];
    if (!isfinite(total))
        return 0;
    for (size_t r = 0; r < ${NAME}_OUTPUTS; r++)
        output[r] = total > 0 ? output[r] / total : (ANYTIME_REAL)1 / ${NAME}_OUTPUTS;""",
}
"""C code that maps scores to outputs, by rule."""
