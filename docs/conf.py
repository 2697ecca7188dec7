"""The documentation site: `make docs` builds it into build/docs/html, warnings being errors.

It works without a network: no script, font or style sheet is fetched, formulas are MathML.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "_ext"))

import online_softmax  # noqa: E402

project = "online-softmax"
author = "The online-softmax developers"
copyright = "the online-softmax developers, BSD-3-Clause"
version = release = online_softmax.__version__

extensions = ["myst_parser", "repository", "api", "cli", "mathml"]
# What these pages show is made elsewhere in the repository; a checkout without it has a site without them.
SHOWN = {
    "answers": "answers.md",
    "answers/*": "answers/part1.md",
    "exercise": "exercise.md",
    "proofs": "../proofs/README.md",
    "explorer": "../explorer/index.html",
}
left_out = [page for page, file in SHOWN.items() if not (DOCS / file).is_file()]
exclude_patterns = ["_ext", *(f"{page}.md" for page in left_out)]

myst_enable_extensions = ["attrs_inline", "deflist", "dollarmath"]
myst_dmath_allow_labels = False
myst_heading_anchors = 4
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "monokai"
nitpicky = True
# Annotations name NumPy's and PyTorch's classes, whose own references are on the network. What docstrings
# and pages link to is checked.
nitpick_ignore_regex = [("py:class", r".*")]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"online-softmax {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
