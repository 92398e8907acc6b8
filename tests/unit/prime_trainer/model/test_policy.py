"""Which models are taken, and which of them can be packed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma2Config, MambaConfig

from prime_protocol.errors import LocalError
from prime_trainer.data.packing import PackLayout, make_packs
from prime_trainer.model.policy import PolicyModel
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.training_samples import make_sample

TINY = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 1}


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot read a causal language model"):
        PolicyModel.load(tmp_path)


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_tensors_of_another_model_are_refused_by_name(tmp_path: Path, change: str) -> None:
    """`transformers` would fill in random numbers and go on."""
    folder = make_tiny_checkpoint(tmp_path, hidden=32, layers=1)
    tensors = load_file(folder / "model.safetensors")
    if change == "missing":
        del tensors["model.norm.weight"]
    else:
        tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(2, 2)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(LocalError, match=f"{change} keys"):
        PolicyModel.load(folder)


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(**TINY),
        Gemma2Config(
            **TINY,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=64,
            final_logit_softcapping=0.5,
            attn_logit_softcapping=0.5,
        ),
    ],
    ids=["recurrent", "capped"],
)
def test_model_that_packing_would_change_gets_a_row_for_each_sample(tmp_path: Path, config: object) -> None:
    """Log-probs, entropies and gradients are those of each sample alone: no state comes from the sample before."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    policy = PolicyModel.load(tmp_path)
    assert policy.layout is PackLayout.STACKED
    samples = [make_sample(number, prompt=2 + number, output=5 - number) for number in range(3)]
    wanted = []
    for sample in samples:
        # Whatever the model does to its logits after the head is part of what is scored.
        tokens = torch.from_numpy(np.append(sample.prompt_tokens, sample.output_tokens)).long()
        first = len(sample.prompt_tokens)
        log = model(tokens[None, :-1], use_cache=False).logits[0, first - 1 :].log_softmax(-1)
        wanted.append(log.gather(-1, tokens[first:, None])[:, 0] - (log.exp() * log).sum(-1))
    (pack,) = make_packs(samples, policy.layout, tokens_max=100)
    logp, entropy = policy.score(pack)
    torch.testing.assert_close(logp + entropy, torch.cat(wanted), rtol=1e-4, atol=1e-5)
    torch.cat(wanted).sum().backward()
    (logp + entropy).sum().backward()
    grads = dict(model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[name].grad, rtol=1e-3, atol=1e-5)


def test_model_is_trained_in_float32_whatever_its_files_are_in(tmp_path: Path) -> None:
    policy = PolicyModel.load(make_tiny_checkpoint(tmp_path, hidden=32, layers=1))
    assert policy.layout is PackLayout.PACKED
    assert {each.dtype for each in policy.model.parameters()} == {torch.float32}
