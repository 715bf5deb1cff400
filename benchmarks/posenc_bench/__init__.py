"""Benchmark posenc against the machine's limit and other libraries, from a checkout.

    run.py bench [WHAT ...]                          measure
    run.py bench --compare BEFORE.json AFTER.json    two results side by side

measure  times candidates in turn, and divides each by the limit's time in the same round
cases    what is measured, one file for each word of the command line
goals    the target of each row, from goals.json
run      one run: cases, machine, versions
report   formats rows as tables, and lists where posenc loses
comparison  formats two results as one page
"""
