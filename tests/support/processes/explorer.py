"""Parts for tests of the explorer: a short life of a network in a real coordinator process, and a real browser.

The life has honest work, a cheater that is slashed, a wronged node that appeals, and people who write markup wherever
they may write at all.
"""

import asyncio
import json
import shutil
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import numpy as np
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from prime_coordinator.config import LogWriterConfig
from prime_coordinator.intervals import IntervalsConfig
from prime_explorer.config import ExplorerConfig
from prime_protocol.gossip.messages import RELAY_PUBLISH, RelayPublish, ServingRecord, seal_gossip
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.weights.manifest import (
    Manifest,
    ManifestFile,
    ManifestKind,
    ManifestShard,
    ManifestTensor,
    compute_blake3,
    seal_manifest,
)
from prime_protocol.weights.safetensors_header import Dtype
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_protocol.wire.messages import AuditTask, UploadPurpose
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, VerdictReceipt, compute_receipt_id, sign_document
from prime_runtime.clock import SystemClock
from prime_runtime.model_files import digest_model_files
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.ledger_network import STAKE, make_registration
from support.processes.coordinator import (
    FUND,
    NETWORK,
    RUN,
    CoordinatorProcess,
    Party,
    make_folder,
    party,
    terms,
    until_beacon,
    until_drawn,
)

T = TypeVar("T")
VALIDATORS = 4
APPEAL_MS = 4_000
MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
"""What a page must show as it stands, wherever somebody could write it."""
TOKENS = [MARKUP, " said ", "</pre>", *(f"w{number} " for number in range(61))]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


class LoopThread:
    """An event loop of its own, so that tests which wait in a browser do not stop the network."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=120)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass
class Stage:
    """A coordinator that runs, and who and what is in its log."""

    loop: LoopThread
    process: CoordinatorProcess
    stack: AsyncExitStack
    parties: dict[str, Party]
    names: dict[str, Digest]
    """Submissions: `good`, `cheat`, `wronged`, `open`."""

    @property
    def url(self) -> str:
        return self.process.server.url

    @property
    def mirror(self) -> Path:
        return self.process.config.folder / "mirror"

    def node(self, name: str) -> NodeId:
        return self.parties[name].node

    def paths(self) -> dict[str, str]:
        """One address of each page."""
        names = {name: str(digest) for name, digest in self.names.items()}
        return {
            "overview": "/",
            "run": f"/runs/{RUN}",
            "checkpoint": f"/runs/{RUN}/checkpoints/1",
            "nodes": "/nodes",
            "worker": f"/nodes/{self.node('worker')}",
            "cheater": f"/nodes/{self.node('cheat')}",
            "validator": f"/nodes/{self.node('validator-0')}",
            "account": f"/nodes/{self.process.node}",
            "submissions": "/submissions",
            "submission": f"/submissions/{names['good']}",
            "rejected": f"/submissions/{names['cheat']}",
            "slashes": "/slashes",
            "slash": f"/slashes/{names['cheat']}",
            "appeal": f"/slashes/{names['wronged']}",
            "log": "/log",
            "entry": "/log/7",
            "heads": "/log/heads",
            "network": "/network",
            "search": "/search?q=e",
            "about": "/about",
            "missing": "/nodes/0x" + "00" * 20,
        }


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    """Everything up to the point where one submission is still being judged."""
    loop = LoopThread()
    try:
        stage = loop.do(_begin(loop, folder))
        try:
            yield stage
        finally:
            loop.do(stage.stack.aclose())
            loop.do(stage.process.kill())
    finally:
        loop.close()


async def _begin(loop: LoopThread, folder: Path) -> Stage:
    model = make_tiny_checkpoint(folder / "model", vocabulary=64)
    (model / "tokenizer.json").write_text(json.dumps(word_tokenizer(TOKENS)))
    settings = {"explorer": ExplorerConfig(models=(model,)), "intervals": IntervalsConfig(head_ms=50, tick_ms=50)}
    bound = {
        "model_files": digest_model_files(model),
        "appeal_ms": APPEAL_MS,
        "judgement_ms": 60_000,
        "long_stop_ms": 60_000,
    }
    config = await make_folder(folder / "coordinator", books=LogWriterConfig(head_ms=200), settings=settings, **bound)
    process = CoordinatorProcess(config)
    await process.start()
    stack = AsyncExitStack()
    people = ("trainer", "sponsor", "worker", "cheat", "wronged", *(f"validator-{n}" for n in range(VALIDATORS)))
    parties = {name: await stack.enter_async_context(party(process, name)) for name in people}
    stage = Stage(loop, process, stack, parties, {})
    await Play(stage, terms(**bound)).act()
    return stage


def word_tokenizer(words: list[str]) -> dict[str, Any]:
    """Token n is word n."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {word: place for place, word in enumerate(words)}, "unk_token": "w0 "},
    }


