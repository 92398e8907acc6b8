"""Renders views with templates. Every text is escaped."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from aiohttp import web

from prime_explorer.formatting import DRAWINGS, FILTERS, GLOBALS, with_query
from prime_explorer.index.store import IndexNotReady, IndexReader, ReadTransaction
from prime_explorer.routes import JSON_ROOT
from prime_protocol.wire.ids import DEFAULT_TICKER

if TYPE_CHECKING:
    from prime_explorer.server import PageError


FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFrame:
    """What every page shows besides its view."""

    network: str
    ticker: str
    """Name of the network's unit of value."""
    size: int
    """Entries in the index."""
    signed_size: int
    """Entries under the newest verified head."""
    head_ms: int
    problem: str
    """Why verification of the log failed; empty if it did not."""
    local_error: str
    """Why the log cannot be read at the moment; empty if it can."""
    address: str
    """Scheme and host as the client sees them."""
    path: str
    data_path: str
    """Path of the same page as JSON; empty if there is none."""
    is_live: bool
    """The coordinator itself serves this page."""
    has_files: bool
    """Files that the log names are available."""


class Renderer:
    """The templates of this package."""

    def __init__(self, *, is_live: bool, has_files: bool) -> None:
        self._is_live = is_live
        self._has_files = has_files
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            cache_size=-1,
        )
        self._environment.filters |= FILTERS
        self._environment.globals |= {**GLOBALS, **DRAWINGS, "static": get_static_url}
        for name in self._environment.list_templates():
            self._environment.get_template(name)  # now: a release that is installed later must not mix with this one

    async def render(
        self, reader: IndexReader, name: str, view: Any, request: web.Request, query: Mapping[str, str]
    ) -> bytes:
        """`query` are the parameters that the view was made with."""
        template = self._environment.get_template(name)

        def fill(db: ReadTransaction) -> bytes:
            frame = self._frame(db.read_meta(), request, with_query(JSON_ROOT + request.path.rstrip("/"), query))
            return template.render(view=view, frame=frame, query=dict(request.query)).encode()

        return await reader.query(fill)

    async def render_failure(self, reader: IndexReader, failure: "PageError", request: web.Request) -> str:
        try:
            facts = await reader.query(ReadTransaction.read_meta)
        except IndexNotReady:
            facts = {}
        frame = self._frame(facts, request, "")
        return self._environment.get_template("failure.html").render(failure=failure, frame=frame, query={})

    def _frame(self, facts: dict[str, Any], request: web.Request, data_path: str) -> PageFrame:
        return PageFrame(
            network=facts.get("network", ""),
            ticker=facts.get("ticker", DEFAULT_TICKER),
            size=facts.get("size", 0),
            signed_size=facts.get("signed_size", 0),
            head_ms=facts.get("head_ms", 0),
            problem=facts.get("problem", ""),
            local_error=facts.get("local_error", ""),
            address=str(request.url.origin()),
            path=request.path,
            data_path=data_path,
            is_live=self._is_live,
            has_files=self._has_files,
        )


def get_static_url(name: str) -> str:
    """The URL contains a digest, so that clients can cache the file without a limit."""
    digest = _DIGESTS.get(name)
    if digest is None:
        digest = _DIGESTS[name] = sha256((FOLDER / "static" / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


_DIGESTS: dict[str, str] = {}
