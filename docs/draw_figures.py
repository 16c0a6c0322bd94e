"""Draw every picture of README and docs: in English and Chinese, into docs/figures.

    mingyue train tang.txt --out runs/tang --minutes 10
    mingyue claims run all --report report
    python docs/draw_figures.py --run runs/tang --claims report

The first command may be any run or model of Chinese poems; the second may test some claims and be `--out DIR`.

| picture | shown in | same as |
|--|--|--|
| inspect-attention.*.png | README | `mingyue inspect attention RUN --text POEM --out …`, in 256 colours |
| all others, NAME.*.svg | docs/reader.md | figures/NAME.*.svg of the report, or the first of its figures |

Either option may be left out, and a claim without a result too: their pictures stay as they are, and are listed.
`--text` draws another text; `--out` is another folder.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from PIL import Image

import mingyue
from mingyue.charts import write_charts
from mingyue.claims.registry import find
from mingyue.claims.report import load_results
from mingyue.words import LANGUAGES

DOCS = Path(__file__).parent
ATTENTION = "inspect-attention"
POEM = "床前明月光，疑是地上霜。举头望明月，低头思故乡。"
FIGURES = {
    "worked-example": (0, 2),
    "saturation": (0,),
    "many-relations": (0,),
    "specialise": (0,),
    "sinusoid": (0,),
    "rotary": (0,),
    "layer-norm": (0, 2),
    "order": (0, 1),
    "mask": (1,),
    "chain-rule": (0,),
    "quadratic": (0, 1),
    "tying": (0,),
    "hallucination": (0,),
    "orthogonal-heads": (0,),
    "longer": (0,),
}
"""Which charts of each claim."""


def all_pictures() -> set[str]:
    """Names of the files that this script draws."""
    names = {f"{ATTENTION}.{language}.png" for language in LANGUAGES}
    return names | {f"{name}.{language}.svg" for name in FIGURES for language in LANGUAGES}


def pictures_shown() -> set[str]:
    """Names of the files that README and docs show."""
    pages = [*DOCS.glob("*.md"), *DOCS.parent.glob("README*.md")]
    return {name for page in pages for name in re.findall(r"\]\([\w/]*figures/([^)]+)\)", page.read_text("utf-8"))}


def draw_run(run: Path, text: str, out: Path) -> set[str]:
    """The picture of README; returns the names of the files."""
    view = mingyue.inspect(run, text).attention()
    drawn = set[str]()
    for language in LANGUAGES:
        name = f"{ATTENTION}.{language}.png"
        for note in view.save(out / name, language):
            sys.stdout.write(f"{note}\n")
        with Image.open(out / name) as picture:  # a fraction of the bytes
            picture.convert("RGB").quantize(256).save(out / name, optimize=True)
        drawn.add(name)
    return drawn


def draw_claims(folder: Path, out: Path) -> set[str]:
    """The pictures of the claims whose results are in the folder; returns the names of the files."""
    drawn = set[str]()
    for result in load_results(folder):
        if result.name not in FIGURES or result.measurement is None:
            continue
        for language in LANGUAGES:
            charts = find(result.name).draw(result.measurement, language)
            chosen = [charts[number] for number in FIGURES[result.name] if number < len(charts)]
            name = f"{result.name}.{language}.svg"
            for note in write_charts(out / name, chosen, title=result.name, language=language):
                sys.stdout.write(f"{note}\n")
            drawn.add(name)
    return drawn


def main(arguments: list[str] | None = None) -> None:
    """Draw what there are data for, and say what was not drawn."""
    parser = argparse.ArgumentParser(description="Draw every picture of README and docs.")
    parser.add_argument("--run", type=Path, help="run folder or model folder of Chinese poems")
    parser.add_argument("--claims", type=Path, help="folder of results of claims, or of a report")
    parser.add_argument("--text", default=POEM, help="text for the model [default: %(default)s]")
    parser.add_argument("--out", type=Path, default=DOCS / "figures", help="folder to write [default: %(default)s]")
    given = parser.parse_args(arguments)
    if given.run is None and given.claims is None:
        parser.error("give --run, --claims or both")
    given.out.mkdir(parents=True, exist_ok=True)
    drawn = set[str]()
    if given.run is not None:
        drawn |= draw_run(given.run, given.text, given.out)
    if given.claims is not None:
        drawn |= draw_claims(given.claims, given.out)
    for name in sorted(drawn):
        sys.stdout.write(f"drawn: {name}\n")
    for name in sorted((all_pictures() | pictures_shown()) - drawn):
        sys.stdout.write(f"not drawn, since its data are not there: {name}\n")


if __name__ == "__main__":
    main()
