"""Links from source pages back to descriptions, under each name of an object.

An object is described under the name by which users import it, or on two pages under two names; viewcode keeps one name
per module. So each description also gets the name of its home module.
"""

from importlib import import_module
from operator import attrgetter
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


def anchor(app: Sphinx, doctree: nodes.document) -> None:
    """Give each description of a Python object an anchor with the name of its home module."""
    signatures = list(doctree.findall(addnodes.desc_signature))
    anchors = {name for signature in signatures for name in signature["ids"]}
    for signature in signatures:
        if not signature.get("module"):
            continue
        try:
            thing = attrgetter(signature["fullname"])(import_module(signature["module"]))
        except AttributeError:  # a field that only instances have
            continue
        home = getattr(thing, "__module__", None) or signature["module"]
        signature["module"], name = home, f"{home}.{signature['fullname']}"
        if name not in anchors:
            anchors.add(name)
            signature["ids"].append(name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", anchor, priority=400)  # before viewcode
    return {"parallel_read_safe": True, "parallel_write_safe": True}
