"""The model that is trained: any causal language model that `transformers` reads from a local folder, in float32.

It may compute in bf16, but the weights that the optimizer updates are float32, because an update is smaller than bf16
resolves. Whether packing is correct for an architecture is not assumed but tried, once, when the model is built.
A model is named by a folder, or by a name on the Hugging Face hub. Only configuration, tokenizer, prompt and
safetensors files are fetched, and none of them is executed as code.
"""

import logging
import re
from collections.abc import Callable, Iterator
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
from prime_trainer.model.context import ContextSlice, slice_pack
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.head import score_hidden
from prime_trainer.model.loading import (
    EAGER_ATTENTION,
    LoadedTensors,
    TensorFiles,
    allocate_weights,
    build_model,
    build_without_weights,
    fill_weights,
    read_config,
    shorten_config,
)
from prime_trainer.model.logprobs import score_tokens
from prime_trainer.model.offload import offload_activations

log = logging.getLogger(__name__)

Tensor = Any

HUB_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w./-]*))?")
HUB_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "prompt.txt",
    "*.safetensors",
    "*.safetensors.index.json",
]
DTYPES = {Precision.FLOAT32: torch.float32, Precision.BFLOAT16: torch.bfloat16}
CPU = torch.device("cpu")
PROBE_LENGTHS = (9, 7, 9)
PROBE_ERROR_MAX = 1e-4
"""Largest change of a logit by packing, as a share of the largest logit. Rounding causes about a millionth."""


class PolicyModel:
    """The model that is trained, and how its tokens are scored."""

    def __init__(
        self,
        model: Any,
        *,
        layout: PackLayout,
        head: "ScoringHead | None",
        device: str,
        precision: Precision,
        is_offloading: bool = False,
        ranks: RankGroup | None = None,
    ) -> None:
        self.model = model
        self.layout = layout
        """Packed, unless state would leak from one sample to the next in a pack."""
        self._head = head
        """None where the model transforms the head's output, so that the logits must be materialised."""
        self.device = torch.device(device)
        self._precision = precision
        self.offload: Callable[[], AbstractContextManager[Any]] = offload_activations if is_offloading else nullcontext
        """Where stored activations go."""
        self._ranks = ranks or RankGroup()

    @classmethod
    def build(
        cls,
        folder: Path,
        *,
        ranks: RankGroup | None = None,
        device: str = "cpu",
        precision: Precision = Precision.FLOAT32,
        head_precision: Precision | None = None,
        gradient_checkpointing: bool | None = None,
        is_offloading: bool = False,
    ) -> Self:
        """The model of a folder, sharded over the ranks, with memory for the weights and no values yet."""
        ranks = ranks or RankGroup()
        config = read_config(folder)
        layout, has_plain_head = ranks.broadcast(try_model(config) if ranks.is_first else (PackLayout.SINGLE, False))
        if layout is not PackLayout.PACKED and ranks.context_size > 1:
            raise LocalError(f"the model in {folder} cannot be packed, so ranks.context must be 1")
        if layout is not PackLayout.PACKED:
            log.warning("the model in %s cannot be packed; its layout is %s", folder, layout)
        model = build_without_weights(config)
        attention.register_attention()
        model.set_attn_implementation(get_attention(layout))
        head_precision = head_precision or precision
        head = ScoringHead(model.get_output_embeddings(), head_precision) if has_plain_head else None
        disable_dropout(model)
        if device.startswith("cuda") if gradient_checkpointing is None else gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        ranks.shard(model, precision, head_precision)
        allocate_weights(model, device)
        return cls(
            model.train(),
            layout=layout,
            head=head,
            device=device,
            precision=precision,
            is_offloading=is_offloading,
            ranks=ranks,
        )

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        """The same with the weights of the folder. LocalError unless it holds exactly those of the model."""
        policy = cls.build(folder, **options)
        if not fill_weights(policy.model, TensorFiles(folder)):
            log.warning("the tensors in %s have other names than the model's: loading all of them at once", folder)
            is_filled = fill_weights(policy.model, LoadedTensors(_load_whole(folder)))
            assert is_filled, "a model has the tensors of its own configuration"
        return policy

    def score(self, pack: Pack, *, has_entropy_gradient: bool = True) -> tuple[Tensor, Tensor]:
        """Log-prob of each trained token of this rank, and the entropy of the distribution it was sampled from.

        Without a gradient of the entropy the head's backward pass is faster.
        """
        pack, context = self._slice(pack)
        targets_T, temperature_T = self._to_device(pack.targets_T), self._to_device(pack.temperature_T)
        inputs, rows_T = make_inputs(pack, self.layout, self.device)
        if context is not None:
            inputs[attention.SEGMENT_BOUNDS] = context
        with self._autocast(), self.offload():
            if self._head is None:
                return score_tokens(select_rows(self.model(**inputs).logits, rows_T), targets_T, temperature_T)
            with self._head.scoring(targets_T, temperature_T, rows_T, has_entropy_gradient=has_entropy_gradient):
                scores_T2 = self.model(**inputs).logits[0]
        return scores_T2[:, 0], scores_T2[:, 1]

    def compute_loss_inputs(
        self,
        pack: Pack,
        start_logp_T: Tensor | None = None,
        reference_logp_T: Tensor | None = None,
        *,
        has_entropy_gradient: bool = True,
    ) -> LossInputs:
        """The inputs of the loss. Without `start_logp_T`, the current weights are those at the start of the step."""
        logp_T, entropy_T = self.score(pack, has_entropy_gradient=has_entropy_gradient)
        pack, _ = self._slice(pack)
        return LossInputs(
            logp_T=logp_T,
            entropy_T=entropy_T,
            start_logp_T=logp_T.detach() if start_logp_T is None else start_logp_T,
            sampled_logp_T=self._to_device(pack.sampled_logp_T),
            advantage_T=self._to_device(pack.advantage_T),
            mask_T=self._to_device(pack.mask_T),
            reference_logp_T=reference_logp_T,
        )

    def _slice(self, pack: Pack) -> tuple[Pack, ContextSlice | None]:
        """This rank's part of a pack, where several ranks compute it."""
        ranks = self._ranks
        if ranks.context_size == 1:
            return pack, None
        return slice_pack(pack, ranks.context_size, ranks.context_rank, ranks.context_group)

    def _to_device(self, values: Any) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._precision is Precision.FLOAT32:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self.device.type, torch.bfloat16)
        return context


