"""python -m posenc, and the command posenc: the command line, and which extra brings what a verb needs.

Where PyTorch is installed alone, verbs that need no more than that do their work: list, show, check, lesson.
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
"""What the extras of the package bring, which PyTorch alone does not."""

# PyTorch says so once where NumPy is not installed, and what needs it says so itself. Here, for processes of ours too.
warnings.filterwarnings("ignore", "Failed to initialize NumPy")


def main() -> int:
    """Run the command line; where a package is missing, say which extra brings it."""
    # Python has no stream where the shell has closed one.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))
    try:
        from posenc import cli

        return cli.main()
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        extra = next((extra for extra, modules in EXTRAS.items() if missing in modules), None)
        if extra is None:
            raise
    print(f"posenc: this needs {missing}, which is not installed: pip install 'posenc[{extra}]'", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
