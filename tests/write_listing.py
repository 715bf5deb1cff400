"""Writes src/posenc/lab/description/listing.json: what `posenc list` says, so that it takes no PyTorch to say it.

    .venv/bin/python tests/write_listing.py

A test holds what is written to what there is.
"""

import json

from posenc.lab.description import describe, listing

COMMAND = ".venv/bin/python tests/write_listing.py"


def text() -> str:
    """The text of the file."""
    return json.dumps({"made_from": listing.digest(), "overview": describe.overview()}, indent=1) + "\n"


if __name__ == "__main__":
    listing.KEPT.write_text(text(), encoding="utf-8")
