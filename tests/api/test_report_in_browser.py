"""A report in a browser without a network: small, soon there, and everything on it is drawn."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mingyue
from mingyue.bundle import save_bundle
from mingyue.config import ModelConfig
from mingyue.models import build_model
from mingyue.text import train_char

pytest.importorskip("vl_convert", reason="extra `plot` is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or os.name == "nt", reason="there is no Chromium here, or no POSIX pipe"),
]
MOST_MB, MOST_SECONDS = 12, 2.0
TEXT = "".join(chr(0x4E00 + 7 * number) for number in range(120)) + "明月光明月光明月"

# In the page: when the first piece of text was coloured and painted; complaints; what is drawn in the end.
_PROBE = """
window.seen = {errors: []};
addEventListener("error", event => seen.errors.push(event.message));
addEventListener("unhandledrejection", event => seen.errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", event => seen.errors.push("blocked " + event.blockedURI));
const look = setInterval(() => {
  const chart = document.querySelector("main:not([hidden]) .marks [style]");
  const paints = performance.getEntriesByType("paint");
  if (!chart || !paints.length || document.readyState !== "complete") return;
  clearInterval(look);
  seen.painted = Math.max(...paints.map(paint => paint.startTime));
  dispatchEvent(new Event("beforeprint"));
  setTimeout(() => {
    const main = document.querySelector("main:not([hidden])");
    seen.canvases = main.querySelectorAll("canvas").length;
    seen.pictures = main.querySelectorAll("svg").length;
    const places = [...main.querySelectorAll(".vega, .matrix, .matrix-grid")];
    seen.waiting = places.filter(place => !place.dataset.drawn).length;
    seen.done = true;
  }, 1500);
}, 5);
"""
# A browser reads commands from 3 and writes answers to 4.
_CONNECT = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A headless Chromium that is told what to do through a pipe, and can reach nothing but files."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        options = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}", "--window-size=1280,900", "--remote-debugging-pipe", "about:blank",
        )  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CONNECT, str(commands), str(answers), CHROMIUM, *options],
            pass_fds=(commands, answers), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._number, self._held = 0, b""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def ask(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Send a command and wait for its answer, for half a minute at most."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 30
        while True:
            while b"\0" in self._held:
                one, self._held = self._held.split(b"\0", 1)
                answer = json.loads(one)
                if answer.get("id") == self._number:
                    assert "error" not in answer, answer
                    return answer["result"]
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no answer to {method}"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser is gone"
            self._held += data

    def open(self, page: Path, probe: str) -> dict[str, Any]:
        """What `probe` has found on a page when it says that it is done."""
        self.ask("Page.enable", self._session)
        self.ask("Page.addScriptToEvaluateOnNewDocument", self._session, source=probe)
        self.ask("Page.navigate", self._session, url=page.as_uri())
        end = time.monotonic() + 30
        while time.monotonic() < end:
            time.sleep(0.3)
            value = self.ask("Runtime.evaluate", self._session, expression="JSON.stringify(window.seen)")["result"]
            found = json.loads(value.get("value", "{}"))
            if found.get("done"):
                return found
        raise AssertionError(f"the page was not done in half a minute: {found}")

    def close(self) -> None:
        """End it and its helpers."""
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    one = Browser(tmp_path / "profile")
    yield one
    one.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 128 characters in a model of 8 layers with 8 heads."""
    place = tmp_path_factory.mktemp("large")
    words = train_char([TEXT])
    config = ModelConfig(
        vocab_size=words.vocab_size, context=128, d_model=128, n_layers=8, n_heads=8, n_kv_heads=8, d_head=16, d_ff=256
    )
    save_bundle(place / "model", config, build_model(config, seed=1).state_dict(), words, {"starts_with_bos": False})
    assert len(TEXT) == 128
    mingyue.inspect(place / "model", TEXT, threads=1).report(place / "report.html")
    return place / "report.html"


def test_a_report_of_64_heads_and_128_tokens_is_small(report: Path) -> None:
    assert report.stat().st_size <= MOST_MB * 1e6


def test_its_first_chart_is_soon_there_and_all_others_are_drawn_without_a_network(
    report: Path, browser: Browser
) -> None:
    seen = browser.open(report, _PROBE)
    assert seen["errors"] == []
    assert seen["waiting"] == 0
    assert seen["canvases"] > 64, "a thumbnail for each head"
    assert seen["pictures"] >= 4
    assert seen["painted"] < 1000 * MOST_SECONDS
