"""The board: every encoding on every task that it has a meaning for, as rows that are kept, a page, and advice."""
