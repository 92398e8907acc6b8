"""Laws of gossip: what is sealed opens to the same, nothing else opens, and no frame is passed on twice."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from prime_protocol.errors import RemoteError
from prime_protocol.gossip.guard import GossipAccepted
from prime_protocol.gossip.messages import CheckpointAnnounced, GossipKind, ServingRecord, open_gossip
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.addresses import PeerAddress, ServerUrl
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, Step
from support.gossip_network import ANN, BOB, NETWORK, NOW_MS, RUN, guard, judged, sealed, serving, topic_of

digests = st.binary(min_size=32, max_size=32).map(Digest)
labels = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
ports = st.integers(1, 65_535)
hosts = st.ip_addresses(v=4).filter(lambda ip: not (ip.is_link_local or ip.is_multicast or ip.is_unspecified)).map(
    str
) | st.lists(labels, min_size=1, max_size=4).map(".".join)
urls = st.builds("{}://{}:{}".format, st.sampled_from(["http", "https"]), hosts, ports)
records = st.builds(
    ServingRecord,
    urls=st.lists(urls, max_size=8, unique=True).map(tuple),
    depth=st.integers(0, 64),
    slots_free=st.integers(0, 4096),
    manifests=st.lists(digests, max_size=8, unique=True).map(tuple),
)


@st.composite
def announcements(draw: st.DrawFn) -> CheckpointAnnounced:
    base = draw(st.none() | digests)
    return CheckpointAnnounced(
        step=Step(draw(st.integers(0, 2**63 - 1))),
        root=draw(digests),
        manifest=draw(digests),
        manifest_bytes=draw(st.integers(1, 4 * 2**20)),
        kind=ManifestKind.KEYFRAME if base is None else ManifestKind.DELTA,
        base=base,
        transport_bytes=draw(st.integers(1, 2**40)),
    )


@settings(deadline=None)
@given(records | announcements())
def test_every_message_survives_the_envelope_and_has_one_encoding(message: ServingRecord | CheckpointAnnounced) -> None:
    kind = GossipKind.SERVING if isinstance(message, ServingRecord) else GossipKind.ANNOUNCED
    gossip = open_gossip(topic_of(kind), sealed(message), network=NETWORK, run=RUN, now_ms=NOW_MS)
    assert gossip.message == message
    assert encode(decode(type(message), gossip.payload.body)) == gossip.payload.body


@given(urls)
def test_every_url_has_one_spelling(text: str) -> None:
    assert str(ServerUrl.parse(text)) == text
    for other in (text.upper(), text + "/", text.replace(":", ":0", 2), " " + text):
        try:
            assert str(ServerUrl.parse(other)) == other != text
        except RemoteError:
            continue


@given(st.text(max_size=80) | st.from_regex(r"/ip[46]/[0-9a-f.:]{0,20}/tcp/[0-9]{1,6}/p2p/16Uiu2HA[a-zA-Z0-9]{45}"))
def test_what_parses_as_a_peer_address_is_printed_the_same(text: str) -> None:
    try:
        assert str(PeerAddress.parse(text)) == text
    except RemoteError:
        return


@dataclass(frozen=True)
class Hearing:
    """A frame arrives: a fresh one of some sender, or one that was heard before."""

    after_ms: int
    sender: int
    sequence: int
    again: int | None


stories = st.lists(
    st.builds(
        Hearing,
        st.sampled_from([0, 1, 500, 2_000, 10_000, 60_000]),
        st.integers(0, 1),
        st.integers(0, 30),
        st.none() | st.integers(0, 5),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=150)
@given(stories)
def test_no_frame_is_accepted_twice_and_numbers_only_rise(story: list[Hearing]) -> None:
    """While the clock runs forward, which it does between two restarts of a machine that keeps time."""
    ours, now_ms = guard(), NOW_MS
    heard: list[bytes] = []
    accepted: dict[tuple[bytes, int], int] = {}
    for hearing in story:
        now_ms += hearing.after_ms
        key = (ANN, BOB)[hearing.sender]
        if hearing.again is not None and heard:
            frame = heard[hearing.again % len(heard)]
        else:
            frame = sealed(serving(), key, sequence=hearing.sequence, now_ms=now_ms)
        heard.append(frame)
        verdict = judged(ours, frame, GossipKind.SERVING, now_ms=now_ms)
        if isinstance(verdict, GossipAccepted):
            letter = verdict.gossip.payload
            alive = [
                sequence
                for (sender, sequence), expires_ms in accepted.items()
                if sender == letter.sender and expires_ms > now_ms
            ]
            assert all(letter.sequence > sequence for sequence in alive)
            accepted[letter.sender, letter.sequence] = letter.expires_at_ms
