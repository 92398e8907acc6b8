"""What an entry says, in one line for a list. Pure; plain text that a page escapes like any other."""

from typing import Any

from prime_protocol import entries as e
from prime_protocol.names import friendly_name
from prime_runtime.wording import show_amount, show_bytes

BRIEF_CHARS_MAX = 160


def write_brief(entry: Any) -> str:
    """Empty where the kind says it all."""
    return _write(entry)[:BRIEF_CHARS_MAX]


def _write(entry: Any) -> str:
    match entry:
        case e.Deposited(account=account, amount_nano=amount, run=run) if run is not None:
            return f"{show_amount(amount)} tokens for the pool of {run}, by {friendly_name(account)}"
        case e.Deposited(account=account, amount_nano=amount):
            return f"{show_amount(amount)} tokens for {friendly_name(account)}"
        case e.Withdrawn(amount_nano=amount) | e.RunFunded(amount_nano=amount) | e.PoolReturned(amount_nano=amount):
            return f"{show_amount(amount)} tokens"
        case e.NodeRegistered(roles=roles, hardware=hardware):
            return f"{', '.join(roles)}; {hardware}" if hardware else ", ".join(roles)
        case e.NodeStatusSet(node=node, status=status, reason=reason):
            return _with_reason(f"{friendly_name(node)} is {status}", reason)
        case e.Delegated(delegation=delegation):
            return f"{friendly_name(delegation.node)} works for {friendly_name(delegation.owner)}"
        case e.DelegationRevoked(node=node) | e.Released(node=node):
            return friendly_name(node)
        case e.Staked(node=node, amount_nano=amount) | e.Unbonded(node=node, amount_nano=amount):
            return f"{show_amount(amount)} tokens, {friendly_name(node)}"
        case e.RunCreated(terms=terms) | e.RunUpdated(terms=terms):
            return f"{terms.model}, {terms.task_set}"
        case e.RunStatusSet(status=status, reason=reason):
            return _with_reason(str(status), reason)
        case e.HeadNoted(root=root):
            return f"root {str(root)[:10]}…"
        case e.CheckpointPublished(step=step, trained_on=names):
            return f"step {step}, trained on {len(names):,} submissions"
        case e.StepMeasured(step=step, metrics=metrics):
            return f"step {step}: " + ", ".join(f"{each.name} {each.value:.4g}" for each in metrics)
    return _write_work(entry)


def _write_work(entry: Any) -> str:
    match entry:
        case e.LeaseGranted(lease=lease, node=node, step=step, slots=slots):
            return f"lease {lease:,} for {friendly_name(node)}: {slots:,} slots of step {step:,}"
        case e.LeaseEnded(lease=lease, reason=reason):
            return _with_reason(f"lease {lease:,}", reason)
        case e.Submitted(receipt=receipt, output_tokens=tokens, file_bytes=size):
            return f"lease {receipt.lease:,}, step {receipt.step:,}: {tokens:,} tokens, {show_bytes(size)}"
        case e.AuditDrawn(round=number, validators=validators):
            drawn = ", ".join(map(friendly_name, validators))
            return f"round {number}: {drawn}" if validators else "not drawn for audit"
        case e.VerdictGiven(outcome=outcome, reason=reason):
            return _with_reason(str(outcome), reason)
        case e.PlantRevealed(outcome=outcome) | e.Settled(outcome=outcome):
            return str(outcome)
        case e.Credited(units=units):
            return "1 unit" if units == 1 else f"{units:,} units"
        case e.PaidOut(step=step):
            return f"step {step:,}"
        case e.ValidatorScored(validator=node):
            return f"{friendly_name(node)} found otherwise"
        case e.Inspected(seen=seen):
            return "1 verdict inspected" if len(seen) == 1 else f"{len(seen)} verdicts inspected"
        case e.SlashProposed(amount_nano=amount):
            return f"{show_amount(amount)} tokens into escrow"
        case e.Appealed(reason=reason):
            return reason
    return ""


def _with_reason(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text
