"""What is swapped into vLLM: whole layers, whatever part of them changed."""

from prime_node.engine.vllm.records import expand_to_layers, is_mixture

NAMES = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.experts.3.up_proj.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.1.self_attn.k_proj.weight",
    "model.layers.10.self_attn.q_proj.weight",
    "model.norm.weight",
]


def test_a_changed_tensor_brings_the_rest_of_its_layer_and_no_other() -> None:
    changed = {"model.layers.1.self_attn.k_proj.weight", "model.norm.weight"}
    assert expand_to_layers(changed, NAMES) == {*NAMES[3:5], NAMES[6]}
    assert expand_to_layers({NAMES[1]}, NAMES) == set(NAMES[1:3])
    assert expand_to_layers({NAMES[0]}, NAMES) == {NAMES[0]}
    assert expand_to_layers(set(), NAMES) == set()


def test_a_mixture_is_known_by_its_tensors_whether_apart_or_joined() -> None:
    assert is_mixture(NAMES)
    assert is_mixture(["model.layers.3.mlp.experts.gate_up_proj"])
    assert not is_mixture([name for name in NAMES if "experts" not in name])
