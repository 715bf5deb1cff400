"""Every known defect, tried on one model: what `posenc doctor` prints."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.checkpoints.doctor.defects import DEFECTS, Defect, Finding
from posenc.checkpoints.doctor.patient import patient
from posenc.foreign.text import told

WORDS = ("hit", "clear", "not tried", "no concern")
"""What may come out of a defect."""


@dataclass(frozen=True)
class Diagnosis:
    """What came out of one defect for one model.

    found  what was measured; None where the defect does not concern the model, or could not be tried
    why    why it could not be tried, or ""
    """

    defect: Defect
    found: Finding | None
    why: str = ""

    @property
    def word(self) -> str:
        if self.found is not None:
            return "hit" if self.found.hits else "clear"
        return "not tried" if self.why else "no concern"


def examine(path: str | Path) -> Iterator[Diagnosis]:
    """Every known defect, tried on the model at a path, each as soon as it is known.

    path  a folder with a config.json, with weights or without, or such a file by itself; weights are not read

    Raises CannotRead as `patient` does.
    """
    model = patient(path)
    for defect in DEFECTS:
        try:
            yield Diagnosis(defect, defect.measure(model))
        except Exception as error:
            # Models are code of many hands, and a small one of their kind may fail in any way.
            yield Diagnosis(defect, None, told(error))


def in_json(path: str | Path, diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    import transformers

    return {
        "model": str(path),
        "transformers": transformers.__version__,
        "defects": [
            {"name": one.defect.words, "verdict": one.word, "defect": one.defect.sentence}
            | ({"number": one.found.number, "measured": one.found.words} if one.found else {})
            | ({"mends": one.defect.mends} if one.word == "hit" else {})
            | ({"reason": one.why} if one.why else {})
            for one in diagnoses
        ],
    }


def in_words(diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    """The same for people: what hits first, with its number and what mends it; one line for each of the others."""
    for one in sorted(diagnoses, key=lambda one: WORDS.index(one.word)):
        if one.word != "no concern":
            yield f"{one.word:<10} {one.defect.words}: {one.found.words if one.found else one.why}"
        if one.word == "hit":
            yield f"{'':<10} mended by: {one.defect.mends}"


def total(diagnoses: Sequence[Diagnosis]) -> str:
    """How many defects came out in which way, and with which transformers."""
    import transformers

    counts = [(sum(one.word == word for one in diagnoses), word) for word in WORDS]
    told = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{len(diagnoses)} known defects of transformers {transformers.__version__}: {told}"
