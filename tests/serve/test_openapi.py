"""What the OpenAPI document says is what the server does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

PATHS = {
    "/v1/completions": {"post"},
    "/v1/chat/completions": {"post"},
    "/v1/embeddings": {"post"},
    "/v1/models": {"get"},
    "/v1/models/{model}": {"get"},
    "/tokenize": {"post"},
    "/detokenize": {"post"},
    "/tokenizer_info": {"get"},
    "/health": {"get"},
    "/version": {"get"},
    "/metrics": {"get"},
    "/translate": {"post"},
    "/languages": {"get"},
    "/api/score": {"post"},
    "/api/runs": {"get"},
    "/api/runs/{model}/metrics": {"get"},
    "/api/runs/{model}/curves": {"get"},
    "/api/claims": {"get"},
    "/api/claims/{name}": {"get"},
}


def test_every_route_is_described(client):
    document = client.get("/openapi.json").json()
    found = {path: set(methods) for path, methods in document["paths"].items() if not path.startswith("/api/inspect/")}
    assert found == PATHS
    for methods in document["paths"].values():
        for operation in methods.values():
            assert {"200", "4XX"} <= set(operation["responses"]) and "422" not in operation["responses"]
    assert "securitySchemes" not in document["components"]


def test_the_key_is_described_where_there_is_one(serving):
    with serving("plain", api_key="secret") as server:
        document = httpx.get(server.url + "/openapi.json", headers={"Authorization": "Bearer secret"}).json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["paths"]["/health"]["get"]["security"] == []
    assert document["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]


CONFIGURATION = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 401, 403, 404, 413, 415, 429, 503]

[checks.negative_data_rejection]
expected-statuses = ["4xx"]
"""
"""What is as described may still be too much, or not fit the model (400)."""


def schemathesis(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it, bounded, and always with the same requests."""
    (folder / "schemathesis.toml").write_text(CONFIGURATION, encoding="utf-8")
    command = [sys.executable, "-m", "schemathesis.cli", "run", url + "/openapi.json", "--seed", "1", "--no-color"]
    return subprocess.run(
        [*command, "--generation-database", "none", "--request-timeout", "30", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=290,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )


def test_schemathesis_finds_nothing(server, tmp_path):
    """A few requests to each of the routes that clients of others use; the slow test has many, to every route."""
    pytest.importorskip("schemathesis")
    routes = ("--exclude-path-regex", "/api/inspect/.*")
    found = schemathesis(server.url, tmp_path, *routes, "--phases", "fuzzing", "--max-examples", "5")
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]


@pytest.mark.slow
def test_schemathesis_finds_nothing_on_any_route(server, tmp_path):
    pytest.importorskip("schemathesis")
    found = schemathesis(server.url, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "10")
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
