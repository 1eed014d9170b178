"""Every public name has a docstring in numpydoc's form, which agrees with its signature.

`python tests/test_docstrings.py` prints what is wrong with which name.
"""

import functools
import inspect
from types import ModuleType

import pytest

import scaledgd as sg

validate = pytest.importorskip("numpydoc.validate", reason="numpydoc is not installed").validate

ALWAYS = {
    "GL06": "a section that numpydoc does not know",
    "GL07": "sections in another order",
    "GL08": "no docstring",
    "SS01": "no summary",
    "SS06": "a summary of more than one line",
    "PR01": "parameters that are not documented",
    "PR02": "documented parameters that do not exist",
    "RT01": "no Returns section",
    "YD01": "no Yields section",
}
"""What must be right everywhere.

Off are GL01 to GL05 and SS02 to SS05 (layout and grammar, which ruff and readers look after; a
summary may be indicative), PR03 (most parameters are keyword-only, so their order says nothing),
PR04 (estimators refer to one another for the parameters that they share), PR05 to PR10 and RT02
to RT05 (wording of types and descriptions; a type often says all), and ES01, SA01 (sections
that are not always needed).
"""
EXAMPLES = {"EX01": "no example"}
"""What classes and functions have on top, but not methods, nor exceptions, which nobody makes."""


def defined(cls):
    """Public methods and properties of a class, from whichever of our classes they come.

    What has no docstring and overrides something that has one inherits it.
    """
    kinds = (property, functools.cached_property, classmethod, staticmethod)
    ours = [owner for owner in inspect.getmro(cls) if owner.__module__.startswith("scaledgd")]
    for k, owner in enumerate(ours):
        for name, value in vars(owner).items():
            if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, kinds)):
                continue
            inherited = any(
                vars(base)[name].__doc__ for base in ours[k + 1 :] if name in vars(base)
            )
            if value.__doc__ or not inherited:
                yield owner, name


def public():
    """Every public name with its path for numpydoc, its module, and the codes that it answers to.

    A method that several classes inherit is there once, under the class that defines it.
    """
    values = {name: getattr(sg, name) for name in sg.__all__}
    for module in [value for value in values.values() if isinstance(value, ModuleType)]:
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        short = module.__name__.rpartition(".")[2]
        values |= {f"{short}.{name}": getattr(module, name) for name in names}
    found = {}
    for name, value in values.items():
        if isinstance(value, ModuleType):
            continue
        room = value.__module__.split(".")[1]
        raised = isinstance(value, type) and issubclass(value, BaseException)
        codes = ALWAYS if raised else ALWAYS | EXAMPLES
        found[name] = (f"{value.__module__}.{value.__qualname__}", room, codes)
        if isinstance(value, type):
            for owner, method in defined(value):
                path = f"{owner.__module__}.{owner.__qualname__}.{method}"
                found[f"{owner.__qualname__}.{method}"] = (
                    path,
                    owner.__module__.split(".")[1],
                    ALWAYS,
                )
    return dict(sorted(found.items()))


PUBLIC = public()


def wrong(name):
    """What numpydoc finds, as far as we look."""
    path, _, codes = PUBLIC[name]
    return [(code, text) for code, text in validate(path)["errors"] if code in codes]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring(name):
    assert wrong(name) == []


def bad(x):
    """Say nothing about x."""
    return x


def test_what_is_looked_for_is_found():
    """The codes are numpydoc's, and a docstring that says too little has them."""
    from numpydoc.validate import ERROR_MSGS

    assert set(ALWAYS | EXAMPLES) <= set(ERROR_MSGS)
    assert {code for code, _ in validate(f"{__name__}.bad")["errors"]} >= {"PR01", "RT01", "EX01"}


if __name__ == "__main__":
    for name, (_, room, _) in PUBLIC.items():
        for code, text in wrong(name):
            print(f"{room}: {name}: {code} {text}")
