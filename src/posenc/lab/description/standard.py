"""What encodings are counted for and measured by: numbers that the maker and the reader of the listing share."""

DIM, HEADS, TRAINED_LENGTH, CELLS = 512, 8, 2048, 32
"""The model that encodings are counted for; those of several axes have CELLS cells on each."""

MEASURED_BY = "the board: small models of two layers, docs/board"
