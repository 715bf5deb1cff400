"""The board: every encoding on every task that suits it, as stored rows, a page, and advice."""
