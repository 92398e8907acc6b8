"""Follows this node's own submissions through the public log until each is over, and keeps an eye on its stake.

One part of the daemon. It moves the journal forward, removes files that nobody needs any more, and tells the agent of a
slash to appeal or of stake that the run asks for. It asks often while something is new, and seldom while nothing is.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from prime_node import public_log
from prime_node.events import Event, SlashSeen, StakeMissing
from prime_node.journal import Journal, Piece, PieceState
from prime_node.public_log import NodeSeen, RunSeen, SubmissionSeen
from prime_node.shelf import Shelf
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.receipts import SubmissionReceipt
from prime_protocol.signing import Signature
from prime_protocol.typed_data import Domain, check_document
from prime_runtime.clock import Clock
from prime_runtime.json_client import JsonClient, NotKnown, open_json_client

log = logging.getLogger(__name__)

LOOK_MS = 2_000
LOOK_MS_MAX = 60_000
"""Between two looks; doubling while nothing changes."""
PAGE_ROWS = 100
PAGES_MAX = 10
"""Pages of submissions read at one look: what is older is settled, or comes up when newer ones are."""
LATE_MS = 60_000
"""After a lease's deadline: what the log does not have then, it will never have."""
FOLLOW_MS = 30 * 24 * 3_600_000
"""How long a piece is followed at most."""

S = PieceState


def find_state(seen: SubmissionSeen, unpaid: frozenset[int]) -> PieceState:
    """How far a piece is, from what the log shows of it."""
    if seen.credited:
        return S.CREDITED if seen.step in unpaid else S.PAID
    return {
        "waiting": S.RECEIVED,
        "auditing": S.CHECKED if seen.verdicts else S.RECEIVED,
        "accepted": S.ACCEPTED,
        "soft": S.REJECTED,
        "hard": S.REJECTED,
    }.get(seen.progress, S.RECEIVED)


def find_missing_stake(node: NodeSeen, run: RunSeen) -> int:
    """What the node should put up of its own; 0 where it cannot, or should not without its owner's word."""
    missing = run.stake_min_nano - node.stake_nano
    return missing if 0 < missing <= node.balance_nano and not node.hard else 0


