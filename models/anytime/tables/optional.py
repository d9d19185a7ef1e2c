"""Packages that only training needs, imported when a file asks for them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from anytime.errors import TableError

__all__ = ["required"]

_DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def required(module: str) -> Any:
    """Import a module of the `train` extra.

    Raises
    ------
    TableError
        It is not installed; the message says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        name = _DISTRIBUTIONS.get(package, package)
        raise TableError(
            f"reading this file needs {name}; install it with: pip install 'anytime-linear[train]'"
        ) from error
