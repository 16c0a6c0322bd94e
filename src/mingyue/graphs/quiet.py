"""onnxruntime without its telemetry: nothing is sent, and nothing is written into the user's folders."""

from __future__ import annotations

import os
import sys
from types import ModuleType

_SWITCH = "ORT_DISABLE_TELEMETRY"


def import_onnxruntime() -> ModuleType:
    """The package onnxruntime. Raises `ImportError` where it is missing.

    Its builds collect events from the moment of their import (a device id and a database in the cache folder, uploads)
    unless an environment variable says not to; it is set for the import alone. Where the caller had imported it before,
    only the events from now on can be switched off.
    """
    if "onnxruntime" in sys.modules:
        return _quiet()
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "1"
    try:
        return _quiet()
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def _quiet() -> ModuleType:
    import onnxruntime

    switch_off = getattr(onnxruntime, "disable_telemetry_events", None)
    if switch_off is not None:
        switch_off()
    return onnxruntime
