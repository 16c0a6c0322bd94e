"""Draw the figures of docs/reader.md from results of claims: `python docs/draw_figures.py DIR` after
`mingyue claims run saturation many-relations … --out DIR` (or the folder of a report)."""

import sys
from pathlib import Path

from mingyue.charts import write_charts
from mingyue.claims.registry import find
from mingyue.claims.report import load_results

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


def main(folder: Path) -> None:
    """Draw every figure whose result is there, in both languages."""
    there = {result.name: result for result in load_results(folder)}
    for name, wanted in FIGURES.items():
        result = there.get(name)
        if result is None or result.measurement is None:
            sys.stdout.write(f"{name}: no result, its figure stays as it is\n")
            continue
        for language in ("en", "zh"):
            charts = find(name).draw(result.measurement, language)
            path = Path(__file__).parent / "figures" / f"{name}.{language}.svg"
            path.parent.mkdir(exist_ok=True)
            chosen = [charts[place] for place in wanted if place < len(charts)]
            for note in write_charts(path, chosen, title=name, language=language):
                sys.stdout.write(f"{note}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
