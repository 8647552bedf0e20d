"""A mean and its deviation stay on one line, in tables too."""

from typing import Any


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Put spaces that do not break around every plus-minus sign."""
    return html.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
