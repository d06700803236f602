"""Parameter counts of a decoder, exact, from its architecture.

A layer: query, key, value and output projections, three feed-forward matrices (gate, up, down) and two norms; beside the layers the
embedding, the output head (unless it is the embedding) and the last norm.
"""

from __future__ import annotations

from checks.catalog import Architecture


def linear_parameters(model: Architecture) -> int:
    """The weights of the linear layers inside the decoder layers: what QLoRA quantises and LoRA adapts."""
    query = model.heads * model.head_size
    key_value = model.kv_heads * model.head_size
    return model.layers * (model.hidden * (2 * query + 2 * key_value) + 3 * model.hidden * model.feed_forward)


def layer_parameters(model: Architecture) -> int:
    """The parameters of one decoder layer."""
    return linear_parameters(model) // model.layers + 2 * model.hidden


def embedding_parameters(model: Architecture) -> int:
    """Embedding and output head."""
    return model.vocabulary * model.hidden * (1 if model.tied_embeddings else 2)


def parameters(model: Architecture) -> int:
    """All parameters: Llama 3 70B 70,553,706,496; Llama 2 70B 68,976,648,192; Llama 3 8B 8,030,261,248."""
    return model.layers * layer_parameters(model) + embedding_parameters(model) + model.hidden


def lora_parameters(model: Architecture, rank: int) -> int:
    """The parameters of LoRA adapters of this rank on all linear layers: rank × (inputs + outputs) each."""
    query = model.heads * model.head_size
    key_value = model.kv_heads * model.head_size
    attention = 2 * (model.hidden + query) + 2 * (model.hidden + key_value)
    return model.layers * rank * (attention + 3 * (model.hidden + model.feed_forward))
