"""What posenc costs, beside the limit of the machine and beside everybody else: run from a checkout.

    run.py bench [WHAT ...]                          measure
    run.py bench --compare BEFORE.json AFTER.json    two results side by side

measure  candidates take turns, and each is divided by a limit of the same round
cases    what is measured, one file for each word of the command line
goals    what each row is to reach: goals.json
run      one run: cases, machine, versions
report   rows to tables; what we lose at
compared two results to a page
"""
