"""The HTTP server: routes that clients of other servers already speak, and Mingyue's own under /api.

`Catalog` holds the models that are served, `create_app` makes the application, `Server` runs it. Sockets belong to the
event loop, and the steps of a model to one thread of its own (`mingyue.generation.service`): they exchange requests and
events only. The extra `serve` installs what this package imports.
"""

from __future__ import annotations

from mingyue.serve.app import create_app
from mingyue.serve.catalog import Catalog
from mingyue.serve.server import Server

__all__ = ["Catalog", "Server", "create_app"]