class ScoringHead:
    """Replaces the forward of a model's head: within `scoring` it returns token scores instead of logits.

    The head stays in the model and runs inside its forward pass, because FSDP gathers its weights only there.
    """

    def __init__(self, head: Any, precision: Precision) -> None:
        self._plain = head.forward
        self._head = head
        self._dtype = DTYPES[precision]
        self._targets: tuple[Tensor, Tensor] | None = None
        self._rows_T: Tensor | None = None
        self._has_entropy_gradient = True
        head.forward = self._forward

    @contextmanager
    def scoring(
        self, targets_T: Tensor, temperature_T: Tensor, rows_T: Tensor | None, *, has_entropy_gradient: bool
    ) -> Iterator[None]:
        """`rows_T` selects hidden states, where the model passes all of them to the head."""
        self._targets, self._rows_T = (targets_T, temperature_T), rows_T
        self._has_entropy_gradient = has_entropy_gradient
        try:
            yield
        finally:
            self._targets = None

    def _forward(self, hidden: Tensor) -> Tensor:
        if self._targets is None:
            return self._plain(hidden)
        hidden_TH, head = select_rows(hidden, self._rows_T), self._head
        scores = score_hidden(
            hidden_TH,
            head.weight,
            head.bias,
            *self._targets,
            self._dtype,
            has_entropy_gradient=self._has_entropy_gradient,
        )
        return torch.stack([each[None] for each in scores], -1)


def make_inputs(pack: Pack, layout: PackLayout, device: Any) -> tuple[dict[str, Any], Tensor | None]:
    """The model's keyword arguments, and which output rows belong to trained tokens; None: all of them.

    Only the logits of trained tokens are computed: the vocabulary is large, and prompts are not trained.
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


def resolve_model(given: Path, cache: Path | None = None) -> Path:
    """The folder of a model; downloads owner/model or owner/model@revision once. `cache` defaults to the hub's own."""
    if given.exists():
        return given
    name = HUB_NAME.fullmatch(str(given))
    if name is None:
        raise LocalError(f"there is no folder {given}, and it is not a name on the hub (owner/model)")
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            name["repository"], revision=name["revision"], allow_patterns=HUB_FILES, cache_dir=cache
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise LocalError(
            f"there is no folder {given}, and downloading it from the hub failed: {reason}. Without a network, copy "
            f"the folder from another machine (`hf download {name['repository']}`) and give its path"
        ) from None
    return Path(found)


