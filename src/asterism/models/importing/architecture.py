"""An architecture of Hugging Face for the import: names of its tensors, and fields of its configuration.

Most are encoders in the manner of BERT: embeddings with a norm, post-norm blocks, a pooler, heads. They differ in what
their parts are called, in how they count positions, and in who attends to whom. Those with a decoder, which differ in
more, stand in `encoder_decoder.py`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedConfig

from asterism.errors import CheckpointError

BACKBONE = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.token_type_embeddings": "embed_types",
    "embeddings.position_embeddings": "positions",
    "embeddings.LayerNorm": "embedding_norm",
    "encoder.layer.*.attention.self.query": "layers.*.mixer.query",
    "encoder.layer.*.attention.self.key": "layers.*.mixer.key",
    "encoder.layer.*.attention.self.value": "layers.*.mixer.value",
    "encoder.layer.*.attention.output.dense": "layers.*.mixer.output",
    "encoder.layer.*.attention.output.LayerNorm": "layers.*.mixer_norm",
    "encoder.layer.*.intermediate.dense": "layers.*.feed_forward.up_proj",
    "encoder.layer.*.output.dense": "layers.*.feed_forward.down_proj",
    "encoder.layer.*.output.LayerNorm": "layers.*.feed_forward_norm",
}
"""Modules of BERT's backbone, and ours; a star stands for the number of a layer."""

POOLER = {"pooler.dense": "pooler.dense"}

HARMLESS = {
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "encoder.version",
    "decoder.version",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
}
"""Tensors of old checkpoints that say what is known anyway, or that no version of their class has read."""

_LAYER = re.compile(r"\.(\d+)\.")
"""The number of a layer in the name of a tensor: the first one."""

