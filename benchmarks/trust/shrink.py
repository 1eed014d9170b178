"""Find the smallest case that fails like another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from .instances import REGRESSORS, Recipe

Verdict = Callable[[Recipe], dict[str, Any]]

MOST = 60
"""Cases that are tried at most."""


def simpler(recipe: Recipe) -> Iterator[Recipe]:
    """Yield simpler recipes that differ in one field; large steps first."""
    usual = Recipe()
    for name in recipe.options:
        if name != "random_state" and not (name == "center" and "non_negative" in recipe.options):
            less = {k: v for k, v in recipe.options.items() if k != name}
            yield replace(recipe, options=less)
    for field in fields(recipe):
        name = field.name
        if name in ("estimator", "options", "seed", "shape", "rank"):
            continue
        if getattr(recipe, name) != getattr(usual, name) and name != "seen":
            yield replace(recipe, **{name: getattr(usual, name)})
    if recipe.rank > 1:
        yield replace(recipe, rank=1)
        yield replace(recipe, rank=recipe.rank - 1)
    for share in (2, 4 / 3, 1):
        for k, n in enumerate(recipe.shape):
            less_n = max(1, min(n - 1, int(n / share)))
            shape = tuple(less_n if j == k else m for j, m in enumerate(recipe.shape))
            if n > 1 and (min(shape) >= recipe.rank or recipe.estimator in REGRESSORS):
                yield replace(recipe, shape=shape)
    if recipe.seen < 1:
        yield replace(recipe, seen=1.0)
        yield replace(recipe, seen=round(min(1.0, recipe.seen + 0.2), 2))
    for name in ("noise", "offset", "seen"):
        value = getattr(recipe, name)
        rounded = float(f"{value:.1g}")
        if rounded != value:
            yield replace(recipe, **{name: rounded})


def shrunk(recipe: Recipe, verdict: Verdict, most: int = MOST) -> tuple[Recipe, dict[str, Any]]:
    """Return the simplest case found that fails like a recipe, and its result.

    Parameters
    ----------
    recipe : Recipe
    verdict : callable
        Returns the result of a recipe.
    most : int
        Cases that are tried at most.
    """
    found = verdict(recipe)
    wanted = set(found["failures"])
    if not wanted:
        return recipe, found
    tried, again = 0, True
    while again and tried < most:
        again = False
        for other in simpler(recipe):
            if tried >= most:
                break
            tried += 1
            this = verdict(other)
            if wanted & set(this["failures"]):
                recipe, found, again = other, this, True
                break
    return recipe, found