def read_model(folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model of a folder, and what `transformers` says about loading it."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # Failures raise; below that level `transformers` fills the log with hints about kernels that are not installed.
    transformers_logging.set_verbosity_error()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise LocalError(f"cannot read a causal language model from {folder}: {error}") from None
    return model, info


def _load_whole(folder: Path) -> Any:
    """As `transformers` loads it, which converts names of older or split tensors and says what does not fit."""
    model, info = read_model(folder, dtype=torch.float32, attn_implementation=EAGER_ATTENTION, use_safetensors=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem]:
            names = ", ".join(map(str, sorted(info[problem])[:3]))
            raise LocalError(f"the tensors in {folder} do not fit the model: {problem.replace('_', ' ')} {names}")
    return model


def disable_dropout(model: Any) -> None:
    """Dropout would change log-probs at random, so the ratio to the policy at the start would be meaningless."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def try_model(config: Any) -> tuple[PackLayout, bool]:
    """The layout, and whether the logits are exactly the head's output: found with a small copy of the model.

    It has one layer of each kind and random weights, so the trial takes neither the model's memory nor its weights.
    """
    attention.register_attention()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(shorten_config(config))
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                # Usual initial weights are so small that a layer hardly changes its input; trained ones are not.
                torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    torch.nn.init.normal_(module.bias, std=0.1)
    disable_dropout(model)
    return detect_layout(model), detect_head(model)


def get_attention(layout: PackLayout) -> str:
    return attention.ATTENTION_NAME if layout is PackLayout.PACKED else EAGER_ATTENTION


def detect_layout(model: Any) -> PackLayout:
    """The first layout whose logits equal those of single samples with the model's own attention.

    Packing needs our attention. It fails for recurrent models, which carry state across samples, and for models whose
    attention has features that ours lacks.
    """
    model.eval()
    samples = make_probe_samples(model)
    with torch.no_grad():
        single_TV = torch.cat([compute_logits(model, make_pack([sample]), PackLayout.SINGLE) for sample in samples])
        for layout in (PackLayout.PACKED, PackLayout.STACKED):
            model.set_attn_implementation(get_attention(layout))
            try:
                if is_near(compute_logits(model, make_pack(samples), layout), single_TV):
                    return layout
            except LocalError as error:
                log.info("layout %s fails: %s", layout, error)
    return PackLayout.SINGLE


def detect_head(model: Any) -> bool:
    """Whether the logits are exactly the output of the model's head."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        return False
    seen: list[Tensor] = []

    def enlarge(module: Any, inputs: Any, output: Tensor) -> Tensor:
        """Enlarge the head's output, so that any capping or scaling after it becomes visible."""
        seen.append(1e3 * output)
        return seen[-1]

    hook = head.register_forward_hook(enlarge)
    with torch.no_grad():
        logits_TV = compute_logits(model, make_pack(make_probe_samples(model)[:1]), PackLayout.SINGLE)
    hook.remove()
    return len(seen) == 1 and seen[0].shape[1:] == logits_TV.shape and is_near(seen[0][0], logits_TV)


def make_probe_samples(model: Any) -> list[Sample]:
    """Samples of random tokens, for trials."""
    rng, vocabulary = np.random.default_rng(0), model.config.get_text_config().vocab_size
    return [
        Sample(tokens[:1], tokens[1:], np.zeros(length, np.float32), 0.0, 1.0)
        for length in PROBE_LENGTHS
        for tokens in [rng.integers(0, vocabulary, length + 1, dtype=np.int32)]
    ]


def is_near(actual_TV: Tensor, expected_TV: Tensor) -> bool:
    return bool((actual_TV - expected_TV).abs().max() <= PROBE_ERROR_MAX * expected_TV.abs().max())
