"""python -m posenc, and the command posenc: the command line, or what it takes to have one."""

import os
import sys

EXTRAS = {
    "lab": ("numpy", "scipy", "pandas", "tyro", "rich", "matplotlib", "safetensors", "jinja2", "tomli"),
    "frames": ("polars", "pyarrow"),
    "hf": ("transformers", "huggingface_hub", "tokenizers", "gguf", "safetensors", "accelerate"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}
"""What the extras of the package bring, which PyTorch alone does not."""


def main() -> int:
    """Run the command line; where a package is missing, do what can be done, or say which extra brings it."""
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
    if missing in ("tyro", "rich") and sys.argv[1:2] in (["list"], ["show"], ["check"]):
        from posenc import plain

        return plain.main(sys.argv[1:])
    print(f"posenc: this needs {missing}, which is not installed: pip install 'posenc[{extra}]'", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
