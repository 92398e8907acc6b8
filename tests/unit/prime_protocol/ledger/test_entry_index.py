"""What an entry is found by: every kind has a card, and the cards of a story lead to each other."""

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.entry_index import EntryKeys, compute_entry_keys, lease_subject, list_subjects
from support.ledger_network import ON_CHAIN, RUN, World, digest


def cards_of(world: World) -> list[EntryKeys]:
    return [compute_entry_keys(leaf) for leaf in world.leaves]


def test_a_submission_is_found_by_its_name_its_file_and_its_lease() -> None:
    world = World.started()
    name = world.settled("ann", Outcome.FRAUDULENT)
    file_digest = world.submission(name).file_digest
    (card,) = [card for card in cards_of(world) if card.kind == "Submitted"]
    assert set(card.subjects) == {str(name), str(file_digest), lease_subject(RUN, 0)}
    assert (card.author, card.run) == (world.id("ann"), RUN)


def test_the_whole_story_of_a_slash_leads_to_its_submission() -> None:
    world = World.started()
    name = world.convicted("ann")
    world.appeal("ann", name)
    kinds = [card.kind for card in cards_of(world) if str(name) in card.subjects]
    judged = [*["VerdictCommitted"] * 3, *["VerdictGiven"] * 3]
    assert kinds == ["Submitted", "AuditDrawn", *judged, "Settled", "SlashProposed", "Appealed"]


def test_a_node_is_found_by_all_that_others_say_of_it() -> None:
    world = World.started()
    world.register("new", Role.WORKER)
    world.delegate("boss", "new")
    world.deposit("boss", 10)
    world.stake("boss", "new", 3)
    world.coordinate(e.NodeStatusSet(node=world.id("new"), status=e.NodeStatus.BANNED, reason=""))
    world.write("boss", e.DelegationRevoked(node=world.id("new")))
    kinds = [card.kind for card in cards_of(world) if str(world.id("new")) in card.subjects]
    assert kinds == ["Delegated", "Staked", "NodeStatusSet", "DelegationRevoked"]


def test_what_came_into_a_pool_is_found_by_its_run() -> None:
    world = World.started(domain=ON_CHAIN)
    world.deposit("friend", 10)
    assert [card.run for card in cards_of(world) if card.kind == "Deposited"][-2:] == [RUN, None]


def test_a_lease_has_its_run_in_its_name() -> None:
    world = World.started()
    lease = world.lease("ann")
    world.write("ann", e.LeaseEnded(lease=lease, reason="no power"))
    kinds = [card.kind for card in cards_of(world) if lease_subject(RUN, lease) in card.subjects]
    assert kinds == ["LeaseGranted", "LeaseEnded"]
    assert list_subjects(RUN, e.LeaseEnded(lease=lease, reason="")) == [f"lease {RUN} 0"]


def test_subjects_are_sorted_and_named_once() -> None:
    world = World.started()
    world.convicted("bob")
    for card in cards_of(world):
        assert list(card.subjects) == sorted(set(card.subjects))


def test_a_validators_fault_is_found_by_the_validator_and_by_the_submission() -> None:
    world = World.started()
    name, validator = world.settled("ann", Outcome.ACCEPT), world.id("val-0")
    assert list_subjects(RUN, e.ValidatorScored(validator=validator, submission=name)) == [str(name), str(validator)]
    readers = world.readers(name)
    inspected = world.inspection(name, {reader: world.looks(reader, name) for reader in readers})
    assert list_subjects(RUN, inspected) == [str(name), *map(str, sorted(map(world.id, readers)))]


def test_rulings_and_findings_are_found_by_their_submission_and_evidence() -> None:
    name, evidence = digest("a submission"), digest("a bundle")
    ruling = e.RulingGiven(submission=name, outcome=Outcome.ACCEPT, evidence=evidence, reason="")
    filed = e.FindingFiled(submission=name, evidence=evidence, reason="")
    for entry in (ruling, filed):
        assert list_subjects(RUN, entry) == [str(name), str(evidence)]
    for entry in (e.FindingUpheld(submission=name), e.FindingDismissed(submission=name)):
        assert list_subjects(RUN, entry) == [str(name)]