class Play:
    """What happens on the stage, in order."""

    def __init__(self, stage: Stage, wanted: RunTerms) -> None:
        self.stage = stage
        self.parties = stage.parties
        self.terms = wanted
        self.validators = [each for name, each in stage.parties.items() if name.startswith("validator")]

    async def act(self) -> None:
        await self.parties["sponsor"].write(e.RunFunded(amount_nano=FUND))
        for name in ("worker", "cheat", "wronged"):
            await self.join(self.parties[name], Role.WORKER, MARKUP if name == "cheat" else f"{name}'s machine")
        for validator in self.validators:
            await self.join(validator, Role.VALIDATOR, "a rack")
        first = await self.publish(0)
        beacon = await until_beacon(self.parties["worker"])
        outcomes = {"worker": Outcome.ACCEPT, "cheat": Outcome.FRAUDULENT, "wronged": Outcome.FRAUDULENT}
        names = {}
        for who, outcome in outcomes.items():
            names[who] = await self.submit(self.parties[who], beacon, first.root)
            for validator, task in await until_drawn(self.validators, names[who]):
                await self.judge(validator, task, outcome)
        await self.appeal(names["wronged"])
        self.stage.names |= {"good": names["worker"], "cheat": names["cheat"], "wronged": names["wronged"]}
        await self.until("slash", "executed", names["cheat"])
        await self.until("slash", "overturned", names["wronged"])
        second = await self.publish(1, names["worker"])
        await self.measure(0, held_out=0.25)
        await self.measure(1, held_out=0.5, entropy=1.25, mismatch_kl=0.01, **{MARKUP[:48]: 3.0})
        worker = self.parties["worker"]
        await self.serve(worker, second.manifest)
        await self.serve(self.parties["validator-0"], Digest(bytes(32)), worker.key.node)
        beacon = await self.until_beacon_of(1)
        self.stage.names["open"] = await self.submit(self.parties["worker"], beacon, second.root, step=1)
        await until_drawn(self.validators, self.stage.names["open"])

    async def join(self, who: Party, role: Role, hardware: str) -> None:
        await who.write(make_registration(who.key, role, hardware=hardware))
        await who.write(e.Staked(node=who.node, amount_nano=STAKE))

    async def publish(self, step: int, *trained_on: Digest) -> e.CheckpointPublished:
        trainer = self.parties["trainer"]
        now_ms = SystemClock().now_ms()
        manifest = make_manifest(step)
        sealed = seal_manifest(trainer.key, manifest, network=NETWORK, sequence=step, now_ms=now_ms)
        await trainer.upload(sealed.frame, UploadPurpose.MANIFEST)
        entry = make_checkpoint_entries(trained_on, step=Step(step), root=sealed.root, manifest=sealed.digest)[1]
        await trainer.write(entry)
        return entry

    async def measure(self, step: int, **numbers: float) -> None:
        metrics = tuple(e.Metric(name=name, value=numbers[name]) for name in sorted(numbers))
        await self.parties["trainer"].write(e.StepMeasured(step=Step(step), metrics=metrics))

    async def serve(self, who: Party, manifest: Digest, *parents: NodeId) -> None:
        """Say that it passes weights on."""
        word = ServingRecord(
            urls=("http://127.0.0.1:9",),
            depth=len(parents),
            slots_free=3,
            manifests=(manifest,),
            parents=parents,
            sent_bytes=3 * 10**9,
        )
        now_ms = SystemClock().now_ms()
        frame = seal_gossip(who.key, word, network=NETWORK, run=RUN, sequence=now_ms * 1024, now_ms=now_ms)
        await who.call(RELAY_PUBLISH, RelayPublish(frame=frame))

    async def until_beacon_of(self, step: int) -> Digest:
        while True:
            weights = (await self.parties["worker"].beat()).weights
            if weights is not None and weights.step == step and weights.beacon is not None:
                return weights.beacon
            await asyncio.sleep(0.05)

    async def submit(self, who: Party, beacon: Digest, root: Digest, step: int = 0) -> Digest:
        lease = await who.lease(step)
        data, entry = who.answer(lease, beacon=beacon, root=root, wanted=self.terms)
        await who.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
        await who.write(entry)
        return compute_receipt_id(entry.receipt)

    async def judge(self, validator: Party, task: AuditTask, outcome: Outcome) -> None:
        """With numbers and evidence of the form that prime-node writes."""
        over = 3.0 if outcome is Outcome.FRAUDULENT else 0.3
        evidence = make_evidence(over)
        await validator.upload(evidence, UploadPurpose.EVIDENCE, submission=task.submission)
        receipt = VerdictReceipt(
            network=NETWORK,
            run=RUN,
            submission=task.submission,
            validator=validator.node,
            outcome=e.OUTCOME_NUMBER[outcome],
            evidence=Digest(sha256(evidence).digest()),
        )
        metrics = {"margin_max": over, "logprob_error_max": over / 4, "exponent_mismatches_max": 12 * over}
        metrics |= {"reward_mean": 0.5} if outcome is Outcome.ACCEPT else {}
        await validator.write(
            e.VerdictGiven(
                receipt=receipt,
                signature=sign_document(validator.key, receipt, EMBEDDED_DOMAIN),
                outcome=outcome,
                reason=MARKUP if outcome is Outcome.FRAUDULENT else "",
                metrics=tuple(e.Metric(name=name, value=float(value)) for name, value in metrics.items()),
            )
        )

    async def appeal(self, name: Digest) -> None:
        """The wronged node is heard by others."""
        await self.until("slash", "proposed", name)
        await self.parties["wronged"].write(e.Appealed(submission=name, reason=MARKUP))
        for validator, task in await until_drawn(self.validators, name):
            await self.judge(validator, task, Outcome.ACCEPT)

    async def until(self, field: str, value: str, name: Digest) -> None:
        """As the page of the submission tells it."""
        session = self.parties["worker"].session
        while True:
            async with session.get(f"{self.stage.url}/api/v1/submissions/{name}") as answer:
                if answer.status == 200 and (await answer.json())["summary"][field] == value:
                    return
            await asyncio.sleep(0.1)


