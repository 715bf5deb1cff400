"""python -m posenc: the command line."""

from posenc.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
