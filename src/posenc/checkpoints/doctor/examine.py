"""Every known defect, tried on one model: what `posenc doctor` prints."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.checkpoints.doctor.defects import DEFECTS, Defect, Finding
from posenc.checkpoints.doctor.patient import Patient, patient
from posenc.foreign.text import told

WORDS = ("hit", "clear", "not tried", "no concern")
"""What may come out of a defect."""


@dataclass(frozen=True)
class Diagnosis:
    """What came out of one defect for one model.

    found  what was measured; None where the defect does not concern the model
    mends  what mends it, in words, or ""
    after  what was measured with that; None where it was not tried
    """

    defect: Defect
    found: Finding | None
    mends: str = ""
    after: Finding | None = None

    @property
    def word(self) -> str:
        return "no concern" if self.found is None else {True: "hit", False: "clear", None: "not tried"}[self.found.hits]

    @property
    def remedies(self) -> dict[str, str]:
        """Of a hit, what mended the small model or did not, what came of it, and what was not tried."""
        how = "mended by" if self.after is not None and self.after.hits is False else "not mended by"
        tried = {} if self.after is None else {how: self.mends, "tried": self.after.words}
        return tried | ({"advice": self.defect.advice} if self.defect.advice and self.word == "hit" else {})


def examine(path: str | Path) -> Iterator[Diagnosis]:
    """Every known defect, tried on the model at a path, each as soon as it is known, and with what mends it.

    path  a folder with a config.json, with weights or without, or such a file by itself; weights are not read

    Raises CannotRead as `patient` does.
    """
    model = patient(path)
    # What goes by the length of a text is attached with a horizon.
    declared = f"(model, horizon={model.horizon})" if model.horizon else "(model)"
    for defect in DEFECTS:
        finding, after = outcome(defect, model), None
        if finding is not None and finding.hits and defect.mends:
            after = outcome(defect, model.mended) or Finding(None, 0, "nothing was left to be measured")
        yield Diagnosis(defect, finding, defect.mends.replace("(model)", declared), after)


def outcome(defect: Defect, model: Patient) -> Finding | None:
    """What is measured of a defect, or why nothing can be; None where it does not concern the model."""
    try:
        return defect.measure(model)
    except Exception as error:
        # Models are code of many hands, and a small one of their kind may fail in any way.
        return Finding(None, 0, told(error))


def in_json(path: str | Path, diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    import transformers

    return {
        "model": str(path),
        "transformers": transformers.__version__,
        "defects": [
            {"name": one.defect.words, "verdict": one.word, "defect": one.defect.sentence}
            | ({} if one.found is None else one.found.in_json)
            | one.remedies
            for one in diagnoses
        ],
    }


def in_words(diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    """The same for people: what hits first, with its number and what mends it; one line for each of the others."""
    for one in sorted(diagnoses, key=lambda one: WORDS.index(one.word)):
        if one.found is not None:
            yield f"{one.word:<10} {one.defect.words}: {one.found.words}"
        for how, words in one.remedies.items():
            yield f"{'':<10} {how}: {words}"


def total(diagnoses: Sequence[Diagnosis]) -> str:
    """How many defects came out in which way, and with which transformers."""
    import transformers

    counts = [(sum(one.word == word for one in diagnoses), word) for word in WORDS]
    told = ", ".join(f"{count} {word}" for count, word in counts if count)
    nothing = "; nothing was tried" if counts[-1][0] == len(diagnoses) else ""
    return f"{len(diagnoses)} known defects of transformers {transformers.__version__}: {told}{nothing}"
