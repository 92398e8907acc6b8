"""Models by name: a folder on this machine, or a name on the Hugging Face hub, whose files are fetched once.

Only what a run may use is fetched: shape, tokenizer, end tokens, prompt and safetensors. Nothing of it is run as code.

The model that learns: any causal language model that `transformers` reads from a local folder, in float32.

What it computes in may be less precise; what the optimizer adds to is not, since its steps are smaller than bf16 can
tell apart. Whether packing is right for an architecture is not believed but tried, once, when it is loaded.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_trainer.data.packing import Pack, PackLayout, Sample, make_pack, stack_rows
from prime_trainer.loss import LossInputs
from prime_trainer.model import attention
from prime_trainer.model.logprobs import score_hidden, score_tokens

log = logging.getLogger(__name__)


HUB_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w./-]*))?")
HUB_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "prompt.txt",
    "*.safetensors",
    "*.safetensors.index.json",
]


def resolve_model(given: Path, cache: Path | None = None) -> Path:
    """The folder of a model. A name is owner/model, or owner/model@revision; `cache` is the hub's own by default."""
    if given.exists():
        return given
    name = HUB_NAME.fullmatch(str(given))
    if name is None:
        raise LocalError(f"there is no folder {given}, and it is no name on the hub either (owner/model)")
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            name["repository"], revision=name["revision"], allow_patterns=HUB_FILES, cache_dir=cache
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise LocalError(
            f"there is no folder {given}, and the hub did not give a model of that name: {reason}. Without a network, "
            f"bring the folder from a machine that has one (`hf download {name['repository']}`) and name it here"
        ) from None
    return Path(found)


Tensor = Any

CPU = torch.device("cpu")
EAGER_ATTENTION = "eager"
"""Attention as `transformers` writes it out, for reference and for what cannot be packed."""
PROBE_LENGTHS = (9, 7, 9)
PROBE_ERROR_MAX = 1e-4
"""Most by which packing may change a logit, as a share of the largest. Rounding makes a millionth of it."""


class PolicyModel:
    """A model and how to ask it."""

    def __init__(
        self, model: Any, *, layout: PackLayout, head: "ScoringHead | None", device: str, precision: Precision
    ) -> None:
        self.model = model
        self.layout = layout
        """Packed, unless something would pass from one sample to the next in a pack."""
        self._head = head
        """None: the model does more to its logits than its head says, so they are made and kept."""
        self.device = torch.device(device)
        self._precision = precision

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: str = "cpu",
        precision: Precision = Precision.FLOAT32,
        gradient_checkpointing: bool = False,
    ) -> Self:
        """LocalError where the folder does not hold exactly the weights of a causal language model."""
        attention.register_attention()
        model = _load_model(folder)
        layout = detect_layout(model)
        if layout is not PackLayout.PACKED:
            log.warning("the model in %s cannot be packed: its samples are %s", folder, layout)
        head = detect_head(model)
        _disable_dropout(model)
        if gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return cls(model.to(device).train(), layout=layout, head=head, device=device, precision=precision)

    def score(self, pack: Pack) -> tuple[Tensor, Tensor]:
        """Log-prob of each trained token, and the entropy of the choice it was."""
        targets_T, temperature_T = self._to_device(pack.targets_T), self._to_device(pack.temperature_T)
        inputs, rows_T = make_inputs(pack, self.layout, self.device)
        with self._autocast():
            if self._head is None:
                return score_tokens(select_rows(self.model(**inputs).logits, rows_T), targets_T, temperature_T)
            with self._head.scoring(targets_T, temperature_T, rows_T):
                scores_T2 = self.model(**inputs).logits[0]
        return scores_T2[:, 0], scores_T2[:, 1]

    def compute_loss_inputs(
        self, pack: Pack, start_logp_T: Tensor | None = None, reference_logp_T: Tensor | None = None
    ) -> LossInputs:
        """All that the loss is made of. Without a start, the present weights are the step's first."""
        logp_T, entropy_T = self.score(pack)
        return LossInputs(
            logp_T=logp_T,
            entropy_T=entropy_T,
            start_logp_T=logp_T.detach() if start_logp_T is None else start_logp_T,
            sampled_logp_T=self._to_device(pack.sampled_logp_T),
            advantage_T=self._to_device(pack.advantage_T),
            mask_T=self._to_device(pack.mask_T),
            reference_logp_T=reference_logp_T,
        )

    def _to_device(self, values: Any) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._precision is Precision.FLOAT32:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self.device.type, torch.bfloat16)
        return context