def make_evidence(over: float) -> bytes:
    chunk = [128, int(12 * over), 1, 300, 3, 0, 9, 0, 0]
    reports = np.array([chunk, [128, 2, 0, 100, 1, 0, 9, 0, 0]], dtype="<i4").tobytes()
    rows = [{"row": number, "margin_max": over, "reports": reports} for number in range(2)]
    return bytes(msgpack.packb({"numbers": rows, "reason": MARKUP}))


def make_manifest(step: int) -> Manifest:
    """A keyframe of one small tensor; the bytes themselves are nobody's business here."""
    data = bytes([step]) * 4096
    digest = compute_blake3(data)
    return Manifest(
        run=RUN,
        step=Step(step),
        kind=ManifestKind.KEYFRAME,
        base=None,
        shard_bytes=65536,
        files=(ManifestFile(name="model.safetensors", size=len(data)),),
        shards=(ManifestShard(file=0, offset=0, length=len(data), digest=digest),),
        tensors=(
            ManifestTensor(
                name="w", dtype=Dtype.BF16, shape=(2048,), size=4096, digest=digest, file=0, offset=0, length=4096
            ),
        ),
    )


# --- The browser ------------------------------------------------------------------------------------------------------


def open_browser(*, is_scripted: bool = True) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    assert CHROMIUM is not None
    assert DRIVER is not None
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    browser.set_page_load_timeout(30)
    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not is_scripted})
    return browser


def set_screen(browser: webdriver.Chrome, width: int, *, dark: bool = False, height: int = 900) -> None:
    media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def wait_for(browser: webdriver.Chrome, script: str, seconds: float = 15.0) -> Any:
    """Until a script gives something that is true."""
    return WebDriverWait(browser, seconds, poll_frequency=0.1).until(lambda driver: driver.execute_script(script))
