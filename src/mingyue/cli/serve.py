"""`mingyue serve`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from mingyue.cli.invocation import OK
from mingyue.cli.options import COMMAND_LINE, takes
from mingyue.cli.screen import print_note, write
from mingyue.config import ServeSettings
from mingyue.errors import MissingExtraError, SettingsError
from mingyue.words import tr

_MODELS = "Run folders or model folders; a request names a model by the name of its folder."
_KEY = "MINGYUE_API_KEY"
_LAST_SECONDS = 0.5


@takes(ServeSettings)
def serve(
    *models: Annotated[str, Parameter(help=_MODELS)],
    **given: Any,  # noqa: ANN401  (values of ServeSettings, checked there)
) -> None:
    """Serve models over HTTP: the OpenAI API, LibreTranslate's, and views, scores and runs under /api.

    mingyue serve runs/poems

    mingyue serve runs/poems runs/en-de --port 8080

    Ctrl-C or SIGTERM: requests in progress are completed, new ones refused.
    """
    if not models:
        raise SettingsError(
            tr("there is no model to serve"), advice=tr("Give the folder of one: mingyue serve runs/demo")
        )
    if "api_key" not in given and (key := os.environ.get(_KEY)) is not None:
        if not key:
            raise SettingsError(
                tr("{name} is set, but empty", _KEY), advice=tr("Give it a key, or unset it for a server without one.")
            )
        given["api_key"] = key
    settings = ServeSettings.read(given, source=COMMAND_LINE)
    try:
        import fastapi as _fastapi
        import prometheus_client as _prometheus
        import uvicorn as _uvicorn
    except ImportError as error:
        raise MissingExtraError(
            tr("{package} is not installed", error.name), advice=tr("Install it: pip install 'mingyue[serve]'")
        ) from None
    del _fastapi, _prometheus, _uvicorn

    from mingyue.serve import Catalog, Server

    catalog = Catalog.open(models, settings)
    try:
        server = Server(catalog, settings)
    except BaseException:
        catalog.close(0.0)
        raise
    for one in catalog.models.values():
        for note in one.model.loading_notes:
            print_note(note)
    if settings.host not in ("127.0.0.1", "::1", "localhost") and settings.api_key is None:
        print_note(tr("Everyone who reaches this address can use the server: there is no --api-key."))
    write(tr("Serving {names} at {url}. Stop with Ctrl-C.\n", ", ".join(catalog.models), server.url))
    server.run(lambda n: print_note(tr("Stopping. Requests in progress: {n}. Press Ctrl-C again to end now.", n)))
    if not server.backend.is_idle_within(_LAST_SECONDS):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(OK)  # Python would wait for a computation that nobody waits for, and that cannot be stopped
