"""The command line, as python -m posenc and as posenc, and the extras that its commands need.

With PyTorch alone, the commands list, show, check and lesson work.
"""

import os
import sys
import warnings

EXTRAS = {
    "lab": "numpy scipy pandas rich matplotlib safetensors jinja2 tomli markdown_it latex2mathml".split(),
    "frames": ("pyarrow",),
    "hf": ("transformers", "huggingface_hub", "tokenizers", "gguf", "safetensors", "accelerate"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}
"""The packages that each extra installs besides PyTorch."""

# PyTorch warns once without NumPy, and commands that need it say so themselves. Here, for child processes too.
warnings.filterwarnings("ignore", "Failed to initialize NumPy")


def main() -> int:
    """Run the command line; if a package is missing, print the extra that installs it."""
    # A stream is None if the shell has closed it.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))
    try:
        from posenc import cli

        return cli.main()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        extra = next((extra for extra, modules in EXTRAS.items() if package in modules), None)
        if extra is None:
            raise
    print(f"posenc: this needs {package}, which is not installed: pip install 'posenc[{extra}]'", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
