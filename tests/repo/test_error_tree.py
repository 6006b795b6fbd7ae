"""Every exception of the package hangs on one tree."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import cloister
from cloister.errors import CloisterError


def test_every_exception_derives_from_the_one_root() -> None:
    found = exceptions_of_the_package()
    assert CloisterError in found
    strays = [name_of(kind) for kind in found if not issubclass(kind, CloisterError)]
    assert not strays


def test_every_exception_says_in_a_docstring_whose_move_it_is() -> None:
    silent = [name_of(kind) for kind in exceptions_of_the_package() if not kind.__dict__["__doc__"]]
    assert not silent


def exceptions_of_the_package() -> set[type[BaseException]]:
    return {
        member
        for module in modules()
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, BaseException) and member.__module__.startswith("cloister.")
    }


def modules() -> list[ModuleType]:
    names = [found.name for found in pkgutil.walk_packages(cloister.__path__, "cloister.")]
    # Importing a __main__ would run it.
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def name_of(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
