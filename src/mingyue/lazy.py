"""Packages whose names are imported when they are first used, so that a command imports only what it needs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `homes` has the names of each of its modules, or of modules elsewhere."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:  # noqa: ANN401
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of[name]
        state = random.getstate()  # some libraries draw numbers when they are imported
        try:
            return getattr(import_module(home if home.startswith("mingyue.") else f"{package}.{home}"), name)
        finally:
            random.setstate(state)

    return find
