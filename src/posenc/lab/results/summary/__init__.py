"""Summarise the records of a comparison: medians and intervals, which encodings are ahead, the answer in sentences.

There are no drawings and no markup: plots, the page and the terminal read the same numbers and sentences from here.
"""

from posenc.lab.results.statistics import Estimate
from posenc.lab.results.summary.claims import CARRY_THRESHOLD, EXPLODING_RATIO, FLAT_RATIO, Headline, headline
from posenc.lab.results.summary.formatting import (
    DASH,
    MAX_SENTENCE_LETTERS,
    SCORE_AXES,
    count,
    duration,
    for_display,
    join_words,
    label_list,
    percent,
    ratio,
    records_for_display,
    times,
    trained_score_text,
    trained_text,
)
from posenc.lab.results.summary.pairs import pair_tables
from posenc.lab.results.summary.runs import (
    NOT_LEARNED,
    IndexedRecords,
    Record,
    Result,
    float_array,
    get,
    is_external,
    is_text,
    labelled_records,
    labels,
    number,
    require_records,
    results,
    spec_of,
    task_of,
    tasks,
    trained_length,
    trained_lengths,
    trained_tokens,
    training_rank,
)
from posenc.lab.results.summary.sentences import LEARNED_TEXT, answer, paragraphs, scope_sentence, seeds_sentence
from posenc.lab.results.summary.tables import Cell, TaskTable, all_tasks, flatness, plain_tables, task_tables, to_cell
