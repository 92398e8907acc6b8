"""Every form that an entry or a message was ever written in, and the steps that bring an old form to the newest. Pure.

The version in an envelope selects the form of its body: the newest form that is not newer than the version.
`decode_form` reads that form and applies each upgrade step in turn, so that the rest of the code sees the newest form
only. Forms are never removed: a log is readable for as long as it exists.

To change an entry: raise PROTOCOL_VERSION, keep the old dataclass here under a name with its number, add its upgrade
step and a downgrade step, and test both. docs/decisions/0015-versioned-rules.md has the whole procedure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, make_dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, cast, get_type_hints

from prime_protocol import constants
from prime_protocol.constants import LINEAGE_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import CheckpointPublished, RulesChanged, RunCreated, RunUpdated, SubmissionsListed
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.ledger.versions.lineage import compute_lineage_root
from prime_protocol.proofs.class_bounds import NO_CLASS_BOUNDS
from prime_protocol.wire.codec import Size, decode, encode
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import LeaseRequest, RunReply, StepReply

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OldForm:
    """A form that a newer one has replaced."""

    kind: type
    """As it is encoded."""
    until: int
    """The first version with the next form."""
    upgrade: Callable[[Any], Any]
    """To the next form, with nothing lost."""
    downgrade: Callable[[Any], Any]
    """From the next form, for authors in networks whose rules are older. RemoteError where it cannot be said."""


# --- CheckpointPublished ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished1:
    """Trainer: the weights of a step, and the submissions they were trained on. Until version 2."""

    step: Step
    root: Digest
    manifest: Digest
    trained_on: Annotated[tuple[Digest, ...], Size(0, LINEAGE_MAX)]
    """All of them, in any order."""


def upgrade_checkpoint_1(old: CheckpointPublished1) -> CheckpointPublished:
    """The list keeps its order, which the rules of version 1 do not restrict."""
    return CheckpointPublished(
        step=old.step,
        root=old.root,
        manifest=old.manifest,
        trained_on=old.trained_on,
        trained_on_root=compute_lineage_root(sorted(old.trained_on)),
        trained_on_count=len(old.trained_on),
    )


def downgrade_checkpoint_2(new: CheckpointPublished) -> CheckpointPublished1:
    if new.trained_on_count != len(new.trained_on):
        raise RemoteError("trained_on_count", f"is {new.trained_on_count}, rules 1 allow {LINEAGE_MAX} at most")
    return CheckpointPublished1(step=new.step, root=new.root, manifest=new.manifest, trained_on=new.trained_on)


# --- RunTerms, and what holds them ------------------------------------------------------------------------------------


def make_old_kind(
    kind: Any, number: int, *, without: frozenset[str] = frozenset(), changed: Mapping[str, Any] | None = None
) -> Any:
    """The dataclass of an old form that differs from the newest one by a few fields only.

    A form must never change, so whoever adds a field later names it here too: the frozen logs have all these forms.
    """
    hints = get_type_hints(kind, include_extras=True) | dict(changed or {})
    columns = [(each.name, hints[each.name]) for each in fields(kind) if each.name not in without]
    return make_dataclass(f"{kind.__name__}{number}", columns, frozen=True, slots=True, kw_only=True)


RunTerms2 = make_old_kind(RunTerms, 2, without=frozenset({"class_bounds"}))
"""Until version 3: without a table of bounds by pair of engine classes."""


def upgrade_terms_2(old: Any) -> RunTerms:
    return RunTerms(**_list_values(old))


def downgrade_terms_3(new: RunTerms) -> Any:
    if new.class_bounds != NO_CLASS_BOUNDS:
        raise RemoteError("terms.class_bounds", "is a table, which rules 2 do not have: announce rules 3 first")
    values = _list_values(new)
    del values["class_bounds"]
    return RunTerms2(**values)


def upgrade_holder(kind: Any, old: Any) -> Any:
    """Of a message that holds terms."""
    return kind(**{**_list_values(old), "terms": upgrade_terms_2(old.terms)})


def downgrade_holder(old_kind: Any, new: Any) -> Any:
    return old_kind(**{**_list_values(new), "terms": downgrade_terms_3(new.terms)})


def _list_values(message: Any) -> dict[str, Any]:
    return {each.name: getattr(message, each.name) for each in fields(message)}


def _make_holder_form(kind: type) -> OldForm:
    old_kind = make_old_kind(kind, 2, changed={"terms": RunTerms2})
    return OldForm(old_kind, 3, partial(upgrade_holder, kind), partial(downgrade_holder, old_kind))


def make_shorter_form(kind: type, number: int, defaults: Mapping[str, Any]) -> OldForm:
    """A request without the fields that the next version added. A program of that version means the defaults, and the
    answer of an older one to what the fields ask for is that it does not know them."""
    old_kind = make_old_kind(kind, number, without=frozenset(defaults))

    def upgrade(old: Any) -> Any:
        return kind(**_list_values(old), **defaults)

    def downgrade(new: Any) -> Any:
        return old_kind(**{name: value for name, value in _list_values(new).items() if name not in defaults})

    return OldForm(old_kind, number + 1, upgrade, downgrade)


# --- The table --------------------------------------------------------------------------------------------------------

OLD_FORMS: dict[type, tuple[OldForm, ...]] = {
    CheckpointPublished: (OldForm(CheckpointPublished1, 2, upgrade_checkpoint_1, downgrade_checkpoint_2),),
    **{kind: (_make_holder_form(kind),) for kind in (RunCreated, RunUpdated, StepReply, RunReply)},
    LeaseRequest: (make_shorter_form(LeaseRequest, 2, {"rows_at_once": 0}),),
}
"""Oldest first. A type that is not here has one form. gossip/messages.py adds those of its own."""

FIRST_VERSIONS: dict[type, int] = {SubmissionsListed: 2}
"""Types that did not exist in version 1."""

assert RulesChanged not in FIRST_VERSIONS, "every program must be able to read the announcement of newer rules"
assert all([form.until for form in forms] == sorted({form.until for form in forms}) for forms in OLD_FORMS.values()), (
    "forms follow each other"
)


def find_form(kind: type, version: int) -> int:
    """Number of the form that a type has in that version: 0 is the oldest, -1 is none yet."""
    if version < FIRST_VERSIONS.get(kind, 0):
        return -1
    return sum(version >= form.until for form in OLD_FORMS.get(kind, ()))


def decode_form(kind: type[T], version: int, body: bytes) -> T:
    """The message in the newest form, from a body in the form of that version. RemoteError as from `decode`."""
    old = OLD_FORMS.get(kind, ())
    number = find_form(kind, min(version, constants.PROTOCOL_VERSION))
    if number < 0:
        raise RemoteError("Payload.version", f"is {version}, {kind.__name__} exists from {FIRST_VERSIONS[kind]} on")
    if number == len(old):
        return decode(kind, body)
    message: Any = decode(old[number].kind, body)
    for form in old[number:]:
        message = form.upgrade(message)
    return cast(T, message)


def encode_form(message: Any, version: int) -> bytes:
    """The body in the form of that version. RemoteError where that form cannot say it."""
    kind = type(message)
    old, number = OLD_FORMS.get(kind, ()), find_form(kind, version)
    if number < 0:
        raise RemoteError("Payload.version", f"is {version}, {kind.__name__} exists from {FIRST_VERSIONS[kind]} on")
    for form in reversed(old[number:]):
        message = form.downgrade(message)
    return encode(message)


def choose_version(kind: type, rules: int) -> int:
    """The version to write an entry with under these rules: the newest one with the form that they demand."""
    newest = constants.PROTOCOL_VERSION
    return newest if find_form(kind, newest) == find_form(kind, rules) else rules


def check_form(kind: type, version: int, rules: int) -> None:
    """Refuse an entry whose version is below the rules in force, or selects another form than theirs."""
    if version < rules:
        raise RemoteError("Payload.version", f"is {version}, the log follows rules {rules}: upgrade prime-swarm")
    found, wanted = find_form(kind, min(version, constants.PROTOCOL_VERSION)), find_form(kind, rules)
    if found != wanted:
        raise RemoteError(
            "Payload.version", f"is {version}, with another form of {kind.__name__} than the log's rules {rules} have"
        )
