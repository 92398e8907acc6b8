"""What every command gets: arguments, environment, screen, password prompt, and the client of a running coordinator.

The client signs with the key in the coordinator's folder and accepts replies of that key alone.
"""

import asyncio
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prime_coordinator.cli.arguments import FOLDER, FOLDER_VARIABLE
from prime_coordinator.config import CoordinatorConfig, resolve_coordinator_config
from prime_coordinator.home import CoordinatorHome, load_key, read_lock
from prime_coordinator.operator_messages import (
    ANCHOR_NOW,
    COUNT_VALIDATORS,
    OPERATOR_ENTRY_ENDPOINTS,
    AnchorNow,
    AnchorScheduled,
    CountValidators,
    ValidatorCount,
)
from prime_protocol.errors import LocalError
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.messages import RUN, EntryReply, RunReply, RunRequest
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.console import CommandOutput
from prime_runtime.http.client import CallRefused, Unreachable, open_client
from prime_runtime.http.config import ClientLimits, ServerAddress
from prime_runtime.http.coordinator_api import open_json_client
from prime_runtime.keys import PASSWORD_CHARS_MIN
from prime_runtime.redaction import Secret

if TYPE_CHECKING:
    from prime_explorer.routes import PageRoute


class CoordinatorUnreachable(LocalError):
    """The coordinator is not running, or does not answer."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """One call of the command line."""

    args: Namespace
    variables: Mapping[str, str]
    """The environment, as main.py read it."""
    screen: CommandOutput
    print_error: Callable[[str], None]
    """One line on standard error."""
    ask_password: Callable[[bool], str | None]
    """Prompts on the terminal, twice if True; None if there is no terminal."""

    @property
    def folder(self) -> Path:
        given = self.args.folder or self.variables.get(FOLDER_VARIABLE) or FOLDER
        try:
            return Path(given).expanduser()
        except RuntimeError:
            raise LocalError("there is no home folder; give --folder") from None

    def load_config(self) -> CoordinatorConfig:
        """The settings of the coordinator in the folder."""
        if not CoordinatorHome(self.folder).config.exists():
            raise LocalError(
                f"there is no coordinator in {self.folder};"
                f" make one with: prime-coordinator init --folder {self.folder}"
            )
        return resolve_coordinator_config(self.folder, {}, self.settings_variables()).config

    def settings_variables(self) -> dict[str, str]:
        """The environment for the settings, without the folder, which is already known."""
        return {name: value for name, value in self.variables.items() if name != FOLDER_VARIABLE}

    def with_password(self, config: CoordinatorConfig, *, confirm: bool = False) -> CoordinatorConfig:
        """Prompt for the key's password if no setting has it and there is a terminal."""
        if config.password is not None or config.password_file is not None:
            return config
        text = self.ask_password(confirm)
        if text is None:
            return config
        if len(text) < PASSWORD_CHARS_MIN:
            raise LocalError(f"the password has {len(text)} characters, it needs at least {PASSWORD_CHARS_MIN}")
        return replace(config, password=Secret(text))


CLIENT_LIMITS = ClientLimits(deadline_ms=30_000, attempts_max=2)


class OperatorClient:
    """Calls one coordinator."""

    def __init__(self, context: OperatorContext) -> None:
        config = context.with_password(context.load_config())
        self._authority = context.args.authority
        self._network: NetworkId = config.network_id
        self._key: WalletKey = load_key(config)
        self._server = ServerAddress(context.args.url or find_url(context), self._key.node)
        self._folder = context.folder

    @property
    def coordinator(self) -> NodeId:
        return self._key.node

    def query(self, route: str, params: Mapping[str, str], *, is_fresh: bool = True) -> Any:
        """A page of prime_explorer/routes.py as JSON; with everything that is in the log now if it is to be fresh."""
        from prime_explorer.routes import JSON_ROOT

        page = find_route(route)
        path = page.json_path.removeprefix(JSON_ROOT).format(**{name: params[name] for name in page.in_path})
        given = {name: text for name, text in params.items() if name not in page.in_path}

        async def ask() -> Any:
            async with open_json_client(self._server.url, self._authority) as client:
                if is_fresh and page.needs_index:
                    await client.wait_for_index()
                return await client.get(path, **given)

        try:
            return asyncio.run(ask())
        except Unreachable as error:
            raise CoordinatorUnreachable(f"{error}. The coordinator's folder is {self._folder}") from None

    def get_terms(self, run: RunId) -> RunTerms:
        """The terms that hold for the run's next step."""
        reply: RunReply = self._call(RUN, RunRequest(after=2**63 - 1), run)
        return reply.terms

    def append_entry(self, entry: Any, run: RunId | None) -> EntryReply:
        """Have the coordinator append an entry to the log."""
        reply: EntryReply = self._call(OPERATOR_ENTRY_ENDPOINTS[type(entry)], entry, run)
        return reply

    def count_validators(self, run: RunId, terms: RunTerms) -> ValidatorCount:
        """How many owners could judge the work of a run, which need not exist yet, under these terms."""
        reply: ValidatorCount = self._call(COUNT_VALIDATORS, CountValidators(terms=terms), run)
        return reply

    def request_anchor(self) -> AnchorScheduled:
        """Have the coordinator anchor the log's head on the chain now."""
        reply: AnchorScheduled = self._call(ANCHOR_NOW, AnchorNow())
        return reply

    def _call(self, endpoint: Any, message: Any, run: RunId | None = None) -> Any:
        async def call() -> Any:
            async with open_client(
                key=self._key,
                network=self._network,
                clock=SystemClock(),
                limits=CLIENT_LIMITS,
                authority=self._authority,
            ) as client:
                reply = await client.call(self._server, endpoint, message, run=run)
                return reply.message

        try:
            return asyncio.run(call())
        except Unreachable as error:
            raise CoordinatorUnreachable(f"{error}. The coordinator's folder is {self._folder}") from None
        except CallRefused as error:
            refusal = error.refusal
            raise LocalError(f"refused: {refusal.field} {refusal.problem}".replace("  ", " ")) from None


def find_route(name: str) -> "PageRoute":
    """A page of the explorer. Imported here, because most commands ask for none."""
    from prime_explorer.routes import PAGE_ROUTES

    return next(page for page in PAGE_ROUTES if page.name == name)


def find_url(context: OperatorContext) -> str:
    """Where the coordinator of this folder listens, from its lock file."""
    url = read_lock(context.folder).get("url")
    if not isinstance(url, str):
        raise CoordinatorUnreachable(
            f"the coordinator in {context.folder} is not running;"
            f" start it with: prime-coordinator start --folder {context.folder}"
        )
    return url
