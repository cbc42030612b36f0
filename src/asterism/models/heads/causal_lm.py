"""The causal language model: predicts the next token and generates."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from asterism.errors import ConfigurationError
from asterism.labels import IGNORED, shifted, without_first_tokens
from asterism.layers.rows import Rows, is_sharded, refuse_shifting, with_given
from asterism.models.asterism.backbone import AsterismModel, BackboneOutput
from asterism.models.asterism.base import Targets
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.naming import cache_of, with_cache
from asterism.models.generation.generation import GeneratesTokens
from asterism.models.generation.sharded import generate_shards
from asterism.models.heads.head import head_of
from asterism.patterns.forest import Forest


class AsterismForCausalLM(GeneratesTokens, GenerationMixin):
    """AsterismModel with a linear layer for the logits of the next token.

    Raises ConfigurationError or PatternError for a configuration that is not causal.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        config.require_one_stack(type(self).__name__)
        config.check()
        config.require_causal()
        self.model = AsterismModel(config)
        self._add_lm_head(config)
        self.post_init()

    def _stack(self) -> AsterismModel:
        return self.model

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Generate as transformers does. Within `sequence_parallel`, `inputs` are this rank's shard of the prompt, and
        the new tokens int64 [B, M] are returned without the prompt, equal on all ranks.

        Within `sequence_parallel` it takes attention_mask, padded on the right, a ShardedCache as its cache,
        max_new_tokens, do_sample, temperature, top_k, top_p, eos_token_id, pad_token_id, and for sampling a seed, which
        gives the draws of one process after torch.manual_seed(seed). Raises ConfigurationError for anything else.
        """
        if not is_sharded():
            return super().generate(inputs, generation_config, *args, **kwargs)
        with with_given(self, {}):
            if args:
                raise ConfigurationError(
                    "generation-positional",
                    "within sequence_parallel, pass everything but inputs and generation_config by keyword",
                )
            return generate_shards(self, inputs, generation_config, kwargs)

    def _targets(self, given: Mapping[str, Any]) -> Targets:
        return {"shift_labels": (self._shape_of(given, "input_ids", "inputs_embeds"), self.config.vocab_size)}

    @head_of(AsterismModel.forward, without=("token_type_ids",))
    def forward(
        self,
        outputs: BackboneOutput,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **loss_arguments: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, N, vocab_size] and, with labels, the mean loss in nats.

        The inputs are those of AsterismModel without token_type_ids, and
        labels           int64 [B, N], the tokens themselves: column i is compared with the prediction of column i - 1;
                         -100 is ignored, and so is the first token of each document that is packed into a row
        shift_labels     instead of labels int64 [B, N]: the target of each column (one of the loss_arguments); within
                         `sequence_parallel` only these, from asterism.parallel.shard
        logits_to_keep   number of last columns with logits, or the columns themselves; 0 keeps all
        loss_arguments   for the loss of transformers, such as num_items_in_batch

        Raises ConfigurationError for any other argument.
        """
        logits = self._logits(outputs.last_hidden_state, logits_to_keep)
        wanted = loss_arguments.get("shift_labels")
        targets = labels if wanted is None else wanted
        rows, loss, ignored = outputs.rows, None, loss_arguments.get("ignore_index", IGNORED)
        if labels is not None and wanted is None:
            refuse_shifting("labels", "shift_labels")
            _refuse_tree(rows)
            if rows.documents is not None:
                labels = without_first_tokens(labels, rows.positions, ignored)
        if targets is not None and hasattr(self, "_loss_function"):  # one that a caller has set
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **loss_arguments)
        elif targets is not None:
            predicted = shifted(cast(torch.Tensor, labels), ignored) if wanted is None else wanted
            loss = self._token_loss(rows, logits, predicted, loss_arguments)
        return CausalLMOutputWithPast(
            loss=self._penalise(rows, loss, wanted if labels is None else labels, loss_arguments),
            logits=logits,
            hidden_states=outputs.hidden_states,
            **with_cache(cache_of(outputs)),
        )


def _refuse_tree(rows: Rows) -> None:
    """Raises ConfigurationError where the token that follows in a row does not follow in a sequence."""
    if isinstance(rows.documents, Forest):
        raise ConfigurationError(
            "tree-labels",
            "labels cannot be given with parents, where several tokens may follow one: take logits[0, packed.index]"
            " and packed.labels of tree_of for the loss",
        )