_KINDS = {"gamma": "weight", "beta": "bias"}
"""What the first checkpoints of BERT call the tensors of a norm."""

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One kind of checkpoint.

    Its tensors are as PyTorch's modules hold them, matrices [outputs, inputs], tables [rows, features] and vectors
    [features], in the dtype of the file.

    class_prefix      what the names of its classes begin with, such as "Bert" of BertForMaskedLM
    prefix            of the backbone's tensors in a model with a head, such as "bert."
    backbone, pooler  modules of the backbone, and ours
    heads             by the end of the class name, such as "ForMaskedLM": modules of the head, and ours
    fields            from its configuration, the fields of AsterismConfig beside those that all have. Raises
                      CheckpointError for what has no counterpart.
    offset            from its configuration, how many rows of the position table come before the first position
    globals           modules of the backbone that only global tokens go through, and ours
    """

    class_prefix: str
    prefix: str
    backbone: Mapping[str, str]
    pooler: Mapping[str, str] = field(default_factory=lambda: POOLER)
    heads: Mapping[str, Mapping[str, str]]
    fields: Callable[[PreTrainedConfig, str], dict[str, Any]]
    offset: Callable[[PreTrainedConfig], int] = lambda config: 0
    globals: Mapping[str, str] = field(default_factory=dict)

    def prepare(self, config: PreTrainedConfig, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of a checkpoint, as the other methods want them. Raises CheckpointError."""
        return dict(tensors)

    def configuration(self, config: PreTrainedConfig, head: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """The fields of AsterismConfig for such a checkpoint. Raises CheckpointError for what has no counterpart."""
        return common_fields(config, self.offset(config)) | self.fields(config, head)

    def module(self, tensor: str) -> str:
        """The module that a tensor of the checkpoint belongs to, without the prefix, a star for the layer."""
        module = tensor.removeprefix(self.prefix).rpartition(".")[0]
        return _LAYER.sub(".*.", module, count=1)

    def head_of(self, config: PreTrainedConfig, tensors: Iterable[str]) -> str:
        """The end of the name of the class that the checkpoint holds.

        config.json names the class. Where it names none or ForMaskedLM, a checkpoint with both heads of BERT's
        pre-training keeps both. Raises CheckpointError for a class without an exact counterpart.
        """
        named = config.architectures[0] if config.architectures else None
        head = None if named is None else named.removeprefix(self.class_prefix)
        if named is not None and (head == named or head not in self.heads):
            known = ", ".join(self.class_prefix + head for head in self.heads)
            advice = (
                ". To import the backbone alone, save it with AutoModel.from_pretrained(PATH).save_pretrained(FOLDER)"
            )
            raise CheckpointError(
                "unsupported-class",
                f"{named} has no exact counterpart; of model_type {config.model_type} these are imported: {known}"
                + (advice if "Model" in self.heads else ""),
            )
        modules = {self.module(tensor) for tensor in tensors}
        if head in (None, "ForMaskedLM"):
            for fuller in ("ForPreTraining", "ForMaskedLM"):
                parts = self.heads.get(fuller, {}).keys() - _TIED
                if parts and parts <= modules and (fuller == "ForMaskedLM" or self.pooler.keys() <= modules):
                    return fuller
        return head or next(iter(self.heads))

    def rename(
        self, tensors: Mapping[str, torch.Tensor], head: str, *, tied: bool, unwanted: Iterable[str] = ()
    ) -> "Renamed":
        """The tensors under our names.

        `tied` says whether the decoder is tied to the embedding; modules in `unwanted` are left out.
        """
        modules = self._modules(head)
        unused = {*unwanted, *(self.pooler.keys() - modules.keys())}
        if not tied:
            unused |= {module for module in _FREE_BIAS if f"{module}.decoder.bias" in tensors}
        renamed = Renamed({}, [], [])
        for name, tensor in tensors.items():
            module, kind = self.module(name), name.rpartition(".")[2]
            if name.removeprefix(self.prefix) in HARMLESS:
                continue
            if module in unused:
                renamed.unused.append(name)
            elif module in modules:
                number = _LAYER.search(name)
                target = modules[module].replace("*", number[1]) if number else modules[module]
                _add(renamed.tensors, f"{target}.{_KINDS.get(kind, kind)}", tensor, name)
            else:
                renamed.unknown.append(name)
        return renamed

    def origin(self, ours: str, head: str) -> str:
        """The checkpoint's name of a tensor of ours, without the prefix: what `rename` undoes."""
        module, _, kind = ours.rpartition(".")
        number = re.search(r"\blayers\.(\d+)\.", module)
        starred = module.replace(number[0], "layers.*.", 1) if number else module
        theirs = {name: origin for origin, name in self._modules(head).items()}[starred]
        return f"{theirs.replace('*', number[1] if number else '0')}.{kind}"

    def _modules(self, head: str) -> dict[str, str]:
        """Modules of a class, and ours. Its pooler is among them unless the head has one of its own."""
        modules = {**self.backbone, **self.heads[head]}
        return modules if "pooler.dense" in modules.values() else {**modules, **self.pooler}


@dataclass(frozen=True)
class Renamed:
    """`tensors` under our names; names of the checkpoint that are unknown, and that the model has no use for."""

    tensors: dict[str, torch.Tensor]
    unknown: list[str]
    unused: list[str]


_FREE_BIAS = ("cls.predictions", "lm_head")
"""Modules that hold the bias of a tied decoder; where the decoder is not tied it has its own, and this is not read."""

_TIED = {name for module in _FREE_BIAS for name in (module, f"{module}.decoder")}
"""Modules of a masked-LM head that a checkpoint may lack: the bias has one of two names, and the matrix is tied."""


def _add(ours: dict[str, torch.Tensor], target: str, tensor: torch.Tensor, name: str) -> None:
    if target in ours and not torch.equal(ours[target], tensor):
        raise CheckpointError(
            "tied-tensors-differ", f"the tensor {name} differs from another with the same meaning, {target}"
        )
    ours[target] = tensor


def common_fields(config: PreTrainedConfig, offset: int) -> dict[str, Any]:
    """The fields of AsterismConfig that all architectures fill alike. Raises CheckpointError for what cannot be had."""
    refuse_unless(config, "is_decoder", False, "a decoder that reads an encoder or the past only")
    refuse_unless(config, "add_cross_attention", False, "a decoder that reads an encoder")
    refuse_unless(config, "position_embedding_type", "absolute", "positions inside attention")
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": getattr(config, "num_attention_heads", 1),
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings - offset,
        "type_vocab_size": config.type_vocab_size,
        "block": "post_norm",
        "embedding_norm": True,
        "hidden_act": activation(config),
        "dropout": config.hidden_dropout_prob,
        "classifier_dropout": getattr(config, "classifier_dropout", None),
        "layer_norm_eps": config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_word_embeddings,
        **special_tokens(config),
        "id2label": config.id2label,
        "label2id": config.label2id,
        "problem_type": config.problem_type,
    }


def special_tokens(config: PreTrainedConfig) -> dict[str, Any]:
    """The numbers of the tokens that mean something; not every class has all of these fields."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    return {name: getattr(config, name, None) for name in names}


def activation(config: PreTrainedConfig, field: str = "hidden_act") -> str:
    """Our name of the activation that a field names. Raises CheckpointError for one that is unknown here."""
    named = getattr(config, field)
    if named not in _ACTIVATIONS:
        raise CheckpointError(
            "unknown-checkpoint-value",
            f"{field} {named!r} is unknown; known are {', '.join(sorted(_ACTIVATIONS))}",
        )
    return _ACTIVATIONS[named]


def refuse_unless(config: PreTrainedConfig, field: str, value: object, meaning: str) -> None:
    """Raises CheckpointError when a field of the checkpoint's configuration is set, and not to this value."""
    if (seen := getattr(config, field, value)) not in (value, None):
        raise CheckpointError(
            "unsupported-checkpoint-value",
            f"the checkpoint has {field}={seen!r}, {meaning}, which cannot be imported; only {value!r} can",
        )
