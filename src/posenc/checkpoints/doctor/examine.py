"""Measure every known defect on one model, and report them for `posenc doctor`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.checkpoints.doctor.defects import DEFECTS, Defect, Finding
from posenc.checkpoints.doctor.patient import Patient, load_patient
from posenc.foreign.text import error_text

VERDICTS = ("hit", "clear", "not tried", "no concern")
"""The verdicts on a defect, as they are sorted."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of one defect for one model.

    finding  None where the defect does not concern the model
    mends    the remedy in words, or ""
    retest   the finding with that remedy; None where it was not tried
    """

    defect: Defect
    finding: Finding | None
    mends: str = ""
    retest: Finding | None = None

    @property
    def verdict(self) -> str:
        verdicts = {True: "hit", False: "clear", None: "not tried"}
        return "no concern" if self.finding is None else verdicts[self.finding.hits]

    @property
    def remedies(self) -> dict[str, str]:
        """The remedies of a hit: the tried one with its result, and advice that was not tried."""
        how = "mended by" if self.retest is not None and self.retest.hits is False else "not mended by"
        remedies = {} if self.retest is None else {how: self.mends, "tried": self.retest.words}
        return remedies | ({"advice": self.defect.advice} if self.defect.advice and self.verdict == "hit" else {})


def examine(path: str | Path) -> Iterator[Diagnosis]:
    """Yield a diagnosis of each known defect for the model at a path, with its remedies.

    path  a config.json, or a folder that has one; weights are not read

    Raises CannotRead as `load_patient` does.
    """
    model = load_patient(path)
    # Schedules that depend on the length of a text need a horizon.
    arguments = f"(model, horizon={model.horizon})" if model.horizon else "(model)"
    for defect in DEFECTS:
        finding, retest = outcome(defect, model), None
        if finding is not None and finding.hits and defect.mends:
            retest = outcome(defect, model.mended_patient) or Finding(None, 0, "nothing was left to be measured")
        yield Diagnosis(defect, finding, defect.mends.replace("(model)", arguments), retest)


def outcome(defect: Defect, model: Patient) -> Finding | None:
    """Measure a defect, or say why that failed; None where it does not concern the model."""
    try:
        return defect.measure(model)
    except Exception as error:
        # Models of transformers have many authors, and a small one may fail in any way.
        return Finding(None, 0, error_text(error))


def report_json(path: str | Path, diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    import transformers

    return {
        "model": str(path),
        "transformers": transformers.__version__,
        "defects": [
            {"name": diagnosis.defect.title, "verdict": diagnosis.verdict, "defect": diagnosis.defect.sentence}
            | ({} if diagnosis.finding is None else diagnosis.finding.as_json)
            | diagnosis.remedies
            for diagnosis in diagnoses
        ],
    }


def report_lines(diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    """Yield the diagnoses as lines of text: hits first, with their numbers and remedies."""
    for diagnosis in sorted(diagnoses, key=lambda diagnosis: VERDICTS.index(diagnosis.verdict)):
        if diagnosis.finding is not None:
            yield f"{diagnosis.verdict:<10} {diagnosis.defect.title}: {diagnosis.finding.words}"
        for how, words in diagnosis.remedies.items():
            yield f"{'':<10} {how}: {words}"


def summary_line(diagnoses: Sequence[Diagnosis]) -> str:
    """Count the defects by verdict, and name the version of transformers."""
    import transformers

    counts = [(sum(diagnosis.verdict == word for diagnosis in diagnoses), word) for word in VERDICTS]
    verdicts = ", ".join(f"{count} {word}" for count, word in counts if count)
    hint = "; nothing was tried" if counts[-1][0] == len(diagnoses) else ""
    return f"{len(diagnoses)} known defects of transformers {transformers.__version__}: {verdicts}{hint}"
