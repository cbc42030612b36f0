"""All changes that importing `asterism.models` makes in transformers and PEFT."""

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from asterism.models.drop_in.adapters import remember_in_adapters
from asterism.models.drop_in.attention import pattern_attention
from asterism.models.drop_in.field import IMPLEMENTATION, PatternField
from asterism.models.drop_in.restore import restore_when_built
from asterism.models.drop_in.tokens import describe_tokens


def install() -> None:
    """Let models of transformers follow patterns, and load with them. Calling it again changes nothing.

    - `AttentionInterface` and `AttentionMaskInterface` get an implementation of the name "asterism".
    - `PreTrainedConfig` gets the field `asterism_pattern`; its `from_dict` and `to_dict` read and write it.
    - `PreTrainedModel`: `get_correct_attn_implementation` and `post_init` restore a pattern where a model is built, and
      `set_attn_implementation` warns where one is set aside.
    - Of PEFT, once it is imported: `PeftConfig.to_dict`, `PeftConfig.from_peft_type`, `PeftModel.save_pretrained` and
      `BaseTuner.__init__` keep the pattern of an adapter's model. A finder in front of `sys.meta_path` sees the import.

    A model without a pattern works as before.
    """
    PatternField.register()
    restore_when_built(PreTrainedModel)
    remember_in_adapters()
    AttentionInterface.register(IMPLEMENTATION, pattern_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, describe_tokens)
