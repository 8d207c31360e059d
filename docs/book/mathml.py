"""Formulas as MathML, which browsers draw themselves: no script, and no network."""

import latex2mathml.converter
from docutils import nodes


def inline(translator, node):
    translator.body.append(latex2mathml.converter.convert(node.astext()))
    raise nodes.SkipNode


def block(translator, node):
    formula = latex2mathml.converter.convert(node.astext(), display="block")
    translator.body.append(f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
