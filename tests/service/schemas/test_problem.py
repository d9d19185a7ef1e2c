"""Every error of the service is a kind of problem: a slug, a title and a status."""

from __future__ import annotations

import inspect
from http import HTTPStatus

import msgspec

from anytime.errors import AnytimeError
from anytime_service import errors
from anytime_service.schemas.problem import KINDS, Problem

OF_THE_START = (errors.AddressError, errors.CertificateError, errors.KeysError)
"""Errors before the server serves: no client receives them."""


def test_every_error_that_a_client_may_receive_has_a_kind() -> None:
    every = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, AnytimeError)}
    for cls in every - {AnytimeError, errors.SessionError}:
        assert any(base in KINDS for base in cls.__mro__) != (cls in OF_THE_START), cls.__name__


def test_a_slug_has_one_status() -> None:
    statuses: dict[str, set[int]] = {}
    for kind in KINDS.values():
        statuses.setdefault(kind.slug, set()).add(kind.status)
        assert 400 <= HTTPStatus(kind.status) <= 503
    assert {len(each) for each in statuses.values()} == {1}


def test_a_problem_omits_what_is_unknown() -> None:
    problem = Problem("urn:anytime:problem:x", "X", 400, "why")
    assert msgspec.json.decode(msgspec.json.encode(problem)).keys() == {"type", "title", "status", "detail"}
