"""What the records of a comparison say: medians and intervals, the gate, who is ahead, and the answer in words.

Nothing is drawn here and nothing is marked up: plots, the page and the terminal all read these numbers and
sentences, so they cannot disagree.
"""

from posenc.lab.results.statistics import Spread
from posenc.lab.results.summary.claims import CARRIES, EXPLODES, FLAT, Carried, Headline, headline
from posenc.lab.results.summary.pairs import pairs
from posenc.lab.results.summary.runs import (
    NOT_LEARNED,
    Record,
    Result,
    Settled,
    get,
    is_own,
    is_text,
    labelled,
    labels,
    need_records,
    number,
    numbers,
    results,
    spec_of,
    task_of,
    tasks,
    trained_length,
    trained_lengths,
    trained_tokens,
    worth,
)
from posenc.lab.results.summary.sentences import LEARNED_TEXT, about_seeds, answer, paragraphs, scope
from posenc.lab.results.summary.tables import Cell, TaskTable, cell, how_flat, tables, task_tables, tasks_of
from posenc.lab.results.summary.words import (
    MOST_OF_A_SENTENCE,
    NOTHING,
    REACHES,
    count,
    duration,
    in_range_of_all,
    legible,
    listed,
    name,
    percent,
    ratio,
    shown,
    times,
    trained_words,
)
