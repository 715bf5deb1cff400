"""Converts LaTeX formulas of lessons to Unicode for a terminal."""

import re

# ruff: noqa: RUF001

COMMANDS = {
    "alpha": "α", "gamma": "γ", "theta": "θ", "lambda": "λ", "phi": "φ", "pi": "π", "sum": "Σ", "cdot": "·",
    "times": "×", "pm": "±", "approx": "≈", "infty": "∞", "to": "→", "leftarrow": "←", "dots": "…", "lfloor": "⌊",
    "rfloor": "⌋", "top": "T", "qquad": "\N{EM SPACE}", "quad": "\N{EM SPACE}", ",": " ", ";": " ", "\\": ";",
} | dict.fromkeys(("left", "right", "big", "text", "mathrm", "begin", "end"), "")  # fmt: skip
"""LaTeX command -> Unicode; the name of any other command stays."""

SUPERSCRIPTS = str.maketrans("0123456789+-()niT", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱᵀ")
SUBSCRIPTS = str.maketrans("0123456789+-()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
TOKEN = re.compile(r"\\(?:[a-zA-Z]+|.)|[{}^_]|\s+|.", re.DOTALL)


def unicode_formula(formula: str) -> str:
    """Return a formula in Unicode; a fraction becomes a quotient.

    >>> unicode_formula(r"f_k = \\frac{1}{\\sqrt{d}} \\cdot 10^{-2k/d}")
    'fₖ = 1/√d · 10^(-2k/d)'
    """
    text = "".join(unicode_parts(TOKEN.findall(formula.replace("&", "for").replace("{cases}", ""))))
    return re.sub(r" +", " ", text).replace("( ", "(").replace(" )", ")").replace("\N{EM SPACE}", "  ").strip()


def unicode_parts(tokens: list[str]) -> list[str]:
    """Convert the tokens of a group up to its closing brace, and remove them from the list."""
    parts: list[str] = []
    while tokens and (token := tokens.pop(0)) != "}":
        if token in ("^", "_"):
            table, part = (SUPERSCRIPTS if token == "^" else SUBSCRIPTS), group(tokens)
            fits = all(letter in table for letter in map(ord, part))
            parts.append(part.translate(table) if fits else token + (part if len(part) == 1 else f"({part})"))
        elif token == r"\frac":
            parts.append(f"{bracketed_part(group(tokens))}/{bracketed_part(group(tokens))}")
        elif token == r"\sqrt":
            parts.append(f"√{bracketed_part(group(tokens))}")
        elif token == r"\hat":
            parts.append(group(tokens) + "\N{COMBINING CIRCUMFLEX ACCENT}")
        elif token == "{":
            parts += unicode_parts(tokens)
        elif token[0] == "\\":
            parts.append(COMMANDS.get(token[1:], token[1:]))
        else:
            parts.append(" " if token.isspace() else token)
    return parts


def group(tokens: list[str]) -> str:
    """Return the next group in braces, or the next token."""
    token = tokens.pop(0) if tokens else ""
    return "".join(unicode_parts(tokens if token == "{" else [token, "}"])).strip()


def bracketed_part(part: str) -> str:
    """Return a part of a quotient or root, in brackets if needed. Words, numbers and calls need none."""
    return part if re.fullmatch(r"√?[\w.₀-ₜ⁰-ⁿᵢ]*(\([^()]*\))?", part) else f"({part})"