class Outcomes:
    """One node's."""

    def __init__(
        self,
        url: str,
        authority: Path | None,
        *,
        node: NodeId,
        run: RunId,
        domain: Domain,
        journal: Journal,
        shelf: Shelf,
        stakes: bool,
        tell: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        self._url = url
        self._authority = authority
        self._node = node
        self._run = run
        self._domain = domain
        self._journal = journal
        self._shelf = shelf
        self._stakes = stakes
        """Whether this node stakes for itself."""
        self._tell = tell
        self._clock = clock
        self._news = asyncio.Event()
        self._stake_asked = 0
        self.seen: NodeSeen | None = None
        """This node in the books, as last heard."""
        self.problem = ""

    def expect_news(self) -> None:
        """Something of this node has just been logged."""
        self._news.set()

    async def run(self) -> None:
        wait_ms = LOOK_MS
        async with open_json_client(self._url, self._authority) as api:
            while True:
                try:
                    changed = await self.look(api)
                    self.problem = ""
                except (LocalError, RemoteError) as error:
                    self.problem, changed = str(error), False
                    log.debug("the public log cannot be read: %s", error)
                wait_ms = LOOK_MS if changed else min(LOOK_MS_MAX, 2 * wait_ms)
                if await self._pause(wait_ms):
                    wait_ms = LOOK_MS

    async def _pause(self, wait_ms: int) -> bool:
        """Until it is time, or there is news; whether there is."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    # --- One look ---------------------------------------------------------------------------------------------------

    async def look(self, api: JsonClient) -> bool:
        """Whether anything moved."""
        run = public_log.read("run", await api.get(f"/runs/{self._run}"), public_log.to_run)
        changed = await self._look_at_node(api, run)
        pieces = {piece.submission: piece for piece in self._journal.list_open(self._run) if piece.submission}
        if not pieces:
            return changed
        seen = await self._list_submissions(api, set(pieces))
        for name, piece in pieces.items():
            assert name is not None
            moved = await self._move(api, piece, seen.get(name), run)
            if moved != piece:
                changed = True
                self._tidy(moved)
        return changed

    async def _look_at_node(self, api: JsonClient, run: RunSeen) -> bool:
        try:
            answer = await api.get(f"/nodes/{self._node}")
        except NotKnown:
            return True  # it registers just now
        node = public_log.read("node", answer, lambda detail: public_log.to_node(detail, self._run))
        changed, self.seen = node != self.seen, node
        if self._stakes:
            missing = find_missing_stake(node, run)
            if missing != self._stake_asked:
                self._stake_asked = missing
                self._tell(StakeMissing(missing))
        return changed

    async def _list_submissions(self, api: JsonClient, wanted: set[Digest | None]) -> dict[Digest, SubmissionSeen]:
        found: dict[Digest, SubmissionSeen] = {}
        query = {"node": str(self._node), "run": str(self._run), "limit": str(PAGE_ROWS)}
        for _ in range(PAGES_MAX):
            page = await api.get("/submissions", **query)
            rows, cursor = public_log.read("submissions", page, public_log.to_submissions)
            found |= {row.submission: row for row in rows}
            if cursor is None or wanted <= found.keys():
                break
            query["cursor"] = cursor
        return found

    async def _move(self, api: JsonClient, piece: Piece, seen: SubmissionSeen | None, run: RunSeen) -> Piece:
        now_ms = self._clock.now_ms()
        if seen is None:
            return self._judge_absence(piece, now_ms)
        state = find_state(seen, run.unpaid)
        if state is not S.REJECTED:
            return self._journal.advance(piece, state, now_ms)
        if seen.progress == "hard":
            return await self._follow_slash(api, piece, now_ms)
        if piece.state is not S.REJECTED or piece.is_open:
            reason = piece.reason or await self._find_reason(api, seen.submission)
            return self._journal.advance(piece, S.REJECTED, now_ms, reason=reason, is_open=False)
        return piece

    def _judge_absence(self, piece: Piece, now_ms: int) -> Piece:
        """The log does not list it: not yet, too late, or so long ago that nobody follows it any more."""
        if piece.state is S.PRODUCED and now_ms > piece.deadline_ms + LATE_MS:
            return self._journal.advance(
                piece, S.REFUSED, now_ms, reason="it was not in the log before its lease's deadline"
            )
        if now_ms > piece.started_ms + FOLLOW_MS:
            return self._journal.advance(piece, piece.state, now_ms, is_open=False)
        return piece

    async def _follow_slash(self, api: JsonClient, piece: Piece, now_ms: int) -> Piece:
        name = piece.submission
        assert name is not None
        if piece.state is not S.REJECTED:
            reason = await self._find_reason(api, name)
            log.error("submission %s was found dishonest: %s", name, reason)
            piece = self._journal.advance(piece, S.REJECTED, now_ms, reason=reason, is_open=True)
        try:
            slash = public_log.read("slash", await api.get(f"/slashes/{name}"), public_log.to_slash)
        except NotKnown:
            return piece  # it is proposed in a moment
        if slash.progress == "proposed" and slash.appeal_until_ms is not None:
            self._tell(SlashSeen(name, slash.appeal_until_ms, is_own=True))
        if slash.progress == "executed":
            return self._journal.advance(piece, S.SLASHED, now_ms, reason=piece.reason)
        return piece

    async def _find_reason(self, api: JsonClient, submission: Digest) -> str:
        page = await api.get("/verdicts", submission=str(submission))
        return public_log.read("verdicts", page, public_log.to_reason)

    def _tidy(self, piece: Piece) -> None:
        """A file whose fate is settled is of no more use here: the coordinator has it."""
        is_settled = piece.state in (S.ACCEPTED, S.CREDITED, S.PAID) or not piece.is_open
        if piece.file is not None and is_settled:
            self._shelf.remove(piece.file)

    # --- For evidence -----------------------------------------------------------------------------------------------

    async def find_receipt(self, submission: Digest) -> tuple[SubmissionReceipt, Signature] | None:
        """A worker's signed word for a submission, from the public log."""
        try:
            async with open_json_client(self._url, self._authority) as api:
                return await ask_receipt(api, submission, self._domain)
        except (LocalError, RemoteError) as error:
            log.info("the receipt of %s cannot be had: %s", submission, error)
            return None


async def ask_receipt(api: JsonClient, submission: Digest, domain: Domain) -> tuple[SubmissionReceipt, Signature]:
    """A worker's word from the public log, with a good signature. That it is about this submission is not checked."""
    page = await api.get("/log/entries", kind="Submitted", subject=str(submission))
    receipt, signature = public_log.read("entries", page, public_log.to_receipt)
    check_document(receipt, signature, signer=receipt.node, domain=domain)
    return receipt, signature
