"""Settings of Sphinx for the site."""

from __future__ import annotations

from rlcore import __version__

project = "rlcore"
author = "the rlcore authors"
copyright = author  # noqa: A001  # the name that Sphinx reads
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "website.markdown_docstrings",
]
root_doc = "index"
default_role = "py:obj"  # names in docstrings are in single backticks

myst_heading_anchors = 4
highlight_language = "text"  # of blocks without a language

autodoc_typehints = "signature"
maximum_signature_line_length = 100
napoleon_use_ivar = True
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"rlcore {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("search_words.js", {"defer": "defer"})]  # after the search itself, and before it begins
html_favicon = "static/logo.svg"
html_logo = "static/logo.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#2c5c9e",
        "color-brand-content": "#2c5c9e",
        "color-api-name": "#2c5c9e",
        "color-api-pre-name": "#6b7280",
    },
    "dark_css_variables": {
        "color-brand-primary": "#e0a95a",
        "color-brand-content": "#8fb8f0",
        "color-api-name": "#e0a95a",
        "color-api-pre-name": "#9aa3af",
    },
}
