"""Parameter counts of a decoder, exact, from its architecture; and the architecture from a Hugging Face `config.json`.

A layer: query, key, value and output projections, the feed-forward matrices (gate, up, down; two where it is not gated; as many times as
there are experts, with a router before them) and the norms; beside the layers the embedding, the output head (unless it is the embedding)
and the last norm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checks.catalog import Architecture

ADAPTED = ("query", "key", "value", "output", "feed-forward")
"""The linear layers that LoRA adapts, where it adapts all of them."""
CONFIG_CAP_BYTES = 1 << 20
FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi3")
"""The `model_type`s whose layers are made as here; any other has parts that would be counted wrongly."""
ODD_PARTS = {
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "first_k_dense_replace": "dense layers among the experts",
    "mlp_only_layers": "dense layers among the experts",
    "interleave_moe_layer_step": "dense layers among the experts",
    "kv_lora_rank": "latent attention",
    "attn_layer_period": "layers without attention",
    "expert_layer_period": "dense layers among the experts",
    "ffn_config": "a feed-forward of its own kind",
}
GEMMA3_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}
"""What the published files leave to the class (transformers, Gemma3TextConfig)."""


def _attention(model: Architecture) -> dict[str, tuple[int, int]]:
    """The attention's projections: inputs and outputs."""
    query, key_value = model.heads * model.head_size, model.kv_heads * model.head_size
    return {
        "query": (model.hidden, query),
        "key": (model.hidden, key_value),
        "value": (model.hidden, key_value),
        "output": (query, model.hidden),
    }


def _feed_forwards(model: Architecture) -> int:
    """The matrices of one feed-forward."""
    return 3 if model.gated else 2


def _linear(model: Architecture, experts: int) -> int:
    attention = sum(inputs * outputs for inputs, outputs in _attention(model).values())
    return model.layers * (attention + experts * _feed_forwards(model) * model.hidden * model.feed_forward)


def linear_parameters(model: Architecture) -> int:
    """The weights of the matrices inside the decoder layers."""
    return _linear(model, model.experts)


def _of_experts(model: Architecture) -> int:
    return model.layers * model.experts * _feed_forwards(model) * model.hidden * model.feed_forward if model.experts > 1 else 0


def adaptable_parameters(model: Architecture) -> int:
    """The weights that bitsandbytes quantises and LoRA adapts when it is told `all-linear`: experts are one tensor for all of them, and no
    linear layers (transformers 5)."""
    return linear_parameters(model) - _of_experts(model)


def active_parameters(model: Architecture) -> int:
    """The weights that multiply each token: the active experts' alone, and the output head; a look-up in the embedding multiplies nothing."""
    return _linear(model, model.active_experts) + model.vocabulary * model.hidden


def layer_parameters(model: Architecture) -> int:
    """The parameters of one decoder layer."""
    biases = (model.heads + 2 * model.kv_heads) * model.head_size if model.qkv_bias else 0
    router = model.experts * model.hidden if model.experts > 1 else 0
    norms = model.norms * model.hidden + (2 * model.head_size if model.qk_norm else 0)
    return linear_parameters(model) // model.layers + norms + biases + router


def embedding_parameters(model: Architecture) -> int:
    """Embedding and output head."""
    return model.vocabulary * model.hidden * (1 if model.tied_embeddings else 2)


def parameters(model: Architecture) -> int:
    """All parameters: Llama 3 70B 70,553,706,496; Llama 2 70B 68,976,648,192; Llama 3 8B 8,030,261,248."""
    return model.layers * layer_parameters(model) + embedding_parameters(model) + model.hidden


def lora_parameters(model: Architecture, rank: int, targets: tuple[str, ...] = ADAPTED) -> int:
    """The parameters of LoRA adapters of this rank on the named linear layers: rank × (inputs + outputs) each; experts get none."""
    attention = sum(inputs + outputs for name, (inputs, outputs) in _attention(model).items() if name in targets)
    adapted = "feed-forward" in targets and model.experts == 1
    feed_forward = _feed_forwards(model) * (model.hidden + model.feed_forward) if adapted else 0
    return model.layers * rank * (attention + feed_forward)


class ConfigError(ValueError):
    """A `config.json` that no architecture can be read from: one line."""


def from_config_json(path: Path) -> Architecture:
    """The architecture that a Hugging Face `config.json` describes (Llama, Mistral, Mixtral, Qwen 2 and 3, Gemma and their like). Raises
    `ConfigError`."""
    try:
        with path.open("rb") as opened:
            raw = json.loads(opened.read(CONFIG_CAP_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'not JSON'}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: not a model's config.json")
    raw = raw.get("text_config", raw) if isinstance(raw.get("text_config", raw), dict) else raw
    family = str(raw.get("model_type", ""))
    odd = next((words for name, words in ODD_PARTS.items() if raw.get(name)), None)
    if odd or family not in FAMILIES:
        said = f"has {odd}, which" if odd else "is a model_type that" if family else "(no model_type) is a model that"
        raise ConfigError(
            f"{path}: {family} {said} this model of memory does not know; it knows {', '.join(FAMILIES)}".replace(":  ", ": ")
        )
    if family == "gemma3_text":
        raw = {**GEMMA3_DEFAULTS, **raw}

    def number(*names: str, default: int | None = None) -> int:
        value: Any = next((raw[name] for name in names if raw.get(name) is not None), default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 32:
            raise ConfigError(f"{path}: {names[0]} is {'missing' if value is None else 'not a size'}")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    experts = number("num_local_experts", "num_experts", default=1)
    active = number("num_experts_per_tok", default=1) if experts > 1 else 1
    if active > experts:
        raise ConfigError(f"{path}: num_experts_per_tok is {active}, of {experts} experts")
    feed_forward = ("moe_intermediate_size", "intermediate_size") if experts > 1 else ("intermediate_size",)
    tied = raw.get("tie_word_embeddings", family.startswith("gemma"))
    return Architecture(
        id=path.stem,
        name=str(raw.get("_name_or_path") or family or path.stem),
        layers=number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_size=number("head_dim", default=max(1, hidden // heads)),
        feed_forward=number(*feed_forward),
        vocabulary=number("vocab_size"),
        tied_embeddings=bool(tied),
        qkv_bias=bool(raw.get("attention_bias", family == "qwen2")) and not family.startswith("qwen3"),
        qk_norm=family.startswith(("qwen3", "gemma3")),
        norms=4 if family in ("gemma2", "gemma3_text") else 2,
        attention_window=number("sliding_window") if family in ("mistral", "mixtral") and raw.get("sliding_window") else None,
        experts=experts,
        active_experts=active,
    )
