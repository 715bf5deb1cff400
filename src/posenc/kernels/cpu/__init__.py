"""CPU attention in blocks, which never materialises a whole matrix; only kernels/__init__.py imports from here."""

from posenc.kernels.cpu.blocked import attend, form_names, why_not

__all__ = ["attend", "form_names", "why_not"]
