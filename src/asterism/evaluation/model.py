"""A causal model with its tokenizer, from the folder of a run or from one of transformers."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from asterism.errors import AsterismError, CheckpointError, ConfigurationError
from asterism.evaluation.byte_tokens import byte_tokenizer
from asterism.files import DAMAGED, LOCAL, check_model_folder, why_unread
from asterism.models import use_pattern
from asterism.models.drop_in.field import NativeWindow, Positions
from asterism.presence import require_checkpoint, require_model
from asterism.quiet import quiet_transformers
from asterism.system import sha256_of
from asterism.training.data.corpora.tokenization import has_tokenizer
from asterism.training.objectives.causal import CausalTokens
from asterism.training.objectives.stock import load_causal, readable
from asterism.training.pipeline import open_run
from asterism.training.run.arithmetic import arithmetic
from asterism.training.run.device import device_of_runs
from asterism.training.settings.configuration import Dtype, RunConfig
from asterism.training.tasks.models import longest


@dataclass(frozen=True, eq=False)
class CausalModel:
    """A model in evaluation mode that continues texts.

    folder     where it was loaded from
    model      a causal language model of transformers, or of ours
    tokenizer  what makes tokens of a text, and texts of tokens
    dtype      what products are computed in, where that is not the type of the weights: "bfloat16" is autocast
    """

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    dtype: Dtype = "float32"

    @property
    def positions(self) -> int | None:
        """Tokens that the model was made for; None where its configuration does not say."""
        return longest(self.model.config)

    def count(self, text: str) -> int:
        """How many tokens the model reads of a text, with those that the tokenizer puts before it."""
        return len(self._read(text))

    def _read(self, text: str) -> list[int]:
        """The tokens of a text that is to be continued: without one that ends it, which some tokenizers add."""
        tokens: list[int] = self.tokenizer(text, verbose=False)["input_ids"]
        special = set(self.tokenizer.all_special_ids)
        while tokens and tokens[-1] in special:
            tokens.pop()
        return tokens

    @torch.no_grad()
    def continued(self, prompt: str, room: int) -> str:
        """The likeliest continuation of a prompt, token by token: at most `room` tokens, or to the end of the text.

        Of generation_config.json only the end of a text counts: penalties and the like would change what is likeliest.
        Raises CheckpointError for a model that cannot continue the prompt, or whose logits are NaN.
        """
        device = self.model.device
        read = torch.tensor([self._read(prompt)], device=device)
        model: Any = self.model
        padding = self.tokenizer.pad_token_id
        if padding is None:  # generate would warn; one row has no padding
            padding = 0 if self.tokenizer.eos_token_id is None else self.tokenizer.eos_token_id
        with quiet_transformers(), arithmetic(self.dtype, device), _likeliest(model), self._answering(read):
            written = model.generate(
                input_ids=read,
                attention_mask=torch.ones_like(read),
                max_new_tokens=room,
                pad_token_id=padding,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
        if any(bool(step.isnan().any()) for step in written.logits):
            raise CheckpointError(
                "logits-not-numbers",
                f"{self.folder}: the model computes NaN for a prompt of {read.shape[1]:,} tokens; its weights or"
                " config.json are damaged, or its dtype is too small for it",
            )
        return str(self.tokenizer.decode(written.sequences[0, read.shape[1] :], skip_special_tokens=True))

    @contextmanager
    def _answering(self, read: torch.Tensor) -> Iterator[None]:
        """Whatever a model raises that its folder made impossible to run, as a CheckpointError of one line."""
        try:
            yield
        except AsterismError:
            raise
        except (AttributeError, IndexError, RuntimeError, *DAMAGED) as error:
            raise CheckpointError(
                "model-cannot-continue",
                f"{self.folder}: the model cannot continue a prompt of {read.shape[1]:,} tokens: {why_unread(error)}",
            ) from error

    def identity(self) -> dict[str, Any]:
        """What decides the answers, as plain values: the pattern, and hashes of all weights and of the vocabulary."""
        files = sorted(self.folder.rglob("*.safetensors"))
        positions = getattr(self.model.config, "asterism_positions", None)
        return {
            "model": str(self.folder),
            "weights": {str(file.relative_to(self.folder)): sha256_of(file).hex() for file in files},
            "pattern": getattr(self.model.config, "asterism_pattern", None),
            "native_window": getattr(self.model.config, "asterism_native_window", None),
            **({} if positions is None else {"positions": positions}),
            "dtype": self.dtype if self.dtype == "bfloat16" else str(self.model.dtype).removeprefix("torch."),
            "vocabulary": hashlib.sha256(json.dumps(sorted(self.tokenizer.get_vocab().items())).encode()).hexdigest(),
        }


def open_causal(
    folder: str | Path,
    *,
    pattern: str | None = None,
    native_window: NativeWindow | None = None,
    positions: Positions | None = None,
    dtype: str = "auto",
) -> CausalModel:
    """Load a causal model with its tokenizer from the folder of a run, or from one of transformers.

    A run must have learned to predict the next byte or token of a text. A model of transformers gets `pattern`, as by
    `use_pattern`: "native" is that of its own windows; without one it computes as its folder says. `dtype` is that of
    the weights of a model of transformers: "auto" is that of the folder, or "float32", "bfloat16", "float16",
    "float64". The model is on the device of runs (`computing_on`). Nothing is downloaded, and no pickle is read.

    Raises CheckpointError for a folder without a whole causal model and its tokenizer, ConfigurationError for a run
    with a pattern or of another kind, and what `use_pattern` raises.
    """
    folder = Path(folder)
    require_checkpoint(folder)
    require_model(folder, "model")
    if (folder / "run.json").exists():
        if dtype != "auto" or any(given is not None for given in (pattern, native_window, positions)):
            raise ConfigurationError(
                "pattern-of-a-run",
                f"{folder} is a run, which has its own patterns and dtype; leave pattern, native_window, positions and"
                " dtype out",
            )
        return _of_run(folder)
    tokenizer = _tokenizer(folder)
    model = load_causal(folder, _dtype(dtype))
    if pattern is not None:
        use_pattern(model, pattern, native_window=native_window, positions=positions)
    elif native_window is not None:
        raise ConfigurationError("window-needs-pattern", f"native_window={native_window!r} needs a pattern")
    elif positions is not None:
        raise ConfigurationError("positions-need-pattern", f"positions={positions!r} needs a pattern")
    moved: Any = model
    return CausalModel(folder, moved.to(device_of_runs()).eval(), tokenizer)


def _of_run(folder: Path) -> CausalModel:
    run = open_run(folder)
    config = run.config
    if not (isinstance(run.objective, CausalTokens) and isinstance(config, RunConfig)):
        raise ConfigurationError(
            "run-not-causal",
            f"{folder} has learned {config.objective}; only runs that predict the next byte or token can write",
        )
    if config.modality != RunConfig.modality or config.record_length is not None:
        raise ConfigurationError("run-not-text", f"{folder} has learned {config.reads()}, not bytes of texts")
    tokenizer = byte_tokenizer(config.context) if run.tokenizer is None else run.tokenizer
    return CausalModel(folder, run.model, tokenizer, config.dtype)


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    if not has_tokenizer(folder):
        raise CheckpointError(
            "tokenizer-missing", f"{folder} holds no tokenizer; add the one that the model was trained with"
        )
    with readable(folder):
        check_model_folder(folder)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **LOCAL)
    return tokenizer


@contextmanager
def _likeliest(model: Any) -> Iterator[None]:
    """Greedy generation without what the model's folder adds to it, except for the tokens that end a text."""
    before = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=before.eos_token_id)
    try:
        yield
    finally:
        model.generation_config = before


def _dtype(name: str) -> str | torch.dtype:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if name == "auto":
        return name
    if name not in known:
        raise ConfigurationError("unknown-dtype", f"dtype must be auto, {', '.join(known)}, got {name!r}")
    return known[name]
