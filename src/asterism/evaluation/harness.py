"""The model `asterism` of lm-evaluation-harness (EleutherAI): runs of ours, and models of transformers with a pattern.

Importing this module registers it. Versions of lm-eval that look for plugins do so by themselves (the entry point
`lm_eval.models`); for others there is `python -m asterism.evaluation.lm_eval`.
"""

from typing import Any

from asterism.errors import ConfigurationError, nearest
from asterism.evaluation.model import open_causal
from asterism.models.drop_in.field import NativeWindow, Positions
from asterism.presence import require_package
from asterism.training.run.device import computing_on

require_package("lm-eval", "lm_eval", "lm-eval", "the model asterism of lm-evaluation-harness")

from lm_eval.api.registry import model_registry  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

_OF_HFLM = (
    *("batch_size", "max_batch_size", "max_length", "truncation", "logits_cache", "add_bos_token", "prefix_token_id"),
    *("softmax_dtype", "think_end_token", "enable_thinking", "chat_template_args"),
)
"""Arguments of HFLM that hold for a model that is loaded already; it would pass over the others in silence."""

_BY_DEFAULT = "cuda:0"
"""What lm_eval gives as the device where its user named none, also without a GPU."""


class AsterismLM(HFLM):  # type: ignore[misc]  # lm-eval need not be there
    """A causal model from a folder, asked as HFLM asks those of transformers.

        lm_eval.simple_evaluate("asterism", {"pretrained": "models/tiny", "pattern": "native"}, tasks=[...])

    pretrained     the folder of a run that predicts the next byte, or of a model of transformers
    pattern        a pattern for a model of transformers, as for `use_pattern`: "native", "window(left=511)"
    native_window  "intersect" or "replace", for a model with windows of its own
    positions      "original" or "cache", as for `use_pattern`
    dtype          of the weights of a model of transformers; "auto" is that of the folder
    device         "cpu", "cuda" or "cuda:N"; None and "cuda:0", which lm_eval gives if you name none, are the GPU if
                   there is one, else the CPU

    More arguments are those of HFLM that hold for a loaded model. Raises ConfigurationError for others, and what
    `open_causal` raises.
    """

    def __init__(
        self,
        pretrained: str,
        pattern: str | None = None,
        native_window: NativeWindow | None = None,
        positions: Positions | None = None,
        dtype: str = "auto",
        device: str | None = None,
        **more: Any,
    ) -> None:
        known = ("pretrained", "pattern", "native_window", "positions", "dtype", "device", *_OF_HFLM)
        for name in more:
            if name not in _OF_HFLM:
                hint = nearest(name, known) or f" The arguments are {', '.join(known)}."
                raise ConfigurationError("unknown-argument", f"the model asterism has no argument {name!r}.{hint}")
        with computing_on("auto" if device in (None, _BY_DEFAULT) else device):
            opened = open_causal(
                str(pretrained), pattern=pattern, native_window=native_window, positions=positions, dtype=dtype
            )
        if opened.tokenizer.eos_token_id is None:
            raise ConfigurationError(
                "tokenizer-without-end",
                f"the tokenizer of {pretrained} has no eos_token, which lm-eval needs; name one in its"
                " tokenizer_config.json",
            )
        if opened.dtype == "bfloat16":
            more["mixed_precision_dtype"] = "bfloat16"
        super().__init__(pretrained=opened.model, tokenizer=opened.tokenizer, backend="causal", **more)


if "asterism" not in model_registry:  # else it is the entry point, whose class this module is asked for
    model_registry.register("asterism", target=AsterismLM)
