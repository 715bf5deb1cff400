"""A run of version 0.2 is read under the present names.

of_0_2: `posenc train learned --task copy --steps 4 --dim 4 --layers 1 --heads 2 --norm post --hidden 4` of that version
"""

from pathlib import Path

import torch

from posenc.lab import safetensors_file
from posenc.lab.runs import checkpoint

FOLDER = Path(__file__).with_name("of_0_2")


def test_a_run_of_0_2_gives_the_logits_that_it_gave_and_its_optimiser_goes_on():
    there, _ = safetensors_file.read_header(FOLDER / "step-000004" / "model.safetensors")
    assert any("attention.to_query" in name for name in there) and any("feed_forward.2" in name for name in there)
    run = checkpoint.load(FOLDER, to_train=True)
    assert (run.experiment.norm_first, run.experiment.intermediate_size, run.step) == (False, 4, 4)
    with torch.no_grad():
        logits = run.model.eval()(torch.tensor([[1, 2, 3]]))[0, -1, :4]
    # Of that version.
    expected = torch.tensor([0.6852661371231079, -0.5315123796463013, 0.5783981084823608, -0.770470142364502])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    assert all(optimizer.state for optimizer in run.optimizers)
