"""How the site is built: `python3 run.py docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("extensions")))

import posenc

project = "posenc"
author = "The posenc authors"
copyright = "2026, the posenc authors"
version = release = posenc.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",
    "docstrings",
    "catalogue_pages",
    "reference_pages",
    "source_links",
]
html_math_renderer = "mathml"
exclude_patterns = ["_build", "extensions", "changes/fragments"]
source_suffix = {".md": "myst-nb"}
# Lessons are run while they are built, and only when they have changed.
nb_execution_mode = "cache"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
# What libraries warn of is about the machine that builds, and names its folders.
nb_output_stderr = "remove"
# A page that is not run does not say in which language its code is; then it is shown without colours.
suppress_warnings = ["myst-nb.lexer"]
root_doc = "index"
# Docstrings are plain text: what stands in backquotes is code.
default_role = "code"

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4

autodoc_typehints = "signature"
# What torch says of its own methods is no word about ours.
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["posenc.css"]
html_favicon = "_static/favicon.svg"
html_search_scorer = str(Path(__file__).parent / "extensions" / "search_scores.js")
# What a command prints, and its prompt, is not what one copies.
copybutton_selector = "div.highlight:not(.highlight-none) pre"
html_title = f"posenc {version}"
html_show_sphinx = False
