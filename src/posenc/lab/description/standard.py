"""What encodings are counted for and measured by: numbers that the maker and the reader of the listing share."""

DIM, HEADS, TRAINED_LENGTH, CELLS = 512, 8, 2048, 32
"""The model that encodings are counted for; those of several axes have CELLS cells on each."""

MEASURED_BY = "posenc compare --preset full, 2026-11-21: 2 layers of width 64, 3 seeds (docs/log.md)"
