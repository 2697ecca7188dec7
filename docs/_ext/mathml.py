"""Formulas as MathML, made by docutils when the site is built: browsers draw it without any script."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def _inline(visitor: HTML5Translator, node: nodes.math) -> None:
    visitor.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(visitor: HTML5Translator, node: nodes.math_block) -> None:
    visitor.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, object]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
