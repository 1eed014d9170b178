"""The documentation site: ``python -m sphinx -W -n docs docs/_build``. No network is needed."""

import inspect
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import pending_xref
from sphinx.util import logging

import scaledgd

project = "scaledgd"
author = "The scaledgd developers"
copyright = author
version = release = scaledgd.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nitpicky = True
default_role = "name"
toc_object_entries_show_parents = "hide"

autodoc_inherit_docstrings = False  # inherited members are documented once, in the base class
autodoc_typehints = "none"  # the docstrings describe the types
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "scaledgd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"*": []}  # the pages at the top are in the bar above them

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "subsection_order": ["../examples/data", "../examples/trust", "../examples/research"],
    "within_subsection_order": "FileNameSortKey",
    "backreferences_dir": "gallery/uses",
    "doc_module": ("scaledgd",),
    "reference_url": {"scaledgd": None},
    "image_srcset": ["2x"],
    "thumbnail_size": (600, 420),
    "download_all_examples": False,
    "show_signature": False,
    "capture_repr": (),
    "write_computation_times": False,
    "abort_on_example_error": True,
}


def link(rawtext, text, inliner):
    """A reference to a public name, shown as it was written."""
    document = inliner.document.settings.env.docname
    about = {"refdomain": "py", "reftype": "obj", "reftarget": f"scaledgd.{text}"}
    known = {"refexplicit": True, "refwarn": True, "refdoc": document}
    return pending_xref("", nodes.literal(rawtext, text), **about, **known)


def api(name, rawtext, text, lineno, inliner, options=None, content=None):
    """Link to a name of the package; the build fails where there is none."""
    return [link(rawtext, text, inliner)], []


def name(name, rawtext, text, lineno, inliner, options=None, content=None):
    """Link text in `single backticks` to public names, and show everything else as code."""
    public = text in scaledgd.__all__
    return [link(rawtext, text, inliner) if public else nodes.literal(rawtext, text)], []


def ours(app, what, name, obj, skip, options):
    """Leave out members that estimators and warnings inherit from other libraries."""
    module = inspect.getmodule(getattr(obj, "fget", obj))
    return True if module and not module.__name__.startswith("scaledgd") else None


def plain(app, what, name, obj, options, lines):
    """Docstrings are text: |r| is a magnitude and rank_ an attribute, neither is markup."""
    doctest = False
    for k, line in enumerate(lines):
        doctest = line.lstrip().startswith(">>>") or (doctest and bool(line.strip()))
        if not doctest and not line.lstrip().startswith(".. "):
            parts = re.split(r"(`+[^`]+`+)", line)
            parts[::2] = [re.sub(r"\||_(?!\w)", r"\\\g<0>", p) for p in parts[::2]]
            lines[k] = "".join(parts)


def math(block):
    """Mathematics as MathML, which browsers show without a script and without network."""

    def visit(translator, node):
        try:
            mathml = tex2mathml(node.astext(), as_block=block)
        except MathError as error:
            logging.getLogger(__name__).warning("%s", error, location=node)
            mathml = ""
        mathml = mathml.replace("<mo>⋆</mo>", "<mi>⋆</mi>")  # a name, and no operator
        translator.body.append(f'<div class="formula">{mathml}</div>\n' if block else mathml)
        raise nodes.SkipNode

    return visit


def setup(app):
    """Add the extensions of this site to Sphinx."""
    app.add_role("api", api)
    app.add_role("name", name)
    app.connect("autodoc-skip-member", ours)
    app.connect("autodoc-process-docstring", plain, priority=900)  # after numpydoc
    app.add_html_math_renderer("mathml", (math(False), None), (math(True), None))
