"""The last bit that was written, behind more that is to be ignored than in training."""

from dataclasses import dataclass, replace
from types import MappingProxyType

from posenc.lab.evaluation.evaluate import scores_at_length
from posenc.lab.experiments.recipes import recipe
from posenc.lab.published._claim import CPU, GPU, Claim, Inequality
from posenc.lab.published._symbols import LARGER
from posenc.lab.tasks import task_of

SPECS = ("rotary", "contextual")
SMALL = MappingProxyType(
    {"train_length": 32, "test_lengths": (), "steps": 600, "batch": 32, "rate": 2e-3, "cool_down": 0}
)
SPARSE = "flip_flop(ignore=0.98)"


@dataclass(frozen=True, kw_only=True)
class FlipFlop(Claim):
    """Positions that count chosen tokens find the last write behind many instructions to ignore; rotary misses some.

    Trained where 80 % of the instructions ignore, tested where 98 % do, at the same length. Numbers are shares of reads
    that are answered wrongly; the paper's are not given, because we could not check them.

    Source: Golovneva et al. 2024, arXiv:2405.18719, section 5 (flip-flop); Liu et al. 2023, arXiv:2306.00946.
    """

    says = "positions that count what the content chooses find the last write behind noise where rotary misses it"
    source = "Golovneva et al. 2024, arXiv:2405.18719, section 5; Liu et al. 2023, arXiv:2306.00946"
    sizes = MappingProxyType({CPU: SMALL, GPU: SMALL | LARGER | {"train_length": 256, "steps": 5000, "batch": 64}})
    criteria = (
        Inequality("wrong, rotary", ">=", 0.01),
        Inequality("wrong, contextual", "<=", "wrong, rotary", times=0.5),
    )
    looked_into = SPECS

    def runs(self, tier):
        return {spec: recipe("flip_flop", spec, **self.sizes[tier]) for spec in SPECS}

    def look_into(self, run):
        return {"sparse": [scores_at_length(replace(run, task=task_of(SPARSE)), run.experiment.train_length)]}

    def numbers(self, outcomes):
        right = {spec: outcomes[spec].score("token_accuracy", extra="sparse") for spec in SPECS}
        return {f"wrong, {spec}": None if share is None else 1 - share for spec, share in right.items()}