class ScoringHead:
    """A model's head that gives scores of tokens instead of logits while it is asked to.

    It stays where it is in the model and runs inside of its forward pass, where FSDP has put its weights together.
    """

    def __init__(self, head: Any) -> None:
        self._plain = head.forward
        self._head = head
        self._targets: tuple[Tensor, Tensor] | None = None
        self._rows_T: Tensor | None = None
        head.forward = self._forward

    @contextmanager
    def scoring(self, targets_T: Tensor, temperature_T: Tensor, rows_T: Tensor | None) -> Iterator[None]:
        """`rows_T`: which hidden states they are about, where the model gives all of them."""
        self._targets, self._rows_T = (targets_T, temperature_T), rows_T
        try:
            yield
        finally:
            self._targets = None

    def _forward(self, hidden: Tensor) -> Tensor:
        if self._targets is None:
            return self._plain(hidden)
        head = self._head
        scores = score_hidden(select_rows(hidden, self._rows_T), head.weight, head.bias, *self._targets)
        return torch.stack([each[None] for each in scores], -1)


def make_inputs(pack: Pack, layout: PackLayout, device: Any) -> tuple[dict[str, Any], Tensor | None]:
    """What a model is called with, and which of the rows that come out are the trained tokens'; None: all of them.

    Logits are wanted of the trained tokens only: the vocabulary is large, and prompts are not learnt.
    """
    if layout is PackLayout.STACKED:
        tokens_NL, rows_T = stack_rows(pack)
        inputs = {"input_ids": torch.from_numpy(tokens_NL).to(device), "use_cache": False}
        return inputs, torch.from_numpy(rows_T).to(device)
    return {
        "input_ids": torch.from_numpy(pack.tokens_L)[None].to(device),
        "position_ids": torch.from_numpy(pack.positions_L)[None].to(device),
        "use_cache": False,
        "logits_to_keep": torch.from_numpy(pack.logit_index_T).to(device),
        attention.SEGMENT_BOUNDS: pack.bounds,
    }, None


def select_rows(values_NLX: Tensor, rows_T: Tensor | None) -> Tensor:
    return values_NLX[0] if rows_T is None else values_NLX.flatten(0, 1)[rows_T]


def compute_logits(model: Any, pack: Pack, layout: PackLayout) -> Tensor:
    inputs, rows_T = make_inputs(pack, layout, CPU)
    return select_rows(model(**inputs).logits, rows_T)


def _load_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # What goes wrong is an error of ours; hints about kernels that are not installed would fill the log.
    transformers_logging.set_verbosity_error()
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation=EAGER_ATTENTION,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise LocalError(f"cannot read a causal language model from {folder}: {error}") from None
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found[problem]:
            names = ", ".join(map(str, sorted(found[problem])[:3]))
            raise LocalError(f"the tensors in {folder} are not this model's: {problem.replace('_', ' ')} {names}")
    return model


def _disable_dropout(model: Any) -> None:
    """No dropout: a policy that answers differently each time has no ratio to its former self."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def detect_layout(model: Any) -> PackLayout:
    """The first in which samples give the same logits together as alone with the model's own attention.

    Packs need our attention, and the model is left with it where that is right. A recurrent model passes on its state,
    and some have more in their attention than ours knows of.
    """
    model.eval()
    samples = make_probe_samples(model)
    with torch.no_grad():
        alone_TV = torch.cat([compute_logits(model, make_pack([sample]), PackLayout.SINGLE) for sample in samples])
        for layout in (PackLayout.PACKED, PackLayout.STACKED):
            model.set_attn_implementation(attention.ATTENTION_NAME if layout is PackLayout.PACKED else EAGER_ATTENTION)
            try:
                if is_near(compute_logits(model, make_pack(samples), layout), alone_TV):
                    return layout
            except LocalError as error:
                log.info("samples cannot be %s: %s", layout, error)
    return PackLayout.SINGLE


def detect_head(model: Any) -> ScoringHead | None:
    """The model's head, where its logits are that head's product and nothing else; tried, as packing is."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        return None
    seen: list[Tensor] = []

    def swell(module: Any, given: Any, made: Tensor) -> Tensor:
        """What caps or scales logits does so visibly when they are large."""
        seen.append(1e3 * made)
        return seen[-1]

    hook = head.register_forward_hook(swell)
    with torch.no_grad():
        logits_TV = compute_logits(model, make_pack(make_probe_samples(model)[:1]), PackLayout.SINGLE)
    hook.remove()
    is_plain = len(seen) == 1 and seen[0].shape[1:] == logits_TV.shape and is_near(seen[0][0], logits_TV)
    return ScoringHead(head) if is_plain else None


def make_probe_samples(model: Any) -> list[Sample]:
    """Samples of random tokens."""
    dice, vocabulary = np.random.default_rng(0), model.config.get_text_config().vocab_size
    return [
        Sample(tokens[:1], tokens[1:], np.zeros(length, np.float32), 0.0, 1.0)
        for length in PROBE_LENGTHS
        for tokens in [dice.integers(0, vocabulary, length + 1, dtype=np.int32)]
    ]


def is_near(found_TV: Tensor, wanted_TV: Tensor) -> bool:
    return bool((found_TV - wanted_TV).abs().max() <= PROBE_ERROR_MAX * wanted_TV.abs().max())
