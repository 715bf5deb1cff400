"""Formulas of lessons as a terminal can show them: letters of Unicode in place of LaTeX."""

import re

# ruff: noqa: RUF001

COMMANDS = {
    "alpha": "α", "gamma": "γ", "theta": "θ", "lambda": "λ", "phi": "φ", "pi": "π", "sum": "Σ", "cdot": "·",
    "times": "×", "pm": "±", "approx": "≈", "infty": "∞", "to": "→", "leftarrow": "←", "dots": "…", "lfloor": "⌊",
    "rfloor": "⌋", "top": "T", "qquad": "\N{EM SPACE}", "quad": "\N{EM SPACE}", ",": " ", ";": " ", "\\": ";",
} | dict.fromkeys(("left", "right", "big", "text", "mathrm", "begin", "end"), "")  # fmt: skip
"""What a command of LaTeX becomes; of others the name stays."""

RAISED = str.maketrans("0123456789+-()niT", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱᵀ")
LOWERED = str.maketrans("0123456789+-()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
TOKEN = re.compile(r"\\(?:[a-zA-Z]+|.)|[{}^_]|\s+|.", re.DOTALL)


def unicode(formula: str) -> str:
    """A formula in Unicode; a fraction is a quotient.

    >>> unicode(r"f_k = \\frac{1}{\\sqrt{d}} \\cdot 10^{-2k/d}")
    'fₖ = 1/√d · 10^(-2k/d)'
    """
    text = "".join(pieces(TOKEN.findall(formula.replace("&", "for").replace("{cases}", ""))))
    return re.sub(r" +", " ", text).replace("( ", "(").replace(" )", ")").replace("\N{EM SPACE}", "  ").strip()


def pieces(tokens: list[str]) -> list[str]:
    """The tokens of a group as they are shown, up to its closing brace; what is read is taken out of the list."""
    shown: list[str] = []
    while tokens and (token := tokens.pop(0)) != "}":
        if token in ("^", "_"):
            table, part = (RAISED if token == "^" else LOWERED), group(tokens)
            fits = all(letter in table for letter in map(ord, part))
            shown.append(part.translate(table) if fits else token + (part if len(part) == 1 else f"({part})"))
        elif token == r"\frac":
            shown.append(f"{single(group(tokens))}/{single(group(tokens))}")
        elif token == r"\sqrt":
            shown.append(f"√{single(group(tokens))}")
        elif token == r"\hat":
            shown.append(group(tokens) + "\N{COMBINING CIRCUMFLEX ACCENT}")
        elif token == "{":
            shown += pieces(tokens)
        elif token[0] == "\\":
            shown.append(COMMANDS.get(token[1:], token[1:]))
        else:
            shown.append(" " if token.isspace() else token)
    return shown


def group(tokens: list[str]) -> str:
    """What stands in the next braces, or the next token alone."""
    token = tokens.pop(0) if tokens else ""
    return "".join(pieces(tokens if token == "{" else [token, "}"])).strip()


def single(part: str) -> str:
    """A part of a quotient or under a root, in brackets where it is more than a word, a number or a call."""
    return part if re.fullmatch(r"√?[\w.₀-ₜ⁰-ⁿᵢ]*(\([^()]*\))?", part) else f"({part})"
