"""What the OpenAPI document says is what the server does."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_schemathesis_finds_nothing(server, tmp_path):
    """Bounded, and always the same requests. What is as described may still be too much, or not fit the model: 400."""
    pytest.importorskip("schemathesis")
    (tmp_path / "schemathesis.toml").write_text(
        '[checks.positive_data_acceptance]\nexpected-statuses = ["2xx", 400, 401, 403, 404, 413, 415, 429, 503]\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json"]
    options = [
        "--max-examples",
        "8",
        "--seed",
        "1",
        "--phases",
        "examples,coverage,fuzzing",
        "--generation-database",
        "none",
    ]
    found = subprocess.run(
        [*command, *options, "--no-color", "--request-timeout", "30"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=280,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
