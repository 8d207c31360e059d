"""Sphinx's settings for the book. scripts/book.py copies this folder next to the pages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "The Distributed Trainer Rehearsal"
html_title = project
author = copyright = "the contributors"
extensions = ["myst_nb", "mathml", "one_page"]
exclude_patterns = ["_static"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # by scripts/book.py, two notebooks at a time
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],  # its search field is in the sidebar already
}
html_context = {"default_mode": "auto"}
