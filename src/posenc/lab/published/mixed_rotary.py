"""Rotary along learned directions on larger squares than trained."""

from dataclasses import dataclass, replace
from types import MappingProxyType

from posenc.lab.evaluation.evaluate import scores_at_length
from posenc.lab.experiments.recipes import recipe
from posenc.lab.published._claim import CPU, GPU, Claim, Inequality
from posenc.lab.published._symbols import LARGER

SPECS = ("mixed_rotary", "axial_rotary", "learned_grid")
FACTORS = (1.5, 2)
SMALL = MappingProxyType(
    {"train_length": 8, "test_lengths": (12, 16), "steps": 600, "batch": 32, "rate": 3e-3, "cool_down": 0}
)


@dataclass(frozen=True, kw_only=True)
class MixedRotary(Claim):
    """On larger images than trained, rotary along learned directions loses least, and an interpolated table most.

    The task here is to say from every cell of a square in which direction the one mark lies; squares of 8 cells a side
    are trained, and 12 and 16 are tested. Numbers are the shares of cells that are right, less that at 8.

    Source: Heo et al. 2024, arXiv:2403.13298: top-1 of DeiT-S on ImageNet at 224 (as trained) and 384 pixels: 80.4 and
    79.4 with a table, 80.9 and 80.0 with axial, 80.9 and 81.8 with mixed frequencies.
    """

    says = "on larger grids than trained mixed rotary loses less than axial rotary, and both less than a learned table"
    source = "Heo et al. 2024, arXiv:2403.13298, the table of resolutions (DeiT-S)"
    published = MappingProxyType(
        {
            "mixed_rotary, change at 1.5": 0.009,
            "axial_rotary, change at 1.5": -0.009,
            "learned_grid, change at 1.5": -0.010,
        }
    )
    sizes = MappingProxyType({CPU: SMALL, GPU: SMALL | LARGER | {"steps": 3000}})
    criteria = tuple(
        line
        for k in FACTORS
        for line in (
            Inequality(f"mixed_rotary, change at {k:g}", ">=", f"axial_rotary, change at {k:g}", plus=-0.01),
            Inequality(f"axial_rotary, change at {k:g}", ">=", f"learned_grid, change at {k:g}", plus=0.05),
        )
    )

    looked_into = ("learned_grid",)

    def runs(self, tier):
        return {spec: recipe("grid_mark", spec, **self.sizes[tier]) for spec in SPECS}

    def look_into(self, run):
        rows = []
        for k in FACTORS:
            experiment = replace(run.experiment, test_map=f"interpolated(factor={k})")
            rows.append(scores_at_length(replace(run, experiment=experiment), round(k * run.experiment.train_length)))
        return {"squeezed": rows}

    def numbers(self, outcomes):
        numbers = {}
        for spec in SPECS:
            base = outcomes[spec].score("token_accuracy")
            for k in FACTORS:
                longer = outcomes[spec].score("token_accuracy", k, "squeezed" if spec in self.looked_into else "")
                change = None if longer is None or base is None else longer - base
                numbers[f"{spec}, change at {k:g}"] = change
        return numbers
