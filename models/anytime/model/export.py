"""Export of a model as text, for programs and devices without this library: a JSON document or a C header.

*The document* has everything that predictions from prefixes need. Features are the raw columns. A prefix has

    scores = intercept + (t - mean) @ coef,

where t is the terms of its first `features` features, in the order of the document. A feature without `terms` is its
own only term; true and false count as 1 and 0. Otherwise its value u moves to the nearest end of its `range`, if it has
one, but for "month", "weekday" and "hour", and each of its terms has a `form`:

- "value": u; "hinge": max(u - knot, 0); "power": ((u - centre) / scale) ** power
- "level": 1 if u is `level`, otherwise 0. Two numbers are the same if their float32 forms are equal; where the form of
  `level` is below 2^-126 or from 2^24 up in size, only if they are equal
- "other": 1 if u is the level of no term of the feature, otherwise 0
- "sine", "cosine": those of 2 pi u / `period`
- "month", "weekday", "hour": 1 if that part of the date u is `level`, otherwise 0; a weekday is 0 for Monday to 6
- "missing": 1 if u is missing, otherwise 0

A feature with `date: true` has dates as values: seconds since 1970 UTC, or a text in ISO form; a time without a zone is
UTC.

A missing value makes "missing" 1, and replaces every other term by its mean. A feature with `categories: true` has
categories as values. A category that is the level of no term counts as missing where there is no term "other".

A feature with a `pair` has no value: its terms are products of `factors`, forms of the two features with the indices in
`pair`, both of them in or before its step: "level", or "ramp": min(max(u, knot), end) - knot. A missing value of either
replaces every term by its mean.

The library answers from the longest prefix whose groups have all arrived and whose cost is at most the budget, plus one
part in 1e9, because costs are sums. Under its policy "best", the prefix `best` of that one answers, whose
cross-validated error is less by one standard error; it is null where errors are unknown. `link` maps scores to
predictions: "identity", "logit", "softmax", or "log", where scores above 500 count as 500. For classes with the link
"identity", scores are least-squares estimates of indicators: clip them at 0 and scale them to sum to 1 (equal shares if
none is positive). A single score, with this link or with "logit", is that of the second of two classes.

*The header* has declarations for C and C++, and their definitions for one file of C11. A program uses it as
`anytime.inference.prediction` is used for one row: it begins, adds groups as they are computed, and gets an answer at
any time. The code allocates nothing and searches nothing, so an answer from the longest prefix takes the most time.
Values are raw, and a category is the index of its level.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain
from string import Template
from typing import Any

import numpy as np

from anytime.errors import ArtifactError
from anytime.families import family_of
from anytime.features.operations import VALUE
from anytime.model.model import GroupPosition, Model, ProductPosition
from anytime.types import Float, Label

WIDTH = 118
"""Maximum length of the lines of numbers in C."""

PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\?')
"""Bytes that a C string literal needs no escape for."""


def document(model: Model) -> dict[str, Any]:
    """Return the document of a model; every number is finite.

    Groups are in the order of the sequence and include those without features. A cost is per row, in a call with `rows`
    rows where that is stated; a group with a `fixed` part states its `per_row` part too. A group is complete with
    prefix `step`. Its features are those from `start` to before `stop`. `coef` of a prefix has a row for each term of
    its features, and a column for each score.
    """
    manifest, prefixes = model.manifest, model.prefixes
    groups: list[dict[str, Any]] = []
    features: list[dict[str, Any]] = []
    starts: dict[str, int] = {}
    complete = [0]
    for step, record in enumerate(manifest.steps, start=1):
        for name in record.adds:
            index = model.groups.positions[name]
            group = model.groups.groups[index]
            starts[name] = len(features)
            if name in model.places:
                features += _features(model.places[name])
            groups.append(
                {
                    "name": name,
                    "cost": float(model.groups.costs[index]),
                    **(group.call_cost.model_dump() if group.call_cost.fixed else {}),
                    "requires": list(group.requires),
                    "step": step,
                    "start": starts[name],
                    "stop": len(features),
                }
            )
        features += chain.from_iterable(_pairs(each, starts) for each in model.product_places if each.step == step)
        complete.append(len(features))
    return {
        "export": 2,  # version of this form
        "model": model.name,
        "version": model.version,
        "task": manifest.task,
        "family": manifest.family,
        "link": manifest.link,
        "responses": list(manifest.responses),
        "classes": None if manifest.classes is None else list(manifest.classes),
        "cost_unit": model.groups.cost_unit,
        **({} if model.groups.rows is None else {"rows": model.groups.rows}),
        "features": features,
        "groups": groups,
        "prefixes": [
            {
                "cost": float(model.costs[prefix]),
                "cv_error": model.expected(prefix).cv_error,
                "best": None if model.best is None else model.best[prefix],
                "features": complete[prefix],
                "intercept": prefixes.intercept_of(prefix).tolist(),
                "coef": prefixes.coef(prefix).tolist(),
            }
            for prefix in range(model.steps + 1)
        ],
    }


def _features(place: GroupPosition) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for column, (start, stop) in zip(place.expansion.columns, place.expansion.spans, strict=True):
        means = place.mean[start:stop].tolist()
        if column.is_linear:
            found.append({"name": column.name, "mean": means[0]})
            continue
        terms = [
            {"name": column.name + term.suffix, "mean": mean, **term.document}
            for mean, term in zip(means, column.terms, strict=True)
        ]
        kind = {"range": column.range, "categories": column.levels is not None}
        date = {"date": True} if column.type == "date" else {}
        found.append({"name": column.name, **kind, **date, "terms": terms})
    return found


def _pairs(place: ProductPosition, starts: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the pairs of a position in the document's form; `starts` are the first features of the groups."""
    means = iter(place.mean.tolist())
    for each, (a, i), (b, j) in place.products:
        terms = [
            {"name": name, "mean": mean, "factors": [one.document, other.document]}
            for (one, other), name, mean in zip(each.factors, each.terms, means, strict=False)
        ]
        yield {
            "name": " * ".join(side.name for side in each.sides),
            "pair": [starts[a] + i, starts[b] + j],
            "terms": terms,
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
    starts = [0, *accumulate(len(place.features) for place in places.values())]
    errors = [model.expected(prefix).cv_error for prefix in range(model.steps + 1)]
    values = {
        "name": name,
        "NAME": name.upper(),
        "HASH": model.version.upper() or "NOT_SAVED",
        "version": _string(model.version),
        "model": _string(model.name),
        "unit": _string(model.groups.cost_unit),
        "steps": model.steps,
        "features": starts[-1],
        "terms": len(prefixes.columns),
        "groups": len(places),
        "scores": scores,
        "outputs": len(labels),
        "group_ids": _lines(f"{name.upper()}_GROUP_{constants[place]}" for place in places),
        "group_names": _lines(map(_string, places)),
        "output_names": _lines(_string(_text(label)) for label in labels),
        "group_start": _lines(map(str, starts)),
        "group_step": _lines(str(place.step) for place in places.values()),
        "means": _numbers(prefixes.mean[prefixes.columns]),
        "costs": _numbers(model.costs),
        "per_row": f", per row {model.groups.shared_by}" if model.groups.shared_by else "",
        "cv_errors": _lines("NAN" if error is None else repr(error) for error in errors),
        "best": _lines(map(str, model.best or range(model.steps + 1))),
        "ends": _lines(map(str, prefixes.ends.tolist())),
        "offsets": _lines(map(str, (prefixes.offsets[:-1] * scores).tolist())),
        "intercepts": _numbers(np.stack([prefixes.intercept_of(prefix) for prefix in range(model.steps + 1)])),
        "coefs": _numbers(prefixes.packed),
    }
    parts = {"declared": "", "inputs": "", "defined": "", "expanded": C_LINEAR, "category": "", "products": ""}
    kept, checked, below = "", "", "${name}_lows[feature]"
    if not model.expansion.is_identity:
        values |= _c_terms(name, list(places.values()), len(prefixes.columns))
        parts["defined"] = C_TERMS
        if values["levels"]:
            parts |= {"declared": C_LEVELS, "defined": C_LEVEL_TABLES + C_TERMS, "category": C_CATEGORY}
            checked, below = C_CHECKED, C_BELOW
        if model.product_places:
            values["pairs"] = _c_pairs(model, starts)
            parts |= {"inputs": C_INPUTS, "defined": parts["defined"] + C_PAIRS, "products": C_PRODUCTS}
            kept = "\n        prediction->inputs[feature] = u;"
        parts["expanded"] = checked + C_EXPANDED.replace("${below}", below).replace("${kept}", kept)
    parts["output_code"] = family_of(manifest.family).output_code(manifest.classes is not None, scores)
    return Template(C_HEADER).substitute(values | {key: Template(t).substitute(values) for key, t in parts.items()})


def _c_pairs(model: Model, starts: list[int]) -> str:
    """Return the table of the products in C; `starts` are the first features of the groups in the sequence."""
    group = {name: index for index, name in enumerate(model.places)}
    rows = []
    for place in model.product_places:
        term = place.start
        for each, (a, i), (b, j) in place.products:
            g, h = group[a], group[b]
            for one, other in each.factors:
                codes = f"{{{one.code}, {other.code}}}"
                numbers = f"{codes}, {{{one.a!r}, {other.a!r}}}, {{{one.b!r}, {other.b!r}}}"
                rows.append(f"{{{term}, {{{g}, {h}}}, {{{starts[g] + i}, {starts[h] + j}}}, {numbers}}}")
                term += 1
    return ",\n    ".join(rows)


def _c_terms(name: str, places: list[GroupPosition], size: int) -> dict[str, str | int]:
    columns = [column for place in places for column in place.expansion.columns]
    spans = [(place.start + a, place.start + b) for place in places for a, b in place.expansion.spans]
    levels = [() if column.levels is None else column.levels.labels for column in columns]
    ranges = [
        column.range if (known := column.levels) is None else (-1.0 if known.other else 0.0, len(known.labels) - 1.0)
        for column in columns
    ]
    each = [VALUE] * size
    for (start, stop), column in zip(spans, columns, strict=True):
        each[start:stop] = column.terms
    codes = [term.code for term in each]
    # The expressions of bases have codes of their own, from -3 down.
    expressions = {
        code: -3 - k for k, code in enumerate(dict.fromkeys(code for code in codes if isinstance(code, str)))
    }
    cases = (f"\n    case {number}:\n        return {code};" for code, number in expressions.items())
    return {
        "helpers": "".join(dict.fromkeys(term.operation.helper for term in each)).replace("NAME", name),
        "cases": "".join(cases).replace("NAME", name),
        "levels": sum(map(len, levels)),
        "level_names": _lines([*(_string(_text(level)) for level in chain.from_iterable(levels)), "NULL"]),
        "level_start": _lines(map(str, [0, *accumulate(map(len, levels))])),
        "term_start": _lines(str(start) for start, _ in spans),
        "term_stop": _lines(str(stop) for _, stop in spans),
        "lows": _lines("-INFINITY" if ends is None else repr(ends[0]) for ends in ranges),
        "highs": _lines("INFINITY" if ends is None else repr(ends[1]) for ends in ranges),
        "codes": _lines(str(expressions[code] if isinstance(code, str) else code) for code in codes),
        "as": _lines(repr(float(term.a)) for term in each),
        "bs": _lines(repr(float(term.b)) for term in each),
    }


def _word(text: str) -> str:
    """Return a name in upper-case letters, digits and single underscores."""
    return re.sub(r"[^0-9A-Z]+", "_", text.upper()).strip("_")


def _constants(names: Iterable[str]) -> dict[str, str]:
    """Return a unique C word for each name, in the order of the groups file; repeated words get a number appended."""
    found: dict[str, str] = {}
    times: Counter[str] = Counter()
    for name in names:
        word = one = _word(name) or "UNNAMED"
        times[word] += 1
        while one in found:
            one = f"{word}_{times[word]}"
            times[word] += 1
        found[one] = name
    return {name: one for one, name in found.items()}


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
 * Define ANYTIME_REAL as float in every file to compute in single precision; files that differ do not link. Do not use
 * -ffast-math: it ignores NAN.
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

/* The names for the linker end with the type, so that files with different types do not link. */
#define ANYTIME_JOINED(name, real) name##_##real
#define ANYTIME_TYPED(name, real) ANYTIME_JOINED(name, real)
#define ${name}_begin ANYTIME_TYPED(${name}_begin, ANYTIME_REAL)
#define ${name}_add ANYTIME_TYPED(${name}_add, ANYTIME_REAL)
#define ${name}_answer ANYTIME_TYPED(${name}_answer, ANYTIME_REAL)
#define ${name}_answer_best ANYTIME_TYPED(${name}_answer_best, ANYTIME_REAL)

#define ${NAME}_STEPS ${steps}
#define ${NAME}_FEATURES ${features}
#define ${NAME}_TERMS ${terms}
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

/* Cost of each prefix${per_row}, the base rate first. */
extern const double ${name}_costs[${NAME}_STEPS + 1];

/* Cross-validated error of each prefix in training, NAN if unknown: the mean square of least squares, in squared units
 * of the target, or the mean deviance of the other families. */
extern const double ${name}_cv_errors[${NAME}_STEPS + 1];
${declared}
typedef struct {
    ANYTIME_REAL values[${NAME}_TERMS]; /* less their training means, in the order of the sequence */${inputs}
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

/* Add the values of a group, in raw units; NAN marks a missing value, which its training mean replaces.${category}
 * Return 0; or -1, without any change, if the group does not exist or a value is infinite or beyond 1e100. */
int ${name}_add(${name}_prediction *prediction, size_t group, const ANYTIME_REAL *values);

/* Write the prediction from the longest prefix that is complete and costs at most `budget` (INFINITY: no limit): the
 * responses, or a probability for each class. Return the number of that prefix's steps, 0 for the base rate. If the
 * budget is not a number >= 0, or the result is not finite, write the base rate and return -1. */
int ${name}_answer(${name}_prediction *prediction, double budget, ANYTIME_REAL output[${NAME}_OUTPUTS]);

/* As `answer`, from the prefix of least cross-validated error within that one, where it is better by one standard
 * error; a model without such errors answers as `answer`. */
int ${name}_answer_best(${name}_prediction *prediction, double budget, ANYTIME_REAL output[${NAME}_OUTPUTS]);

#ifdef __cplusplus
}
#endif

#endif /* ${NAME}_H */

#if defined ${NAME}_IMPLEMENTATION && !defined ${NAME}_IMPLEMENTED
#define ${NAME}_IMPLEMENTED

#ifdef __cplusplus
#error "${NAME}_IMPLEMENTATION needs a C11 file, not C++; link the two"
#endif
#if defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__
#error "-ffast-math and -ffinite-math-only assume that there is no NAN, which marks a missing value"
#endif

#include <stdatomic.h>
#include <string.h>
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
const double ${name}_cv_errors[${NAME}_STEPS + 1] = {
    ${cv_errors}
};

enum { ${name}_scores = ${scores} };

/* First feature of each group, and the total; the step that adds the group. */
static const size_t ${name}_start[${NAME}_GROUPS + 1] = {
    ${group_start}
};
static const int ${name}_step[${NAME}_GROUPS] = {
    ${group_step}
};
static const ANYTIME_REAL ${name}_means[${NAME}_TERMS] = {
    ${means}
};
${defined}
/* Number of terms of each prefix; index of its first coefficient (one row per term). */
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
${expanded}${products}
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

/* The prefix that answers under the policy "best" when each prefix is the longest complete one. */
static const int ${name}_best[${NAME}_STEPS + 1] = {
    ${best}
};

static int ${name}_answer_within(${name}_prediction *prediction, double budget, ANYTIME_REAL *output, const int *best)
{
    int prefix = ${name}_complete(prediction);
    if (budget >= 0) {
        while (prefix > 0 && ${name}_costs[prefix] > budget * (1 + 1e-9))
            prefix--;
        if (best)
            prefix = best[prefix];
        if (${name}_outputs_of(prediction, prefix, output))
            return prefix;
    }
    ${name}_outputs_of(prediction, 0, output);
    return -1;
}

int ${name}_answer(${name}_prediction *prediction, double budget, ANYTIME_REAL output[${NAME}_OUTPUTS])
{
    return ${name}_answer_within(prediction, budget, output, NULL);
}

int ${name}_answer_best(${name}_prediction *prediction, double budget, ANYTIME_REAL output[${NAME}_OUTPUTS])
{
    return ${name}_answer_within(prediction, budget, output, ${name}_best);
}

#endif /* ${NAME}_IMPLEMENTED */
"""

C_LINEAR = """\
    for (size_t i = 0; i < width; i++) {
        const size_t place = ${name}_start[group] + i;
        prediction->values[place] = isnan(values[i]) ? 0 : values[i] - ${name}_means[place];
    }"""
"""C code that stores the values of a group whose features are their own only terms."""

C_LEVELS = """
/* Number of levels of all features; their names in UTF-8, then NULL; the first level of each feature, and the total. */
#define ${NAME}_LEVELS ${levels}
extern const char *const ${name}_levels[${NAME}_LEVELS + 1];
extern const size_t ${name}_level_start[${NAME}_FEATURES + 1];

/* Return the value of a category for `add`, given its name and the place of its feature in the group: the index of the
 * level, or -1, which stands for every category that is not a level. */
int ${name}_level(size_t group, size_t feature, const char *category);
"""

C_CATEGORY = """
 * A category is the index of its level, or -1, as ${name}_level returns it; any other number of it is refused."""

C_LEVEL_TABLES = """
const char *const ${name}_levels[${NAME}_LEVELS + 1] = {
    ${level_names}
};
const size_t ${name}_level_start[${NAME}_FEATURES + 1] = {
    ${level_start}
};

int ${name}_level(size_t group, size_t feature, const char *category)
{
    if (group >= ${NAME}_GROUPS || feature >= ${name}_start[group + 1] - ${name}_start[group])
        return -1;
    const size_t *start = ${name}_level_start + ${name}_start[group] + feature;
    for (size_t level = start[0]; level < start[1]; level++)
        if (!strcmp(${name}_levels[level], category))
            return (int)(level - start[0]);
    return -1;
}
"""
"""C tables and the function of a model with categories."""

C_TERMS = """
/* First term of each feature and the one after its last; the range that its values move to, or the valid indices of its
 * levels. */
static const size_t ${name}_term_start[${NAME}_FEATURES] = {
    ${term_start}
};
static const size_t ${name}_term_stop[${NAME}_FEATURES] = {
    ${term_stop}
};
static const ANYTIME_REAL ${name}_lows[${NAME}_FEATURES] = {
    ${lows}
};
static const ANYTIME_REAL ${name}_highs[${NAME}_FEATURES] = {
    ${highs}
};

/* What a term is of the value u, by its code: k > 0, ((u - a) / b) to the power k; 0, the larger of u - a and 0; -1,
 * whether u is a, in float or in double; -2, whether u is missing; others as below. */
static const signed char ${name}_codes[${NAME}_TERMS] = {
    ${codes}
};
static const ANYTIME_REAL ${name}_as[${NAME}_TERMS] = {
    ${as}
};
static const ANYTIME_REAL ${name}_bs[${NAME}_TERMS] = {
    ${bs}
};
${helpers}
/* Return a term of a value that is not missing. */
static ANYTIME_REAL ${name}_term(size_t term, ANYTIME_REAL u, ANYTIME_REAL raw)
{
    const ANYTIME_REAL a = ${name}_as[term], b = ${name}_bs[term], z = (u - a) / b;
    const float single = (float)a;
    ANYTIME_REAL power = z;
    (void)raw;
    switch (${name}_codes[term]) {
    case -2:
        return 0;
    case -1:
        return fabsf(single) >= 0x1p-126f && fabsf(single) < 0x1p24f ? (float)u == single : u == a;
    case 0:
        return u > a ? u - a : 0;${cases}
    }
    for (int k = 1; k < ${name}_codes[term]; k++)
        power *= z;
    return power;
}
"""
"""C tables and functions of a model with other terms than values."""

C_CHECKED = """\
    for (size_t i = 0; i < width; i++) {
        const size_t feature = ${name}_start[group] + i, *level = ${name}_level_start + feature;
        if (level[1] > level[0] && !isnan(values[i])
            && !(values[i] >= -1 && values[i] <= ${name}_highs[feature] && floor(values[i]) == values[i]))
            return -1;
    }
"""
"""C code that refuses an index that no level has."""

C_BELOW = "${name}_level_start[feature + 1] > ${name}_level_start[feature] ? (ANYTIME_REAL)NAN : ${name}_lows[feature]"
"""C code for a value below its range: a category that no term has counts as missing."""

C_EXPANDED = """\
    for (size_t i = 0; i < width; i++) {
        const size_t feature = ${name}_start[group] + i;
        ANYTIME_REAL u = values[i] > ${name}_highs[feature] ? ${name}_highs[feature] : values[i];
        if (u < ${name}_lows[feature])
            u = ${below};
        for (size_t term = ${name}_term_start[feature]; term < ${name}_term_stop[feature]; term++)
            prediction->values[term] = !isnan(u) ? ${name}_term(term, u, values[i]) - ${name}_means[term]
                                                 : ${name}_codes[term] == -2 ? 1 - ${name}_means[term] : 0;${kept}
    }"""
"""C code that stores the terms of a group."""

C_INPUTS = """
    ANYTIME_REAL inputs[${NAME}_FEATURES]; /* values that products need, NAN if missing */"""

C_PAIRS = """
/* Products: their term, and the group and feature of each factor; its code, 0 for the distance from a to u, at most to
 * b, or -1 for whether u is a. */
static const struct {
    size_t term, groups[2], features[2];
    signed char codes[2];
    ANYTIME_REAL as[2], bs[2];
} ${name}_pairs[] = {
    ${pairs}
};

static ANYTIME_REAL ${name}_factor(size_t pair, int side, ANYTIME_REAL u)
{
    const ANYTIME_REAL a = ${name}_pairs[pair].as[side], b = ${name}_pairs[pair].bs[side];
    return ${name}_pairs[pair].codes[side] ? u == a : u < a ? 0 : (u > b ? b : u) - a;
}
"""
"""C tables and functions of a model with pairs."""

C_PRODUCTS = """
    for (size_t p = 0; p < sizeof ${name}_pairs / sizeof *${name}_pairs; p++) {
        const size_t *of = ${name}_pairs[p].groups, term = ${name}_pairs[p].term;
        if ((of[0] != group && of[1] != group)
            || (of[0] != group && !atomic_load_explicit(&prediction->present[of[0]], memory_order_relaxed))
            || (of[1] != group && !atomic_load_explicit(&prediction->present[of[1]], memory_order_relaxed)))
            continue;
        const ANYTIME_REAL u = prediction->inputs[${name}_pairs[p].features[0]];
        const ANYTIME_REAL v = prediction->inputs[${name}_pairs[p].features[1]];
        prediction->values[term] = isnan(u) || isnan(v)
            ? 0
            : ${name}_factor(p, 0, u) * ${name}_factor(p, 1, v) - ${name}_means[term];
    }"""
"""C code that stores the products that a group completes."""


@dataclass(frozen=True)
class Export:
    """A form of models as text: the suffix of its files, and the function that writes it."""

    suffix: str
    text: Callable[[Model], str]


EXPORTS: dict[str, Export] = {
    "json": Export(".json", lambda model: json.dumps(document(model), allow_nan=False) + "\n"),
    "c": Export(".h", c_source),
}
"""Every form by its name on the command line."""
