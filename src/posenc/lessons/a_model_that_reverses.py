"""Lesson 8: a model that reverses sequences, by position alone."""

from types import ModuleType

import torch
from torch import Generator, Tensor

from posenc.lessons import TrainedModel, answer, check_shape, compare, read_model

PLACE = 8


def reversed_within_leaves_the_padding(answers: ModuleType) -> None:
    """reversed_within(ids, lengths) has ids[b, lengths[b] - 1 - i] at place i, and keeps padding"""
    reversed_within = answer(answers, "reversed_within")
    ids = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 0, 0, 0, 0]])
    right = torch.tensor([[3, 2, 1, 0, 0], [8, 7, 6, 5, 4], [9, 0, 0, 0, 0]])
    mistakes = {
        "the padding has moved to the front; only the first lengths[b] tokens are reversed": ids.flip(1),
        "the batch is reversed, and its rows are not: tokens are axis 1": ids.flip(0),
        "both axes are reversed; tokens are axis 1 alone": ids.flip(0, 1),
        "nothing is reversed": ids,
    }
    result = reversed_within(ids.clone(), torch.tensor([3, 5, 1]))
    compare("reversed_within of rows with 3, 5 and 1 tokens", result, right, mistakes)


def exact_match_counts_whole_sequences(answers: ModuleType) -> None:
    """exact_match(predicted, target) is the mean over sequences of whether all tokens are right"""
    exact_match = answer(answers, "exact_match")
    target = torch.arange(20).view(4, 5)
    predictions = target.clone()
    predictions[0, 2] = predictions[3, 1] = predictions[3, 4] = 99
    mistakes = {
        "this is the share of tokens that are right; a sequence counts if all of its tokens are": 17 / 20,
        "this is a count; divide it by the number of sequences": 2.0,
        "one wrong token spoils the whole batch; `all` has to run over tokens alone, axis 1": 0.0,
        "a share lies between 0 and 1; here it is in percent": 50.0,
        "only places that are right in every sequence are counted; `all` has to run over tokens, axis 1": 2 / 5,
    }
    compare("exact_match of four sequences, two of them right", exact_match(predictions, target), 0.5, mistakes)
    compare("exact_match of equal sequences", exact_match(target, target), 1.0)


EXERCISES = (reversed_within_leaves_the_padding, exact_match_counts_whole_sequences)


def answers(model: TrainedModel, letters: Tensor) -> Tensor:
    """Return the model's answer as letters [B, T], counted from 0."""
    if model.run is None:
        return check_shape("the model's output", model.scores(letters), (*letters.shape, 26)).argmax(-1)
    from posenc.lab.experiments.models import logits_of
    from posenc.lab.tasks._symbols import prompt_and_answer

    batch = prompt_and_answer(3 + letters, 3 + letters.flip(1))
    return logits_of(model.module, batch, first=batch.first)[:, :-1].argmax(-1) - 3


@torch.inference_mode()
def new_sequences_are_reversed(model: TrainedModel) -> None:
    """Train until 99 of 100 new sequences of the trained length are reversed without a mistake.

    A run has to be of the task `reverse`. A class returns scores [batch, tokens, 26] of letters 0 to 25; its trained
    length is its attribute `length`, or 12."""
    run, symbols, length = model.run, 26, getattr(model.module, "length", 12)
    if run is not None:
        task = run.experiment.task
        assert task.startswith("reverse"), f"the run is of the task {task}, and not of reverse"
        symbols, length = run.task.symbols, run.experiment.train_length

    def random_ids(length: int) -> Tensor:
        return torch.randint(symbols, (500, length), generator=Generator().manual_seed(length))

    def reversed_share(length: int) -> float:
        return (answers(model, random_ids(length)) == random_ids(length).flip(1)).all(1).float().mean().item()

    letters, exact = random_ids(length), reversed_share(length)
    right = f"{exact:.1%} of 500 new sequences of {length} letters are right in every letter"
    if exact >= 0.99:
        print(right)
        for longer in (length + 1, 2 * length):
            try:
                print(f"{reversed_share(longer):.1%} of 500 with {longer} letters, more than in training")
            except (ValueError, RuntimeError, IndexError) as error:
                print(f"{longer} letters, more than in training, are refused: {type(error).__name__}")
        return
    result, again = answers(model, letters), answers(model, letters)
    assert torch.equal(again, result), "asked twice, it answers differently: eval() has to end dropout"
    reverses = answers(model, letters.flip(0)).flip(0)
    assert torch.equal(reverses, result), (
        "an answer changes with its row in the batch: positions number axis 0, not axis 1"
    )
    copied_share = (result == letters).float().mean().item()
    assert copied_share < 0.9, "it copies: what it is to say is the sequence backwards"
    off_by_one = answers(model, letters.roll(1, 1)).roll(-1, 1)
    blind = torch.equal(off_by_one, result) if run is None else run.experiment.spec == "none"
    assert not blind, (
        f"it was trained without positions: the same letters in another order get the same answers; {right}"
    )
    other_ids = answers(model, torch.cat((letters[:, :-1], (letters[:, -1:] + 1) % symbols), 1))
    causal = torch.equal(other_ids[:, : length // 2], result[:, : length // 2])
    assert not causal, "its first places do not see the last letter: leave out the causal mask"
    of_letters = (result == letters.flip(1)).float().mean().item()
    assert of_letters > 2 / symbols, "it guesses: are these the weights after training?"
    raise AssertionError(f"{right}, and {of_letters:.1%} of letters are; train longer")


HAND_IN = read_model, (new_sequences_are_reversed,)
