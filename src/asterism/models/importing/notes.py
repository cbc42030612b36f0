"""Differences between an imported model and the class of its checkpoint, in words, for the report."""

from transformers import PreTrainedConfig

from asterism.models.asterism.configuration import AsterismConfig

_INSIDE_ATTENTION = "inside attention"
_DROPOUT = {
    "attention_probs_dropout_prob": _INSIDE_ATTENTION,
    "attention_dropout": _INSIDE_ATTENTION,
    "activation_dropout": "inside feed-forward layers",
    "encoder_layerdrop": "of whole layers of the encoder",
    "decoder_layerdrop": "of whole layers of the decoder",
}
"""Rates of dropout that are not imported, by their names in the checkpoint."""


def notes_on(source: PreTrainedConfig, theirs: str, config: AsterismConfig, pattern: object) -> list[str]:
    """One line each. `theirs` is the name of the checkpoint's class, `pattern` what the user wants in place of its."""
    notes = []
    if getattr(source, "attention_type", None) == "block_sparse" and pattern is None:
        notes.append("the checkpoint does not store its random blocks: every layer draws its own, seeded by its number")
    if source.model_type in ("longformer", "led"):
        notes.append(_note_on_globals(theirs, config))
    if source.model_type == "t5" and source.dropout_rate:
        where = "inside attention, inside feed-forward layers or after the last norms"
        notes.append(f"no dropout {where} (the checkpoint's class has {source.dropout_rate})")
    places = {where: rate for name, where in _DROPOUT.items() if (rate := getattr(source, name, 0))}
    for where, rate in places.items():
        remedy = f"; from_pretrained(FOLDER, attention_dropout={rate}) has it" if where == _INSIDE_ATTENTION else ""
        notes.append(f"no dropout {where} (the checkpoint's class has {rate}){remedy}")
    if config.is_encoder_decoder and not config.positions_end:
        notes.append("positions do not end: the length says only what the model is meant for")
    return notes


def _note_on_globals(theirs: str, config: AsterismConfig) -> str:
    """Which tokens are global here, and which are in the checkpoint's class when its caller names none."""
    places = ", ".join(map(str, config.global_projections or ()))
    here = f"the tokens at {places} are global: they read everything, through projections of their own"
    default = {
        "LongformerForSequenceClassification": "the first one is",
        "LongformerForQuestionAnswering": "all tokens of the question are",
    }
    return (
        f"{here if places else 'no token is global'}; in {theirs}, unless its caller names others,"
        f" {default.get(theirs, 'none is')} (--globals names places)"
    )
