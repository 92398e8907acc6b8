"""The local page, its style and the metrics, as routes for local_server.py. Whatever they show, they change nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from prime_node.page.html_page import STYLE_PATH, render_page
from prime_runtime.door import Page
from prime_runtime.metrics import Metrics

STYLE = Path(__file__).with_name("style.css")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def make_pages(report: Callable[[], dict[str, Any]], metrics: Metrics) -> dict[str, Page]:
    style = STYLE.read_text()

    async def show_page(request: web.Request) -> web.StreamResponse:
        return web.Response(text=render_page(report()), content_type="text/html", headers=HEADERS)

    async def show_style(request: web.Request) -> web.StreamResponse:
        return web.Response(text=style, content_type="text/css", headers=HEADERS)

    return {"/": show_page, STYLE_PATH: show_style, "/metrics": metrics.handle}
